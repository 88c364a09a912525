"""A job whose attempt runs, or must end: RUNNING until something ends it, STOPPING until every rank is surely gone."""

from sickbay.brain.decision import Change, Decision, Do, Move, Stay, Tell
from sickbay.brain.job_sight import JobSight
from sickbay.model.clock import INGEST
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.incident import Wait
from sickbay.model.intent import Fence, IntentState, Look, Notify, StopJob
from sickbay.model.job import EndReason, Job
from sickbay.model.policy import Policy


def running(s: JobSight, policy: Policy) -> Decision:
    job = s.job
    if job.end is not None:
        match job.end.reason:
            case EndReason.COMPLETED:
                return Move("complete", "every rank ended with 0", {"claim": {}})
            case EndReason.CANCELLED_BY_OTHER:
                return Move("stopped", "cancelled by its owner", {"claim": {}})
            case _ if any(state == "running" for state in job.ranks.values()):
                return Move("stop", f"one part of it ended: {job.end.reason}")
            case _:
                return Move("ended", f"it ended: {job.end.reason}")
    if job.cancelled and not any(state == "running" for state in job.ranks.values()):
        return Move("stopped", "cancelled by its owner", {"claim": {}})
    if job.stop_asked:
        return Move("stop", job.stop_asked)
    if job.calls:
        return _stacks(s, policy) or Move("stop", job.calls[0].because)
    return Stay(Wait(because="training" if job.ranks else "its controller has not placed it yet"))


def _stacks(s: JobSight, policy: Policy) -> Decision | None:
    """What a hung job was doing can be asked only while it still does it. None: nothing more to ask."""
    job, intent = s.job, s.intent
    if any(call.node for call in job.calls) or Capability.LOOK not in s.can:
        return None
    if intent is None:
        nodes = tuple(sorted(node for node, state in job.ranks.items() if state == "running"))
        look = Look(nodes=nodes, stacks_of=job.id)
        return Do(look, "it hangs: its stacks are collected first", policy.resume.look_deadline, INGEST)
    if not intent.state.over:
        return Stay(Wait(because="collecting its stacks", until=intent.seen_by))
    return None


def stopping(s: JobSight, policy: Policy) -> Decision:
    job, intent = s.job, s.intent
    left = tuple(sorted(node for node, state in job.ranks.items() if state == "running"))
    if intent is None:
        if not left and job.end is None and job.deadline is not None and not s.passed(job.deadline):
            return Stay(Wait(because="its start may still be on its way", until=job.deadline))
        return _stop(s, policy)
    proven = bool(job.ranks) and not left and job.claim.keys() <= job.ranks.keys()
    if proven or intent.state is IntentState.SEEN:
        return _off(job)
    # What nobody can reach is fenced at once; what only the cluster cannot reach, when its time to stop is over.
    away = s.unseen() if intent.state.over else s.lost()
    lost = tuple(node for node in left if node in away)
    if isinstance(intent.act, StopJob) and intent.gone and not lost:
        return _nothing_left(s, policy)
    if not intent.state.over:
        sent = isinstance(intent.act, StopJob) and intent.state not in {IntentState.PLANNED, IntentState.SENT}
        if not (sent and left and lost == left and Capability.FENCE in s.can):
            what = "stopping its ranks" if isinstance(intent.act, StopJob) else f"fencing {', '.join(left)}"
            if intent.state is IntentState.PLANNED and intent.answer:
                what = f"{what}: {intent.answer}"
            return Stay(Wait(because=what, until=intent.seen_by))
    if left and lost == left and Capability.FENCE in s.can and not isinstance(intent.act, Fence):
        act = Fence(nodes=left, job=job.id, attempt=job.attempt)
        because = f"ranks on {', '.join(left)} cannot be reached"
        return Do(act, because, policy.resume.stop_deadline, s.cluster, also={"deadline": None})
    return _stuck(s, policy, left or tuple(sorted(job.claim)))


def _stop(s: JobSight, policy: Policy) -> Do:
    act = StopJob(job=s.job.id, attempt=s.job.attempt)
    because = "every rank must be gone before the next starts"
    return Do(act, because, policy.resume.stop_deadline, s.cluster, also={"deadline": None})


def _stuck(s: JobSight, policy: Policy, left: tuple[NodeId, ...]) -> Decision:
    """Neither stopped nor fenced: a human is told once, and both are tried again. Nothing of it starts meanwhile.

    Nodes that its ranks have left are free for others: one node out of reach must not hold up all of a large job's.
    """
    job = s.job
    why = f"cannot prove that the ranks on {', '.join(left)} are gone; a second copy would ruin the run"
    if job.deadline is None:
        tell = Tell(
            Notify(event="job_stuck", subject=f"job:{job.id}", text=f"{job.spec.name}: {why}"),
            _stuck_name(job),
        )
        held = {node: devices for node, devices in job.claim.items() if job.ranks.get(node) != "gone"}
        return Change(why, {"claim": held, "deadline": s.within(s.cluster, policy.resume.stop_deadline)}, tell)
    if s.passed(job.deadline):
        return Change("trying again", {"intent": "", "deadline": None})
    return Stay(Wait(because=why, until=job.deadline))


def _stuck_name(job: Job) -> str:
    return f"job_stuck:{job.attempt}"


def stuck(job: Job) -> bool:
    """Whether a human knows already that it can neither be stopped nor fenced: each further try is no news."""
    return _stuck_name(job) in job.told


def _nothing_left(s: JobSight, policy: Policy) -> Decision:
    """There was nothing to stop: it ended by itself, perhaps well. The read that tells how is awaited, not for ever."""
    job = s.job
    if job.end is not None or not job.ranks or s.passed(job.deadline):
        return _off(job)
    if job.deadline is None:
        wait = s.within(s.cluster, 2 * policy.pace.call_timeout)
        return Change("the cluster has nothing left to stop", {"deadline": wait})
    return Stay(Wait(because="how it ended has not been read yet", until=job.deadline))


def _off(job: Job) -> Move:
    """All ranks are gone, or fenced. What that means depends on why they had to go."""
    gone: dict[str, object] = {"ranks": dict.fromkeys(job.ranks, "gone"), "claim": {}}
    if job.end is not None and job.end.reason is EndReason.COMPLETED:
        return Move("complete", "it completed before it was stopped", gone)
    if job.stop_asked or job.cancelled:
        return Move("stopped", job.stop_asked or "cancelled by its owner", gone)
    return Move("ended", "all its ranks are gone", gone)
