"""From facts to rows: one function for each kind of news. `learn` is the table of contents."""

from msgspec.structs import replace

from sickbay.brain.retry import IntentInput, answered, read_after
from sickbay.engine import apply_faults as learn_faults
from sickbay.engine import apply_jobs as learn_jobs
from sickbay.engine import apply_nodes as learn_nodes
from sickbay.engine import apply_orders as learn_orders
from sickbay.engine import apply_ranks as learn_ranks
from sickbay.engine import apply_tokens as learn_tokens
from sickbay.engine import patrol
from sickbay.engine.apply_submissions import submitted
from sickbay.engine.view import Draft
from sickbay.model.checkup import Verdict
from sickbay.model.errors import UnreadableRow
from sickbay.model.facts import (
    AgentHeard,
    AgentSilent,
    AnyNews,
    Booted,
    Checked,
    Checkpointed,
    ControllerStarted,
    Fact,
    Garbled,
    Hung,
    Inventory,
    JobSeen,
    JobVanished,
    JoinRefused,
    Looked,
    NodeSeen,
    NodeVanished,
    Observed,
    Ordered,
    Outcome,
    PolicyInForce,
    RankEnded,
    RankWaits,
    ResetDone,
    RuleOff,
    Stepped,
    Submitted,
    TokenIssued,
    TokenRevoked,
    TokensUsed,
    Wrote,
)
from sickbay.model.fleet import InForce, Node, NodeId
from sickbay.model.intent import (
    Drain,
    Fence,
    Intent,
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
            learn_ranks.stepped(draft, fact, news)
        case Checkpointed():
            learn_ranks.checkpointed(draft, fact, news)
        case Wrote():
            learn_ranks.wrote(draft, news)
        case Hung() | RuleOff() | RankEnded() | RankWaits():
            learn_ranks.watched(draft, fact, news)
        case Submitted():
            submitted(draft, fact, news)
        case Looked():
            _answered(draft, news.look, news.node, Verdict.LOOKED)
            learn_ranks.looked(draft, news)
        case ResetDone():
            _answered(draft, news.key, news.node, Verdict.RESET)
        case Outcome():
            _outcome(draft, news)
        case Ordered():
            learn_orders.ordered(draft, fact, news)
        case TokenIssued() | JoinRefused() | TokenRevoked() | TokensUsed() | ControllerStarted():
            learn_tokens.administered(draft, fact, news)
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


def _outcome(draft: Draft, news: Outcome) -> None:
    """What a call returned."""
    intent = draft.intent(news.key)
    if intent is None or intent.state.over:
        return
    after = answered(intent_input(draft, intent), news)
    if after != intent:
        draft.put(after)


def intent_input(draft: Draft, intent: Intent) -> IntentInput:
    act = intent.act
    seat = draft.peek(Node, f"node:{act.node}") if isinstance(act, Quarantine | Drain | Repair | Release) else None
    job = draft.peek(Job, f"job:{act.job}") if isinstance(act, StopJob | StartJob | RerunJob | Fence) else None
    return IntentInput(
        intent=intent,
        readings=draft.readings,
        present=draft.present,
        read_after=read_after(intent, draft.newest.get(intent.cluster), seat, job),
        clock=draft.clocks.get(intent.cluster),
    )
