"""A watchdog for watched clocks: a source that is not heard for long, although we try, is told to a person.

A clock that stands still harms nothing by itself, and that is the danger: nothing on it ever runs out, so whatever
waits for it waits for ever and nobody would know. Another clock is the witness: it moves only while we live and hear.
"""

from msgspec.structs import replace

from sickbay.engine.steps import post
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline, Standstill, WatchedClock
from sickbay.model.intent import Notify
from sickbay.model.rows import WaitMark

STANDS_AFTER = 600.0  # seconds on the witness: far longer than a rolling upgrade of an API server
LOOK_AGAIN = 60.0  # at a clock that stands, so that a person who mended it is not left in doubt
KIND = "standstill"


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
            draft.tell(f"{_name(clock)} heard again", subject, "operator:", event="heard_again")
        draft.put(Standstill(source=clock.source, reading=clock.reading))
        draft.waits[subject] = _after(witness, reading, STANDS_AFTER)
        return
    if known.remind_at is None or known.remind_at.passed(draft.readings):
        because = _because(clock)
        again = Deadline(clock=witness.source, at=reading + draft.rules.policy.pace.held_reminder.total_seconds())
        notice = Notify(event="unheard", subject=subject, text=because)
        post(draft, notice, key=f"{subject}.{clock.reading:.0f}.{reading:.0f}", cluster="", pool="")
        draft.tell(because, subject, "operator:", event="unheard")
        draft.put(replace(known, because=because, remind_at=again))
    draft.waits[subject] = _after(witness, reading, LOOK_AGAIN)


def _after(witness: WatchedClock, reading: float, seconds: float) -> WaitMark:
    return WaitMark(until=Deadline(clock=witness.source, at=reading + seconds), urgency=7)


def _witness(draft: Draft, clock: WatchedClock) -> WatchedClock | None:
    """Clusters are measured by what agents say, and our own ear by the cluster that was heard last."""
    if clock.source != INGEST:
        return draft.newest.get(INGEST)
    others = [other for other in draft.newest.values() if other.source != INGEST]
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
