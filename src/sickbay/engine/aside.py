"""Setting aside with exponential back-off: what cannot be planned, learned or sent never stops anything else.

It fails closed and tells open: the subject is not touched, a person is told at once and reminded, and it is tried again
later and later.
"""

from msgspec.structs import replace

from sickbay.engine.line import look_along
from sickbay.engine.notices import post
from sickbay.engine.view import Draft
from sickbay.model.clock import LEADER, Deadline
from sickbay.model.errors import StoreError, UnitRefused
from sickbay.model.fleet import Aside
from sickbay.model.intent import Notify
from sickbay.model.job import Job
from sickbay.model.rows import AUDIT, IN_FORCE, WaitMark

FACTS = "facts"  # the subject under which facts that cannot be learned are counted
FIRST, MOST = 60.0, 3600.0  # seconds until the next try
TOLD = 100  # facts that have a line of their own in the story; of more there is a log, and the reminder's count
WORDS = 300


def stops(error: Exception) -> bool:
    """Whether an error is about the store itself or an invariant, not about one unit: then the round ends."""
    return isinstance(error, AssertionError) or (isinstance(error, StoreError) and not isinstance(error, UnitRefused))


def set_aside(draft: Draft, subject: str, what: str, error: Exception, *, wait: bool = True) -> None:
    """Count one more failure of a subject, and tell a person the first time and now and then. `wait`: it is planned."""
    known = draft.before(Aside, f"aside:{subject}")
    times = known.times + 1 if known is not None else 1
    reading = draft.reading(LEADER)
    pause = min(MOST, FIRST * 2.0 ** min(times - 1, 16))
    again = Deadline(clock=LEADER, at=reading + pause)
    why = f"{type(error).__name__}: {error}"[:WORDS]
    tell = known is None or known.remind.passed(draft.readings)
    reminder = Deadline(clock=LEADER, at=reading + draft.rules.policy.pace.held_reminder.total_seconds())
    row = Aside(
        subject=subject,
        times=times,
        why=why,
        since=known.since if known is not None else draft.now,
        again=again,
        remind=reminder if known is None or tell else known.remind,
    )
    draft.put(row)
    _let_place_go(draft, subject)
    _who_is_behind(draft, subject)
    if wait:
        # A new policy may be what mends it; other changes would make it due as often as facts come in.
        draft.waits[subject] = WaitMark(until=again, on={IN_FORCE: draft.version(IN_FORCE)}, urgency=8)
    text = f"{what} and is set aside ({why}); failures so far: {times}"
    if tell:
        notice = Notify(event="set_aside", subject=subject, text=text)
        post(draft, notice, key=f"aside.{subject}.{times}", cluster="", pool="")
    if tell or (subject == FACTS and times <= TOLD):
        subjects = (AUDIT,) if subject == FACTS else (subject, AUDIT)
        draft.tell(text, *subjects, event="set_aside")


def take_back(draft: Draft, subject: str) -> None:
    """It works again: the next failure is news."""
    draft.drop(f"aside:{subject}")
    _who_is_behind(draft, subject)
    draft.tell("can be planned again", subject, event="set_aside")


def _let_place_go(draft: Draft, subject: str) -> None:
    """Nobody plans that its place is kept no longer: its time is asked at each try."""
    job = draft.before(Job, subject)
    if job is not None and job.place_until is not None and job.place_until.passed(draft.readings):
        draft.put(replace(job, place_until=None))
        draft.tell("its place is kept no longer", subject, event="set_aside")


def _who_is_behind(draft: Draft, subject: str) -> None:
    """A job that is set aside stands in nobody's way."""
    job = draft.before(Job, subject)
    if job is not None and job.open:
        look_along(draft, job.pool)
