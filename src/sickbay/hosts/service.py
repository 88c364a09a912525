"""Everything of one running controller (service): store, notifiers, clusters, engine, and the API that serves it.

`sickbay controller` runs what a file says (`hosts/config_file.py`), `sickbay up` one local cluster (`hosts/up.py`).
"""

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import sha256
from typing import Protocol

from starlette.applications import Starlette

from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.adapters.machines.channels import SentThrough
from sickbay.brain.joining import token_name
from sickbay.hosts.backend import Backend
from sickbay.hosts.changes import Changes
from sickbay.hosts.clock import SystemClock
from sickbay.hosts.config import ControllerConfig
from sickbay.hosts.controller import Controller
from sickbay.hosts.first_tokens import agree_on, has_admin
from sickbay.hosts.joining import admit_joiners
from sickbay.hosts.own_log import log_to
from sickbay.hosts.server import answers_at, refuse_taken, refuse_unusable, served
from sickbay.hosts.state import FIRST_TOKEN, RECORD, lock_alone, make_private
from sickbay.hosts.wakeup import Wakeup
from sickbay.model.errors import BadInput
from sickbay.model.fleet import NodeId, Role, cluster_of
from sickbay.model.policy import Policy
from sickbay.policy.load import refuse_unconfigured
from sickbay.ports.own_nodes import OwnNodes
from sickbay.ports.store import Store
from sickbay.wire.secret_files import read_secret
from sickbay.wiring import (
    ClusterGround,
    FleetCluster,
    FleetGround,
    MachineGround,
    WiredCluster,
    cluster_kind,
    fleet_of,
    machines_of,
    notifiers_of,
    open_store,
)

COME_UP = 15.0  # seconds that nodes that were switched off are given
METRICS = "metrics"  # below the state


class Api(Protocol):
    """What answers over HTTP. Whoever starts the service hands it in: a host knows no face."""

    def __call__(
        self, backend: Backend, *, leads: Callable[[], bool], mail: Wakeup, trouble: Callable[[], str]
    ) -> Starlette: ...


class Service:
    """Start once, stop once. `by` is the command that runs it, as the audit log names it.

    Nodes of this machine outlive it unless they are taken down with it.
    """

    def __init__(self, config: ControllerConfig, policy: Policy, api: Api, by: str) -> None:
        self.config, self._by = config, by
        self.state = config.state
        listen = config.listen
        refuse_unconfigured(policy, config.notifiers.names)
        with _placed(config, "listen"):
            setting = "'listen.{}'" if config.file else "--{}"
            refuse_taken(listen.host, listen.port, setting)  # before anything is made: a refusal leaves no trace
            refuse_unusable(listen.cert or None, listen.key or None)
        with _placed(config, "state"):
            make_private(self.state)
        self.token = ""
        with ExitStack() as undo:
            self._alone = undo.enter_context(lock_alone(self.state))
            self._logging = log_to(self.state / "controller.log", policy.retention.log_mib << 20)
            with _placed(config, "store"):
                self._store = _store_of(config)
            undo.callback(self._store.close)
            mail = Wakeup()
            self._clusters = {name: self._cluster(name, policy, mail) for name in config.clusters}
            self._ground = self._fleet_ground(policy, mail)
            fleet = fleet_of(self._clusters, self._ground)
            self._executor = ThreadExecutor(workers_per_lane=16)
            self._controller = controller = Controller(self._store, fleet, self._executor, SystemClock(), Changes())
            answers = api(self.backend, leads=lambda: controller.leads, mail=mail, trouble=lambda: controller.trouble)
            self._serving = ExitStack()
            door = served(answers, listen.host, listen.port, listen.cert or None, listen.key or None)
            self.url = self._serving.enter_context(door).url
            undo.pop_all()

    def _cluster(self, name: str, policy: Policy, mail: Wakeup) -> FleetCluster:
        said = self.config.clusters[name]
        home = self.config.home(name)
        ground = ClusterGround(
            name, home, self._store, policy, mail.ring, said.settings, said.select, said.pool, said.adopt
        )
        try:
            wired = cluster_kind(said.kind).build(ground)
        except BadInput as error:
            raise self.config.wrong(("clusters", name), error) from None
        except Exception as error:  # another's code, or a disk that is full
            logging.getLogger("sickbay.controller").exception("cluster %s cannot be built", name)
            why = f"kind {said.kind!r} cannot be used ({type(error).__name__}: {error}): the log says where"
            raise self.config.wrong(("clusters", name), BadInput(why)) from None
        if not isinstance(wired, WiredCluster):
            why = f"kind {said.kind!r} builds no sickbay.wiring.WiredCluster: install it anew"
            raise self.config.wrong(("clusters", name), BadInput(why))
        return FleetCluster(wired, said.machines, checks_first=said.first == "check")

    def _fleet_ground(self, policy: Policy, mail: Wakeup) -> FleetGround:
        config = self.config
        return FleetGround(
            store=self._store,
            policy=policy,
            posted=mail.ring,
            metrics=config.metrics or self.state / METRICS,
            knowledge=config.knowledge,
            notifiers=notifiers_of(config.notifiers.notifiers, config.notifiers.links),
            traits=config.notifiers.traits,
            machines=machines_of(config.machines, MachineGround(self._store, mail.ring)),
            sent=SentThrough(),
        )

    @property
    def backend(self) -> Backend:
        return self._controller.backend

    @property
    def leads(self) -> bool:
        return self._controller.leads

    @property
    def trouble(self) -> str:
        return self._controller.trouble

    @property
    def _own(self) -> Mapping[str, OwnNodes]:
        return {name: own for name, each in self._clusters.items() if (own := each.wired.own_nodes) is not None}

    def start(self, progress: Callable[[str], None] = lambda _: None, *, new_token: bool = False) -> None:
        """`new_token`: an administrator's token is made anew, for whoever has lost it."""
        for own in self._own.values():
            own.reach(self.url, self.config.listen.cert)
        # Who was here before is started before anybody looks: a node that was switched off is not one that fails.
        started = [node for own in self._own.values() for node in self._wake_known(own)]
        self._controller.start(lambda: answers_at(self.url))
        self.token = self._first_token(new_token=new_token)
        with _placed(self.config, "agents"):
            files = {name: one.token_file for name, one in self.config.agents.join.items()}
            admit_joiners(self.backend, files, by=self._by)
        for own in self._own.values():
            for node, file in own.agents().items():
                agree_on(self.backend, token_name(node), Role.AGENT, file, by=self._by, node=node)
        record = {"pid": os.getpid(), "url": self.url}
        (self.state / RECORD).write_text(json.dumps(record))
        started += [node for own in self._own.values() for node in own.power_on()]
        if self._own:
            progress(
                f"{len(started)} node{'s' if len(started) > 1 else ''} started"
                if started
                else "found the nodes that were running"
            )

    @property
    def promises(self) -> tuple[str, ...]:
        """What is done on nodes of this machine and what is not, for whoever starts it."""
        return tuple(line for own in self._own.values() for line in own.promises())

    def _first_token(self, *, new_token: bool) -> str:
        """An administrator's, in a file of the state. Empty: on a shared store the first replica's serves all."""
        file = self.state / FIRST_TOKEN
        name = "operator"
        if self.config.shares_store:
            name = f"operator-{socket.gethostname()}-{sha256(str(self.state).encode()).hexdigest()[:6]}"
            if not file.exists() and not new_token and has_admin(self.backend):
                return ""
        if new_token:
            file.unlink(missing_ok=True)
        return agree_on(self.backend, name, Role.ADMIN, file, by=self._by)

    def _wake_known(self, own: OwnNodes) -> tuple[NodeId, ...]:
        """Only where every agent can be believed at once: a token is known when the engine has learned of it."""
        tokens = own.agents().values()
        if not all(file.exists() and self.backend.who(file.read_text(errors="replace").strip()) for file in tokens):
            return ()
        started = own.power_on()
        until = time.monotonic() + COME_UP
        while started and time.monotonic() < until:
            cluster = self.backend.clusters[cluster_of(started[0])]
            up = {seen.node for seen in cluster.snapshot().nodes if seen.ready}
            if up >= set(started):
                break
            time.sleep(0.05)
        return started

    def take(self, policy: Policy) -> None:
        """Decide by another policy, and by the knowledge as it stands now, from now on. Raises BadInput."""
        refuse_unconfigured(policy, self.config.notifiers.names)
        ground = self._ground._replace(policy=policy)
        self._controller.take(fleet_of(self._clusters, ground))
        self._ground = ground

    def stop(self, *, cluster: bool = False) -> None:
        """`cluster`: the nodes of this machine end, too. Otherwise they go on, and the next controller finds them."""
        self._controller.stop()
        self._serving.close()
        self._executor.close(within=5.0)
        if cluster:
            for own in self._own.values():
                own.down()
        self._store.close()
        (self.state / RECORD).unlink(missing_ok=True)
        logging.getLogger("sickbay").removeHandler(self._logging)
        self._logging.close()
        self._alone.close()


@contextlib.contextmanager
def _placed(config: ControllerConfig, part: str) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        raise config.wrong((part,), error) from None


def _store_of(config: ControllerConfig) -> Store:
    password = ""
    if config.store_password_file:
        try:
            password = read_secret(config.store_password_file)
        except OSError as error:
            raise BadInput(str(error)) from None
    return open_store(config.store_url, password=password)
