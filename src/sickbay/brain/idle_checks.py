"""Scheduled checks: which idle node is due, on the schedule, for a fault that is only watched, or once at the start."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from msgspec.structs import replace

from sickbay.model.fleet import AgentState, Capability, Node
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job
from sickbay.model.noun import Noun
from sickbay.model.policy import Examine, Policy, Trigger

BUSY = 60.0  # seconds until a node that was not idle is looked at again, at least
EACH = 0.1  # seconds for each node of a pool in which all are to be checked once, until one is looked at again
AGAIN = 0.1  # of the schedule's interval: when a check that did not pass is tried again
SPREAD = 0.1  # of the interval: nodes that passed together do not fall due together


class PatrolInput(Noun):
    """All that the decision about one node may read."""

    node: Node
    watched: Incident | None  # whose fault is only watched, and that no check was begun for
    pool: int  # how large its pool is
    reading: float  # of ingest
    can: frozenset[Capability]


@dataclass(frozen=True, slots=True)
class CheckDue:
    """Begin this check if the node is idle and its pool can spare it; else look again after `busy` seconds."""

    rule: Examine
    key: str
    by: str
    reason: str
    node: Node  # as it is once the check has begun
    busy: float
    again: float = BUSY  # seconds until the node is looked at again once it has begun


@dataclass(frozen=True, slots=True)
class NotDue:
    node: Node
    again: float | None = None  # seconds until it is looked at again; None: when something wakes it


def rule_of(policy: Policy, trigger: Trigger) -> Examine | None:
    return next((rule for rule in policy.examine if rule.on is trigger), None)


def phase(node: Node) -> float:
    """Its place in the interval: from 0 to 1, the same for ever."""
    return int(sha256(node.id.encode()).hexdigest()[:8], 16) / 2**32


def patrol(s: PatrolInput, policy: Policy) -> CheckDue | NotDue:
    node = s.node
    if node.incarnation is None or Capability.CHECK not in s.can:
        return NotDue(node)
    if node.checking:
        return NotDue(node, BUSY)
    fault, join, schedule = (rule_of(policy, on) for on in (Trigger.FAULT, Trigger.JOIN, Trigger.SCHEDULE))
    if fault is not None and s.watched is not None:
        return CheckDue(fault, watched_key(s.watched), "policy", f"{s.watched.fault.code} is watched", node, BUSY)
    if join is not None and node.unproven:
        # No name has a slash: joined by a dash, those of two clusters may be one.
        key, known = f"check-first/{node.id}", replace(node, unproven=False)
        again = max(BUSY, s.pool * EACH)  # a large pool is asked less often: a share of it may be checked at once
        return CheckDue(join, key, "first connection", "it was there before it was known", known, again, again)
    if schedule is None or schedule.every is None:
        return NotDue(node)
    return _scheduled(s, schedule, schedule.every)


def watched_key(incident: Incident) -> str:
    return f"check-{incident.id}"


def _scheduled(s: PatrolInput, rule: Examine, interval: timedelta) -> CheckDue | NotDue:
    every, node = interval.total_seconds(), s.node
    if node.check_due is None:
        node = replace(node, check_due=s.reading + phase(node) * every)
    due = node.check_due or 0.0
    if s.reading < due:
        return NotDue(node, due - s.reading)
    tried = replace(node, check_due=s.reading + max(BUSY, AGAIN * every))
    key = f"check/{node.id}/{s.reading:.0f}"
    return CheckDue(rule, key, "schedule", f"every {interval}", tried, max(BUSY, every / 100))


def proven(node: Node, level: int, policy: Policy, reading: float) -> Node:
    """The node after a check of any kind that it passed: one as deep as the schedule's puts its next one off."""
    join, schedule = rule_of(policy, Trigger.JOIN), rule_of(policy, Trigger.SCHEDULE)
    if node.unproven and (join is None or level >= join.level):
        node = replace(node, unproven=False)
    if schedule is None or schedule.every is None or level < schedule.level:
        return node
    return replace(node, check_due=reading + schedule.every.total_seconds() * (1 + SPREAD * phase(node)))


def why_not_idle(node: Node, incident: Incident | None, holders: Sequence[Job], can: frozenset[Capability]) -> str:
    """Why a node cannot be checked now, whoever asks for it; empty: it is idle."""
    if node.incarnation is None:
        return "its seat is vacant"
    if Capability.CHECK not in can:
        return f"nothing in {node.cluster} can check it"
    if node.checking:
        return f"{node.checking} is under way there"
    if node.cordons:
        return f"cordoned by {', '.join(node.cordons)}"
    if incident is not None and incident.phase is not Phase.WATCHED:
        return f"incident {incident.id} is {incident.phase}"
    if not node.ready or node.going_down is not None:
        return "the cluster does not call it ready" if not node.ready else "it has announced its end"
    if node.agent is not AgentState.HEARD and Capability.LOOK in can:
        return "its agent is not heard"
    if holders:
        return f"job {holders[0].id} has it"
    return f"{node.unmanaged} pieces of other work run there" if node.unmanaged else ""
