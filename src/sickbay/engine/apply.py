"""From facts to rows: one function for each kind of news. `learn` is the table of contents."""

from msgspec.structs import replace

from sickbay.engine import apply_faults as learn_faults
from sickbay.engine import apply_jobs as learn_jobs
from sickbay.engine import apply_nodes as learn_nodes
from sickbay.engine import apply_orders as learn_orders
from sickbay.engine import patrol
from sickbay.engine.view import Draft
from sickbay.model.checkup import Verdict
from sickbay.model.clock import Deadline
from sickbay.model.errors import UnreadableRow
from sickbay.model.facts import (
    AgentHeard,
    AgentSilent,
    AnyNews,
    Booted,
    CallResult,
    Checked,
    Checkpointed,
    Fact,
    Garbled,
    Hung,
    Inventory,
    JobSeen,
    JobVanished,
    Looked,
    NodeSeen,
    NodeVanished,
    Observed,
    Ordered,
    Outcome,
    PolicyInForce,
    ResetDone,
    Stepped,
    Submitted,
    TokenIssued,
    TokenRevoked,
    Wrote,
)
from sickbay.model.fleet import InForce, Node, NodeId
from sickbay.model.intent import (
    INTENT_LIFE,
    Drain,
    Fence,
    Intent,
    IntentState,
    Notify,
    Quarantine,
    Release,
    Repair,
    RerunJob,
    StartJob,
    StopJob,
    nodes_of,
)
from sickbay.model.job import Job
from sickbay.model.rows import IN_FORCE


def learn(draft: Draft, fact: Fact) -> None:
    news = fact.news
    match news:
        case Observed():
            learn_faults.observed(draft, fact, news)
        case Checked():
            learn_faults.checked(draft, fact, news)
        case Booted():
            learn_nodes.booted(draft, fact, news)
        case Inventory():
            learn_nodes.inventory(draft, fact, news)
        case NodeSeen():
            learn_nodes.seen(draft, fact, news)
        case NodeVanished():
            learn_nodes.vanished(draft, news)
        case AgentSilent():
            learn_nodes.agent_silent(draft, fact, news)
        case AgentHeard():
            learn_nodes.agent_heard(draft, fact, news)
        case JobSeen():
            learn_jobs.seen(draft, fact, news)
        case JobVanished():
            learn_jobs.vanished(draft, fact, news)
        case Stepped():
            learn_jobs.stepped(draft, fact, news)
        case Checkpointed():
            learn_jobs.checkpointed(draft, fact, news)
        case Wrote():
            learn_jobs.wrote(draft, news)
        case Hung():
            learn_jobs.hung(draft, fact, news)
        case Submitted():
            learn_jobs.submitted(draft, fact, news)
        case Looked():
            _answered(draft, news.look, news.node, Verdict.LOOKED)
            learn_jobs.looked(draft, news)
        case ResetDone():
            _answered(draft, news.key, news.node, Verdict.RESET)
        case Outcome():
            _outcome(draft, news)
        case Ordered():
            learn_orders.ordered(draft, fact, news)
        case TokenIssued() | TokenRevoked():
            learn_orders.credential(draft, fact, news)
        case PolicyInForce():
            draft.put(InForce(policy=news.policy, knowledge=news.knowledge))
            patrol.begin_walk(draft)
            draft.tell(f"policy {news.policy}, knowledge {news.knowledge} in force", IN_FORCE, event="policy")
        case Garbled(because=because):
            raise UnreadableRow(because)


def reads_of(news: AnyNews) -> tuple[str, ...]:
    """Keys that learning this surely reads, so that those of many facts are loaded together."""
    match news:
        case NodeSeen(node=node, incarnation=incarnation):
            holder = learn_nodes.holder_key(incarnation)
            return f"node:{node}", f"voice:{node}", *((holder,) if holder else ())
        case (
            Observed(node=node)
            | AgentHeard(node=node)
            | AgentSilent(node=node)
            | Booted(node=node)
            | Inventory(node=node)
            | NodeVanished(node=node)
        ):
            return (f"node:{node}",)
        case Outcome(key=key):
            return (f"intent:{key}",)
        case _:
            return ()


def _answered(draft: Draft, key: str, node: NodeId, verdict: Verdict) -> None:
    intent = draft.intent(key)
    if intent is not None and not intent.state.over and node in nodes_of(intent.act):
        draft.put(replace(intent, verdicts={**intent.verdicts, node: verdict}))


TRANSIENT_LIMIT = 20
BACKOFF_MOST = 60.0


def _outcome(draft: Draft, news: Outcome) -> None:
    """What a call returned. An answer to an earlier sending of the same intent is still an answer about its effect."""
    intent = draft.intent(news.key)
    if intent is None or intent.state.over:
        return
    if news.result is CallResult.REJECTED and not news.sends and not _asked_alone(intent, news.node):
        return  # one agent's word: what others were asked is not over with it
    if news.result in {CallResult.TRANSIENT, CallResult.UNKNOWN, CallResult.REJECTED} and 0 < news.sends < intent.sends:
        if news.result is not CallResult.UNKNOWN and news.sends == intent.doubted:
            draft.put(replace(intent, doubted=0))  # that one had no effect, after all
        return  # about an earlier sending; a later one is under way
    if news.result is CallResult.REJECTED and 0 < intent.doubted < news.sends and not isinstance(intent.act, Notify):
        # An earlier sending, still in doubt, may have taken effect, and be what this one is refused for. So REJECTED
        # becomes UNKNOWN, and it is not sent again: the effect of the earlier one is awaited.
        seen_by = intent.seen_by or Deadline(clock=intent.clock, at=draft.reading(intent.clock) + intent.patience)
        doubt = replace(intent, state=IntentState.UNKNOWN, refused=True, answer=news.text, seen_by=seen_by)
        draft.put(doubt)
        return
    event = {CallResult.DONE: "accepted", CallResult.GONE: "rejected"}.get(news.result, news.result.value)
    if not INTENT_LIFE.can(intent.state, event):
        return
    answered = replace(intent, answer=news.text, state=INTENT_LIFE.target(intent, intent.state, event))
    match news.result:
        case CallResult.TRANSIENT:
            answered = _again_later(draft, answered)
        case CallResult.UNKNOWN:
            answered = in_doubt(draft, answered)
        case CallResult.GONE:
            answered = replace(answered, gone=True, doubt_until=_read_after(draft, intent))
        case CallResult.REJECTED:
            stands_at = draft.reading(intent.clock) + intent.call_timeout
            answered = replace(answered, not_before=Deadline(clock=intent.clock, at=stands_at))
        case CallResult.ACCEPTED | CallResult.DONE:
            answered = replace(answered, visible_from=max(intent.visible_from, news.visible_from))
            if news.result is CallResult.DONE:
                answered = replace(answered, state=IntentState.SEEN)
    draft.put(answered)


def _asked_alone(intent: Intent, node: NodeId) -> bool:
    return isinstance(intent.act, Repair) and node in {"", intent.act.node}  # "": in facts from before it was told


def _again_later(draft: Draft, intent: Intent) -> Intent:
    """It did not take effect: it may be sent again, later (back-off) and not for ever.

    A notice is worth telling for as long as its patience lasts, however often that is; an act is for its moment.
    """
    sent_at = intent.sent_at if intent.doubted else 0.0  # 0: surely none of its sendings took effect
    told = isinstance(intent.act, Notify)
    over = intent.seen_by is not None and intent.seen_by.passed(draft.readings)
    if over if told else intent.sends >= TRANSIENT_LIMIT:
        return replace(intent, state=IntentState.EXPIRED, sent_at=sent_at)
    pause = min(BACKOFF_MOST, 0.5 * 2.0 ** min(intent.sends - 1, 30))
    later = Deadline(clock=intent.clock, at=draft.reading(intent.clock) + pause)
    return replace(intent, not_before=later, sent_at=sent_at, seen_by=intent.seen_by if told else None)


def in_doubt(draft: Draft, intent: Intent) -> Intent:
    """Absence means absence only in a read newer than the end of the call: of its subjects, which may have been read
    further than their whole cluster (a list comes in slices).
    """
    return replace(intent, doubted=intent.doubted or intent.sends, doubt_until=_read_after(draft, intent))


def _read_after(draft: Draft, intent: Intent) -> float:
    """From which moment of its cluster's own time on a read is surely newer than the call; 0: it was never read."""
    clock = draft.newest.get(intent.cluster)
    if clock is None:
        return intent.doubt_until
    act = intent.act
    seat = draft.peek(Node, f"node:{act.node}") if isinstance(act, Quarantine | Drain | Repair | Release) else None
    job = draft.peek(Job, f"job:{act.job}") if isinstance(act, StopJob | StartJob | RerunJob | Fence) else None
    reached = max(clock.as_of, seat.as_of if seat is not None else 0.0, job.ranks_as_of if job is not None else 0.0)
    return reached + intent.call_timeout + 2 * clock.period
