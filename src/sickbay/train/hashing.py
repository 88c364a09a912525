"""Hash while writing: SHA-256 of a stream that another library writes, so that its files are not read again.

What was not written from the first byte to the last (a seek, a truncation, a name that the library opened by itself)
has no sum here, and is measured on the disk.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any

from sickbay.train import disk

BUFFER = 1024 * 1024  # bytes: less is gathered first; more is hashed by a thread while it is written
NEEDED = ("create_stream", "rename", "mkdir")


class HashedFiles:
    """The file system of a DCP writer: it stands before the writer's own, and knows what was written.

    It makes no directory but the last: above a mount point that has lost its disk there is nothing to make.
    """

    def __init__(self, files: Any) -> None:
        self._files = files
        self._sums: dict[Path, disk.Sum] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Any:
        return self._stream(Path(path)) if mode == "wb" else self._files.create_stream(path, mode)

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._files.rename(path, new_path)
        self._sums.pop(Path(new_path), None)
        if (known := self._sums.pop(Path(path), None)) is not None:
            self._sums[Path(new_path)] = known

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._sums.pop(Path(path), None)
        self._files.rm_file(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        disk.make_in(Path(path))

    @contextmanager
    def _stream(self, path: Path) -> Iterator[io.BufferedIOBase]:
        self._sums.pop(path, None)
        file = HashedFile(path)
        try:
            with io.BufferedWriter(file, BUFFER) as stream:
                yield stream
        finally:
            if file.error is not None:  # torch.save makes "unexpected pos" of a full disk
                raise file.error
        if file.sum is not None:
            self._sums[path] = file.sum

    def sum_of(self, path: Path) -> disk.Sum:
        known = self._sums.get(path)
        return known if known is not None and disk.misfit_of(path, known) is None else disk.measure(path)


class HashedFile(io.FileIO):
    """A new file that is on the disk when it is closed, and whose `sum` is then known if it was written in order."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "w")
        self.sum: disk.Sum | None = None
        self.error: OSError | None = None  # the first one of a write
        self._digest, self._size, self._in_order = sha256(), 0, True

    def write(self, octets: Any, /) -> int:
        """All of it, unlike FileIO: what was hashed is what was written."""
        whole = memoryview(octets).cast("B")
        in_order, self._in_order = self._in_order, False
        with _update(self._digest, whole):
            self._write(whole)
        self._size += len(whole)
        self._in_order = in_order
        return len(whole)

    def _write(self, rest: memoryview) -> None:
        try:
            while rest:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = self.error or error
            raise

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._in_order = False
        return super().seek(offset, whence)

    def truncate(self, size: int | None = None, /) -> int:
        self._in_order = False
        return super().truncate(size)

    def close(self) -> None:
        """Synced here, as torch 2.3 syncs before the last bytes have left Python's buffer."""
        if self.closed:
            return
        try:
            os.fsync(self.fileno())
            if self._in_order and os.fstat(self.fileno()).st_size == self._size:
                self.sum = disk.Sum(self._size, self._digest.hexdigest())
        finally:
            super().close()


@contextmanager
def _update(digest: Any, octets: memoryview) -> Iterator[None]:
    """The digest is fed beside what is done within: hashlib lets go of the interpreter's lock, and so does a write."""
    beside = None
    if len(octets) >= BUFFER:
        beside = Thread(target=digest.update, args=(octets,), name="sickbay-hash", daemon=True)
        try:
            beside.start()
        except RuntimeError:  # no more threads
            beside = None
    if beside is None:
        digest.update(octets)
    try:
        yield
    finally:
        if beside is not None:
            beside.join()


def hash_writes(writer: Any) -> HashedFiles | None:
    """From now on the writer's files are hashed while it writes. None: it has no file system that could be told to."""
    files = getattr(writer, "fs", None)
    if not all(callable(getattr(files, name, None)) for name in NEEDED):
        return None
    writer.fs = HashedFiles(files)
    return writer.fs  # type: ignore[no-any-return]
