"""Planning an incident: decide, ask whether it is admitted, until there is something to wait for."""

from datetime import timedelta
from functools import partial

from msgspec.structs import replace

from sickbay.brain.admit import AdmissionStage, Confirm
from sickbay.brain.decide import decide
from sickbay.brain.decision import Change, Do, IncidentChanges, IncidentDecision, Move, OrderReply, Stay
from sickbay.brain.doubt import confirm
from sickbay.brain.incident_input import IncidentInput, attempts_on, has_called
from sickbay.brain.orders import begun, wished
from sickbay.engine import patrol
from sickbay.engine.admission import ask_for_each, asked_for, deferred, take_turn
from sickbay.engine.apply_faults import open_incident
from sickbay.engine.notices import told_of
from sickbay.engine.order_records import answer, goes_to, refuse
from sickbay.engine.resting import come_to_rest
from sickbay.engine.transitions import step_incident, subjects_of, tried, write_down
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST
from sickbay.model.fleet import IncidentId, JobId, Ledger, Node, Record
from sickbay.model.incident import Doubt, Incident, IncidentKind, OperatorRequest, Phase, Wait
from sickbay.model.intent import Intent, Quarantine, Repair
from sickbay.model.job import Call
from sickbay.model.policy import Trigger
from sickbay.model.rows import key_of

AT_ONCE = 10  # jobs that one decision reads and asks
KEEP_JOBS = 500  # that an incident names


def plan_incident(draft: Draft, subject: str) -> None:
    come_to_rest(draft, subject, Incident, partial(_decide_once, draft))
    ended = draft.peek(Incident, subject)
    if ended is not None and not ended.open and ended.orders:
        for order in ended.orders:
            refuse(draft, order.id, order.by, order.verb, f"it is {ended.phase}", key_of(ended))
        ended = replace(ended, orders=())
        draft.put(ended)
    if ended is not None and not ended.open and (ended.sequel is not None or ended.later):
        _go_on(draft, ended)


def _go_on(draft: Draft, ended: Incident) -> None:
    """What was seen, or asked for, while an incident closed is not over with it: the node goes into the next one."""
    draft.put(replace(ended, sequel=None, later=()))
    node, fault, orders = draft.node(ended.node), ended.sequel, ended.later
    if node is None or node.incident is not None or node.incarnation is None:
        for order in orders:
            refuse(draft, order.id, order.by, order.verb, f"{ended.node} is {ended.phase}", key_of(ended))
        return
    if fault is not None and not node.incarnation.same_boot(ended.incarnation):
        fault = None
    name = f"{ended.id}.2"
    first: OperatorRequest | None = None
    if fault is not None:
        open_incident(draft, None, node, fault, IncidentKind.FAULT, name=name)
    elif orders:
        first, orders = orders[0], orders[1:]
        wish = wished(first.verb, first.by, first.reason)
        open_incident(draft, None, node, wish, IncidentKind.OPERATOR, name=name, now=first.now)
    opened = draft.incident(IncidentId(name))
    if opened is None:
        return
    draft.put(replace(opened, orders=orders))
    for order in ended.later:
        goes_to(draft, order.id, incident=opened.id)
    if first is not None:
        answer(draft, first.id, first.by, first.verb, begun(first.verb), key_of(opened))


def _decide_once(draft: Draft, incident: Incident) -> tuple[Incident, Wait | None]:
    sight = _sight(draft, incident)
    if incident.astray and not any(isinstance(intent.act, Repair) for intent in sight.loose):
        incident = replace(incident, astray=False)
        draft.put(incident)
        sight = _sight(draft, incident)
    return _take(draft, incident, sight, decide(sight, draft.rules.policy))


def _sight(draft: Draft, incident: Incident) -> IncidentInput:
    node = draft.node(incident.node)
    # Those that are not asked yet first: many jobs may run on one node, and a unit has room for few.
    holders = sorted(draft.holders(node), key=partial(has_called, incident)) if node is not None else []
    for job in holders[:AT_ONCE]:
        draft.job(job.id)  # from here on its row is read, expected and watched
    if node is not None and node.claimable and incident.phase is not Phase.WATCHED:
        # Claims come with its version. Elsewhere nobody can claim the node, or a newcomer is none of its business.
        # It is not waited on: whoever claims the node meanwhile is seen when its fault is not excused any more.
        draft.read(Ledger, f"ledger:{node.pool}", watch=False)
    shown = draft.now - timedelta(seconds=draft.reading(INGEST) - incident.seen_at)
    past = []
    for subject in _histories(incident, node):
        record = draft.read(Record, f"record:{subject}", watch=False)
        past += [p for p in (record.past if record else ()) if p not in past]
    return IncidentInput(
        incident=incident,
        node=node,
        intent=draft.intent(incident.intent),
        loose=_loose(draft, incident, node),
        **attempts_on(incident.node, incident, holders, shown),
        past=tuple(sorted(past, key=lambda p: p.at)),
        readings=draft.readings,
        can=draft.can(incident.cluster, incident.pool),
        blind=draft.rules.blind_in(incident.cluster, incident.pool),
        present=draft.present,
    )


def _loose(draft: Draft, incident: Incident, node: Node | None) -> tuple[Intent, ...]:
    """What it has let go of and may still hit whoever holds the seat: another holder or boot refuses it."""
    intents = [draft.intent(key) for key in incident.loose]
    holder = node.incarnation if node is not None else None
    return tuple(
        intent
        for intent in intents
        if intent is not None and not intent.state.over and (intent.expect is None or intent.expect.agrees(holder))
    )


def _histories(incident: Incident, node: Node | None) -> list[str]:
    return subjects_of(incident.incarnation, node, incident.fault.device)


def _take(
    draft: Draft, incident: Incident, sight: IncidentInput, decision: IncidentDecision
) -> tuple[Incident, Wait | None]:
    node = sight.node
    match decision:
        case Move(event=event, because=because, also=also, tell=tell, answer=said):
            _answer(draft, incident, said)
            moved = step_incident(draft, incident, event, because, also)
            if moved.phase is Phase.WATCHED and node is not None:
                patrol.wake(draft, node, Trigger.FAULT)
            return told_of(draft, moved, tell), None
        case Change(because=because, also=also, tell=tell, call=call, before=before, answer=said):
            _answer(draft, incident, said)
            if call and node is not None:
                incident, refused = ask_for_each(draft, AdmissionStage.CALL, incident, node)
                if refused is not None:
                    return deferred(draft, AdmissionStage.CALL, incident, node, refused)
                before = "" if node.lost else before
                incident = _call(draft, incident, call, because, lost=node.lost, before=before)
            changed = replace(incident, **also)
            draft.put(changed)
            return told_of(draft, changed, tell), None
        case Do(act=act, event=event, also=also, because=because):
            asked = asked_for(act)
            if asked is not None and node is not None:
                led = incident.fault.code
                incident, refused = ask_for_each(draft, asked, incident, node)
                if incident.fault.code != led:
                    return incident, None  # decided anew for what leads now
                if refused is not None and refused.confirm is not None:
                    return _confirm(draft, sight, node, refused.confirm)
                if refused is not None:
                    return deferred(draft, asked, incident, node, refused)
                if node.excused:  # the exclusion that covered it is over
                    draft.put(replace(node, excused=False))
            intent, number = write_down(draft, incident, decision)
            more: IncidentChanges = {**also, "intent": intent.key, "acts": number, "digest": draft.rules.digest}
            if isinstance(act, Quarantine):
                more["serves"] = False
            if isinstance(act, Repair):
                more["tries"] = tried(incident, act.rung, draft.now)
            if event:
                return step_incident(draft, incident, event, because, more), None
            changed = replace(incident, **more)
            draft.put(changed)
            return changed, None
        case Stay(wait=wait, tell=tell):
            return told_of(draft, incident, tell), wait


def _answer(draft: Draft, incident: Incident, said: OrderReply | None) -> None:
    """To whoever gave the order that is first in the queue."""
    if said is not None:
        order = incident.orders[0]
        answer(draft, order.id, order.by, order.verb, said, key_of(incident))


def _confirm(draft: Draft, sight: IncidentInput, node: Node, needed: Confirm) -> tuple[Incident, Wait | None]:
    """A suspect that was withheld: what confirms or clears it is a decision like any other."""
    incident = sight.incident
    if node.excused:
        draft.put(replace(node, excused=False))
    doubt = incident.doubt or Doubt(since=needed.since)
    decision = confirm(sight, node, doubt, draft.rules.policy)
    if decision is not None:
        return _take(draft, incident, sight, decision)
    changed = replace(incident, doubt=replace(doubt, turn=take_turn(draft, needed)))
    draft.put(changed)
    return changed, None


def _call(
    draft: Draft, incident: Incident, jobs: tuple[JobId, ...], because: str, *, lost: bool, before: str
) -> Incident:
    """Ask attempts to end, at once or once they have saved. Only `resume` stops them."""
    some = jobs[:AT_ONCE]  # the next decision sees who is left
    for job_id in some:
        job = draft.job(job_id)
        if job is None:
            continue
        call = Call(
            because=f"{incident.fault.code} on {incident.node}",
            incident=incident.id,
            node=incident.node,
            lost=lost,
            dated=None if before else incident.opened_at,  # until it is stopped it loses nothing
            before=before,
        )
        again = has_called(incident, job)
        draft.put(job.called(call) if before else job.pressed(call))
        at_once = " at once" if again else ""
        draft.tell(f"asks {job_id} to stop{at_once}: {because}", key_of(incident), key_of(job), event="call")
    return replace(incident, jobs=tuple(dict.fromkeys((*incident.jobs, *some)))[-KEEP_JOBS:])
