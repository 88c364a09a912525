"""Untrusted files: what a user may have put in the place of a file that we read or write.

A FIFO or a device would hang or never end, a link may lead to what is not the user's, a file may be too large to hold.
So: in a directory that is no link, a plain file of the directory's owner, opened without waiting and looked at first.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 1 << 18  # bytes of a small file
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class NotPlain(OSError):  # noqa: N818 - it says what is there
    """There is something else in its place. Its text says what."""


def read_small(path: Path, most: int = MOST) -> bytes:
    """Raises OSError."""
    with opened(path, os.O_RDONLY) as handle:
        size = os.fstat(handle).st_size
        if size > most:
            raise NotPlain(f"{path.name} has {size} bytes, {most} are read")
        return os.read(handle, most)


def append(path: Path, text: str) -> None:
    """Raises OSError."""
    with opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as handle:
        found = os.fstat(handle)
        if not found.st_size and found.st_uid == os.geteuid():
            os.fchmod(handle, 0o666)  # in the user's own directory, where he goes on writing to it
        os.write(handle, text.encode("utf-8", "replace"))


def check_plain(path: Path) -> None:
    """Raises NotPlain where something else stands in the place of a file, OSError where nothing does."""
    _plain(path.name, path.stat(follow_symlinks=False), path.parent.stat(follow_symlinks=False))


def read_end(path: Path, most: int) -> bytes:
    """The last bytes, of a file of any size. Raises OSError."""
    with opened(path, os.O_RDONLY) as handle:
        return os.pread(handle, most, max(0, os.fstat(handle).st_size - most))


def place(path: Path, data: bytes) -> None:
    """A file of ours in a user's directory, replaced as a whole. Raises OSError."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    aside = f".{path.name}.{os.urandom(6).hex()}"
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY, 0o644, dir_fd=directory)
        try:
            os.fchmod(handle, 0o644)  # its reader is the user
            os.write(handle, data)
        finally:
            os.close(handle)
        os.rename(aside, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    finally:
        os.close(directory)


@contextmanager
def opened(path: Path, how: int) -> Iterator[int]:
    """A plain file of its directory's owner. Raises OSError, NotPlain where it is something else."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        handle = os.open(path.name, how | _SAFELY, 0o600, dir_fd=directory)
        try:
            _plain(path.name, os.fstat(handle), os.fstat(directory))
            yield handle
        finally:
            os.close(handle)
    finally:
        os.close(directory)


def _plain(name: str, found: os.stat_result, directory: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotPlain(f"{name} is no plain file")
    # Root makes files for others: with O_CREAT one of ours is root's in a directory of the user's.
    if found.st_uid not in {directory.st_uid, os.geteuid()}:
        raise NotPlain(f"{name} belongs to another user than its directory")
