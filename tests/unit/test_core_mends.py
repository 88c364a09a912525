"""Small mends that no other test would miss: each of these is red without the line that it is about."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection
from tests.support import tables

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import open_store
from sickbay.adapters.stores.sqlite import Sqlite
from sickbay.brain.admit import AdmissionInput, AdmissionStage, admit, brake_scopes
from sickbay.brain.endings import recorded
from sickbay.brain.seat import derive
from sickbay.brain.submission import as_started
from sickbay.engine.apply import learn
from sickbay.engine.execute import Effects
from sickbay.engine.ingest import Ingest, Together, Watcher
from sickbay.engine.seats import settle
from sickbay.engine.transitions import let_go
from sickbay.engine.view import Draft, Rules, View
from sickbay.hosts.tally import FleetTally
from sickbay.knowledge.load import load_tables
from sickbay.model.clock import INGEST, WatchedClock
from sickbay.model.errors import StoreError
from sickbay.model.facts import Fact, JobVanished, NodeSeen, NodeVanished, Observed, Ordered
from sickbay.model.fault import Remedy
from sickbay.model.fleet import (
    Brake,
    Capability,
    ConfirmPace,
    Device,
    Incarnation,
    JobId,
    KnownMachine,
    Ledger,
    NodeId,
    Withhold,
    Withholding,
)
from sickbay.model.incident import Phase
from sickbay.model.intent import Intent, IntentState, Repair, StartJob
from sickbay.model.job import End, EndReason, Job, JobSpec, JobState, RankState
from sickbay.model.policy import BrakeRule, BrakeScope, Limit
from sickbay.model.rows import DUE_NOW, AnyRow, Unit, key_of
from sickbay.policy.load import load_policy
from sickbay.ports.cluster import Accepted, Deltas, Lost, Snapshot

NOW = datetime(2026, 3, 1, tzinfo=UTC)
READING = 1000.0


class Bench:
    """A store with some rows, and drafts over it."""

    def __init__(self, *rows: AnyRow, can: frozenset[Capability] = frozenset(Capability)) -> None:
        self.store = MemoryStore(limits=False)
        lease = self.store.lease("test", 1e6)
        assert lease is not None
        self._epoch = lease.epoch
        self._can = can
        if rows:
            self.store.commit(Unit(writes={key_of(row): row for row in rows}), self._epoch)

    def draft(self) -> Draft:
        rules = Rules(policy=tables.POLICY, tables=load_tables(), policy_digest="", can={"sim": self._can}, blind={})
        clocks = {c: WatchedClock(source=c, period=5.0, reading=READING, as_of=READING) for c in (INGEST, "sim")}
        return Draft(View(self.store), rules, clocks, NOW)

    def commit(self, draft: Draft) -> None:
        self.store.commit(draft.body(draft.unit()), self._epoch)


def ordered(draft: Draft, verb: str, target: str = "", seq: int = 7, **args: str) -> None:
    news = Ordered(verb=verb, target=target, by="ann", reason="so", args=args)
    learn(draft, Fact(id=f"order-{seq}", at=NOW, news=news, seq=seq))


def told(draft: Draft) -> str:
    return "\n".join(line.text for line in draft.story)


# --- what is let go, what is asked again, what is new


def test_what_is_let_go_before_it_was_sent_says_so_by_a_value() -> None:
    planned = tables.intent(Repair(node=tables.SEAT, rung=Remedy.REBOOT), IntentState.PLANNED, expect=tables.BOOT)
    drained = tables.incident(Phase.DRAINED, intent=planned.key)
    draft = Bench(planned, drained).draft()
    let_go(draft, drained, planned.key)
    over = draft.intent(planned.key)
    assert over is not None
    assert over.state is IntentState.EXPIRED
    tally = FleetTally()
    tally.intent(planned, replace(over, answer="in other words"))
    assert [result for *_, result in tally.effects.values] == ["withdrawn"]


def test_what_is_let_go_has_a_deadline_also_if_a_later_sending_did_not_arrive() -> None:
    """Sent twice: the first may have taken effect, the second surely did not, and took the deadline along."""
    doubted = tables.intent(
        Repair(node=tables.SEAT, rung=Remedy.REBOOT), IntentState.PLANNED,
        doubted=True, sends=2, sent_at=990.0, seen_by=None, patience=900.0, clock="sim", expect=tables.BOOT,
    )  # fmt: skip
    repairing = tables.incident(Phase.REPAIRING, intent=doubted.key)
    draft = Bench(doubted, repairing).draft()
    after = let_go(draft, repairing, doubted.key)
    assert after.loose == (doubted.key,)
    loose = draft.intent(doubted.key)
    assert loose is not None
    assert loose.withdrawn
    assert loose.seen_by is not None
    assert loose.seen_by.at == READING + 900.0


@pytest.mark.parametrize(("held", "tell"), [(1, ""), (2, "budget")])
def test_a_held_seat_that_is_asked_for_again_is_not_what_uses_the_budget_up(held: int, tell: str) -> None:
    """It was lost when we began and is back; the pool is at its limit without it."""
    seat = tables.node(cordons=(), out=True, ours=True, held=True, counted=True)
    waiting = tables.incident(Phase.HELD)
    ledger = Ledger(pool="train", seats=4, size=4, out=2, ours=2, held=held)
    policy = replace(tables.POLICY, limits=(Limit(out_percent=0, out_at_least=1),))
    fleet = AdmissionInput(ledger=ledger, brakes=(), withholding=Withholding(), now=NOW)
    refused = admit(AdmissionStage.QUARANTINE, waiting, seat, fleet, policy)
    assert refused is not None
    assert "may lack 1 of its seats and lacks 1 already" in refused.because
    assert refused.tell == tell


def test_a_seat_that_is_counted_already_may_be_cordoned_at_the_limit() -> None:
    seat = tables.node(cordons=(), out=True, ours=True, held=True, counted=True)
    ledger = Ledger(pool="train", seats=4, size=4, out=1, ours=1, held=1)
    policy = replace(tables.POLICY, limits=(Limit(out_percent=0, out_at_least=1),))
    fleet = AdmissionInput(ledger=ledger, brakes=(), withholding=Withholding(), now=NOW)
    assert admit(AdmissionStage.QUARANTINE, tables.incident(Phase.HELD), seat, fleet, policy) is None


@pytest.mark.parametrize("counted", [True, False], ids=["seat", "newcomer"])
@pytest.mark.parametrize("to", ["sim/b", ""], ids=["moves", "is gone"])
def test_the_books_of_a_pool_know_that_a_node_has_left_it(to: str, counted: bool) -> None:
    """A job that has told its cluster to avoid it by name waits on them, and looks for it elsewhere (seed 3012)."""
    node = tables.node(pool="sim/a", cordons=(), counted=counted, ready=False)
    bench = Bench(Ledger(pool="sim/a", seats=3, size=3), node)
    draft = bench.draft()
    if to:
        draft.put(replace(node, pool=to))
    else:
        draft.drop(key_of(node))
    settle(draft)
    assert "ledger:sim/a" in draft.writes


def test_who_waits_for_seats_of_a_cluster_is_woken_when_it_has_one_more_pool() -> None:
    def job(name: str, cluster: str, state: JobState) -> Job:
        spec = JobSpec(name=name, cluster=cluster, pool="debug", nodes=1)
        return Job(id=JobId(name), spec=spec, submitted_at=NOW, state=state)

    waits, runs = job("waits", "sim", JobState.QUEUED), job("runs", "sim", JobState.RUNNING)
    elsewhere = job("elsewhere", "other", JobState.QUEUED)
    bench = Bench(waits, runs, elsewhere)
    draft = bench.draft()
    draft.put(tables.node(pool="sim/new", cordons=()))
    settle(draft)
    assert draft.waits.get(key_of(waits)) == DUE_NOW
    assert key_of(runs) not in draft.waits
    assert key_of(elsewhere) not in draft.waits
    bench.commit(draft)
    again = bench.draft()
    again.put(tables.node(id=NodeId("sim/b"), pool="sim/new", cordons=()))
    settle(again)
    assert key_of(waits) not in again.waits, "the pool is known by now"


@pytest.mark.parametrize(
    ("phase", "claimable"), [(Phase.SUSPECT, True), (Phase.QUARANTINED, False), (Phase.HELD, False)]
)
def test_an_exclusion_excuses_a_suspect_and_nobody_who_is_out(phase: Phase, claimable: bool) -> None:
    seat = tables.node(cordons=(), excused=True)
    assert derive(seat, tables.incident(phase), frozenset(Capability)).claimable is claimable


# --- what a list says that the rows do not


class OneList:
    """A cluster that has one list to tell."""

    id, period = "sim", 5.0

    def __init__(self, seen: NodeSeen) -> None:
        self._seen = seen

    def watch(self, _cursor: str | None) -> Deltas | Lost:
        return Lost()

    def snapshot(self) -> Snapshot:
        return Snapshot(cursor="1", as_of=self._seen.as_of, nodes=(self._seen,), jobs=())


class StillClock:
    def wall(self) -> float:
        return NOW.timestamp()

    def mono(self) -> float:
        return READING


KNOWN = tables.node(
    cordons=("other:fan",), domain="rack-1", devices=(Device(index=0, serial="s0"), Device(index=1, serial="s1")),
    registered=tables.BOOT, pool="sim/train", linked=True, unmanaged=1,
)  # fmt: skip
LISTED = NodeSeen(
    node=tables.SEAT, cluster="sim", pool="train", as_of=20.0, incarnation=tables.BOOT, domain="rack-1",
    devices=(Device(index=0), Device(index=1)), linked=True, ready=True, cordons=("other:fan",), unmanaged=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "news"),
    [
        ({}, False),
        ({"as_of": 99.0}, False),
        ({"linked": None}, False),  # it cannot tell
        ({"devices": ()}, False),
        ({"devices": (Device(index=0, serial="s9"), Device(index=1))}, True),
        ({"devices": (Device(index=0),)}, True),
        ({"domain": "rack-2"}, True),
        ({"linked": False}, True),
        ({"pool": "infer"}, True),
        ({"ready": False}, True),
        ({"cordons": ()}, True),
        ({"unmanaged": 0}, True),
        ({"incarnation": tables.NEXT}, True),
    ],
)
def test_a_list_is_a_fact_for_whatever_a_row_keeps_of_it(changed: dict[str, Any], news: bool) -> None:
    bench = Bench(KNOWN)
    cluster: Any = OneList(replace(LISTED, **changed))
    watcher = Watcher(bench.store, cluster, StillClock())
    watcher.read()
    facts = bench.store.facts(after=0, limit=10)
    assert [fact.news for fact in facts if isinstance(fact.news, NodeSeen)] == (
        [replace(LISTED, first_connection=True, **changed)] if news else []
    )


def test_a_cordon_of_ours_on_a_node_that_is_seen_first_is_held_for_a_person_after_the_store_was_lost() -> None:
    """A cluster's list is a fact only where it differs from the row: the first sight may be the only one."""
    bench = Bench()
    draft = bench.draft()
    news = replace(LISTED, first_connection=True, cordons=("sickbay:i30",))
    learn(draft, Fact(id="seen", at=NOW, news=news, seq=1))
    bench.commit(draft)
    found = bench.store.load([f"node:{tables.SEAT}", "incident:i30"])
    assert found[f"node:{tables.SEAT}"].row.incident == "i30"
    assert found["incident:i30"].row.fault.code == "operator.cordon"


# --- rows that would grow


def test_exclusions_are_bounded_and_whoever_makes_one_too_many_is_told() -> None:
    rows = tuple(
        Withhold(id=f"exclude-{n}", because="b" * 200, by="ann", node=f"sim/n{n}", excuse=True) for n in range(1000)
    )
    bench = Bench(Withholding(rows=rows))
    draft = bench.draft()
    ordered(draft, "exclude", node="sim/one-more")
    kept = draft.read(Withholding, "withholding:")
    assert kept is not None
    assert len(kept.rows) == 1000
    assert "there is no room for more" in told(draft)


def test_exclusions_that_are_over_make_room_and_leave() -> None:
    over = NOW - timedelta(hours=1)
    rows = tuple(Withhold(id=f"exclude-{n}", because="b" * 200, by="ann", until=over, excuse=True) for n in range(1000))
    draft = Bench(Withholding(rows=rows)).draft()
    ordered(draft, "exclude", node="sim/one-more")
    kept = draft.read(Withholding, "withholding:")
    assert kept is not None
    assert [row.node for row in kept.rows] == ["sim/one-more"]


def test_pauses_are_bounded_and_those_that_last_longest_stay() -> None:
    bench = Bench()
    for seq in range(1, 60):
        draft = bench.draft()
        ordered(draft, "pause", seq=seq, seconds=str(1000 - seq))
        bench.commit(draft)
    kept = bench.draft().read(Withholding, "withholding:")
    assert kept is not None
    assert len(kept.rows) < 30
    assert any(row.id == "pause-1" for row in kept.rows)
    assert any(row.id == "pause-59" for row in kept.rows), "the newest is in force, whatever it is worth"


def test_a_brake_is_found_by_its_name_however_many_there_are() -> None:
    many = [Brake(scope=f"domain:sim/rack-{n:04d}", signature="xid.79") for n in range(1500)]
    last = Brake(scope="pool:sim/zz", signature="xid.48", tripped_at=NOW)
    paces = [ConfirmPace(scope=f"pool:sim/p{n}", signature="xid.79", next_check=1.0) for n in range(1500)]
    bench = Bench(*many, *paces, last)
    draft = bench.draft()
    ordered(draft, "brake_reset", "pool:sim/zz:xid.48")
    after = draft.read(Brake, key_of(last))
    assert after is not None
    assert after.tripped_at is None
    assert "no brake" not in told(draft)


def test_a_domains_brake_is_that_of_its_own_cluster() -> None:
    policy = replace(tables.POLICY, brakes=(BrakeRule(scope=BrakeScope.DOMAIN, signature="*"),))
    sick = tables.incident(Phase.SUSPECT)
    scopes = [
        [scope for _, scope in brake_scopes(sick, tables.node(cluster=cluster, domain="rack-1"), policy)]
        for cluster in ("a", "b")
    ]
    assert scopes == [["domain:a/rack-1"], ["domain:b/rack-1"]]
    assert not list(brake_scopes(sick, tables.node(domain=""), policy)), "nobody said where it stands"


def test_a_machine_that_is_gone_is_forgotten_some_time_after_and_not_before() -> None:
    """Who held a seat is remembered, so that it is no newcomer if it registers again; not for ever."""
    holder = f"record:holder/{tables.BOOT.instance_id}"
    bench = Bench()
    first = bench.draft()
    learn(first, Fact(id="seen", at=NOW, news=replace(LISTED, first_connection=True), seq=1))
    bench.commit(first)
    bench.store.forget(NOW + timedelta(days=900))
    assert isinstance(bench.store.load([holder])[holder].row, KnownMachine)
    second = bench.draft()
    learn(second, Fact(id="gone", at=NOW, news=NodeVanished(node=tables.SEAT, as_of=30.0), seq=2))
    bench.commit(second)
    bench.store.forget(NOW - timedelta(days=1))
    assert isinstance(bench.store.load([holder])[holder].row, KnownMachine)
    bench.store.forget(NOW + timedelta(days=1))
    assert bench.store.load([holder])[holder].row is None


def test_a_machine_that_comes_back_is_remembered_again() -> None:
    holder = f"record:holder/{tables.BOOT.instance_id}"
    bench = Bench(KnownMachine(subject=holder.removeprefix("record:"), gone_at=NOW - timedelta(days=3)))
    draft = bench.draft()
    learn(draft, Fact(id="seen", at=NOW, news=LISTED, seq=1))
    bench.commit(draft)
    row = bench.store.load([holder])[holder].row
    assert isinstance(row, KnownMachine)
    assert row.gone_at is None
    seat = bench.draft().node(tables.SEAT)
    assert seat is not None
    assert seat.incident is None, "it is no newcomer"


# --- the disk


@pytest.fixture
def database(tmp_path: Path) -> Any:
    store: Any = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield store._db
    store.close()


def level(connection: Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())


def test_what_must_be_durable_is_on_the_disk_when_its_commit_returns(database: Sqlite) -> None:
    """1 is NORMAL, 2 is FULL (https://www.sqlite.org/pragma.html#pragma_synchronous)."""
    with database.writing() as connection:
        assert level(connection) == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    with database.writing(durable=False) as connection:
        assert level(connection) == 1
    with database.writing() as connection:
        assert level(connection) == 2


def test_a_write_that_need_not_be_durable_and_fails_leaves_the_next_one_durable(database: Sqlite) -> None:
    with pytest.raises(StoreError):
        wrong(database)
    with database.writing() as connection:
        assert level(connection) == 2


def test_the_first_error_of_a_connection_is_the_one_that_is_told(database: Sqlite) -> None:
    """A connection that is gone can neither roll back nor be set back to FULL: that must not hide why it failed."""
    with pytest.raises(StoreError, match="closed database"):
        wrong(database, closed=True)


def wrong(database: Sqlite, *, closed: bool = False) -> None:
    with database.writing(durable=False) as connection:
        raw: Any = connection.connection.dbapi_connection
        if closed:
            raw.close()
        connection.exec_driver_sql("SELECT nothing FROM nowhere")


# --- the door


LONG = "x" * 450_000


@pytest.mark.parametrize("way", ["take", "tell", "together", "watch"])
def test_a_long_text_is_cut_whichever_way_it_enters(way: str) -> None:
    store = MemoryStore(limits=False)
    clock: Any = StillClock()
    news = Observed(node=tables.SEAT, kind="xid", text=LONG, incarnation=Incarnation(boot_id="b"))
    fact = Fact(id="f", at=NOW, news=news)
    match way:
        case "take":
            Ingest(store, clock).take([fact])
        case "tell":
            Ingest(store, clock).tell("f", news)
        case "together":
            Together(store, clock).tell("f", news)
        case _:
            cluster: Any = OneList(replace(LISTED, cordons=(f"other:{LONG}",)))
            Watcher(store, cluster, clock).read()
    (kept,) = store.facts(after=0, limit=10)
    assert LONG not in str(kept.news)


# --- a list that ends early


class PurgedQueue(OneList):
    """A cluster whose lists have no jobs, and whose deltas say nothing."""

    def __init__(self) -> None:
        super().__init__(LISTED)
        self.lists = 0

    def watch(self, cursor: str | None) -> Deltas | Lost:
        return Lost() if cursor is None else Deltas(cursor=cursor, as_of=20.0 + self.lists)

    def snapshot(self) -> Snapshot:
        self.lists += 1
        return Snapshot(cursor="1", as_of=20.0 + self.lists, nodes=(LISTED,), jobs=())


class FailingStore(MemoryStore):
    """Its next append fails, once."""

    failing = False

    def append(self, *args: Any, **more: Any) -> int:
        if self.failing:
            self.failing = False
            raise StoreError("not now")
        return super().append(*args, **more)


def test_a_list_that_was_not_stored_whole_is_listed_again() -> None:
    spec = JobSpec(name="llama", cluster="sim", pool="train", nodes=1)
    job = Job(
        id=JobId("llama"), spec=spec, submitted_at=NOW, state=JobState.RUNNING, attempt=1,
        ranks={tables.SEAT: RankState.RUNNING}, claim={tables.SEAT: ()}, ranks_as_of=5.0,
    )  # fmt: skip
    store, cluster = FailingStore(limits=False), PurgedQueue()
    lease = store.lease("test", 1e6)
    assert lease is not None
    store.commit(Unit(writes={key_of(job): job, key_of(KNOWN): KNOWN}), lease.epoch)
    told: Any = cluster
    watcher = Watcher(store, told, StillClock())
    while watcher.read() or watcher.amid or not cluster.lists:
        pass
    store.failing = True  # at the second list, which is asked for because a job was missing in the first
    with pytest.raises(StoreError):
        watcher.read()
    watcher.read()
    missing = [fact.news.as_of for fact in store.facts(after=0, limit=50) if isinstance(fact.news, JobVanished)]
    assert missing == [21.0, 23.0], "the list that failed counts for nothing, and another is asked for"


class Defective(OneList):
    """Its next list breaks off as no port says: a key that is missing in an answer."""

    defect = True

    def snapshot(self) -> Snapshot:
        if self.defect:
            raise KeyError("Nodes")
        return super().snapshot()


def test_a_list_that_broke_off_by_a_defect_is_listed_again() -> None:
    store, cluster = MemoryStore(limits=False), Defective(LISTED)
    told: Any = cluster
    watcher = Watcher(store, told, StillClock())
    for _ in range(2):  # it is raised each time: whoever runs this tells of it
        with pytest.raises(KeyError):
            watcher.read()
        assert not watcher.amid
    cluster.defect = False
    watcher.read()
    assert [type(fact.news) for fact in store.facts(after=0, limit=10)] == [NodeSeen]


# --- what a start carries along


@pytest.mark.parametrize(("step", "told"), [(None, None), (0, None), (57, "57")])
def test_a_start_says_how_far_the_job_has_been(step: int | None, told: str | None) -> None:
    spec = JobSpec(name="llama", cluster="sim", pool="train", nodes=1, env={"A": "b"})
    job = Job(id=JobId("llama"), spec=spec, submitted_at=NOW, step=step)
    act = StartJob(job=job.id, attempt=2, nodes={tables.SEAT: ()})
    started: list[JobSpec] = []

    class Cluster:
        def wrong(self, _spec: JobSpec) -> str:
            return ""

        def start(self, _job: str, _attempt: int, *, spec: JobSpec, **_more: object) -> Accepted:
            started.append(spec)
            return Accepted()

    site: Any = SimpleNamespace(cluster=Cluster())
    start = Intent(
        key="k", owner="job:llama", cluster="sim", pool="sim/train", act=act, because="so", planned_at=NOW,
        clock="sim", call_timeout=10.0, patience=60.0,
    )  # fmt: skip
    ready = replace(job, spec=as_started(job, load_policy("default")))
    assert Effects(sites={"sim": site}, notifiers={}).perform(start, ready, {}).result == "accepted"
    assert started[0].env.get("SICKBAY_LAST_STEP") == told
    assert (started[0].start_within, started[0].expects_heartbeats) == (3600.0, told is not None)
    assert started[0].env["A"] == "b"


def test_what_its_cluster_cannot_start_is_refused_for_good_before_it_is_asked_to() -> None:
    class Cluster:
        def wrong(self, _spec: JobSpec) -> str:
            return "image: it runs none"

    site: Any = SimpleNamespace(cluster=Cluster())
    job = Job(id=JobId("llama"), spec=JobSpec(name="llama", cluster="sim", pool="train"), submitted_at=NOW)
    start = Intent(
        key="k", owner="job:llama", cluster="sim", pool="sim/train", act=StartJob(job=job.id, attempt=1, nodes={}),
        because="so", planned_at=NOW, clock="sim", call_timeout=10.0, patience=60.0,
    )  # fmt: skip
    outcome = Effects(sites={"sim": site}, notifiers={}).perform(start, job, {})
    assert (outcome.result, outcome.text, outcome.hopeless) == ("rejected", "image: it runs none", True)


def test_an_attempt_whose_rank_ended_before_all_were_seen_has_begun_before_it_ended() -> None:
    ended = NOW + timedelta(milliseconds=-3)
    job = Job(
        id=JobId("j"), spec=JobSpec(name="j", cluster="sim", pool="train", nodes=1), submitted_at=NOW, attempt=1,
        state=JobState.DIAGNOSING, began_at=ended, started_at=NOW, end=End(reason=EndReason.FAILED, at=ended),
    )  # fmt: skip
    record = recorded(None, job, NOW)
    assert record.started_at == record.ended_at == ended
