"""Given, when, then: the few words that scenarios are told in."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Brake, DrainHow, JobId, Ledger, Node, NodeId, pool_of
from sickbay.model.incident import Incident, Phase
from sickbay.model.intent import Notify
from sickbay.model.job import Interruption, Job, JobSpec, JobState
from sickbay.model.policy import Policy, Window
from sickbay.policy.load import load_policy
from sickbay.sim.chronicle import TrueEvent
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme, SimJob
from sickbay.sim.simulation import CLUSTER, POOL, Plan, Simulation

MINUTE = 60.0
HOUR = 3600.0
DAY = 24 * HOUR
STAGES = ("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")

warm_and_cold = pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])


class Ward:
    """One simulated cluster. What is true is read from the world's chronicle, what is believed from the rows."""

    def __init__(self, *, seed: int = 0, policy: Policy | None = None, **plan: Any) -> None:
        self.sim = Simulation(Plan(**plan), seed=seed, policy=policy)
        self.world = self.sim.world
        self.nodes = self.sim.nodes
        self.order = self.sim.order
        self.run = self.sim.run

    # --- given
    def submit(
        self, name: str = "train", *, steps: int = 3000, does: dict[str, Any] | None = None, **spec: Any
    ) -> JobId:
        spec.setdefault("nodes", 2)
        return self.sim.submit(name, _programme(steps, does), **spec)

    def running(self, name: str = "train", **more: Any) -> JobId:
        """A job that runs, and may not have taken a step yet."""
        job = self.submit(name, **more)
        self.until(lambda: self.state(job) == JobState.RUNNING, HOUR)
        return job

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
        full = JobSpec(name=name, cluster=CLUSTER, pool=POOL, **spec)
        self.world.submit_to_cluster(
            job, full, _programme(steps, does), native_delay=native_delay, native_after_stop=native_after_stop
        )
        self.until(lambda: self.trains(job), HOUR)
        return job

    def sick(self, node: NodeId, code: str = "xid.79", cured_by: Remedy | None = Remedy.REBOOT, **more: Any) -> None:
        self.world.strike(node, SimDefect(code=code, cured_by=cured_by, **more))

    def spoil(self, node: NodeId, cured_by: Remedy | None = Remedy.REBOOT, found_at: int = 1) -> SimDefect:
        """Something that nobody notices before a check does."""
        defect = SimDefect(code="xid.79", cured_by=cured_by, kills_ranks=False, silent=True, found_at=found_at)
        self.world.strike(node, defect)
        return defect

    def says(self, node: NodeId, number: int, **fields: str | int) -> None:
        """The kernel of a node writes an Xid line, with nothing behind it."""
        text = f"NVRM: Xid (PCI:0000:10:00): {number}, {fields}"
        self.world.observe(node, "xid", {"number": number, "device": 0, **fields}, text)

    # --- when
    def until(self, done: Callable[[], bool], most: float = DAY) -> None:
        assert self.sim.run_until(done, most), f"it never happened\n{self.why()}"

    def reaches(self, node: NodeId, phase: Phase | str, most: float = DAY) -> Incident:
        """Time passes until the node's newest incident is there."""
        self.until(lambda: self.phase(node) == phase, most)
        return self.incident(node)

    def job_reaches(self, job: JobId, *states: JobState, most: float = DAY) -> Job:
        self.until(lambda: self.known(job) and self.job(job).state in states, most)
        return self.job(job)

    def ends(self, job: JobId, state: JobState = JobState.COMPLETE, most: float = 3 * DAY) -> Job:
        self.until(lambda: self.known(job) and not self.job(job).open, most)
        assert self.job(job).state is state, self.why()
        return self.job(job)

    def rests(self, most: float = 3 * DAY) -> None:
        """Time passes until nothing moves by itself any more; then everything that holds at rest is asserted."""
        self.run(60)  # what has just happened is noticed
        self.until(self.sim.calm, most)
        self.run(60)
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

    def events(self, what: str, subject: str | None = None) -> list[TrueEvent]:
        return self.world.chronicle.of(what, subject)

    def happened(self, what: str, node: str | None = None) -> list[str]:
        """What truly was: details of the chronicle's events."""
        return [e.detail for e in self.events(what, node)]

    def sent(self, act: str) -> list[str]:
        """The fates and answers of all calls of this kind."""
        return [told.answer for told in self.world.chronicle.told if told.act == act]

    def passed_checks(self, node: str) -> list[float]:
        return [e.at for e in self.events("check.pass", node)]

    # --- then: what is believed
    def incidents(self, node: NodeId | None = None) -> list[Incident]:
        return self.sim.incidents(node)

    def incident(self, node: NodeId) -> Incident:
        found = self.sim.incidents(node, intake=True)
        assert found, f"{node} has no incident\n{self.why()}"
        return found[-1]

    def phase(self, node: NodeId) -> str:
        found = self.sim.incidents(node, intake=True)
        return found[-1].phase if found else ""

    def phases(self, node: NodeId) -> list[str]:
        """Of the newest incident, in order."""
        return [str(stage.phase) for stage in self.incident(node).stages]

    def node(self, node: NodeId) -> Node:
        return self.sim.node(node)

    def known(self, job: JobId) -> bool:
        return self.sim.store.load([f"job:{job}"])[f"job:{job}"].row is not None

    def job(self, job: JobId) -> Job:
        return self.sim.job(job)

    def state(self, job: JobId) -> str:
        return next((str(row.state) for row in self.sim.jobs() if row.id == job), "")

    def ledger(self) -> Ledger:
        key = f"ledger:{pool_of(CLUSTER, POOL)}"
        row = self.sim.store.load([key])[key].row
        assert isinstance(row, Ledger)
        return row

    def brake(self, name: str) -> Brake:
        name = name.replace(f"pool:{POOL}:", f"pool:{pool_of(CLUSTER, POOL)}:")
        row = self.sim.store.load([f"brake:{name}"])[f"brake:{name}"].row
        assert isinstance(row, Brake), f"there is no brake {name}"
        return row

    def rungs(self, node: NodeId) -> list[str]:
        return [str(t.rung) for t in self.incident(node).tries]

    def notices(self, event: str | None = None) -> list[Notify]:
        """What a human was told."""
        return [notice for _, notice in self.world.notices if event in {None, notice.event}]

    def told(self, event: str | None = None) -> list[str]:
        return [notice.text for notice in self.notices(event)]

    def story(self, node: NodeId) -> str:
        return "\n".join(line.text for line in self.sim.store.story(f"node:{node}"))

    def because(self, job: JobId) -> str:
        """Why nothing happens."""
        wait = self.job(job).wait
        assert wait is not None, self.why()
        return wait.because

    def why(self) -> str:
        """For a failing assertion: what is open, what it waits for, and how that came."""
        lines = [f"seed {self.sim.seed}, t={self.sim.scheduler.now:.0f}"]
        for incident in self.sim.incidents(intake=True):
            lines.append(f"{incident.id} {incident.node}: {incident.phase} {incident.fault.code} {incident.wait}")
            lines += self._story(f"incident:{incident.id}")
        for job in self.sim.jobs():
            lines.append(f"{job.id}: {job.state} {job.wait}")
            lines += self._story(f"job:{job.id}")
        return "\n".join(lines)

    def _story(self, subject: str) -> list[str]:
        return [f"  {line.at:%d %H:%M:%S} {line.text}" for line in self.sim.store.story(subject)]


def _programme(steps: int, does: dict[str, Any] | None) -> Programme:
    return Programme(**{"steps": steps, "checkpoint_every": 100, **(does or {})})


def in_order(interruption: Interruption) -> bool:
    """Stages stand in the order of their names, and none is before the one that it follows."""
    names, moments = list(interruption.stages), list(interruption.stages.values())
    return names == [stage for stage in STAGES if stage in names] and moments == sorted(moments)


OpenWard = Callable[..., Ward]


def policy_with(**changes: Any) -> Policy:
    """The default policy but for some of its keys."""
    return replace(load_policy("default"), **changes)


def policy_of(name: str = "default", **resume: Any) -> Policy:
    """A shipped policy with some of its `resume` changed."""
    policy = load_policy(name)
    return replace(policy, resume=replace(policy.resume, **resume))


def cluster_without(*lacking: str, **more: Any) -> ClusterRules:
    """The simulated cluster without some of its capabilities, whichever part has them."""
    rules = ClusterRules(id=CLUSTER, **more)
    return replace(
        rules,
        capabilities=frozenset(c for c in rules.capabilities if c not in lacking),
        machines=frozenset(c for c in rules.machines if c not in lacking),
        checks=frozenset(c for c in rules.checks if c not in lacking),
    )


OPENS_AT_THREE = (Window(start="03:00", why="repairs wait for the small hours"),)
POLITE = replace(load_policy("default").pace, drain=DrainHow.WAIT)


def in_phase(open_ward: OpenWard, phase: Phase, **more: Any) -> tuple[Ward, NodeId]:
    """A node whose incident is in this phase and stays there for a while."""
    policy = policy_with(pace=POLITE)
    if phase is Phase.DRAINED:
        policy = replace(policy, windows=OPENS_AT_THREE)
    if phase is Phase.HELD:
        more["cluster"] = cluster_without("reboot", "replace", "reset_gpu")
    w = open_ward(policy=policy, rules=Timings(work_lasts=600.0), **more)
    node = w.nodes[0]
    if phase is Phase.SUSPECT:
        w.order("pause", "")
    if phase is Phase.DRAINING:
        assert w.world.other_scheduler_starts_work(node)
        w.run(10)
    if phase is Phase.WATCHED:
        w.says(node, 31)
    else:
        w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, phase, HOUR)
    if phase in {Phase.SUSPECT, Phase.REPAIRING, Phase.VERIFYING, Phase.HELD}:
        w.run(20)
    return w, node
