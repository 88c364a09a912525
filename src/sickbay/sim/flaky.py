"""Fault-injecting store between the engine and the real one: before, after, or in its answer; and crashes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sickbay.model.errors import Conflict, StoreUnavailable, StoreUnknown, UnitRefused
from sickbay.model.facts import Fact, Mark
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Command
from sickbay.model.rows import Lease, Line, Rows, Unit, Versioned, given
from sickbay.ports.store import STORY, Committed, LivenessChanges, Pulse, Store


class Crashed(BaseException):
    """The engine's process has ended here. Not an Exception: nothing in the engine may survive it."""


class FlakyStore:
    """Asks `fate(what)` around every write; reads pass through."""

    def __init__(
        self,
        store: Store,
        fate: Callable[[str], str],
        written: Callable[[Unit], None] = lambda _unit: None,
        led: Callable[[int], None] = lambda _epoch: None,
    ) -> None:
        """`written` hears of every unit that the store took, whoever hears of it besides; `led` of every epoch."""
        self._store = store
        self._fate = fate
        self._written = written
        self._led = led
        self.damaged: set[str] = set()  # keys of rows that cannot be read back

    def _around(self, what: str, write: Callable[[], int]) -> int:
        match self._fate(what):
            case "crash_before":
                raise Crashed(what)
            case "unavailable":
                raise StoreUnavailable(f"{what}: the store cannot be reached")
            case "crash_after":
                write()
                raise Crashed(what)
            case "lost_answer":
                write()
                raise StoreUnknown(f"{what}: the answer was lost")
            case _:
                return write()

    def commit(self, unit: Unit, epoch: int) -> int:
        def write() -> int:
            version = self._store.commit(unit, epoch)
            self._written(unit)
            return version

        return self._around("commit", write)

    def commit_many(self, units: Sequence[Unit], epoch: int) -> Committed:
        """One after the other, as a store does that has no larger transaction: it may end between any two of them."""
        versions: list[int] = []
        for unit in units:
            try:
                versions.append(self.commit(given(unit, versions), epoch))
            except (Conflict, UnitRefused) as error:
                return Committed(tuple(versions), error)
        return Committed(tuple(versions))

    def append(
        self, facts: Sequence[Fact], marks: Sequence[Mark] = (), told: Mapping[NodeId, Pulse | None] | None = None
    ) -> int:
        if not facts and not told:  # a crash around a mere mark is a crash between two steps
            return self._store.append(facts, marks, told)
        return self._around("append", lambda: self._store.append(facts, marks, told))

    def post(self, commands: Sequence[Command]) -> None:
        def write() -> int:
            self._store.post(commands)
            return len(commands)

        self._around("post", write)

    def mail(self, node: NodeId, limit: int = 20) -> Sequence[Command]:
        return self._store.mail(node, limit)

    def mailed(self, nodes: Collection[NodeId]) -> Collection[NodeId]:
        return self._store.mailed(nodes)

    def strike(self, ids: Collection[str]) -> None:
        def write() -> int:
            self._store.strike(ids)
            return len(ids)

        self._around("strike", write)

    def load(self, keys: Iterable[str]) -> Rows:
        rows = self._store.load(keys)
        for key in self.damaged & rows.keys() if self.damaged else ():
            if rows[key].row is not None:
                damage = f"the row {key} in the store cannot be read"
                rows = {**rows, key: Versioned(row=None, version=rows[key].version, damage=damage)}
        return rows

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        return self._store.find(tag, limit)

    def tags(self, prefix: str) -> Sequence[str]:
        return self._store.tags(prefix)

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        return self._store.keys(kind, after, limit)

    def due(self, readings: Mapping[str, float], limit: int = 100) -> Sequence[str]:
        return self._store.due(readings, limit)

    def time(self) -> float | None:
        return self._store.time()

    def facts(self, after: int, limit: int = 500) -> Sequence[Fact]:
        return self._store.facts(after, limit)

    def hear(self, pulses: Mapping[NodeId, Pulse]) -> None:
        self._store.hear(pulses)

    def voices(self, before: float, limit: int = 500) -> LivenessChanges:
        return self._store.voices(before, limit)

    def story(self, subject: str, limit: int = STORY) -> Sequence[Line]:
        return self._store.story(subject, limit)

    def lease(self, holder: str, ttl: float) -> Lease | None:
        lease = self._store.lease(holder, ttl)
        if lease is not None:
            self._led(lease.epoch)
        return lease

    def resign(self, holder: str) -> None:
        self._store.resign(holder)

    def forget(self, before: datetime) -> int:
        return self._store.forget(before)

    def close(self) -> None:
        self._store.close()
