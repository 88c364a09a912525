"""Sending: a planned intent is asked for admission once more, then SENT is written before the call is made.

An intent may stay PLANNED for a long time (no connection, no room in its lane). What was admitted then need not be
admitted now: a pause, a brake, a closed window, a pool at its limit or work that has come to the node meanwhile holds
it, and its owner decides again.
"""

from msgspec.structs import replace

from sickbay.brain.admit import AdmissionStage, Deferred
from sickbay.brain.attempt import was_dismissed
from sickbay.brain.decision import IncidentChanges, JobChanges
from sickbay.brain.incident_input import reset_domain
from sickbay.brain.job_input import listing
from sickbay.engine.admission import ask, asked_for, cordon_may_come
from sickbay.engine.job_reads import dismissed, may_fence
from sickbay.engine.notices import overtaken
from sickbay.engine.seats import settle
from sickbay.engine.transitions import step_incident, step_job
from sickbay.engine.view import Draft
from sickbay.model.checkup import Verdict
from sickbay.model.clock import Deadline
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, Node, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.intent import (
    INTENT_LIFE,
    AnyAct,
    AskToSave,
    Fence,
    Intent,
    IntentState,
    OwnerKind,
    Quarantine,
    Repair,
    StartJob,
    StopJob,
    Verify,
    nodes_of,
)
from sickbay.model.job import Call, Job, JobState, RankState
from sickbay.model.rows import DUE_NOW, WaitMark, key_of

ASK_AGAIN = 30.0  # seconds until a job's stop that is withheld is judged afresh
FEW = 12  # nodes of a check


def send(draft: Draft, key: str) -> None:
    """Write SENT down, or what keeps the intent from being sent."""
    intent = draft.read(Intent, key)
    if intent is None or intent.state is not IntentState.PLANNED:
        return
    if intent.not_before is not None and not intent.not_before.passed(draft.readings):
        return
    if not wanted(draft, intent):
        draft.put(replace(intent, state=IntentState.EXPIRED, withdrawn=True, answer="withdrawn"))
        draft.waits[key] = DUE_NOW  # it may have kept its node from being claimed
        return
    if overtaken(draft, intent):
        why = "withdrawn: its incident has closed meanwhile"
        draft.put(replace(intent, state=IntentState.EXPIRED, withheld=True, answer=why))
        draft.waits[key] = DUE_NOW
        return
    if (rest := _rest_of_read(draft, intent)) is not None:
        draft.put(replace(intent, not_before=rest, answer="the rest of its cluster's list is awaited"))
        return
    if isinstance(intent.act, StopJob) and not intent.doubted and (job := _spared(draft, intent.act)) is not None:
        why = "withdrawn: what called for it was dismissed"
        draft.put(replace(intent, state=IntentState.EXPIRED, withdrawn=True, answer=why))
        draft.waits[key] = None
        _run_on(draft, job, (), "what called for its end was dismissed before its stop was sent")
        settle(draft)
        return
    refused = withheld(draft, intent)
    if refused is not None:
        _take_back(draft, intent, refused)
        settle(draft)
        return
    reading = draft.reading(intent.clock)
    sent = replace(
        intent,
        state=INTENT_LIFE.target(intent, intent.state, "send"),
        sends=intent.sends + 1,
        sent_at=reading + 1e-6,  # never 0: that means "no sending took effect"
        seen_by=intent.seen_by or Deadline(clock=intent.clock, at=reading + intent.patience),
        not_before=None,
    )
    if isinstance(sent.act, AskToSave) and sent.act.sent_at is None and (asked := draft.job(sent.act.job)) is not None:
        sent = replace(sent, act=replace(sent.act, sent_at=draft.now, step=asked.step))
    draft.put(sent)
    answer_by = Deadline(clock=intent.clock, at=reading + intent.call_timeout)
    draft.waits[key] = WaitMark(until=answer_by, on={key: 0}, urgency=1)


def wanted(draft: Draft, intent: Intent) -> bool:
    """Whether its owner still waits for exactly this intent."""
    if intent.done_for in {OwnerKind.NOBODY, OwnerKind.CHECKUP}:
        return True
    if intent.done_for is OwnerKind.JOB:
        job = draft.read(Job, intent.owner)
        return job is not None and job.open and job.awaits(intent.key)
    owner = draft.read(Incident, intent.owner)
    return owner is not None and owner.open and owner.intent == intent.key


def withheld(draft: Draft, intent: Intent) -> Deferred | None:
    """What holds the act now, whatever was so when it was written down. None: nothing."""
    if isinstance(intent.act, StopJob | AskToSave):
        return _stop_withheld(draft, intent.act)
    if isinstance(intent.act, Fence):
        return _fence_withheld(draft, intent.act)
    if isinstance(intent.act, Verify) and (busy := _busy(draft, intent, intent.act)):
        return Deferred(f"work has come to {listing(busy)} meanwhile")
    incident = draft.read(Incident, intent.owner) if intent.done_for is OwnerKind.INCIDENT else None
    node = draft.node(incident.node) if incident is not None else None
    if incident is None or node is None:
        return None
    if node.unmanaged and _disturbs(intent.act):
        return Deferred(f"{node.unmanaged} pieces of unmanaged work have come to it meanwhile")
    empties = _disturbs(intent.act) or isinstance(intent.act, Verify)
    if empties and (jobs := _in_the_way(draft, incident, node, intent.act)):
        return Deferred(f"{listing(jobs)} has come to it meanwhile")
    asked = asked_for(intent.act)
    return ask(draft, asked, incident, node) if asked is not None else None


def _disturbs(act: AnyAct) -> bool:
    """Whether it needs the node empty."""
    return isinstance(act, Repair) and act.rung is not Remedy.RESTART_SERVICE


def _in_the_way(draft: Draft, incident: Incident, node: Node, act: AnyAct) -> tuple[JobId, ...]:
    """Managed attempts that a repair or its check would hurt: one of a single device hurts only who holds it."""
    if isinstance(act, Repair):
        alone = act.rung is Remedy.RESET_GPU and bool(act.devices)
    else:
        alone = incident.rung is Remedy.RESET_GPU and bool(reset_domain(incident, node))
    return tuple(
        job.id
        for job in draft.holders(node)
        if not alone or job.state is JobState.GATING or incident.about(job.claim[node.id])
    )


def _fence_withheld(draft: Draft, act: Fence) -> Deferred | None:
    """A machine that is in touch again is not powered off: its ranks can be stopped, and others may run there."""
    job = draft.job(act.job)
    draft.node(act.node)
    if job is None or may_fence(draft, job, act.node):
        return None
    return Deferred(f"{act.node} is in touch again")


def _rest_of_read(draft: Draft, intent: Intent) -> Deadline | None:
    """When what it needs to know of its nodes is known; None: it is.

    A read is learned in pieces, nodes before jobs: of a node that was told in one whose end is not learned yet nobody
    knows what runs there. The clock of its cluster moves with the end.
    """
    clock = draft.clocks.get(intent.cluster)
    reached = clock.as_of if clock is not None else 0.0
    nodes = _emptied(intent.act)
    draft.fetch([f"node:{node}" for node in nodes])
    seats = (draft.peek(Node, f"node:{node}") for node in nodes)
    if all(seat is None or seat.as_of <= reached for seat in seats):
        return None
    return Deadline(clock=intent.cluster, at=draft.reading(intent.cluster) + 1e-6)


def _emptied(act: AnyAct) -> tuple[NodeId, ...]:
    """Nodes on which nobody else's work may run when this is sent."""
    match act:
        case StartJob(nodes=nodes):
            return tuple(nodes)
        case Repair() if not _disturbs(act):
            return ()
        case Repair() | Verify() | Fence():
            return nodes_of(act)
        case _:
            return ()


def _busy(draft: Draft, intent: Intent, act: Verify) -> tuple[NodeId, ...]:
    """Nodes of a check, whoever asked for it, where others' work runs. Many are not expected one by one.

    One that was asked for on idle nodes is sent to nobody who is not idle any more; a gate's nodes may be shared.
    """
    idle = intent.done_for is OwnerKind.CHECKUP
    few = len(act.nodes) <= FEW
    draft.fetch([f"node:{node}" for node in act.nodes])
    seats = [draft.node(node) if few else draft.peek(Node, f"node:{node}") for node in act.nodes]
    return tuple(
        seat.id
        for seat in seats
        if seat is not None and (seat.unmanaged or (idle and draft.holders(seat, readable=True)))
    )


def _stop_withheld(draft: Draft, act: StopJob | AskToSave) -> Deferred | None:
    """An incident's stop of an attempt that is whole and that nobody and nothing else wants to end."""
    job = draft.job(act.job)
    if job is None or not _whole(job):
        return None
    refused: Deferred | None = None
    for call in job.calls:
        incident = draft.incident(call.incident) if call.incident else None
        if incident is not None and was_dismissed(incident):
            continue
        node = draft.node(incident.node) if incident is not None and incident.open else None
        if incident is None or node is None:
            return None
        refused = ask(draft, AdmissionStage.CALL, incident, node)
        if refused is None:
            return None
    return refused


def _whole(job: Job) -> bool:
    """Whether all of it runs, and nothing but calls wants its end."""
    runs = bool(job.ranks) and all(state is RankState.RUNNING for state in job.ranks.values())
    return runs and not (job.stop_asked or job.cancelled or job.end is not None)


def _spared(draft: Draft, act: StopJob) -> Job | None:
    """The job, where its attempt is whole and all that called for its end was dismissed since."""
    job = draft.job(act.job)
    if job is None or job.attempt != act.attempt or not _whole(job):
        return None
    return job if dismissed(draft, job) else None


def _could_save(draft: Draft, act: StopJob | AskToSave) -> Job | None:
    """The job, where it may save before its end: what it has saved is old by the time that its stop is sent."""
    job = draft.job(act.job)
    if job is None or job.attempt != act.attempt or job.state is not JobState.STOPPING:
        return None
    asked = job.listens and not job.called_at_once and draft.rules.policy.resume.save_within
    return job if asked and Capability.ASK_TO_SAVE in draft.can(job.spec.cluster) else None


def _run_on(draft: Draft, job: Job, calls: tuple[Call, ...], because: str) -> None:
    """It has lost nothing: its attempt goes on as if it had never been stopped."""
    kept = tuple(lost for lost in job.interruptions if lost.closed or lost.attempt != job.attempt)
    also: JobChanges = {"calls": calls, "deadline": None, "remind": None, "interruptions": kept}
    step_job(draft, job, "spared", because, also)
    draft.waits[key_of(job)] = DUE_NOW


def _take_back(draft: Draft, intent: Intent, refused: Deferred) -> None:
    """It is not sent: its owner decides again as if it had not been written down; no try is lost, no time runs."""
    key = f"intent:{intent.key}"
    if isinstance(intent.act, StopJob | AskToSave):  # its end was decided; it waits, and its story says for what
        if not intent.doubted and (job := _could_save(draft, intent.act)) is not None:
            draft.put(replace(intent, state=IntentState.EXPIRED, answer=f"withdrawn: {refused.because}"))
            draft.waits[key] = None
            _run_on(draft, job, job.calls, f"{refused.because}: it trains on, and saves once more before its stop")
            return
        again = Deadline(clock=intent.clock, at=draft.reading(intent.clock) + ASK_AGAIN)
        draft.put(replace(intent, not_before=again, answer=refused.because))
        if isinstance(intent.act, AskToSave) and not intent.doubted:
            _put_off(draft, intent, intent.act)
        return
    if intent.doubted:  # an earlier sending may have taken effect: that is awaited, it is not sent again
        seen_by = intent.seen_by or Deadline(clock=intent.clock, at=draft.reading(intent.clock) + intent.patience)
        state = INTENT_LIFE.target(intent, intent.state, "unknown")
        draft.put(replace(intent, state=state, refused=True, withheld=True, seen_by=seen_by, answer=refused.because))
        draft.waits[key] = DUE_NOW
        return
    if isinstance(intent.act, Fence):
        _fence_no_more(draft, intent, intent.act, refused)
        return
    if isinstance(intent.act, Verify) and intent.done_for is not OwnerKind.INCIDENT:
        _check_later(draft, intent, intent.act, refused)
        return
    incident = draft.read(Incident, intent.owner)
    if incident is None:
        return
    draft.put(replace(intent, state=IntentState.EXPIRED, answer=f"withdrawn: {refused.because}"))
    draft.waits[key] = None
    untried: IncidentChanges = {"tries": incident.tries[:-1]} if isinstance(intent.act, Repair) else {}
    node = draft.node(incident.node)
    cordon = isinstance(intent.act, Quarantine)
    may_return = cordon and (node is None or not cordon_may_come(draft, incident, node))
    if incident.phase is Phase.REPAIRING or (incident.phase is Phase.QUARANTINED and may_return):
        step_incident(draft, incident, "defer", refused.because, untried)
    else:
        deadline = incident.deadline if incident.phase is Phase.HELD else None  # there it is a human's reminder
        draft.put(replace(replace(incident, **untried), intent="", deadline=deadline))
    draft.waits[key_of(incident)] = DUE_NOW


def _put_off(draft: Draft, intent: Intent, act: AskToSave) -> None:
    """While its stop would be withheld its time to save does not run."""
    job = draft.job(act.job)
    if job is not None and job.save_by is not None and job.intent == intent.key:
        until = Deadline(clock=intent.clock, at=draft.reading(intent.clock) + ASK_AGAIN + intent.patience)
        draft.put(replace(job, save_by=until))


def _fence_no_more(draft: Draft, intent: Intent, act: Fence, refused: Deferred) -> None:
    """If its node is lost once more, it is asked for anew."""
    draft.put(replace(intent, state=IntentState.EXPIRED, answer=f"withdrawn: {refused.because}"))
    draft.waits[f"intent:{intent.key}"] = None
    job = draft.job(act.job)
    if job is not None:
        draft.put(replace(job, fences=tuple(key for key in job.fences if key != intent.key)))
        draft.waits[key_of(job)] = DUE_NOW


def _check_later(draft: Draft, intent: Intent, act: Verify, refused: Deferred) -> None:
    """A job's or a checkup's check of a node that others use by now: asked again for as long as it may take.

    Then it is over without a verdict, as one that nobody answered.
    """
    reading = draft.reading(intent.clock)
    seen_by = intent.seen_by or Deadline(clock=intent.clock, at=reading + intent.patience)
    again = Deadline(clock=intent.clock, at=reading + ASK_AGAIN)
    if reading < seen_by.at:
        draft.put(replace(intent, not_before=again, seen_by=seen_by, answer=refused.because))
        return
    unrun = dict.fromkeys(_busy(draft, intent, act), Verdict.COULD_NOT_RUN)
    draft.put(replace(intent, state=IntentState.EXPIRED, answer=refused.because, verdicts=unrun))
    draft.waits[f"intent:{intent.key}"] = DUE_NOW
