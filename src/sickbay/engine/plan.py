"""Planning: one subject, one unit. Pure in what the draft reads: the same rows give the same unit.

`plan` dispatches on what the subject is. Each planner decides until there is something to wait for.
"""

from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial

from msgspec.structs import replace

from sickbay.brain.admit import Asked, Deferred, Fleet, admit, brake_scopes, ease
from sickbay.brain.decide import decide
from sickbay.brain.decision import Change, Decision, Do, Move, Stay, Tell
from sickbay.brain.drift import shown
from sickbay.brain.resume import JobSight, resume
from sickbay.brain.sight import Sight
from sickbay.engine.learn import in_doubt
from sickbay.engine.learn_nodes import look_again
from sickbay.engine.placing import lost, place, unseen, unusable
from sickbay.engine.seats import ledger_now, settle
from sickbay.engine.steps import notify, post, stamp, step_incident, step_job, subjects_of, tried, withdraw, write_down
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.facts import Fact, PolicyInForce
from sickbay.model.fault import NODE_LOST, SILENCE, Remedy, Scope, signature
from sickbay.model.fleet import AgentState, Brake, InForce, JobId, Node, NodeId, Record, Withholding
from sickbay.model.incident import Incident, IncidentKind, Phase, Wait
from sickbay.model.intent import (
    INTENT_LIFE,
    Drain,
    Fence,
    Intent,
    IntentState,
    Look,
    Notify,
    Quarantine,
    Release,
    Repair,
    RerunJob,
    StartJob,
    StopJob,
)
from sickbay.model.job import Call, Job, JobState
from sickbay.model.policy import BrakeRule
from sickbay.model.rows import IN_FORCE, WITHHOLDING, WaitMark, key_of, kind_of

LOOK_AGAIN = 60.0
ESTIMATE_AGAIN = 300.0
ROUNDS = 12  # decisions in one unit; a decision that never comes to rest is a defect


def plan(draft: Draft, subject: str) -> None:
    """Fill the draft with what follows for one subject: changes, an intent, and when to look again."""
    match kind_of(subject):
        case "incident":
            plan_incident(draft, subject)
        case "job":
            plan_job(draft, subject)
        case "intent":
            plan_intent(draft, subject)
        case "brake":
            plan_brake(draft, subject)
        case "node":
            plan_node(draft, subject)
        case _:
            draft.waits[subject] = None
    settle(draft)


# --- incidents


def plan_incident(draft: Draft, subject: str) -> None:
    incident = draft.read(Incident, subject)
    if incident is None or not incident.open:
        draft.waits[subject] = None
        return
    draft.read(InForce, IN_FORCE)
    first_intent = incident.intent
    wait: Wait | None = None
    for _ in range(ROUNDS):
        if not incident.open:
            break
        draft.watched = {subject, IN_FORCE}  # a wait is on what its own decision read, not on what led up to it
        sight = _sight(draft, incident)
        incident, wait = _take(draft, incident, sight, decide(sight, draft.rules.policy))
        if wait is not None:
            break
    else:
        raise RuntimeError(f"{subject} does not come to rest")
    if first_intent and first_intent != incident.intent:
        withdraw(draft, first_intent)
    _rest(draft, incident, wait)


def _sight(draft: Draft, incident: Incident) -> Sight:
    node = draft.node(incident.node)
    scoped: list[JobId] = []
    bystanders: list[JobId] = []
    called: set[JobId] = set()
    training: set[JobId] = set()
    if node is not None:
        for job in draft.holders(node):
            draft.job(job.id)  # from here on its row is read, expected and watched
            whole = incident.fault.scope is not Scope.DEVICE or incident.fault.device is None
            named = whole or job.state is JobState.GATING  # what has not begun does not begin on a sick node
            held = job.claim[node.id]
            (scoped if named or not held or incident.fault.device in held else bystanders).append(job.id)
            if any(call.incident == incident.id for call in job.calls):
                called.add(job.id)
            if job.state is JobState.RUNNING and job.id not in incident.jobs and _was_there(draft, job, incident):
                training.add(job.id)
        if node.claimable and incident.phase is not Phase.WATCHED:
            # Claims come with its version. Elsewhere nobody can claim the node, or a newcomer is none of its business;
            # and a ledger changes so often that every needless reader of it is planned again and again.
            draft.ledger(node.pool)
    past = []
    for subject in _histories(incident, node):
        record = draft.read(Record, f"record:{subject}", watch=False)
        past += [p for p in (record.past if record else ()) if p not in past]
    return Sight(
        incident=incident,
        node=node,
        intent=draft.intent(incident.intent),
        scoped=tuple(scoped),
        bystanders=tuple(bystanders),
        called=frozenset(called),
        training=frozenset(training),
        past=tuple(sorted(past, key=lambda p: p.at)),
        readings=draft.readings,
        can=draft.can(incident.cluster),
        blind=draft.rules.blind.get(incident.cluster, frozenset()),
    )


def _was_there(draft: Draft, job: Job, incident: Incident) -> bool:
    """Whether the attempt had begun when the newest evidence came: what began later has nothing to do with it."""
    ago = timedelta(seconds=draft.reading(INGEST) - incident.seen_at)
    return job.began_at is not None and job.began_at <= draft.now - ago


def _histories(incident: Incident, node: Node | None) -> list[str]:
    return subjects_of(incident.incarnation, node, incident.fault.device)


def _take(draft: Draft, incident: Incident, sight: Sight, decision: Decision) -> tuple[Incident, Wait | None]:
    node = sight.node
    match decision:
        case Move(event=event, because=because, also=also, tell=tell):
            moved = step_incident(draft, incident, event, because, also)
            return _told(draft, moved, tell), None
        case Change(because=because, also=also, tell=tell, call=call):
            if call and node is not None:
                refused = _ask(draft, Asked.CALL, incident, node)
                if refused is not None:
                    return _deferred(draft, incident, node, refused, "stop its job")
                incident = _call(draft, incident, call, because, lost=node.lost)
            changed = replace(incident, **also)
            draft.put(changed)
            return _told(draft, changed, tell), None
        case Do(act=act, event=event, also=also, because=because):
            asked = _asked(act)
            if asked is not None and node is not None:
                refused = _ask(draft, asked, incident, node)
                if refused is not None:
                    return _deferred(draft, incident, node, refused, f"{type(act).__name__.lower()}")
            intent, number = write_down(draft, incident, decision)
            more = {**also, "intent": intent.key, "acts": number, "digest": draft.rules.digest}
            if isinstance(act, Repair):
                more["tries"] = tried(incident, act.rung, draft.now)
            if event:
                return step_incident(draft, incident, event, because, more), None
            changed = replace(incident, **more)
            draft.put(changed)
            return changed, None
        case Stay(wait=wait, tell=tell):
            return _told(draft, incident, tell), wait


def _asked(act: object) -> Asked | None:
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


def _ask(draft: Draft, asked: Asked, incident: Incident, node: Node) -> Deferred | None:
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


def _deferred(
    draft: Draft, incident: Incident, node: Node, refused: Deferred, would: str
) -> tuple[Incident, Wait | None]:
    if node.excused != refused.excused:
        draft.put(replace(node, excused=refused.excused))
    if refused.confirm is not None:
        return _confirm(draft, incident, node, refused.confirm)
    if incident.phase in {Phase.QUARANTINED, Phase.DRAINING}:  # while we hold back, its time does not run out
        incident = replace(incident, deadline=None)
        draft.put(incident)
    until = _by_wall(draft, refused.until)
    shown_as = f"would have: {would}" if refused.withheld else ""
    wait = Wait(because=refused.because, until=until, would=shown_as)
    if incident.wait is None or incident.wait.because != wait.because:
        draft.tell(f"waits ({would}): {refused.because}", key_of(incident), key_of(node), event="deferred")
    if refused.tell:
        text = f"{node.id}: {incident.fault.code} waits ({shown_as or would}): {refused.because}"
        notice = Notify(event=refused.tell, subject=key_of(incident), text=text)
        incident = _told(draft, incident, Tell(notice, refused.tell))
    return incident, wait


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


def _call(draft: Draft, incident: Incident, jobs: tuple[JobId, ...], because: str, *, lost: bool) -> Incident:
    """Ask attempts to end. Only `resume` stops them."""
    for job_id in jobs:
        job = draft.job(job_id)
        if job is None:
            continue
        call = Call(
            because=f"{incident.fault.code} on {incident.node}",
            incident=incident.id,
            node=incident.node,
            lost=lost,
            dated=incident.opened_at,
        )
        draft.put(replace(job, calls=(*job.calls, call)[-20:]))
        draft.tell(f"asks {job_id} to stop: {because}", key_of(incident), key_of(job), event="call")
    return replace(incident, jobs=tuple(dict.fromkeys((*incident.jobs, *jobs))))


def _told(draft: Draft, incident: Incident, tell: Tell | None) -> Incident:
    if tell is None:
        return incident
    told = notify(draft, incident, tell)
    if told == incident.told:
        return incident
    changed = replace(incident, told=told)
    draft.put(changed)
    return changed


def _rest(draft: Draft, thing: Incident | Job, wait: Wait | None) -> None:
    """Write down why nothing happens and what would change that; an unchanged wait is not written again."""
    key = key_of(thing)
    if not thing.open or wait is None:
        draft.waits[key] = None
        return
    if thing.wait != wait:
        draft.put(replace(thing, wait=wait))
    urgent = 1 if isinstance(thing, Job) else 2
    until = wait.until
    if until is not None and until.passed(draft.readings):  # somebody else's deadline: their row will wake us
        until = Deadline(clock=until.clock, at=draft.reading(until.clock) + LOOK_AGAIN)
    if until is not None and wait.would:  # a moment on the wall: our clock, which may stand still, only estimates it
        until = Deadline(clock=until.clock, at=min(until.at, draft.reading(until.clock) + ESTIMATE_AGAIN))
    on = {k: draft.expect.get(k, 0) for k in sorted(draft.watched)}
    draft.waits[key] = WaitMark(until=until, on=on, urgency=urgent)


# --- jobs


def plan_job(draft: Draft, subject: str) -> None:
    job = draft.read(Job, subject)
    if job is None or not job.open:
        draft.waits[subject] = None
        return
    draft.read(InForce, IN_FORCE)
    first_intent = job.intent
    wait: Wait | None = None
    for _ in range(ROUNDS):
        if not job.open:
            break
        draft.watched = {subject, IN_FORCE}  # as for incidents
        sight = JobSight(
            job=job,
            intent=draft.intent(job.intent),
            place=partial(place, draft, job),
            unusable=partial(unusable, draft, job),
            lost=partial(lost, draft, job),
            unseen=partial(unseen, draft, job),
            readings=draft.readings,
            can=draft.can(job.spec.cluster),
        )
        job, wait = _take_job(draft, job, resume(sight, draft.rules.policy, draft.rules.tables))
        if wait is not None:
            break
    else:
        raise RuntimeError(f"{subject} does not come to rest")
    if first_intent and first_intent != job.intent:
        withdraw(draft, first_intent)
    _rest(draft, job, wait)


def _take_job(draft: Draft, job: Job, decision: Decision) -> tuple[Job, Wait | None]:
    tell: Tell | None = None
    wait: Wait | None = None
    match decision:
        case Move(event=event, because=because, also=also, tell=tell):
            job = step_job(draft, job, event, because, also)
        case Change(also=also, tell=tell):
            job = replace(job, **also)
            draft.put(job)
        case Do(event=event, because=because, also=also):
            intent, number = write_down(draft, job, decision)
            more = {**also, "intent": intent.key, "acts": number, "digest": draft.rules.digest}
            if isinstance(decision.act, StartJob):
                more |= {"ranks": {}, "ranks_as_of": 0.0, "end": None}
            if event:
                job = step_job(draft, job, event, because, {"began_at": draft.now, **more})
            else:
                job = replace(job, **more)
                if isinstance(decision.act, StartJob):
                    job = stamp(job, "gated", draft.now)  # a start that claims nothing follows a gate
                draft.put(job)
        case Stay(wait=wait, tell=tell):
            pass
    if tell is not None:
        told = notify(draft, job, tell)
        if told != job.told:
            job = replace(job, told=told)
            draft.put(job)
    return job, wait


# --- intents


def plan_intent(draft: Draft, subject: str) -> None:
    """Follow one intent through its doubt until its effect is seen or its time is up."""
    intent = draft.read(Intent, subject)
    if intent is None or intent.state.over:
        draft.waits[subject] = None
        return
    while (found := _development(draft, intent)) is not None:
        event, because = found
        intent = replace(intent, state=INTENT_LIFE.target(intent, intent.state, event))
        if event == "unknown":
            intent = in_doubt(draft, intent)
        if because and (event == "again" or not intent.answer):
            intent = replace(intent, answer=because)
        draft.put(intent)
        if intent.state is IntentState.PLANNED:
            break
        if intent.state.over:
            draft.waits[subject] = None
            if intent.owner:
                draft.tell(f"{type(intent.act).__name__}: {intent.state}", intent.owner, event="effect")
            return
    until = _next_look(draft, intent)
    on = {key: draft.expect[key] for key in sorted(draft.watched)}
    draft.waits[subject] = WaitMark(until=until, on=on, urgency=1)


def _development(draft: Draft, intent: Intent) -> tuple[str, str] | None:
    """What has become of it since: the first that applies, or nothing."""
    job = draft.job(intent.act.job) if isinstance(intent.act, StopJob | StartJob | RerunJob | Fence) else None
    nodes = {node: draft.node(node) for node in _targets(intent)}
    clock = draft.clocks.get(intent.cluster)
    if shown(intent, nodes, job, clock.as_of if clock else 0.0):
        return "seen", ""
    reading = draft.reading(intent.clock)
    wanted = not intent.owner or _still_wanted(draft, intent)
    match intent.state:
        case IntentState.SENT if reading >= intent.sent_at + intent.call_timeout:
            return "unknown", "its answer was lost"
        case IntentState.UNKNOWN | IntentState.ACCEPTED if _time_up(draft, intent):
            return "expire", "not seen in time"
        case IntentState.UNKNOWN if not wanted:
            return "expire", "no longer wanted"
        case IntentState.UNKNOWN if not intent.blind and _surely_absent(draft, intent):
            return "again", "not there: sent again"
        case IntentState.PLANNED if not wanted:
            return "expire", "no longer wanted"
        case _:
            return None


def _targets(intent: Intent) -> tuple[NodeId, ...]:
    return (intent.act.node,) if isinstance(intent.act, Quarantine | Drain | Repair | Release) else ()


def _still_wanted(draft: Draft, intent: Intent) -> bool:
    owner = draft.read(Incident, intent.owner) if intent.owner.startswith("incident:") else None
    if owner is None and intent.owner.startswith("job:"):
        owner_job = draft.read(Job, intent.owner)
        return owner_job is not None and owner_job.intent == intent.key
    return owner is not None and owner.intent == intent.key


def _time_up(draft: Draft, intent: Intent) -> bool:
    return intent.seen_by is not None and intent.seen_by.passed(draft.readings)


def _surely_absent(draft: Draft, intent: Intent) -> bool:
    """A read newer than the end of the call has not shown it. What agents carry out has no such read: time must do."""
    if intent.clock == INGEST:
        return draft.reading(INGEST) >= intent.sent_at + 2 * intent.call_timeout
    clock = draft.clocks.get(intent.cluster)
    return clock is not None and bool(intent.doubt_until) and clock.as_of >= intent.doubt_until


def _next_look(draft: Draft, intent: Intent) -> Deadline | None:
    reading = draft.reading(intent.clock)
    match intent.state:
        case IntentState.PLANNED:
            return None
        case IntentState.SENT:
            return Deadline(clock=intent.clock, at=intent.sent_at + intent.call_timeout)
        case IntentState.UNKNOWN if not intent.blind:
            soon = Deadline(clock=intent.clock, at=reading + 0.5 * intent.call_timeout)
            return soon if intent.seen_by is None or soon.at < intent.seen_by.at else intent.seen_by
        case _:
            return intent.seen_by


# --- brakes and seats


def plan_brake(draft: Draft, subject: str) -> None:
    brake = draft.read(Brake, subject)
    if brake is None or brake.scope.startswith("pace/"):
        draft.waits[subject] = None
        return
    rule = _brake_rule(draft, brake)
    reading = draft.reading(INGEST)
    if (
        brake.signature == SILENCE and brake.tripped_at is not None
    ):  # a state, not an event: who is still lost still shows it
        gone = (node for node in brake.seen if (row := draft.peek(Node, f"node:{node}")) is not None and row.lost)
        brake = replace(brake, seen={**brake.seen, **dict.fromkeys(gone, reading)})
    eased = ease(brake, rule, reading)
    if eased != brake:
        draft.put(eased)
    if brake.tripped_at is not None and eased.tripped_at is None:
        draft.tell(f"brake off: {brake.signature} in {brake.scope}", subject, event="brake")
    if brake.tripped_at is not None and "told" not in brake.told:
        text = f"{len(brake.seen)} nodes show {brake.signature} in {brake.scope}: nothing is quarantined for it"
        notice = Notify(event="brake", subject=subject, text=text)
        post(draft, notice, key=f"{subject}.{brake.tripped_at.timestamp():.0f}", cluster="", pool="")
        draft.put(replace(eased, told=("told",)))
    if eased.tripped_at is None and not eased.seen:
        draft.waits[subject] = None
        return
    pause = min(rule.within.total_seconds(), rule.quiet.total_seconds()) / 4
    draft.waits[subject] = WaitMark(until=Deadline(clock=INGEST, at=reading + pause), urgency=3)


def _brake_rule(draft: Draft, brake: Brake) -> BrakeRule:
    kind = brake.scope.split(":", 1)[0]
    for rule in draft.rules.policy.brakes:
        if rule.scope == kind and fnmatchcase(brake.signature, rule.signature):
            return rule
    return BrakeRule()


def plan_node(draft: Draft, subject: str) -> None:
    """A seat's own deadlines: an announced end that passed, a vacancy that nobody fills."""
    node = draft.read(Node, subject)
    draft.waits[subject] = None
    if node is None:
        return
    unheard = node.incident is None and (not node.ready or node.agent is AgentState.SILENT)
    announced = node.going_down is not None and not node.going_down.passed(draft.readings)
    if announced:
        draft.waits[subject] = WaitMark(until=node.going_down, urgency=4)
    elif (node.going_down is not None or unheard) and node.incarnation is not None:
        fact = Fact(id=f"{subject}.end", at=draft.now, news=PolicyInForce(policy="", knowledge=""), seq=0)
        look_again(draft, fact, node)
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
    draft.put(replace(node, vacant_until=again))
    draft.waits[subject] = WaitMark(until=again, urgency=4)
