"""What operators ask of an incident, and how an incident ends."""

from sickbay.brain.decision import Change, Decision, Do, Move, Stay
from sickbay.brain.sight import Sight, owner_of, remind
from sickbay.model.fault import Remedy, highest
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, Order, Phase, Wait
from sickbay.model.intent import IntentState, Quarantine, Release
from sickbay.model.policy import Policy


def obey(s: Sight, order: Order) -> Decision:
    incident = s.incident
    because = f"{order.verb} by {order.by}: {order.reason}"
    rest: dict[str, object] = {"orders": incident.orders[1:]}
    done = f"{order.by}: {order.verb}: done"
    match order.verb:
        case "dismiss" | "uncordon":
            return Change(because, {**rest, "closing": Phase.DISMISSED}, answer=f"{done}: our cordon is taken back")
        case "cancel":  # the driver took its own word back, while the node was still in service
            return Move("dismiss", order.reason, rest)
        case "uncordoned":  # another removed our cordon on the cluster: there is nothing left to release
            return Move("dismiss", because, rest)
        case "hold" if incident.closing is not None:  # our cordon is on its way off: a new one must be asked for
            return Change(because, rest, answer=_refusal(order, "it is being closed"))
        case "hold" if incident.phase.out and incident.phase is not Phase.HELD:
            return Move("hold", because, rest, answer=done)
        case "hold":
            return Change(because, {**rest, "needs_human": True}, answer=f"{done}: a human decides before any repair")
        case "confirm" if incident.phase is Phase.HELD:
            return Move("verify", because, {**rest, "proof": None}, answer=done)
        case "escalate" if incident.phase is Phase.HELD:
            above = _one_above(incident)
            return Move("escalate", because, {**rest, "remedy": above, "least": above}, answer=done)
        case _:
            return Change(because, rest, answer=_refusal(order, f"it is {incident.phase}"))


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
    because = "proven well" if event == "release" else "by an operator"
    if not incident.phase.out:
        return Move(event, because)
    releasing = intent is not None and isinstance(intent.act, Release)
    if intent is not None and releasing and intent.state is IntentState.SEEN:
        return Move(event, because)
    if intent is not None and not intent.state.over:
        if releasing or intent.state is IntentState.SENT or isinstance(intent.act, Quarantine):
            return Stay(Wait(because="waiting to see our cordon gone", until=intent.seen_by))
    elif releasing and incident.deadline is None:
        text = f"{node.id}: the cluster does not take our release: {intent.answer if intent else ''}"
        return remind(s, policy, "release_failed", text, "trying again to take our cordon back")
    elif releasing and not s.passed(incident.deadline):
        return Stay(Wait(because="trying again later to take our cordon back", until=incident.deadline))
    act = Release(node=node.id, owner=owner_of(incident))
    return Do(act, because, policy.pace.cordon_deadline, incident.cluster, also={"deadline": None})
