"""Taking a step: what changes together when an incident or a job moves, or an intent is written down."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TypeVar

from msgspec.structs import replace

from sickbay.brain.attempt import stuck
from sickbay.brain.decision import AnyDo, IncidentChanges, JobChanges
from sickbay.brain.endings import recorded
from sickbay.brain.ladder import looks_back
from sickbay.engine.notices import name_of, post_closed
from sickbay.engine.seats import take_turns
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import Fault, Remedy
from sickbay.model.fleet import (
    AgentState,
    Capability,
    FormerSeat,
    Incarnation,
    Node,
    NodeId,
    PastIncident,
    Record,
    Roster,
)
from sickbay.model.incident import TRANSITIONS, Incident, IncidentKind, Phase, Stage, Try, last_repair
from sickbay.model.intent import (
    AskToSave,
    Drain,
    Fence,
    Intent,
    IntentState,
    Look,
    Quarantine,
    Release,
    Repair,
    StopJob,
    Strike,
    Verify,
)
from sickbay.model.job import JOB_LIFE, KEEP_ATTEMPTS, NAMES, Interruption, Job, JobState
from sickbay.model.parts import PART
from sickbay.model.policy import Trigger
from sickbay.model.rows import DUE_NOW, WaitMark, key_of

KEEP_PAST = 20
KEEP_ACTS = 300  # intents of one open owner that are kept
KEEP_LOOSE = 8  # repairs and drains of one incident that may still come; more than a ladder has rungs
KEEP_STAGES = 60
KEEP_INTERRUPTIONS = 60
CAUSE = 500  # characters
KEEP_LINKED = 50  # incidents of one interruption: a storm may strike every node of a gang

Owner = TypeVar("Owner", Incident, Job)


# --- incidents


def step_incident(draft: Draft, incident: Incident, event: str, because: str, also: IncidentChanges) -> Incident:
    """The incident after one event of TRANSITIONS, with all that goes with it."""
    changes: IncidentChanges = {"intent": "", "deadline": None, **also}
    changed = replace(incident, **changes)
    phase = TRANSITIONS.target(changed, incident.phase, event)
    stage = Stage(phase=phase, entered_at=draft.now, because=because)
    changed = replace(changed, phase=phase, stages=(*incident.stages, stage)[-KEEP_STAGES:], wait=None)
    if incident.phase in {Phase.REPAIRING, Phase.VERIFYING} and event in {"repaired", "fail"}:
        changed = _judged(changed, draft.now, failed=because if event == "fail" else None)
    draft.tell(f"{phase}: {because}", f"incident:{incident.id}", f"node:{incident.node}", event=event)
    if phase.terminal:
        changed = replace(changed, closed_at=draft.now, closing=None)
        _close(draft, changed, by_hand=incident.closing is Phase.DISMISSED)
        post_closed(draft, changed)
    draft.put(changed)
    return changed


def _judged(incident: Incident, now: datetime, *, failed: str | None) -> Incident:
    """Write on the last try how it ended: why it failed, if it did. What others did counts as a try once it has."""
    result = "done" if failed is None else f"failed: {failed}"
    if incident.healed is not None and failed is not None:
        tried = Try(rung=incident.healed, result=f"by others, {result}", at=now)
        return replace(incident, healed=None, tries=(*incident.tries, tried))
    if not incident.tries:
        return incident
    last = replace(incident.tries[-1], result=result)
    return replace(incident, tries=(*incident.tries[:-1], last))


def _close(draft: Draft, incident: Incident, *, by_hand: bool) -> None:
    """An ended incident lets go of its node and enters the history of the hardware."""
    node = draft.node(incident.node)
    if node is not None and node.incident == incident.id:
        by_hand = by_hand and incident.phase is Phase.DISMISSED
        draft.put(
            replace(
                node,
                incident=None,
                excused=False,
                # What a repair ended, or a person vouched for, is no repeat; what merely stayed quiet may be one.
                recent=() if by_hand or incident.phase is Phase.RELEASED else node.recent,
                counted=node.counted or incident.phase in {Phase.RELEASED, Phase.DISMISSED},
                dismissed_at=draft.now if by_hand else node.dismissed_at,
                proven_at=incident.proof.at
                if incident.phase in {Phase.RELEASED, Phase.DISMISSED} and incident.proof is not None
                else node.proven_at,
            )
        )
        if not node.ready or node.unheard:  # dismissed while it cannot be heard
            hear_again(draft, node)
    repair = last_repair(incident)
    passed = incident.phase is Phase.RELEASED  # without a repair it is no strike, but it may wipe strikes
    # A fault whose repair a person has ordered is the hardware's all the same; his own wish is not.
    ill = incident.kind is IncidentKind.FAULT or (incident.kind is IncidentKind.OPERATOR and not incident.fault.is_wish)
    if not ill or not incident.remedy.disrupts or not (repair or passed):
        return
    past = PastIncident(
        incident=incident.id,
        code=incident.fault.code,
        at=incident.began,
        ended=incident.phase,
        rung=repair or "",
    )
    for subject in _whose(incident, node):
        record = draft.read(Record, f"record:{subject}", watch=False) or Record(subject=subject)
        until = draft.now + looks_back(draft.rules.policy)
        draft.put(replace(record, past=(*record.past, past)[-KEEP_PAST:], told_until=until))


def _whose(incident: Incident, node: Node | None) -> Iterable[str]:
    """A machine that was put in for another does not inherit what its predecessor had."""
    if incident.whose is not None:
        return incident.whose
    return subjects_of(incident.incarnation, node, incident.fault.device)


def hear_again(draft: Draft, node: Node) -> None:
    """Look at it again soon; after a boot its agent is given the time that a restart of it may take."""
    silence = draft.rules.policy.silence
    patience = silence.restart_deadline if node.agent is AgentState.NONE and node.ready else silence.agent
    soon = Deadline(clock=INGEST, at=draft.reading(INGEST) + patience.total_seconds())
    draft.waits[key_of(node)] = WaitMark(until=soon, urgency=4)


def subjects_of(incarnation: Incarnation | None, node: Node | None, device: int | None) -> list[str]:
    """Whose history it is: the instance's, and the device's by its serial. Never the seat's."""
    subjects = [incarnation.instance_id] if incarnation is not None and incarnation.instance_id else []
    same = incarnation is not None and node is not None and incarnation.same_holder(node.incarnation)
    if node is not None and device is not None and same:
        subjects += [d.serial for d in node.devices if d.index == device and d.serial]
    return subjects


# --- jobs


def step_job(draft: Draft, job: Job, event: str, because: str, also: JobChanges) -> Job:
    changes: JobChanges = {"intent": "", "fences": (), "save_by": None, **also}
    changed = replace(job, **changes)
    state = JOB_LIFE.target(changed, job.state, event)
    changed = replace(changed, state=state, wait=None)
    if state in {JobState.QUEUED, JobState.DIAGNOSING} or state.terminal:
        # Its ranks are gone: what it held is free, or will be when it has been examined.
        claim = _to_examine(draft, job) if state is JobState.DIAGNOSING else {}
        changed = replace(changed, claim=claim, work=None, listens=False)
    changed = _on_record(draft, job, changed, event, because)
    changed = _timed(draft, _interrupted(draft, job, changed, event, because), event)
    take_turns(draft, job, changed.claim.keys() ^ job.claim.keys())
    if state is JobState.QUEUED:
        changed = replace(changed, end=None, ranks={})
    if state.terminal:
        changed = replace(changed, closed_at=draft.now)
    draft.tell(f"{state}: {because}", f"job:{job.id}", event=event)
    draft.put(changed)
    return changed


def _timed(draft: Draft, job: Job, event: str) -> Job:
    """What an attempt has run counts towards its job's time limit; one that runs needs no place kept."""
    reading = draft.reading(job.spec.cluster)
    begins = event in {"started", "appear", "restarted"}
    if job.runs_since is not None and (begins or job.state is JobState.DIAGNOSING or job.state.terminal):
        job = replace(job, ran=job.ran + max(0.0, reading - job.runs_since), runs_since=None)
    if begins:
        return replace(job, runs_since=reading, place_until=None)
    return replace(job, place_until=None) if job.state.terminal or event == "spared" else job


def _place_kept(draft: Draft, job: Job) -> Deadline | None:
    """Until when nodes are reserved for a job that is interrupted now; a cluster with a queue does as it likes."""
    keep = draft.rules.policy.resume.keep_place.total_seconds()
    if job.adopted or not keep or Capability.PLACE not in draft.can(job.spec.cluster):
        return None
    return Deadline(clock=job.spec.cluster, at=draft.reading(job.spec.cluster) + keep)


def _to_examine(draft: Draft, job: Job) -> dict[NodeId, tuple[int, ...]]:
    """Nodes where a check follows the job's end: nobody may start there meanwhile. Sick ones are their incident's."""
    follows = any(examine.on is Trigger.JOB_END for examine in draft.rules.policy.examine)
    if not follows or Capability.CHECK not in draft.can(job.spec.cluster) or job.stop_asked or job.cancelled:
        return {}
    sick = {call.node for call in job.calls}
    return {node: devices for node, devices in job.claim.items() if node not in sick}


def _on_record(draft: Draft, before: Job, after: Job, event: str, because: str) -> Job:
    """Writes the record of the attempt that this step ends, or of which it says more."""
    if event in {"started", "appear", "restarted"}:
        after = replace(after, started_at=draft.now)
    if event in {"claim", "started", "appear"} or not before.attempt:
        return after
    known, key = draft.attempt(before), f"attempt:{before.id}/{before.attempt}"
    if event == "spared":  # it goes on
        if known is not None:
            draft.drop(key)
        return after
    # Waiting for nodes and under its gate it is still the attempt before, which has its record.
    if before.state is JobState.QUEUED or (known is not None and before.state in {JobState.GATING, JobState.RUNNING}):
        return after
    ended = replace(before, end=before.end if event == "restarted" else after.end)
    named = len(before.claim or before.ranks) > NAMES and known is None
    draft.put(recorded(known, ended, draft.now, because, _write_rosters(draft, before) if named else 0))
    old = draft.attempt(before, before.attempt - KEEP_ATTEMPTS)
    if old is not None:
        draft.drop(key_of(old))
        left = {lost.attempt for lost in after.interruptions}
        for number in range(old.rosters if old.number not in left else 0):
            draft.drop(f"roster:{before.id}/{old.number}/{number}")
    return after


def _interrupted(draft: Draft, before: Job, after: Job, event: str, because: str) -> Job:
    """Stamp the stages of the interruption that this step belongs to; open one where an attempt is lost."""
    match event:
        case "stop" | "ended" if before.state in {JobState.RUNNING, JobState.GATING}:
            if after.stop_asked or after.cancelled or not (before.claim or before.ranks):
                return after  # a person wanted it, or it had no nodes yet: nobody lost anything
            lost = interrupted(draft, replace(before, calls=after.calls), because)
            after = replace(after, interruptions=lost, place_until=_place_kept(draft, after))
            return stamp(after, "stopped", draft.now) if event == "ended" else after
        case "ended":
            return stamp(after, "stopped", draft.now)
        case "requeue":
            return stamp(charged(before, _blamed(after, because)), "diagnosed", draft.now)
        case "claim":
            return stamp(after, "placed", draft.now)
        case "started" | "appear" | "restarted":
            after = stamp(after, "started", draft.now)
            # Of a job that others submitted nobody knows whether it reports steps before it has reported one.
            reports = after.spec.reports_steps and (not after.adopted or after.step is not None)
            return after if reports else _first_step(after, None)
        case "fail" | "stopped" | "complete":
            closed = tuple(replace(i, closed=True) for i in after.interruptions)
            return replace(after, interruptions=closed)
        case _:
            return after


def interrupted(draft: Draft, job: Job, because: str) -> tuple[Interruption, ...]:
    """A job's interruptions with the loss of its attempt. One that is still open hands its clock over and is closed."""
    symptoms = [call.dated for call in job.calls if call.dated] or [draft.now]
    symptoms += [job.end.at] if job.end else []
    symptoms += [i.stages["detected"] for i in job.interruptions[-1:] if not i.closed]
    called = [call.incident for call in job.calls if call.incident]
    sick = _sick(draft, job)
    lost = Interruption(
        attempt=job.attempt,
        cause=because[:CAUSE] if called or not sick else cause_of(sick[0].fault, sick[0].node),
        at=draft.reading(job.spec.cluster),
        incidents=tuple(dict.fromkeys([*called, *(incident.id for incident in sick)]))[:KEEP_LINKED],
        stages={"detected": min(symptoms)},
        rosters=_write_rosters(draft, job),
    )
    earlier = tuple(i if i.closed else replace(i, closed=True) for i in job.interruptions)
    keep = max(KEEP_INTERRUPTIONS, draft.rules.policy.resume.max_interruptions)
    for old in (*earlier, lost)[:-keep]:
        for number in range(old.rosters if old.attempt != lost.attempt else 0):
            draft.drop(f"roster:{job.id}/{old.attempt}/{number}")
    return (*earlier, lost)[-keep:]


def _write_rosters(draft: Draft, job: Job) -> int:
    """The names of an attempt's nodes, once, in rows of their own; returns how many rows."""
    names = sorted(job.claim or job.ranks)
    parts = [tuple(names[at : at + PART]) for at in range(0, len(names), PART)]
    for number, some in enumerate(parts):
        draft.put(
            Roster(
                job=job.id, attempt=job.attempt, number=number, at=draft.now, nodes=some, devices=_devices(job, some)
            )
        )
    return len(parts)


def _devices(job: Job, nodes: tuple[NodeId, ...]) -> tuple[tuple[int, ...], ...]:
    held = tuple(job.claim.get(node, ()) for node in nodes)
    if not any(held):
        return ()
    return held[:1] if len(set(held)) == 1 else held


def _sick(draft: Draft, job: Job) -> list[Incident]:
    """Open faults of what an attempt holds as it ends, oldest first, whether or not anything was done about them."""
    keys = [f"node:{node}" for node in job.claim or job.ranks]
    draft.fetch(keys)
    found = []
    for key in keys:
        node = draft.peek(Node, key)
        incident = draft.peek(Incident, f"incident:{node.incident}") if node is not None and node.incident else None
        if node is not None and incident is not None and _to_blame(draft, job, node, incident):
            found.append(incident)
    return sorted(found, key=lambda incident: incident.opened_at)


def _to_blame(draft: Draft, job: Job, node: Node, incident: Incident) -> bool:
    """Whether an open incident may have ended the attempt. What it began under, and was told to ignore, has not."""
    held = job.claim.get(node.id, ())
    if incident.kind is IncidentKind.INTAKE or incident.fault.is_wish:
        return False
    if not incident.about(held):
        return False
    shown = draft.now - timedelta(seconds=max(0.0, draft.reading(INGEST) - incident.seen_at))
    during = job.began_at is None or shown >= job.began_at
    return blames(incident.remedy) and (during or (incident.remedy.disrupts and not node.excused))


def blames(remedy: Remedy) -> bool:
    """Whether a fault that asks for this can be why an attempt ended."""
    return remedy.disrupts or remedy is Remedy.RESTART_JOB


def cause_of(fault: Fault, node: NodeId) -> str:
    return f"{fault.code} on {node}"


def charged(before: Job, after: Job) -> Job:
    """The open interruption with the restart that was spent for it, if one was."""
    spent = after.restarts[-1] if after.restarts[-1:] != before.restarts[-1:] and after.restarts else None
    if spent is None or not after.interruptions or after.interruptions[-1].closed:
        return after
    return replace(after, interruptions=(*after.interruptions[:-1], replace(after.interruptions[-1], spent=spent)))


def _blamed(job: Job, because: str) -> Job:
    """What the diagnosis found is the cause, whatever it looked like at first."""
    if not job.interruptions or job.interruptions[-1].closed:
        return job
    return replace(job, interruptions=(*job.interruptions[:-1], replace(job.interruptions[-1], cause=because[:CAUSE])))


def stamp(job: Job, stage: str, at: datetime) -> Job:
    """Write a stage on the open interruption; the first time counts, and none is before the one that it follows."""
    if not job.interruptions or job.interruptions[-1].closed:
        return job
    last = job.interruptions[-1]
    stages = last.stages if stage in last.stages else {**last.stages, stage: max(at, *last.stages.values())}
    return replace(job, interruptions=(*job.interruptions[:-1], replace(last, stages=stages)))


def _first_step(job: Job, at: datetime | None) -> Job:
    if not job.interruptions or job.interruptions[-1].closed:
        return job
    if at is not None:
        job = stamp(job, "first_step", at)
    return replace(job, interruptions=(*job.interruptions[:-1], replace(job.interruptions[-1], closed=True)))


def first_step(job: Job, at: datetime) -> Job:
    """Training again: the interruption is over."""
    return _first_step(job, at)


# --- intents


def write_down(draft: Draft, owner: Incident | Job, do: AnyDo) -> tuple[Intent, int]:
    """The intent of a decision, PLANNED. Its key is the owner's next number: planning it twice gives one intent."""
    number = owner.acts + 1
    cluster = owner.cluster if isinstance(owner, Incident) else owner.spec.cluster
    intent = Intent(
        key=f"{name_of(owner)}.{number}",
        owner=key_of(owner),
        cluster=cluster,
        pool=owner.pool,
        act=do.act,
        because=do.because,
        planned_at=draft.now,
        clock=do.clock,
        call_timeout=min(draft.rules.policy.pace.call_timeout, do.patience).total_seconds(),
        patience=do.patience.total_seconds(),
        blind=_blind(draft, cluster, owner.pool, do),
        expect=_expected(draft, owner, do),
        digest=draft.rules.digest,
    )
    draft.create(intent)
    draft.waits[f"intent:{intent.key}"] = WaitMark(on={f"intent:{intent.key}": 0}, urgency=1)
    _drop_old(draft, owner, number - KEEP_ACTS)
    subjects = [key_of(owner)]
    if isinstance(owner, Incident):
        subjects.append(f"node:{owner.node}")
    before = draft.intent(owner.intent)
    asked_again = isinstance(do.act, Drain | Release) and before is not None and before.act == do.act
    if not asked_again and not (isinstance(do.act, StopJob | Fence) and isinstance(owner, Job) and stuck(owner)):
        draft.tell(f"{_name(do)}: {do.because}", *subjects, event="intent")
    return intent, number


def _drop_old(draft: Draft, owner: Incident | Job, number: int) -> None:
    """What is open keeps what was done for it, whatever its age; a job that runs for ever keeps the newest of it."""
    old = draft.read(Intent, f"intent:{name_of(owner)}.{number}", watch=False) if number > 0 else None
    if old is not None and old.state.over and old.key != owner.intent:
        draft.drop(f"intent:{old.key}")
        draft.waits[f"intent:{old.key}"] = None


def _blind(draft: Draft, cluster: str, pool: str, do: AnyDo) -> bool:
    act = do.act
    name = act.rung if isinstance(act, Repair) else type(act).__struct_config__.tag
    return name in draft.rules.blind_in(cluster, pool)


def _expected(draft: Draft, owner: Incident | Job, do: AnyDo) -> Incarnation | None:
    act = do.act
    match act:
        case Release() if isinstance(owner, Incident) and owner.closing is Phase.DISMISSED:
            return None  # a person has vouched for whoever is there
        case Quarantine(node=node) | Release(node=node) | Drain(node=node) | Repair(node=node) | Fence(node=node):
            seat = draft.node(node)
        case Verify(nodes=(only,)):
            seat = draft.node(only)
        case _:
            return None
    if isinstance(act, Fence) and (seat is None or seat.incarnation is None):  # its machine is meant
        former = draft.read(FormerSeat, f"record:seat/{act.node}", watch=False)
        return former.holder if former is not None else None
    return seat.incarnation if seat is not None else None


def _name(do: AnyDo) -> str:
    act = do.act
    name = type(act).__name__
    return f"{name}({act.rung})" if isinstance(act, Repair) else name


def let_go(draft: Draft, owner: Owner, key: str) -> Owner:
    """Withdraw an intent: not sent, it never is; else it is struck from the agents' mail, and its fate is awaited."""
    intent = draft.read(Intent, f"intent:{key}", watch=False)
    if intent is None or intent.state.over:
        return owner
    if intent.state is IntentState.PLANNED and not intent.doubted:
        draft.put(replace(intent, state=IntentState.EXPIRED, withdrawn=True, answer="withdrawn"))
        draft.waits[f"intent:{key}"] = None
        if isinstance(owner, Incident) and isinstance(intent.act, Repair) and owner.rung is intent.act.rung:
            owner = replace(owner, tries=owner.tries[:-1])  # what was never sent was not tried
            draft.put(owner)
        return owner
    # A Transient answer to a later sending cleared its deadline; the doubt about an earlier one must end all the same.
    seen_by = intent.seen_by or Deadline(clock=intent.clock, at=draft.reading(intent.clock) + intent.patience)
    draft.put(replace(intent, withdrawn=True, seen_by=seen_by))
    if isinstance(intent.act, Repair | Verify | Look | AskToSave):
        _strike(draft, intent)
    if isinstance(owner, Incident) and isinstance(intent.act, Repair | Drain):
        hurts = isinstance(intent.act, Repair) and intent.act.rung is not Remedy.RESTART_SERVICE
        owner = replace(owner, loose=(*owner.loose, key)[-KEEP_LOOSE:], astray=owner.astray or hurts)
        draft.put(owner)
    if isinstance(owner, Incident) and isinstance(intent.act, Verify) and (owner.as_good_as_over or not owner.open):
        _check_on(draft, owner, intent)
    return owner


def _check_on(draft: Draft, incident: Incident, check: Intent) -> None:
    """A person has his node at once, but a check that nobody can call back may run there: no job is placed under it."""
    node = draft.node(incident.node)
    if node is None or node.checking or draft.holders(node, readable=True):
        return
    if node.agent is AgentState.NONE and Capability.CHECK_BY_AGENT in draft.can(node.cluster):
        return  # nobody has been there who could have begun it
    if check.expect is None or check.expect.agrees(node.incarnation):
        draft.put(replace(node, checking=check.key))


def _strike(draft: Draft, intent: Intent) -> None:
    strike = Intent(
        key=f"{intent.key}.strike",
        owner="",
        cluster=intent.cluster,
        pool=intent.pool,
        act=Strike(intent=intent.key),
        because=f"{intent.key} is not wanted any more",
        planned_at=draft.now,
        clock=INGEST,
        call_timeout=intent.call_timeout,
        patience=3600.0,
    )
    draft.put(strike)
    draft.waits[f"intent:{strike.key}"] = WaitMark(on={f"intent:{strike.key}": 0}, urgency=1)


def due_now(draft: Draft, row: Incident | Job) -> None:
    draft.put(row)
    draft.waits[key_of(row)] = DUE_NOW


def tried(incident: Incident, rung: Remedy, now: datetime) -> tuple[Try, ...]:
    return (*incident.tries, Try(rung=rung, result="started", at=now))
