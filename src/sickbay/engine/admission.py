"""Asking for admission, and what follows when it is deferred."""

from datetime import datetime

from msgspec.structs import replace

from sickbay.brain.admit import Asked, Deferred, Fleet, admit, brake_scopes
from sickbay.brain.decision import Do, Tell
from sickbay.engine.seats import ledger_now
from sickbay.engine.steps import notify, step_incident, write_down
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import NODE_LOST, Remedy, signature
from sickbay.model.fleet import Brake, Node, Withholding
from sickbay.model.incident import Incident, IncidentKind, Phase, Wait
from sickbay.model.intent import (
    Drain,
    Intent,
    IntentState,
    Look,
    Notify,
    Quarantine,
    Repair,
)
from sickbay.model.policy import BrakeRule
from sickbay.model.rows import WITHHOLDING, key_of

CORDONS_ASKED = 12  # acts of an incident that are looked at; one that has made more is as good as cordoned


def asked_for(act: object) -> Asked | None:
    match act:
        case Quarantine():
            return Asked.QUARANTINE
        case Drain():
            return Asked.DRAIN
        case Repair(rung=Remedy.RESTART_SERVICE):
            return Asked.RESTART_SERVICE
        case Repair():
            return Asked.REPAIR
        case _:
            return None


def ask(draft: Draft, asked: Asked, incident: Incident, node: Node) -> Deferred | None:
    brakes: list[tuple[BrakeRule, Brake]] = []
    if incident.kind is IncidentKind.FAULT:
        for rule, scope in brake_scopes(incident, node, draft.rules.policy):
            brake = draft.read(Brake, f"brake:{scope}:{signature(incident.fault)}")
            if brake is not None:
                brakes.append((rule, brake))
    fleet = Fleet(
        ledger=ledger_now(draft, incident),
        brakes=tuple(brakes),
        withholding=draft.read(Withholding, WITHHOLDING) or Withholding(),
        now=draft.now,
    )
    return admit(asked, incident, node, fleet, draft.rules.policy)


def deferred(
    draft: Draft, asked: Asked, incident: Incident, node: Node, refused: Deferred
) -> tuple[Incident, Wait | None]:
    if node.excused != refused.excused:
        draft.put(replace(node, excused=refused.excused))
    if asked is Asked.QUARANTINE and incident.phase is Phase.QUARANTINED and not cordon_may_come(draft, incident):
        # It is in service: as a seat that is out it would count against others who wait for the same limit.
        return step_incident(draft, incident, "defer", refused.because, {}), None
    if refused.confirm is not None:
        return _confirm(draft, incident, node, refused.confirm)
    if incident.phase in {Phase.QUARANTINED, Phase.DRAINING}:  # while we hold back, its time does not run out
        incident = replace(incident, deadline=None)
        draft.put(incident)
    until, would = _by_wall(draft, refused.until), asked.value
    shown_as = f"would have: {would}" if refused.withheld else ""
    wait = Wait(because=refused.because, until=until, would=shown_as)
    if incident.wait is None or incident.wait.because != wait.because:
        draft.tell(f"waits ({would}): {refused.because}", key_of(incident), key_of(node), event="deferred")
    if refused.tell:
        text = f"{node.id}: {incident.fault.code} waits ({shown_as or would}): {refused.because}"
        notice = Notify(event=refused.tell, subject=key_of(incident), text=text)
        incident = told_of(draft, incident, Tell(notice, refused.tell))
    return incident, wait


def cordon_may_come(draft: Draft, incident: Incident) -> bool:
    """Whether our cordon is there, or a sending of one may have taken effect."""
    if incident.cordon_as_of is not None or incident.acts > CORDONS_ASKED:
        return True
    keys = (f"intent:{incident.id}.{number}" for number in range(1, incident.acts + 1))
    asked = (draft.read(Intent, key, watch=False) for key in keys)
    return any(
        intent is not None
        and isinstance(intent.act, Quarantine)
        and bool(intent.sent_at)
        and intent.state is not IntentState.REJECTED
        for intent in asked
    )


def _by_wall(draft: Draft, until: datetime | None) -> Deadline:
    """When to judge afresh: at the end of what withholds, or at the next reminder."""
    reminder = draft.rules.policy.pace.held_reminder.total_seconds()
    ahead = reminder if until is None else min(reminder, max(1.0, (until - draft.now).total_seconds()))
    return Deadline(clock=INGEST, at=draft.reading(INGEST) + ahead)


def _confirm(draft: Draft, incident: Incident, node: Node, brake: Brake) -> tuple[Incident, Wait | None]:
    """After a brake a fresh look must confirm each suspect, at a rate; the backlog is never replayed."""
    reading = draft.reading(INGEST)
    intent = draft.intent(incident.intent)
    looking = intent is not None and isinstance(intent.act, Look)
    if intent is not None and looking and not intent.state.over:
        return incident, Wait(because="a fresh look must confirm it", until=intent.seen_by)
    if incident.fault.code != NODE_LOST and intent is not None and looking and intent.state is IntentState.SEEN:
        return step_incident(draft, incident, "dismiss", "a fresh look did not confirm it", {}), None
    if incident.deadline is None:
        pace = draft.read(Brake, f"brake:pace/{brake.scope}:{brake.signature}", watch=False)
        slot = max(reading, pace.next_look if pace else 0.0)
        every = max((r.confirm_every for r in draft.rules.policy.brakes), default=None)
        step = every.total_seconds() if every else 30.0
        draft.put(Brake(scope=f"pace/{brake.scope}", signature=brake.signature, next_look=slot + step))
        incident = replace(incident, deadline=Deadline(clock=INGEST, at=slot))
        draft.put(incident)
    if incident.deadline is not None and not incident.deadline.passed(draft.readings):
        return incident, Wait(because="its turn for a fresh look will come", until=incident.deadline)
    if incident.fault.code == NODE_LOST:  # nobody is there to look: that it is still lost confirms it
        changed = replace(incident, seen_at=reading, deadline=None)
        draft.put(changed)
        return changed, None
    patience = draft.rules.policy.resume.look_deadline
    look = Do(Look(nodes=(node.id,)), "a fresh look must confirm it", patience, INGEST)
    written, number = write_down(draft, incident, look)
    changed = replace(incident, intent=written.key, acts=number, deadline=None)
    draft.put(changed)
    return changed, None


def told_of(draft: Draft, incident: Incident, tell: Tell | None) -> Incident:
    if tell is None:
        return incident
    told = notify(draft, incident, tell)
    if told == incident.told:
        return incident
    changed = replace(incident, told=told)
    draft.put(changed)
    return changed
