"""Whatever is done to them, in whatever order, the stores agree with plain dictionaries that know no index."""

from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import open_store
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.errors import Conflict, Fenced
from sickbay.model.facts import Mark
from sickbay.model.fleet import NodeId
from sickbay.model.incident import Phase
from sickbay.model.rows import AnyRow, Unit, WaitMark, key_of, tag_of
from sickbay.ports.store import Pulse, Store
from sickbay.testing.store_nouns import NOON, fact, incident, node, pulse

pytestmark = pytest.mark.slow

CLOCK = "clock:ingest"
NAMES = ("a", "b", "c")
SUBJECTS = [f"node:c/{name}" for name in NAMES] + [f"incident:{name}" for name in NAMES]
READ = [*SUBJECTS, CLOCK]
TAGS = ("claimable:p", "open-incident:p")
READINGS = (0.0, 2.0, 5.0)

names = st.sampled_from(NAMES)
nodes = st.builds(lambda name, claimable: node(name, claimable=claimable), names, st.booleans())
incidents = st.builds(
    lambda name, open_: incident(name) if open_ else incident(name, Phase.RELEASED, closed_at=NOON),
    names,
    st.booleans(),
)
deadlines = st.none() | st.builds(
    Deadline, clock=st.sampled_from(["ingest", "c"]), at=st.sampled_from([-1.0, 1.0, 4.0])
)
pulses = st.builds(pulse, st.sampled_from([1.0, 3.0, 6.0]), st.sampled_from(["1", "2"]))


def unnumbered(row: AnyRow | None) -> AnyRow | None:
    """A clock without the number of its newest fact: stores may leave gaps between numbers."""
    return replace(row, facts=0) if isinstance(row, WatchedClock) else row


class StoresAgree(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stores: list[Store] = [MemoryStore(), MemoryStore(limits=False), open_store("sqlite://")]
        self.rows: dict[str, tuple[AnyRow, int]] = {}
        self.waits: dict[str, tuple[WaitMark, bool]] = {}  # and whether it is dirty
        self.facts: list[str] = []
        self.heard: dict[NodeId, tuple[Pulse, Pulse | None, float | None]] = {}  # pulse, told, hushed at
        self.epoch = 0

    def teardown(self) -> None:
        for store in self.stores:
            store.close()

    @initialize()
    def lead(self) -> None:
        (self.epoch,) = {lease.epoch for store in self.stores if (lease := store.lease("me", 600.0))}

    def version(self, key: str) -> int:
        return self.rows[key][1] if key in self.rows else 0

    def change(self, key: str, row: AnyRow | None, version: int) -> None:
        if row is None and key not in self.rows:
            return
        if row is None:
            del self.rows[key]
        else:
            self.rows[key] = (row, version)
        for subject, (mark, _) in list(self.waits.items()):
            if key in mark.on:
                self.waits[subject] = (mark, True)

    @rule(
        written=st.lists(nodes | incidents, max_size=3),
        deleted=st.sets(st.sampled_from(SUBJECTS), max_size=1),
        waiting=st.dictionaries(
            st.sampled_from(SUBJECTS),
            st.none() | st.tuples(deadlines, st.sets(st.sampled_from(READ), max_size=3), st.integers(0, 2)),
            max_size=2,
        ),
        stale=st.booleans(),
    )
    def commit(
        self,
        written: list[AnyRow],
        deleted: set[str],
        waiting: dict[str, tuple[Deadline | None, set[str], int] | None],
        stale: bool,
    ) -> None:
        writes: dict[str, AnyRow | None] = {key_of(row): row for row in written} | dict.fromkeys(deleted)
        waits = {
            subject: asked
            and WaitMark(until=asked[0], on={key: self.version(key) + stale for key in asked[1]}, urgency=asked[2])
            for subject, asked in waiting.items()
        }
        unit = Unit(writes=writes, waits=waits, expect={key: self.version(key) for key in writes})
        (version,) = {store.commit(unit, self.epoch) for store in self.stores}
        for key, row in writes.items():
            self.change(key, row, version)
        for subject in (*deleted, *waits):
            self.waits.pop(subject, None)
        for subject, mark in waits.items():
            if mark is not None and subject not in deleted:
                dirty = any(key not in writes and self.version(key) != read for key, read in mark.on.items())
                self.waits[subject] = (mark, dirty)

    @rule(row=nodes | incidents, off=st.integers(1, 3))
    def commit_what_is_refused(self, row: AnyRow, off: int) -> None:
        key = key_of(row)
        unit = Unit(writes={key: row}, waits={key: WaitMark(on={key: 99})}, expect={key: self.version(key) + off})
        for store in self.stores:
            with pytest.raises(Conflict):
                store.commit(unit, self.epoch)
            with pytest.raises(Fenced):
                store.commit(Unit(writes={key: row}), self.epoch + off)

    @rule(ids=st.lists(st.sampled_from("uvwxyz"), max_size=4), at=st.none() | st.integers(0, 9))
    def append(self, ids: list[str], at: int | None) -> None:
        new = [name for name in dict.fromkeys(ids) if name not in self.facts]
        marks = [] if at is None else [Mark(source="ingest", at=float(at), period=2.0)]
        assert {store.append([fact(name) for name in ids], marks) for store in self.stores} == {len(new)}
        self.facts += new
        if at is not None:
            before = self.rows[CLOCK][0] if CLOCK in self.rows else WatchedClock(source="ingest", period=2.0)
            assert isinstance(before, WatchedClock)
            moved = self.stores[0].load([CLOCK])[CLOCK]
            assert unnumbered(moved.row) == before.heard(float(at))
            assert moved.version > self.version(CLOCK)
            self.change(CLOCK, unnumbered(moved.row), moved.version)

    @rule(name=names, new=pulses)
    def hear(self, name: str, new: Pulse) -> None:
        old, told, hushed = self.heard.get(who := NodeId(name), (new, None, None))
        self.heard[who] = (new if new.reading >= old.reading else old, told, hushed)
        for store in self.stores:
            store.hear({who: new})

    @precondition(lambda self: self.heard)
    @rule(name=names, told=st.none() | pulses)
    def tell(self, name: str, told: Pulse | None) -> None:
        who = NodeId(name)
        for store in self.stores:
            store.append([], told={who: told})
        if who in self.heard:
            present, before, _ = self.heard[who]
            self.heard[who] = (present, before, present.reading) if told is None else (present, told, None)

    @rule()
    def forget(self) -> None:
        old = [key for key, (row, _) in self.rows.items() if key.startswith("incident:") and not tag_of(row)]
        gone = [
            who
            for who, (present, _, hushed) in self.heard.items()
            if hushed is not None and present.reading <= hushed and f"node:{who}" not in self.rows
        ]
        assert {store.forget(NOON + timedelta(hours=1)) for store in self.stores} == {len(old) + len(gone)}
        for who in gone:
            del self.heard[who]
        for key in old:
            self.change(key, None, 0)
            self.waits.pop(key, None)

    def due_at(self, reading: float) -> list[str]:
        due = [
            (mark.urgency, subject)
            for subject, (mark, dirty) in self.waits.items()
            if dirty or (mark.until is not None and mark.until.passed({"ingest": reading}))
        ]
        return [subject for _, subject in sorted(due)]

    @invariant()
    def rows_and_waits_are_the_same(self) -> None:
        expected = {key: self.rows.get(key, (None, 0)) for key in READ}
        for store in self.stores:
            found = {key: (unnumbered(read.row), read.version) for key, read in store.load(READ).items()}
            assert found == expected
            for tag in TAGS:
                assert list(store.find(tag)) == sorted(key for key, (row, _) in self.rows.items() if tag_of(row) == tag)
            for kind in ("node", "incident"):
                assert list(store.keys(kind)) == sorted(key for key in self.rows if key.startswith(kind))
            for reading in READINGS:
                assert list(store.due({"ingest": reading})) == self.due_at(reading)

    @invariant()
    def facts_and_voices_are_the_same(self) -> None:
        news, quiet = [], []
        for who, (present, told, hushed) in sorted(self.heard.items()):
            known = None if told is None else told.incarnation
            if present.incarnation != known if hushed is None else present.reading > hushed:
                news.append((who, present))
            if hushed is None and told is not None:
                quiet.append((present.reading, who, present))
        for store in self.stores:
            assert [each.id for each in store.facts(0)] == self.facts
            for before in READINGS:
                voices = store.voices(before)
                assert list(voices.heard) == news
                silent = sorted((reading, who) for reading, who, _ in quiet if reading < before)
                assert [(each.reading, who) for who, each in voices.silent] == silent


StoresAgree.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestStoresAgree = StoresAgree.TestCase
