"""A job before its attempt runs: QUEUED until it has nodes, GATING until all of them passed and it started."""

from collections.abc import Mapping
from datetime import timedelta

from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, JobChanges, JobDecision, Move, Need, ReadFirst, Stay
from sickbay.brain.job_input import AVOIDED, JobInput, Placement, listing, tell
from sickbay.brain.place import NoPlace, place, to_avoid
from sickbay.brain.storage import in_words, without_storage
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.incident import Wait
from sickbay.model.intent import Intent, IntentState, RerunJob, StartJob, StopJob, Verify
from sickbay.model.job import Job, StorageTrouble
from sickbay.model.policy import Examine, Policy, Trigger

# The most that a check of each level may take (HyperPod's manual: 45 to 90 minutes for level 4).
CHECKS_TAKE = {1: timedelta(minutes=5), 2: timedelta(minutes=15), 3: timedelta(hours=1), 4: timedelta(hours=2)}
THEIR_QUEUE = timedelta(days=365)  # a cluster that chooses nodes has a queue of its own, which is no failure to start
STORAGE_TAKES = timedelta(minutes=5)
STORAGE_AGAIN = timedelta(seconds=15)  # until nodes are tried again where none could use a job's storage; doubled
STORAGE_LATEST = timedelta(minutes=15)  # each time, up to this
REFUSED = timedelta(seconds=30)  # a refused start is tried again when newer reads may have told why


def queued(s: JobInput, policy: Policy) -> JobDecision:
    job = s.job
    if job.cancelled:
        return Move("stopped", "cancelled by its owner")
    if job.stop_asked:
        return _called_off(s, policy) if s.native else Move("stopped", job.stop_asked)
    if s.native:
        return _rerun(s, policy)
    limit = job.spec.time_limit
    if limit is not None and job.ran >= limit:
        return Move("stopped", over_time(job), {"diagnosis": over_time(job)})
    if s.passed(job.place_until):
        return _lapsed(job)
    trouble = job.storage_trouble
    if trouble is not None and trouble.again is not None:
        if not s.passed(trouble.again):
            return Stay(Wait(because=trouble.because, until=trouble.again, then="nodes are tried again"))
        return Change(trouble.because, {"storage_trouble": replace(trouble, again=None)})  # in line again
    if Capability.PLACE not in s.can:
        avoid = to_avoid(s)
        if isinstance(avoid, ReadFirst):
            return avoid
        if isinstance(avoid, NoPlace):
            return _starved(s, policy, avoid.because)
        act = StartJob(job=job.id, attempt=job.attempt + 1, avoid=avoid)
        chosen: JobChanges = {"attempt": job.attempt + 1, "deadline": None}
        return Do(act, "the cluster chooses its nodes", THEIR_QUEUE, s.cluster, "claim", chosen)
    placed = place(s, policy)
    if isinstance(placed, ReadFirst):
        return placed
    if isinstance(placed, NoPlace):
        waits = _starved(s, policy, placed.because)
        kept = job.place_until
        if isinstance(waits, Stay):
            waits = Stay(replace(waits.wait, queued=True), waits.tell)
        if isinstance(waits, Stay) and kept is not None and (job.deadline is None or kept.at < job.deadline.at):
            return Stay(replace(waits.wait, until=kept, then="its place is kept no longer"))
        return waits
    gate = gate_of(job, policy)
    also: JobChanges = {"claim": placed, "deadline": None}
    if job.spec.storage and Capability.CHECK not in s.can:
        return give_up(s, policy, f"nobody in {s.cluster} can look at its storage before it starts")
    if gate is None or Capability.CHECK not in s.can:
        return _start(s, policy, placed, "claim", also)
    storage = job.spec.storage
    act_gate = Verify(nodes=tuple(sorted(placed)), level=gate.level, profile=gate.profile, storage=storage)
    first = [f"level {gate.level} has passed"] if gate.level else []
    first += [f"{listing(storage)} answers on every node"] if storage else []
    return Do(act_gate, f"no rank starts before {' and '.join(first)}", gate.deadline, INGEST, "claim", also)


def _lapsed(job: Job) -> Change[JobChanges]:
    """Its place is kept no longer: it waits by its rank like the others, and a person hears of it."""
    why = "its place is kept no longer: it waits in the queue by its priority and its age"
    return Change(why, {"place_until": None}, tell(job, "job_waits", f"{job.spec.name}: {why}"))


def gate_of(job: Job, policy: Policy) -> Examine | None:
    """The check before its start. Level 0: only its storage is looked at; None: nothing is."""
    only = Examine(on=Trigger.BEFORE_START, level=0, deadline=STORAGE_TAKES) if job.spec.storage else None
    if job.spec.precheck == 0:
        return only
    rule = next((e for e in policy.examine if e.on is Trigger.BEFORE_START), None)
    level = job.spec.precheck
    if level is None or (rule is not None and rule.level == level):
        return rule or only
    asked = rule or Examine(on=Trigger.BEFORE_START, level=level)
    # The policy's deadline is for its own level: a job that asks for a longer check must be able to pass it.
    longer = asked.deadline if level < asked.level else max(asked.deadline, CHECKS_TAKE[min(level, max(CHECKS_TAKE))])
    return replace(asked, level=level, deadline=longer)


def over_time(job: Job) -> str:
    return f"its time limit of {timedelta(seconds=job.spec.time_limit or 0)} is over"


def checked_by_agents(job: Job, policy: Policy, can: frozenset[Capability]) -> bool:
    """Whether its nodes must pass a check before it starts that only their agents can do."""
    return Capability.CHECK_BY_AGENT in can and gate_of(job, policy) is not None


def _start(
    s: JobInput, policy: Policy, placed: Placement, event: str = "", also: JobChanges | None = None
) -> Do[JobChanges]:
    attempt = s.job.attempt + 1
    act = StartJob(job=s.job.id, attempt=attempt, nodes=placed)
    because = f"on {len(placed)} nodes" if s.job.attempt == 0 else f"attempt {attempt}"
    if s.job.attempt and s.job.step is not None:  # it reports steps, so it knows of checkpoints
        because = f"{because}, from its last good checkpoint"
    changes: JobChanges = {**(also or {}), "attempt": attempt, "storage_trouble": None}
    return Do(act, because, policy.resume.start_deadline, s.cluster, event, changes)


def _starved(s: JobInput, policy: Policy, why: str) -> JobDecision:
    """Waiting for nodes spends no restart; a human hears of it now and then."""
    job = s.job
    if job.deadline is None:
        return Change(why, {"deadline": s.within(s.cluster, policy.pace.held_reminder)})
    if s.passed(job.deadline):
        also: JobChanges = {"deadline": s.within(s.cluster, policy.pace.held_reminder)}
        return Change(why, also, tell(job, "job_waits", f"{job.spec.name}: {why}"))
    return Stay(Wait(because=why, until=job.deadline))


def _called_off(s: JobInput, policy: Policy) -> JobDecision:
    """A person stops what its own controller holds or may yet run again: that must be told to let it be, too."""
    job, intent = s.job, s.intent
    if intent is None or not isinstance(intent.act, StopJob):
        act = StopJob(job=job.id, attempt=job.attempt, final=True)
        return Do(act, job.stop_asked, policy.resume.stop_deadline, s.cluster, also={"deadline": None})
    if not intent.state.over:
        return Stay(Wait(because="its controller is told not to run it again", until=intent.seen_by))
    if intent.state is IntentState.REJECTED and intent.not_before is not None and not s.passed(intent.not_before):
        return Stay(Wait(because=f"its controller refused: {intent.answer}", until=intent.not_before))
    if (unread := s.unread(intent)) is not None:
        return Stay(Wait(because="there was nothing to stop: whether it runs again is read next", until=unread))
    if intent.gone or intent.state is IntentState.SEEN:
        return Move("stopped", job.stop_asked)
    why = f"{job.stop_asked}; its controller may still run it again: {intent.answer or intent.state}"
    return Move("stopped", why, {}, tell(job, "job_stuck", f"{job.spec.name}: {why}"))


def _rerun(s: JobInput, policy: Policy) -> JobDecision:
    """Its own controller may restart it first, unless our stop holds it; we ask only after it has had its time."""
    job, intent = s.job, s.intent
    if intent is not None and isinstance(intent.act, RerunJob):
        if not intent.state.over:
            return _asked_to_rerun(s, policy, intent, intent.act)
        if intent.gone and not job.adopted:
            return Change(
                "its cluster has it no more: it is made anew", {"made": False, "intent": "", "deadline": None}
            )
        if intent.gone:
            return Move("stopped", f"its controller has it no more: {intent.answer}")
        # Refused for another attempt that has begun: the read that shows it is awaited for as long as a start may take.
        shown = Deadline(clock=intent.clock, at=intent.sent_at + policy.resume.start_deadline.total_seconds())
        if intent.state is IntentState.REJECTED and not s.passed(shown):
            return Stay(Wait(because=f"its controller refused: {intent.answer}", until=shown))
        return give_up(s, policy, f"its controller did not run it again: {intent.answer or intent.state}")
    if intent is not None and isinstance(intent.act, StopJob):
        return give_up(s, policy, job.diagnosis)
    if job.deadline is None:
        grace = timedelta(0) if job.held else policy.resume.native_grace
        return Change("its controller may restart it", {"deadline": s.within(s.cluster, grace)})
    if not s.passed(job.deadline):
        return Stay(Wait(because="its own controller may restart it first", until=job.deadline))
    if Capability.RERUN not in s.can:
        return give_up(s, policy, "its controller did not restart it and cannot be asked to")
    avoid = to_avoid(s)
    if isinstance(avoid, ReadFirst):
        return avoid
    if isinstance(avoid, NoPlace):
        return _kept_waiting(s, policy, avoid.because)
    because = "our stop holds it" if job.held else "its controller did not restart it by itself"
    return _ask_to_rerun(s, avoid, because)


def give_up(s: JobInput, policy: Policy, why: str) -> JobDecision:
    """FAILED. Where our own stop holds it, its cluster is told first to let it be: else it would hold it for ever."""
    job, intent = s.job, s.intent
    stop = intent if intent is not None and isinstance(intent.act, StopJob) else None
    if job.held and s.native and stop is None:
        act = StopJob(job=job.id, attempt=job.attempt, final=True)
        also: JobChanges = {"diagnosis": why, "deadline": None}
        return Do(act, f"it is given up: {why}", policy.resume.stop_deadline, s.cluster, also=also)
    if stop is not None and not stop.state.over:
        return Stay(Wait(because=f"its controller is told to let it be: {why}", until=stop.seen_by))
    if stop is not None and stop.state is not IntentState.SEEN and not stop.gone:
        why = f"{why}; its cluster may still hold it: {stop.answer or stop.state}"
    return Move("fail", why, {"diagnosis": why, "deadline": None}, tell(job, "job_failed", f"{job.spec.name}: {why}"))


def _kept_waiting(s: JobInput, policy: Policy, why: str) -> JobDecision:
    """Its controller's own time is over, so the reminder is apart from it: it is asked as soon as it can be."""
    job = s.job
    if job.remind is not None and not s.passed(job.remind):
        return Stay(Wait(because=why, until=job.remind))
    also: JobChanges = {"remind": s.within(s.cluster, policy.pace.held_reminder)}
    if job.remind is None:
        return Change(why, also)
    return Change(why, also, tell(job, "job_waits", f"{job.spec.name}: {why}"))


def _ask_to_rerun(s: JobInput, avoid: tuple[NodeId, ...], because: str) -> Do[JobChanges]:
    act = RerunJob(job=s.job.id, attempt=s.job.attempt, avoid=avoid)
    return Do(act, because, THEIR_QUEUE, s.cluster, also={"deadline": None})


def _asked_to_rerun(s: JobInput, policy: Policy, intent: Intent, act: RerunJob) -> JobDecision:
    """Once asked, waiting for nodes is its cluster's business; what it was told to avoid may be well by then."""
    if s.well is None:
        return ReadFirst(Need.WELL, act.avoid)
    well = s.well
    again = Deadline(clock=intent.clock, at=intent.sent_at + policy.resume.start_deadline.total_seconds())
    if well and intent.state is IntentState.ACCEPTED and s.passed(again):
        avoid = to_avoid(s)
        if isinstance(avoid, ReadFirst):
            return avoid
        if not isinstance(avoid, NoPlace):
            still = tuple(node for node in avoid if node not in well)
            return _ask_to_rerun(s, still, f"asked for anew: {listing(well)} can be used again")
    waits = _starved(s, policy, "its controller was asked to run it again")
    return Stay(Wait(because=waits.wait.because, until=again)) if well and isinstance(waits, Stay) else waits


def gating(s: JobInput, policy: Policy) -> JobDecision:
    job, intent = s.job, s.intent
    starting = intent is not None and isinstance(intent.act, StartJob) and intent.state is not IntentState.PLANNED
    if job.stop_asked or job.calls or job.cancelled:
        because = job.stop_asked or (job.calls[0].because if job.calls else "cancelled by its owner")
        if starting and intent is not None and intent.state is not IntentState.REJECTED:
            arrived = Deadline(clock=intent.clock, at=intent.sent_at + 2 * intent.call_timeout)
            return Move("stop", because, {"deadline": arrived, "made": True})
        if job.stop_asked or job.cancelled:
            return Move("stopped", because, {"claim": {}})
        failed = _failed(intent)
        if failed:
            return _gate_failed(s, policy, f"{listing(failed)} did not pass the gate", failed)
        if fell := _fell(job, intent):
            return _gate_failed(s, policy, f"{listing(fell)} booted anew under the gate", fell)
        return Move("unclaim", because, {"claim": {}, "calls": (), "deadline": None})
    if intent is None:
        return Move("unclaim", "its intent is gone", {"claim": {}})
    if not intent.state.over:
        if starting and Capability.PLACE not in s.can:
            return _in_their_queue(s, policy, intent)
        what = "checking its nodes" if isinstance(intent.act, Verify) else "starting its ranks"
        if isinstance(intent.act, Verify) and intent.state is IntentState.PLANNED and intent.answer:
            what = f"{what}: {intent.answer}"
        return Stay(Wait(because=what, until=intent.seen_by))
    if isinstance(intent.act, Verify):
        if _unsent(intent):
            return _gate_unsent(s, intent)
        lacking = without_storage(intent)
        sick = tuple(n for n in intent.act.nodes if n not in lacking and intent.verdicts.get(n) is not Verdict.PASS)
        if not sick and not lacking:
            return _start(s, policy, job.claim)
        if not sick:
            return _no_storage(s, policy, lacking, everywhere=len(lacking) == len(intent.act.nodes))
        why = [f"{listing(sick)} did not pass the gate{_unseen(intent)}", in_words(lacking)]
        return _gate_failed(s, policy, "; ".join(filter(None, why)), (*sick, *lacking))
    match intent.state:
        case IntentState.SEEN:
            return Move("started", "all ranks are seen")
        case IntentState.REJECTED:
            return _refused(s, policy, intent)
        case _:
            return Move("stop", "not all ranks were seen in time: the rest is stopped", {"deadline": None})


def _in_their_queue(s: JobInput, policy: Policy, intent: Intent) -> JobDecision:
    """The time to start runs from the allocation; before it, waiting is the cluster's business and costs nothing."""
    job = s.job
    if (
        intent.refused and not job.claim
    ):  # its queue would show nothing: whether an earlier sending is in it, a stop tells
        known = Deadline(clock=intent.clock, at=intent.sent_at + policy.resume.start_deadline.total_seconds())
        why = f"the start was refused: {intent.answer}; an earlier sending may have been taken"
        if s.passed(known):
            # It counts as a failed gate: if all that follow are refused too, that ends it.
            also: JobChanges = {"deadline": None, "gates": job.gates + 1, "diagnosis": why}
            return Move("stop", f"{why}: what there is of it is stopped", also)
        return Stay(Wait(because=why, until=known))
    if not job.claim:
        if s.well is None:
            return ReadFirst(Need.WELL, intent.act.avoid if isinstance(intent.act, StartJob) else ())
        well = s.well
        again = Deadline(clock=intent.clock, at=intent.sent_at + policy.resume.start_deadline.total_seconds())
        if well and s.passed(again):  # what was named once is avoided for as long as the attempt waits
            return Move("stop", f"asked for anew: {listing(well)} can be used again", {"deadline": None, "made": True})
        waits = _starved(s, policy, "waits in the cluster's own queue")
        return Stay(Wait(because=waits.wait.because, until=again)) if well and isinstance(waits, Stay) else waits
    if job.deadline is None:
        return Change("its nodes are allocated", {"deadline": s.within(s.cluster, policy.resume.start_deadline)})
    if s.passed(job.deadline):
        return Move("stop", "not all ranks were seen in time: the rest is stopped", {"deadline": None, "made": True})
    return Stay(Wait(because="starting its ranks", until=job.deadline))


def _failed(intent: Intent | None) -> tuple[NodeId, ...]:
    """Nodes that a gate has found sick so far; its other nodes may not have answered yet."""
    gate = intent is not None and isinstance(intent.act, Verify)
    return (
        tuple(n for n, verdict in sorted(intent.verdicts.items()) if verdict is Verdict.FAIL) if intent and gate else ()
    )


def _fell(job: Job, intent: Intent | None) -> tuple[NodeId, ...]:
    """Nodes that booted anew under a gate that had begun: one that does so under each would be gated for ever."""
    begun = intent is not None and isinstance(intent.act, Verify) and bool(intent.sent_at)
    return tuple(sorted({call.node for call in job.calls if call.booted and call.node})) if begun else ()


def _refused(s: JobInput, policy: Policy, intent: Intent) -> JobDecision:
    """The cluster knows something that we do not: wait for newer reads, or all goes are spent in a moment."""
    why = f"the start was refused: {intent.answer}"
    if intent.hopeless:
        return give_up(s, policy, f"{why}; no other try can put it right")
    again = Deadline(clock=intent.clock, at=intent.sent_at + REFUSED.total_seconds())
    if not s.passed(again):
        return Stay(Wait(because=f"{why}; it is tried again", until=again))
    return _gate_failed(s, policy, why, ())


def _unseen(intent: Intent) -> str:
    """Why nobody could look at the storage of those that did not pass, as far as one of them has said it."""
    named = intent.storage.unfit if intent.storage is not None else {}
    why = next((f": {why}" for n, why in named.items() if intent.verdicts.get(n) is Verdict.COULD_NOT_RUN), "")
    return f" ({why[2:]})" if why else ""


def _no_storage(s: JobInput, policy: Policy, lacking: Mapping[NodeId, str], *, everywhere: bool) -> JobDecision:
    """Some of its nodes cannot use what it names: others are tried. Is it all of them, or again, it waits.

    Neither spends a gate: a server that is down for a night must not end the jobs that need it. People are told.
    """
    job, known = s.job, s.job.storage_trouble
    times = known.times + 1 if known is not None else 1
    waits = everywhere or times > 1
    pause = min(STORAGE_AGAIN * 2 ** min(times - 1, 10), STORAGE_LATEST) if waits else timedelta(0)
    then = "no node of it can use its storage, so it waits" if everywhere else "other nodes are tried first"
    why = f"{in_words(lacking)}; {then}"
    tells = waits and (known is None or s.passed(known.remind))
    reminded = s.within(INGEST, policy.pace.held_reminder if tells else timedelta(0))
    remind = known.remind if known is not None and not tells else reminded
    again = s.within(INGEST, pause) if pause else None
    trouble = StorageTrouble(because=why, times=times, again=again, remind=remind)
    also: JobChanges = {"claim": {}, "calls": (), "deadline": None, "storage_trouble": trouble}
    also["avoid"] = job.avoid if job.spec.on else tuple(sorted({*job.avoid, *lacking}))[:AVOIDED]
    return Move("unclaim", why, also, tell(job, "job_waits", f"{job.spec.name}: {why}") if tells else None)


def _unsent(intent: Intent) -> bool:
    """Whether it was over before any of its checks began."""
    never = intent.state is IntentState.EXPIRED and not intent.sent_at
    return never and set(intent.verdicts.values()) == {Verdict.COULD_NOT_RUN}


def _gate_unsent(s: JobInput, intent: Intent) -> JobDecision:
    """Others' work kept its check from being sent: nobody failed, and it takes other nodes if there are any."""
    job = s.job
    avoid = job.avoid if job.spec.on else tuple(sorted({*job.avoid, *intent.verdicts}))[:AVOIDED]
    return Move("unclaim", intent.answer, {"claim": {}, "calls": (), "avoid": avoid, "deadline": None})


def _gate_failed(s: JobInput, policy: Policy, why: str, bad: tuple[NodeId, ...]) -> JobDecision:
    job = s.job
    gates = job.gates + 1
    if gates >= policy.resume.max_gates:
        why = f"{why}; {gates} gates have failed"
        also: JobChanges = {"claim": {}, "gates": gates, "diagnosis": why}
        return Move("fail", why, also, tell(job, "job_failed", f"{job.spec.name}: {why}"))
    avoid = job.avoid if job.spec.on else tuple(sorted({*job.avoid, *bad}))[:AVOIDED]
    return Move("unclaim", why, {"claim": {}, "calls": (), "gates": gates, "avoid": avoid, "deadline": None})
