"""Planning an intent: through its doubt, until its effect is seen or its time is up."""

from msgspec.structs import replace

from sickbay.brain.attempt import stuck
from sickbay.brain.job_input import listing
from sickbay.brain.retry import IntentInput, developed, next_look, shows_on
from sickbay.engine import checkups, notices
from sickbay.engine.apply import intent_input
from sickbay.engine.sending import wanted
from sickbay.engine.view import Draft
from sickbay.model.intent import (
    AskToSave,
    Drain,
    Fence,
    Intent,
    IntentState,
    Look,
    OwnerKind,
    StopJob,
    Verify,
)
from sickbay.model.rows import WaitMark


def plan_intent(draft: Draft, subject: str) -> None:
    """Follow one intent through its doubt until its effect is seen or its time is up."""
    intent = draft.read(Intent, subject)
    if intent is None or intent.state.over:
        draft.waits[subject] = None
        if intent is not None and intent.done_for is OwnerKind.CHECKUP:  # refused, mostly
            checkups.ended(draft, intent)
        if intent is not None:
            _free_checked(draft, intent)
            notices.ended(draft, intent)
        return
    s = _input_of(draft, intent)
    after = developed(s)
    if after != intent:
        draft.put(after)
    if after.state.over:
        draft.waits[subject] = None
        if after.owner and not _no_news(draft, after):
            draft.tell(f"{type(after.act).__name__}: {after.state}{_silent(after)}", after.owner, event="effect")
        if after.done_for is OwnerKind.CHECKUP:
            checkups.ended(draft, after)
        _free_checked(draft, after)
        notices.ended(draft, after)
        return
    after = notices.followed(draft, after)
    on = {key: draft.expect[key] for key in sorted(draft.watched)}
    draft.waits[subject] = WaitMark(
        until=notices.look_again(after, next_look(replace(s, intent=after))), on=on, urgency=1
    )


def _silent(intent: Intent) -> str:
    """Which nodes have not answered what was given up."""
    asked = intent.act.nodes if isinstance(intent.act, Look | Verify) else ()
    silent = sorted(node for node in asked if node not in intent.verdicts)
    return f": {listing(silent)} did not answer" if silent and intent.state is IntentState.EXPIRED else ""


def _input_of(draft: Draft, intent: Intent) -> IntentInput:
    nodes, job = shows_on(intent)
    return replace(
        intent_input(draft, intent),
        nodes={node: draft.node(node) for node in nodes},
        job=draft.job(job) if job is not None else None,
        wanted=wanted(draft, intent),
    )


def _free_checked(draft: Draft, intent: Intent) -> None:
    """A check that was let go of is over: until then its node was nobody's to claim."""
    if isinstance(intent.act, Verify) and intent.done_for is OwnerKind.INCIDENT and intent.withdrawn:
        checkups.free(draft, intent)


def _no_news(draft: Draft, intent: Intent) -> bool:
    """One more try to end what can neither be stopped nor fenced, or to empty a node, came to nothing."""
    if isinstance(intent.act, Drain):
        return intent.state is IntentState.EXPIRED
    if isinstance(intent.act, AskToSave):  # that it has saved the job's own line says
        return intent.state in {IntentState.SEEN, IntentState.EXPIRED}
    job = draft.job(intent.act.job) if isinstance(intent.act, StopJob | Fence) else None
    return job is not None and stuck(job) and intent.state is not IntentState.SEEN
