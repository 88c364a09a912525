"""What an agent has to say, on disk, until it is acknowledged.

A run of the agent writes segments of its own: a header, then one item in each line. A segment goes when all of it is
acknowledged; what an earlier run left behind is said under that run's name. Nothing is synced: the death of a process
takes nothing back, and after a power cut the machine is another incarnation whose log is read afresh.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sickbay.agent.room import ALIKE, FAULT, folded, rank
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item

SEGMENT = 1 << 20  # bytes
SUFFIX = ".jsonl"
TEXT_FILES = ("kmsg", "text:")  # names of sources: a boot's log as a file, and a system log


class Voice(Noun):
    """Who speaks: one run of the agent under one boot of its machine."""

    node: NodeId
    incarnation: Incarnation
    agent_run: str
    machine_boot: str = ""  # of the machine whose monotonic clock this is; on a local cluster that of all nodes
    zero: float = 0.0  # wall time when that clock was 0, as far as the wall clock can be believed


@dataclass(slots=True)
class _Segment:
    path: Path
    last: int
    size: int


class Spool:
    """The segments of one run. `append` never raises: a disk that is full must not stop the agent."""

    def __init__(self, directory: Path, voice: Voice) -> None:
        self._directory = directory
        self._voice = voice
        self._stem = f"{time.time_ns():020d}-{voice.agent_run}"
        self._count = 0
        self._segments: list[_Segment] = []
        self._handle: int | None = None
        self.trouble = ""  # why the last append failed

    def append(self, lines: bytes, first: int, last: int) -> bool:
        """These items, whole or not at all. False: the disk does not take them now."""
        try:
            if self._handle is None or self._segments[-1].size >= SEGMENT:
                self._begin(first)
            self._write(lines)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return False
        self._segments[-1].last = last
        self.trouble = ""
        return True

    def _begin(self, first: int) -> None:
        self._end()
        self._count += 1
        path = self._directory / f"{self._stem}-{self._count:08d}{SUFFIX}"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(path=path, last=first - 1, size=0))
        try:
            self._write(msgspec.json.encode(self._voice) + b"\n")
        except OSError:
            self._end()
            self._segments.pop().path.unlink(missing_ok=True)
            raise

    def _write(self, data: bytes) -> None:
        segment = self._segments[-1]
        if self._handle is None:
            raise OSError("no segment is open")
        try:
            done = 0
            while done < len(data):
                done += os.write(self._handle, data[done:])
        except OSError:
            # Half an item must not stand before the next one.
            with suppress(OSError):
                os.ftruncate(self._handle, segment.size)
                os.lseek(self._handle, segment.size, os.SEEK_SET)
            raise
        segment.size += len(data)

    def forget(self, seq: int) -> None:
        """Everything up to this number is acknowledged."""
        while self._segments and self._segments[0].last <= seq:
            gone = self._segments.pop(0)
            if not self._segments:
                self._end()
            with suppress(OSError):
                gone.path.unlink(missing_ok=True)

    def rewrite(self, lines: bytes, first: int, last: int) -> bool:
        """Only these items are left. What was there goes when the new segment stands."""
        before, self._segments = self._segments, []
        self._end()
        if not self.append(lines, first, last):
            self._segments = before + self._segments
            return False
        for gone in before:
            with suppress(OSError):
                gone.path.unlink(missing_ok=True)
        return True

    def _end(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    close = _end


@dataclass(frozen=True, slots=True)
class Leftover:
    """One segment of an earlier run."""

    path: Path
    voice: Voice
    items: tuple[Item, ...]


def leftovers(directory: Path) -> list[Path]:
    """Segments that earlier runs left, oldest first."""
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == SUFFIX)
    except FileNotFoundError:
        return []


def read_leftover(path: Path, now: Voice, *, as_written: bool = False) -> Leftover | None:
    """None: there is nothing in it. A line that was cut off, or cannot be read, is left out."""
    try:
        head, *lines = path.read_bytes().split(b"\n")
        voice = msgspec.json.decode(head, type=Voice)
    except (OSError, msgspec.MsgspecError) as error:
        print(f"agent: {path.name} in the spool cannot be read: {error}", file=sys.stderr, flush=True)
        return None
    items: list[Item] = []
    for line in lines:
        with suppress(msgspec.MsgspecError):
            item = msgspec.json.decode(line, type=Item) if line else None
            if item is not None:
                items.append(item if as_written else _last_word(_on_clock(item, voice, now), voice, now))
    return Leftover(path=path, voice=voice, items=tuple(items)) if items else None


def faults_only(path: Path, now: Voice) -> int:
    """Cuts a segment down to its faults, those that say the same summed up. How many bytes are left."""
    found = read_leftover(path, now, as_written=True)
    if found is None:
        return 0
    faults = folded((item for item in found.items if rank(item.news) == FAULT), ALIKE[0])
    lines = [msgspec.json.encode(found.voice), *(msgspec.json.encode(item) for item in faults)]
    data = b"\n".join(lines) + b"\n"
    aside = path.with_suffix(".new")
    try:
        aside.write_bytes(data)
        aside.rename(path)
    except OSError:
        return path.stat().st_size  # a full disk: then it stays as it is
    return len(data)


def _on_clock(item: Item, voice: Voice, now: Voice) -> Item:
    """Another boot of the machine had another monotonic clock: the wall clock is all that joins the two."""
    if voice.machine_boot == now.machine_boot:
        return item
    return replace(item, mono=item.mono + voice.zero - now.zero)


def _last_word(item: Item, voice: Voice, now: Voice) -> Item:
    """What was read under a boot that has ended since. A line of a text file names no boot and is never one's last."""
    ended = voice.incarnation.boot_id != now.incarnation.boot_id and voice.incarnation.same_holder(now.incarnation)
    if not ended or not isinstance(item.news, Observed) or item.source.startswith(TEXT_FILES):
        return item
    return replace(item, news=replace(item.news, last_words=True))


def in_a_row(items: Sequence[Item]) -> list[Item]:
    """As many as follow one another without a gap, from the first on."""
    row: list[Item] = []
    for item in items:
        if row and item.seq != row[-1].seq + 1:
            break
        row.append(item)
    return row
