"""Given, when, then, from where a job stands: what its scenarios are told in."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.incident import Incident
from sickbay.model.intent import Notify
from sickbay.model.job import Interruption, Job, JobSpec, JobState
from sickbay.model.policy import Policy
from sickbay.policy.load import load_policy
from sickbay.sim.chronicle import TrueEvent
from sickbay.sim.context import CHECKS_CAN, CLUSTER_CAN, MACHINES_CAN, ClusterRules
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme, SimJob
from sickbay.sim.simulation import CLUSTER, POOL, Plan, Simulation

MINUTE = 60.0
HOUR = 3600.0
DAY = 24 * HOUR
STAGES = ("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")

warm_and_cold = pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])


def policy_of(name: str = "default", **resume: Any) -> Policy:
    """A shipped policy with some of its `resume` changed."""
    policy = load_policy(name)
    return replace(policy, resume=replace(policy.resume, **resume))


def cluster_without(*lacking: Capability, **rules: Any) -> ClusterRules:
    gone = frozenset(lacking)
    return ClusterRules(
        id=CLUSTER,
        capabilities=CLUSTER_CAN - gone,
        machines=MACHINES_CAN - gone,
        checks=CHECKS_CAN - gone,
        **rules,
    )


class Hall:
    """A cluster full of jobs. What is true is read from the world's chronicle, what is believed from the rows."""

    def __init__(self, *, seed: int = 0, policy: Policy | None = None, **plan: Any) -> None:
        self.sim = Simulation(Plan(**plan), seed=seed, policy=policy)
        self.world = self.sim.world
        self.nodes = self.sim.nodes
        self.run = self.sim.run
        self.order = self.sim.order

    # --- given
    def submit(
        self, name: str = "train", *, steps: int = 3000, does: dict[str, Any] | None = None, **spec: Any
    ) -> JobId:
        spec.setdefault("nodes", 2)
        programme = Programme(**{"steps": steps, "checkpoint_every": 100, **(does or {})})
        return self.sim.submit(name, programme, **spec)

    def training(self, name: str = "train", **more: Any) -> JobId:
        """A job that has taken its first step."""
        job = self.submit(name, **more)
        self.until(lambda: self.trains(job), HOUR)
        return job

    def submitted_elsewhere(
        self,
        name: str = "theirs",
        *,
        steps: int = 3000,
        does: dict[str, Any] | None = None,
        native_delay: float | None = None,
        native_after_stop: bool = False,
        **spec: Any,
    ) -> JobId:
        """A job of somebody who does not know us; it trains."""
        spec.setdefault("nodes", 2)
        job = JobId(name)
        programme = Programme(**{"steps": steps, "checkpoint_every": 100, **(does or {})})
        full = JobSpec(name=name, cluster=CLUSTER, pool=POOL, **spec)
        self.world.submit_to_cluster(
            job, full, programme, native_delay=native_delay, native_after_stop=native_after_stop
        )
        self.until(lambda: self.trains(job), HOUR)
        return job

    def strike(self, node: NodeId, code: str = "xid.79", cured_by: Remedy | None = Remedy.REBOOT, **more: Any) -> None:
        self.world.strike(node, SimDefect(code=code, cured_by=cured_by, **more))

    def spoil(self, node: NodeId, cured_by: Remedy | None = Remedy.REBOOT, found_at: int = 1) -> SimDefect:
        """Something that nobody notices before a check does."""
        defect = SimDefect(code="xid.79", cured_by=cured_by, kills_ranks=False, silent=True, found_at=found_at)
        self.world.strike(node, defect)
        return defect

    # --- when
    def until(self, done: Callable[[], bool], most: float = DAY) -> None:
        assert self.sim.run_until(done, most), f"it never happened\n{self.why()}"

    def reaches(self, job: JobId, *states: JobState, most: float = DAY) -> Job:
        self.until(lambda: self.known(job) and self.job(job).state in states, most)
        return self.job(job)

    def ends(self, job: JobId, state: JobState = JobState.COMPLETE, most: float = 3 * DAY) -> Job:
        self.until(lambda: self.known(job) and not self.job(job).open, most)
        assert self.job(job).state is state, self.why()
        return self.job(job)

    def rests(self, most: float = 3 * DAY) -> None:
        """Until nothing moves by itself any more; then everything that holds at rest is asserted."""
        self.run(MINUTE)
        self.until(self.sim.calm, most)
        self.run(MINUTE)
        self.sim.invariants.at_rest()

    # --- then: what is true
    def true_job(self, job: JobId) -> SimJob:
        return self.world.workload.jobs[job]

    def trains(self, job: JobId) -> bool:
        found = self.world.workload.jobs.get(job)
        last = found.last if found else None
        return last is not None and last.training_since is not None and last.halted_at is None and self.known(job)

    def starts(self, job: JobId) -> list[tuple[int, tuple[NodeId, ...]]]:
        """Attempts that truly began, in order, and where."""
        found = [e for e in self.world.chronicle.of("start") if e.subject.startswith(f"{job}#")]
        return [(int(e.subject.split("#")[1]), tuple(NodeId(node) for node in e.detail.split(","))) for e in found]

    def happened(self, what: str, subject: str | None = None) -> list[TrueEvent]:
        return self.world.chronicle.of(what, subject)

    def sent(self, act: str) -> list[str]:
        """The fates and answers of all calls of this kind."""
        return [told.answer for told in self.world.chronicle.told if told.act == act]

    def passed_checks(self, node: str) -> list[float]:
        return [e.at for e in self.happened("check.pass", node)]

    # --- then: what is believed
    def known(self, job: JobId) -> bool:
        return self.sim.store.load([f"job:{job}"])[f"job:{job}"].row is not None

    def job(self, job: JobId) -> Job:
        return self.sim.job(job)

    def incidents(self, node: NodeId | None = None) -> list[Incident]:
        return self.sim.incidents(node)

    def because(self, job: JobId) -> str:
        """Why nothing happens."""
        wait = self.job(job).wait
        assert wait is not None, self.why()
        return wait.because

    def told(self, event: str | None = None) -> list[Notify]:
        return [notice for _, notice in self.world.notices if event in {None, notice.event}]

    def why(self) -> str:
        lines = [f"seed {self.sim.seed}, t={self.sim.scheduler.now:.0f}"]
        for job in self.sim.jobs():
            lines.append(f"{job.id}: {job.state} {job.wait}")
            lines += [f"  {line.at:%d %H:%M:%S} {line.text}" for line in self.sim.store.story(f"job:{job.id}")]
        for incident in self.sim.incidents(intake=True):
            lines.append(f"{incident.id} {incident.node}: {incident.phase} {incident.fault.code} {incident.wait}")
            lines += [
                f"  {line.at:%d %H:%M:%S} {line.text}" for line in self.sim.store.story(f"incident:{incident.id}")
            ]
        return "\n".join(lines)


def in_order(interruption: Interruption) -> bool:
    """Stages stand in the order of their names, and none is before the one that it follows."""
    names, moments = list(interruption.stages), list(interruption.stages.values())
    return names == [stage for stage in STAGES if stage in names] and moments == sorted(moments)
