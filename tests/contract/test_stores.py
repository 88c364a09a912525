"""The store's contract, on every store."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import open_store
from sickbay.model.clock import WatchedClock
from sickbay.model.fleet import Cursor
from sickbay.model.rows import CURSOR, Unit
from sickbay.ports.store import Store
from sickbay.testing.store_contract import DurableContract, StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


class TestMemoryStoreWithoutLimits(StoreContract):
    enforces_limits = False

    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(limits=False)


class TestMemoryStoreWithATimeOfItsOwn(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore(wall=time.time)


class Opened(StoreContract, DurableContract):
    """Opens and opens again what the fixture `url` names."""

    @pytest.fixture
    def opened(self, url: str) -> Iterator[list[Store]]:
        stores = [open_store(url)]
        yield stores
        for store in stores:
            store.close()

    @pytest.fixture
    def store(self, opened: list[Store]) -> Store:
        return opened[0]

    @pytest.fixture
    def reopen(self, opened: list[Store], url: str) -> Callable[[], Store]:
        def again() -> Store:
            opened.pop().close()
            opened.append(open_store(url))
            return opened[-1]

        return again


class TestSqliteStore(Opened):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return f"sqlite:///{tmp_path}/store.db"


@pytest.mark.slow
class TestPostgresStore(Opened):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url


def test_whoever_changes_a_row_in_place_that_it_has_read_is_found_when_it_is_written_next() -> None:
    store = MemoryStore()
    lease = store.lease("one", 60.0)
    assert lease is not None
    store.commit(Unit(writes={CURSOR: Cursor(at=1)}), lease.epoch)
    row = store.load([CURSOR])[CURSOR].row
    assert isinstance(row, Cursor)
    row.learned["local"] = WatchedClock(source="local", period=1.0)
    with pytest.raises(AssertionError, match="cursor: was changed in place"):
        store.commit(Unit(writes={CURSOR: Cursor(at=2)}), lease.epoch)
