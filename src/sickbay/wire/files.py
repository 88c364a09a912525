"""Atomic replacement of a file: written aside, synced, renamed. A reader sees the old one or the new one, whole."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends; if it raises, the old one stays. Raises OSError.

    It is its owner's only, from the first moment on. `durable`: it outlives a power cut, and so does its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer, by chance: in every container there is a process 1.
    aside = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(handle)
        aside.rename(path)
        if durable:
            sync_directory(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    with replacing(path, durable=durable) as file:
        file.write(data)


def sync_directory(directory: Path) -> None:
    """fsync of a file says nothing about the name that leads to it."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF}:  # file systems whose directories cannot be synced
            raise
    finally:
        os.close(handle)
