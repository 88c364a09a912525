"""The store's contract, first half: rows, units, waits."""

from threading import Barrier, Thread

import pytest
from msgspec.structs import replace

from sickbay.model.clock import Deadline
from sickbay.model.errors import Conflict, Fenced, UnitTooLarge, Unstorable
from sickbay.model.fleet import Ledger
from sickbay.model.intent import IntentState
from sickbay.model.rows import (
    DUE_NOW,
    ITEM_BYTES,
    UNIT_ACTIONS,
    UNIT_BYTES,
    AnyRow,
    Line,
    Unit,
    Versioned,
    WaitMark,
    key_of,
)
from sickbay.ports.store import Store
from sickbay.testing.store_nouns import incident, intent, job, line, node, writes

A, B, C = "node:c/a", "node:c/b", "node:c/c"


def version(store: Store, key: str) -> int:
    return store.load([key])[key].version


class RowsContract:
    """Rows under keys with versions."""

    def test_a_key_without_a_row_has_version_0(self, store: Store) -> None:
        assert store.load([A]) == {A: Versioned(row=None, version=0)}

    def test_a_row_comes_back_as_it_was_written(self, store: Store, epoch: int) -> None:
        rows: list[AnyRow] = [node("a", cordons=("other:me",)), incident("i"), job("j"), intent("k")]
        store.commit(writes(*rows), epoch)
        found = store.load([key_of(row) for row in rows])
        assert [found[key_of(row)].row for row in rows] == rows
        assert all(versioned.version > 0 for versioned in found.values())

    def test_every_write_raises_the_version(self, store: Store, epoch: int) -> None:
        seen = []
        for _ in range(3):
            store.commit(writes(node("a")), epoch)
            seen.append(version(store, A))
        assert seen == sorted(set(seen))

    def test_commit_returns_the_version_of_all_rows_that_it_wrote(self, store: Store, epoch: int) -> None:
        for _ in range(2):
            written = store.commit(Unit(writes={A: node("a"), B: node("b")}, story=(line("told", A),)), epoch)
            assert version(store, A) == version(store, B) == written

    def test_a_version_never_returns_even_after_a_deletion(self, store: Store, epoch: int) -> None:
        seen = {0}
        for _ in range(3):
            store.commit(writes(node("a")), epoch)
            assert version(store, A) not in seen
            seen.add(version(store, A))
            store.commit(Unit(writes={A: None}), epoch)
            assert version(store, A) == 0

    def test_what_was_read_does_not_change_with_the_store(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a")), epoch)
        read = store.load([A])
        store.commit(writes(node("a", ready=False)), epoch)
        assert read[A].row == node("a")

    def test_finds_rows_by_their_present_tag_in_key_order(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("b", claimable=True), node("a", claimable=True), node("c"), intent("k")), epoch)
        assert list(store.find("claimable:p")) == [A, B]
        assert list(store.find("claimable:p", limit=1)) == [A]
        assert list(store.find("planned:log/Notify")) == ["intent:k"]
        assert list(store.find("claimable:q")) == []

    def test_tells_which_tags_of_a_kind_there_are(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a", claimable=True), node("b", claimable=True), incident("i"), intent("k")), epoch)
        assert list(store.tags("planned:")) == ["planned:log/Notify"]
        assert list(store.tags("claimable:")) == ["claimable:p"]
        assert list(store.tags("claimable")) == ["claimable:p"]
        assert list(store.tags("claimable:q")) == []
        store.commit(writes(node("a"), intent("k", IntentState.SENT)), epoch)
        assert list(store.tags("claimable:")) == ["claimable:p"], "another still carries it"
        assert list(store.tags("planned:")) == []

    def test_a_changed_tag_moves_the_row_and_a_deletion_removes_it(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a", claimable=True), node("b", claimable=True), intent("k")), epoch)
        store.commit(writes(node("a"), intent("k", IntentState.SENT)), epoch)
        assert list(store.find("claimable:p")) == [B]
        assert list(store.find("planned:log/Notify")) == []
        store.commit(Unit(writes={B: None}), epoch)
        assert list(store.find("claimable:p")) == []

    def test_keys_of_one_kind_come_in_pages(self, store: Store, epoch: int) -> None:
        store.commit(writes(*(node(f"n{number}") for number in range(7)), intent("k"), incident("i")), epoch)
        pages, after = [], ""
        while page := list(store.keys("node", after=after, limit=3)):
            pages.append(page)
            after = page[-1]
        assert pages == [
            ["node:c/n0", "node:c/n1", "node:c/n2"],
            ["node:c/n3", "node:c/n4", "node:c/n5"],
            ["node:c/n6"],
        ]

    def test_keys_are_in_the_order_of_their_characters_whatever_the_locale(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a"), node("B"), node("b"), node("A-1"), node("A1"), node("ä")), epoch)
        keys = list(store.keys("node"))
        assert keys == sorted(keys)
        assert len(keys) == 6


class UnitsContract:
    """Commit is all or nothing."""

    def test_commits_when_versions_are_as_expected(self, store: Store, epoch: int) -> None:
        store.commit(Unit(writes={A: node("a")}, expect={A: 0, B: 0}), epoch)
        store.commit(Unit(writes={A: node("a", ready=False)}, expect={A: version(store, A)}), epoch)
        assert store.load([A])[A].row == node("a", ready=False)

    @pytest.mark.parametrize("expected", ["older", "absent", "present"])
    def test_refuses_with_conflict_what_expects_another_version(self, store: Store, epoch: int, expected: str) -> None:
        store.commit(writes(node("a")), epoch)
        first = version(store, A)
        store.commit(writes(node("a", ready=False)), epoch)
        expect = {"older": {A: first}, "absent": {A: 0}, "present": {B: first}}[expected]
        with pytest.raises(Conflict):
            store.commit(Unit(writes={C: node("c")}, expect=expect), epoch)
        assert version(store, C) == 0

    def test_nothing_of_a_refused_unit_is_visible(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a"), node("b", claimable=True)), epoch)
        before = dict(store.load([A, B, C]))
        refused = Unit(
            writes={A: node("a", ready=False), B: None, C: node("c", claimable=True)},
            expect={A: before[A].version, C: 999_999},
            waits={A: WaitMark(on={B: 999_999}), C: WaitMark(until=Deadline(clock="ingest", at=0.0))},
            story=(line("never", A),),
        )
        with pytest.raises(Conflict):
            store.commit(refused, epoch)
        with pytest.raises(Fenced):
            store.commit(Unit(writes=refused.writes, waits=refused.waits, story=refused.story), epoch + 1)
        assert store.load([A, B, C]) == before
        assert list(store.find("claimable:p")) == [B]
        assert list(store.due({"ingest": 1e9})) == []
        assert list(store.story(A)) == []

    def test_a_unit_without_writes_still_checks_what_it_expects(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a")), epoch)
        with pytest.raises(Conflict):
            store.commit(Unit(expect={A: 0}, waits={A: WaitMark()}), epoch)
        store.commit(Unit(expect={A: version(store, A)}), epoch)

    def test_a_unit_takes_as_many_actions_as_the_limit_and_no_more(self, store: Store, epoch: int) -> None:
        self._needs_limits()
        rows = [node(f"n{number:03}") for number in range(UNIT_ACTIONS)]  # and the epoch
        with pytest.raises(UnitTooLarge):
            store.commit(writes(*rows), epoch)
        assert not store.keys("node")
        store.commit(writes(*rows[:-1]), epoch)
        assert len(store.keys("node")) == UNIT_ACTIONS - 1

    def _fills(self, store: Store, epoch: int, unit: Unit, actions: int) -> None:
        """The unit has so many actions: it goes through with as many expectations as fit beside them, not with more."""
        self._needs_limits()
        free = {f"node:c/e{number:03}": 0 for number in range(UNIT_ACTIONS - actions)}
        with pytest.raises(UnitTooLarge):
            store.commit(replace(unit, expect={**unit.expect, **free, "node:c/more": 0}), epoch)
        store.commit(replace(unit, expect={**unit.expect, **free}), epoch)

    def test_a_row_that_is_written_and_expected_counts_once(self, store: Store, epoch: int) -> None:
        self._fills(store, epoch, Unit(writes={A: node("a")}, expect={A: 0, B: 0}), 3)

    def test_a_tag_that_is_given_counts_and_one_that_stays_does_not(self, store: Store, epoch: int) -> None:
        self._fills(store, epoch, writes(node("a", claimable=True)), 3)
        self._fills(store, epoch, writes(node("a", claimable=True, ready=False)), 2)

    def test_a_tag_that_is_taken_away_counts_and_one_that_is_exchanged_counts_twice(
        self, store: Store, epoch: int
    ) -> None:
        store.commit(writes(node("a", claimable=True), node("b", claimable=True), node("c", claimable=True)), epoch)
        self._fills(store, epoch, Unit(writes={A: node("a"), B: node("b", checking="k"), C: None}), 1 + 2 + 3 + 2)

    def test_a_wait_counts_and_what_it_is_on_unless_its_row_is_counted(self, store: Store, epoch: int) -> None:
        mark = WaitMark(on={A: 0, B: 0, C: 0})
        unit = Unit(writes={A: node("a")}, expect={B: 0}, waits={A: mark, "intent:k": mark, B: None})
        self._fills(store, epoch, unit, 1 + 2 + 3 + 2)

    def test_every_subject_that_a_line_is_told_under_counts(self, store: Store, epoch: int) -> None:
        self._fills(store, epoch, Unit(story=(line("1", A, B, C), line("2", A))), 5)

    def test_refuses_a_row_that_is_too_large(self, store: Store, epoch: int) -> None:
        self._needs_limits()
        with pytest.raises(UnitTooLarge):
            store.commit(writes(node("a", domain="x" * ITEM_BYTES), node("b")), epoch)
        assert version(store, B) == 0

    def test_refuses_a_unit_that_is_too_large_though_no_row_is(self, store: Store, epoch: int) -> None:
        self._needs_limits()
        size = ITEM_BYTES - 1000
        rows = [node(f"n{number}", domain="x" * size) for number in range(UNIT_BYTES // size + 1)]
        with pytest.raises(UnitTooLarge):
            store.commit(writes(*rows), epoch)
        assert not store.keys("node")

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    @pytest.mark.parametrize("field", ["as_of", "silent_at", "going_down"])
    def test_refuses_a_value_that_could_not_be_read_back_before_anything_is_written(
        self, store: Store, epoch: int, field: str, value: float
    ) -> None:
        self._needs_limits()
        bad = {field: Deadline(clock="ingest", at=value) if field == "going_down" else value}
        with pytest.raises(Unstorable):
            store.commit(writes(node("a", **bad), node("b")), epoch)
        assert store.load([A, B]) == {A: Versioned(row=None), B: Versioned(row=None)}

    def test_of_two_threads_that_change_one_row_exactly_one_wins_each_time(self, store: Store, epoch: int) -> None:
        rounds, key = 20, "ledger:p"
        store.commit(writes(Ledger(pool="p")), epoch)
        won: list[int] = []
        strange: list[Exception] = []
        together = Barrier(2)

        def race() -> None:
            for _ in range(rounds):
                together.wait(timeout=30)
                read = store.load([key])[key]
                assert isinstance(read.row, Ledger)
                together.wait(timeout=30)
                try:
                    after = Ledger(pool="p", turn=read.row.turn + 1)
                    store.commit(Unit(writes={key: after}, expect={key: read.version}), epoch)
                    won.append(read.version)
                except Conflict:
                    pass
                except Exception as error:  # noqa: BLE001 - told to the test, which fails for it
                    strange.append(error)

        threads = [Thread(target=race) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert strange == []
        assert len(won) == len(set(won)) == rounds
        assert store.load([key])[key].row == Ledger(pool="p", turn=rounds)

    def _needs_limits(self) -> None:
        if not getattr(self, "enforces_limits", True):
            pytest.skip("a store that enforces no limits is for simulations only")


class WaitsContract:
    """Waits fall due by change and by deadline."""

    def test_a_wait_falls_due_when_a_row_that_it_read_changes(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a"), node("b"), node("c")), epoch)
        store.commit(Unit(waits={A: WaitMark(on={B: version(store, B)}), C: WaitMark(on={})}), epoch)
        assert list(store.due({})) == []
        store.commit(writes(node("b", ready=False)), epoch)
        assert list(store.due({})) == [A]
        assert list(store.due({})) == [A]  # asking changes nothing

    def test_a_wait_on_a_deleted_row_falls_due(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a"), node("b")), epoch)
        store.commit(Unit(waits={A: WaitMark(on={B: version(store, B)})}), epoch)
        store.commit(Unit(writes={B: None}), epoch)
        assert list(store.due({})) == [A]

    def test_a_wait_on_an_absent_key_falls_due_when_the_row_appears(self, store: Store, epoch: int) -> None:
        store.commit(Unit(writes={A: node("a")}, waits={A: WaitMark(on={B: 0})}), epoch)
        assert list(store.due({})) == []
        store.commit(writes(node("b")), epoch)
        assert list(store.due({})) == [A]

    def test_a_wait_that_read_an_older_version_is_due_at_once(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a"), node("b")), epoch)
        read = version(store, B)
        store.commit(writes(node("b", ready=False)), epoch)
        store.commit(Unit(waits={A: WaitMark(on={B: read})}), epoch)
        assert list(store.due({})) == [A]

    def test_a_wait_on_what_its_own_unit_writes_means_the_version_after_it(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("b"), node("c")), epoch)
        wait = WaitMark(on={A: 0, B: version(store, B), C: version(store, C)})
        own: dict[str, AnyRow | None] = {A: node("a"), B: node("b", ready=False), C: None}
        store.commit(Unit(writes=own, waits={A: wait}), epoch)
        assert list(store.due({})) == []
        store.commit(writes(node("b")), epoch)
        assert list(store.due({})) == [A]

    def test_a_wait_can_be_marked_as_due_now(self, store: Store, epoch: int) -> None:
        store.commit(Unit(writes={A: node("a")}, waits={A: DUE_NOW}), epoch)
        assert list(store.due({})) == list(store.due({"ingest": 0.0})) == [A]

    def test_a_wait_falls_due_at_its_deadline_on_its_own_clock(self, store: Store, epoch: int) -> None:
        store.commit(Unit(waits={A: WaitMark(until=Deadline(clock="ingest", at=10.0))}), epoch)
        store.commit(Unit(waits={B: WaitMark(until=Deadline(clock="c", at=20.0))}), epoch)
        assert list(store.due({"ingest": 9.9, "c": 19.9})) == []
        assert list(store.due({"ingest": 10.0})) == [A]
        assert list(store.due({"c": 21.0})) == [B]
        assert list(store.due({"ingest": 10.0, "c": 20.0})) == [A, B]
        assert list(store.due({})) == []

    def test_what_is_due_comes_most_urgent_first_then_by_key(self, store: Store, epoch: int) -> None:
        late = Deadline(clock="ingest", at=5.0)
        waits: dict[str, WaitMark | None] = {
            "node:c/d": WaitMark(on={"node:c/x": 1}, urgency=9),
            "node:c/c": WaitMark(on={"node:c/x": 1}, urgency=1),
            "node:c/b": WaitMark(until=late, urgency=0),
            "node:c/a": WaitMark(until=late, urgency=1),
        }
        store.commit(Unit(waits=waits), epoch)
        everything = ["node:c/b", "node:c/a", "node:c/c", "node:c/d"]
        assert list(store.due({"ingest": 6.0})) == everything
        assert list(store.due({"ingest": 6.0}, limit=2)) == everything[:2]
        assert list(store.due({"ingest": 4.0}, limit=1)) == ["node:c/c"]

    def test_a_subject_that_is_due_for_two_reasons_comes_once(self, store: Store, epoch: int) -> None:
        mark = WaitMark(until=Deadline(clock="ingest", at=5.0), on={B: 7, C: 7})
        store.commit(Unit(waits={A: mark}), epoch)
        assert list(store.due({"ingest": 6.0})) == [A]

    def test_marking_again_replaces_the_wait_and_raises_no_version(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a"), node("b"), node("c")), epoch)
        mark = WaitMark(on={B: version(store, B)}, until=Deadline(clock="ingest", at=5.0))
        store.commit(Unit(waits={A: mark}), epoch)
        before = store.load([A, B, C])
        store.commit(Unit(waits={A: mark}), epoch)
        store.commit(Unit(waits={A: WaitMark(on={C: version(store, C)})}), epoch)
        assert store.load([A, B, C]) == before
        assert list(store.due({"ingest": 100.0})) == []
        store.commit(writes(node("b", ready=False)), epoch)
        assert list(store.due({"ingest": 100.0})) == []
        store.commit(writes(node("c", ready=False)), epoch)
        assert list(store.due({})) == [A]
        store.commit(Unit(waits={A: WaitMark(on={C: version(store, C)})}), epoch)
        assert list(store.due({})) == []

    def test_a_wait_is_removed_by_none_and_by_the_deletion_of_its_row(self, store: Store, epoch: int) -> None:
        mark = WaitMark(on={C: 7}, until=Deadline(clock="ingest", at=5.0))
        store.commit(Unit(writes={A: node("a"), B: node("b")}, waits={A: mark, B: mark}), epoch)
        assert list(store.due({"ingest": 5.0})) == [A, B]
        store.commit(Unit(waits={A: None}), epoch)
        store.commit(Unit(writes={B: None}, waits={B: mark}), epoch)
        assert list(store.due({"ingest": 5.0})) == []


class StoryContract:
    """Lines are told under each of their subjects."""

    def test_a_line_is_told_under_each_of_its_subjects_oldest_first(self, store: Store, epoch: int) -> None:
        first, second, third = line("1", A, B), line("2", A), line("3", A, B)
        store.commit(Unit(story=(first, second)), epoch)
        store.commit(Unit(writes={A: node("a")}, story=(third,)), epoch)
        assert list(store.story(A)) == [first, second, third]
        assert list(store.story(B)) == [first, third]
        assert list(store.story(C)) == []

    def test_of_a_long_story_the_newest_lines_are_told(self, store: Store, epoch: int) -> None:
        lines: list[Line] = [line(str(number), A) for number in range(9)]
        for one in lines:
            store.commit(Unit(story=(one,)), epoch)
        assert list(store.story(A, limit=4)) == lines[-4:]
