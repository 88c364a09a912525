"""Segmented append-only log: what an agent has to say, on disk, until it is acknowledged.

A run of the agent writes segments of its own: a header, then one item in each line. A segment goes when all of it is
acknowledged; what an earlier run left behind is said under that run's name. Nothing is synced: the death of a process
takes nothing back, and after a power cut the machine is another incarnation whose log is read afresh.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sickbay.agent.eviction import ALIKE, FAULT, folded, rank
from sickbay.agent.places import MARKED, PlacesMark
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.noun import Noun
from sickbay.model.protocol import Item
from sickbay.wire.files import replace_file

SEGMENT = 1 << 20  # bytes
RESERVE = 1 << 18  # bytes that are taken as long as there is room, for when there is none
AT_ONCE = 500  # items in one report
SUFFIX = ".jsonl"
AFRESH = ".afresh.jsonl"  # instead of all that this run wrote before it
TEXT_FILES = ("kmsg", "text:")  # names of sources: a boot's log as a file, and a system log


class AgentIdentity(Noun):
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
    mark: int = 0  # the newest mark in it
    most: int = SEGMENT


class Frame(Noun):
    """Items with the places behind them, in one line: all of it, or nothing."""

    items: tuple[Item, ...]


class Spool:
    """The segments of one run. `append` never raises: a disk that is full must not stop the agent.

    `safe` tells whether a mark is kept elsewhere, too: a segment with one that is not stays, acknowledged or not.
    `reserve`: a file with room in it, which becomes a segment when the disk has none.
    """

    def __init__(
        self,
        directory: Path,
        voice: AgentIdentity,
        safe: Callable[[int], bool] = lambda _: True,
        reserve: Path | None = None,
    ) -> None:
        self._directory = directory
        self._voice = voice
        self._stem = f"{time.time_ns():020d}-{voice.agent_run}"
        self._safe = safe
        self._reserve = reserve
        self._has_reserve = False
        self._count = 0
        self._segments: list[_Segment] = []
        self._handle: int | None = None
        self.trouble = ""  # why the last append failed
        self.keep_reserve()

    def append(self, lines: Sequence[bytes], first: int, last: int, mark: PlacesMark | None = None) -> bool:
        """These items, whole or not at all. False: the disk does not take them now."""
        try:
            if self._handle is None or self._segments[-1].size >= self._segments[-1].most:
                self._begin(first)
            self._write(_framed(lines, mark))
            self.keep_reserve()
        except OSError as error:
            self.trouble = error.strerror or str(error)
            if not self._use_reserve(_framed(lines, mark), first):
                return False
        self._segments[-1].last = last
        self._segments[-1].mark = mark.n if mark is not None else self._segments[-1].mark
        self.trouble = ""
        return True

    def _begin(self, first: int) -> None:
        self._end()
        self._new(self._path(SUFFIX), first)

    def keep_reserve(self) -> None:
        """Takes the reserve where it is not taken and there is room."""
        if self._reserve is None or self._has_reserve:
            return
        with suppress(OSError):
            self._reserve.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(handle, 0, RESERVE)
                self._has_reserve = True
            finally:
                os.close(handle)

    def _use_reserve(self, data: bytes, first: int) -> bool:
        """The rest of it stays zeros, which nobody takes for a line."""
        if self._reserve is None or not self._has_reserve or len(data) > RESERVE // 2:
            return False
        self._end()
        path = self._path(SUFFIX)
        try:
            self._handle = os.open(self._reserve, os.O_WRONLY | os.O_CLOEXEC)
            self._directory.mkdir(parents=True, exist_ok=True)
            self._reserve.rename(path)
            self._has_reserve = False
            self._segments.append(_Segment(path=path, last=first - 1, size=0, most=RESERVE // 2))
            self._write(msgspec.json.encode(self._voice) + b"\n")
            self._write(data)
        except OSError:
            self._end()
            return False
        return True

    def _path(self, suffix: str) -> Path:
        self._count += 1
        return self._directory / f"{self._stem}-{self._count:08d}{suffix}"

    def _new(self, path: Path, first: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._segments.append(_Segment(path=path, last=first - 1, size=0))
        try:
            self._write(msgspec.json.encode(self._voice) + b"\n")
        except OSError:
            self._end()
            _remove(self._segments.pop().path)
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
            try:
                os.ftruncate(self._handle, segment.size)
                os.lseek(self._handle, segment.size, os.SEEK_SET)
            except OSError:
                self._end()  # it does: then the next one begins a segment of its own
            raise
        segment.size += len(data)

    def forget(self, seq: int) -> None:
        """Everything up to this number is acknowledged."""
        while self._segments and self._segments[0].last <= seq and self._safe(self._segments[0].mark):
            gone = self._segments.pop(0)
            if not self._segments:
                self._end()
            _remove(gone.path)

    def rewrite(self, lines: Sequence[bytes], first: int, last: int, mark: PlacesMark | None = None) -> bool:
        """Only these items are left. What was there goes when the new segment stands, under a name that says so."""
        before, self._segments = self._segments, []
        self._end()
        path = self._path(AFRESH)
        aside = path.with_suffix(".new")
        try:
            self._new(aside, first)
            self._write(_framed(lines, mark))
            aside.rename(path)
        except OSError as error:
            self.trouble = error.strerror or str(error)
            self._end()
            _remove(aside)
            self._segments = before
            return False
        self._segments[-1].path, self._segments[-1].last = path, last
        self._segments[-1].mark = mark.n if mark is not None else 0
        self.trouble = ""
        for gone in before:
            _remove(gone.path)
        return True

    def _end(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                os.close(self._handle)
            self._handle = None

    close = _end

    def owns(self, path: Path) -> bool:
        return path.name.startswith(self._stem)


def _framed(lines: Sequence[bytes], mark: PlacesMark | None) -> bytes:
    if mark is None:
        return b"".join(line + b"\n" for line in lines)
    head = msgspec.json.encode(mark)
    return head[:-1] + b',"items":[' + b",".join(lines) + b"]}\n"


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Leftover:
    """One segment of an earlier run. `damaged`: so many of its lines cannot be understood."""

    path: Path
    voice: AgentIdentity
    items: tuple[Item, ...]
    damaged: int = 0


def leftovers(directory: Path) -> list[Path]:
    """Segments that earlier runs left, oldest first. Raises OSError."""
    try:
        there = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    for path in there:
        if path.suffix == ".new" or path.name.startswith("."):
            _remove(path)  # the run died over it: what it was to stand for is there still
    found = [path for path in there if path.suffix == SUFFIX]
    since = {_stem(path): path.name for path in found if path.name.endswith(AFRESH)}
    for path in found:
        if path.name < since.get(_stem(path), ""):
            _remove(path)
    return [path for path in found if path.name >= since.get(_stem(path), "")]


def _stem(path: Path) -> str:
    return path.name.rpartition("-")[0]


def read_leftover(path: Path, now: AgentIdentity, *, as_written: bool = False) -> Leftover | None:
    """None: nobody can say whose it was. A last line without end was never sent. Raises OSError."""
    head, *lines = path.read_bytes().split(b"\n")
    if not lines:
        return Leftover(path=path, voice=now, items=())  # a run that died over its first word
    try:
        voice = msgspec.json.decode(head, type=AgentIdentity)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    items: list[Item] = []
    damaged = 0
    for line in filter(None, lines[:-1]):
        try:
            items.extend(_items(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            damaged += 1
    if not as_written:
        items = [_last_word(_on_clock(item, voice, now), voice, now) for item in items]
    return Leftover(path=path, voice=voice, items=tuple(items), damaged=damaged)


def _items(line: bytes) -> Sequence[Item]:
    if line.startswith(MARKED):
        return msgspec.json.decode(line, type=Frame).items
    return (msgspec.json.decode(line, type=Item),)


def faults_only(path: Path, now: AgentIdentity, told: dict[str, int]) -> int:
    """Cuts a segment down to its faults. How many bytes are left. Raises OSError.

    `told`: by run, up to which item its controller may have them; those behind that say the same are summed up. Of the
    oldest segment of a run nothing more is known than that not all of it was acknowledged.
    """
    before = path.stat().st_size
    found = read_leftover(path, now, as_written=True)
    if found is None or not found.items:
        return before
    limit = told.setdefault(_stem(path), found.items[-1].seq + AT_ONCE)
    faults = [item for item in found.items if rank(item.news) == FAULT]
    faults = [item for item in faults if item.seq <= limit] + folded(
        (item for item in faults if item.seq > limit), ALIKE[0]
    )
    if len(faults) == len(found.items):
        return before
    lines = [msgspec.json.encode(found.voice), *(msgspec.json.encode(item) for item in faults)]
    data = b"\n".join(lines) + b"\n"
    try:
        replace_file(path, data, durable=False)
    except OSError:
        return before  # a full disk: then it stays as it is
    return len(data)


def _on_clock(item: Item, voice: AgentIdentity, now: AgentIdentity) -> Item:
    """Another boot of the machine had another monotonic clock: the wall clock is all that joins the two."""
    if voice.machine_boot == now.machine_boot:
        return item
    return replace(item, mono=item.mono + voice.zero - now.zero)


def _last_word(item: Item, voice: AgentIdentity, now: AgentIdentity) -> Item:
    """What was read under a boot that has ended since. A line of a text file names no boot and is never one's last."""
    ended = voice.incarnation.boot_id != now.incarnation.boot_id and voice.incarnation.same_holder(now.incarnation)
    if not ended or not isinstance(item.news, Observed) or item.source.startswith(TEXT_FILES):
        return item
    return replace(item, news=replace(item.news, last_words=True))
