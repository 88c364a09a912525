"""Given, when, then: the few words that scenarios are told in."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Brake, DrainHow, JobId, Ledger, Node, NodeId, pool_of
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job, JobState
from sickbay.model.policy import Policy, Window
from sickbay.policy.load import load_policy
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import CLUSTER, POOL, Plan, Simulation

HOUR = 3600.0
DAY = 24 * HOUR


class Ward:
    """One simulated cluster."""

    def __init__(self, *, seed: int = 0, policy: Policy | None = None, **plan: Any) -> None:
        self.sim = Simulation(Plan(**plan), seed=seed, policy=policy)
        self.world = self.sim.world
        self.nodes = self.sim.nodes
        self.order = self.sim.order
        self.run = self.sim.run

    # --- given
    def training(self, name: str = "train", *, steps: int = 3000, **spec: Any) -> JobId:
        """A job that runs."""
        spec.setdefault("nodes", 2)
        job = self.sim.submit(name, Programme(steps=steps, checkpoint_every=100), **spec)
        self.until(lambda: self.state(job) == JobState.RUNNING, HOUR)
        return job

    def sick(self, node: NodeId, code: str = "xid.79", cured_by: Remedy | None = Remedy.REBOOT, **more: Any) -> None:
        self.world.strike(node, SimDefect(code=code, cured_by=cured_by, **more))

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

    def rests(self, most: float = 3 * DAY) -> None:
        """Time passes until nothing moves by itself any more; then everything that holds at rest is asserted."""
        self.run(60)  # what has just happened is noticed
        self.until(self.sim.calm, most)
        self.run(60)
        self.sim.invariants.at_rest()

    # --- then
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

    def happened(self, what: str, node: str | None = None) -> list[str]:
        """What truly was: details of the chronicle's events."""
        events = self.world.chronicle.events
        return [e.detail for e in events if e.what == what and node in {None, e.subject}]

    def told(self, event: str | None = None) -> list[str]:
        """What a human was told."""
        return [n.text for _, n in self.world.notices if event in {None, n.event}]

    def story(self, node: NodeId) -> str:
        return "\n".join(line.text for line in self.sim.store.story(f"node:{node}"))

    def why(self) -> str:
        """For a failing assertion: what is open, and what it waits for."""
        lines = [f"seed {self.sim.seed}, t={self.sim.scheduler.now:.0f}"]
        lines += [f"{i.id} {i.node} {i.fault.code} {i.phase}: {i.wait}" for i in self.sim.incidents(intake=True)]
        lines += [f"{j.id} {j.state}: {j.wait}" for j in self.sim.jobs()]
        return "\n".join(lines)


OpenWard = Callable[..., Ward]


def policy_with(**changes: Any) -> Policy:
    """The default policy but for some of its keys."""
    return replace(load_policy("default"), **changes)


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
