"""Preflight checks of a controller's configuration (`sickbay doctor --config`): what would fail, before anything runs.

Nothing here makes an effect: clusters are built in a directory that is thrown away, with a store in memory, and the
store that is configured is only read.
"""

import os
import shutil
import ssl
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from sickbay.agent.deadline import BoundedCalls
from sickbay.agent.doctor import nearest, private_directory
from sickbay.hosts.config import ClusterConfig, ControllerConfig
from sickbay.hosts.config_file import read_config, read_policy
from sickbay.hosts.server import refuse_taken, refuse_unusable
from sickbay.hosts.state import serving
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput, EffectError, OlderStore, StoreError
from sickbay.model.fault import RUNGS
from sickbay.model.finding import Finding, missing, ok, warning
from sickbay.model.fleet import Capability
from sickbay.model.policy import Policy
from sickbay.policy.lint import lacking, lint
from sickbay.policy.load import refuse_unconfigured
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
    open_store,
)

SOON = timedelta(days=30)  # a certificate that ends within this should be renewed now
ROOM = 2 << 30  # bytes: the store, its copies and the log want some room
ANSWERS_WITHIN = 20.0  # seconds that a cluster is given

_OF_RUNGS = frozenset(rung.needs for rung in RUNGS.values())
Answer = TypeVar("Answer")


def config_findings(path: Path) -> Iterator[Finding]:
    """One for each part of the file, in the order in which a controller would need them."""
    try:
        config = read_config(path)
    except BadInput as error:
        yield missing("config", str(error), "correct that line, then ask again: what stands behind it was not read")
        return
    yield ok("config", f"{path} can be read: clusters {', '.join(config.clusters)}")
    yield from _state(config)
    yield from _listen(config)
    yield from _store(config)
    yield from _notifiers(config)
    try:
        policy = read_policy(config)
        refuse_unconfigured(policy, config.notifiers.names)
        load_tables(config.knowledge)
    except BadInput as error:
        yield missing("policy", str(error), "correct it: a controller does not start with this policy")
        return
    yield from _policy(policy)
    for name, cluster in config.clusters.items():
        yield from _cluster(config, name, cluster, policy)


def _state(config: ControllerConfig) -> Iterator[Finding]:
    state, there = config.state, nearest(config.state)
    yield private_directory(state, "the controller", f"chown it to the user of the controller: {there}")
    free = shutil.disk_usage(there).free
    if free < ROOM:
        yield warning(
            "state", f"{free >> 20} MiB are left on the disk of {there}", "make room: a full disk stops everything"
        )
    if pid := serving(state):
        yield ok("state", f"a controller serves it now (process {pid})")


def _listen(config: ControllerConfig) -> Iterator[Finding]:
    listen = config.listen
    try:
        if not serving(config.state):
            refuse_taken(listen.host, listen.port)
    except BadInput as error:
        yield missing("listen", str(error), "write another 'port', or end what listens there")
    else:
        yield ok("listen", f"{listen.host}:{listen.port} can be served")
    if not listen.cert:
        yield warning(
            "certificate", "none: only this machine can reach the controller, agents on other machines cannot",
            "add 'cert' and 'key' to 'listen', and a 'host' such as 0.0.0.0",
        )  # fmt: skip
        return
    try:
        refuse_unusable(listen.cert, listen.key)
    except BadInput as error:
        yield missing("certificate", str(error), "correct 'listen.cert' and 'listen.key'")
        return
    yield _validity(listen.cert)


def _validity(cert: str) -> Finding:
    try:
        found = ssl._ssl._test_decode_cert(cert)  # type: ignore[attr-defined]  # noqa: SLF001 - no other reader is here
        ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(found["notAfter"]), UTC)
    except (AttributeError, KeyError, ValueError, OSError, ssl.SSLError):
        return warning("certificate", f"{cert} can be served, but not when it ends is known", "look with openssl x509")
    left = ends - datetime.now(UTC)
    if left <= timedelta(0):
        return missing("certificate", f"{cert} has expired on {ends:%Y-%m-%d}: nobody trusts it", "renew it")
    if left < SOON:
        return warning("certificate", f"{cert} expires on {ends:%Y-%m-%d}, in {left.days} days", "renew it")
    return ok("certificate", f"{cert} is valid until {ends:%Y-%m-%d}")


def _store(config: ControllerConfig) -> Iterator[Finding]:
    if not config.shares_store:
        file = Path(config.store_url.partition(":///")[2])
        if not file.exists():
            yield ok("store", f"{file} is not there yet: the controller makes it")
            return
        if not (os.access(file, os.W_OK) and os.access(file.parent, os.W_OK)):
            yield missing("store", f"{file} may not be written by this user", "chown it to the user of the controller")
            return
    try:
        password = read_secret(config.store_password_file) if config.store_password_file else ""
        in_time(lambda: open_store(config.store_url, readonly=True, password=password).close())
    except TimeoutError:
        place = config.store or config.store_url
        yield missing("store", f"{place} does not answer within {ANSWERS_WITHIN:g} s", "see that it can be reached")
        return
    except OlderStore as error:
        yield ok("store", f"{error.name} can be reached: the controller makes its tables, or brings them up to date")
        return
    except (StoreError, BadInput, OSError) as error:
        yield missing("store", str(error), "correct 'store', or see that it can be reached from here")
        return
    yield ok("store", f"{config.store or config.store_url} can be reached and is of a version that is known here")


def _notifiers(config: ControllerConfig) -> Iterator[Finding]:
    if config.notifiers.notifiers:
        yield ok("notifiers", f"{', '.join(config.notifiers.notifiers)}: 'sickbay notify test' tries them")
        return
    yield warning(
        "notifiers", "none: what waits for a person stands in the log only, and nobody is woken",
        "add 'notifiers', for example oncall: {kind: webhook, url: https://…}",
    )  # fmt: skip


def _policy(policy: Policy) -> Iterator[Finding]:
    doubts = lint(policy, None)
    for line in doubts:
        yield warning("policy", line)
    if not doubts:
        yield ok("policy", f"{policy.name}: nothing in it is doubtful")


# --- clusters


def _cluster(config: ControllerConfig, name: str, said: ClusterConfig, policy: Policy) -> Iterator[Finding]:
    subject = f"cluster {name}"
    with TemporaryDirectory(prefix="sickbay-doctor-") as aside:
        store = open_store("memory:")
        try:
            ground = ClusterGround(
                name, Path(aside) / name, store, policy, _nobody, said.settings, said.select, said.pool, said.adopt
            )
            wired = cluster_kind(said.kind).build(ground)
            machines = machines_of(config.machines, MachineGround(store, _nobody))
            fleet = fleet_of(
                {name: FleetCluster(wired, said.machines)},
                FleetGround(store, policy, _nobody, Path(aside), config.knowledge, machines=machines),
            )
        except BadInput as error:
            yield missing(subject, str(error), f"correct 'clusters.{name}'")
            return
        finally:
            store.close()
        yield from _readable(subject, wired)
        yield from _own_findings(subject, wired)
        yield from _joining(config, name, wired)
        yield from _able(subject, policy, fleet.rules.can[name])
    for channel, settings in config.machines.items():
        yield from _programs(channel, settings)


def _nobody() -> None:
    pass


def _readable(subject: str, wired: WiredCluster) -> Iterator[Finding]:
    if wired.own_nodes is not None:
        yield ok(subject, "its nodes are processes of this machine: they begin with the controller")
        return
    try:
        snapshot = in_time(wired.cluster.snapshot)
    except TimeoutError:
        yield missing(subject, f"does not answer within {ANSWERS_WITHIN:g} s", "see that it can be reached from here")
    except (EffectError, BadInput, OSError) as error:
        yield missing(subject, f"cannot be read: {error}", "see that it can be reached, with these settings, from here")
    else:
        yield ok(subject, f"can be read: {len(snapshot.nodes)} nodes, {len(snapshot.jobs)} jobs")
        if not snapshot.nodes:
            yield warning(subject, "has no nodes that are ours", "look at 'select', or at the cluster itself")


def in_time(call: Callable[[], Answer]) -> Answer:
    """Raises TimeoutError, and what the call raises; what hangs is left behind."""
    return BoundedCalls("those that were asked", ANSWERS_WITHIN).call(call)


def _own_findings(subject: str, wired: WiredCluster) -> Iterable[Finding]:
    """What its own kind says. A mistake of another package's is one line, too."""
    try:
        return in_time(lambda: list(wired.findings()))
    except TimeoutError:
        said = f"does not say within {ANSWERS_WITHIN:g} s what is missing there"
    except Exception as error:  # noqa: BLE001 - the edge: the other clusters are looked at all the same
        said = f"cannot say what is missing there: {error}"
    return [missing(subject, said, "see that it can be reached, with these settings, from here")]


def _joining(config: ControllerConfig, name: str, wired: WiredCluster) -> Iterator[Finding]:
    join = config.agents.join.get(name)
    if join is not None:
        yield ok(f"agents of {name}", f"join with the token in {join.token_file}")
    elif wired.own_nodes is None:  # else the controller starts them, and gives each its token
        yield warning(
            f"agents of {name}", "have no join token in this file: each needs a token of its own, or one by hand",
            f"add agents: {{join: {{{name}: {{token_file: …}}}}}}, or 'sickbay token create NAME --role join "
            f"--cluster {name}'",
        )  # fmt: skip


def _able(subject: str, policy: Policy, can: frozenset[Capability]) -> Iterator[Finding]:
    """What the policy asks for and this cluster, with its machines, cannot do; each thing once."""
    alike: dict[tuple[str, Capability | None], list[str]] = {}
    for lack in lacking(policy, can):
        alike.setdefault((lack.text, lack.needs), []).append(lack.at)
    for (text, needs), paths in alike.items():
        yield warning(subject, f"{text} ({', '.join(dict.fromkeys(paths))} of the policy)", _way_out(needs))
    if not alike:
        yield ok(subject, "can do all that the policy asks for")


def _way_out(needs: Capability | None) -> str:
    if needs is Capability.FENCE:
        return "name a channel that fences below 'machines', such as a BMC: {kind: command, fence: […], fenced: […]}"
    if needs in _OF_RUNGS:
        return "name a channel for it below 'machines', or take the rung out of the policy"
    return "see docs/policy.md"


def _programs(channel: str, settings: object) -> Iterator[Finding]:
    """Programs of machines of kind `command` that are not on this machine."""
    for rung in ("restart_service", "reboot", "replace", "fence", "fenced"):
        words = getattr(settings, rung, ())
        if words and shutil.which(words[0]) is None:
            yield missing(
                f"machines {channel}", f"{rung}: there is no program {words[0]!r} that this user may run",
                f"install it, or write its full path in machines.{channel}.{rung}",
            )  # fmt: skip
