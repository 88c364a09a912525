"""Save before the end: whether this process was asked to end, so that a maintenance loses no step."""

import signal
import threading
import time
from types import FrameType

AGAIN = 5.0  # seconds: launchers pass on what the whole process group has got already
_asked = threading.Event()
_asked_at = 0.0
_listens = False


def should_save() -> bool:
    """True once after each SIGTERM: save now, then end or go on until the end comes.

        if step % 100 == 0 or train.should_save():
            checkpoints.save(step, state)

    From the first call on SIGTERM ends this process no more by itself: whoever sends it waits a while and then kills.
    Ranks are not asked at the same moment: where several save together, agree on it first (all-reduce the answers).
    """
    global _listens  # noqa: PLW0603  # a signal has one handler in a process
    if not _listens and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_term)
        _listens = True
    if not _asked.is_set():
        return False
    _asked.clear()
    return True


def _on_term(_number: int, _frame: FrameType | None) -> None:
    global _asked_at  # noqa: PLW0603
    if (
        _asked.is_set() and time.monotonic() - _asked_at > AGAIN
    ):  # asked a second time, and nobody has looked: then it ends as it would have
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    if not _asked.is_set():
        _asked_at = time.monotonic()
    _asked.set()
