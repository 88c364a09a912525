"""Preemption notice: whether this process was asked to save before its end, so that a maintenance loses no step.

Two can ask: Sickbay, before it stops a job for something that can wait, by a file beside the heartbeat; and the sender
of a SIGTERM, who ends the process.
"""

import json
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from sickbay.train import beats

AGAIN = 5.0  # seconds: launchers pass on what the whole process group has got already
EVERY = 0.1  # seconds between two looks for the file
ASKED = os.path.join(os.path.dirname(beats.PATH), "save.asked") if beats.PATH else ""  # noqa: PTH118, PTH120

# No Event: the second of two signals would wait for the lock of the first, in the thread that holds it.
_terminated = False
_ending = False
_asked_at = 0.0
_before: Any = None  # what SIGTERM did before this process answered it
_handles = False
_listens = False
_looked = -EVERY
_stamp: tuple[int, int] | None = None
_seen = ""


def should_save(*, term: bool = True) -> bool:
    """True once each time somebody asks: save now, then go on.

        if step % 100 == 0 or train.should_save():
            checkpoints.save(step, state)
        if train.should_end():
            break  # and end with another exit code than 0, which would mean that all is done

    Sickbay asks those who call this before it stops them for something that can wait, and waits for the save. It also
    answers SIGTERM: from the first call on that ends this process no more by itself; its sender waits a while and then
    kills. With `term=False` SIGTERM is left as it is.
    Ranks are not asked at the same moment: where several save together, agree on it first (all-reduce the answers).
    """
    global _before, _handles, _listens, _terminated  # noqa: PLW0603  # a signal has one handler in a process
    if not _listens:
        _listens = True
        beats.listens()
    if term and not _handles and threading.current_thread() is threading.main_thread():
        _before = signal.signal(signal.SIGTERM, _on_term)
        _handles = True
    asked = _is_asked() if ASKED else False
    if _terminated:
        _terminated = False
        return True
    return asked


def should_end() -> bool:
    """Whether SIGTERM has come, for scripts that call `should_save`: nothing is left to do but to end, not with 0."""
    return _ending


def _is_asked() -> bool:
    """Whether the file names an ask that is new to us. Read at most ten times a second."""
    global _looked, _stamp, _seen  # noqa: PLW0603
    now = time.monotonic()
    if now - _looked < EVERY:
        return False
    _looked = now
    try:
        found = os.stat(ASKED)  # noqa: PTH116  # a Path costs more than the system call
        if (found.st_ino, found.st_mtime_ns) == _stamp:
            return False
        with open(ASKED, "rb") as file:  # noqa: PTH123
            ask = json.loads(file.read())
        ident = str(ask["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    _stamp = (found.st_ino, found.st_mtime_ns)
    if ident == _seen:
        return False
    _seen = ident
    beats.asked(ident)
    return True


def _on_term(_number: int, _frame: FrameType | None) -> None:
    global _asked_at, _ending, _terminated  # noqa: PLW0603
    if _terminated and time.monotonic() - _asked_at > AGAIN:
        # Asked a second time, and nobody has looked: then it ends as it would have.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    if not _terminated:
        _asked_at = time.monotonic()
    _terminated = _ending = True


def _in_child() -> None:
    """What a script forks (the workers of a data loader) never asks: a signal has to end it."""
    global _ending, _handles, _terminated  # noqa: PLW0603
    if _handles and signal.getsignal(signal.SIGTERM) is _on_term:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if _before is None else _before)
    _handles = _terminated = _ending = False


os.register_at_fork(after_in_child=_in_child)
