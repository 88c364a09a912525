"""The simulated cluster keeps the ports' contract, whether it places jobs or not, keeps seats or not."""

from collections.abc import Callable
from random import Random

import pytest
from msgspec.structs import replace

from sickbay.model.facts import Fact, Observed
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.sim.adapters import SimChecks, SimCluster, SimMachines
from sickbay.sim.chaos import Mischief, Odds
from sickbay.sim.context import CLUSTER_CAN, ClusterRules, Timings
from sickbay.sim.schedule import Scheduler
from sickbay.sim.world import World
from sickbay.testing.cluster_contract import ClusterContract


class SimRig:
    def __init__(self, capabilities: frozenset[Capability], odds: Odds | None = None, seed: int = 1) -> None:
        self.facts: list[Fact] = []
        self._own = f"{seed}-{len(capabilities)}"
        self.scheduler = Scheduler()
        self.mischief = Mischief(odds)
        self.world = World(
            self.scheduler,
            Random(seed),
            self.mischief,
            lambda facts, _pulses: self.facts.extend(facts),
            Timings(boot_takes=60.0, replace_takes=120.0),
        )
        self.world.add_cluster(ClusterRules(id="c", capabilities=capabilities, keep=40))
        self.world.add_nodes("c", 6)
        self.cluster = SimCluster(self.world, "c")
        self.machines = SimMachines(self.world, "c")
        self.checks = SimChecks(self.world, "c")
        self.settle()

    def nodes(self) -> list[NodeId]:
        return list(self.world.seats)

    def named(self, name: str) -> str:
        return f"{name}.{self._own}"

    def others_cordon(self, node: NodeId) -> str:
        self.world.operator_cordons(node, "other:person")
        return "other:person"

    def others_work(self, node: NodeId) -> None:
        assert self.world.other_scheduler_starts_work(node)

    def native_job(self, name: str, nodes: int) -> JobId:
        job = JobId(self.named(name))
        self.world.submit_to_cluster(job, self.spec(nodes), native_delay=5.0, native_after_stop=True)
        return job

    def say(self, node: NodeId) -> bool:
        self.world.says("c", self.named("event"), Observed(node=node, kind="xid", fields={"number": 79, "device": 0}))
        return True

    def spec(self, nodes: int, says: str = "") -> JobSpec:  # noqa: ARG002 - simulated ranks write nothing
        return JobSpec(name="j", cluster="c", pool="train", nodes=nodes)

    def impossible(self) -> JobSpec:
        return replace(self.spec(1), native={"kind": "Pod"})

    def cut_before(self) -> None:
        self.mischief.force_next("lost_before")

    def cut_after(self) -> None:
        self.mischief.force_next("lost_after")

    def outdated_cursor(self) -> str:
        cursor = self.cluster.snapshot().cursor
        node = self.nodes()[0]
        for number in range(100):
            self.cluster.cordon(node, owner=f"sickbay:{number}", reason="r", key=f"old-{number}", expect=None)
            self.scheduler.run(self.scheduler.now + 1.0)
            self.cluster.snapshot()
        return cursor

    def wait(self, condition: Callable[[], bool]) -> None:
        limit = self.scheduler.now + 7200.0
        while not condition():
            assert self.scheduler.now < limit, "it never came true"
            self.scheduler.run(self.scheduler.now + 1.0)

    def settle(self) -> None:
        self.scheduler.run(self.scheduler.now + 400.0)


KINDS = {
    "places, keeps seats": CLUSTER_CAN,
    "places, new seats": CLUSTER_CAN - {Capability.SEAT_KEPT},
    "chooses itself, keeps seats": CLUSTER_CAN - {Capability.PLACE},
    "chooses itself, new seats": CLUSTER_CAN - {Capability.PLACE, Capability.SEAT_KEPT},
    "chooses itself, holds": CLUSTER_CAN - {Capability.PLACE} | {Capability.HOLDS},
}


class TestSimCluster(ClusterContract):
    @pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
    def rig(self, request: pytest.FixtureRequest) -> SimRig:
        return SimRig(request.param)


class TestSimClusterWithDoubledCallsAndLateReports(ClusterContract):
    """What the network may do without anybody's fault: every call arrives twice, every report late or twice."""

    @pytest.fixture(params=range(3))
    def rig(self, request: pytest.FixtureRequest) -> SimRig:
        odds = Odds(doubled=1.0, report_late=0.5, report_twice=0.5, lag_spread=3.0)
        return SimRig(CLUSTER_CAN, odds, seed=request.param)
