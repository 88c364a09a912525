"""Fault injection for an adapter whose far side is files: its effects on them are cut, or refused by the system.

The adapter knows nothing of it: the answers are those of the operating system, where Python calls it.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType

from sickbay.testing.cluster_rig import Moment

_OPENED, _CHANGED = "open", frozenset({"os.rename", "os.remove", "os.mkdir"})
_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_refused: dict[str, int] = {}  # below this directory → the system's reason


class FileCalls:
    """Counts what a thread does to the world, and cuts it: files replaced and removed, processes, FIFOs.

    A file is written aside first, which nobody sees: what counts is that it is renamed. Directories are no calls: the
    one that a start makes is the job's own storage, which is not this cluster's.
    """

    def __init__(self) -> None:
        spawn = sys.modules["_posixsubprocess"].fork_exec
        self._far = frozenset({os.rename, os.unlink, os.remove, os.mkfifo, os.kill, os.write, spawn})
        self._last: object = None
        self.begin()

    def begin(self) -> None:
        self._number = 0
        self._cut: tuple[int, Moment] | None = None

    def count(self) -> int:
        return self._number

    def cut(self, number: int, moment: Moment) -> None:
        self.begin()
        self._cut = (number, moment)

    @contextmanager
    def watched(self) -> Iterator[None]:
        self._last = None
        sys.setprofile(self._tell)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _tell(self, _frame: FrameType, event: str, what: object) -> None:
        """Called by the interpreter; what it raises before a call keeps that from being made."""
        if event not in {"c_call", "c_return"} or not isinstance(what, BuiltinFunctionType) or what not in self._far:
            return
        if event == "c_call":
            # Signals come in bursts, and of how many processes a machine dies is chance.
            again = what is os.kill and self._last is os.kill
            self._number += not again
            self._last = what
        moment: Moment = "before" if event == "c_call" else "after"
        if self._cut == (self._number, moment):
            self._cut = None
            raise OSError(errno.EIO, f"the line was cut {moment} {what.__name__}")


@contextmanager
def refused(root: str, reason: int) -> Iterator[None]:
    """The system refuses this process changes below `root` (EROFS), or everything (EACCES)."""
    _refused[root] = reason
    try:
        yield
    finally:
        del _refused[root]


def _audit(event: str, args: tuple[object, ...]) -> None:
    if not _refused or (event != _OPENED and event not in _CHANGED):
        return
    path = str(args[0])
    for root, reason in _refused.items():
        if not path.startswith(root):
            continue
        harmless = event == _OPENED and isinstance(args[2], int) and not args[2] & _TO_WRITE
        if reason == errno.EACCES or not harmless:
            raise OSError(reason, os.strerror(reason), path)


sys.addaudithook(_audit)
