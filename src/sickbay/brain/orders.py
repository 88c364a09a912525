"""What operators ask of an incident, and how an incident ends."""

from datetime import timedelta

from msgspec.structs import replace

from sickbay.brain.correlate import absorb
from sickbay.brain.decision import Change, Do, IncidentChanges, IncidentDecision, Move, OrderReply, Stay
from sickbay.brain.incident_input import IncidentInput, away, later, on_its_way, remind
from sickbay.brain.repair import occupied, stands
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.cordon import cordon_of
from sickbay.model.fault import NODE_LOST, WISH, Fault, Remedy, Scope, Severity, highest
from sickbay.model.fleet import Node
from sickbay.model.incident import ORDERS_MOST, Incident, IncidentKind, OperatorRequest, Phase, Verb, Wait
from sickbay.model.intent import Intent, IntentState, Quarantine, Release
from sickbay.model.order import OrderVerdict
from sickbay.model.policy import Policy

NODE_VERBS = {
    Verb.CORDON: Remedy.NONE,
    Verb.DRAIN: Remedy.NONE,
    Verb.RESET: Remedy.RESET_GPU,
    Verb.REBOOT: Remedy.REBOOT,
    Verb.REPLACE: Remedy.REPLACE,
}


OPERATOR_CORDON, OPERATOR_DRAIN = f"{WISH}{Verb.CORDON}", f"{WISH}{Verb.DRAIN}"  # codes of wishes


def wished(verb: Verb, by: str, reason: str) -> Fault:
    """A person's cordon, drain, reset, reboot or replace takes the same path as a fault's."""
    return Fault(
        code=f"{WISH}{verb}",
        component="node",
        severity=Severity.INFO,
        scope=Scope.NODE,
        remedy=NODE_VERBS[verb],
        because=f"{verb} by {by}: {reason}",
        needs_human=verb in {Verb.CORDON, Verb.DRAIN},
    )


BEFORE = {  # by the code of the wish
    OPERATOR_CORDON: "cordoned",
    OPERATOR_DRAIN: "drained",
    f"{WISH}{Verb.RESET}": "reset",
    f"{WISH}{Verb.REBOOT}": "rebooted",
    f"{WISH}{Verb.REPLACE}": "replaced",
}


def planned(incident: Incident) -> str:
    """What attempts may save before, in words: a person's wish for a machine that has shown nothing, and not at once.

    Empty: what they hold is failing under them, or nobody wants to wait. That its agent is silent, or its cluster does
    not see it, is nothing that fails under a job.
    """
    fault = incident.fault
    ill = not fault.is_wish and (fault.remedy.disrupts or fault.remedy is Remedy.RESTART_JOB)
    if incident.kind is not IncidentKind.OPERATOR or incident.now or incident.others or ill:
        return ""
    return _wished(incident)


def why_off(incident: Incident) -> str:
    """Why attempts leave the node, in words: a wish is nothing that its hardware shows."""
    fault = incident.fault
    return _wished(incident) if fault.is_wish else f"it runs on the hardware that shows {fault.code}"


def _wished(incident: Incident) -> str:
    return f"{incident.node} is {BEFORE.get(incident.fault.code, 'taken out of service')}"


def obey(s: IncidentInput, order: OperatorRequest) -> IncidentDecision:
    incident = s.incident
    because = f"{order.verb} by {order.by}: {order.reason}"
    rest: IncidentChanges = {"orders": incident.orders[1:]}
    # By a human, who is what it was held for.
    decided: IncidentChanges = {"ordered": True, "needs_human": False, "kept": False}
    match order.verb:
        case Verb.UNCORDON if _repairs_on(incident):
            back: IncidentChanges = {**rest, "cordoned": False, "kept": False}
            told = f"the cordon is taken back; {incident.remedy} goes on, and the node returns when its check passes"
            return Change(because, back, answer=OrderReply(OrderVerdict.DONE, told))
        case Verb.DISMISS | Verb.UNCORDON:
            return Change(because, {**rest, **_closing(s, "by an operator")}, answer=_taken("our cordon is taken back"))
        case Verb.CANCEL if incident.ordered:  # by a person, whatever the driver says
            return Change(because, rest)
        case Verb.CANCEL:  # the driver took its own word back, while the node was still in service
            return Move("dismiss", order.reason, rest)
        case Verb.UNCORDONED:  # another removed our cordon on the cluster: there is nothing left to release
            return Change(because, {**rest, **_closing(s, because)})
        case Verb.HOLD | Verb.CONFIRM | Verb.ESCALATE if incident.closing is not None:
            why = f"it is being closed; when that is over: sickbay cordon {incident.node}"
            return Change(because, rest, answer=_refused(why))  # our cordon is on its way off
        case Verb.HOLD if incident.phase is Phase.HELD:
            return Change(because, {**rest, "kept": True}, answer=OrderReply(OrderVerdict.DONE, "it is held already"))
        case Verb.HOLD if incident.phase.out:
            return Move("hold", because, {**rest, "kept": True}, answer=_taken("it is held"))
        case Verb.HOLD if incident.phase is Phase.WATCHED:
            why = f"it is WATCHED, and the node stays in service; to take it out: sickbay cordon {incident.node}"
            return Change(because, rest, answer=_refused(why))
        case Verb.HOLD:
            kept: IncidentChanges = {**rest, "needs_human": True, "kept": True}
            return Change(because, kept, answer=OrderReply(OrderVerdict.DONE, "a person decides before any repair"))
        case Verb.CONFIRM if incident.phase is Phase.HELD:
            event = _way_out(s, "verify")
            proof_next: IncidentChanges = {
                **rest,
                **decided,
                "proof": None,
                "to_verify": event != "verify",
                "cordoned": False,
            }
            return Move(event, because, proof_next, answer=_taken("it is checked, and returns if it passes"))
        case Verb.ESCALATE if incident.phase is Phase.HELD:
            above = _one_above(incident)
            raised: IncidentChanges = {
                **rest,
                **decided,
                **_anew(s, above),
                "remedy": above,
                "least": above,
                "to_verify": False,
                "cordoned": stays_cordoned(incident),
                "kept": stays_cordoned(incident),
            }
            return Move(_way_out(s, "escalate"), because, raised, answer=_taken(f"{above} is next", above))
        case _ if order.verb in NODE_VERBS:
            return _wish(s, order, rest, {**decided, "to_verify": False})
        case _:
            return Change(because, rest, answer=_refused(only_held(incident)))


def only_held(incident: Incident) -> str:
    """Why confirm and escalate are refused where nothing is held, and what works instead."""
    instead = f"sickbay hold {incident.id} first" if incident.phase.out else f"sickbay cordon {incident.node} first"
    return f"it is {incident.phase}, and this is for what is HELD: {instead}"


def stays_cordoned(incident: Incident) -> bool:
    """Whether a person wants the node out beyond its repair: his cordon or drain stays until his word."""
    return incident.cordoned or incident.fault.code in {OPERATOR_CORDON, OPERATOR_DRAIN}


def _repairs_on(incident: Incident) -> bool:
    """Whether a repair that a person asked for of the node that he has cordoned is still to be done."""
    wanted = incident.ordered and incident.remedy.disrupts and not incident.needs_human
    open_phase = incident.phase in {Phase.SUSPECT, Phase.QUARANTINED, Phase.DRAINING, Phase.DRAINED, Phase.REPAIRING}
    on = open_phase or incident.phase is Phase.VERIFYING
    return incident.closing is None and stays_cordoned(incident) and wanted and on


def _anew(s: IncidentInput, rung: Remedy) -> IncidentChanges:
    """A person's order for what was held: the ladder begins anew, with what he asks for, however often it was tried."""
    tried = any(t.rung.rank >= rung.rank for t in s.incident.tries[s.incident.spent :])
    return {"spent": len(s.incident.tries), "healed": None, "proof": None} if tried or s.incident.healed else {}


def _wish(
    s: IncidentInput, order: OperatorRequest, rest: IncidentChanges, decided: IncidentChanges
) -> IncidentDecision:
    """What a person asks of a node that is treated already raises what is done, it never lowers it."""
    incident, wish = s.incident, wished(order.verb, order.by, order.reason)
    because, repair = wish.because, wish.remedy.disrupts
    if incident.closing is not None and len(incident.later) >= ORDERS_MOST:
        return Change(because, rest, answer=_refused(f"{len(incident.later)} orders wait already"))
    if incident.closing is not None:
        queued: IncidentChanges = {**rest, "later": (*incident.later, order)}
        told = f"{incident.id} is being closed: it begins when that is over"
        return Change(because, queued, answer=OrderReply(OrderVerdict.WAITS, told))
    held = incident.phase is Phase.HELD
    if repair and not held and incident.rung is not None and wish.remedy.rank <= incident.rung.rank:
        return Change(because, rest, answer=_refused(_made(incident, order)))
    also: IncidentChanges = {**rest, **_raised(incident, wish), "now": incident.now or order.now}
    if not incident.fault.is_wish and worse(incident) not in incident.told:
        also["told"] = (*incident.told, worse(incident))  # whoever orders something of a sick node knows what it shows
    rung = also["remedy"] if repair and "remedy" in also else incident.remedy if repair else None
    taken = _taken(f"{rung} is next" if rung is not None else "our cordon stays until a person takes it back", rung)
    match incident.phase:
        case Phase.HELD if repair:
            lead = wish.remedy  # of a held node a person's own word counts, also below what was tried before
            stays = stays_cordoned(incident)
            anew: IncidentChanges = {**also, **decided, **_anew(s, lead), "remedy": lead}
            anew |= {"kind": IncidentKind.OPERATOR, "cordoned": stays, "kept": stays}
            return Move(_way_out(s, "escalate"), because, anew, answer=_taken(f"{lead} is next", lead))
        case Phase.HELD if order.verb is Verb.DRAIN and s.node is not None and occupied(s, s.node):
            return Move(_way_out(s, "drain"), because, also, answer=taken)
        case Phase.HELD:
            how = "it is held, and nothing runs there" if order.verb is Verb.DRAIN else "it is held already"
            also_now: IncidentChanges = {**rest, "kept": True, "cordoned": True}
            return Change(because, also_now, answer=_taken(how))
        case Phase.VERIFYING if repair:
            return Move("fail", because, {**also, "proof": None}, answer=taken)
        case Phase.REPAIRING if repair:  # what is under way is seen through: its end counts as not enough
            later = _taken(f"{rung} is done after the {incident.rung} that is under way", rung)
            return Change(because, {**also, "relapse": because}, answer=later)
        case _:
            return Change(because, also, answer=taken)


def worse(incident: Incident) -> str:
    """Under which key it is told that a node which is held by a person's wish shows this fault as well."""
    return f"worse:{incident.fault.code}"


def _made(incident: Incident, order: OperatorRequest) -> str:
    """Why the same repair, or less, is not done again now, and what works instead."""
    if incident.phase is Phase.REPAIRING:
        return f"{incident.rung} is under way for {incident.id} already"
    if incident.phase is Phase.VERIFYING:
        return f"{incident.rung} was done for {incident.id}, and its check is running: sickbay hold {incident.id} first"
    return (
        f"{incident.rung} was done for {incident.id} already: sickbay hold {incident.id} first, then {order.verb} again"
    )


def _raised(incident: Incident, wish: Fault) -> IncidentChanges:
    repair = wish.remedy.disrupts
    # A cordon besides a repair that a person wants keeps the node out after it, and does not keep it from being done.
    besides = not repair and _wants_repair(incident)
    # Whoever asks for a repair has decided; whoever asks for the node wants to.
    raised: IncidentChanges = {
        "needs_human": not besides and (wish.needs_human or (incident.needs_human and not repair)),
        "least": highest(incident.least, wish.remedy),
        "ordered": True,
        "cordoned": not repair or stays_cordoned(incident),
        "kept": not repair or stays_cordoned(incident),
    }
    watched = not incident.remedy.disrupts and incident.kind is IncidentKind.FAULT
    if watched:  # what a person asks for takes its place
        raised |= {"remedy": wish.remedy, "fault": wish, "kind": IncidentKind.OPERATOR, "deadline": None}
    elif wish.remedy.rank > incident.remedy.rank:
        leads = wish if incident.fault.is_wish else replace(incident.fault, scope=Scope.NODE)
        raised |= {"remedy": wish.remedy, "fault": leads, "kind": IncidentKind.OPERATOR}
    elif wish.code == OPERATOR_DRAIN and incident.fault.code == OPERATOR_CORDON:  # what runs there may stay no more
        raised |= {"fault": wish}
    return raised


def _wants_repair(incident: Incident) -> bool:
    """Whether a person has asked for a repair that is not done yet."""
    asked = incident.remedy.disrupts and (incident.fault.is_wish or incident.ordered)
    return asked and not incident.needs_human and incident.phase is not Phase.HELD


def _way_out(s: IncidentInput, event: str) -> str:
    """Out of HELD by way of what is missing: our cordon first, then an empty node, then what the operator wants."""
    if s.node is None or cordon_of(s.incident.id) not in s.node.cordons:
        return "quarantine"
    return "drain" if event == "verify" and occupied(s, s.node) else event


def _closing(s: IncidentInput, why: str) -> IncidentChanges:
    """Dismissed by a person. What is under way is let go; a cordon or a release is seen through first."""
    intent = s.intent
    sent = intent is not None and (intent.state is not IntentState.PLANNED or bool(intent.doubted))
    seen_through = intent is not None and sent and isinstance(intent.act, Quarantine | Release)
    return {"closing": Phase.DISMISSED, "closing_why": why, **({} if seen_through else {"intent": ""})}


def begun(verb: Verb) -> OrderReply:
    """To the order that an incident begins with."""
    wish = NODE_VERBS[verb]
    return _taken(f"{wish} is next", wish) if wish.disrupts else _taken("our cordon stays until a person takes it back")


def _refused(why: str) -> OrderReply:
    return OrderReply(OrderVerdict.REFUSED, why)


def _taken(what: str, rung: Remedy | None = None) -> OrderReply:
    """Taken up: what comes of it is read off the incident."""
    return OrderReply(OrderVerdict.UNDER_WAY, what, rung)


def _one_above(incident: Incident) -> Remedy:
    tried = max((t.rung.rank for t in incident.tries), default=0)
    higher = [r for r in Remedy if r.disrupts and r.rank > tried]
    return highest(incident.remedy, min(higher, key=lambda r: r.rank, default=Remedy.REPLACE))


def close(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
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
    elif event == "dismiss" and intent is not None and releasing and intent.expect is not None:
        pass  # it was meant for one boot, before a person vouched for whoever is there: asked for anew without that
    elif intent is not None and releasing and (until := _refusal_stands(s, node, intent, policy)) is not None:
        return Stay(Wait(because=f"the cluster refused our release: {intent.answer}", until=until))
    elif releasing and (incident.deadline is None or s.passed(incident.deadline)):
        text = f"{node.id}: the cluster does not take our release: {intent.answer if intent else ''}"
        return remind(s, policy, "release_failed", text, "trying again to take our cordon back")
    elif releasing and s.retry_at is not None and not s.passed(s.retry_at):
        return Stay(Wait(because="trying again to take our cordon back", until=s.retry_at))
    if event == "release" and releasing and (sequel := _sick_again(incident, node)) is not None:
        return _keep_out(s, node, policy, sequel)
    act = Release(node=node.id, owner=cordon_of(incident.id))
    # The deadline is the next reminder's. A release takes nothing from anybody: it is not put off for as long as that.
    also: IncidentChanges = {} if releasing else {"deadline": None}
    return Do(act, because, policy.pace.cordon_deadline, incident.cluster, also=also)


_CLOSED_NO_MORE: IncidentChanges = {"closing": None, "closing_why": "", "proof": None, "intent": "", "deadline": None}


def _refusal_stands(s: IncidentInput, node: Node, intent: Intent, policy: Policy) -> Deadline | None:
    """Until when a refused release is not taken for granted: it may have met another boot, which a later read shows."""
    if intent.state is not IntentState.REJECTED or intent.not_before is None:
        return None
    until = later(intent.not_before, policy.pace.vacancy if away(node) else timedelta(0))
    return None if s.passed(until) else until


def _sick_again(incident: Incident, node: Node) -> Fault | None:
    """What the node has shown since its check passed, and still asks for its repair."""
    fault = incident.sequel
    if fault is None or not fault.remedy.disrupts or fault.is_wish:
        return None
    heard_again = fault.code == NODE_LOST and not node.lost
    return fault if cordon_of(incident.id) in node.cordons and not heard_again else None


def _keep_out(s: IncidentInput, node: Node, policy: Policy, fault: Fault) -> IncidentDecision:
    """Its release was not taken, and the node fell ill meanwhile: our cordon stays, and the incident goes on."""
    reading = s.readings.get(INGEST, 0.0)
    ill = absorb(replace(s.incident, closing=None, sequel=None), fault, node, policy, reading)
    return Change(
        f"{fault.code} before it was released",
        {
            "fault": ill.fault,
            "remedy": ill.remedy,
            "least": ill.least,
            "evidence": ill.evidence,
            "seen_at": ill.seen_at,
            "shown_at": ill.shown_at,
            "beside": ill.beside,
            "wide": ill.wide,
            "others": ill.others,
            "needs_human": ill.needs_human,
            "relapse": ill.relapse,
            **_CLOSED_NO_MORE,
            "sequel": None,
        },
    )


def _removed_by_another(incident: Incident, node: Node) -> bool:
    seen = incident.cordon_as_of is not None and node.as_of > incident.cordon_as_of
    return seen and cordon_of(incident.id) not in node.cordons


def _proof_gone(s: IncidentInput, node: Node) -> IncidentDecision:
    """It was rebooted or replaced after its check passed: proof before return, so it is checked again, cordoned."""
    incident, intent = s.incident, s.intent
    under_way = intent is not None and isinstance(intent.act, Release) and not intent.state.over
    if intent is not None and under_way and intent.state is not IntentState.PLANNED:
        return Stay(Wait(because="its proof is gone while its release is on its way", until=intent.seen_by))
    if cordon_of(incident.id) in node.cordons:
        return Change("another boot than the one that passed the check", _CLOSED_NO_MORE)
    return Move("cordon", "another boot than the one that was released", {**_CLOSED_NO_MORE, "cordon_as_of": None})
