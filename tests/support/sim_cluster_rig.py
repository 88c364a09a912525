"""The simulated cluster as a rig of the contract suite: time is virtual, a call on the wire is a mutation."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from msgspec.structs import replace

from sickbay.model.facts import Fact, Observed
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.sim.adapters import SimChecks, SimCluster, SimMachines
from sickbay.sim.chaos import Mischief, Odds
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import MachinePower, SimSeat
from sickbay.sim.schedule import Scheduler
from sickbay.sim.world import World
from sickbay.testing.cluster_rig import ClusterRig, Moment, Trouble, lacks

LONGEST = 400.0  # seconds: nothing takes longer in this world, a replacement and a doubled call included


class SimFarCalls:
    def __init__(self, mischief: Mischief) -> None:
        self._mischief = mischief
        self._from = 0

    def begin(self) -> None:
        self._from = self._mischief.calls

    def count(self) -> int:
        return self._mischief.calls - self._from

    def cut(self, number: int, moment: Moment) -> None:
        self.begin()
        self._mischief.force(self._from + number, f"lost_{moment}")


class SimRig(ClusterRig):
    limit = 10.0

    def __init__(self, capabilities: frozenset[Capability], odds: Odds | None = None, seed: int = 1) -> None:
        self._facts: list[Fact] = []
        self._cleaned = 0
        self.scheduler = Scheduler()
        self.mischief = Mischief(odds)
        self.far_calls = SimFarCalls(self.mischief)
        self.world = World(
            self.scheduler,
            Random(seed),
            self.mischief,
            lambda facts, _pulses: self._facts.extend(facts),
            Timings(boot_takes=60.0, replace_takes=120.0, work_lasts=math.inf),
        )
        self.world.add_cluster(ClusterRules(id="c", capabilities=capabilities, keep=40))
        self.world.add_nodes("c", 6)
        self.cluster = SimCluster(self.world, "c")
        self.machines = SimMachines(self.world, "c")
        self.checks = SimChecks(self.world, "c")
        self.settle()

    @property
    def facts(self) -> Sequence[Fact]:
        return self._facts

    def nodes(self) -> list[NodeId]:
        return list(self.world.seats)

    def named(self, name: str) -> str:
        return f"{name}.{self._cleaned}"

    def spec(self, nodes: int, says: str = "") -> JobSpec:  # noqa: ARG002 - simulated ranks write nothing
        return JobSpec(name="j", cluster="c", pool="train", nodes=nodes)

    def impossible(self) -> JobSpec:
        return replace(self.spec(1), native={"kind": "Pod"})

    # --- time
    def wait(self, condition: Callable[[], bool]) -> None:
        limit = self.scheduler.now + 7200.0
        while not condition():
            assert self.scheduler.now < limit, "it never came true"
            self.scheduler.run(self.scheduler.now + 1.0)

    def settle(self) -> None:
        over = self.scheduler.now + LONGEST
        self.scheduler.run(over)
        self.wait(lambda: self.cluster.snapshot().as_of >= over)

    def clean(self) -> None:
        self.settle()
        for job in list(self.world.workload.jobs):
            if not self.world.workload.job(job).purged:
                self.world.forget_job(job, told=True)
        for seat in list(self.world.seats.values()):
            if seat.unmanaged:
                self.world.operator_drains(seat.id)
            if seat.cordons:
                self.world.operator_uncordons(seat.id)
            if seat.power is MachinePower.DOWN:
                self.world.operator_reboots(seat.id)
        self.wait(self._is_clean)
        self.settle()
        self._cleaned += 1

    def _is_clean(self) -> bool:
        def ready(seat: SimSeat) -> bool:
            return seat.free and seat.speaking

        return len(self.world.seats) >= 4 and all(map(ready, self.world.seats.values()))

    def outdated_cursor(self) -> str:
        cursor = self.cluster.snapshot().cursor
        node = self.nodes()[0]
        for number in range(100):
            name = self.named(f"old-{number}")
            self.cluster.cordon(node, owner=f"sickbay:{name}", reason="r", key=name, expect=None)
            self.scheduler.run(self.scheduler.now + 1.0)
            self.cluster.snapshot()
        return cursor

    # --- what others do
    def others_cordon(self, node: NodeId) -> str:
        self.world.operator_cordons(node, "other:person")
        return "other:person"

    def others_uncordon(self, node: NodeId) -> None:
        self.world.operator_uncordons(node)

    def others_drain(self, node: NodeId) -> str:
        self._begun_on(node)
        self.world.operator_drains(node)
        return "other:drain"

    def _begun_on(self, node: NodeId) -> None:
        """A cluster that chooses nodes shows ranks from the allocation on, before they live."""
        self.wait(lambda: self.living_ranks(node) > 0)

    def others_work(self, node: NodeId) -> None:
        assert self.world.other_scheduler_starts_work(node)

    def others_reboot(self, node: NodeId) -> None:
        self.world.operator_reboots(node)

    def others_replace(self, node: NodeId) -> None:
        self.world.operator_replaces(node)

    def native_job(self, name: str, nodes: int) -> JobId:
        job = JobId(self.named(name))
        self.world.submit_to_cluster(job, self.spec(nodes), native_delay=5.0, native_after_stop=True)
        return job

    def native_restart(self, job: JobId) -> None:
        self._begun(job)
        self.world.crash(job)

    def cancel_by_owner(self, job: JobId) -> None:
        self.world.owner_cancels(job)

    def preempt(self, job: JobId) -> None:
        self.world.preempt(job)

    def _begun(self, job: JobId) -> None:
        """A cluster that chooses nodes shows ranks from the allocation on, before they live."""
        self.wait(lambda: any(attempt.alive for attempt in self.world.workload.job(job).attempts.values()))

    def finish(self, job: JobId, code: int) -> None:
        self._begun(job)
        if code:
            self.world.crash(job, exit_code=code)
        else:
            self.world.complete(job)

    def living_ranks(self, node: NodeId) -> int:
        attempts = [each for job in self.world.workload.jobs.values() for each in job.attempts.values()]
        return sum(node in attempt.alive for attempt in attempts)

    def say(self, node: NodeId) -> None:
        self.world.says("c", self.named("event"), Observed(node=node, kind="xid", fields={"number": 79, "device": 0}))

    # --- trouble
    @contextmanager
    def break_far_side(self, how: Trouble) -> Iterator[None]:
        if how not in {"down", "hangs"}:
            lacks(f"no simulated cluster is so: {how}")
        for channel in ("cluster:c", "reads:c", "machines:c", "checks:c"):
            self.mischief.outage(channel, self.scheduler.now, math.inf, hangs=how == "hangs")
        try:
            yield
        finally:
            self.mischief.mend()
