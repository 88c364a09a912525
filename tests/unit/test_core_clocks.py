"""Watched clocks, how decisions see them, and the wall clock that replicas share."""

import pytest

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.clocks import Clocks, SharedClock
from sickbay.engine.ingest import Ingest
from sickbay.model.clock import INGEST, READ_MOST, WatchedClock
from sickbay.model.errors import StoreUnavailable
from sickbay.model.fleet import Cursor, Incarnation, NodeId


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
