"""The cost of the core: what shares a commit, what shares a sync, what is not read or walked in vain."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from bench.far_side import AtOnce, far_hands
from bench.rig import Bench, open_policy, rules_of, xid

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.ingest import Together
from sickbay.engine.lead import Engine, Setup
from sickbay.model.errors import StoreUnavailable
from sickbay.model.facts import Fact, Outcome
from sickbay.model.incident import Incident, Phase
from sickbay.model.intent import Intent, IntentState
from sickbay.model.rows import Rows, Unit
from sickbay.ports.store import Committed

NODES = 60


class Ledgered(MemoryStore):
    """Counts what would wait for the disk, and what was read."""

    def __init__(self) -> None:
        super().__init__(limits=True)
        self.commits = 0
        self.synced = 0
        self.loads: Counter[int] = Counter()  # by how many rows were asked for
        self.appended: list[int] = []
        self.sent: set[str] = set()  # intents whose SENT has been committed

    def load(self, keys: Iterable[str]) -> Rows:
        asked = list(keys)
        self.loads[len(asked)] += 1
        return super().load(asked)

    def commit_many(self, units: Sequence[Unit], epoch: int) -> Committed:
        self.commits += 1
        self.synced += not all(unit.follows for unit in units)
        done = super().commit_many(units, epoch)
        for unit in units[: len(done.versions)]:
            rows = (row for row in unit.writes.values() if isinstance(row, Intent))
            self.sent.update(row.key for row in rows if row.state is IntentState.SENT)
        return done


class Witness(AtOnce):
    """An executor that asks, at each call, whether its SENT is in the store."""

    def __init__(self, store: Ledgered) -> None:
        self._store = store
        self.early: list[str] = []
        self.calls = 0

    def submit(self, lane: str, call: object, timeout: float, done: object, key: str) -> None:
        self.calls += 1
        if key not in self._store.sent:
            self.early.append(key)
        super().submit(lane, call, timeout, done, key)  # type: ignore[arg-type]


def fleet(group: int) -> tuple[Bench, Ledgered, Witness]:
    store = Ledgered()
    Bench.over(store).populate(NODES)
    store.resign("bench")
    hands, witness = far_hands(), Witness(store)
    plain = Bench.over(store)
    setup = Setup(holder="group", lease_ttl=3600.0, group=group, strict=True)
    engine = Engine(store, hands, rules_of(open_policy(), hands), witness, plain.clock, setup)
    bench = Bench(store, plain.clock, engine, plain.ingest, NODES)
    bench.settle()
    return bench, store, witness


def strike(bench: Bench, store: Ledgered) -> None:
    bench.ingest.take([xid(number, 79, number, at=bench.clock.wall()) for number in range(NODES)])
    store.commits = store.synced = 0
    store.loads.clear()
    bench.settle()
    phases = [v.row.phase for v in store.load(store.keys("incident")).values() if isinstance(v.row, Incident)]
    assert phases == [Phase.QUARANTINED] * NODES


def test_a_mass_failure_shares_its_commits_and_its_syncs() -> None:
    bench, store, _ = fleet(group=100)
    strike(bench, store)
    assert store.synced <= 3, "all SENT of a round wait for the disk once"
    assert store.commits <= 20
    bench, store, _ = fleet(group=1)
    strike(bench, store)
    assert store.synced == NODES, "each alone: each SENT by itself"
    assert store.commits > 3 * NODES


@pytest.mark.parametrize("group", [1, 7, 100])
def test_every_sent_is_committed_before_its_call(group: int) -> None:
    bench, store, witness = fleet(group)
    strike(bench, store)
    assert witness.calls >= NODES
    assert witness.early == []


def test_rows_are_loaded_together_not_one_by_one() -> None:
    bench, store, _ = fleet(group=100)
    strike(bench, store)
    assert store.loads[1] < NODES / 2, "no round loads a row for each node by itself"


def test_a_refused_unit_takes_none_of_those_before_it_along() -> None:
    """Another wrote one of the rows behind our back: its unit is planned again, the others stand."""
    bench, store, witness = fleet(group=100)
    bench.ingest.take([xid(number, 79, number, at=bench.clock.wall()) for number in range(NODES)])
    real = store.commit_many
    meddled: list[str] = []

    def meddle(units: Sequence[Unit], epoch: int) -> Committed:
        keys = [key for unit in units for key, v in unit.expect.items() if key.startswith("node:") and v > 0]
        if len(units) > 10 and keys and not meddled:
            meddled.append(keys[len(keys) // 2])
            row = store.load([meddled[0]])[meddled[0]].row
            store.commit(Unit(writes={meddled[0]: row}), epoch)
        return real(units, epoch)

    store.commit_many = meddle  # type: ignore[method-assign]
    bench.settle()
    phases = [v.row.phase for v in store.load(store.keys("incident")).values() if isinstance(v.row, Incident)]
    assert meddled
    assert phases == [Phase.QUARANTINED] * NODES
    assert witness.early == []


def outcome(number: int) -> Outcome:
    return Outcome(key=f"k{number}", result="accepted", sends=1)


def test_outcomes_that_arrive_while_another_waits_for_the_disk_share_the_next_append() -> None:
    appended: list[int] = []
    begun, free = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def append(self, facts: Sequence[Fact], *rest: Any, **more: Any) -> int:
            appended.append(len(facts))
            begun.set()
            assert free.wait(10)
            return super().append(facts, *rest, **more)

    store = Slow()
    told = Together(store, Bench.over(MemoryStore()).clock)
    threads = [threading.Thread(target=told.tell, args=(f"o{n}", outcome(n))) for n in range(9)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(told._told) < 8:  # all of them have come
        threads[0].join(0.001)
    free.set()
    for thread in threads:
        thread.join(10)
    assert appended == [1, 8]
    assert len(store.facts(0)) == 9


def test_an_outcome_that_cannot_be_stored_is_told_to_whoever_stored_it() -> None:
    class Gone(MemoryStore):
        def append(self, *asked: Any, **more: Any) -> int:
            raise StoreUnavailable(f"away: {asked} {more}")

    told = Together(Gone(), Bench.over(MemoryStore()).clock)
    with pytest.raises(StoreUnavailable):
        told.tell("o", outcome(1))
