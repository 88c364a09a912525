"""Outbox: what an agent has to say, numbered, on disk, handed out in order, forgotten when it is acknowledged."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Condition

import msgspec
from msgspec.structs import replace

from sickbay.agent.eviction import ALIKE, CHEAP, Key, folded
from sickbay.agent.eviction import rank as rank_of
from sickbay.agent.leavings import Leavings, in_a_row
from sickbay.agent.places import Places, PlacesMark
from sickbay.agent.plain import cleaned
from sickbay.agent.spool import AT_ONCE, AgentIdentity, Spool
from sickbay.model.facts import Observed
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item, ItemNews

MOST_ITEMS = 100_000
MOST_BYTES = 64 << 20
BYTES_AT_ONCE = 1 << 20
SAVE_AGAIN = 1.0  # seconds between two tries to save much that the disk did not take
FOLDED_AT_ONCE = 2000  # items
ROOM = 0.1  # of the limit, that is made at once


def say(
    news: ItemNews, mono: float | None = None, source: str = "", source_seq: int | None = None
) -> Item:  # fmt: skip
    """An item that has no number yet."""
    at = time.monotonic() if mono is None else mono
    return Item(seq=0, mono=at, news=cleaned(news), source=source, source_seq=source_seq)


@dataclass(frozen=True, slots=True)
class Batch:
    """Items of one run, in order and without gaps, ready to be sent."""

    voice: AgentIdentity
    first: int
    items: tuple[bytes, ...]
    leftover: Path | None = None

    @property
    def last(self) -> int:
        return self.first + len(self.items) - 1


def replace_items(batch: Batch, items: tuple[bytes, ...]) -> Batch:
    return Batch(voice=batch.voice, first=batch.first, items=items, leftover=batch.leftover)


@dataclass(slots=True)
class _Entry:
    seq: int
    line: bytes
    rank: int  # what goes first where there is no room


class Outbox:
    """Any thread may put something in; one takes out."""

    def __init__(
        self,
        directory: Path,
        voice: AgentIdentity,
        places: Places | None = None,
        *,
        most_items: int = MOST_ITEMS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.voice = voice
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._places = places
        self._spool = Spool(directory, voice, self._safe, None if places is None else places.reserve)
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._seq = 0
        self._unsaved = 0  # how many of the last entries are not on disk
        self._handed = 0  # up to here it may have reached the controller
        self._acknowledged = 0
        self._mark: PlacesMark | None = None  # goes with what is saved next
        self._marked = 0  # the newest that was saved: the same again would only take room
        self._save_again = 0.0
        self._full_told = False
        self._more = Condition()
        with self._more:
            self._leavings = Leavings(directory, voice, self._remark, lambda: self._safe(-1), self._spool.owns)
            self._leavings.trim(most_bytes)

    # --- in
    def put(self, items: Sequence[Item], places: Mapping[str, Noun | None] | None = None) -> None:
        """All of these, one behind the other, on disk before anybody can send them; `places`: how far was read then."""
        if not items:
            return
        with self._more:
            if self._places is not None and places is not None:
                mark = self._places.mark(places)
                self._mark = mark if mark.n > max(self._marked, self._places.kept) else self._mark
            self._append(items)
            if len(self._entries) > self._most_items or self._bytes > self._most_bytes:
                self._make_room()
            self._more.notify_all()

    def keep(self, places: Mapping[str, Noun | None]) -> None:
        """How far was read, where nothing was found: kept unless the disk lacks something that was found before."""
        with self._more:
            self._spool.keep_reserve()  # also while nothing is told: the disk may be full again before that
            if self._unsaved:
                self._save()
            if self._places is None or self._unsaved:
                return
            self._places.mark(places)
            if self._safe(-1):
                self._leavings.sweep()
                self._spool.forget(self._acknowledged)

    def _safe(self, mark: int) -> bool:
        """This mark, -1: the newest, is kept beside the spool. Never ahead of what is on disk or acknowledged."""
        if self._places is None or 0 <= mark <= self._places.kept:
            return True
        if self._unsaved:
            return False
        try:
            self._places.keep()
        except OSError:
            return False
        return True

    def _append(self, items: Sequence[Item]) -> None:
        for item in items:
            self._seq += 1
            line = msgspec.json.encode(replace(item, seq=self._seq))
            self._entries.append(_Entry(self._seq, line, rank_of(item.news)))
            self._bytes += len(line)
        self._unsaved += len(items)
        self._save()

    def _save(self) -> None:
        now = time.monotonic()
        if self._unsaved > AT_ONCE and now < self._save_again:
            return  # a disk that takes nothing is not offered more and more of it at every word
        self._save_again = now + SAVE_AGAIN
        fresh = list(islice(reversed(self._entries), self._unsaved))[::-1]
        if self._spool.append([entry.line for entry in fresh], fresh[0].seq, fresh[-1].seq, self._mark):
            self._marked = self._marked if self._mark is None else self._mark.n
            self._unsaved, self._mark = 0, None
            self._full_told = False
        elif not self._full_told:
            self._full_told = True
            why = self._spool.trouble
            self._remark("agent.not_spooled", f"reports are kept in memory only: {why}")

    def _remark(self, kind: str, text: str, **fields: int) -> None:
        news = Observed(node=self.voice.node, kind=kind, text=text, fields=dict(fields))
        self._append([say(news)])

    def _make_room(self) -> None:
        """What matters least goes first, the oldest of it; faults are summed up. That something is missing is said."""
        items, size = int(self._most_items * (1 - ROOM)), int(self._most_bytes * (1 - ROOM))
        dropped = sum(self._drop(rank, items, size) for rank in CHEAP)
        summed = self._fold(items, size)
        self._unsaved = min(self._unsaved, len(self._entries))
        lines = [entry.line for entry in self._entries]
        newest = None if self._places is None else self._places.newest
        if lines and self._spool.rewrite(lines, self._entries[0].seq, self._entries[-1].seq, newest):
            self._unsaved, self._mark = 0, None
        if dropped:
            self._remark("agent.dropped", f"{dropped} reports had no room in the spool", dropped=dropped)
        if summed:
            text = f"{summed} faults had no room in the spool and were added to others like them"
            self._remark("agent.summed", text, summed=summed)

    def _drop(self, rank: int, items: int, size: int) -> int:
        too_many, too_much = len(self._entries) - items, self._bytes - size
        kept: deque[_Entry] = deque()
        for entry in self._entries:
            if (too_many > 0 or too_much > 0) and entry.rank == rank and entry.seq > self._handed:
                too_many -= 1
                too_much -= len(entry.line)
            else:
                kept.append(entry)
        return self._now(kept)

    def _fold(self, items: int, size: int) -> int:
        before = len(self._entries)
        for alike in (*ALIKE, ALIKE[-1]):
            if len(self._entries) <= items and self._bytes <= size:
                break
            self._now(deque(self._folded(alike)))
        return before - len(self._entries)

    def _folded(self, alike: Callable[[Observed], Key]) -> Iterator[_Entry]:
        """Some at a time: decoded, all of them would take several times their room."""
        entries = iter(self._entries)
        while some := list(islice(entries, FOLDED_AT_ONCE)):
            # What may have reached the controller stays as it is: added to another, it would be counted twice.
            yield from (entry for entry in some if entry.seq <= self._handed)
            whole = (msgspec.json.decode(entry.line, type=Item) for entry in some if entry.seq > self._handed)
            for item in folded(whole, alike):
                yield _Entry(item.seq, msgspec.json.encode(item), rank_of(item.news))

    def _now(self, entries: deque[_Entry]) -> int:
        """These are left; how many are not."""
        gone = len(self._entries) - len(entries)
        self._entries = entries
        self._bytes = sum(len(entry.line) for entry in entries)
        return gone

    # --- out
    def batch(self) -> Batch | None:
        """What is to be sent next: earlier runs' leavings before our own. The same again until it is acknowledged."""
        with self._more:
            leftover = self._leavings.next()
            if leftover is not None:
                row = in_a_row(leftover.items[:AT_ONCE])
                lines = tuple(msgspec.json.encode(item) for item in row)
                return Batch(leftover.voice, row[0].seq, _fitting(lines), leftover.path)
            if not self._entries:
                return None
            first = self._entries[0].seq
            lines = tuple(
                entry.line
                for n, entry in zip(range(min(AT_ONCE, len(self._entries))), self._entries, strict=False)
                if entry.seq == first + n
            )
            batch = Batch(self.voice, first, _fitting(lines))
            self._handed = max(self._handed, batch.last)
            return batch

    def acknowledge(self, batch: Batch, seq: int) -> None:
        """The controller has everything of this batch up to `seq`."""
        with self._more:
            if batch.leftover is not None:
                self._leavings.acknowledge(batch.leftover, seq)
                return
            seq = min(seq, self._seq)  # whatever it says, it cannot have what was not said
            while self._entries and self._entries[0].seq <= seq:
                self._bytes -= len(self._entries.popleft().line)
            self._unsaved = min(self._unsaved, len(self._entries))
            self._acknowledged = max(self._acknowledged, seq)
            self._safe(-1)
            self._spool.forget(seq)
            if not self._entries:
                self._more.notify_all()

    def wait(self, until: float, wanted: Callable[[], bool]) -> None:
        """Until there is something to send, `wanted` holds, or the monotonic clock says `until`."""
        with self._more:
            while not (self._entries or not self._leavings.empty or wanted()):
                left = until - time.monotonic()
                if left <= 0:
                    return
                self._more.wait(left)

    def emptied(self, within: float) -> bool:
        """Waits until all that was said has been acknowledged, or so many seconds. Whether it has."""
        until = time.monotonic() + within
        with self._more:
            while not self.empty:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._more.wait(left)
            return True

    def wake(self) -> None:
        with self._more:
            self._more.notify_all()

    def close(self) -> None:
        with self._more:
            self._spool.close()
            if self._places is not None:
                self._places.close()

    @property
    def saved(self) -> bool:
        """Nothing would be lost if this process died now."""
        return not self._unsaved

    @property
    def empty(self) -> bool:
        return not self._entries and self._leavings.empty


def _fitting(lines: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """As many as a report may hold, at least one."""
    size = 0
    for n, line in enumerate(lines):
        size += len(line)
        if size > BYTES_AT_ONCE and n:
            return lines[:n]
    return lines
