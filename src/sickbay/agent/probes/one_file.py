"""Tailing one file: its whole lines with their offsets, and whether it still is the file that was read before.

A file is known by its inode and by a fingerprint: how it begins, and what stood just before the place.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from sickbay.model.noun import Noun

CHUNK = 1 << 18  # bytes read in one turn: what is behind them waits for the next
LONGEST = 1 << 16  # bytes that a line may have; the rest of a longer one is skipped
PRINT = 64  # bytes of a file's begin, and before the place, that must be the same, or the file is another
MOST_PACKED = 64 << 20  # bytes of a packed file that is looked into

Worth = Callable[[bytes], Iterator[tuple[int, int]]]  # whole lines → begin and end of those that are worth reading


class Spot(Noun):
    """A place in one file. `generation` counts how often the log began anew: with the offset it names a line."""

    offset: int = 0  # of the first byte that is not part of a line handed out
    generation: int = 0
    inode: int = 0
    tail: bytes = b""
    head: bytes = b""


class Data(Protocol):
    """The bytes of a file that is open."""

    def pread(self, size: int, at: int) -> bytes: ...

    def stat(self) -> os.stat_result: ...

    def close(self) -> None: ...

    @property
    def packed(self) -> bool: ...


class Plain:
    packed = False

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def pread(self, size: int, at: int) -> bytes:
        return os.pread(self._handle, size, at)

    def stat(self) -> os.stat_result:
        return os.fstat(self._handle)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._handle)


class UnpackedFile:
    """What gzip made of a file. Reading goes forward; whoever goes back begins at the front again."""

    packed = True

    def __init__(self, path: Path) -> None:
        import gzip

        self._stat = path.stat()
        if self._stat.st_size > MOST_PACKED:
            raise OSError(f"{path.name} is too long to be unpacked")
        self._file = gzip.GzipFile(path, "rb")

    def pread(self, size: int, at: int) -> bytes:
        import zlib

        try:
            self._file.seek(at)
            return self._file.read(size)
        except (EOFError, zlib.error) as error:
            raise OSError(f"it cannot be unpacked: {error}") from error

    def stat(self) -> os.stat_result:
        return self._stat

    def close(self) -> None:
        self._file.close()


def is_at(data: Data, spot: Spot, partial: bytes = b"") -> bool:
    """Whether this is the file that the spot is in. Where nothing is known of what was there, it is another."""
    end = spot.offset + len(partial)
    known = (spot.tail + partial)[-PRINT:]
    if not end:
        return True
    if not known or data.pread(len(spot.head), 0) != spot.head:
        return False
    return data.pread(len(known), end - len(known)) == known


class OneFile:
    """`final`: nobody writes to it any more, once it has been read it is done with."""

    def __init__(self, data: Data, spot: Spot, worth: Worth | None = None, *, final: bool = False) -> None:
        found = data.stat()
        self.data = data
        self.generation = spot.generation
        self.offset, self.tail, self.head = spot.offset, spot.tail, spot.head
        self.inode, self.device = found.st_ino, found.st_dev
        self.final = final
        self.behind = False  # there is more to read at once
        self.seen = found.st_size  # how long it was when we looked last
        self._first = b"" if data.packed or spot.offset else data.pread(PRINT, 0)  # how it began then
        self.mtime = found.st_mtime
        self.grew = time.monotonic()  # when it did so last
        self.partial = b""
        self.told = 0.0  # bytes of it whose lines an earlier run has told
        self.told_spot: Spot | None = None  # where these end
        self._touched = 0
        self._worth = worth
        self._skipping = False

    @property
    def spot(self) -> Spot:
        return Spot(
            offset=self.offset, generation=self.generation, inode=self.inode, tail=self.tail, head=self.head
        )  # fmt: skip

    @property
    def behind_told(self) -> Spot | None:
        """Behind all that was handed out, by us or by an earlier run. None: all of it was, and it grows no more."""
        if self.offset >= self.told:
            return self.spot
        known = self.told_spot
        return known and replace(known, generation=self.generation, inode=self.inode)

    @property
    def rereading(self) -> bool:
        """Whether lines that an earlier run has told are still ahead."""
        if self.told == float("inf"):
            return self.final or self.end < self.seen  # else the end that it has now is as far as it was told
        return self.offset < self.told

    def was_told_to(self, spot: Spot | None) -> None:
        """An earlier run has told its lines up to there; None: all of them."""
        self.told, self.told_spot = (float("inf") if spot is None else spot.offset), spot

    def told_as(self, other: "OneFile") -> None:
        """What was told of the other is in this one."""
        self.told, self.told_spot = other.told, other.told_spot

    @property
    def end(self) -> int:
        return self.offset + len(self.partial)

    @property
    def unread(self) -> bool:
        """Whether there was more in it, when we looked last, than was handed out."""
        return self.offset < self.seen

    def filled_anew(self) -> bool:
        """Nothing of it was read yet, and what stood in it is not there any more."""
        if self.end or self.data.packed or not self.seen:
            return False
        first, self._first = self._first, self.data.pread(PRINT, 0)
        return self.data.stat().st_size < self.seen or not self._first.startswith(first)

    def cut_off(self) -> bool:
        """Whether what we read is not there any more: a shorter file, or one that has grown to something else since."""
        if self.data.packed:
            return False
        found = self.data.stat()
        before, self._touched = self._touched, found.st_mtime_ns
        if found.st_size < self.end:
            return True
        if found.st_mtime_ns != before and not is_at(self.data, self.spot, self.partial):
            return True
        self.seen, self.mtime = found.st_size, found.st_mtime
        if not self._first and not self.end:  # it was empty until now
            self._first = self.data.pread(PRINT, 0)
        return False

    def lines(self) -> Sequence[tuple[int, str]]:
        data = self.data.pread(CHUNK, self.end)
        self.behind = len(data) == CHUNK
        if not data:
            return ()
        # Before anything is taken as read: it may fail.
        head = self.head if len(self.head) == PRINT else self.data.pread(PRINT, 0)
        self.grew = time.monotonic()
        found = self._split(self.partial + data)
        self.head = head[: self.offset]
        return found

    def _split(self, data: bytes) -> list[tuple[int, str]]:
        found: list[tuple[int, str]] = []
        base, start, end = self.offset, 0, data.rfind(b"\n") + 1
        if self._skipping and end:
            start = data.find(b"\n") + 1
            self._skipping = False
        if self._worth is not None:
            for begin, stop in self._worth(data[start:end]):
                found.append((base + start + begin, data[start + begin : start + stop].decode(errors="replace")))
        else:
            for line in data[start:end].split(b"\n")[:-1]:
                found.append((base + start, line.decode(errors="replace")))
                start += len(line) + 1
        self.offset += end
        self.tail = (self.tail + data[:end])[-PRINT:] if end < PRINT else data[end - PRINT : end]
        self.partial = data[end:]
        if len(self.partial) > LONGEST:
            self.offset += len(self.partial)
            self.tail = self.partial[-PRINT:]
            self.partial, self._skipping = b"", True
        return found

    def last_line(self) -> Iterator[tuple[int, str]]:
        """What no newline will ever end."""
        if self.partial and not self._skipping:
            yield self.offset, self.partial.decode(errors="replace")
        self.partial = b""

    def close(self) -> None:
        self.data.close()
