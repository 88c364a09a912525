"""Staging, then publishing: the directory from which a server gives files and into which it takes them.

.incoming/<name>.<random>           what is being received: locked by its writer, swept away when nobody does
attempt-<n>/step-<s>/rank-<r>.…     whole, verified, and on the disk before it has this name
"""

import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from sickbay.train import disk
from sickbay.train.layout import CheckpointName, step_path

INCOMING = ".incoming"
REMOVED = "its directory was removed there while it arrived"
RESERVE = 10 * 1024**3  # bytes that stay free on the file system, or its twentieth part if that is less
SYNC_EVERY = 64 * 1024 * 1024  # bytes: then the last fsync is short, and no rank that waits for it takes us for hung


class Shelf:
    """Files of checkpoints below one root. What cannot be done is an OSError whose words are for the other side."""

    def __init__(self, root: Path, reserve: int | None = None) -> None:
        self._root = root.resolve(strict=True)
        self._identity = _identity(self._root)
        self._reserve = reserve
        self._renaming = threading.Lock()
        self._incoming = self._root / INCOMING
        self._incoming.mkdir(exist_ok=True)
        for path in self._incoming.iterdir():
            _sweep(path)

    def close(self) -> None:
        """Leave nothing behind, so that the root can be removed; another server below it makes it again."""
        with suppress(OSError):
            self._incoming.rmdir()

    def open(self, place: CheckpointName, name: str) -> FileIO:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe of that name must not hang us
        try:
            handle = os.open(self._step(place) / name, flags)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "it has no such file") from None
        file = open(handle, "rb", buffering=0)  # noqa: PTH123, SIM115  # of a handle; the caller closes it
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise OSError(errno.EINVAL, "it is no file there")
        return file

    def holds(self, place: CheckpointName, name: str, expected: disk.Sum, progress: Callable[[int], None]) -> bool:
        """Whether it is there already, read from its first byte to its last. Another one of that name is an error."""
        try:
            file = self.open(place, name)
        except FileNotFoundError:
            return False
        with file:
            found = size_of(file)
            if found != expected.size or disk.Hashing(file, progress).finish() != expected:
                raise OSError(errno.EEXIST, "it has another file of that name, which stays as it is")
            os.fsync(file.fileno())  # the process that brought it may have died before that
        self._sync(place)
        return True

    def take(self, place: CheckpointName, name: str, expected: disk.Sum, parts: Iterable[memoryview]) -> bool:
        """Write a file as its parts arrive, whole or not at all. False: another was faster."""
        aside = self._incoming / f"{name}.{os.urandom(8).hex()}"
        try:
            step = self._step(place)
            self._incoming.mkdir(exist_ok=True)
            try:
                if disk.write(aside, self._staged(aside, expected.size, parts)) != expected:
                    raise OSError(errno.EBADMSG, "what arrived there has another checksum: nothing of it was kept")
                ours = self._publish(aside, step / name)
            finally:
                aside.unlink(missing_ok=True)
            self._sync(place)
        except FileNotFoundError as gone:
            raise OSError(errno.ESTALE, REMOVED) from gone
        return ours

    def check_room(self, size: int) -> None:
        found = os.statvfs(self._root)
        free, whole = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        reserve = min(RESERVE, whole // 20) if self._reserve is None else self._reserve
        if free - size < reserve:
            raise OSError(
                errno.ENOSPC,
                f"its disk has no room: {size / 1e9:.1f} GB are to come, {free / 1e9:.1f} GB are free, and"
                f" {reserve / 1e9:.1f} GB of them stay free",
            )

    def _staged(self, aside: Path, size: int, parts: Iterable[memoryview]) -> Iterator[memoryview]:
        """The parts, locked against sweeping and brought to the disk on the way."""
        with aside.open("rb", buffering=0) as file:
            _lock(file)
            if os.fstat(file.fileno()).st_nlink == 0:
                raise OSError(errno.EAGAIN, "another server began on the same disk in this moment: try it once more")
            left, unsynced = size, 0
            for part in parts:
                yield part
                left, unsynced = left - len(part), unsynced + len(part)
                if unsynced >= SYNC_EVERY:
                    os.fdatasync(file.fileno())
                    self.check_room(left)
                    unsynced = 0

    def _publish(self, aside: Path, path: Path) -> bool:
        """Give it its name. False: another has it. A step that is still empty may be removed by others meanwhile."""
        for last in (False, False, True):
            path.parent.parent.mkdir(exist_ok=True)
            try:
                path.parent.mkdir(exist_ok=True)
                return self._link(aside, path)
            except FileNotFoundError:
                if last:
                    raise
        raise AssertionError

    def _link(self, aside: Path, path: Path) -> bool:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in disk.NO_LINKS:
                raise
            with self._renaming:
                if disk.exists(path):
                    return False
                aside.rename(path)
        return True

    def _step(self, place: CheckpointName) -> Path:
        """Where a checkpoint's files are. Not through links, and not on the disk below one that was unmounted."""
        if _identity(self._root) != self._identity:
            raise OSError(errno.ESTALE, "its directory is not the one it was: is its disk still mounted?")
        step = step_path(self._root, place)
        if step.resolve() != step:
            raise OSError(errno.EACCES, "a link leads out of its directory there")
        return step

    def _sync(self, place: CheckpointName) -> None:
        """The name and what leads to it: the process that made it may not have come to that."""
        step = step_path(self._root, place)
        for directory in (step, step.parent, self._root):
            disk.sync(directory)


def size_of(file: FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _lock(file: FileIO) -> bool:
    """Until the file is closed, or its process is dead. False: another has it, or this disk knows no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(path: Path) -> None:
    """Remove what a server had begun to receive when it was killed."""
    with suppress(OSError), path.open("rb", buffering=0) as file:
        if _lock(file):
            path.unlink(missing_ok=True)
