"""Retry, back-off and doubt: what an answer to a call makes of its intent, and what the want of one."""

from msgspec.structs import replace

from sickbay.brain.drift import horizon_of, shown
from sickbay.model.clock import INGEST, LEADER, Deadline, WatchedClock
from sickbay.model.facts import CallResult, Outcome
from sickbay.model.fleet import JobId, Node, NodeId
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
from sickbay.model.noun import Noun

TRANSIENT_LIMIT = 20
BACKOFF_MOST = 60.0
ASKED_MOST = 900.0  # however long a far side asks to be left alone


class IntentInput(Noun):
    """All that the decision about an intent may read."""

    intent: Intent
    readings: dict[str, float]
    present: dict[str, float]  # what deadlines are set from, where `readings` lag behind it
    read_after: float  # of its cluster's own time: a later read is surely newer than a call that has ended by now
    nodes: dict[NodeId, Node | None] = {}  # that its effect shows itself on
    job: Job | None = None
    clock: WatchedClock | None = None  # of its cluster
    wanted: bool = True  # its owner still waits for it

    def within(self, seconds: float) -> Deadline:
        clock = self.intent.clock
        return Deadline(clock=clock, at=self.present.get(clock, 0.0) + seconds)

    @property
    def horizon(self) -> float:
        return horizon_of(self.clock.as_of if self.clock is not None else 0.0, self.nodes, self.job)


def read_after(intent: Intent, newest: WatchedClock | None, seat: Node | None, job: Job | None) -> float:
    """From which moment of its cluster's own time on a read is surely newer than the call; 0: it was never read."""
    if newest is None:
        return intent.doubt_until
    reached = max(newest.as_of, seat.as_of if seat is not None else 0.0, job.ranks_as_of if job is not None else 0.0)
    return reached + intent.call_timeout + 2 * newest.period


def shows_on(intent: Intent) -> tuple[tuple[NodeId, ...], JobId | None]:
    """Nodes and the job that its effect shows itself on."""
    act = intent.act
    nodes = (act.node,) if isinstance(act, Quarantine | Drain | Repair | Release) else ()
    return nodes, act.job if isinstance(act, AskToSave | StopJob | StartJob | RerunJob | Fence) else None


# --- an answer


def answered(s: IntentInput, news: Outcome) -> Intent:
    """The intent after what a call returned: an answer to an earlier sending is still an answer about its effect."""
    intent = s.intent
    if news.result is CallResult.REJECTED and not news.sends and not _asked_alone(intent, news.node):
        return intent  # one agent's word: what others were asked is not over with it
    if news.result in {CallResult.TRANSIENT, CallResult.UNKNOWN, CallResult.REJECTED} and 0 < news.sends < intent.sends:
        had_no_effect = news.result is not CallResult.UNKNOWN and news.sends == intent.doubted
        return replace(intent, doubted=0) if had_no_effect else intent  # a later sending is under way
    if news.result is CallResult.REJECTED and 0 < intent.doubted < news.sends and not isinstance(intent.act, Notify):
        # An earlier sending, still in doubt, may have taken effect, and be what this one is refused for. So REJECTED
        # becomes UNKNOWN, and it is not sent again: the effect of the earlier one is awaited.
        seen_by = intent.seen_by or s.within(intent.patience)
        return replace(intent, state=IntentState.UNKNOWN, refused=True, answer=news.text, seen_by=seen_by)
    event = {CallResult.DONE: "accepted", CallResult.GONE: "rejected"}.get(news.result, news.result.value)
    if not INTENT_LIFE.can(intent.state, event):
        return intent
    after = replace(intent, answer=news.text, state=INTENT_LIFE.target(intent, intent.state, event))
    match news.result:
        case CallResult.TRANSIENT:
            return _again_later(s, after, news.again_after)
        case CallResult.UNKNOWN:
            return _in_doubt(s, after)
        case CallResult.GONE:
            return replace(after, gone=True, doubt_until=s.read_after)
        case CallResult.REJECTED:
            return replace(after, not_before=s.within(intent.call_timeout), hopeless=news.hopeless)
        case CallResult.ACCEPTED | CallResult.DONE:
            done = IntentState.SEEN if news.result is CallResult.DONE else after.state
            return replace(after, state=done, visible_from=max(intent.visible_from, news.visible_from))


def _asked_alone(intent: Intent, node: NodeId) -> bool:
    return isinstance(intent.act, Repair) and node in {"", intent.act.node}  # "": in facts from before it was told


def _again_later(s: IntentInput, intent: Intent, asked: float) -> Intent:
    """It did not take effect: it may be sent again, later (back-off) and not for ever.

    A notice is worth telling for as long as its patience lasts, however often that is; an act is for its moment.
    """
    sent_at = intent.sent_at if intent.doubted else 0.0  # 0: surely none of its sendings took effect
    told = isinstance(intent.act, Notify)
    if _time_up(s, intent) if told else intent.sends >= TRANSIENT_LIMIT:
        return replace(intent, state=IntentState.EXPIRED, sent_at=sent_at)
    own = min(BACKOFF_MOST, 0.5 * 2.0 ** min(intent.sends - 1, 30))
    later = s.within(max(own, min(asked, ASKED_MOST)))
    return replace(intent, not_before=later, sent_at=sent_at, seen_by=intent.seen_by if told else None)


def _in_doubt(s: IntentInput, intent: Intent) -> Intent:
    """Absence means absence only in a read newer than the end of the call: of its subjects, which may have been read
    further than their whole cluster (a list comes in slices).
    """
    return replace(intent, doubted=intent.doubted or intent.sends, doubt_until=s.read_after)


# --- no answer


def developed(s: IntentInput) -> Intent:
    """The intent through all that has become of it since, until it is over, to be sent, or still under way."""
    intent = s.intent
    if _undoubted(intent) and _first_read(intent).passed(s.readings):
        intent = _in_doubt(s, intent)
    while (found := _development(replace(s, intent=intent))) is not None:
        event, because = found
        intent = replace(intent, state=INTENT_LIFE.target(intent, intent.state, event))
        if event == "unknown":
            intent = _in_doubt(s, intent)
        if because and (event == "again" or not intent.answer):
            intent = replace(intent, answer=because)
        if intent.state is IntentState.PLANNED or intent.state.over:
            break
    ready = intent.state is IntentState.PLANNED and intent.not_before is not None
    if ready and intent.not_before is not None and intent.not_before.passed(s.readings):
        intent = replace(intent, not_before=None)  # from now on it is found by whoever sends
    return intent


def _undoubted(intent: Intent) -> bool:
    """Its cluster had not been read yet when its answer was lost: when its absence counts is known after a read."""
    return intent.state is IntentState.UNKNOWN and not intent.doubt_until and intent.clock == intent.cluster


def _first_read(intent: Intent) -> Deadline:
    return Deadline(clock=intent.cluster, at=1e-6)


def _development(s: IntentInput) -> tuple[str, str] | None:
    """What has become of it since: the first that applies, or nothing."""
    intent, wanted = s.intent, s.wanted
    if shown(intent, s.nodes, s.job, s.horizon):
        return "seen", ""
    match intent.state:
        case IntentState.SENT if s.readings.get(intent.clock, 0.0) >= intent.sent_at + intent.call_timeout:
            return "unknown", "its answer was lost"
        case IntentState.UNKNOWN | IntentState.ACCEPTED if _time_up(s, intent):
            return "expire", "not seen in time"
        case IntentState.UNKNOWN if not wanted and not _comes_late(intent):
            return "expire", "no longer wanted"
        case IntentState.UNKNOWN if not wanted:
            return None  # its time is awaited: what it asked for may still happen
        case IntentState.UNKNOWN if may_be_sent_again(intent) and _surely_absent(s, intent):
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


def _time_up(s: IntentInput, intent: Intent) -> bool:
    return intent.seen_by is not None and intent.seen_by.passed(s.readings)


def _surely_absent(s: IntentInput, intent: Intent) -> bool:
    """A read newer than the end of the call has not shown it. What no cluster shows has no such read: time must do."""
    if intent.clock in {INGEST, LEADER}:
        return s.readings.get(intent.clock, 0.0) >= intent.sent_at + 2 * intent.call_timeout
    return bool(intent.doubt_until) and s.horizon >= intent.doubt_until


def next_look(s: IntentInput) -> Deadline | None:
    """When to decide again though nothing has changed."""
    intent, clock = s.intent, s.clock
    match intent.state:
        case IntentState.PLANNED:
            return intent.not_before
        case IntentState.SENT:
            return Deadline(clock=intent.clock, at=intent.sent_at + intent.call_timeout)
        case IntentState.UNKNOWN if _undoubted(intent):
            return _first_read(intent)
        case IntentState.UNKNOWN if may_be_sent_again(intent):
            soon = s.within(0.5 * intent.call_timeout)
            return soon if intent.seen_by is None or soon.at < intent.seen_by.at else intent.seen_by
        case IntentState.ACCEPTED if clock is not None and s.horizon < intent.visible_from:
            # Seen, but in a read from before `visible_from`: poll once a period until a newer read. Clocks are not
            # among what a wait is on, so no read makes it due.
            soon = Deadline(clock=intent.cluster, at=s.present.get(intent.cluster, 0.0) + clock.period)
            if intent.seen_by is None or intent.seen_by.clock != soon.clock:
                return soon
            return min(soon, intent.seen_by, key=lambda deadline: deadline.at)
        case _:
            return intent.seen_by
