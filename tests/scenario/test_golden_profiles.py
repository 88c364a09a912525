"""Every row of every golden table, played on the simulator under its own policy.

The meaning of the words stands at the top of the tables. How they are played:

- A fault code is a line on the node, with nothing behind it (`node.lost` is the loss of the node); `exit.<n>` is the
  script that ends on the node's ranks. Between two of them everything comes to rest.
- `check.failed` and `check.passed` are what the next checks of the node answer, whoever starts them: the gate, the
  check at the job's end, the proof after a repair. If none comes by itself, a person asks for one.
- Evidence that begins with a check is met by the job's first gate, if the policy has one.
- "The node" is the first of the job's nodes. In rows that say "under one job" the next fault befalls the job again,
  wherever it runs by then.
"""

from collections import deque

import pytest
from tests.support.golden import GoldenRow, load_golden
from tests.support.wards import DAY, MINUTE, Ward

from sickbay.model.checkup import Verdict
from sickbay.model.facts import Checked
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import JobState
from sickbay.model.policy import Trigger
from sickbay.policy.load import load_policy, shipped
from sickbay.sim.hardware import SimDefect

FLAW = SimDefect(code="flaw", cured_by=None, kills_ranks=False, silent=True)  # no more than a check that fails
ACTS = {"cordon": "quarantine", "check": "verify", "uncordon": "release"}
REPAIRS = ("reset_gpu", "reboot", "replace")
RESTING = {Phase.WATCHED, Phase.HELD}
MUST_ACT = {"held", "job_failed"}

ROWS = [(name, row) for name in shipped() for row in load_golden(name)]


class Play:
    """One row."""

    def __init__(self, name: str, row: GoldenRow, *, cold: bool) -> None:
        self.row = row
        self.w = Ward(nodes=3, policy=load_policy(name), cold=cold)
        self.node: NodeId = self.w.nodes[0]
        self.job = JobId("train")
        self.answers: deque[str] = deque()
        self.read = 0
        self.asked = 0

    def perform(self) -> None:
        evidence = deque(self.row.evidence)
        gated = any(e.on is Trigger.BEFORE_START for e in self.w.sim.policy.examine)
        if evidence[0].startswith("check.") and gated:
            self._collect(evidence)
        self.w.submit(self.job, steps=10**7)
        self._rest()
        while evidence or self.answers:
            if self.answers:
                self._somebody_checks()
            else:
                self._befalls(evidence)
            self._rest()

    def _befalls(self, evidence: deque[str]) -> None:
        what = evidence.popleft() if not evidence[0].startswith("check.") else ""
        self._collect(evidence)
        world = self.w.world
        if "under one job" in self.row.when:
            self.node = min(self.w.job(self.job).claim)
        match what.split("."):
            case [""]:
                self._somebody_checks()
            case ["exit", code]:
                world.crash(self.job, exit_code=int(code), tail="")
            case ["node", "lost"]:
                world.lose_node(self.node)
            case _:
                world.write_line(self.node, what)

    def _collect(self, evidence: deque[str]) -> None:
        while evidence and evidence[0].startswith("check."):
            self.answers.append(evidence.popleft())

    def _somebody_checks(self) -> None:
        """A person's own check of the node, with the answer that is due."""
        self.asked += 1
        verdict = Verdict.FAIL if self.answers.popleft() == "check.failed" else Verdict.PASS
        seat = self.w.world.seat(self.node)
        news = Checked(check=f"by-hand-{self.asked}", node=self.node, verdict=verdict, incarnation=seat.incarnation)
        self.w.world.agents.say(seat, news, f"by-hand-{self.asked}:{self.node}")

    def _rest(self) -> None:
        """Until nothing moves by itself; meanwhile the checks of the node answer what they must."""
        began = self.w.sim.scheduler.now

        def resting() -> bool:
            self._answer()
            if self.w.sim.scheduler.now - began < MINUTE or not self.w.known(self.job):
                return False
            job = self.w.job(self.job)
            still = all(not i.open or i.phase in RESTING or _withheld(i) for i in self.w.incidents())
            settled = job.state is JobState.QUEUED and job.wait is not None and "claimed" in job.wait.because
            return still and (not job.open or self.w.trains(self.job) or settled)

        self.w.until(resting, 2 * DAY)
        self.w.run(MINUTE)

    def _answer(self) -> None:
        events = self.w.world.chronicle.events
        for event in events[self.read :]:
            if event.subject == self.node and event.what in {"check.pass", "check.fail"} and self.answers:
                due = self.answers.popleft()
                assert due.startswith(event.what), f"{due} was due, {event.what} happened\n{self.w.why()}"
        self.read = len(events)
        seat = self.w.world.seat(self.node)
        seat.defects = [FLAW] if self.answers and self.answers[0] == "check.failed" else []

    # --- what came of it
    def acts(self) -> tuple[str, ...]:
        """What happened to nodes for the sake of incidents, in order."""
        incidents = {incident.id for incident in self.w.incidents()}
        done = []
        for event in self.w.world.chronicle.events:
            owner = event.detail.removeprefix("sickbay:").split(".")[0]
            if owner in incidents and event.what in {*ACTS, *REPAIRS}:
                done.append(ACTS.get(event.what, f"repair.{event.what}"))
        return tuple(done)

    def told(self) -> bool:
        return any(notice.event in MUST_ACT for notice in self.w.notices())

    def fate(self) -> str:
        job = self.w.job(self.job)
        if job.state is JobState.FAILED:
            return "fails"
        if job.state is JobState.QUEUED:
            return "waits"
        assert job.state is JobState.RUNNING, self.w.why()
        moved = {line.event for line in self.w.sim.store.story(f"job:{self.job}")} & {"requeue", "unclaim"}
        return "restarts" if moved else "untouched"


def _withheld(incident: Incident) -> bool:
    """The policy only recommends: nothing comes after that."""
    return incident.wait is not None and bool(incident.wait.would)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize(("name", "row"), ROWS, ids=[f"{name}: {row.when}" for name, row in ROWS])
def test_the_policy_does_what_its_table_says_when(name: str, row: GoldenRow, cold: bool) -> None:
    play = Play(name, row, cold=cold)
    play.perform()
    found = (play.acts(), play.told(), play.fate())
    assert found == (row.acts, row.told, row.job), play.w.why()


def test_every_shipped_policy_has_a_table() -> None:
    assert {name for name, _ in ROWS} == set(shipped())
    assert len(ROWS) >= 45
