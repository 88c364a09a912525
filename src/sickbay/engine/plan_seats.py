"""Planning brakes and seats: what time alone changes."""

from fnmatch import fnmatchcase

from msgspec.structs import replace

from sickbay.brain.admit import ease
from sickbay.brain.identity import Standing, standing_of
from sickbay.engine.apply_faults import still_silent
from sickbay.engine.apply_nodes import look_again
from sickbay.engine.notices import post
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.facts import EarlyAgent
from sickbay.model.fleet import Brake, Node, cluster_of, read_scope
from sickbay.model.intent import Notify
from sickbay.model.policy import BrakeRule
from sickbay.model.rows import AUDIT, WaitMark


def plan_brake(draft: Draft, subject: str) -> None:
    brake = draft.read(Brake, subject)
    if brake is None:
        draft.waits[subject] = None
        return
    rule = _brake_rule(draft, brake)
    reading = draft.reading(INGEST)
    brake = still_silent(draft, brake, reading, reading)
    eased = ease(brake, rule, draft.readings.get(INGEST, 0.0))
    if eased != brake:
        draft.put(eased)
    if brake.tripped_at is not None and eased.tripped_at is None:
        draft.tell(f"brake off: {brake.signature} in {brake.scope}", subject, event="brake")
    if brake.tripped_at is not None and "told" not in brake.told:
        shown = f"{len(brake.seen)} nodes show {brake.signature} in {brake.scope}"
        text = f"{shown}: none is taken out of service or repaired for it until the brake is off"
        notice = Notify(event="brake", subject=subject, text=text)
        kind, name = read_scope(brake.scope)
        pool = name if kind == "pool" else ""
        post(draft, notice, key=f"{subject}.{brake.tripped_at.timestamp():.0f}", cluster="", pool=pool)
        draft.put(replace(eased, told=("told",)))
    if eased.tripped_at is None and not eased.seen:
        draft.waits[subject] = None
        return
    pause = min(rule.within.total_seconds(), rule.quiet.total_seconds()) / 4
    draft.waits[subject] = WaitMark(until=Deadline(clock=INGEST, at=reading + pause), urgency=3)


def _brake_rule(draft: Draft, brake: Brake) -> BrakeRule:
    kind, _ = read_scope(brake.scope)
    for rule in draft.rules.policy.brakes:
        if rule.scope == kind and fnmatchcase(brake.signature, rule.signature):
            return rule
    return BrakeRule()


def plan_voice(draft: Draft, subject: str) -> None:
    """An agent whose machine no cluster has spoken of for some time: nothing that it says counts. A person is told."""
    voice = draft.read(EarlyAgent, subject, watch=False)
    draft.waits[subject] = None
    if voice is None or voice.told or not voice.heard:
        return
    node = draft.read(Node, f"node:{voice.node}", watch=False)
    if node is not None and standing_of(node, voice.incarnation, by_agent=True) is not Standing.AHEAD:
        return
    who = voice.incarnation.instance_id or "a machine that it cannot name"
    holder = node.registered if node is not None else None
    theirs = "no cluster has such a node"
    if node is None and cluster_of(voice.node) not in draft.rules.can:
        ours = ", ".join(sorted(draft.rules.can))
        theirs = f"and there is no cluster {cluster_of(voice.node)} here (there is {ours}): give it a node of one"
    if node is not None:
        theirs = f"its cluster says that {holder.instance_id or holder.uid if holder else 'nobody'} holds that seat"
    text = f"{voice.node}: an agent reports from {who}, {theirs}: nothing that it says counts until the two agree"
    notice = Notify(event="agent_unknown", subject=f"node:{voice.node}", text=text)
    post(draft, notice, key=f"{subject}.{draft.reading(INGEST):.0f}", cluster="", pool="")
    draft.tell(text, f"node:{voice.node}", AUDIT, event="agent_unknown")
    draft.put(replace(voice, told=True))


def plan_node(draft: Draft, subject: str) -> None:
    """A seat's own deadlines: an announced end that passed, a vacancy that nobody fills."""
    node = draft.read(Node, subject)
    draft.waits[subject] = None
    if node is None:
        return
    unheard = node.incident is None and (not node.ready or node.unheard)
    announced = node.going_down is not None and not node.going_down.passed(draft.readings)
    if announced:
        draft.waits[subject] = WaitMark(until=node.going_down, urgency=4)
    elif (node.going_down is not None or unheard) and node.incarnation is not None:
        look_again(draft, node)
        return
    if node.vacant_until is None or not node.vacant_until.passed(draft.readings):
        if node.vacant_until is not None:
            draft.waits[subject] = WaitMark(until=node.vacant_until, urgency=4)
        return
    text = f"{node.id}: nobody has filled this seat since its instance was replaced"
    reading = draft.reading(node.cluster)
    notice = Notify(event="vacancy", subject=subject, text=text)
    post(draft, notice, key=f"{subject}.vacant.{reading:.0f}", cluster=node.cluster, pool=node.pool)
    again = Deadline(clock=node.cluster, at=reading + draft.rules.policy.pace.held_reminder.total_seconds())
    draft.put(replace(node, vacant_until=again, counted=False))  # from now on the pool is smaller by one
    draft.waits[subject] = WaitMark(until=again, urgency=4)
