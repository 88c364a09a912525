"""Waiting, written down: why, until when, and on which rows."""

from msgspec.structs import replace

from sickbay.engine.view import Draft
from sickbay.model.clock import Deadline
from sickbay.model.incident import Incident, Wait
from sickbay.model.job import Job
from sickbay.model.rows import WaitMark, key_of

LOOK_AGAIN = 60.0
ESTIMATE_AGAIN = 300.0


def rest(draft: Draft, thing: Incident | Job, wait: Wait | None) -> None:
    """Write down why nothing happens and what would change that; an unchanged wait is not written again."""
    key = key_of(thing)
    if not thing.open or wait is None:
        draft.waits[key] = None
        return
    if thing.wait != wait:
        draft.put(replace(thing, wait=wait))
    urgent = 1 if isinstance(thing, Job) else 2
    until = wait.until
    if until is not None and until.passed(draft.readings):  # somebody else's deadline: their row will wake us
        until = Deadline(clock=until.clock, at=draft.reading(until.clock) + LOOK_AGAIN)
    if until is not None and wait.would:  # a moment on the wall: our clock, which may stand still, only estimates it
        until = Deadline(clock=until.clock, at=min(until.at, draft.reading(until.clock) + ESTIMATE_AGAIN))
    on = {k: draft.expect.get(k, 0) for k in sorted(draft.watched)}
    draft.waits[key] = WaitMark(until=until, on=on, urgency=urgent)
