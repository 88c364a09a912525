"""Planned stops: nobody who listens is stopped unsaved before his time is over, nobody later, and nothing that fails
under a job waits for its save.

Judged by what was so when the engine wrote it down: by the world's own word on what is saved, and by the watched clock
of the job's cluster, which stands still while it cannot be read.
"""

from typing import TYPE_CHECKING, NamedTuple

from sickbay.model.clock import WatchedClock
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, IncidentId, JobId
from sickbay.model.incident import Incident
from sickbay.model.intent import AskToSave, Intent
from sickbay.model.job import Job, JobState, RankState
from sickbay.sim.chronicle import Wrong
from sickbay.sim.witness import Witness

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation

SLACK = 180.0  # seconds of that clock: a lease changes hands, hung ranks are asked for their stacks
PRESSED_WITHIN = 60.0  # and until a fault under an attempt has taken its time to save away


class WantedOff(NamedTuple):
    attempt: int
    reading: float


class SavesInvariant:
    """Keeps since when attempts are wanted off; costs what is written about them."""

    def __init__(self, sim: "Simulation", witness: Witness) -> None:
        self._sim = sim
        self._witness = witness
        self._wanted: dict[JobId, WantedOff] = {}  # off, for anything
        self._pressed: dict[JobId, WantedOff] = {}  # at once
        self._failing: dict[
            tuple[JobId, IncidentId], WantedOff
        ] = {}  # and asked to save although what they hold is sick

    def changed(self, before: Job | None, after: Job) -> list[Wrong]:
        """Hears of each row of a job that was written."""
        wanted = after.state is JobState.RUNNING and bool(after.stop_asked or after.calls) and after.end is None
        self._follow(self._wanted, after, so=wanted)
        self._follow(self._pressed, after, so=wanted and after.called_at_once)
        if before is None or before.state is not JobState.RUNNING or after.state is not JobState.STOPPING:
            return []
        return self._stopped(before)

    def _follow(self, since: dict[JobId, WantedOff], job: Job, *, so: bool) -> None:
        if not so:
            since.pop(job.id, None)
        elif job.id not in since or since[job.id].attempt != job.attempt:
            since[job.id] = WantedOff(job.attempt, self._reading(job))

    def _stopped(self, job: Job) -> list[Wrong]:
        """One that listens, is whole and could have waited is stopped: it has saved, or it has had its time."""
        planned = bool(job.stop_asked or job.calls) and not job.called_at_once
        whole = bool(job.ranks) and set(job.ranks.values()) == {RankState.RUNNING} and job.end is None
        can = Capability.ASK_TO_SAVE in self._sim.hands.sites[job.spec.cluster].capabilities
        if not (planned and whole and can and job.listens and self._sim.policy.resume.save_within) or job.cancelled:
            return []
        intent = self._witness.rows.get(f"intent:{job.intent}")
        if not isinstance(intent, Intent) or not isinstance(intent.act, AskToSave) or intent.act.attempt != job.attempt:
            return [Wrong("stopped_unsaved", f"{job.id} listens, and was stopped without being asked to save")]
        known = self._sim.world.workload.jobs.get(job.id)
        attempt = known.attempts.get(job.attempt) if known is not None else None
        saved = attempt is not None and attempt.answered == intent.key
        refused = intent.state.over and not saved and job.answered != intent.key
        late = job.save_by is not None and self._reading(job) >= job.save_by.at
        if saved or refused or late:
            return []
        return [Wrong("stopped_unsaved", f"{job.id} was stopped before it had saved: {intent.key} is {intent.state}")]

    def late(self) -> list[Wrong]:
        """Asked now and then: whoever is wanted off is on his way when his time is over."""
        if self._excused():
            self._wanted.clear()
            self._pressed.clear()
            self._failing.clear()
            self._take_up()
            return []
        within = self._sim.policy.resume.save_within.total_seconds()
        wrong: list[Wrong] = []
        limits = ((self._wanted, within), (self._pressed, 0.0))
        for kept, most in limits:
            for job_id, since in kept.items():
                row = self._witness.open.get(f"job:{job_id}")
                if isinstance(row, Job) and (waited := self._reading(row) - since.reading) > most + SLACK:
                    text = f"{job_id} is wanted off for {waited:.0f} s, of which it may have {most:.0f} to save"
                    wrong.append(Wrong("stopped_late", text))
        return [*wrong, *self._spared()]

    def _take_up(self) -> None:
        """What was so while nobody was held to anything counts from now on."""
        for row in self._witness.open.values():
            if isinstance(row, Job):
                self.changed(None, row)

    def _spared(self) -> list[Wrong]:
        """What an attempt holds is sick, by the engine's own rows, and it is given time to save all the same."""
        wrong: list[Wrong] = []
        found: set[tuple[JobId, IncidentId]] = set()
        for job_id in self._wanted:
            row = self._witness.open.get(f"job:{job_id}")
            for call in row.calls if isinstance(row, Job) else ():
                incident = self._witness.open.get(f"incident:{call.incident}")
                if not isinstance(row, Job) or not isinstance(incident, Incident) or not call.before:
                    continue
                if not _sick(incident, row):
                    continue
                name = (job_id, incident.id)
                found.add(name)
                since = self._failing.setdefault(name, WantedOff(row.attempt, self._reading(row)))
                if self._reading(row) - since.reading > PRESSED_WITHIN:
                    wrong.append(Wrong("spared", f"{job_id} may save first, and {incident.id} is about what it holds"))
        for name in self._failing.keys() - found:
            del self._failing[name]
        return wrong

    def _excused(self) -> bool:
        """While acts are withheld, rows are damaged or an engine stands still nobody is held to a time."""
        withheld = self._witness.withheld or self._witness.tripped or self._sim.policy.windows
        still = any(
            host.behind or not host.up or self._sim.scheduler.now < host.paused_until for host in self._sim.hosts
        )
        return bool(withheld) or still or self._sim.invariants.poisoned is not None

    def _reading(self, job: Job) -> float:
        clock = self._sim.store.load([f"clock:{job.spec.cluster}"])[f"clock:{job.spec.cluster}"].row
        return clock.reading if isinstance(clock, WatchedClock) else 0.0


def _sick(incident: Incident, job: Job) -> bool:
    """Whether a fault, not a wish, is about what the attempt holds there."""
    fault = incident.fault
    ill = not fault.is_wish and (fault.remedy.disrupts or fault.remedy is Remedy.RESTART_JOB)
    return (ill or bool(incident.others)) and incident.phase.out and incident.about(job.claim.get(incident.node, ()))
