"""Group commit: many units as one transaction of an SQL store, so that they share its statements and one sync.

Each unit is judged as if those before it had been committed; from the first that is refused on nothing is written.
What they write is merged: of a row that several write only the last is put, of a wait only the last mark.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from sickbay.adapters.stores.codec import REFUSALS, WireUnit, count, pack
from sickbay.model.errors import Conflict, StoreError
from sickbay.model.rows import UNIT_ACTIONS, AnyRow, Line, Unit, WaitMark, tag_of


class GroupedWrite(NamedTuple):
    key: str
    row: AnyRow | None  # None: deleted
    body: bytes | None
    version: int


class Marked(NamedTuple):
    subject: str
    mark: WaitMark
    dirty: bool  # what it read has another version by now


class CommitGroup:
    """Units in the order of their numbers, from 1 on. A version −n is the one that unit n will be given."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.packed: list[WireUnit] = []
        self.refused: StoreError | None = None
        for unit in units:
            try:
                self.packed.append(pack(unit))
            except REFUSALS as error:
                self.refused = error
                break
        self.units = list(units[: len(self.packed)])
        self.versions: tuple[int, ...] = ()
        self._given: list[int] = []
        self._found: Mapping[str, int] = {}
        self._now: dict[str, int] = {}  # versions of rows that the group changes, as it leaves them

    @property
    def asked(self) -> set[str]:
        """Rows whose present version decides."""
        keys: set[str] = set()
        for unit in self.units:
            keys.update(unit.expect)
            keys.update(unit.writes)
            keys.update(key for mark in unit.waits.values() if mark is not None for key in mark.on)
        return keys

    def judge(self, found: Mapping[str, int], tags: dict[str, str]) -> None:
        """Cuts the group off at the first unit that is too large, or expects what is not there."""
        self._found = found
        for number, unit in enumerate(self.units, 1):
            try:
                count(unit, tags)
                self._expect(unit)
            except REFUSALS as error:
                self.refused = error
                del self.units[number - 1 :], self.packed[number - 1 :]
                return
            for key, row in unit.writes.items():
                self._now[key] = -number if row is not None else 0
                tags[key] = tag_of(row) if row is not None else ""

    def _expect(self, unit: Unit) -> None:
        for key, version in unit.expect.items():
            if (present := self._version(key)) != version:
                raise Conflict(f"{key} has version {present}, not {version}")

    def _version(self, key: str) -> int:
        return self._now[key] if key in self._now else self._found.get(key, 0)

    @property
    def numbered(self) -> int:
        """How many versions it needs: one for each unit that writes or tells something."""
        return sum(bool(unit.writes or unit.story) for unit in self.units)

    def number(self, last: int) -> None:
        """Hand out the versions, of which this is the last."""
        version = last - self.numbered
        for unit in self.units:
            version += bool(unit.writes or unit.story)
            self._given.append(version)
        self.versions = tuple(
            version if unit.writes else 0 for version, unit in zip(self._given, self.units, strict=True)
        )

    # --- what is written

    @property
    def rows(self) -> dict[str, GroupedWrite]:
        rows: dict[str, GroupedWrite] = {}
        for unit, packed, version in self._accepted():
            rows |= {key: GroupedWrite(key, row, packed.writes[key], version) for key, row in unit.writes.items()}
        return rows

    def _accepted(self) -> Iterable[tuple[Unit, WireUnit, int]]:
        return zip(self.units, self.packed, self._given, strict=True)

    @property
    def changed(self) -> list[str]:
        """Keys whose waits fall due; that of a row which was not there before, nor is now, makes nobody due."""
        return [key for key, version in self._now.items() if version or key in self._found]

    @property
    def unmarked(self) -> list[str]:
        """Subjects whose waits are taken away, to be marked anew or not."""
        deleted = (key for unit in self.units for key, row in unit.writes.items() if row is None)
        return list(dict.fromkeys([*deleted, *(subject for unit in self.units for subject in unit.waits)]))

    @property
    def marks(self) -> list[Marked]:
        last: dict[str, tuple[WaitMark, int] | None] = {}
        for number, unit in enumerate(self.units, 1):
            last |= {key: None for key, row in unit.writes.items() if row is None}
            for subject, mark in unit.waits.items():
                kept = mark is not None and unit.writes.get(subject, ...) is not None
                last[subject] = (mark, number) if mark is not None and kept else None
        return [self._marked(subject, *marked) for subject, marked in last.items() if marked is not None]

    def _marked(self, subject: str, mark: WaitMark, number: int) -> Marked:
        writes = self.units[number - 1].writes
        # Of a row that the same unit writes the version after it is meant: its own writes do not make its waits due.
        read = {
            key: (-number if writes[key] is not None else 0) if key in writes else version
            for key, version in mark.on.items()
        }
        dirty = any(self._version(key) != version for key, version in read.items())
        on = {key: self.versions[-version - 1] if version < 0 else version for key, version in mark.on.items()}
        return Marked(subject, replace(mark, on=on), dirty)

    @property
    def told(self) -> list[tuple[int, Line, bytes]]:
        # A unit has a version of its own and at most UNIT_ACTIONS lines: this numbers them without asking.
        return [
            (version * (UNIT_ACTIONS + 1) + n, line, body)
            for unit, packed, version in self._accepted()
            for n, (line, body) in enumerate(zip(unit.story, packed.story, strict=True))
        ]
