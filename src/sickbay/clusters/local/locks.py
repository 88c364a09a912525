"""File locks: who holds one, and holding one ourselves."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sickbay.wire.file_locks import holder_of, take_lock

# Seconds that a call of a port waits for a lock: less than the engine waits for the call, and a process that stands
# still with a lock in its hand must not take along everybody who wants it.
PATIENCE = 8.0
_LOOK = 0.005  # seconds


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
def held(path: Path, within: float | None = None) -> Iterator[None]:
    """Hold a lock that threads and processes share, as long as the block runs; a holder's death frees it.

    `within`: seconds until TimeoutError is raised, if another holds it that long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # flock, not lockf: a record lock would not keep two threads of one process apart.
        if within is None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        elif not take_lock(handle, time.monotonic() + within, look=_LOOK):
            held_by = f"another process has held {path} for {within:g} s"
            raise TimeoutError(held_by)
        yield
    finally:
        os.close(handle)
