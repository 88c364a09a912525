"""Mends that no other test holds: each of these is red when its mend is reverted."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from tests.scenario.test_acts import Channel
from tests.support import tables
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without
from tests.unit import test_resume as jobs
from tests.unit.test_core_mends import READING, Bench

from sickbay.adapters.executors.threads import ThreadExecutor
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain.decision import Do, Move
from sickbay.brain.job_input import OutOfReach
from sickbay.engine.apply import learn
from sickbay.engine.clocks import SharedClock
from sickbay.engine.seats import take_turns
from sickbay.engine.view import View, moment
from sickbay.hosts import controller as host
from sickbay.hosts.changes import Changes
from sickbay.hosts.clock import SystemClock
from sickbay.hosts.controller import Controller
from sickbay.model.errors import Rejected, Transient
from sickbay.model.facts import CallResult, Fact, JobSeen, Observed, Ordered, Outcome
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, Ledger, Node, NodeId
from sickbay.model.incident import Phase, Try, last_repair
from sickbay.model.intent import Fence, Intent, IntentState, Repair, StopJob
from sickbay.model.job import End, EndReason, Job, JobSpec, JobState, RankState
from sickbay.model.rows import Unit, key_of
from sickbay.sim.context import CLUSTER_CAN, ClusterRules
from sickbay.sim.simulation import CLUSTER
from sickbay.wiring import WiredFleet


@pytest.fixture
def ward() -> OpenWard:
    return Ward


# --- A21: what a refusal means


def answered(state: IntentState, outcome: Outcome, **more: Any) -> Intent:
    of = tables.intent(Repair(node=tables.SEAT, rung=Remedy.REBOOT), state, sent_at=990.0, seen_by=None, **more)
    draft = Bench(of).draft()
    learn(draft, Fact(id="answer", at=tables.NOW, news=replace(outcome, key=of.key), seq=3))
    after = draft.intent(of.key)
    assert after is not None
    return after


def said(result: CallResult, sends: int) -> Outcome:
    return Outcome(key="", result=result, sends=sends, text="no")


def test_what_is_refused_after_sendings_that_surely_had_no_effect_is_refused() -> None:
    after = answered(IntentState.SENT, said(CallResult.REJECTED, 2), sends=2, doubted=0)
    assert (after.state, after.refused) == (IntentState.REJECTED, False)


def test_what_is_refused_after_a_sending_in_doubt_is_in_doubt_until_a_deadline() -> None:
    after = answered(IntentState.SENT, said(CallResult.REJECTED, 3), sends=3, doubted=1)
    assert (after.state, after.refused) == (IntentState.UNKNOWN, True)
    assert after.seen_by is not None
    assert after.seen_by.at == READING + after.patience


@pytest.mark.parametrize("result", [CallResult.TRANSIENT, CallResult.REJECTED])
def test_a_late_answer_to_the_sending_in_doubt_ends_the_doubt_and_nothing_else(result: CallResult) -> None:
    after = answered(IntentState.SENT, said(result, 1), sends=2, doubted=1)
    assert (after.state, after.doubted, after.sends) == (IntentState.SENT, 0, 2)


@pytest.mark.parametrize("result", [CallResult.TRANSIENT, CallResult.REJECTED, CallResult.UNKNOWN])
def test_a_late_answer_to_an_earlier_sending_does_not_end_the_later_one(result: CallResult) -> None:
    after = answered(IntentState.SENT, said(result, 1), sends=2, doubted=0)
    assert after.state is IntentState.SENT


def test_a_start_that_is_refused_after_a_refused_connection_is_not_stopped(ward: OpenWard) -> None:
    """Nothing of it can be anywhere: neither a stop nor a wait is due."""
    w = ward(cluster=cluster_without("place"))
    site = w.sim.hands.sites["sim"].cluster
    Channel(site, "start", lambda n: Transient("refused connection") if n % 2 else Rejected("invalid partition"))
    stop = Channel(site, "stop", lambda _: None)
    job = w.sim.submit("train", nodes=2)
    w.until(lambda: w.state(job) == JobState.FAILED, HOUR)
    assert stop.calls == 0


# --- A23: what proves that a machine was sick


@pytest.mark.parametrize(
    ("phase", "held", "proves"),
    [(Phase.RELEASED, False, True), (Phase.REPLACED, False, True), (Phase.GONE, True, True),
     (Phase.GONE, False, False), (Phase.DISMISSED, False, False), (Phase.DISMISSED, True, False)],
)  # fmt: skip
def test_only_what_ended_in_proof_is_in_the_hardwares_history(phase: Phase, held: bool, proves: bool) -> None:
    tried = (Try(rung=Remedy.REBOOT, result="started", at=tables.NOW),)
    incident = tables.incident(Phase.HELD if held else Phase.REPAIRING, tries=tried)
    assert last_repair(replace(incident, phase=phase)) == (Remedy.REBOOT if proves else None)


# --- A30: an observation that stands for many


def test_what_one_observation_counts_is_counted(ward: OpenWard) -> None:
    """Xid 94 three times on one GPU within a day asks for a reset; here an agent tells of three in one line."""
    w = ward()
    node = w.nodes[0]
    fields: dict[str, str | int] = {"number": 94, "device": 0}
    news = Observed(node=node, kind="xid", fields=fields, incarnation=w.node(node).incarnation, count=3)
    w.sim.store.append([Fact(id="many", at=moment(w.sim.clock.wall()), news=news)])
    w.run(60)
    assert w.incident(node).remedy is Remedy.RESET_GPU


# --- G2, D: a claim takes its turn where its nodes are


def test_a_claim_takes_its_turn_in_the_pools_of_its_nodes() -> None:
    seat = Node(id=tables.SEAT, cluster="sim", pool="sim/gpu", incarnation=tables.BOOT)
    pools = [Ledger(pool="sim/gpu", seats=1), Ledger(pool="sim/debug")]
    job = Job(id=JobId("j"), spec=JobSpec(name="j", cluster="sim", pool="debug", nodes=1), submitted_at=tables.NOW)
    draft = Bench(seat, *pools).draft()
    take_turns(draft, job, [seat.id])
    assert draft.ledger("sim/gpu").turn == 1


# --- hosts: A.6 (skewed clocks), A34 (retention beside the engine)


def controller(w: Ward, store: MemoryStore) -> Controller:
    fleet = WiredFleet(hands=w.sim.hands, rules=w.sim.rules, pauses={CLUSTER: lambda _: time.sleep(0.01)})
    return Controller(store, fleet, ThreadExecutor(), SystemClock(), Changes(), holder="me")


def test_a_controller_and_its_faces_date_by_the_time_of_the_store(ward: OpenWard) -> None:
    class Elsewhere(MemoryStore):
        def time(self) -> float:
            return 2_000_000_000.0

    made = controller(ward(nodes=2), Elsewhere())
    for clock in (made._clock, made.backend._clock, made._engine._clock):
        assert isinstance(clock, SharedClock)
        assert abs(clock.wall() - 2_000_000_000.0) < 60


def test_no_round_waits_for_what_is_forgotten(ward: OpenWard, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def forget(self, before: object) -> int:
            del before
            begun.set()
            go_on.wait(20.0)
            return 0

    monkeypatch.setattr(host, "TIDY", 0.2)
    made = controller(ward(nodes=2), Slow())
    monkeypatch.setattr(made._engine, "oldest", lambda *_: tables.NOW)
    rounds = [0]
    real = made._engine.round

    def counted() -> int:
        rounds[0] += 1
        return real()

    monkeypatch.setattr(made._engine, "round", counted)
    made.start(canary=lambda: True)
    try:
        assert begun.wait(10.0)
        before = rounds[0]
        made.backend.changes.wait(lambda: rounds[0] > before + 3, 5.0)
        deadline = time.monotonic() + 5.0
        while rounds[0] < before + 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert rounds[0] >= before + 3, "the engine stands still while old rows are forgotten"
    finally:
        go_on.set()
        made.stop()


# --- clusters: what a list tells, whom it adopts, what a stop that came too late means


def test_what_only_a_list_tells_is_learned(ward: OpenWard) -> None:
    """A label that was put on while nobody read: the stream does not say it any more, the list does."""
    w = ward(nodes=4)
    w.run(60)
    wish = Ordered(verb="reboot", target=w.nodes[1], by="alice (label)", reason="Action:Reboot")
    w.world.says(CLUSTER, "label/1", wish)
    w.world.ground.views[CLUSTER].cut()
    assert w.reaches(w.nodes[1], Phase.RELEASED).fault.code == "operator.reboot"


def test_a_job_that_is_shown_before_it_has_nodes_is_not_adopted() -> None:
    spec = JobSpec(name="theirs", cluster="sim", pool="train", nodes=2)
    pending = JobSeen(job=JobId("theirs"), attempt=1, as_of=5.0, native=True, spec=spec, cluster="sim")
    draft = Bench().draft()
    learn(draft, Fact(id="pending", at=tables.NOW, news=pending, seq=3))
    assert draft.job(pending.job) is None
    learn(draft, Fact(id="placed", at=tables.NOW, news=replace(pending, ranks={tables.SEAT: RankState.RUNNING}), seq=4))
    assert draft.job(pending.job) is not None


@pytest.mark.parametrize(
    ("stop", "held"),
    [
        (jobs.intent(StopJob(job=JobId("train"), attempt=1), IntentState.SEEN), True),
        (jobs.intent(StopJob(job=JobId("train"), attempt=1), IntentState.ACCEPTED), True),
        (jobs.intent(StopJob(job=JobId("train"), attempt=1, final=True), IntentState.SEEN), False),
        (jobs.intent(StopJob(job=JobId("train"), attempt=1), IntentState.REJECTED, gone=True), False),
        (jobs.intent(StopJob(job=JobId("train"), attempt=1), IntentState.EXPIRED), False),
    ],
)
def test_only_a_stop_that_was_taken_holds_a_job(stop: Intent, held: bool) -> None:
    """Else its own controller may run it again by itself, and is given its time."""
    of = jobs.job(JobState.STOPPING, adopted=True, ranks=jobs.GONE, end=jobs.ended(), intent=stop.key)
    decision = jobs.decided(jobs.sight(of, stop))
    assert isinstance(decision, Move)
    assert decision.also["held"] is held


def test_nodes_out_of_reach_are_fenced_side_by_side() -> None:
    """A fence may take minutes: the second does not wait for the first."""
    stop = jobs.intent(StopJob(job=JobId("train"), attempt=1), IntentState.ACCEPTED)
    first = replace(jobs.intent(Fence(job=JobId("train"), attempt=1, node=jobs.A), IntentState.SENT), key="train.2")
    of = jobs.job(
        JobState.STOPPING,
        ranks={jobs.A: RankState.RUNNING, jobs.B: RankState.RUNNING},
        intent=stop.key,
        fences=(first.key,),
    )
    away = (jobs.A, jobs.B)
    s = jobs.sight(of, stop, fences=(first,), away=OutOfReach(lost=away, unseen=away, fenceable=away))
    decision = jobs.decided(s)
    assert isinstance(decision, Do)
    assert decision.act == Fence(job=JobId("train"), attempt=1, node=jobs.B)


def test_a_tail_that_comes_when_the_job_is_over_is_kept() -> None:
    end = End(reason=EndReason.FAILED, at=tables.NOW)
    over = jobs.job(JobState.FAILED, end=end, ranks=jobs.GONE)
    seen = JobSeen(job=over.id, attempt=1, as_of=9.0, ranks=jobs.GONE, end=replace(end, tail="NaN"), cluster="sim")
    draft = Bench(over).draft()
    learn(draft, Fact(id="late", at=tables.NOW, news=seen, seq=3))
    after = draft.job(over.id)
    assert after is not None
    assert after.end is not None
    assert after.end.tail == "NaN"


def test_a_native_restart_that_is_at_once_spends_nothing_for_a_sick_node_that_a_pause_keeps_in_service() -> None:
    """Quick enough to be seen before we have judged the end: then the restart itself must ask whose fault it is."""
    hall = Ward(nodes=4, cluster=ClusterRules(id=CLUSTER, capabilities=CLUSTER_CAN - {Capability.PLACE}))
    hall.order("pause", "")
    job = hall.submitted_elsewhere(nodes=1, steps=10**6, native_delay=0.5)
    hall.sick(hall.starts(job)[0][1][0])
    hall.until(lambda: len(hall.starts(job)) >= 4, HOUR)
    assert hall.job(job).restarts == ()


# --- A32, N: what is read again and again, and by whom


def test_who_carries_a_tag_is_read_once_however_often_that_changes() -> None:
    asked: list[str] = []

    class Counted(MemoryStore):
        def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
            asked.append(tag)
            return super().find(tag, limit)

    seats = [Node(id=NodeId(f"sim/{n}"), cluster="sim", pool="sim/gpu", claimable=True) for n in range(5)]
    store = Counted(limits=False)
    lease = store.lease("me", 1e6)
    assert lease is not None
    store.commit(Unit(writes={key_of(seat): seat for seat in seats}), lease.epoch)
    view = View(store)
    tag = "claimable:sim/gpu"
    for n, seat in enumerate(seats):
        assert list(view.find(tag)) == [key_of(each) for each in seats[n:]]
        view.fetch([key_of(seat)])
        unit = Unit(writes={key_of(seat): replace(seat, claimable=False)})
        view.wrote(unit, store.commit(unit, lease.epoch))
    assert list(view.find(tag)) == []
    assert asked == [tag]


def test_a_controller_that_does_not_lead_reads_no_cluster_and_moves_no_clock(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CANARY", 0.05)
    w, store = ward(nodes=2), MemoryStore()
    assert store.lease("another", 60.0) is not None
    follower = controller(w, store)
    site = w.sim.hands.sites[CLUSTER].cluster
    reads = [Channel(site, name, lambda _: None) for name in ("watch", "snapshot")]
    canaries = [0]

    def canary() -> bool:
        canaries[0] += 1
        return True

    follower.start(canary=canary)
    try:
        deadline = time.monotonic() + 10.0
        while canaries[0] < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        follower.stop()
    assert canaries[0] >= 5
    assert [read.calls for read in reads] == [0, 0]
    assert [row.row for row in store.load(["clock:ingest", f"clock:{CLUSTER}"]).values()] == [None, None]
