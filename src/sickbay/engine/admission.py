"""Asking for admission, and what follows when it is deferred."""

import dataclasses

from msgspec.structs import replace

from sickbay.brain.admit import AdmissionInput, AdmissionStage, Confirm, Deferred, admit, brake_scopes
from sickbay.brain.correlate import lead
from sickbay.brain.decision import Tell
from sickbay.engine.notices import told_of
from sickbay.engine.seats import ledger_now
from sickbay.engine.transitions import step_incident
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import Remedy, signature
from sickbay.model.fleet import Brake, ConfirmPace, Flipped, Node, Withholding
from sickbay.model.incident import Doubt, Incident, IncidentKind, Phase, Wait, treatment
from sickbay.model.intent import (
    Drain,
    Intent,
    IntentState,
    Notify,
    Quarantine,
    Repair,
)
from sickbay.model.policy import BrakeRule
from sickbay.model.rows import AUDIT, WITHHOLDING, key_of

CORDONS_ASKED = 12  # acts of an incident that are looked at; one that has made more is as good as cordoned


NOT_YET = {
    AdmissionStage.QUARANTINE: "the node is not taken out of service",
    AdmissionStage.CALL: "its jobs are not stopped",
    AdmissionStage.DRAIN: "its work is not moved off",
    AdmissionStage.REPAIR: "its repair waits",
    AdmissionStage.RESTART_SERVICE: "its agent is not restarted",
}


def asked_for(act: object) -> AdmissionStage | None:
    match act:
        case Quarantine():
            return AdmissionStage.QUARANTINE
        case Drain():
            return AdmissionStage.DRAIN
        case Repair(rung=Remedy.RESTART_SERVICE):
            return AdmissionStage.RESTART_SERVICE
        case Repair():
            return AdmissionStage.REPAIR
        case _:
            return None


def ask(draft: Draft, asked: AdmissionStage, incident: Incident, node: Node) -> Deferred | None:
    brakes: list[tuple[BrakeRule, Brake]] = []
    if incident.kind is IncidentKind.FAULT:
        for rule, scope in brake_scopes(incident, node, draft.rules.policy):
            name = f"{scope}:{signature(incident.fault)}"
            draft.read(Flipped, f"flipped:{name}")
            brake = draft.read(Brake, f"brake:{name}", watch=False)
            if brake is not None:
                brakes.append((rule, brake))
    fleet = AdmissionInput(
        ledger=ledger_now(draft, incident),
        brakes=tuple(brakes),
        withholding=draft.read(Withholding, WITHHOLDING) or Withholding(),
        now=draft.now,
        reading=draft.reading(INGEST),
    )
    return admit(asked, incident, node, fleet, draft.rules.policy)


def ask_for_each(
    draft: Draft, asked: AdmissionStage, incident: Incident, node: Node
) -> tuple[Incident, Deferred | None]:
    """What is excused is the leading fault, or a person's wish. Another one on the node is asked for by itself.

    The first that is admitted leads from then on; the node is excused only while all of them are.
    """
    excuse = ask(draft, asked, incident, node)
    if excuse is None or not excuse.excused:
        return incident, excuse
    held: Deferred | None = None
    for other in incident.others:
        led = lead(incident, other, incident.seen_at)
        alone = replace(led, kind=IncidentKind.FAULT, ordered=False, doubt=incident.doubt)
        own = ask(draft, asked, alone, node)
        if own is None:
            because = f"{other.code} leads now: it is not what waits ({excuse.because})"
            draft.tell(because, key_of(incident), key_of(node), event="joined")
            draft.put(led)
            return led, None
        if not own.excused and held is None:
            held = _of_another(excuse, own, incident)
    if held is None:
        return incident, excuse
    if held.doubts and incident.doubt is not None and incident.seen_at > incident.doubt.since:
        incident = replace(incident, doubt=Doubt(since=draft.reading(INGEST)))
        draft.put(incident)
    return incident, held


def _of_another(excuse: Deferred, own: Deferred, incident: Incident) -> Deferred:
    """What holds another fault back, judged afresh with the leading one; no check of it clears a person's wish."""
    ends = [until for until in (excuse.until, own.until) if until is not None]
    confirm = own.confirm if incident.kind is IncidentKind.FAULT else None
    return dataclasses.replace(own, until=min(ends, default=None), confirm=confirm)


def deferred(
    draft: Draft, asked: AdmissionStage, incident: Incident, node: Node, refused: Deferred
) -> tuple[Incident, Wait | None]:
    if node.excused != refused.excused:
        draft.put(replace(node, excused=refused.excused))
    if (
        asked is AdmissionStage.QUARANTINE
        and incident.phase is Phase.QUARANTINED
        and not cordon_may_come(draft, incident, node)
    ):
        # It is in service: as a seat that is out it would count against others who wait for the same limit.
        return step_incident(draft, incident, "defer", refused.because, {}), None
    if asked is AdmissionStage.QUARANTINE and incident.phase.out and not incident.serves:
        # So is this one; counted as out, two of them would wait for each other.
        incident = replace(incident, serves=True)
        draft.put(incident)
    if refused.doubts:
        incident = doubted(draft, incident)
    if incident.phase in {Phase.QUARANTINED, Phase.DRAINING}:  # while we hold back, its time does not run out
        incident = replace(incident, deadline=None)
        draft.put(incident)
    until = _by_wall(draft, refused)
    shown_as = treatment(incident) if refused.withheld else ""
    held_back = f"{NOT_YET[asked]}: {refused.because}"
    wait = Wait(
        because=refused.because,
        until=until,
        would=shown_as,
        room=refused.room,
        ends=refused.ends,
        then=refused.then,
        opens=refused.until,
    )
    if asked is AdmissionStage.QUARANTINE and incident.phase.out:
        draft.ledger(incident.pool)  # it is counted already, and waits for others to come back rather than for room
    if incident.wait is None or incident.wait.because != wait.because:
        person = (AUDIT,) if incident.ordered or incident.kind is IncidentKind.OPERATOR else ()
        draft.tell(held_back, key_of(incident), key_of(node), *person, event="deferred")
    if refused.tell:
        else_done = f"; else Sickbay would {shown_as}" if shown_as else ""
        text = f"{node.id} shows {incident.fault.code}: {held_back}{else_done}"
        notice = Notify(event=refused.tell, subject=key_of(incident), text=text)
        incident = told_of(draft, incident, Tell(notice, refused.tell))
    return incident, wait


def cordon_may_come(draft: Draft, incident: Incident, node: Node) -> bool:
    """Whether our cordon is there, or a sending of one may have taken effect on whoever holds the seat now."""
    if incident.cordon_as_of is not None or incident.acts > CORDONS_ASKED:
        return True
    keys = (f"intent:{incident.id}.{number}" for number in range(1, incident.acts + 1))
    asked = (draft.read(Intent, key, watch=False) for key in keys)
    return any(
        intent is not None
        and isinstance(intent.act, Quarantine)
        and bool(intent.sent_at)
        and intent.state is not IntentState.REJECTED
        and (intent.expect is None or intent.expect.agrees(node.incarnation))
        for intent in asked
    )


def _by_wall(draft: Draft, refused: Deferred) -> Deadline:
    """When to judge afresh: at the end of what withholds, or at the next reminder."""
    reading, ahead = draft.reading(INGEST), draft.rules.policy.pace.held_reminder.total_seconds()
    if refused.until is not None:
        ahead = min(ahead, max(1.0, (refused.until - draft.now).total_seconds()))
    if refused.off_at is not None:
        ahead = min(ahead, max(1.0, refused.off_at - reading))
    return Deadline(clock=INGEST, at=reading + ahead)


def doubted(draft: Draft, incident: Incident) -> Incident:
    """A suspect that is withheld, with the moment from which only new evidence of its fault confirms it."""
    suspect = incident.phase is Phase.SUSPECT and incident.kind is IncidentKind.FAULT
    if not suspect or (incident.doubt is not None and incident.shown_at <= incident.doubt.since):
        return incident
    changed = replace(incident, doubt=Doubt(since=draft.reading(INGEST)), intent="")
    draft.put(changed)
    return changed


def take_turn(draft: Draft, confirm: Confirm) -> Deadline:
    """When the next check may begin: suspects of one brake are checked one after the other."""
    pace = ConfirmPace(scope=confirm.scope, signature=confirm.signature, next_check=0.0)
    pace = draft.read(ConfirmPace, key_of(pace), watch=False) or pace
    turn = max(draft.reading(INGEST), pace.next_check)
    draft.put(replace(pace, scope=confirm.scope, next_check=turn + confirm.every.total_seconds()))
    return Deadline(clock=INGEST, at=turn)
