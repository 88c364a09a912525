"""The contract of `Store.commit_many`: a group of units is what its units are, one after the other."""

import pytest
from msgspec.structs import replace

from sickbay.model.clock import Deadline
from sickbay.model.errors import Conflict, Fenced, UnitTooLarge
from sickbay.model.rows import ITEM_BYTES, Unit, WaitMark
from sickbay.ports.store import Store
from sickbay.testing.store_nouns import incident, line, node, writes

A, B = "node:c/a", "node:c/b"


class GroupsContract:
    enforces_limits = True

    def test_a_later_unit_expects_what_an_earlier_one_writes(self, store: Store, epoch: int) -> None:
        store.commit(writes(node("a")), epoch)
        version = store.load([A])[A].version
        first = Unit(writes={A: node("a", ready=False)}, expect={A: version}, story=(line("one", A),))
        second = Unit(writes={A: node("a", claimable=True)}, expect={A: -1}, story=(line("two", A),))
        done = store.commit_many([first, second], epoch)
        assert done.refused is None
        assert done.versions[1] > done.versions[0] > version
        assert store.load([A])[A].version == done.versions[1]
        assert store.load([A])[A].row == node("a", claimable=True)
        assert list(store.find("claimable:p")) == [A]
        assert [each.text for each in store.story(A)] == ["one", "two"]

    def test_those_before_a_refused_unit_stay_and_those_after_it_are_not_written(
        self, store: Store, epoch: int
    ) -> None:
        stale = Unit(writes={B: node("b")}, expect={B: 7}, waits={B: WaitMark(until=Deadline(clock="c", at=1.0))})
        done = store.commit_many([writes(node("a")), stale, writes(incident("i"))], epoch)
        assert isinstance(done.refused, Conflict)
        assert [store.load([A])[A].version] == list(done.versions)
        assert store.load([B])[B].row is None
        assert store.load(["incident:i"])["incident:i"].row is None
        assert store.due({"c": 2.0}) == []

    def test_a_unit_that_is_too_large_is_refused_like_one_that_is_stale(self, store: Store, epoch: int) -> None:
        if not self.enforces_limits:
            pytest.skip("a store that enforces no limits is for simulations only")
        large = writes(replace(incident("i"), evidence=("x" * ITEM_BYTES,)))
        done = store.commit_many([writes(node("a")), large, writes(node("b"))], epoch)
        assert isinstance(done.refused, UnitTooLarge)
        assert len(done.versions) == 1
        assert store.load([A])[A].row is not None
        assert store.load([B])[B].row is None

    def test_a_wait_on_what_a_later_unit_changes_is_due(self, store: Store, epoch: int) -> None:
        waits = Unit(writes={A: node("a")}, waits={A: WaitMark(on={A: 0}), "incident:i": WaitMark(on={B: 0})})
        assert store.commit_many([waits, writes(node("b"))], epoch).refused is None
        assert list(store.due({})) == ["incident:i"]
        again = Unit(waits={A: WaitMark(on={A: -1})})
        assert store.commit_many([writes(node("a", ready=False)), again], epoch).refused is None
        assert list(store.due({})) == ["incident:i"], "it read what the first of them wrote"
        store.commit(writes(node("a")), epoch)
        assert list(store.due({})) == ["incident:i", A]

    def test_a_row_that_was_made_and_removed_leaves_neither_itself_nor_its_wait(self, store: Store, epoch: int) -> None:
        made = Unit(writes={A: node("a", claimable=True)}, waits={A: WaitMark(until=Deadline(clock="c", at=-1.0))})
        removed = Unit(writes={A: None}, expect={A: -1})
        assert store.commit_many([made, removed], epoch).refused is None
        assert store.load([A])[A].version == 0
        assert list(store.find("claimable:p")) == []
        assert list(store.due({"c": 9.0})) == []

    def test_whoever_does_not_lead_writes_none_of_them(self, store: Store, epoch: int) -> None:
        with pytest.raises(Fenced):
            store.commit_many([writes(node("a")), writes(node("b"))], epoch + 1)
        assert store.load([A])[A].row is None

    def test_an_empty_group_is_nothing(self, store: Store, epoch: int) -> None:
        assert store.commit_many([], epoch) == ((), None)
