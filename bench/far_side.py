"""Far sides that accept everything at once and show nothing: what is measured is ours, not theirs."""

from collections.abc import Callable, Mapping

from sickbay.engine.execute import Effects, Site
from sickbay.model.facts import Outcome
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.intent import Notify
from sickbay.model.job import JobSpec
from sickbay.ports.cluster import Accepted, Deltas, Log, Lost, Snapshot

CLUSTER = "bench"


class _Willing:
    capabilities = frozenset(Capability)
    blind: frozenset[str] = frozenset()


class FarCluster(_Willing):
    id = CLUSTER
    period = 10.0

    def watch(self, cursor: str | None) -> Deltas | Lost:
        return Deltas(cursor=cursor or "0", as_of=0.0)

    def snapshot(self) -> Snapshot:
        return Snapshot(cursor="0", as_of=0.0)

    def cordon(self, node: NodeId, *, owner: str, reason: str, key: str, expect: Incarnation | None) -> Accepted:
        del node, owner, reason, key, expect
        return Accepted()

    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        del node, owner, key, expect
        return Accepted()

    def drain(self, node: NodeId, *, how: str, key: str, expect: Incarnation | None) -> Accepted:
        del node, how, key, expect
        return Accepted()

    def start(
        self,
        job: JobId,
        attempt: int,
        *,
        spec: JobSpec,
        nodes: Mapping[NodeId, tuple[int, ...]],
        avoid: tuple[NodeId, ...],
        key: str,
    ) -> Accepted:
        del job, attempt, spec, nodes, avoid, key
        return Accepted()

    def rerun(self, job: JobId, attempt: int, *, avoid: tuple[NodeId, ...], key: str) -> Accepted:
        del job, attempt, avoid, key
        return Accepted()

    def logs(self, job: JobId, attempt: int, rank: int, *, after: str = "", last: int = 0, limit: int = 65_536) -> Log:
        del job, attempt, rank, last, limit
        return Log(text="", next=after, over=True)

    def wrong(self, spec: JobSpec) -> str:
        del spec
        return ""

    def stop(self, job: JobId, attempt: int, *, final: bool, key: str) -> Accepted:
        del job, attempt, final, key
        return Accepted()


class FarMachines(_Willing):
    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        del node, key, expect
        return Accepted()

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        del node, devices, key, expect
        return Accepted()

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        del node, key, expect
        return Accepted()

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        del node, key, expect
        return Accepted()

    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        del node, key, expect
        return Accepted(done=True)


class FarChecks(_Willing):
    def start(
        self,
        check: str,
        nodes: Mapping[NodeId, Incarnation | None],
        *,
        level: int,
        profile: str,
        storage: tuple[str, ...] = (),
    ) -> Accepted:
        del check, nodes, level, profile, storage
        return Accepted()

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        del look, nodes, stacks_of
        return Accepted()

    def ask_to_save(self, ask: str, nodes: tuple[NodeId, ...], *, job: JobId, attempt: int) -> Accepted:
        del ask, nodes, job, attempt
        return Accepted()


class FarEar:
    def tell(self, notice: Notify, *, key: str) -> str:
        del notice, key
        return ""


class AtOnce:
    """An executor that makes each call where it stands: its cost, and that of its outcome's fact, is in the figure."""

    def room(self, lane: str) -> int:
        return 1000 if lane else 0

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        del lane, timeout, key
        done(call())


def far_hands() -> Effects:
    return Effects(sites={CLUSTER: Site(FarCluster(), FarMachines(), FarChecks())}, notifiers={"log": FarEar()})
