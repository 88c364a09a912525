"""Following a file that grows: whole lines with their place in it, across truncation and rotation."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 18  # bytes read in one turn: what is behind them waits for the next
LONGEST = 1 << 16  # bytes that a line may have; the rest of a longer one is skipped


class LogFile:
    """`generation` counts how often the file began anew, so that (generation, offset) names a line for ever."""

    def __init__(self, path: Path, offset: int = 0, generation: int = 0, inode: int = 0) -> None:
        self._path = path
        self._handle: int | None = None
        self.offset = offset  # of the first byte that is not part of a line handed out
        self.generation = generation
        self.inode = inode
        self._partial = b""
        self._skipping = False

    def lines(self) -> Iterator[tuple[int, str]]:
        """Whole lines that are new: where each began, and its text. Call again while `behind`."""
        self.behind = False
        for _ in range(2):  # the rest of a file that was moved away, then the one in its place
            if not self._open():
                return
            yield from self._new_lines()
            if self.behind or not self._replaced():
                return
            self._begin_anew()

    behind = False  # there is more to read at once

    def _open(self) -> bool:
        if self._handle is not None:
            return True
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        found = os.fstat(self._handle)
        if self.inode and found.st_ino != self.inode:
            self.generation += 1
            self.offset = 0
        self.inode = found.st_ino
        return True

    def _new_lines(self) -> Iterator[tuple[int, str]]:
        assert self._handle is not None
        end = self.offset + len(self._partial)
        size = os.fstat(self._handle).st_size
        if size < end:  # cut off: what is there now is new
            self.generation += 1
            self.offset, self._partial, self._skipping, end = 0, b"", False, 0
        data = os.pread(self._handle, CHUNK, end)
        self.behind = end + len(data) < size
        data = self._partial + data
        start = 0
        while (stop := data.find(b"\n", start)) >= 0:
            at, self.offset = self.offset, self.offset + stop + 1 - start
            if self._skipping:
                self._skipping = False
            else:
                yield at, data[start:stop].decode(errors="replace")
            start = stop + 1
        self._partial = data[start:]
        if len(self._partial) > LONGEST:
            self.offset += len(self._partial)
            self._partial, self._skipping = b"", True

    def _replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != self.inode
        except FileNotFoundError:
            return False  # moved away, and nothing in its place yet: the old one may still grow

    def _begin_anew(self) -> None:
        self.close()
        self.generation += 1
        self.offset, self._partial, self._skipping, self.inode = 0, b"", False, 0

    def close(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                os.close(self._handle)
            self._handle = None
