"""A local cluster of real processes, for the contract suite and for tests that break it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.files import BOOT_MARK, Cordon
from sickbay.clusters.local.machines import LocalMachines
from sickbay.clusters.local.processes import find
from sickbay.clusters.local.rack import Rack
from sickbay.model.errors import Transient, Unknown
from sickbay.model.facts import Fact
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.ports.cluster import Accepted

MUTATIONS = frozenset(
    {"cordon", "uncordon", "drain", "start", "rerun", "stop", "restart_service", "reboot", "replace", "fence"}
)
IDLE_AGENT = "sh -c 'exec sleep 1000' agent"  # the ports of this package need no agent


class Wire:
    """The connection to an adapter: it can be cut before or after the next mutation."""

    def __init__(self, adapter: object, cuts: list[str]) -> None:
        self._adapter = adapter
        self._cuts = cuts

    def __getattr__(self, name: str) -> Any:
        there = getattr(self._adapter, name)
        if name not in MUTATIONS:
            return there

        def call(*args: Any, **kwargs: Any) -> Accepted:
            cut = self._cuts.pop() if self._cuts else ""
            if cut == "before":
                raise Transient("the line was cut on the way there")
            answer: Accepted = there(*args, **kwargs)
            if cut == "after":
                raise Unknown("the line was cut on the way back")
            return answer

        return call


class NoChecks:
    """Checks are the agent's."""

    capabilities: frozenset[Capability] = frozenset()

    def start(self, check: str, nodes: object, *, level: int, profile: str, storage: tuple[str, ...] = ()) -> Accepted:
        raise NotImplementedError

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        raise NotImplementedError


class LocalRig:
    def __init__(self, root: Path, nodes: int = 4, gpus: int = 2) -> None:
        self.root = root
        self.facts: Sequence[Fact] = ()
        self.room = Rack(root)
        self.room.create("local", nodes, gpus, "train", boot_takes=0.05)
        self.room.power_on()
        self._cuts: list[str] = []
        self._own = uuid4().hex[:6]
        self.bare = LocalCluster(root, keep=40, grace=2.0)
        self.cluster: Any = Wire(self.bare, self._cuts)
        self.machines: Any = Wire(LocalMachines(root), self._cuts)
        self.checks: Any = NoChecks()
        self.settle()

    def nodes(self) -> list[NodeId]:
        return [NodeId(f"local/{name}") for name in self.room.names()]

    def named(self, name: str) -> str:
        return f"{name}-{self._own}"

    def others_cordon(self, node: NodeId) -> str:
        """As a person would by hand: in the seat's own file, not through our port."""
        name = node.partition("/")[2]
        with self.room.held(name) as seat:
            theirs = Cordon(owner="other:person", reason="by hand")
            self.room.save(replace(seat, cordons=(*seat.cordons, theirs)))
        return theirs.owner

    def others_work(self, node: NodeId) -> None:
        raise NotImplementedError("nothing runs here that Sickbay does not manage")

    def native_job(self, name: str, nodes: int) -> JobId:
        raise NotImplementedError("only Sickbay starts jobs here")

    def say(self, node: NodeId) -> bool:
        del node
        return False

    def spec(self, nodes: int, says: str = "") -> JobSpec:
        command = ("sh", "-c", 'printf %s "$1"; exec sleep 1000', "rank", says)
        return JobSpec(name="j", cluster="local", pool="train", nodes=nodes, command=command)

    def impossible(self) -> JobSpec:
        return replace(self.spec(1), image="pytorch:2.6")

    def cut_before(self) -> None:
        self._cuts.append("before")

    def cut_after(self) -> None:
        self._cuts.append("after")

    def outdated_cursor(self) -> str:
        cursor = self.bare.snapshot().cursor
        node = self.nodes()[0]
        for number in range(50):
            self.bare.cordon(node, owner=f"sickbay:{number}", reason="r", key=f"old-{number}", expect=None)
            self.bare.snapshot()
        return cursor

    def wait(self, condition: Callable[[], bool], within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"it never came true; {self.bare.snapshot()}"
            self.bare.wait(0.02)

    def settle(self) -> None:
        """All machines that should run are ready, no order is left, and what was stopped has ended."""
        self.wait(self._settled)

    def _settled(self) -> bool:
        seats = [self.room.seat(name) for name in self.room.names()]
        ready = {found.node for found in self.bare.snapshot().nodes if found.ready}
        if any(seat.power == "on" and seat.id not in ready for seat in seats):
            return False
        if any(self.root.glob("seats/*/orders/[!.]*.json")):
            return False
        open_stops = (each for each in self.bare._reader.attempts.all() if each.stop and each.closed_at is None)
        return next(open_stops, None) is None

    # --- what tests of this adapter ask besides
    def holder(self, node: NodeId) -> Incarnation:
        return next(found.incarnation for found in self.bare.snapshot().nodes if found.node == node)

    def processes(self) -> dict[int, str]:
        """Everything that any boot of any seat has left running."""
        boots = {path.name for path in self.root.glob("seats/*/instances/*/boots/*")}
        boots |= {self.room.seat(name).boot_id for name in self.room.names()}
        return find(marks=[f"{BOOT_MARK}={boot}" for boot in boots])

    def close(self) -> None:
        self.room.down(within=1.0)
        self.bare.close()
        assert not self.processes()
