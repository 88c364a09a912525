"""What must hold after every step, asserted on what happened, not on the journal.

This is the frame and what holds at any moment; `invariants_acts` judges each act that happened, `invariants_rest` what
must hold when nothing moves.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sickbay.engine.plan import plan
from sickbay.engine.view import Draft, View, moment
from sickbay.model.clock import INGEST, LEADER, WatchedClock
from sickbay.model.errors import UnreadableRow
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Node, NodeId
from sickbay.model.incident import Incident, Phase, Wait
from sickbay.model.intent import Intent, Notify, OwnerKind
from sickbay.model.job import Job, JobState
from sickbay.model.rows import AUDIT, AnyRow, Unit
from sickbay.sim.chronicle import Violation, Wrong
from sickbay.sim.invariants_acts import Acts
from sickbay.sim.invariants_queue import QueueInvariant
from sickbay.sim.invariants_rest import Rest
from sickbay.sim.invariants_saves import SavesInvariant
from sickbay.sim.witness import Sent, Witness

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation


class Broken(AssertionError):  # noqa: N818 - the report says it in this word
    """An invariant does not hold. `kinds` names each that broke."""

    def __init__(self, message: str, *kinds: str) -> None:
        super().__init__(message)
        self.kinds = frozenset(kinds)


class Invariants:
    """Reads the chronicle as it grows; costs what happened, not the fleet's size."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self.witness = Witness(sim)
        self.acts = Acts(sim, self.witness)
        self.rest = Rest(sim, self.witness)
        self.saves = SavesInvariant(sim, self.witness)
        self.queue = QueueInvariant(sim, self.witness)
        # Subjects that were made impossible to plan: these may be set aside. None: it is not asked.
        self.poisoned: set[str] | None = None
        self._clocks: dict[str, tuple[float, float]] = {}  # each as it was first seen: as_of, reading
        self._leaders: dict[int, str] = {}  # by epoch
        self._read = 0
        self._violations = 0
        self._wrong: list[Wrong] = []

    def check(self) -> None:
        chronicle = self._sim.world.chronicle
        while self._violations < len(chronicle.violations):
            violation = chronicle.violations[self._violations]
            self._violations += 1
            if not self._crossed(violation):
                raise self._broken(Wrong(violation.kind, str(violation)))
        while self._read < len(chronicle.events):
            event = chronicle.events[self._read]
            self._read += 1
            self._wrong += self.acts.happened(event)
        if self._wrong:
            raise self._broken(*self._wrong)

    def _crossed(self, violation: Violation) -> bool:
        """Two things that were on their way at the same time: nobody could have known."""
        sent = self.witness.sent.get(violation.key)
        if violation.kind.startswith("check_on") and sent is not None and self._shares(sent, violation):
            return True
        if violation.kind == "fence_on_running":
            return self._ends(violation.detail)
        if violation.since >= 0.0:
            return not self.witness.could_know(violation.key, violation.since)
        if violation.kind != "start_on_cordoned":
            return False
        cordons = self._sim.world.chronicle.of("cordon", violation.subject)
        return bool(cordons) and violation.at - cordons[-1].at <= self._sim.mischief.call_timeout

    def _ends(self, attempt: str) -> bool:
        """Whether our stop of the attempt is under way, too: of two jobs on a lost node each fences for itself."""
        job = self.witness.rows.get(f"job:{attempt.rpartition('#')[0]}")
        return isinstance(job, Job) and job.state is JobState.STOPPING and f"{job.id}#{job.attempt}" == attempt

    def _shares(self, sent: Sent, violation: Violation) -> bool:
        """A node that jobs share: a GPU that somebody uses is not tested, and said to be in use.

        So it is with a gate, and with the check after the reset of one device that is tied to no other.
        """
        if sent.intent.done_for is OwnerKind.JOB:
            return True
        incident, seat = sent.incident, self._sim.world.seats.get(NodeId(violation.subject))
        if incident is None or seat is None or seat.linked or incident.remedy.rank > Remedy.RESET_GPU.rank:
            return False
        used = {device for devices in seat.holders.values() for device in devices or seat.domain_of(())}
        return incident.fault.device not in used

    def _broken(self, *wrong: Wrong) -> Broken:
        what = "; ".join(each.text for each in wrong)
        return Broken(f"{what} (seed {self._sim.seed}, t={self._sim.scheduler.now:.1f})", *(w.kind for w in wrong))

    def led(self, host: str, epoch: int) -> None:
        """A term of leadership belongs to one replica."""
        if self._leaders.setdefault(epoch, host) != host:
            self._wrong.append(Wrong("two_leaders", f"two replicas lead in the epoch {epoch}"))

    # --- what the engine writes
    def written(self, unit: Unit) -> None:
        """Hears of every unit that was committed. What is wrong is raised after the step, not in the engine."""
        for before, after in self.witness.written(unit):
            self._wrong += self._changed(before, after)
        if self.poisoned is not None:
            aside = [line for line in unit.story if line.event == "set_aside"]
            stray = [line for line in aside if not self._touched(line.subjects)]
            self._wrong += [Wrong("set_aside", f"set aside: {line.subjects} {line.text}") for line in stray]

    def _touched(self, subjects: tuple[str, ...]) -> bool:
        """Whether it is what cannot be read, or has to read it: who is on whose node decides what may be done there.

        A job that cannot be read may hold any node of its cluster: nothing is repaired or placed there until a person
        has mended it. A fact about such a node cannot be learned either; all that is left then is to tell a person.
        """
        poisoned = self.poisoned or set()
        if poisoned & set(subjects) or (poisoned and subjects == (AUDIT,)):
            return True
        where = [self.witness.place_of(subject) for subject in subjects]
        near = [self.witness.place_of(key) for key in poisoned]
        return any(
            mine.cluster == its.cluster and (not its.node or not mine.node or mine.node == its.node)
            for mine in where
            for its in near
        )

    def _paced(self, source: str, clock: WatchedClock) -> None:
        """A cluster's clock never runs ahead of what was read of the cluster: deadlines would pass unseen."""
        rules = self._sim.world.ground.clusters.get(source)
        if rules is None:
            return
        read, began = self._clocks.setdefault(source, (clock.as_of, clock.reading))
        slack = 3 * (rules.period + rules.read_takes) + 6 * (rules.lag + rules.read_takes) + 5.0
        if clock.reading - began > clock.as_of - read + slack:
            ran, seen = clock.reading - began, clock.as_of - read
            text = f"the clock of {source} has run {ran:.0f} s, of which {seen:.0f} s were read"
            raise self._broken(Wrong("clock", text))

    def _changed(self, before: AnyRow | None, after: AnyRow | None) -> list[Wrong]:
        match after:
            case Incident(phase=Phase.DISMISSED) if isinstance(before, Incident):
                return self.acts.dismissed(before) if before.phase.out or self._asked_for(before) else []
            case Node():
                return self.acts.held_by(after)
            case Job(open=True):
                was = before if isinstance(before, Job) else None
                saves = [*self.saves.changed(was, after), *self.queue.changed(was, after)]
                foreign = [node for node in after.claim if not node.startswith(f"{after.spec.cluster}/")]
                text = f"{after.id} of {after.spec.cluster} claims {foreign}"
                return [*saves, Wrong("foreign_claim", text)] if foreign else saves
            case _:
                return []

    def _asked_for(self, incident: Incident) -> bool:
        """Whether a person has asked for its treatment, and the machine that he meant is still there."""
        row = self.witness.rows.get(f"node:{incident.node}")
        holder = row.incarnation if isinstance(row, Node) else None
        return incident.ordered and holder is not None and holder.same_holder(incident.incarnation)

    def nobody_waits_for_the_dead(self) -> None:
        """Hours after the last mishap, whatever is said to run does run."""
        wrong = self.rest.dead()
        if wrong:
            raise self._broken(*wrong)

    # --- at rest
    def at_rest(self) -> None:
        """What must hold when nothing is due: reasons, deadlines, the ledger, and the incremental law."""
        self.check()
        wrong = self.rest.wrong()
        if wrong:
            raise self._broken(*wrong)
        self.incremental_law()

    def incremental_law(self) -> None:
        """Forgetting what is dirty and planning the whole fleet yields no intent that was not taken or scheduled."""
        if wrong := self.saves.late():
            raise self._broken(*wrong)
        store = self._sim.store
        sources = (INGEST, LEADER, *self._sim.hands.sites)
        loaded = store.load(f"clock:{source}" for source in sources).values()
        clocks = {v.row.source: v.row for v in loaded if isinstance(v.row, WatchedClock)}
        for source, clock in clocks.items():
            self._paced(source, clock)
        readings = {source: clock.reading for source, clock in clocks.items()}
        if store.due(readings, 1) or self.rest.planned():
            return  # it has not come to rest
        now = moment(self._sim.clock.wall())
        view = View(store)  # one for all: nothing is written meanwhile
        for subject, thing in list(self.witness.open.items()):
            if thing.wait is not None and thing.wait.would and thing.wait.until is not None:
                continue  # what withholds it ends by the wall clock; that it is judged afresh then is scheduled
            if thing.wait is not None and _at_the_next_read(thing.wait, readings):
                continue
            if self._set_aside(subject):
                continue  # it cannot be planned; a person was told, and all others go on
            draft = Draft(view, self._sim.rules, clocks, now)
            try:
                plan(draft, subject)
            except UnreadableRow:
                if self.poisoned:
                    continue  # it will be set aside when it is due
                raise
            intents = {k: row for k, row in draft.writes.items() if isinstance(row, Intent)}
            fresh = [k for k, row in intents.items() if draft.expect.get(k) == 0 and not _told_by_the_first(thing, row)]
            if fresh:
                raise self._broken(Wrong("law", f"the whole fleet's plan has {fresh}, which nothing had woken"))

    def _set_aside(self, subject: str) -> bool:
        return self._sim.store.load([f"aside:{subject}"])[f"aside:{subject}"].row is not None


def _at_the_next_read(wait: Wait, readings: Mapping[str, float]) -> bool:
    """Whether it is scheduled for when its clock moves. A read after a gap shows what is new, and does not move it."""
    return wait.until is not None and wait.until.at < readings.get(wait.until.clock, 0.0) + 1e-3


def _told_by_the_first(thing: Incident | Job, intent: Intent) -> bool:
    """Of those who queue for a seat one is woken when a seat is held, and tells a person for all of them."""
    told = isinstance(intent.act, Notify) and intent.act.event == "budget"
    return told and thing.wait is not None and thing.wait.room is not None
