"""What is uploaded, cut into the parts of a multipart upload and hashed on its way.

Every byte is read once for both digests, that of its part and that of the whole: a part that the store has verified is
what the whole digest says, even if the file has changed by the time at which the part was sent.
"""

import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from sickbay.train import disk
from sickbay.train.errors import SourceDamaged

Part = bytes | bytearray | memoryview


class Piece:
    """One part: where its bytes are, and what they must be. Sent again, it is read again."""

    def __init__(self, size: int, sha256: bytes, read_at: Callable[[int, int], bytes]) -> None:
        self.size, self.sha256, self.read_at = size, sha256, read_at


class Payload:
    """Bytes from their first to their last, once."""

    name = "what was to be stored"

    def __init__(self, size: int | None) -> None:
        self.size = size  # None: known at its end only
        self._digest = hashlib.sha256()
        self._position = 0
        self._begun = False

    def _next(self, most: int) -> memoryview:
        """At most so many bytes; empty at the end."""
        raise NotImplementedError

    def _piece(self, start: int, sha256: bytes, blocks: list[memoryview]) -> Piece:  # noqa: ARG002 - of files
        return _of_blocks(sha256, blocks)

    def _kept(self, block: memoryview) -> memoryview:
        """As it may be read again."""
        return block

    def blocks(self) -> Iterator[memoryview]:
        """All of it in small blocks, each good until the next one."""
        while block := self._block(disk.CHUNK):
            yield block

    def _block(self, most: int) -> memoryview:
        block = self._next(min(most, disk.CHUNK))
        self._digest.update(block)
        self._position += len(block)
        return block

    def piece(self, most: int) -> Piece | None:
        """The next part; None at the end, but for the one part of what is empty."""
        start, sha256, blocks = self._position, hashlib.sha256(), list[memoryview]()
        while (left := start + most - self._position) and (block := self._next(min(left, disk.CHUNK))):
            block = self._kept(block)
            sha256.update(block)  # before the whole: a bit that flips between the two shows in one of them
            self._digest.update(block)
            self._position += len(block)
            blocks.append(block)
        if not blocks and self._begun:
            return None
        self._begun = True
        return self._piece(start, sha256.digest(), blocks)

    def sum(self) -> disk.Sum:
        return disk.Sum(self._position, self._digest.hexdigest())

    def check(self, expected: disk.Sum | None) -> None:
        """At its end: it must have been what it was once."""
        found = self.sum()
        if expected is None or found == expected:
            return
        wrong = "corrupt (its checksum differs)" if found.size == expected.size else _misfit(found.size, expected)
        raise SourceDamaged(f"{self.name} is {wrong}: it was not stored")


def _misfit(size: int, expected: disk.Sum) -> str:
    return f"{'torn' if size < expected.size else 'too long'} ({size} of {expected.size} bytes)"


class HeldPayload(Payload):
    """A list of parts in memory. It is not copied."""

    def __init__(self, parts: list[Part] | tuple[Part, ...]) -> None:
        views = [memoryview(part) for part in parts]
        self._views = [view.cast("B") for view in views if view.nbytes]
        self._views.reverse()
        super().__init__(sum(view.nbytes for view in self._views))

    def _next(self, most: int) -> memoryview:
        if not self._views:
            return memoryview(b"")
        view = self._views.pop()
        if len(view) > most:
            self._views.append(view[most:])
        return view[:most]


class StreamPayload(Payload):
    """Parts that somebody makes as they are asked for: each is copied, as its memory may be used for the next one."""

    def __init__(self, parts: Iterable[Part], size: int | None) -> None:
        super().__init__(size)
        self._parts = iter(parts)
        self._rest = memoryview(b"")

    def _next(self, most: int) -> memoryview:
        while not self._rest:
            part = next(self._parts, None)
            if part is None:
                return memoryview(b"")
            view = memoryview(part)
            self._rest = view.cast("B") if view.nbytes else memoryview(b"")
        block, self._rest = self._rest[:most], self._rest[most:]
        return block

    def _kept(self, block: memoryview) -> memoryview:
        return memoryview(bytes(block))


def of_memory(parts: Iterable[Part], expected: disk.Sum | None, name: str) -> Payload:
    size = expected.size if expected is not None else None
    payload = HeldPayload(parts) if isinstance(parts, list | tuple) else StreamPayload(parts, size)
    payload.name = f"what was to become {name}"
    return payload


def _of_blocks(sha256: bytes, blocks: list[memoryview]) -> Piece:
    starts = [0]
    for block in blocks:
        starts.append(starts[-1] + len(block))

    def read_at(offset: int, most: int) -> bytes:
        from bisect import bisect_right

        number = bisect_right(starts, offset) - 1
        return bytes(blocks[number][offset - starts[number] :][:most]) if number < len(blocks) else b""

    return Piece(starts[-1], sha256, read_at)


class File(Payload):
    """A file. Its parts are read again when they are sent, mostly from the page cache, so nothing of it is held."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file = path.open("rb", buffering=0)
        super().__init__(os.fstat(self._file.fileno()).st_size)
        self._buffer = bytearray(min(disk.CHUNK, (self.size or 0) + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def _next(self, most: int) -> memoryview:
        view = memoryview(self._buffer)[:most]
        try:
            return view[: self._file.readinto(view)]
        except OSError as error:
            raise self._named(error) from error

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, self.name)

    def _piece(self, start: int, sha256: bytes, blocks: list[memoryview]) -> Piece:
        def read_at(offset: int, most: int) -> bytes:
            try:  # not by a number kept from before: once closed it may be that of another file
                return os.pread(self._file.fileno(), most, start + offset)
            except OSError as error:
                raise self._named(error) from error

        return Piece(sum(map(len, blocks)), sha256, read_at)


def file_of(path: Path, expected: disk.Sum) -> File:
    """Opened, if it has the size that it must have: nothing is sent for the sake of an error."""
    file = File(path)
    if file.size != expected.size:
        with file:
            raise SourceDamaged(f"{path} is {_misfit(file.size or 0, expected)}: it was not stored")
    return file


class Stopped(Exception):  # noqa: N818
    """Another part has failed: this one is no longer wanted."""


class Body:
    """A part as the body of one request: read from its beginning, again if the library wants to, until a deadline."""

    def __init__(self, piece: Piece, name: str, unwanted: threading.Event, ends: float) -> None:
        self._piece, self._name, self._unwanted, self._ends = piece, name, unwanted, ends
        self._position = 0
        self.failure: Exception | None = None  # our own, which an HTTP client would report as one of the connection

    def __len__(self) -> int:
        return self._piece.size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._piece.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = self._piece.size - self._position
        most = left if size is None or size < 0 else min(size, left)
        try:
            octets = self._read(most)
        except Exception as error:
            self.failure = error
            raise
        self._position += len(octets)
        return octets

    def _read(self, most: int) -> bytes:
        if self._unwanted.is_set():
            raise Stopped
        if time.monotonic() > self._ends:
            raise TimeoutError(errno.ETIMEDOUT, "the store takes it too slowly")
        octets = self._piece.read_at(self._position, most) if most else b""
        if most and not octets:
            raise SourceDamaged(f"{self._name} became shorter while it was sent: it was not stored")
        return octets
