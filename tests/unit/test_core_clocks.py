"""Watched clocks, how decisions see them, and the wall clock that replicas share."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sqlite import Sqlite
from sickbay.engine.clocks import Clocks, SharedClock
from sickbay.engine.ingest import Ingest
from sickbay.engine.plan_incidents import _sight as sight_of
from sickbay.engine.plan_intents import plan_intent
from sickbay.engine.view import Draft, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.model.clock import INGEST, READ_MOST, Deadline, WatchedClock
from sickbay.model.errors import Conflict, StoreUnavailable
from sickbay.model.fleet import Cursor, Incarnation, JobId, NodeId
from sickbay.model.intent import AnyAct, Intent, IntentState, Look, Release, StopJob
from sickbay.model.job import RankState
from sickbay.model.rows import AnyRow, key_of
from sickbay.policy.load import load_policy
from sickbay.testing.store_nouns import NOON, job, node, writes
from sickbay.testing.store_nouns import incident as incident_of
from sickbay.testing.store_nouns import intent as intent_of


class Watch:
    """A machine's clock: its wall may be wrong."""

    def __init__(self, wrong: float = 0.0) -> None:
        self.now = 1000.0
        self.wrong = wrong

    def wall(self) -> float:
        return 1_000_000.0 + self.now + self.wrong

    def mono(self) -> float:
        return self.now


def clock(**more: object) -> WatchedClock:
    return WatchedClock(source="c", period=5.0, **more)  # type: ignore[arg-type]


# --- the arithmetic


@pytest.mark.parametrize(("gap", "counted"), [(4.0, 4.0), (10.0, 10.0), (10.1, 0.0), (7200.0, 0.0), (-3.0, 0.0)])
def test_a_gap_counts_up_to_two_periods(gap: float, counted: float) -> None:
    assert clock().heard(100.0).heard(100.0 + gap).reading == counted


@pytest.mark.parametrize("takes", [4.0, 6.0, 60.0, READ_MOST])
def test_a_read_that_takes_longer_than_its_period_does_not_freeze_the_clock(takes: float) -> None:
    watched = clock()
    for n in range(1, 101):
        watched = watched.heard(n * (takes + 5.0), takes)
    assert watched.reading == pytest.approx(99 * (takes + 5.0))


def test_a_read_that_hangs_for_hours_counts_nothing() -> None:
    before = clock().heard(100.0).heard(105.0)
    hung = before.heard(105.0 + 5.0 + 7200.0, 7200.0)
    assert hung.reading == 10.0  # until it began
    assert hung.heard(105.0 + 5.0 + 7200.0 + 5.0).reading == 10.0


def test_what_was_read_is_as_old_as_the_beginning_of_its_read() -> None:
    """Else a deadline could pass on the strength of a read that began before the act."""
    assert clock().heard(100.0).heard(160.0, 55.0).reading == 5.0


def test_two_writers_whose_clocks_differ_do_not_make_it_run_fast() -> None:
    watched = clock().heard(0.0)
    for n in range(1, 601):
        watched = watched.heard(n).heard(n + 3.4)
    assert watched.reading <= 600.0 + 3.4


def test_a_wall_clock_that_was_set_back_far_is_followed_at_once() -> None:
    back = clock().heard(10_000.0).heard(400.0)
    assert back.heard(405.0).reading == 5.0


def test_a_clock_says_when_it_last_moved() -> None:
    moved = clock().heard(100.0).heard(105.0)
    stands = moved.heard(200.0).heard(300.0)
    assert (stands.last, stands.moved) == (300.0, 105.0)


# --- what decisions see


def learned(clocks: Clocks) -> float:
    return clocks.learned["c"].reading if "c" in clocks.learned else 0.0


def test_a_clock_whose_facts_are_not_learned_is_not_looked_at() -> None:
    clocks = Clocks(newest={"c": clock(reading=900.0, facts=5000)})
    clocks.recall(Cursor(at=10))
    clocks.advance(4000)
    assert learned(clocks) == 0.0
    clocks.advance(5000)
    assert learned(clocks) == 900.0


def test_who_never_catches_up_still_moves_on() -> None:
    """Clocks that were ahead once are looked at when the facts of that time are learned, however many came since."""
    clocks, cursor = Clocks(), Cursor()
    for n in range(1, 20):
        clocks.newest = {"c": clock(reading=float(n), facts=1000 + 500 * n)}
        clocks.recall(cursor)
        clocks.advance(cursor.at + 500)
        cursor = clocks.kept(cursor.at + 500)
    assert 15.0 <= learned(clocks) < 19.0


def test_a_host_that_forgets_goes_on_with_what_is_stored_beside_the_cursor() -> None:
    cursor = Cursor()
    for n in range(1, 20):
        cold = Clocks(newest={"c": clock(reading=float(n), facts=1000 + 500 * n)})
        cold.recall(cursor)
        at = cursor.at + 500
        cursor = cold.kept(at)
    assert 14.0 <= cursor.learned["c"].reading < 19.0


def test_without_a_backlog_nothing_is_stored_beside_the_cursor() -> None:
    clocks = Clocks(newest={"c": clock(reading=7.0, facts=3)})
    clocks.recall(Cursor(at=3))
    assert clocks.kept(4) == Cursor(at=4)


# --- one time for all replicas


def test_replicas_take_the_time_of_the_store_where_it_has_one() -> None:
    truth = Watch()
    store = MemoryStore(wall=truth.wall)
    ahead, behind = SharedClock(store, Watch(8.0)), SharedClock(store, Watch(-8.0))
    assert ahead.wall() == behind.wall() == truth.wall()


def test_without_a_time_of_the_store_the_machine_has_its_own() -> None:
    own = Watch(8.0)
    assert SharedClock(MemoryStore(), own).wall() == own.wall()


def test_a_machine_whose_wall_clock_is_set_asks_the_store_at_once() -> None:
    own = Watch(8.0)
    shared = SharedClock(MemoryStore(wall=Watch().wall), own)
    shared.wall()
    own.wrong = -3600.0
    assert shared.wall() == Watch().wall()


def test_a_store_that_does_not_answer_leaves_the_time_that_was_measured() -> None:
    class Away(MemoryStore):
        away = False

        def time(self) -> float | None:
            if self.away:
                raise StoreUnavailable("away")
            return super().time()

    truth, own = Watch(), Watch(8.0)
    store = Away(wall=truth.wall)
    shared = SharedClock(store, own)
    shared.wall()
    store.away = True
    own.now = truth.now = 2000.0
    assert shared.wall() == truth.wall()


@pytest.mark.parametrize("skew", [0.5, 3.0, 8.0, 15.0])
@pytest.mark.parametrize("timed", [True, False])
def test_reports_through_two_replicas_with_skewed_clocks_do_not_hasten_silence(skew: float, timed: bool) -> None:
    truth, wrong = Watch(), Watch(skew)
    store = MemoryStore(wall=truth.wall if timed else None)
    leader = Ingest(store, SharedClock(store, truth), leads=lambda: True)
    other = Ingest(store, SharedClock(store, wrong), leads=lambda: False)
    node, holder = NodeId("c/n"), Incarnation(uid="u", instance_id="i", boot_id="b")
    for n in range(600):
        truth.now = wrong.now = 1000.0 + n
        leader.take([])
        truth.now = wrong.now = 1000.4 + n
        other.take([], {node: holder})
    row = store.load([f"clock:{INGEST}"])[f"clock:{INGEST}"].row
    assert isinstance(row, WatchedClock)
    assert 598.0 <= row.reading <= 600.0
    ((_, pulse),) = store.voices(0.0).heard
    assert row.reading - 1.0 <= pulse.reading <= row.reading


# --- what an intent is judged by

RULES = Rules(policy=load_policy("default"), tables=load_tables(), policy_digest="p", can={}, blind={})
SEAT = NodeId("c/a")


def drafted(store: MemoryStore, *rows: AnyRow, as_of: float = 0.0, ingest: float = 0.0) -> Draft:
    """A decision over these rows, with a cluster that has been read that far."""
    lease = store.lease("me", 600.0)
    assert lease is not None
    store.commit(writes(*rows), lease.epoch)
    clocks = {"c": clock(reading=1000.0, as_of=as_of), INGEST: WatchedClock(source=INGEST, period=5.0, reading=ingest)}
    return Draft(View(store), RULES, clocks, NOON)


def followed(draft: Draft, intent: Intent) -> Intent:
    plan_intent(draft, key_of(intent))
    row = draft.peek(Intent, key_of(intent))
    assert row is not None
    return row


def accepted(act: AnyAct, *, visible_from: float) -> Intent:
    return replace(
        intent_of("i.1"), act=act, clock="c", state=IntentState.ACCEPTED, sends=1, visible_from=visible_from,
        seen_by=Deadline(clock="c", at=2000.0),
    )  # fmt: skip


def test_an_effect_that_its_own_seat_shows_does_not_wait_for_a_read_of_the_whole_cluster() -> None:
    release = accepted(Release(node=SEAT, owner="sickbay:i"), visible_from=100.0)
    draft = drafted(MemoryStore(), release, node("a", as_of=105.0), as_of=90.0)
    assert followed(draft, release).state is IntentState.SEEN


def test_a_seat_that_was_read_before_the_effect_proves_nothing() -> None:
    release = accepted(Release(node=SEAT, owner="sickbay:i"), visible_from=100.0)
    draft = drafted(MemoryStore(), release, node("a", as_of=95.0), as_of=90.0)
    assert followed(draft, release).state is IntentState.ACCEPTED


def test_ranks_that_the_job_itself_shows_gone_do_not_wait_for_a_read_of_the_whole_cluster() -> None:
    stop = accepted(StopJob(job=JobId("j"), attempt=1), visible_from=100.0)
    stopped = replace(job("j"), attempt=1, ranks={SEAT: RankState.GONE}, ranks_as_of=105.0)
    assert followed(drafted(MemoryStore(), stop, stopped, as_of=90.0), stop).state is IntentState.SEEN
    early = replace(stopped, ranks_as_of=95.0)
    assert followed(drafted(MemoryStore(), stop, early, as_of=90.0), stop).state is IntentState.ACCEPTED


def test_a_seat_that_was_read_after_the_effect_and_does_not_show_it_is_not_looked_at_again_and_again() -> None:
    """Only while no read is new enough does every further one tell; from then on a change of its row does."""
    release = accepted(Release(node=SEAT, owner="sickbay:i"), visible_from=100.0)
    for as_of, until in ((95.0, 1005.0), (105.0, 2000.0)):
        draft = drafted(MemoryStore(), release, node("a", as_of=as_of, cordons=("sickbay:i",)), as_of=90.0)
        followed(draft, release)
        mark = draft.waits["intent:i.1"]
        assert mark is not None
        assert mark.until == Deadline(clock="c", at=until)
        assert "node:c/a" in mark.on


@pytest.mark.parametrize(("reading", "state"), [(119.0, IntentState.UNKNOWN), (120.0, IntentState.PLANNED)])
def test_what_an_agent_was_asked_counts_as_absent_only_after_two_timeouts(reading: float, state: IntentState) -> None:
    """No read shows it, so time must do: once for the call, once more for its answer."""
    look = replace(
        intent_of("i.1"), act=Look(nodes=(SEAT,)), clock=INGEST, call_timeout=10.0, sent_at=100.0, sends=1,
        state=IntentState.UNKNOWN, seen_by=Deadline(clock=INGEST, at=900.0),
    )  # fmt: skip
    assert followed(drafted(MemoryStore(), look, ingest=reading), look).state is state


# --- what a decision depends on


def test_a_unit_is_refused_when_a_row_that_it_only_read_has_changed() -> None:
    store = MemoryStore()
    draft = drafted(store, node("a"))
    assert draft.node(SEAT) is not None
    draft.put(incident_of("i"))
    lease = store.lease("me", 600.0)
    assert lease is not None
    store.commit(writes(node("a", unmanaged=1)), lease.epoch)
    with pytest.raises(Conflict):
        store.commit(draft.unit(), lease.epoch)


def test_a_decision_about_a_node_that_can_be_claimed_takes_turns_with_claims_and_is_not_woken_by_them() -> None:
    """A node whose fault is excused may be given to a job at any time. Nothing follows while it is excused: when that
    ends, its incident is due, and what runs there by then is its business. Claims are many.
    """
    open_ = replace(incident_of("i"), began=0.0)
    seat = node("a", claimable=True, incident=open_.id, incarnation=open_.incarnation, excused=True)
    for claimable, takes_turns in ((True, True), (False, False)):
        draft = drafted(MemoryStore(), open_, replace(seat, claimable=claimable), ingest=100.0)
        sight_of(draft, open_)
        assert ("ledger:p" in draft.expect) is takes_turns
        assert "ledger:p" not in draft.watched


def test_sqlite_waits_for_the_disk_unless_the_write_may_be_lost(tmp_path: Path) -> None:
    """PRAGMA synchronous: 2 is FULL, 1 is NORMAL, where a power cut may take back what was acknowledged."""
    database = Sqlite(tmp_path / "s.db")
    try:
        modes = []
        for durable in (True, False, True):
            with database.writing(durable=durable) as connection:
                modes.append(connection.exec_driver_sql("PRAGMA synchronous").scalar_one())
        assert modes == [2, 1, 2]
    finally:
        database.close()


def test_an_answer_that_was_lost_before_the_first_read_of_its_cluster_is_doubted_from_then_on() -> None:
    release = accepted(Release(node=SEAT, owner="sickbay:i"), visible_from=0.0)
    lost = replace(release, state=IntentState.UNKNOWN, doubt_until=0.0)
    found = followed(drafted(MemoryStore(), lost, as_of=900.0), lost)
    assert found.doubt_until > 900.0, "only then may its absence be believed, and it be sent again"
