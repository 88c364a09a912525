"""Who waits for what, in memory: the index behind `MemoryStore.due`."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from heapq import nsmallest
from typing import Any, Generic, TypeVar

from sickbay.model.rows import WaitMark

Item = TypeVar("Item", bound=Any)


class SortedItems(Generic[Item]):
    """Distinct items in order. Inserting moves memory, not objects: quick up to some hundred thousand."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: list[Item] = []

    def add(self, item: Item) -> None:
        index = bisect_left(self.items, item)
        if index == len(self.items) or self.items[index] != item:
            self.items.insert(index, item)

    def discard(self, item: Item) -> None:
        index = bisect_left(self.items, item)
        if index < len(self.items) and self.items[index] == item:
            del self.items[index]


class WaitIndex:
    """A wait is dirty once a row that its decision read has another version, until it is marked again."""

    def __init__(self) -> None:
        self._marks: dict[str, WaitMark] = {}
        self._waiters: dict[str, set[str]] = {}  # key → subjects whose wait read it
        self._dirty: SortedItems[tuple[int, str]] = SortedItems()
        self._deadlines: defaultdict[str, SortedItems[tuple[float, str]]] = defaultdict(SortedItems)

    def mark(self, subject: str, mark: WaitMark, written: Container[str], present: Callable[[str], int]) -> None:
        """`written` are the keys of the same unit: of them the wait means the version after it."""
        self.drop(subject)
        self._marks[subject] = mark
        fresh = True
        for key, version in mark.on.items():
            self._waiters.setdefault(key, set()).add(subject)
            fresh = fresh and (key in written or present(key) == version)
        if not fresh:
            self._dirty.add((mark.urgency, subject))
        if mark.until is not None:
            self._deadlines[mark.until.clock].add((mark.until.at, subject))

    def drop(self, subject: str) -> None:
        mark = self._marks.pop(subject, None)
        if mark is None:
            return
        for key in mark.on:
            waiters = self._waiters[key]
            waiters.discard(subject)
            if not waiters:
                del self._waiters[key]
        self._dirty.discard((mark.urgency, subject))
        if mark.until is not None:
            self._deadlines[mark.until.clock].discard((mark.until.at, subject))

    def changed(self, key: str) -> None:
        """The row under this key has another version now."""
        for subject in self._waiters.get(key, ()):
            self._dirty.add((self._marks[subject].urgency, subject))

    def due(self, readings: Mapping[str, float], limit: int) -> list[str]:
        passed: set[tuple[int, str]] = set()
        for clock, deadlines in self._deadlines.items():
            reading = readings.get(clock, 0.0)
            for at, subject in deadlines.items:
                if at > reading:
                    break
                passed.add((self._marks[subject].urgency, subject))
        if not passed:
            return [subject for _, subject in self._dirty.items[:limit]]
        passed.update(self._dirty.items[:limit])
        return [subject for _, subject in nsmallest(limit, passed)]
