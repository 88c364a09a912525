"""The contract of the Store port as a suite, for every adapter, also for those written elsewhere.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self, tmp_path):
            store = MyStore(tmp_path)
            yield store
            store.close()

A store that outlives its process also takes `DurableContract`, and gives it the fixture `reopen`.
"""

from collections.abc import Callable

import pytest

from sickbay.model.clock import Deadline
from sickbay.model.facts import Mark
from sickbay.model.rows import Unit, WaitMark
from sickbay.ports.store import Store
from sickbay.testing.store_facts import (
    AgeContract,
    ClocksContract,
    FactsContract,
    LeaseContract,
    N,
    PulsesContract,
)
from sickbay.testing.store_groups import GroupsContract
from sickbay.testing.store_mail import MailContract
from sickbay.testing.store_nouns import command, fact, line, node, pulse, writes
from sickbay.testing.store_rows import A, B, RowsContract, StoryContract, UnitsContract, WaitsContract


class StoreContract(
    RowsContract,
    UnitsContract,
    GroupsContract,
    WaitsContract,
    StoryContract,
    FactsContract,
    ClocksContract,
    PulsesContract,
    LeaseContract,
    AgeContract,
    MailContract,
):
    """Every sentence of the port's contract. The fixture `store` gives an empty store to each test."""

    enforces_limits = True

    @pytest.fixture
    def epoch(self, store: Store) -> int:
        lease = store.lease("the suite", 600.0)
        assert lease is not None
        return lease.epoch


class DurableContract:
    """For stores that outlive their process. `reopen` closes the store and opens the same one again."""

    def test_everything_is_there_after_it_was_opened_again(
        self, store: Store, epoch: int, reopen: Callable[[], Store]
    ) -> None:
        store.commit(
            Unit(
                writes={A: node("a", claimable=True)},
                waits={A: WaitMark(on={B: 0}, until=Deadline(clock="ingest", at=5.0), urgency=3)},
                story=(line("told", A),),
            ),
            epoch,
        )
        store.append([fact("f")], [Mark(source="ingest", at=1.0, period=1.0)])
        store.hear({N: pulse(1.0)})
        store.post([command("kept"), command("struck"), command("kept, too")])
        store.strike(["struck"])
        before = (dict(store.load([A, "clock:ingest"])), list(store.facts(0)), store.voices(0.0))
        again = reopen()
        assert (dict(again.load([A, "clock:ingest"])), list(again.facts(0)), again.voices(0.0)) == before
        assert list(again.find("claimable:p")) == [A]
        assert list(again.story(A)) == [line("told", A)]
        assert list(again.due({})) == []
        assert list(again.due({"ingest": 5.0})) == [A]
        assert again.append([fact("f")]) == 0
        assert list(again.mail(N)) == [command("kept"), command("kept, too")]

    def test_neither_a_version_nor_an_epoch_nor_a_number_returns_after_it_was_opened_again(
        self, store: Store, epoch: int, reopen: Callable[[], Store]
    ) -> None:
        store.commit(writes(node("a")), epoch)
        version = store.load([A])[A].version
        store.commit(Unit(writes={A: None}), epoch)
        store.append([fact("a")])
        number = store.facts(0)[-1].seq
        store.resign("the suite")
        again = reopen()
        lease = again.lease("another", 60.0)
        assert lease is not None
        assert lease.epoch > epoch
        again.commit(writes(node("a")), lease.epoch)
        assert again.load([A])[A].version > version
        again.append([fact("b")])
        assert again.facts(number)[0].id == "b"
