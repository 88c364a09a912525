"""Checks that nobody asks for by hand: on the schedule, of a node whose fault is only watched, of those that were there
before us.

All look at one node at a time, when it is idle. They never stand in a job's way: none begins while a job of the pool
waits for nodes, and together with the seats that are out they keep within the pool's limit.
"""

from hashlib import sha256

from msgspec.structs import replace

from sickbay.brain.admit import limit_for
from sickbay.engine.checkups import begin, why_not
from sickbay.engine.view import Draft
from sickbay.model.checkup import Checkup, ScheduleWalk
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fleet import Capability, Node
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.policy import Examine, Policy, Trigger
from sickbay.model.rows import DUE_NOW, SCHEDULE, WaitMark

BUSY = 60.0  # seconds until a node that was not idle is looked at again, at least
EACH = 0.1  # seconds for each node of a pool in which all are to be checked once, until one is looked at again
AGAIN = 0.1  # of the schedule's interval: when a check that did not pass is tried again
SPREAD = 0.1  # of the interval: nodes that passed together do not fall due together
STRIDE = 40


def rule_of(policy: Policy, trigger: Trigger) -> Examine | None:
    return next((rule for rule in policy.examine if rule.on is trigger), None)


def phase(node: Node) -> float:
    """Its place in the interval: from 0 to 1, the same for ever."""
    return int(sha256(node.id.encode()).hexdigest()[:8], 16) / 2**32


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
    """The node after a check of any kind that it passed: one as deep as the schedule's puts its next one off."""
    join = rule_of(draft.rules.policy, Trigger.JOIN)
    if node.unproven and (join is None or level >= join.level):
        node = replace(node, unproven=False)
    rule = rule_of(draft.rules.policy, Trigger.SCHEDULE)
    if rule is None or rule.every is None or level < rule.level:
        return node
    interval = rule.every.total_seconds() * (1 + SPREAD * phase(node))
    return replace(node, check_due=draft.reading(INGEST) + interval)


def _after(draft: Draft, seconds: float) -> WaitMark:
    return WaitMark(until=Deadline(clock=INGEST, at=draft.reading(INGEST) + seconds), urgency=8)


# --- what is done


def plan_patrol(draft: Draft, subject: str) -> None:
    """Check the node if it is due and idle; else say when to look again. The subject has a wait, but no row."""
    node = draft.read(Node, subject.replace("patrol:", "node:", 1), watch=False)
    again = _next_check(draft, node) if node is not None else None
    draft.waits[subject] = None if again is None else _after(draft, again)


def _next_check(draft: Draft, node: Node) -> float | None:
    """Seconds until the node is to be looked at again. None: when something wakes it."""
    if node.incarnation is None or Capability.CHECK not in draft.can(node.cluster):
        return None
    if node.checking or _suspect(draft, node):
        return BUSY
    join = rule_of(draft.rules.policy, Trigger.JOIN)
    if node.unproven and join is not None:
        if not why_not(draft, node) and _room(draft, node):
            key = f"check-first/{node.id}"  # no name has a slash: joined by a dash, those of two clusters may be one
            known = replace(node, unproven=False)
            _check(draft, known, join, key, "first connection", "it was there before it was known")
        # A large pool is asked less often: only a share of it may be checked at once.
        return max(BUSY, draft.ledger(node.pool).size * EACH)
    rule = rule_of(draft.rules.policy, Trigger.SCHEDULE)
    if rule is None or rule.every is None:
        return None
    reading, every = draft.reading(INGEST), rule.every.total_seconds()
    if node.check_due is None:
        node = replace(node, check_due=reading + phase(node) * every)
        draft.put(node)
    due = node.check_due or 0.0
    if reading < due:
        return due - reading
    if why_not(draft, node) or not _room(draft, node):
        return max(BUSY, every / 100)
    tried = replace(node, check_due=reading + max(BUSY, AGAIN * every))
    _check(draft, tried, rule, f"check/{node.id}/{reading:.0f}", "schedule", f"every {rule.every}")
    return BUSY


def _suspect(draft: Draft, node: Node) -> bool:
    """Whether a watched fault wants this node checked once, now or as soon as it is idle."""
    rule = rule_of(draft.rules.policy, Trigger.FAULT)
    incident = draft.peek(Incident, f"incident:{node.incident}") if rule and node.incident else None
    if rule is None or incident is None or incident.phase is not Phase.WATCHED:
        return False
    key = f"check-{incident.id}"
    if incident.kind is not IncidentKind.FAULT or draft.read(Checkup, f"checkup:{key}", watch=False) is not None:
        return False
    if not why_not(draft, node) and _room(draft, node):
        _check(draft, node, rule, key, "policy", f"{incident.fault.code} is watched")
    return True


def _check(draft: Draft, node: Node, rule: Examine, key: str, by: str, reason: str) -> None:
    checkup = Checkup(id=key, level=rule.level, by=by, reason=reason, asked_at=draft.now, target=node.id, listed=True)
    draft.put(begin(draft, checkup, [node], rule.deadline))


def _room(draft: Draft, node: Node) -> bool:
    """No job waits, and the pool can do without one more node."""
    ledger = draft.ledger(node.pool)
    if draft.waiting_jobs(node):
        return False
    limit = limit_for(node.pool, draft.rules.policy)
    checking = len(draft.find(Node, f"checking:{node.pool}"))
    return ledger.out + checking < limit.out(limit.size or ledger.size)
