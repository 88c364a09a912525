"""What a job does next: a table for what each state decides, and that no combination of fields confuses it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, JobDecision, Move, Stay
from sickbay.brain.drift import shown
from sickbay.brain.gate import gate_of
from sickbay.brain.job_input import JobInput, OutOfReach, PoolRoom, Seat, TheirChoice
from sickbay.brain.resume import resume
from sickbay.knowledge.load import load_tables
from sickbay.model.checkup import Verdict
from sickbay.model.clock import Deadline
from sickbay.model.fleet import Capability, IncidentId, JobId, NodeId
from sickbay.model.intent import (
    AnyAct,
    AskToSave,
    Fence,
    Intent,
    IntentState,
    Look,
    RerunJob,
    StartJob,
    StopJob,
    Verify,
)
from sickbay.model.job import JOB_LIFE, Call, End, EndReason, Interruption, Job, JobSpec, JobState, RankState
from sickbay.model.policy import Examine, OnNoFault, Policy, Trigger
from sickbay.policy.load import load_policy, shipped
from sickbay.signs.training_log import judge

TABLES = load_tables()
POLICIES = {name: load_policy(name) for name in shipped()}
DEFAULT = POLICIES["default"]
NOW = datetime(2026, 3, 1, tzinfo=UTC)
A, B = NodeId("sim/a"), NodeId("sim/b")
EVERYTHING = frozenset(Capability)
SPEC = JobSpec(name="train", cluster="sim", pool="train", nodes=2)
ROUNDS = 12


def job(state: JobState, **more: Any) -> Job:
    held = state in {JobState.GATING, JobState.RUNNING, JobState.STOPPING}
    fields: dict[str, Any] = {"spec": SPEC, "attempt": 1, "claim": {A: (), B: ()} if held else {}}
    return Job(id=JobId("train"), submitted_at=NOW, state=state, **{**fields, **more})


def intent(act: AnyAct, state: IntentState, **more: Any) -> Intent:
    return Intent(
        key="train.1", owner="job:train", cluster="sim", pool="train", act=act, because="", planned_at=NOW,
        clock="sim", call_timeout=30.0, patience=60.0, state=state, **more,
    )  # fmt: skip


def sight(of: Job, last: Intent | None = None, **more: Any) -> JobInput:
    fields: dict[str, Any] = {
        "fences": (),
        "as_of": 1e9,
        "room": PoolRoom(free=2),
        "seats": tuple(Seat(node=node, claimable=True, here=True, free=()) for node in (A, B)),
        "withheld": (),
        "theirs": TheirChoice(seats=2),
        "well": getattr(last.act, "avoid", ()) if last is not None else (),
        "mute": (),
        "away": OutOfReach(),
        "dismissed": False,
        "readings": {"sim": 1000.0, "ingest": 1000.0},
        "can": EVERYTHING,
    }
    return JobInput(job=of, intent=last, **{**fields, **more})


def decided(s: JobInput, policy: Policy = DEFAULT) -> JobDecision:
    return resume(s, policy)


def ended(reason: EndReason = EndReason.FAILED, *, code: int = 1, tail: str = "") -> End:
    findings = judge(tail, TABLES.diagnosis)
    return End(reason=reason, at=NOW, exit_codes={A: code}, tail=tail, findings=findings)


def under(**changes: Any) -> Policy:
    return replace(DEFAULT, resume=replace(DEFAULT.resume, **changes))


LOOKED = intent(Look(nodes=(A, B)), IntentState.SEEN, verdicts={A: Verdict.LOOKED, B: Verdict.LOOKED})
GONE = {A: RankState.GONE, B: RankState.GONE}
ALIVE = {A: RankState.RUNNING, B: RankState.RUNNING}


# --- the gate


@pytest.mark.parametrize(
    ("asked", "level", "deadline"),
    [
        (None, 1, timedelta(minutes=5)),
        (1, 1, timedelta(minutes=5)),
        (2, 2, timedelta(minutes=15)),
        (3, 3, timedelta(hours=1)),
        (4, 4, timedelta(hours=2)),
    ],
)
def test_a_deeper_gate_has_the_time_that_it_needs(asked: int | None, level: int, deadline: timedelta) -> None:
    gate = gate_of(job(JobState.QUEUED, spec=replace(SPEC, precheck=asked)), DEFAULT)
    assert gate is not None
    assert (gate.level, gate.deadline) == (level, deadline)


def test_a_shallower_gate_keeps_the_policys_deadline() -> None:
    rule = Examine(on=Trigger.BEFORE_START, level=3, deadline=timedelta(minutes=40))
    gate = gate_of(job(JobState.QUEUED, spec=replace(SPEC, precheck=1)), replace(DEFAULT, examine=(rule,)))
    assert gate == replace(rule, level=1)


def test_a_claim_is_written_with_the_gate_where_there_is_one_else_with_the_start() -> None:
    gated = decided(sight(job(JobState.QUEUED)))
    plain = decided(sight(job(JobState.QUEUED, spec=replace(SPEC, precheck=0))))
    assert isinstance(gated, Do)
    assert isinstance(plain, Do)
    assert (type(gated.act), gated.event, gated.also["claim"]) == (Verify, "claim", {A: (), B: ()})
    assert (type(plain.act), plain.event, plain.also["claim"]) == (StartJob, "claim", {A: (), B: ()})
    assert "attempt" not in gated.also, "a gate is no attempt"
    assert plain.also["attempt"] == 2


@pytest.mark.parametrize("verdict", [Verdict.FAIL, Verdict.COULD_NOT_RUN, None])
def test_whatever_is_not_a_pass_fails_the_gate(verdict: Verdict | None) -> None:
    verdicts = {A: Verdict.PASS, **({B: verdict} if verdict else {})}
    over = intent(
        Verify(nodes=(A, B), level=1), IntentState.SEEN if verdict else IntentState.EXPIRED, verdicts=verdicts
    )
    decision = decided(sight(job(JobState.GATING), over))
    assert isinstance(decision, Move)
    assert (decision.event, decision.also["gates"], decision.also["avoid"]) == ("unclaim", 1, (B,))


def test_a_gate_that_is_called_off_for_a_node_that_it_found_sick_has_failed() -> None:
    call = Call(because="check.failed on sim/a", incident=IncidentId("i1"), node=A)
    half = intent(Verify(nodes=(A, B), level=1), IntentState.ACCEPTED, verdicts={A: Verdict.FAIL})
    decision = decided(sight(job(JobState.GATING, calls=(call,)), half))
    assert isinstance(decision, Move)
    assert (decision.event, decision.also["gates"], decision.also["calls"]) == ("unclaim", 1, ())


def test_a_refused_start_waits_for_newer_reads_before_it_spends_a_gate() -> None:
    act, waits = StartJob(job=JobId("train"), attempt=1), Deadline(clock="sim", at=90_000.0)
    first = decided(
        sight(
            job(JobState.GATING, deadline=waits), intent(act, IntentState.REJECTED, answer="not ready", sent_at=990.0)
        )
    )
    assert isinstance(first, Stay)
    assert first.wait.until == Deadline(clock="sim", at=1020.0), "a reminder that runs besides does not matter"
    later = decided(sight(job(JobState.GATING), intent(act, IntentState.REJECTED, answer="not ready", sent_at=900.0)))
    assert isinstance(later, Move)
    assert (later.event, later.also["deadline"]) == ("unclaim", None)


# --- stopping


def test_a_hung_job_is_asked_for_its_stacks_before_it_is_stopped() -> None:
    hung = job(JobState.RUNNING, ranks=ALIVE, calls=(Call(because="hung: no step"),))
    first = decided(sight(hung))
    assert isinstance(first, Do)
    assert first.act == Look(nodes=(A, B), stacks_of=hung.id)
    assert isinstance(decided(sight(hung, intent(first.act, IntentState.ACCEPTED))), Stay)
    for state in (IntentState.SEEN, IntentState.EXPIRED, IntentState.REJECTED):
        then = decided(sight(hung, intent(first.act, state)))
        assert isinstance(then, Move)
        assert then.event == "stop"


def test_a_sick_node_is_not_waited_for_with_stacks() -> None:
    call = Call(because="xid.79", incident=IncidentId("i1"), node=A)
    decision = decided(
        sight(job(JobState.RUNNING, ranks={A: RankState.RUNNING}, calls=(Call(because="hung: x"), call)))
    )
    assert isinstance(decision, Move)


def test_a_stop_that_found_nothing_waits_for_the_word_on_how_it_ended() -> None:
    gone = intent(StopJob(job=JobId("train"), attempt=1), IntentState.REJECTED, gone=True)
    running = job(JobState.STOPPING, ranks=ALIVE)
    assert isinstance(decided(sight(running, gone)), Change)
    late = decided(sight(replace(running, deadline=Deadline(clock="sim", at=2000.0)), gone))
    assert isinstance(late, Stay)
    done = decided(sight(replace(running, end=End(reason=EndReason.COMPLETED, at=NOW)), gone))
    assert isinstance(done, Move)
    assert done.event == "complete"
    never = decided(sight(replace(running, deadline=Deadline(clock="sim", at=999.0)), gone))
    assert isinstance(never, Move)
    assert never.event == "ended"


@pytest.mark.parametrize(
    ("lost", "unseen", "state", "fenced"),
    [
        ((A,), (A,), IntentState.ACCEPTED, True),
        ((), (A,), IntentState.ACCEPTED, False),  # the cluster may see it again before its time is over
        ((), (A,), IntentState.EXPIRED, True),
        ((), (), IntentState.EXPIRED, False),  # it can be reached: it only does not stop
        ((A,), (A,), IntentState.SENT, False),  # the call itself is not over
    ],
)
def test_only_what_is_out_of_reach_is_fenced(
    lost: tuple[NodeId, ...], unseen: tuple[NodeId, ...], state: IntentState, fenced: bool
) -> None:
    stop = intent(StopJob(job=JobId("train"), attempt=1), state)
    stopping = job(JobState.STOPPING, ranks={A: RankState.RUNNING, B: RankState.GONE})
    away = OutOfReach(lost=lost, unseen=unseen, fenceable=unseen)
    decision = decided(sight(stopping, stop, away=away))
    assert (isinstance(decision, Do) and isinstance(decision.act, Fence)) is fenced
    without = decided(sight(stopping, stop, can=EVERYTHING - {Capability.FENCE}, away=away))
    assert not isinstance(without, Do)


@pytest.mark.parametrize(
    ("claim", "ranks", "least", "seen"),
    [
        ({A: (), B: ()}, {A: RankState.RUNNING, B: RankState.RUNNING}, 2, True),
        ({A: (), B: ()}, {A: RankState.RUNNING}, 2, False),
        ({A: (), B: ()}, {A: RankState.RUNNING, B: RankState.GONE}, 2, False),
        ({A: ()}, {A: RankState.RUNNING}, 2, False),  # the cluster shows the ranks that it places one after another
        ({A: ()}, {A: RankState.RUNNING}, 1, True),
        ({}, {}, 1, False),
    ],
)
def test_a_gang_has_started_when_all_of_it_is_seen(claim: Any, ranks: Any, least: int, seen: bool) -> None:
    start = intent(StartJob(job=JobId("train"), attempt=1), IntentState.ACCEPTED)
    gating = job(JobState.GATING, claim=claim, ranks=ranks, spec=replace(SPEC, min_nodes=least))
    assert shown(start, {}, gating, 100.0) is seen


@pytest.mark.parametrize(
    ("state", "horizon", "gone"),
    [
        (IntentState.PLANNED, 100.0, False),  # it was Transient: it has not been taken
        (IntentState.UNKNOWN, 100.0, False),
        (IntentState.ACCEPTED, 40.0, False),  # this read is older than its effect
        (IntentState.ACCEPTED, 60.0, True),
    ],
)
def test_ranks_that_were_never_seen_are_gone_only_by_a_stop_that_was_taken(
    state: IntentState, horizon: float, gone: bool
) -> None:
    stop = intent(StopJob(job=JobId("train"), attempt=1), state, sends=1, visible_from=50.0)
    assert shown(stop, {}, job(JobState.STOPPING), horizon) is gone
    assert not shown(stop, {}, job(JobState.STOPPING, ranks={A: RankState.RUNNING}), horizon)


# --- the verdict

FAULT = Call(because="xid.79 on sim/a", incident=IncidentId("i1"), node=A)
LATE = Interruption(attempt=1, cause="it ended", stages={"detected": NOW}, incidents=(IncidentId("i1"),))


@pytest.mark.parametrize(
    ("fields", "changes", "event", "spent"),
    [
        ({"end": ended()}, {}, "requeue", 1),
        ({"end": ended(tail="CUDA out of memory")}, {}, "fail", 0),
        ({"end": ended(tail="CUDA out of memory")}, {"on_no_fault": OnNoFault.RESTART}, "requeue", 1),
        ({"end": ended()}, {"on_no_fault": OnNoFault.FAIL}, "fail", 0),
        ({"end": ended(code=9)}, {"exit_codes": (1,)}, "fail", 0),
        ({"end": ended(code=9), "calls": (FAULT,)}, {"exit_codes": (1,), "on_no_fault": OnNoFault.FAIL}, "requeue", 0),
        ({"calls": (FAULT,)}, {"faults_count": True}, "requeue", 1),
        ({"calls": (FAULT,)}, {"faults_count": True, "max_restarts": 0}, "fail", 0),
        ({"calls": (FAULT,)}, {"max_restarts": 0}, "requeue", 0),
        ({"end": ended(EndReason.NODE_LOST)}, {"max_restarts": 0}, "requeue", 0),
        ({"end": ended(EndReason.NODE_LOST)}, {"faults_count": True}, "requeue", 1),
        ({"end": ended(EndReason.PREEMPTED)}, {"faults_count": True, "max_restarts": 0}, "requeue", 0),
        ({"end": ended(EndReason.PREEMPTED)}, {"on_no_fault": OnNoFault.FAIL, "exit_codes": (3,)}, "requeue", 0),
        ({"end": ended(EndReason.UNKNOWN)}, {"max_restarts": 0}, "fail", 0),
        ({"end": ended(tail="CUDA out of memory"), "interruptions": (LATE,)}, {"max_restarts": 0}, "requeue", 0),
        ({"end": ended(), "restarts": (1.0, 2.0, 3.0)}, {"window": timedelta(seconds=100)}, "requeue", 1),
        ({"end": ended(), "restarts": (950.0, 960.0, 970.0)}, {"window": timedelta(seconds=100)}, "fail", 0),
        ({"calls": (FAULT,), "interruptions": (replace(LATE, at=990.0),) * 2}, {"max_interruptions": 2}, "fail", 0),
        ({"calls": (FAULT,), "interruptions": (replace(LATE, at=1.0),) * 2},
         {"max_interruptions": 2, "window": timedelta(seconds=100)}, "requeue", 0),
    ],
)  # fmt: skip
def test_the_verdict(fields: dict[str, Any], changes: dict[str, Any], event: str, spent: int) -> None:
    policy = under(**changes)
    decision = decided(sight(job(JobState.DIAGNOSING, ranks=GONE, **fields), LOOKED), policy)
    assert isinstance(decision, Move), decision
    assert decision.event == event
    if event == "fail":
        assert decision.tell is not None
        assert decision.also["diagnosis"] in decision.tell.notice.text
    else:
        since = 1000.0 - policy.resume.window.total_seconds()
        assert len(decision.also["restarts"]) == spent + sum(at > since for at in fields.get("restarts", ()))


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (ended(tail="Received 15 death signal, shutting down workers"), "hung: no step after 15 for 10 s, no node"),
        (ended(tail="[rank1]: Connection closed by peer [10.0.0.7]:7058"), "hung: no step after 15 for 10 s, no node"),
        (ended(code=-15), "hung: no step after 15 for 10 s, no node"),
        (ended(tail="RuntimeError: CUDA error: an illegal memory access was encountered"), ""),
    ],
)
def test_what_our_stop_of_a_hung_job_makes_its_ranks_say_is_not_why_it_was_interrupted(end: End, cause: str) -> None:
    hung = Call(because="hung: no step after 15 for 10 s")
    decision = decided(sight(job(JobState.DIAGNOSING, ranks=GONE, calls=(hung,), end=end), LOOKED))
    assert isinstance(decision, Move)
    assert decision.because.startswith(cause or "a kernel went wrong"), decision.because
    assert hung.because in decision.because


def test_a_node_that_gave_no_answer_is_avoided() -> None:
    half = intent(Look(nodes=(A, B)), IntentState.EXPIRED, verdicts={A: Verdict.LOOKED})
    decision = decided(sight(job(JobState.DIAGNOSING, ranks=GONE, end=ended()), half))
    assert isinstance(decision, Move)
    assert decision.also["avoid"] == (B,)


@pytest.mark.parametrize(
    ("verdict", "avoided"), [(Verdict.PASS, ()), (Verdict.FAIL, ()), (Verdict.COULD_NOT_RUN, (B,)), (None, (B,))]
)
def test_a_node_that_could_not_be_checked_after_the_end_is_avoided(
    verdict: Verdict | None, avoided: tuple[NodeId, ...]
) -> None:
    policy = replace(under(on_no_fault=OnNoFault.RESTART), examine=(Examine(on=Trigger.JOB_END, level=2),))
    verdicts = {A: Verdict.PASS, **({B: verdict} if verdict else {})}
    check = intent(Verify(nodes=(A, B), level=2), IntentState.EXPIRED, verdicts=verdicts)
    decision = decided(sight(job(JobState.DIAGNOSING, ranks=GONE, end=ended()), check), policy)
    assert isinstance(decision, Move)
    assert decision.also["avoid"] == avoided


# --- every combination

NODES = st.sampled_from([A, B, NodeId("sim/c")])
CLAIMS = st.dictionaries(NODES, st.sampled_from([(), (0,), (1, 2)]), max_size=3)
RANKS = st.dictionaries(NODES, st.sampled_from([RankState.RUNNING, RankState.GONE]), max_size=3)
DEADLINES = st.none() | st.builds(
    Deadline, clock=st.sampled_from(["sim", "ingest"]), at=st.sampled_from([0.0, 500.0, 5000.0])
)
ENDS = st.none() | st.builds(
    End,
    reason=st.sampled_from(EndReason),
    at=st.just(NOW),
    exit_codes=st.dictionaries(NODES, st.integers(0, 255), max_size=2),
    findings=st.sampled_from(["", "CUDA out of memory", "NCCL timeout", "Killed"]).map(
        lambda tail: judge(tail, TABLES.diagnosis)
    ),
)
CALLS = st.lists(
    st.builds(
        Call, because=st.just("why"), incident=st.none() | st.just(IncidentId("i1")), node=st.none() | NODES,
        lost=st.booleans(), dated=st.none() | st.just(NOW), before=st.sampled_from(["", "sim/a is drained"]),
    ), max_size=2,
).map(tuple)  # fmt: skip
LOSSES = st.lists(
    st.builds(
        Interruption, attempt=st.integers(0, 2), cause=st.just("why"), at=st.floats(0, 1000),
        stages=st.just({"detected": NOW}), closed=st.booleans(),
        incidents=st.sampled_from([(), (IncidentId("i1"),)]),
    ), max_size=3,
).map(tuple)  # fmt: skip
SPECS = st.builds(
    JobSpec, name=st.just("train"), cluster=st.just("sim"), pool=st.just("train"), nodes=st.integers(1, 3),
    on=st.sampled_from([(), (A,)]), min_nodes=st.integers(0, 2), max_restarts=st.none() | st.integers(0, 3),
    precheck=st.none() | st.integers(0, 4),
)  # fmt: skip
JOBS = st.builds(
    Job, id=st.just(JobId("train")), spec=SPECS, submitted_at=st.just(NOW), adopted=st.booleans(),
    state=st.sampled_from(JobState), attempt=st.integers(0, 2), claim=CLAIMS, ranks=RANKS, calls=CALLS, end=ENDS,
    avoid=st.sampled_from([(), (A,)]), restarts=st.lists(st.floats(0, 1000), max_size=4).map(tuple),
    interruptions=LOSSES, gates=st.integers(0, 5), stop_asked=st.sampled_from(["", "by hand"]),
    stop_now=st.booleans(), listens=st.booleans(), save_by=DEADLINES, step=st.none() | st.just(120),
    cancelled=st.booleans(), deadline=DEADLINES, told=st.sampled_from([(), ("job_stuck:1",)]),
    diagnosis=st.just("it ended badly"),  # whoever is given up with a last stop has been diagnosed before it
)  # fmt: skip
TRAIN = JobId("train")
JOB_ACTS = st.sampled_from(
    [
        Verify(nodes=(A, B), level=1), Look(nodes=(A, B)), Look(nodes=(A,), stacks_of=TRAIN),
        StartJob(job=TRAIN, attempt=1, nodes={A: ()}), StartJob(job=TRAIN, attempt=1), StopJob(job=TRAIN, attempt=1),
        StopJob(job=TRAIN, attempt=1, final=True), RerunJob(job=TRAIN, attempt=1),
        AskToSave(job=TRAIN, attempt=1, nodes=(A, B)),
    ]
)  # fmt: skip
INTENTS = st.none() | st.builds(
    intent, JOB_ACTS, st.sampled_from(IntentState), seen_by=DEADLINES, gone=st.booleans(),
    sent_at=st.sampled_from([0.0, 900.0]), answer=st.sampled_from(["", "refused"]),
    verdicts=st.dictionaries(NODES, st.sampled_from(Verdict), max_size=3),
)  # fmt: skip
SUBSETS = st.sets(st.sampled_from(Capability)).map(frozenset) | st.just(EVERYTHING)
SOME = st.lists(NODES, unique=True, max_size=3).map(tuple)


@given(
    start=JOBS, last=INTENTS, can=SUBSETS, free=st.integers(0, 2),
    lost=SOME, unseen=SOME, dismissed=st.booleans(), policy=st.sampled_from(sorted(POLICIES)),
)  # fmt: skip
def test_every_job_comes_to_rest_by_legal_steps(
    start: Job, last: Intent | None, can: frozenset[Capability], free: int, lost: Any, unseen: Any,
    dismissed: bool, policy: str,
) -> None:  # fmt: skip
    current, doing = start, last
    for _ in range(ROUNDS):
        away = OutOfReach(lost=lost, unseen=unseen, fenceable=unseen)
        s = sight(current, doing, can=can, dismissed=dismissed, away=away, room=PoolRoom(free=free))
        decision = resume(s, POLICIES[policy])
        match decision:
            case Stay(wait=wait):
                assert wait.because
                return
            case Do(act=act, event=event, because=because, also=also, patience=patience):
                assert because
                assert patience > timedelta()
                if event:
                    JOB_LIFE.target(replace(current, **also), current.state, event)
                assert not isinstance(act, StartJob) or act.attempt == current.attempt + 1
                return
            case Move(event=event, because=because, also=also):
                assert because
                current = replace(current, **also)
                current = replace(current, state=JOB_LIFE.target(current, current.state, event), intent="")
                doing = None
                if current.state.terminal:
                    return
                if current.state in {JobState.QUEUED, JobState.DIAGNOSING}:
                    current = replace(current, claim={})
            case Change(because=because, also=also):
                assert because
                current = replace(current, **also)
                doing = None if also.get("intent") == "" else doing
    raise AssertionError(f"{start.id} does not come to rest in {current.state}")


@given(start=JOBS, last=INTENTS, can=SUBSETS, lost=SOME, unseen=SOME)
def test_nothing_starts_while_a_rank_may_be_left(
    start: Job, last: Intent | None, can: frozenset[Capability], lost: Any, unseen: Any
) -> None:
    """A job leaves STOPPING only when its ranks are gone: seen gone, stopped, fenced, or nothing was there to stop."""
    stopping = replace(start, state=JobState.STOPPING)
    away = OutOfReach(lost=lost, unseen=unseen, fenceable=unseen)
    decision = decided(sight(stopping, last, can=can, away=away))
    if not isinstance(decision, Move):
        return
    assert last is not None
    all_gone = (
        bool(start.ranks) and RankState.RUNNING not in start.ranks.values() and start.claim.keys() <= start.ranks.keys()
    )
    unheard = any(state == RankState.RUNNING and node in unseen for node, state in start.ranks.items())
    said = last.gone or (last.state.over and start.vanished)
    nothing_there = said and (start.fenced or not unheard)  # a cluster's word about what it can reach
    stopped = isinstance(last.act, StopJob) and (last.state is IntentState.SEEN or nothing_there)
    fenced = last.state is IntentState.SEEN
    assert all_gone or stopped or fenced
