"""What an incident's decision may read, and the words that its phases share."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from sickbay.brain.decision import Change, IncidentChanges, IncidentDecision, Stay, Tell
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import Scope
from sickbay.model.fleet import Capability, JobId, Node, NodeId, PastIncident
from sickbay.model.incident import Incident, Wait
from sickbay.model.intent import Intent, Notify, Repair
from sickbay.model.job import Job, JobState
from sickbay.model.policy import Policy

REMINDED = "a person is reminded"  # what happens at the end of such a wait


@dataclass(frozen=True, slots=True)
class IncidentInput:
    """All that an incident's decision may read."""

    incident: Incident
    node: Node | None
    intent: Intent | None  # the one under way, or the last one if it is over
    scoped: tuple[JobId, ...]  # managed attempts that hold what the fault names
    bystanders: tuple[JobId, ...]  # other managed attempts on the node
    called: frozenset[JobId]  # of those, attempts that this incident has asked to end
    asked: frozenset[JobId]  # of those, attempts that may save before it
    training: frozenset[JobId]  # of those, attempts that run and that it has never asked
    gating: frozenset[JobId]  # of those, attempts that have not begun
    past: tuple[PastIncident, ...]
    readings: dict[str, float]
    can: frozenset[Capability]
    blind: frozenset[str]
    present: dict[str, float] | None = None  # what deadlines are set from, where `readings` lag behind it
    loose: tuple[Intent, ...] = ()  # repairs and drains that it has let go of and that may still take effect

    @property
    def retry_at(self) -> Deadline | None:
        return self.intent.seen_by if self.intent is not None else None

    def passed(self, deadline: Deadline | None) -> bool:
        return deadline is not None and deadline.passed(self.readings)

    def uncalled(self, jobs: tuple[JobId, ...]) -> tuple[JobId, ...]:
        return tuple(job for job in jobs if job not in self.called)

    def unpressed(self, jobs: tuple[JobId, ...]) -> tuple[JobId, ...]:
        """Those that it has not asked to end at once."""
        return tuple(job for job in jobs if job not in self.called or job in self.asked)

    def within(self, clock: str, duration: timedelta) -> Deadline:
        present = self.readings if self.present is None else self.present
        return Deadline(clock=clock, at=present.get(clock, 0.0) + duration.total_seconds())


class AttemptsOnNode(TypedDict):
    """Managed attempts on a node, by what an incident there has to do with them: fields of `IncidentInput`."""

    scoped: tuple[JobId, ...]
    bystanders: tuple[JobId, ...]
    called: frozenset[JobId]
    asked: frozenset[JobId]
    training: frozenset[JobId]
    gating: frozenset[JobId]


def attempts_on(node: NodeId, incident: Incident, jobs: Sequence[Job], shown: datetime) -> AttemptsOnNode:
    """`shown`: when the newest evidence came; what began later has nothing to do with it."""
    gating = frozenset(job.id for job in jobs if job.state is JobState.GATING)
    # What has not begun does not begin on a sick node.
    scoped = tuple(job.id for job in jobs if job.id in gating or incident.about(job.claim[node]))
    called = [job for job in jobs if has_called(incident, job)]
    training = (job for job in jobs if job.state is JobState.RUNNING and job.id not in incident.jobs)
    return AttemptsOnNode(
        scoped=scoped,
        bystanders=tuple(job.id for job in jobs if job.id not in scoped),
        called=frozenset(job.id for job in called),
        asked=frozenset(job.id for job in called if _may_save(incident, job)),
        training=frozenset(job.id for job in training if job.began_at is not None and job.began_at <= shown),
        gating=gating,
    )


def has_called(incident: Incident, job: Job) -> bool:
    """Whether the attempt ends for this incident too. One that many want to end does not name them all."""
    return any(call.incident == incident.id for call in job.calls) or (job.called_enough and job.id in incident.jobs)


def _may_save(incident: Incident, job: Job) -> bool:
    """Whether the attempt that this incident has called may save before it ends."""
    mine = [call for call in job.calls if call.incident == incident.id] or job.calls
    return job.state is JobState.RUNNING and all(call.before for call in mine)


def reset_domain(incident: Incident, node: Node) -> tuple[int, ...]:
    """The devices that a reset of the sick ones touches; () means all."""
    device = incident.fault.device
    if node.linked or device is None or incident.wide or incident.fault.scope is not Scope.DEVICE:
        return ()
    return tuple(sorted({device, *incident.beside}))


def remind(
    s: IncidentInput, policy: Policy, event: str, text: str, because: str, ends: tuple[str, ...] = ()
) -> IncidentDecision:
    """Tell a human now and again at each reminder; in between, wait."""
    incident = s.incident
    if incident.deadline is None or s.passed(incident.deadline):
        also: IncidentChanges = {"deadline": s.within(INGEST, policy.pace.held_reminder)}
        notice = Notify(event=event, subject=f"incident:{incident.id}", text=text)
        return Change("a person is told", also, Tell(notice, f"{event}:{s.readings.get(INGEST, 0.0):.0f}"))
    return Stay(Wait(because=because, until=incident.deadline, ends=ends, then=REMINDED))


def on_its_way(s: IncidentInput) -> Stay | None:
    """A repair or drain that nobody wants any more may still come: until its end nothing begins, nobody is let in."""
    if not s.loose:
        return None
    first = s.loose[0]
    what = first.act.rung if isinstance(first.act, Repair) else "a drain"
    return Stay(Wait(because=f"{what} was withdrawn but may be on its way: its end is awaited", until=first.seen_by))


def away(node: Node) -> bool:
    return not node.ready or node.going_down is not None


def later(deadline: Deadline, grace: timedelta) -> Deadline:
    return Deadline(clock=deadline.clock, at=deadline.at + grace.total_seconds())
