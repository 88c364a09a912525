"""Following a file that grows: whole lines with their place in it, across truncation and rotation."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 18  # bytes read in one turn: what is behind them waits for the next
LONGEST = 1 << 16  # bytes that a line may have; the rest of a longer one is skipped
TAIL = 64  # bytes before the place that must be the same, or the file is another
PACKED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip", ".Z")

Fits = Callable[[os.stat_result, int], bool]
Worth = Callable[[bytes], Iterator[tuple[int, int]]]  # whole lines → begin and end of those that are worth reading


class LogFile:
    """`generation` counts how often the file began anew, so that (generation, offset) names a line for ever.

    `tail` is what stood just before `offset`: a file that was cut off and has grown beyond its old length since is told
    by it, and so is the copy that a rotation made. `rotated`: what was written between our last look and a rotation
    that we did not see is read in the file that the rotation left beside this one. `worth`: only such lines are wanted.
    """

    def __init__(
        self,
        path: Path,
        offset: int = 0,
        generation: int = 0,
        inode: int = 0,
        *,
        tail: bytes = b"",
        rotated: bool = False,
        worth: Worth | None = None,
    ) -> None:
        self._path = path
        self._handle: int | None = None
        self.offset = offset  # of the first byte that is not part of a line handed out
        self.generation = generation
        self.inode = inode
        self.tail = tail
        self._rotated = rotated
        self._worth = worth
        self._partial = b""
        self._skipping = False

    behind = False  # there is more to read at once

    def lines(self) -> Iterator[tuple[int, str]]:
        """Whole lines that are new: where each began, and its text. Call again while `behind`."""
        self.behind = False
        for _ in range(3):  # what a rotation left, the rest of a file that was moved away, the one in its place
            if not self._open():
                return
            try:
                yield from self._new_lines()
            except OSError:
                self.close()  # a directory, or a disk that fails: what stands there the next time is opened anew
                raise
            if self.behind or not self._replaced():
                return
            self._begin_anew()

    def _open(self) -> bool:
        if self._handle is not None:
            return True
        try:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        found = os.fstat(self._handle).st_ino
        if self.inode and found != self.inode and not self._take_up_rotated():
            self.generation += 1
            self.offset, self.tail = 0, b""
            self.inode = found
        elif not self.inode:
            self.inode = found
        return True

    def _take_up_rotated(self) -> bool:
        """The file that we read last lies beside this one: it is read to its end first."""
        moved = self._beside(lambda found, _: found.st_ino == self.inode)
        if moved is None:
            return False
        assert self._handle is not None
        os.close(self._handle)
        self._handle = moved
        return True

    def _beside(self, fits: Fits) -> int | None:
        """An open handle of the newest file beside ours, not packed, that fits."""
        if not self._rotated:
            return None
        found = []
        with suppress(OSError):
            for path in self._path.parent.iterdir():
                if path.name.startswith(f"{self._path.name}") and path != self._path and path.suffix not in PACKED:
                    with suppress(OSError):
                        found.append((path.stat().st_mtime, path))
        for _, path in sorted(found, reverse=True)[:20]:
            with suppress(OSError):
                handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                if fits(os.fstat(handle), handle):
                    return handle
                os.close(handle)
        return None

    def _new_lines(self) -> Iterator[tuple[int, str]]:
        assert self._handle is not None
        end = self.offset + len(self._partial)
        size = os.fstat(self._handle).st_size
        if size < end or (size > end and not self._same(self._handle, end)):  # cut off: what is there now is new
            yield from self._rest_of_copy(end)
            self.generation += 1
            self._forget()
            end = 0
        data = os.pread(self._handle, CHUNK, end)
        self.behind = end + len(data) < size
        yield from self._split(data)

    def _split(self, data: bytes) -> Iterator[tuple[int, str]]:
        data = self._partial + data
        start = 0
        if self._worth is not None and not self._skipping:
            start = data.rfind(b"\n") + 1
            for begin, end in self._worth(data[:start]):
                yield self.offset + begin, data[begin:end].decode(errors="replace")
            self.offset += start
        # Before lines are handed out: whoever stops in the middle would keep the tail of another place; none is fine.
        before, self.tail = self.tail, b""
        while (stop := data.find(b"\n", start)) >= 0:
            at, self.offset = self.offset, self.offset + stop + 1 - start
            if self._skipping:
                self._skipping = False
            else:
                yield at, data[start:stop].decode(errors="replace")
            start = stop + 1
        self.tail = (before + data[:start])[-TAIL:] if start < TAIL else data[start - TAIL : start]
        self._partial = data[start:]
        if len(self._partial) > LONGEST:
            self.offset += len(self._partial)
            self.tail = self._partial[-TAIL:]
            self._partial, self._skipping = b"", True

    def _same(self, handle: int, end: int) -> bool:
        known = (self.tail + self._partial)[-TAIL:]
        return not known or os.pread(handle, len(known), end - len(known)) == known

    def _rest_of_copy(self, end: int) -> Iterator[tuple[int, str]]:
        """A rotation that copies and cuts off: what came after our last look is in the copy."""
        if not self.tail:
            return
        copy = self._beside(lambda found, handle: found.st_size > end and self._same(handle, end))
        if copy is None:
            return
        try:
            while data := os.pread(copy, CHUNK, self.offset + len(self._partial)):
                yield from self._split(data)
        finally:
            os.close(copy)

    def _replaced(self) -> bool:
        try:
            return self._path.stat().st_ino != self.inode
        except FileNotFoundError:
            return False  # moved away, and nothing in its place yet: the old one may still grow

    def _begin_anew(self) -> None:
        self.close()
        self.generation += 1
        self._forget()
        self.inode = 0

    def _forget(self) -> None:
        self.offset, self._partial, self._skipping, self.tail = 0, b"", False, b""

    def close(self) -> None:
        if self._handle is not None:
            with suppress(OSError):
                os.close(self._handle)
            self._handle = None
