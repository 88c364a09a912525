"""Planning an intent: through its doubt, until its effect is seen or its time is up."""

from msgspec.structs import replace

from sickbay.brain.attempt import stuck
from sickbay.brain.drift import horizon_of, shown
from sickbay.engine import checkups
from sickbay.engine.apply import in_doubt
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, LEADER, Deadline
from sickbay.model.fleet import Node, NodeId
from sickbay.model.incident import Incident
from sickbay.model.intent import (
    INTENT_LIFE,
    AskToSave,
    Drain,
    Fence,
    Intent,
    IntentState,
    Notify,
    OwnerKind,
    Quarantine,
    Release,
    Repair,
    RerunJob,
    StartJob,
    StopJob,
    Verify,
    may_be_sent_again,
)
from sickbay.model.job import Job
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
            _undelivered(draft, intent)
        return
    if _undoubted(intent) and _first_read(intent).passed(draft.readings):
        intent = in_doubt(draft, intent)
        draft.put(intent)
    while (found := _development(draft, intent)) is not None:
        event, because = found
        intent = replace(intent, state=INTENT_LIFE.target(intent, intent.state, event))
        if event == "unknown":
            intent = in_doubt(draft, intent)
        if because and (event == "again" or not intent.answer):
            intent = replace(intent, answer=because)
        draft.put(intent)
        if intent.state is IntentState.PLANNED:
            break
        if intent.state.over:
            draft.waits[subject] = None
            if intent.owner and not _no_news(draft, intent):
                draft.tell(f"{type(intent.act).__name__}: {intent.state}", intent.owner, event="effect")
            if intent.done_for is OwnerKind.CHECKUP:
                checkups.ended(draft, intent)
            _free_checked(draft, intent)
            _undelivered(draft, intent)
            return
    backing_off = intent.state is IntentState.PLANNED and intent.not_before is not None
    if backing_off and intent.not_before is not None and intent.not_before.passed(draft.readings):
        intent = replace(intent, not_before=None)  # from now on it is found by whoever sends
        draft.put(intent)
    until = _next_look(draft, intent)
    on = {key: draft.expect[key] for key in sorted(draft.watched)}
    draft.waits[subject] = WaitMark(until=until, on=on, urgency=1)


def _free_checked(draft: Draft, intent: Intent) -> None:
    """A check that was let go of is over: until then its node was nobody's to claim."""
    if isinstance(intent.act, Verify) and intent.done_for is OwnerKind.INCIDENT and intent.withdrawn:
        checkups.free(draft, intent)


def _undoubted(intent: Intent) -> bool:
    """Its cluster had not been read yet when its answer was lost: when its absence counts is known after a read."""
    return intent.state is IntentState.UNKNOWN and not intent.doubt_until and intent.clock == intent.cluster


def _first_read(intent: Intent) -> Deadline:
    return Deadline(clock=intent.cluster, at=1e-6)


def _undelivered(draft: Draft, intent: Intent) -> None:
    """A notice that reached nobody is never silent: the story of what it is about says so, and the operators' own."""
    if isinstance(intent.act, Notify) and intent.state is not IntentState.SEEN:
        why = intent.answer or "no answer"
        text = f"nobody was told through {intent.act.to} ({why}): {intent.act.text}"
        draft.tell(text, *dict.fromkeys((intent.act.subject, "operator:")), event="notice_lost")


def _no_news(draft: Draft, intent: Intent) -> bool:
    """One more try to end what can neither be stopped nor fenced, or to empty a node, came to nothing."""
    if isinstance(intent.act, Drain):
        return intent.state is IntentState.EXPIRED
    if isinstance(intent.act, AskToSave):  # that it has saved the job's own line says
        return intent.state in {IntentState.SEEN, IntentState.EXPIRED}
    job = draft.job(intent.act.job) if isinstance(intent.act, StopJob | Fence) else None
    return job is not None and stuck(job) and intent.state is not IntentState.SEEN


def _development(draft: Draft, intent: Intent) -> tuple[str, str] | None:
    """What has become of it since: the first that applies, or nothing."""
    nodes, job = _targets(draft, intent)
    if shown(intent, nodes, job, _horizon(draft, intent)):
        return "seen", ""
    reading = draft.readings.get(intent.clock, 0.0)
    wanted = not intent.owner or _still_wanted(draft, intent)
    match intent.state:
        case IntentState.SENT if reading >= intent.sent_at + intent.call_timeout:
            return "unknown", "its answer was lost"
        case IntentState.UNKNOWN | IntentState.ACCEPTED if _time_up(draft, intent):
            return "expire", "not seen in time"
        case IntentState.UNKNOWN if not wanted and not _comes_late(intent):
            return "expire", "no longer wanted"
        case IntentState.UNKNOWN if not wanted:
            return None  # its time is awaited: what it asked for may still happen
        case IntentState.UNKNOWN if may_be_sent_again(intent) and _surely_absent(draft, intent):
            return "again", "not there: sent again"
        case IntentState.PLANNED if not wanted and intent.doubted and _comes_late(intent):
            return "unknown", "no longer wanted; an earlier sending may have been taken"
        case IntentState.PLANNED if not wanted:
            return "expire", "no longer wanted"
        case _:
            return None


def _comes_late(intent: Intent) -> bool:
    """A read that does not show it yet says nothing: a machine takes minutes to come back, work to leave."""
    check = isinstance(intent.act, Verify) and intent.withdrawn and intent.done_for is OwnerKind.INCIDENT
    return check or isinstance(intent.act, Repair | Drain)


def _targets(draft: Draft, intent: Intent) -> tuple[dict[NodeId, Node | None], Job | None]:
    """What its effect shows itself on."""
    act = intent.act
    nodes = (act.node,) if isinstance(act, Quarantine | Drain | Repair | Release) else ()
    job = draft.job(act.job) if isinstance(act, AskToSave | StopJob | StartJob | RerunJob | Fence) else None
    return {node: draft.node(node) for node in nodes}, job


def _horizon(draft: Draft, intent: Intent) -> float:
    clock = draft.clocks.get(intent.cluster)
    return horizon_of(clock.as_of if clock else 0.0, *_targets(draft, intent))


def _still_wanted(draft: Draft, intent: Intent) -> bool:
    if intent.done_for is OwnerKind.CHECKUP:
        return True  # it lets nodes go only when its checks are over
    owner = draft.read(Incident, intent.owner) if intent.done_for is OwnerKind.INCIDENT else None
    if owner is None and intent.done_for is OwnerKind.JOB:
        owner_job = draft.read(Job, intent.owner)
        return owner_job is not None and owner_job.awaits(intent.key)
    return owner is not None and owner.intent == intent.key


def _time_up(draft: Draft, intent: Intent) -> bool:
    return intent.seen_by is not None and intent.seen_by.passed(draft.readings)


def _surely_absent(draft: Draft, intent: Intent) -> bool:
    """A read newer than the end of the call has not shown it. What no cluster shows has no such read: time must do."""
    if intent.clock in {INGEST, LEADER}:
        return draft.readings.get(intent.clock, 0.0) >= intent.sent_at + 2 * intent.call_timeout
    return bool(intent.doubt_until) and _horizon(draft, intent) >= intent.doubt_until


def _next_look(draft: Draft, intent: Intent) -> Deadline | None:
    reading, clock = draft.reading(intent.clock), draft.clocks.get(intent.cluster)
    match intent.state:
        case IntentState.PLANNED:
            return intent.not_before
        case IntentState.SENT:
            return Deadline(clock=intent.clock, at=intent.sent_at + intent.call_timeout)
        case IntentState.UNKNOWN if _undoubted(intent):
            return _first_read(intent)
        case IntentState.UNKNOWN if may_be_sent_again(intent):
            soon = Deadline(clock=intent.clock, at=reading + 0.5 * intent.call_timeout)
            return soon if intent.seen_by is None or soon.at < intent.seen_by.at else intent.seen_by
        case IntentState.ACCEPTED if clock is not None and _horizon(draft, intent) < intent.visible_from:
            # Seen, but in a read from before `visible_from`: poll once a period until a newer read. Clocks are not
            # among what a wait is on, so no read makes it due.
            soon = Deadline(clock=intent.cluster, at=draft.reading(intent.cluster) + clock.period)
            return (
                soon
                if intent.seen_by is None or intent.seen_by.clock != soon.clock
                else min(soon, intent.seen_by, key=lambda deadline: deadline.at)
            )
        case _:
            return intent.seen_by
