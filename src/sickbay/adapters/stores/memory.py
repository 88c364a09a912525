"""A store in memory, for tests and simulations.

With `limits` it is as strict as the strictest store: every row, fact and line goes through its wire form and back, and
units beyond DynamoDB's limits are refused. Without, it keeps the nouns themselves and costs microseconds, so that a
year of a large fleet can be simulated.
"""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from threading import RLock

import msgspec

from sickbay.adapters.stores.codec import (
    NO_ROW,
    REFUSALS,
    count,
    ended_at,
    moved,
    opened,
    owner_of,
    pack,
    pack_fact,
    pack_letter,
    pack_row,
    read_row,
    unpack_fact,
    unpack_letter,
)
from sickbay.adapters.stores.liveness import Liveness
from sickbay.adapters.stores.waiting import SortedItems, WaitIndex
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import Conflict, Fenced
from sickbay.model.facts import Fact, Mark
from sickbay.model.fleet import Cursor, NodeId
from sickbay.model.protocol import Command
from sickbay.model.rows import CURSOR, AnyRow, Lease, Line, Rows, Unit, Versioned, given, kind_of, tag_of
from sickbay.ports.store import STORY, Committed, LivenessChanges, Pulse

_seq = attrgetter("seq")


class MemoryStore:
    """`now`, in seconds, is what leases run on; `wall`: a time of the store's own, which marks are dated by."""

    def __init__(
        self,
        *,
        limits: bool = True,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] | None = None,
    ) -> None:
        self._limits = limits
        self._now = now
        self._wall = wall
        self._lock = RLock()
        self._version = 0
        self._rows: dict[str, Versioned] = {}
        self._bodies: dict[str, bytes] = {}  # with limits: what the rows are read back from
        self._read_back: dict[str, tuple[bytes, Versioned]] = {}  # each once for every body: most reads are of no news
        self._kinds: defaultdict[str, SortedItems[str]] = defaultdict(SortedItems)
        self._tags: defaultdict[str, SortedItems[str]] = defaultdict(SortedItems)
        self._waiting = WaitIndex()
        self._echoes = Liveness()
        self._facts: list[Fact] = []
        self._fact_ids: set[str] = set()
        self._seq = 0
        self._lines: defaultdict[str, list[Line]] = defaultdict(list)
        self._letters: dict[str, Command] = {}
        self._epoch = 0
        self._holder: str | None = None
        self._held_until = 0.0

    # --- rows

    def load(self, keys: Iterable[str]) -> Rows:
        with self._lock:
            if not self._limits:
                rows = self._rows
                return {key: rows.get(key, NO_ROW) for key in keys}
            return {key: self._read(key) for key in keys}

    def _read(self, key: str) -> Versioned:
        kept = self._rows.get(key)
        if kept is None:
            return NO_ROW
        body = self._bodies[key]
        known = self._read_back.get(key)
        if known is None or known[0] is not body or known[1].version != kept.version:
            self._read_back[key] = known = body, read_row(key, body, kept.version)
        return known[1]

    def _prove_unchanged(self, key: str) -> None:
        """Readers share a row: whoever changed a mapping that it holds is found when the row is written next."""
        known = self._read_back.pop(key, None)
        if known is None or isinstance(known[1].row, WatchedClock):  # numbers and words only
            return
        if read_row(key, known[0], known[1].version) != known[1]:
            raise AssertionError(f"the row {key} was changed in place by one of its readers")

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        with self._lock:
            found = self._tags.get(tag)
            return found.items[:limit] if found is not None else []

    def tags(self, prefix: str) -> Sequence[str]:
        with self._lock:
            return sorted(tag for tag, keys in self._tags.items() if keys.items and tag.startswith(prefix))

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        with self._lock:
            found = self._kinds.get(kind)
            if found is None:
                return []
            start = bisect_right(found.items, after)
            return found.items[start : start + limit]

    def commit(self, unit: Unit, epoch: int) -> int:
        bodies = pack(unit).writes if self._limits else {}
        with self._lock:
            if epoch != self._epoch or self._holder is None:
                raise Fenced(f"epoch {epoch} does not lead; the present one is {self._epoch}")
            if self._limits:
                kept = {key: self._rows[key].row for key in unit.writes if key in self._rows}
                count(unit, {key: tag_of(row) for key, row in kept.items() if row is not None})
            for key, version in unit.expect.items():
                if (found := self._rows.get(key, NO_ROW).version) != version:
                    raise Conflict(f"{key} has version {found}, not {version}")
            if unit.writes:
                self._version += 1
                for key, row in unit.writes.items():
                    self._put(key, row, bodies.get(key))
            for subject, mark in unit.waits.items():
                if mark is None or (subject in unit.writes and unit.writes[subject] is None):
                    self._waiting.drop(subject)
                else:
                    self._waiting.mark(subject, mark, unit.writes, self._present)
            for line in unit.story:
                for subject in line.subjects:
                    self._lines[subject].append(line)
            return self._version if unit.writes else 0

    def commit_many(self, units: Sequence[Unit], epoch: int) -> Committed:
        versions: list[int] = []
        with self._lock:
            for unit in units:
                try:
                    versions.append(self.commit(given(unit, versions), epoch))
                except REFUSALS as error:
                    return Committed(tuple(versions), error)
        return Committed(tuple(versions))

    def _present(self, key: str) -> int:
        return self._rows.get(key, NO_ROW).version

    def _put(self, key: str, row: AnyRow | None, body: bytes | None) -> None:
        """Writes one row under the store's present version; None deletes it."""
        if self._read_back:
            self._prove_unchanged(key)
        before = self._rows.get(key)
        was = tag_of(before.row) if before is not None and before.row is not None else ""
        tag = tag_of(row) if row is not None else ""
        if was != tag:
            if was:
                self._tags[was].discard(key)
            if tag:
                self._tags[tag].add(key)
        if row is None:
            self._waiting.drop(key)
            self._bodies.pop(key, None)
            if before is None:
                return
            del self._rows[key]
            self._kinds[kind_of(key)].discard(key)
        else:
            self._rows[key] = Versioned(row=row, version=self._version)
            if body is not None:
                self._bodies[key] = body
            if before is None:
                self._kinds[kind_of(key)].add(key)
        self._waiting.changed(key)

    def due(self, readings: Mapping[str, float], limit: int = 100) -> Sequence[str]:
        with self._lock:
            return self._waiting.due(readings, limit)

    # --- facts

    def append(
        self,
        facts: Sequence[Fact],
        marks: Sequence[Mark] = (),
        told: Mapping[NodeId, Pulse | None] | None = None,
    ) -> int:
        # Encoded before anything is changed: a fact that cannot be written leaves no trace of the others.
        bodies = [pack_fact(fact) for fact in facts] if self._limits else []
        with self._lock:
            new = 0
            for index, fact in enumerate(facts):
                if fact.id in self._fact_ids:
                    continue
                self._fact_ids.add(fact.id)
                self._seq += 1
                new += 1
                self._facts.append(
                    unpack_fact(self._seq, bodies[index])
                    if self._limits
                    else msgspec.structs.replace(fact, seq=self._seq)
                )
            self._version += bool(marks)
            wall = self.time()
            for mark in marks:
                key = f"clock:{mark.source}"
                row = self._rows.get(key, NO_ROW).row
                before = row if isinstance(row, WatchedClock) else None
                clock = moved(before, mark, facts=self._seq, wall=wall)
                self._put(key, clock, pack_row(key, clock) if self._limits else None)
            for node, pulse in (told or {}).items():
                self._echoes.tell(node, pulse)
            return new

    def time(self) -> float | None:
        return None if self._wall is None else self._wall()

    def facts(self, after: int, limit: int = 500) -> Sequence[Fact]:
        with self._lock:
            start = bisect_right(self._facts, after, key=_seq)
            return self._facts[start : start + limit]

    def hear(self, pulses: Mapping[NodeId, Pulse]) -> None:
        with self._lock:
            self._echoes.hear(pulses)

    def voices(self, before: float, limit: int = 500) -> LivenessChanges:
        with self._lock:
            return LivenessChanges(silent=self._echoes.silent(before, limit), heard=self._echoes.heard(limit))

    # --- mail

    def post(self, commands: Sequence[Command]) -> None:
        posted = [unpack_letter(pack_letter(each)) for each in commands] if self._limits else commands
        with self._lock:
            for command in posted:
                self._letters.setdefault(command.id, command)

    def mail(self, node: NodeId, limit: int = 20) -> Sequence[Command]:
        with self._lock:
            return [command for command in self._letters.values() if command.node == node][:limit]

    def mailed(self, nodes: Collection[NodeId]) -> Collection[NodeId]:
        asked = set(nodes)
        with self._lock:
            return {command.node for command in self._letters.values() if command.node in asked}

    def strike(self, ids: Collection[str]) -> None:
        with self._lock:
            for each in ids:
                self._letters.pop(each, None)

    # --- the story, the lease, and age

    def story(self, subject: str, limit: int = STORY) -> Sequence[Line]:
        with self._lock:
            lines = self._lines.get(subject, [])
            return lines[max(0, len(lines) - limit) :]

    def lease(self, holder: str, ttl: float) -> Lease | None:
        with self._lock:
            now = self._now()
            held = self._holder is not None and now < self._held_until
            if held and self._holder != holder:
                return None
            if not held:
                self._epoch += 1
            self._holder, self._held_until = holder, now + ttl
            return Lease(epoch=self._epoch, holder=holder, ttl=ttl)

    def resign(self, holder: str) -> None:
        with self._lock:
            if self._holder == holder:
                self._holder = None

    def forget(self, before: datetime) -> int:
        with self._lock:
            rows = self._forget_facts(before) + self._forget_lines(before) + self._forget_rows(before)
            pulses = self._echoes.forget(lambda node: f"node:{node}" in self._rows)
            return rows + self._forget_letters(before) + pulses

    def _forget_letters(self, before: datetime) -> int:
        old = [id_ for id_, command in self._letters.items() if command.posted_at < before]
        self.strike(old)
        return len(old)

    def _forget_facts(self, before: datetime) -> int:
        cursor = self._rows.get(CURSOR, NO_ROW).row
        planned = cursor.at if isinstance(cursor, Cursor) else 0
        old = {fact.id for fact in self._facts if fact.at < before and fact.seq <= planned}
        self._facts = [fact for fact in self._facts if fact.id not in old]
        self._fact_ids -= old
        return len(old)

    def _open(self, key: str) -> bool:
        row = self._rows.get(key, NO_ROW).row
        return row is not None and opened(row)

    def _forget_lines(self, before: datetime) -> int:
        old: dict[int, Line] = {}
        shown = {id(line) for subject, lines in self._lines.items() if self._open(subject) for line in lines[-STORY:]}
        for subject, lines in list(self._lines.items()):
            kept = []
            for line in lines:
                if line.at < before and id(line) not in shown:
                    old[id(line)] = line
                else:
                    kept.append(line)
            if kept:
                self._lines[subject] = kept
            else:
                del self._lines[subject]
        return len(old)

    def _forget_rows(self, before: datetime) -> int:
        old = []
        for kind in ("incident", "job", "checkup", "intent", "part", "roster", "attempt", "voice", "record", "order"):
            for key in self._kinds[kind].items if kind in self._kinds else ():
                row = self._rows[key].row
                if row is None or (end := ended_at(row)) is None or end >= before:
                    continue
                if (owner := owner_of(row)) and self._open(owner):
                    continue
                old.append(key)
        for key in old:
            self._put(key, None, None)
        return len(old)

    def close(self) -> None:
        pass
