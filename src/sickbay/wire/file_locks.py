"""Locks on files: who holds a record lock (fcntl.lockf), and a flock that is taken within a bounded time."""

import fcntl
import os
import struct
import sys
import time

_MAC = sys.platform == "darwin"
_FLOCK = "@qqihh" if _MAC else "@hhqqi0q"  # struct flock of <fcntl.h>; Linux: type, whence, start, len, pid


def holder_of(handle: int) -> int | None:
    """The pid of whoever holds the record lock on an open file; None: nobody does. Asking takes nothing.

    The kernel says it in the numbers of our own pid namespace: 0 is a process that cannot be seen from here. Nobody
    can pretend to be it, and the lock goes with the process, also from one container to another.
    """
    fields = (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET) if _MAC else (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack(_FLOCK, *fields)))
    kind, pid = (answer[3], answer[2]) if _MAC else (answer[0], answer[4])
    return None if kind == fcntl.F_UNLCK else int(pid)


def take_lock(handle: int, until: float, *, look: float) -> bool:
    """Take the flock of an open file; False: another had it until then (monotonic). `look`: seconds between tries."""
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(look)
        else:
            return True
