"""A job whose attempt ended badly: DIAGNOSING. Who is to blame, whether it may restart, and what that costs."""

from collections.abc import Collection

from sickbay.brain.decision import Do, JobChanges, JobDecision, Move, Need, ReadFirst, Stay
from sickbay.brain.endings import SHELL, SIGNALS, ending_of, signal_of
from sickbay.brain.gate import give_up
from sickbay.brain.job_input import AVOIDED, JobInput, listing
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.incident import Wait
from sickbay.model.intent import Intent, Look, StopJob, Verify
from sickbay.model.job import End, EndReason, Job
from sickbay.model.policy import OnNoFault, Policy, Trigger, WhichNodes
from sickbay.model.tables import CONSEQUENCE, RAISED, Diagnosis

DISK_FULL = "disk_full"  # a rule of `diagnosis.csv`: an error of that kind mostly does not say which disk
FOLLOWS = {0, 6, 15}  # a rank that aborts or is asked to end mostly follows another's trouble


def diagnosing(s: JobInput, policy: Policy) -> JobDecision:
    job, intent = s.job, s.intent
    blamed = {call.node for call in job.calls if call.incident}  # known to be sick: a repair may have begun there
    nodes = tuple(sorted(set(job.ranks) - blamed))
    if job.stop_asked or job.cancelled:
        return Move("stopped", job.stop_asked or "cancelled by its owner")
    if intent is not None and isinstance(intent.act, StopJob):
        return give_up(s, policy, job.diagnosis)
    looked = intent is not None and isinstance(intent.act, Look)
    if Capability.LOOK in s.can and nodes and intent is None:
        because = "a sick node must be found before it restarts"
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
        if s.mute is None and Capability.CHECK_BY_AGENT in s.can:
            return ReadFirst(Need.MUTE, chosen)
        mute = s.mute or ()
        if asked := tuple(node for node in chosen if node not in mute):
            check = Verify(nodes=asked, level=after.level, profile=after.profile)
            also: JobChanges = {"avoid": tuple(dict.fromkeys((*_dark(intent, nodes), *mute)))[:AVOIDED]}
            return Do(check, "its nodes are checked before it restarts", after.deadline, INGEST, also=also)
    if intent is not None and examined and not intent.state.over:
        return Stay(Wait(because="its nodes are checked", until=intent.seen_by))
    dark = _dark(intent, intent.act.nodes if intent and isinstance(intent.act, Verify) else nodes)
    return _verdict(s, policy, (*dark, *(job.avoid if examined else ())))


def _dark(intent: Intent | None, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Nodes that a look or a check got no answer from."""
    if intent is None:
        return ()
    return tuple(node for node in nodes if intent.verdicts.get(node, Verdict.COULD_NOT_RUN) is Verdict.COULD_NOT_RUN)


def _verdict(s: JobInput, policy: Policy, dark: tuple[NodeId, ...]) -> JobDecision:
    """Who is to blame, whether it may restart, and what that costs."""
    job, rule = s.job, policy.resume
    checked = s.intent.verdicts if s.intent is not None and isinstance(s.intent.act, Verify) else {}
    failed = tuple(node for node, verdict in checked.items() if verdict is Verdict.FAIL)
    reason = job.end.reason if job.end is not None else None
    unplaced = not job.ranks and Capability.PLACE not in s.can
    wished = bool(job.calls) and all(call.wished for call in job.calls)
    preempted = wished or ((reason is EndReason.PREEMPTED or unplaced) and not job.calls)  # nobody's fault: it is free
    late = learned_late(job)
    blamed = any(call.node for call in job.calls) or bool(failed or late) or reason is EndReason.NODE_LOST
    reading = s.readings.get(s.cluster, 0.0)
    spent = tuple(at for at in job.restarts if at > reading - rule.window.total_seconds())
    lost = sum(1 for i in job.interruptions if i.at > reading - rule.window.total_seconds())
    because = job.calls[0].because if job.calls else (ending_of(job.end) if job.end else "it ended")
    if failed:
        because = f"{listing(failed)} failed its check"
    elif unplaced:
        because = "the cluster had not placed it yet"
    elif late and not any(call.node for call in job.calls):
        because = job.interruptions[-1].cause
    fail = ""
    if lost >= rule.max_interruptions:
        fail = f"{lost} interruptions within {rule.window}"
    if unplaced and job.gates >= rule.max_gates:
        fail = f"{job.diagnosis}; {job.gates} starts have failed"
    if not blamed and not preempted and not fail:
        fail, because = _no_fault(job, policy, because)
    if not fail and not preempted and (not blamed or rule.faults_count):
        most = job.spec.max_restarts if job.spec.max_restarts is not None else rule.max_restarts
        if len(spent) >= most:
            fail = f"{because}; {len(spent)} of {most} restarts are spent"
        spent = (*spent, reading)
    if fail:
        return give_up(s, policy, fail)
    also: JobChanges = {"diagnosis": because, "deadline": None}
    gates = job.gates if unplaced else 0  # a start that was refused in their queue counts as one
    also |= {"restarts": spent, "avoid": tuple(sorted({*dark}))[:AVOIDED], "calls": (), "gates": gates}
    return Move("requeue", because, also)


def learned_late(job: Job) -> tuple[str, ...]:
    """Incidents of its nodes that never asked it to stop: not acted upon, or learned of after it had ended."""
    last = job.interruptions[-1] if job.interruptions else None
    return last.incidents if last is not None and last.attempt == job.attempt and not last.closed else ()


def _no_fault(job: Job, policy: Policy, because: str) -> tuple[str, str]:
    """No node is to blame: (why it must not restart, or ""; what is told)."""
    rule = policy.resume
    codes = set(job.end.exit_codes.values()) if job.end else set()
    told = codes | {SHELL + signal_of(code) for code in codes if code < 0}  # a policy counts as a shell does
    if rule.exit_codes and codes and not told & set(rule.exit_codes):
        return f"{because}; exit code {min(codes)} is not one that is restarted (the policy's exit_codes)", because
    if rule.on_no_fault is OnNoFault.FAIL:
        return f"{because}, and no node is to blame", because
    found = diagnosis_of(job.end) if job.end else None
    if found is not None and not (job.calls and _follows(found)):
        why = _why(found, job.end, because) if job.end else found.because
        if found.name == DISK_FULL and (where := job.spec.checkpoint or job.checkpoints_in):
            why = f"{why}; its checkpoints are in {where}"
        stop = rule.on_no_fault is OnNoFault.DIAGNOSE and not found.restart
        return (why if stop else ""), why
    return "", f"{because}, no node is to blame and its log does not say why"


def _follows(found: Diagnosis) -> bool:
    """Whether it is what our own stop of a hung job makes ranks and their launchers say and end with."""
    return not found.line or found.rank >= CONSEQUENCE


def _why(found: Diagnosis, end: End, because: str) -> str:
    """What its log or its signal means, and which rank on which node ended so."""
    if found.line:
        return f"{found.because}: {found.line} ({because})" if end.exit_codes else f"{found.because}: {found.line}"
    number = signal_of(end.first.exit_code) if end.first is not None and end.first.exit_code else 0
    same = number and SIGNALS[number][0].lower() == found.name
    return f"{because}: {SIGNALS[number][1]}" if same else f"{because}; {found.because}"


def diagnosis_of(end: End) -> Diagnosis | None:
    """Why an attempt ended that no node is to blame for, by its log and exit codes. None: nothing says why."""
    codes = set(end.exit_codes.values())
    struck = _by_signal({code for code in codes if signal_of(code) not in FOLLOWS})
    # An exception ends a process with 1: where signals ended all, the one in the log was caught.
    caught = bool(codes) and all(map(signal_of, codes))
    said = next((found for found in end.findings if not (caught and found.name == RAISED)), None)
    if said is not None and said.rank < CONSEQUENCE:
        return said
    return struck or said or _by_signal(codes)  # peers wait for the rank that was killed, and say so


def _by_signal(exit_codes: Collection[int]) -> Diagnosis | None:
    """What others did to it (SIGTERM, the least telling) counts only where no rank says more."""
    found = sorted({signal_of(code) for code in exit_codes} - {0}, key=lambda number: (number == 15, number))
    if not found:
        return None
    name, why = SIGNALS[found[0]]
    return Diagnosis(name=name.lower(), line="", because=f"killed by {name}: {why}", restart=True)
