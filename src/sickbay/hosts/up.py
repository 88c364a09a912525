"""Everything of one `sickbay up`: the store, the controller, the API that serves it, and the local cluster."""

import http.client
import json
import logging
import os
import secrets
import ssl
import time
from collections.abc import Callable
from contextlib import ExitStack
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from starlette.applications import Starlette

from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.clusters.local.rack import Rack
from sickbay.clusters.local.settings import LocalSettings
from sickbay.hosts.backend import Backend
from sickbay.hosts.changes import Changes
from sickbay.hosts.channels import NotifierFile
from sickbay.hosts.clock import SystemClock
from sickbay.hosts.controller import Controller
from sickbay.hosts.server import refuse_taken, refuse_unusable, served
from sickbay.hosts.state import FIRST_TOKEN, RECORD, lock_alone, make_private
from sickbay.hosts.wakeup import Wakeup
from sickbay.model.fleet import NodeId
from sickbay.model.plain_text import plain_text
from sickbay.model.policy import Policy
from sickbay.policy.load import refuse_unconfigured
from sickbay.wire.files import replace_file
from sickbay.wiring import ClusterGround, FleetCluster, FleetGround, cluster_kind, fleet_of, notifiers_of, open_store

CLUSTER, POOL = "local", "default"
LOG_PARTS = 4
COME_UP = 15.0  # seconds that nodes that were switched off are given


class UpOptions(NamedTuple):
    """What `sickbay up` was asked for. None: as it was, or the default."""

    state: Path
    nodes: int | None = None
    gpus: int | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    boot_takes: float = 1.0
    cert: str | None = None
    key: str | None = None
    knowledge: Path | None = None  # the operator's own rows over the shipped tables
    notifiers: NotifierFile = NotifierFile()


class Api(Protocol):
    """What answers over HTTP. Whoever starts the service hands it in: a host knows no face."""

    def __call__(
        self, backend: Backend, *, leads: Callable[[], bool], mail: Wakeup, trouble: Callable[[], str]
    ) -> Starlette: ...


class Service:
    """Start once, stop once. The cluster outlives it unless it is taken down with it."""

    def __init__(self, wish: UpOptions, policy: Policy, api: Api) -> None:
        self.state = wish.state
        self._wish = wish
        refuse_unconfigured(policy, wish.notifiers.names)
        refuse_taken(wish.host, wish.port)  # before anything is made: a refusal leaves no trace
        refuse_unusable(wish.cert, wish.key)
        make_private(wish.state)
        self._alone = lock_alone(wish.state)
        self._logging = _log_to(wish.state / "controller.log", policy.retention.log_mib << 20)
        self.rack = Rack(wish.state / "local")
        try:
            self._store = open_store(f"sqlite:///{wish.state / 'sickbay.db'}")
        except BaseException:
            self._alone.close()
            raise
        try:
            mail = Wakeup()
            settings = LocalSettings(nodes=wish.nodes, gpus=wish.gpus, boot_takes=wish.boot_takes)
            place = ClusterGround(CLUSTER, self.rack.root, self._store, policy, mail.ring, settings, pool=POOL)
            ground = FleetGround(
                self._store,
                policy,
                mail.ring,
                self.rack.root / "metrics",
                wish.knowledge,
                notifiers_of(wish.notifiers.notifiers, wish.notifiers.links),
                wish.notifiers.traits,
            )
            fleet = fleet_of({CLUSTER: FleetCluster(cluster_kind("local").build(place))}, ground)
            self._executor = ThreadExecutor(workers_per_lane=16)
            self._controller = Controller(self._store, fleet, self._executor, SystemClock(), Changes())
            controller = self._controller
            answers = api(self.backend, leads=lambda: controller.leads, mail=mail, trouble=lambda: controller.trouble)
            self._serving = ExitStack()
            self.url = self._serving.enter_context(served(answers, wish.host, wish.port, wish.cert, wish.key)).url
        except BaseException:
            self._store.close()
            self._alone.close()
            raise
        self.token = ""

    @property
    def backend(self) -> Backend:
        return self._controller.backend

    @property
    def trouble(self) -> str:
        return self._controller.trouble

    def start(self, progress: Callable[[str], None] = lambda _: None) -> None:
        self.rack.url(self.url, self._wish.cert or "")
        # Who was here before is started before anybody looks: a node that was switched off is not one that fails.
        started = self._wake_known()
        self._controller.start(self._canary)
        self.token = self._credential("operator", "admin", self.state / FIRST_TOKEN)
        for seat in self.rack.names():
            node = NodeId(f"{CLUSTER}/{seat}")
            self._credential(f"agent of {node}", "agent", self.rack.paths(seat).token, node)
        record = {"pid": os.getpid(), "url": self.url}
        (self.state / RECORD).write_text(json.dumps(record))
        started += self.rack.power_on()
        progress(f"{len(started)} nodes started" if started else "found the nodes that were running")

    def _wake_known(self) -> tuple[str, ...]:
        """Only where every agent can be believed at once: a token is known when the engine has learned of it."""
        tokens = [self.rack.paths(seat).token for seat in self.rack.names()]
        if not all(file.exists() and self.backend.who(file.read_text().strip()) for file in tokens):
            return ()
        started = self.rack.power_on()
        cluster, until = self.backend.clusters[CLUSTER], time.monotonic() + COME_UP
        while started and time.monotonic() < until:
            up = {seen.node for seen in cluster.snapshot().nodes if seen.ready}
            if all(NodeId(f"{CLUSTER}/{seat}") in up for seat in started):
                break
            time.sleep(0.05)
        return started

    def _credential(self, name: str, role: str, file: Path, node: NodeId | None = None) -> str:
        """The secret in the file, if the store knows it for what it is. A lost or revoked one is replaced by another:
        a secret that was revoked never opens anything again, and nobody is locked out of his own machine.
        """
        secret = file.read_text().strip() if file.exists() else ""
        known = self.backend.who(secret) if secret else None
        if known is not None and known.role == role and not known.over(self.backend.now()):
            return secret
        if known is None:
            secret = secrets.token_urlsafe(24)
            replace_file(file, secret.encode())
        self.backend.issue(name, role, "sickbay up", node, secret, anew=True, reason="for this machine's own use")
        return secret

    def _canary(self) -> bool:
        """The way of a report: through the network and the server."""
        address = urlsplit(self.url)
        host = address.hostname or "127.0.0.1"
        if address.scheme == "https":  # ourselves: whoever answers on our own port need not prove who it is
            trusting = ssl._create_unverified_context()  # noqa: S323, SLF001 - said above
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, address.port, timeout=5.0, context=trusting
            )
        else:
            connection = http.client.HTTPConnection(host, address.port, timeout=5.0)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self, *, cluster: bool) -> None:
        """`cluster`: the nodes end, too. Otherwise they go on, and the next controller finds them."""
        self._controller.stop()
        self._serving.close()
        self._executor.close(within=5.0)
        if cluster:
            self.rack.down()
        self._store.close()
        (self.state / RECORD).unlink(missing_ok=True)
        logging.getLogger("sickbay").removeHandler(self._logging)
        self._logging.close()
        self._alone.close()


class _LogFile(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """A line that the disk does not take is lost: a page about each would only bury what is wrong."""


class _PlainLines(logging.Formatter):
    """People read it with `tail -f`: what a job wrote, and is quoted, must not reach their terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return plain_text(super().format(record))


def _log_to(file: Path, most: int) -> logging.Handler:
    """`most`: bytes of all its parts together."""
    handler = _LogFile(file, maxBytes=most // LOG_PARTS, backupCount=LOG_PARTS - 1, delay=True)
    handler.setFormatter(_PlainLines("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("sickbay")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler
