"""Save before the end: whether this process was asked to end, so that a maintenance loses no step."""

import signal
import threading
from types import FrameType

_asked = threading.Event()
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
    if _asked.is_set():  # asked a second time, and nobody has looked: then it ends as it would have
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTERM)
    _asked.set()
