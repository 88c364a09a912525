"""Waiting, written down: why, until when, and on which rows."""

from collections.abc import Callable
from typing import TypeVar

from msgspec.structs import replace

from sickbay.engine.transitions import let_go
from sickbay.engine.view import Draft
from sickbay.model.clock import Deadline
from sickbay.model.fleet import InForce
from sickbay.model.incident import Incident, Wait
from sickbay.model.job import Job
from sickbay.model.rows import DUE_NOW, IN_FORCE, WaitMark, key_of

Thing = TypeVar("Thing", Incident, Job)

LOOK_AGAIN = 60.0
ESTIMATE_AGAIN = 300.0
CROWDED = 40  # of UNIT_ACTIONS: no further step in this unit, which must have room for the largest one
ROUNDS = 12  # decisions in one unit; a decision that never comes to rest is a defect


def come_to_rest(
    draft: Draft, subject: str, kind: type[Thing], decide_once: Callable[[Thing], tuple[Thing, Wait | None]]
) -> None:
    """Decide and take the step, again and again, until the thing is over or there is something to wait for."""
    thing = draft.read(kind, subject)
    if thing is None or not thing.open:
        draft.waits[subject] = None
        return
    draft.read(InForce, IN_FORCE)
    wait: Wait | None = None
    asked = len(thing.orders) if isinstance(thing, Incident) else 0
    for _ in range(ROUNDS + asked):
        if not thing.open:
            break
        draft.watched = {subject, IN_FORCE}  # a wait is on what its own decision read, not on what led up to it
        doing = thing.intent
        thing, wait = decide_once(thing)
        if doing and doing != thing.intent:
            thing = let_go(draft, thing, doing)
        if wait is not None:
            break
        if thing.open and draft.actions >= CROWDED:  # the rest follows in the next unit
            draft.waits[subject] = DUE_NOW
            break
    else:
        raise RuntimeError(f"{subject} does not come to rest")
    if draft.waits.get(subject) != DUE_NOW:
        _rest(draft, thing, wait)


def _rest(draft: Draft, thing: Incident | Job, wait: Wait | None) -> None:
    """Write down why nothing happens and what would change that; an unchanged wait is not written again."""
    key = key_of(thing)
    if not thing.open or wait is None:
        draft.waits[key] = None
        return
    if thing.wait != wait:
        draft.put(replace(thing, wait=wait))
    urgent = 1 if isinstance(thing, Job) else 2
    until = wait.until
    if until is not None and until.passed(draft.readings):  # an intent's `seen_by`: its row wakes us, and we poll
        until = Deadline(clock=until.clock, at=draft.reading(until.clock) + LOOK_AGAIN)
    if until is not None and wait.would:  # a moment on the wall: our clock, which may stand still, only estimates it
        until = Deadline(clock=until.clock, at=min(until.at, draft.reading(until.clock) + ESTIMATE_AGAIN))
    on = {k: draft.expect.get(k, 0) for k in sorted(draft.watched)}
    draft.waits[key] = WaitMark(until=until, on=on, urgency=urgent)
