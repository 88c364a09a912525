"""A watchdog for watched clocks: a source that is not heard for long, although we try, is told to a person.

A clock that stands still harms nothing by itself, and that is the danger: nothing on it ever runs out, so whatever
waits for it waits for ever and nobody would know. Another clock is the witness: it moves only while we live and hear.
Where all of them stand, the process that leads is its own witness (`Deaf`).
"""

from msgspec.structs import replace

from sickbay.engine.notices import post
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, LEADER, Deadline, Standstill, WatchedClock
from sickbay.model.intent import Notify
from sickbay.model.rows import AUDIT, WaitMark

STANDS_AFTER = 600.0  # seconds on the witness: far longer than a rolling upgrade of an API server
LOOK_AGAIN = 60.0  # at a clock that stands, so that a person who mended it is not left in doubt
KIND = "standstill"
NOTHING_HEARD = "neither a report nor any cluster reaches us: all clocks stand still, and what waits goes on waiting"


class Deaf:
    """How long no clock at all has moved, by the monotonic clock of the process that leads. Kept in memory: it decides
    nothing but whether a person is told, and our own absence is nobody's standstill.
    """

    def __init__(self) -> None:
        self._readings: dict[str, float] = {}
        self._since = 0.0
        self._told: float | None = None

    def heard(self, readings: dict[str, float], mono: float) -> None:
        if readings != self._readings:
            self._readings, self._since, self._told = dict(readings), mono, None

    def to_tell(self, mono: float, again: float) -> bool:
        """Whether a person must hear of it now; from then on at each reminder."""
        due = self._since + STANDS_AFTER if self._told is None else self._told + again
        if not self._readings or mono < due:
            return False
        self._told = mono
        return True

    @property
    def because(self) -> str:
        """For people; empty while something is heard."""
        return NOTHING_HEARD if self._told is not None else ""


def tell_deaf(draft: Draft) -> None:
    """Neither agents nor any cluster: no deadline runs out, so nothing but this would be told."""
    subject = f"{KIND}:{INGEST}"
    notice = Notify(event="unheard", subject=subject, text=NOTHING_HEARD)
    post(draft, notice, key=f"{KIND}.all.{draft.now.timestamp():.0f}", cluster="", pool="")
    draft.tell(NOTHING_HEARD, subject, AUDIT, event="unheard")


def plan_standstill(draft: Draft, subject: str) -> None:
    """Compare a clock with what it was when we looked last."""
    clock = draft.newest.get(subject.partition(":")[2])
    witness = _witness(draft, clock) if clock is not None else None
    if clock is None or witness is None:
        return
    known = draft.read(Standstill, subject, watch=False)
    reading = draft.reading(witness.source)
    if known is None or known.reading != clock.reading:
        if known is not None and known.because:
            draft.tell(f"{_name(clock)} heard again", subject, AUDIT, event="heard_again")
        draft.put(Standstill(source=clock.source, reading=clock.reading))
        draft.waits[subject] = _after(witness, reading, STANDS_AFTER)
        return
    if known.remind_at is None or known.remind_at.passed(draft.readings):
        because = _because(clock)
        again = Deadline(clock=witness.source, at=reading + draft.rules.policy.pace.held_reminder.total_seconds())
        notice = Notify(event="unheard", subject=subject, text=because)
        post(draft, notice, key=f"{subject}.{clock.reading:.0f}.{reading:.0f}", cluster="", pool="")
        draft.tell(because, subject, AUDIT, event="unheard")
        draft.put(replace(known, because=because, remind_at=again))
    draft.waits[subject] = _after(witness, reading, LOOK_AGAIN)


def _after(witness: WatchedClock, reading: float, seconds: float) -> WaitMark:
    return WaitMark(until=Deadline(clock=witness.source, at=reading + seconds), urgency=7)


def _witness(draft: Draft, clock: WatchedClock) -> WatchedClock | None:
    """Clusters are measured by what agents say, and our own ear by the cluster that was heard last."""
    if clock.source != INGEST:
        return draft.newest.get(INGEST)
    others = [other for other in draft.newest.values() if other.source not in {INGEST, LEADER}]
    return max(others, key=lambda other: (other.moved or 0.0, other.source), default=None)


def _name(clock: WatchedClock) -> str:
    return "reports are" if clock.source == INGEST else f"cluster {clock.source} is"


def _because(clock: WatchedClock) -> str:
    so = "its clock stands still: no deadline on it runs out, and what waits for it goes on waiting"
    if clock.source == INGEST:
        return f"no report reaches us; {so}"
    if (clock.last or 0.0) > (clock.moved or 0.0):
        return f"reading cluster {clock.source} takes too long ({clock.took:.0f} s, due every {clock.period:g} s); {so}"
    return f"cluster {clock.source} cannot be read; {so}"
