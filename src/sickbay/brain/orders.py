"""What operators ask of an incident, and how an incident ends."""

from datetime import timedelta

from sickbay.brain.decision import Change, Decision, Do, Move, Stay
from sickbay.brain.repair import occupied, stands
from sickbay.brain.sight import Sight, away, later, on_its_way, owner_of, remind
from sickbay.model.clock import Deadline
from sickbay.model.fault import Remedy, highest
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, Order, Phase, Wait
from sickbay.model.intent import Intent, IntentState, Quarantine, Release
from sickbay.model.policy import Policy


def obey(s: Sight, order: Order) -> Decision:
    incident = s.incident
    because = f"{order.verb} by {order.by}: {order.reason}"
    rest: dict[str, object] = {"orders": incident.orders[1:]}
    done = f"{order.by}: {order.verb}: done"
    decided: dict[str, object] = {"ordered": True, "needs_human": False}  # by a human, who is what it was held for
    match order.verb:
        case "dismiss" | "uncordon":
            return Change(
                because, {**rest, **_closing(s, "by an operator")}, answer=f"{done}: our cordon is taken back"
            )
        case "cancel":  # the driver took its own word back, while the node was still in service
            return Move("dismiss", order.reason, rest)
        case "uncordoned":  # another removed our cordon on the cluster: there is nothing left to release
            return Change(because, {**rest, **_closing(s, because)})
        case "hold" if incident.closing is not None:  # our cordon is on its way off: a new one must be asked for
            return Change(because, rest, answer=_refusal(order, "it is being closed"))
        case "hold" if incident.phase.out and incident.phase is not Phase.HELD:
            return Move("hold", because, rest, answer=done)
        case "hold":
            return Change(because, {**rest, "needs_human": True}, answer=f"{done}: a human decides before any repair")
        case "confirm" if incident.phase is Phase.HELD:
            event = _way_out(s, "verify")
            also = {**rest, **decided, "proof": None, "to_verify": event != "verify"}
            return Move(event, because, also, answer=done)
        case "escalate" if incident.phase is Phase.HELD:
            above = _one_above(incident)
            also = {**rest, **decided, "remedy": above, "least": above, "to_verify": False}
            return Move(_way_out(s, "escalate"), because, also, answer=done)
        case _:
            return Change(because, rest, answer=_refusal(order, f"it is {incident.phase}"))


def _way_out(s: Sight, event: str) -> str:
    """Out of HELD by way of what is missing: our cordon first, then an empty node, then what the operator wants."""
    if s.node is None or owner_of(s.incident) not in s.node.cordons:
        return "quarantine"
    return "drain" if event == "verify" and occupied(s, s.node) else event


def _closing(s: Sight, why: str) -> dict[str, object]:
    """Dismissed by a person. What is under way is let go; a cordon or a release is seen through first."""
    intent = s.intent
    sent = intent is not None and (intent.state is not IntentState.PLANNED or bool(intent.doubted))
    seen_through = intent is not None and sent and isinstance(intent.act, Quarantine | Release)
    return {"closing": Phase.DISMISSED, "closing_why": why, **({} if seen_through else {"intent": ""})}


def _refusal(order: Order, why: str) -> str:
    return f"{order.by}: {order.verb}: not possible: {why}"


def _one_above(incident: Incident) -> Remedy:
    tried = max((t.rung.rank for t in incident.tries), default=0)
    higher = [r for r in Remedy if r.disrupts and r.rank > tried]
    return highest(incident.remedy, min(higher, key=lambda r: r.rank, default=Remedy.REPLACE))


def close(s: Sight, node: Node, policy: Policy) -> Decision:
    """Take our cordon back, and end when it is seen gone."""
    incident, intent = s.incident, s.intent
    event = "release" if incident.closing is Phase.RELEASED else "dismiss"
    because = incident.closing_why or ("proven well" if event == "release" else "by an operator")
    if event == "release" and not stands(incident, node):
        return _proof_gone(s, node)
    if not incident.phase.out:
        return Move(event, because)
    waits = on_its_way(s)
    if waits is not None:
        return waits
    releasing = intent is not None and isinstance(intent.act, Release)
    if intent is not None and releasing and intent.state is IntentState.SEEN:
        return Move(event, because)
    if intent is not None and not intent.state.over:
        if releasing or intent.state is IntentState.SENT or isinstance(intent.act, Quarantine):
            return Stay(Wait(because="waiting to see our cordon gone", until=intent.seen_by))
    elif event == "dismiss" and _removed_by_another(incident, node):
        return Move(event, because)
    elif intent is not None and releasing and (until := _refusal_stands(s, node, intent, policy)) is not None:
        return Stay(Wait(because=f"the cluster refused our release: {intent.answer}", until=until))
    elif releasing and incident.deadline is None:
        text = f"{node.id}: the cluster does not take our release: {intent.answer if intent else ''}"
        return remind(s, policy, "release_failed", text, "trying again to take our cordon back")
    elif releasing and not s.passed(incident.deadline):
        return Stay(Wait(because="trying again later to take our cordon back", until=incident.deadline))
    act = Release(node=node.id, owner=owner_of(incident))
    return Do(act, because, policy.pace.cordon_deadline, incident.cluster, also={"deadline": None})


def _refusal_stands(s: Sight, node: Node, intent: Intent, policy: Policy) -> Deadline | None:
    """Until when a refused release is not taken for granted: it may have met another boot, which a later read shows."""
    if intent.state is not IntentState.REJECTED or intent.not_before is None:
        return None
    until = later(intent.not_before, policy.pace.vacancy if away(node) else timedelta(0))
    return None if s.passed(until) else until


def _removed_by_another(incident: Incident, node: Node) -> bool:
    seen = incident.cordon_as_of is not None and node.as_of > incident.cordon_as_of
    return seen and owner_of(incident) not in node.cordons


def _proof_gone(s: Sight, node: Node) -> Decision:
    """It was rebooted or replaced after its check passed: proof before return, so it is checked again, cordoned."""
    incident, intent = s.incident, s.intent
    under_way = intent is not None and isinstance(intent.act, Release) and not intent.state.over
    if intent is not None and under_way and intent.state is not IntentState.PLANNED:
        return Stay(Wait(because="its proof is gone while its release is on its way", until=intent.seen_by))
    again: dict[str, object] = {"closing": None, "closing_why": "", "proof": None, "intent": "", "deadline": None}
    if owner_of(incident) in node.cordons:
        return Change("another boot than the one that passed the check", again)
    return Move("cordon", "another boot than the one that was released", {**again, "cordon_as_of": None})
