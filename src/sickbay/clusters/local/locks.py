"""File locks: who holds one, and holding one ourselves."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sickbay.wire.locks import holder_of


def holder(path: Path) -> int | None:
    """The pid of whoever holds the record lock (fcntl.lockf) on a file; None: nobody does.

    It asks without taking the lock, so it never stands in the way of a supervisor that is about to take it.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return holder_of(handle)
    finally:
        os.close(handle)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock that threads and processes share, as long as the block runs; a holder's death frees it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # flock, not lockf: a record lock would not keep two threads of one process apart.
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
