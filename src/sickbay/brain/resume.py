"""What a job does next: one move, one act or one wait. Each state is one function; `resume` is the table of contents.

It alone stops and starts managed attempts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from sickbay.brain.decision import Change, Decision, Do, Move, Stay, Tell
from sickbay.brain.diagnose import diagnose
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.incident import Wait
from sickbay.model.intent import Fence, Intent, IntentState, Look, Notify, RerunJob, StartJob, StopJob, Verify
from sickbay.model.job import EndReason, Job, JobState
from sickbay.model.policy import Examine, OnNoFault, Policy, Trigger, WhichNodes
from sickbay.model.tables import Tables

Placement = dict[NodeId, tuple[int, ...]]

# The most that a check of each level may take (HyperPod's manual: 45 to 90 minutes for level 4).
CHECKS_TAKE = {1: timedelta(minutes=5), 2: timedelta(minutes=15), 3: timedelta(hours=1), 4: timedelta(hours=2)}
THEIR_QUEUE = timedelta(days=365)  # a cluster that chooses nodes has a queue of its own, which is no failure to start
REFUSED = timedelta(seconds=30)  # a refused start is tried again when newer reads may have told why


@dataclass(frozen=True, slots=True)
class JobSight:
    """All that a job's decision may read."""

    job: Job
    intent: Intent | None
    place: Callable[[], Placement | str]  # nodes for the next attempt, or why there are none
    unusable: Callable[[], tuple[NodeId, ...] | str]  # what a cluster that chooses is to avoid, or why it is not asked
    well: Callable[[tuple[NodeId, ...]], tuple[NodeId, ...]]  # which of these nodes can be claimed
    lost: Callable[[], tuple[NodeId, ...]]  # nodes of its attempt that nobody can reach
    unseen: Callable[[], tuple[NodeId, ...]]  # nodes of its attempt that its cluster cannot reach
    readings: dict[str, float]
    can: frozenset[Capability]

    def passed(self, deadline: Deadline | None) -> bool:
        return deadline is not None and deadline.passed(self.readings)

    def within(self, clock: str, duration: timedelta) -> Deadline:
        return Deadline(clock=clock, at=self.readings.get(clock, 0.0) + duration.total_seconds())

    @property
    def cluster(self) -> str:
        return self.job.spec.cluster


def resume(s: JobSight, policy: Policy, tables: Tables) -> Decision:
    match s.job.state:
        case JobState.QUEUED:
            return _queued(s, policy)
        case JobState.GATING:
            return _gating(s, policy)
        case JobState.RUNNING:
            return _running(s, policy)
        case JobState.STOPPING:
            return _stopping(s, policy)
        case JobState.DIAGNOSING:
            return _diagnosing(s, policy, tables)
        case JobState.COMPLETE | JobState.FAILED | JobState.STOPPED:
            return Stay(Wait(because="over"))


def _queued(s: JobSight, policy: Policy) -> Decision:
    job = s.job
    if job.stop_asked:
        return Move("stopped", job.stop_asked)
    if job.adopted:
        return _rerun(s, policy)
    if Capability.PLACE not in s.can:
        avoid = s.unusable()
        if isinstance(avoid, str):
            return _starved(s, policy, avoid)
        act = StartJob(job=job.id, attempt=job.attempt + 1, avoid=avoid)
        chosen = {"attempt": job.attempt + 1, "deadline": None}
        return Do(act, "the cluster chooses its nodes", THEIR_QUEUE, s.cluster, "claim", chosen)
    placed = s.place()
    if isinstance(placed, str):
        return _starved(s, policy, placed)
    gate = gate_of(job, policy)
    also: dict[str, object] = {"claim": placed, "deadline": None}
    if gate is None or Capability.CHECK not in s.can:
        return _start(s, policy, placed, "claim", also)
    act_gate = Verify(nodes=tuple(sorted(placed)), level=gate.level)
    return Do(act_gate, f"no rank starts before level {gate.level} has passed", gate.deadline, INGEST, "claim", also)


def gate_of(job: Job, policy: Policy) -> Examine | None:
    if job.spec.precheck == 0:
        return None
    rule = next((e for e in policy.examine if e.on is Trigger.BEFORE_START), None)
    level = job.spec.precheck
    if level is None or (rule is not None and rule.level == level):
        return rule
    asked = rule or Examine(on=Trigger.BEFORE_START, level=level)
    # The policy's deadline is for its own level: a job that asks for a longer check must be able to pass it.
    longer = asked.deadline if level < asked.level else max(asked.deadline, CHECKS_TAKE[min(level, max(CHECKS_TAKE))])
    return replace(asked, level=level, deadline=longer)


def _start(
    s: JobSight, policy: Policy, placed: Placement, event: str = "", also: dict[str, object] | None = None
) -> Do:
    attempt = s.job.attempt + 1
    act = StartJob(job=s.job.id, attempt=attempt, nodes=placed)
    because = f"on {len(placed)} nodes" if s.job.attempt == 0 else f"attempt {attempt}, from its last good checkpoint"
    changes = {**(also or {}), "attempt": attempt}
    return Do(act, because, policy.resume.start_deadline, s.cluster, event, changes)


def _starved(s: JobSight, policy: Policy, why: str) -> Decision:
    """Waiting for nodes spends no restart; a human hears of it now and then."""
    job = s.job
    if job.deadline is None:
        return Change(why, {"deadline": s.within(s.cluster, policy.pace.held_reminder)})
    if s.passed(job.deadline):
        also = {"deadline": s.within(s.cluster, policy.pace.held_reminder)}
        return Change(why, also, _tell(job, "job_waits", f"{job.spec.name}: {why}"))
    return Stay(Wait(because=why, until=job.deadline))


def _rerun(s: JobSight, policy: Policy) -> Decision:
    """An adopted job: its own controller may restart it first; we ask only after it has had its time."""
    job, intent = s.job, s.intent
    if intent is not None and isinstance(intent.act, RerunJob):
        if not intent.state.over:
            return Stay(Wait(because="asked its controller to run it again", until=intent.seen_by))
        if intent.gone:
            return Move("stopped", f"its controller has it no more: {intent.answer}")
        why = f"its controller did not run it again: {intent.answer or intent.state}"
        return Move("fail", why, {"diagnosis": why}, _tell(job, "job_failed", f"{job.spec.name}: {why}"))
    if job.deadline is None:
        return Change("its controller may restart it", {"deadline": s.within(s.cluster, policy.resume.native_grace)})
    if not s.passed(job.deadline):
        return Stay(Wait(because="its own controller may restart it first", until=job.deadline))
    if Capability.RERUN not in s.can:
        why = "its controller did not restart it and cannot be asked to"
        return Move("fail", why, {"diagnosis": why}, _tell(job, "job_failed", f"{job.spec.name}: {why}"))
    avoid = s.unusable()
    if isinstance(avoid, str):
        return Stay(Wait(because=avoid, until=job.deadline))
    act = RerunJob(job=job.id, attempt=job.attempt, avoid=avoid)
    return Do(act, "its controller did not restart it by itself", policy.resume.start_deadline, s.cluster)


def _gating(s: JobSight, policy: Policy) -> Decision:
    job, intent = s.job, s.intent
    starting = intent is not None and isinstance(intent.act, StartJob) and intent.state is not IntentState.PLANNED
    if job.stop_asked or job.calls or job.cancelled:
        because = job.stop_asked or (job.calls[0].because if job.calls else "cancelled by its owner")
        if starting and intent is not None and intent.state is not IntentState.REJECTED:
            arrived = Deadline(clock=intent.clock, at=intent.sent_at + 2 * intent.call_timeout)
            return Move("stop", because, {"deadline": arrived})
        if job.stop_asked or job.cancelled:
            return Move("stopped", because, {"claim": {}})
        failed = _failed(intent)
        if failed:
            return _gate_failed(s, policy, f"{', '.join(failed)} did not pass the gate", failed)
        return Move("unclaim", because, {"claim": {}, "calls": (), "deadline": None})
    if intent is None:
        return Move("unclaim", "its intent is gone", {"claim": {}})
    if not intent.state.over:
        if starting and Capability.PLACE not in s.can:
            return _in_their_queue(s, policy, intent)
        what = "checking its nodes" if isinstance(intent.act, Verify) else "starting its ranks"
        return Stay(Wait(because=what, until=intent.seen_by))
    if isinstance(intent.act, Verify):
        bad = tuple(node for node in intent.act.nodes if intent.verdicts.get(node) != "pass")
        if not bad:
            return _start(s, policy, job.claim)
        return _gate_failed(s, policy, f"{', '.join(bad)} did not pass the gate", bad)
    match intent.state:
        case IntentState.SEEN:
            return Move("started", "all ranks are seen")
        case IntentState.REJECTED:
            return _refused(s, policy, f"the start was refused: {intent.answer}")
        case _:
            return Move("stop", "not all ranks were seen in time: the rest is stopped", {"deadline": None})


def _in_their_queue(s: JobSight, policy: Policy, intent: Intent) -> Decision:
    """The time to start runs from the allocation; before it, waiting is the cluster's business and costs nothing."""
    job = s.job
    if not job.claim:
        well = s.well(intent.act.avoid) if isinstance(intent.act, StartJob) else ()
        again = Deadline(clock=intent.clock, at=intent.sent_at + policy.resume.start_deadline.total_seconds())
        if well and s.passed(again):  # what was named once is avoided for as long as the attempt waits
            return Move("stop", f"asked for anew: {', '.join(well)} can be used again", {"deadline": None})
        waits = _starved(s, policy, "waits in the cluster's own queue")
        return Stay(Wait(because=waits.wait.because, until=again)) if well and isinstance(waits, Stay) else waits
    if job.deadline is None:
        return Change("its nodes are allocated", {"deadline": s.within(s.cluster, policy.resume.start_deadline)})
    if s.passed(job.deadline):
        return Move("stop", "not all ranks were seen in time: the rest is stopped", {"deadline": None})
    return Stay(Wait(because="starting its ranks", until=job.deadline))


def _failed(intent: Intent | None) -> tuple[NodeId, ...]:
    """Nodes that a gate has found sick so far; its other nodes may not have answered yet."""
    gate = intent is not None and isinstance(intent.act, Verify)
    return tuple(n for n, verdict in sorted(intent.verdicts.items()) if verdict == "fail") if intent and gate else ()


def _refused(s: JobSight, policy: Policy, why: str) -> Decision:
    """The cluster knows something that we do not: wait for newer reads, or all goes are spent in a moment."""
    if s.job.deadline is None:
        return Change(why, {"deadline": s.within(s.cluster, REFUSED)})
    if not s.passed(s.job.deadline):
        return Stay(Wait(because=f"{why}; it is tried again", until=s.job.deadline))
    return _gate_failed(s, policy, why, ())


def _gate_failed(s: JobSight, policy: Policy, why: str, bad: tuple[NodeId, ...]) -> Decision:
    job = s.job
    gates = job.gates + 1
    if gates >= policy.resume.max_gates:
        why = f"{why}; {gates} gates have failed"
        also = {"claim": {}, "gates": gates, "diagnosis": why}
        return Move("fail", why, also, _tell(job, "job_failed", f"{job.spec.name}: {why}"))
    avoid = job.avoid if job.spec.on else tuple(sorted({*job.avoid, *bad}))
    return Move("unclaim", why, {"claim": {}, "calls": (), "gates": gates, "avoid": avoid, "deadline": None})


def _running(s: JobSight, policy: Policy) -> Decision:
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


def _stopping(s: JobSight, policy: Policy) -> Decision:
    job, intent = s.job, s.intent
    left = tuple(sorted(node for node, state in job.ranks.items() if state == "running"))
    if intent is None:
        if not left and job.end is None and job.deadline is not None and not s.passed(job.deadline):
            return Stay(Wait(because="its start may still be on its way", until=job.deadline))
        return _stop(s, policy)
    proven = bool(job.ranks) and not left and job.claim.keys() <= job.ranks.keys()
    if proven or intent.state is IntentState.SEEN:
        return _off(job)
    if isinstance(intent.act, StopJob) and intent.gone:
        return _nothing_left(s, policy)
    # What nobody can reach is fenced at once; what only the cluster cannot reach, when its time to stop is over.
    away = s.unseen() if intent.state.over else s.lost()
    lost = tuple(node for node in left if node in away)
    if not intent.state.over:
        sent = isinstance(intent.act, StopJob) and intent.state not in {IntentState.PLANNED, IntentState.SENT}
        if not (sent and left and lost == left and Capability.FENCE in s.can):
            what = "stopping its ranks" if isinstance(intent.act, StopJob) else f"fencing {', '.join(left)}"
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
            f"job_stuck:{job.attempt}",
        )
        held = {node: devices for node, devices in job.claim.items() if job.ranks.get(node) != "gone"}
        return Change(why, {"claim": held, "deadline": s.within(s.cluster, policy.resume.stop_deadline)}, tell)
    if s.passed(job.deadline):
        return Change("trying again", {"intent": "", "deadline": None})
    return Stay(Wait(because=why, until=job.deadline))


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


def _diagnosing(s: JobSight, policy: Policy, tables: Tables) -> Decision:
    job, intent = s.job, s.intent
    blamed = {call.node for call in job.calls if call.incident}  # known to be sick: a repair may have begun there
    nodes = tuple(sorted(set(job.ranks) - blamed))
    if job.stop_asked or job.cancelled:
        return Move("stopped", job.stop_asked or "cancelled by its owner")
    looked = intent is not None and isinstance(intent.act, Look)
    if Capability.LOOK in s.can and nodes and intent is None:
        because = "its nodes are looked at before it restarts"
        return Do(Look(nodes=nodes), because, policy.resume.look_deadline, INGEST)
    if intent is not None and looked and not intent.state.over:
        return Stay(Wait(because="looking at its nodes", until=intent.seen_by))
    examined = intent is not None and isinstance(intent.act, Verify)
    after = next((e for e in policy.examine if e.on is Trigger.JOB_END), None)
    if after is not None and nodes and not examined and Capability.CHECK in s.can:
        ended_badly = set(job.end.exit_codes) if job.end else set()
        named = {*(call.node for call in job.calls), *ended_badly}
        suspects = tuple(sorted(node for node in job.ranks if node in named))
        chosen = (suspects or nodes) if after.nodes is WhichNodes.SUSPECTS else nodes
        check = Verify(nodes=chosen, level=after.level)
        also = {"avoid": _dark(intent, nodes)}
        return Do(check, "its nodes are checked before it restarts", after.deadline, INGEST, also=also)
    if intent is not None and examined and not intent.state.over:
        return Stay(Wait(because="its nodes are checked", until=intent.seen_by))
    dark = _dark(intent, intent.act.nodes if intent and isinstance(intent.act, Verify) else nodes)
    return _verdict(s, policy, tables, (*dark, *(job.avoid if examined else ())))


def _dark(intent: Intent | None, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Nodes that a look or a check got no answer from."""
    if intent is None:
        return ()
    return tuple(node for node in nodes if intent.verdicts.get(node, "could_not_run") == "could_not_run")


def _verdict(s: JobSight, policy: Policy, tables: Tables, dark: tuple[NodeId, ...]) -> Decision:
    """Who is to blame, whether it may restart, and what that costs."""
    job, rule = s.job, policy.resume
    checked = s.intent.verdicts if s.intent is not None and isinstance(s.intent.act, Verify) else {}
    failed = tuple(node for node, verdict in checked.items() if verdict == "fail")
    reason = job.end.reason if job.end is not None else None
    unplaced = not job.ranks and Capability.PLACE not in s.can
    preempted = (reason is EndReason.PREEMPTED or unplaced) and not job.calls  # nobody's fault: it costs nothing
    late = _learned_late(job)
    blamed = any(call.node for call in job.calls) or bool(failed or late) or reason is EndReason.NODE_LOST
    reading = s.readings.get(s.cluster, 0.0)
    spent = tuple(at for at in job.restarts if at > reading - rule.window.total_seconds())
    lost = sum(1 for i in job.interruptions if i.at > reading - rule.window.total_seconds())
    because = job.calls[0].because if job.calls else (f"it ended: {job.end.reason}" if job.end else "it ended")
    if failed:
        because = f"{', '.join(failed)} failed its check"
    elif unplaced:
        because = "the cluster had not placed it yet"
    elif late and not job.calls:
        because = f"its nodes fell sick: {', '.join(late)}"
    fail = ""
    if lost >= rule.max_interruptions:
        fail = f"{lost} interruptions within {rule.window}"
    if not blamed and not preempted and not fail:
        fail, because = _no_fault(job, policy, tables, because)
    if not fail and not preempted and (not blamed or rule.faults_count):
        most = job.spec.max_restarts if job.spec.max_restarts is not None else rule.max_restarts
        if len(spent) >= most:
            fail = f"{because}; {len(spent)} of {most} restarts are spent"
        spent = (*spent, reading)
    also: dict[str, object] = {"diagnosis": fail or because, "deadline": None}
    if fail:
        return Move("fail", fail, also, _tell(job, "job_failed", f"{job.spec.name}: {fail}"))
    also |= {"restarts": spent, "avoid": tuple(sorted({*dark})), "calls": (), "gates": 0}
    return Move("requeue", because, also)


def _learned_late(job: Job) -> tuple[str, ...]:
    """Incidents of its nodes that were learned of after it had ended, and are dated before that."""
    last = job.interruptions[-1] if job.interruptions else None
    return last.incidents if last is not None and last.attempt == job.attempt and not last.closed else ()


def _no_fault(job: Job, policy: Policy, tables: Tables, because: str) -> tuple[str, str]:
    """No node is to blame: (why it must not restart, or ""; what is told)."""
    rule = policy.resume
    codes = set(job.end.exit_codes.values()) if job.end else set()
    if rule.exit_codes and codes and not codes & set(rule.exit_codes):
        return f"exit code {min(codes)} is not one that is restarted", because
    if rule.on_no_fault is OnNoFault.FAIL:
        return f"{because}, and no node is to blame", because
    found = diagnose(job.end.tail, tables.diagnosis) if job.end else None
    if found is not None:
        told = f"{found.because}: {found.line}"
        stop = rule.on_no_fault is OnNoFault.DIAGNOSE and not found.restart
        return (told if stop else ""), told
    return "", f"{because}, no node is to blame and its log does not say why"


def _tell(job: Job, event: str, text: str) -> Tell:
    return Tell(Notify(event=event, subject=f"job:{job.id}", text=text), f"{event}:{job.attempt}:{len(job.told)}")
