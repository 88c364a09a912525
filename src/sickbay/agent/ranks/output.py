"""Log capture with rotation: what a rank writes, and read again by its byte offset.

    <run dir>/output                the newest part
    <run dir>/output.<offset>       older parts, each named by the offset of its first byte

The first part stays, as it has how everything began; of the others the newest stay. What lay between is left out, and
whoever reads across that gap is told so, in a line of its own between whole lines.

An offset counts over the whole life of the rank. A part becomes an older one by a single rename and goes by a single
unlink, so the files alone tell every offset after a crash at any moment: `output` begins where the last of the others
ends.
"""

import codecs
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PART = 8 * 1024 * 1024
KEEP = 4  # parts, the first and the newest included
TAIL = 16 * 1024  # bytes of the end that are told with a rank's exit
CHUNK = 64 * 1024
LINE = 64 * 1024  # bytes in which a line's end is looked for
MEGABYTE = 1_000_000
LINE_END = "\n"
A_TURN = 4 * CHUNK  # read for one rank before everybody else has had a turn

_CONTINUES = range(0x80, 0xC0)  # bytes that are never the first of a character
_LONGEST = 4  # bytes of a character
_OLDER = re.compile(r"output\.([0-9]{1,18})")


class OutputFile:
    """What a rank writes, kept: its beginning and its end. Nothing here raises for a full disk: what cannot be kept is
    counted and said, as a rank must not hang on our disk.
    """

    def __init__(self, run_dir: Path, *, part: int = PART, keep: int = KEEP) -> None:
        """Raises OSError where not even an empty file can be made."""
        run_dir.mkdir(parents=True, exist_ok=True)
        self._dir = run_dir
        self._part = part
        self._keep = max(keep, 3)  # the one before the newest tells where that begins
        self._tail = b""
        self._lost = 0
        self._why = ""
        self._file = -1
        self._start = 0
        self._size = 0
        self._open()

    @property
    def tail(self) -> str:
        """The end of what it wrote, on a character's boundary."""
        return _whole_start(self._tail).decode(errors="replace")

    def write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL:]
        if self._lost:
            # First say what is missing; the note goes where it went missing.
            note = f"\n[sickbay: {self._lost} bytes of output were lost here: {self._why}]\n".encode()
            if self._put(note) < len(note):
                self._lost += len(data)
                return
            self._lost = 0
        self._lost += len(data) - self._put(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _put(self, data: bytes) -> int:
        """How much of it is on disk afterwards."""
        put = 0
        try:
            while put < len(data):
                if self._size >= self._part:
                    self._rotate()
                written = os.write(self._file, data[put : put + max(self._part - self._size, 1)])
                self._size += written
                put += written
        except OSError as error:
            self._why = error.strerror or str(error)
        return put

    def _rotate(self) -> None:
        (self._dir / "output").rename(self._dir / f"output.{self._start:015d}")
        self._open()
        # One place is the first part's, one that of the part that has just begun.
        for _, old in older_parts(self._dir)[1 : -(self._keep - 2) or None]:
            with suppress(FileNotFoundError):
                old.unlink()

    def _open(self) -> None:
        fresh = os.open(self._dir / "output", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if self._file >= 0:
            os.close(self._file)
        self._file = fresh
        older = older_parts(self._dir)
        self._start = older[-1][0] + older[-1][1].stat().st_size if older else 0
        self._size = os.fstat(fresh).st_size


class Capture(OutputFile):
    """With the reading end of a rank's output. `turn` never blocks."""

    def __init__(self, run_dir: Path, *, part: int = PART, keep: int = KEEP) -> None:
        super().__init__(run_dir, part=part, keep=keep)
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def close_writer(self) -> None:
        """Once the rank has its own copy: else we would never see the end."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def turn(self, most: int = A_TURN) -> bool:
        """Take what is there, but no more than `most`. False: the end was reached."""
        taken = 0
        while taken < most:
            try:
                data = os.read(self.reader, min(CHUNK, most - taken))
            except BlockingIOError:
                return True
            if not data:
                return False
            self.write(data)
            taken += len(data)
        return True

    def finish(self) -> str:
        """Everything that the pipe still holds, then close. Returns the tail."""
        self.close_writer()
        if self.reader >= 0:
            self.turn(64 * CHUNK)  # more than a pipe holds; whoever still writes now is not of the rank
            os.close(self.reader)
            self.reader = -1
        self.close()
        return self.tail


def read_output(run_dir: Path, after: int = 0, limit: int = CHUNK, *, final: bool = False) -> tuple[str, int]:
    """Text from byte `after` on, at most about `limit` bytes, and the offset at which to go on.

    A negative `after` counts from the end. Where something has been rotated away, a line says how much is left out. A
    character is never split: one that is not whole yet is left for the next call, unless `final` says that nothing more
    will come.
    """
    while True:
        try:
            return _read(run_dir, after, max(limit, _LONGEST), final=final)
        except _MovedError:
            continue  # it was rotated under our eyes, which cannot go on for ever: each rotation takes megabytes


def end_of_output(run_dir: Path) -> int:
    """The offset behind the last byte; 0 where there is nothing."""
    while True:
        try:
            parts = _parts(run_dir)
        except _MovedError:
            continue
        try:
            return parts[-1][1] + parts[-1][2] if parts else 0
        finally:
            _close(parts)


class _MovedError(Exception):
    pass


def _read(run_dir: Path, after: int, limit: int, *, final: bool) -> tuple[str, int]:
    parts = _parts(run_dir)
    try:
        if not parts:
            return "", max(after, 0)
        end = parts[-1][1] + parts[-1][2]
        begin = max(0, end + after) if after < 0 else after
        chosen, note = after < 0, ""
        gap = _gap(parts)
        if gap is not None and gap.begin <= begin < gap.end:
            note = "" if after < 0 else gap.note(begin)
            begin, chosen = gap.end, True
        stop = gap.begin if gap is not None and begin < gap.begin else end
        data = _pick(parts, begin, min(limit, stop - begin))
    finally:
        _close(parts)
    if chosen:  # we chose the place ourselves: perhaps inside a character
        whole = _whole_start(data)
        begin, data = begin + len(data) - len(whole), whole
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=(final and begin + len(data) >= end) or begin + len(data) == stop != end)
    return note + text, begin + len(data) - len(decoder.getstate()[0])


class _Gap(NamedTuple):
    """What is left out, from the end of a line to the beginning of another where there are any."""

    begin: int
    end: int
    clean: bool  # what comes before it ends with a line, or is nothing

    def note(self, begin: int) -> str:
        """To whoever reads on from `begin`: a line of its own, wherever the text before it ended."""
        left = self.end - begin
        size = f"{left / 1e6:.1f} MB" if left >= MEGABYTE else f"{left} bytes"
        ends_line = self.clean and begin == self.begin
        return f"{'' if ends_line else LINE_END}… {size} left out here …{LINE_END}"


def _gap(parts: list[tuple[int, int, int]]) -> _Gap | None:
    """Between the parts that are there; there is one at most, as the first part and the newest ones stay."""
    before = 0
    for number, (_, start, size) in enumerate(parts):
        if start > before:
            ends = _pick(parts, max(before - LINE, 0), min(LINE, before)) if number else b""
            cut = len(ends) - (ends.rfind(b"\n") + 1) if b"\n" in ends else 0
            head = _pick(parts, start, LINE)
            return _Gap(before - cut, start + (head.find(b"\n") + 1), clean=not before or b"\n" in ends)
        before = start + size
    return None


def _pick(parts: list[tuple[int, int, int]], begin: int, limit: int) -> bytes:
    data = b""
    for handle, start, size in parts:
        at = begin + len(data)
        if start <= at < start + size and len(data) < limit:
            data += os.pread(handle, min(limit - len(data), start + size - at), at - start)
    return data


def _parts(run_dir: Path) -> list[tuple[int, int, int]]:
    """(open file, offset of its first byte, size), oldest first, as they were at one moment."""
    opened: list[tuple[int, int, int]] = []
    newest = _open_to_read(run_dir / "output")
    older = older_parts(run_dir)
    for start, path in older:
        if (handle := _open_to_read(path)) >= 0:
            opened.append((handle, start, os.fstat(handle).st_size))
    begin = opened[-1][1] + opened[-1][2] if opened else 0
    moved = len(opened) != len(older) or (newest >= 0 and not _same(newest, run_dir / "output"))
    if newest >= 0:
        opened.append((newest, begin, os.fstat(newest).st_size))
    if moved:
        _close(opened)
        raise _MovedError
    return opened


def _close(parts: list[tuple[int, int, int]]) -> None:
    for handle, _, _ in parts:
        os.close(handle)


def _open_to_read(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def older_parts(run_dir: Path) -> list[tuple[int, Path]]:
    """Each with the offset of its first byte. What a user has put there under another name is none."""
    named = ((_OLDER.fullmatch(path.name), path) for path in run_dir.glob("output.*"))
    return sorted((int(found[1]), path) for found, path in named if found is not None)


def _whole_start(data: bytes) -> bytes:
    """Without the rest of a character whose beginning is not there."""
    for skip in range(min(_LONGEST - 1, len(data))):
        if data[skip] not in _CONTINUES:
            return data[skip:]
    return data[_LONGEST - 1 :]
