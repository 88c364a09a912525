"""Counters of what the fleet went through, for metrics: told by the rows that were committed, never by their words.

They live in memory and begin at zero with each process, as counters may.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import pairwise, takewhile

from sickbay.model.fault import NODE_LOST
from sickbay.model.fleet import IncidentId
from sickbay.model.incident import Incident, IncidentKind, Phase, Stage
from sickbay.model.intent import Intent, IntentState, Notify
from sickbay.model.job import EndReason, Interruption, Job

Labels = tuple[str, ...]

MOST_LABELS = 1000  # sets of labels of one counter; whatever comes after them is counted as OTHER
OTHER = "other"
REMEMBERED = 5000  # ended intents, and incidents that a job's loss may be linked to


class CauseClass(StrEnum):
    """Why an attempt of a job was lost, as coarsely as a graph wants it."""

    FAULT = "fault"  # a node showed one
    NODE_LOST = "node_lost"
    OPERATOR = "operator"  # a person wanted the node
    HANG = "hang"
    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    PROGRAM = "program"
    UNKNOWN = "unknown"


OF_THE_END = {
    EndReason.NODE_LOST: CauseClass.NODE_LOST,
    EndReason.PREEMPTED: CauseClass.PREEMPTED,
    EndReason.FAILED: CauseClass.PROGRAM,
    EndReason.CANCELLED_BY_OTHER: CauseClass.CANCELLED,
}


class LabelledCounts:
    """One family of counters, of a bounded number of label sets."""

    def __init__(self) -> None:
        self.values: Counter[Labels] = Counter()

    def add(self, *labels: str, by: float = 1) -> None:
        if labels not in self.values and len(self.values) >= MOST_LABELS:
            labels = (OTHER,) * len(labels)
        self.values[labels] += by  # type: ignore[assignment]  # seconds are no whole numbers


class RecentKeys(OrderedDict[str, tuple[str, str]]):
    """The newest of what was put in."""

    def put(self, key: str, value: tuple[str, str] = ("", "")) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > REMEMBERED:
            self.popitem(last=False)


class FleetTally:
    """Compares rows before and after a commit. Called by one thread, under its owner's lock."""

    def __init__(self) -> None:
        self.faults = LabelledCounts()  # code
        self.opened = LabelledCounts()  # pool, kind, fault
        self.entered = LabelledCounts()  # pool, phase
        self.closed = LabelledCounts()  # pool, kind, phase
        self.repairs = LabelledCounts()  # pool, rung, outcome
        self.submitted = LabelledCounts()  # cluster
        self.attempts = LabelledCounts()  # cluster
        self.ended = LabelledCounts()  # cluster, state
        self.interruptions = LabelledCounts()  # cluster, cause
        self.lost_seconds = LabelledCounts()  # cluster, cause
        self.sent = LabelledCounts()  # cluster, act
        self.effects = LabelledCounts()  # cluster, act, result
        self.notices = LabelledCounts()  # channel, event, outcome
        self._over = RecentKeys()
        self._incidents = RecentKeys()
        self._causes: dict[tuple[str, int], CauseClass] = {}

    def count(self, counts: Mapping[str, int]) -> None:
        for what, times in counts.items():
            kind, _, name = what.partition("/")
            if kind == "fault":
                self.faults.add(name, by=times)

    # --- incidents
    def know(self, incident: Incident) -> None:
        self._incidents.put(incident.id, (incident.kind, incident.fault.code))

    def incident(self, before: Incident | None, after: Incident, *, created: bool) -> None:
        self.know(after)
        if before is None and not created:
            return  # over before we looked: whatever changed in it is no step
        if before is None:
            self.opened.add(after.pool, after.kind, after.fault.code)
        fresh = _new_stages(before, after)
        last = [before.stages[-1].phase] if before is not None and before.stages else []
        for stage in fresh:
            self.entered.add(after.pool, stage.phase)
            if stage.phase.terminal:
                self.closed.add(after.pool, after.kind, stage.phase)
        for source, target in pairwise([*last, *(stage.phase for stage in fresh)]):
            withdrawn = before is not None and len(after.tries) < len(before.tries)  # it was never sent
            if outcome := "" if withdrawn else _outcome(source, target):
                self.repairs.add(after.pool, after.rung or "none", outcome)

    # --- jobs
    def job(self, before: Job | None, after: Job, *, created: bool) -> None:
        if before is None and not created:
            return
        where = after.spec.cluster
        if before is None:
            self.submitted.add(where)
        if (begun := after.attempt - (before.attempt if before is not None else 0)) > 0:
            self.attempts.add(where, by=begun)
        if not after.open and (before is None or before.open):
            self.ended.add(where, after.state)
        self._losses(before, after)

    def losses(self, job: Job) -> None:
        """Why the attempt was lost whose loss is not over, as far as the row can tell now."""
        for lost in job.interruptions[-1:]:
            if not lost.closed:
                known = self._causes.get((job.id, lost.attempt))
                self._causes[job.id, lost.attempt] = self._cause(job, lost, known)

    def _losses(self, before: Job | None, after: Job) -> None:
        was = {one.attempt for one in before.interruptions if one.closed} if before is not None else set()
        self.losses(after)
        for n, lost in enumerate(after.interruptions):
            if not lost.closed or lost.attempt in was:
                continue
            cause = self._causes.pop((after.id, lost.attempt), None) or self._cause(after, lost, None)
            self.interruptions.add(after.spec.cluster, cause)
            # The next attempt's loss takes over the clock of one that it followed before the first step.
            if n == len(after.interruptions) - 1:
                self.lost_seconds.add(after.spec.cluster, cause, by=_seconds(lost, after.closed_at))

    def _cause(self, job: Job, lost: Interruption, known: CauseClass | None) -> CauseClass:
        linked = [self._incidents.get(incident, ("", "")) for incident in lost.incidents]
        if linked:
            return _of_incidents(linked)
        if job.attempt != lost.attempt:
            return known or CauseClass.UNKNOWN
        for call in job.calls:
            if call.lost or call.booted:
                return CauseClass.NODE_LOST
            return CauseClass.FAULT if call.node is not None else CauseClass.HANG
        if known not in {None, CauseClass.UNKNOWN}:
            return known or CauseClass.UNKNOWN
        return OF_THE_END.get(job.end.reason, CauseClass.UNKNOWN) if job.end else CauseClass.UNKNOWN

    def forget_job(self, job: Job) -> None:
        for lost in job.interruptions:
            self._causes.pop((job.id, lost.attempt), None)

    def linked(self, job: Job) -> Iterator[IncidentId]:
        """Incidents that decide why its last attempt was lost, and that we do not know."""
        for lost in job.interruptions[-1:]:
            yield from (one for one in lost.incidents if not lost.closed and one not in self._incidents)

    # --- effects
    def intent(self, before: Intent | None, after: Intent) -> None:
        if after.key in self._over:
            return  # its end was counted: a late word changes nothing
        act = str(type(after.act).__struct_config__.tag)
        was = before.sends if before is not None else after.sends - (after.state is IntentState.SENT)
        if (sent := after.sends - was) > 0:
            self.sent.add(after.cluster, act, by=sent)
        if not after.state.over:
            return
        self._over.put(after.key)
        result = "withdrawn" if after.withdrawn else after.state.lower()
        self.effects.add(after.cluster, act, result)
        if isinstance(after.act, Notify):
            outcome = {"seen": "delivered", "expired": "given_up"}.get(result, result)
            outcome = "left_out" if after.withheld else outcome
            self.notices.add(after.act.to, after.act.event, outcome)


def _new_stages(before: Incident | None, after: Incident) -> list[Stage]:
    """A long life keeps its newest stages only, so they are counted from the end."""
    last = before.stages[-1] if before is not None and before.stages else None
    return list(takewhile(lambda stage: stage != last, reversed(after.stages)))[::-1]


def _outcome(source: Phase, target: Phase) -> str:
    """What became of a repair. `done` is its evidence; `proven` or `not_cured` is what the check then says."""
    match source, target:
        case (Phase.REPAIRING, Phase.VERIFYING | Phase.REPLACED):
            return "done"
        case (Phase.REPAIRING, Phase.DRAINED):
            return "failed"
        case (Phase.VERIFYING, Phase.RELEASED):
            return "proven"
        case (Phase.VERIFYING, Phase.DRAINED):
            return "not_cured"
        case (Phase.REPAIRING | Phase.VERIFYING, Phase.HELD | Phase.DISMISSED | Phase.GONE):
            return "ended"
    return ""


def _of_incidents(linked: list[tuple[str, str]]) -> CauseClass:
    if all(kind == IncidentKind.OPERATOR for kind, _ in linked):
        return CauseClass.OPERATOR
    if all(code == NODE_LOST for _, code in linked):
        return CauseClass.NODE_LOST
    return CauseClass.FAULT


def _seconds(lost: Interruption, closed: datetime | None) -> float:
    """From the first symptom to the first new step, or to the job's end; without steps, until all ranks ran."""
    begin = lost.stages.get("detected")
    end = lost.stages.get("first_step") or closed or lost.stages.get("started")
    return max(0.0, (end - begin).total_seconds()) if begin is not None and end is not None else 0.0
