"""Checks that nobody asks for by hand: on the schedule, of a node whose fault is only watched, of those that were there
before us.

All look at one node at a time, when it is idle. They never stand in a job's way: none begins while a job of the pool
waits for nodes, and together with the seats that are out they keep within the pool's limit.
"""

from msgspec.structs import replace

from sickbay.brain.admit import limit_for, spares_one
from sickbay.brain.idle_checks import CheckDue, PatrolInput, patrol, proven, rule_of, watched_key
from sickbay.engine.checkups import begin, why_not
from sickbay.engine.view import Draft
from sickbay.model.checkup import Checkup, ScheduleWalk
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.policy import Trigger
from sickbay.model.rows import DUE_NOW, SCHEDULE, WaitMark

STRIDE = 40


# --- who falls due


def begin_walk(draft: Draft) -> None:
    """A policy is in force: if it has a schedule, every node must have its place in it."""
    if rule_of(draft.rules.policy, Trigger.SCHEDULE) is not None:
        draft.put(ScheduleWalk())
        draft.waits[SCHEDULE] = DUE_NOW


def walk(draft: Draft) -> None:
    row = draft.read(ScheduleWalk, SCHEDULE)
    draft.waits[SCHEDULE] = None
    if row is None:
        return
    keys = draft.keys("node", after=row.after, limit=STRIDE)
    for key in keys:
        draft.waits[key.replace("node:", "patrol:", 1)] = _after(draft, 0.0)
    if len(keys) < STRIDE:
        draft.drop(SCHEDULE)
        return
    draft.put(replace(row, after=keys[-1]))
    draft.waits[SCHEDULE] = DUE_NOW


def wake(draft: Draft, node: Node, trigger: Trigger = Trigger.SCHEDULE) -> None:
    """Something changed for this node: let its next check be planned."""
    if rule_of(draft.rules.policy, trigger) is not None:
        draft.waits[f"patrol:{node.id}"] = _after(draft, 0.0)


def check_first(draft: Draft, node: Node) -> None:
    """A node that was there before us, where such nodes are to be checked: once, and it serves meanwhile."""
    if node.cluster in draft.rules.checks_first:
        check_once(draft, node)


def check_once(draft: Draft, node: Node) -> None:
    """It is checked like a newcomer when it is idle, within the pool's limits, and it serves meanwhile."""
    if rule_of(draft.rules.policy, Trigger.JOIN) is not None:
        draft.put(replace(node, unproven=True))
        draft.waits[f"patrol:{node.id}"] = _after(draft, 0.0)


def passed(draft: Draft, node: Node, level: int) -> Node:
    """The node after a check of any kind that it passed."""
    return proven(node, level, draft.rules.policy, draft.reading(INGEST))


def _after(draft: Draft, seconds: float) -> WaitMark:
    return WaitMark(until=Deadline(clock=INGEST, at=draft.reading(INGEST) + seconds), urgency=8)


# --- what is done


def plan_patrol(draft: Draft, subject: str) -> None:
    """Check the node if it is due and idle; else say when to look again. The subject has a wait, but no row."""
    node = draft.read(Node, subject.replace("patrol:", "node:", 1), watch=False)
    again = _patrol(draft, node) if node is not None else None
    draft.waits[subject] = None if again is None else _after(draft, again)


def _patrol(draft: Draft, node: Node) -> float | None:
    """Seconds until the node is to be looked at again. None: when something wakes it."""
    seen = PatrolInput(
        node=node,
        watched=_watched(draft, node),
        pool=draft.ledger(node.pool).size,
        reading=draft.reading(INGEST),
        can=draft.can(node.cluster, node.pool),
    )
    found = patrol(seen, draft.rules.policy)
    if isinstance(found, CheckDue):
        if why_not(draft, node) or not _spare(draft, node):
            return found.busy
        _begin(draft, found)
    elif found.node != node:
        draft.put(found.node)
    return found.again


def _watched(draft: Draft, node: Node) -> Incident | None:
    """The node's open incident if it wants one check, now or as soon as the node is idle."""
    incident = draft.peek(Incident, f"incident:{node.incident}") if node.incident else None
    if incident is None or incident.phase is not Phase.WATCHED or incident.kind is not IncidentKind.FAULT:
        return None
    begun = draft.read(Checkup, f"checkup:{watched_key(incident)}", watch=False)
    return incident if begun is None else None


def _spare(draft: Draft, node: Node) -> bool:
    limit = limit_for(node.pool, draft.rules.policy)
    checking = len(draft.find(Node, f"checking:{node.pool}"))
    return spares_one(draft.ledger(node.pool), limit, checking=checking, wanted=bool(draft.waiting_jobs(node)))


def _begin(draft: Draft, check: CheckDue) -> None:
    checkup = Checkup(
        id=check.key,
        level=check.rule.level,
        by=check.by,
        reason=check.reason,
        asked_at=draft.now,
        target=check.node.id,
        listed=True,
    )
    draft.put(begin(draft, checkup, [check.node], check.rule.deadline))
