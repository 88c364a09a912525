"""Single keys, without waiting for a line's end."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def keys() -> Iterator[Callable[[], str]]:
    """What was typed since the last call; the terminal is put back as it was. Nothing, where there is no keyboard."""
    if not sys.stdin.isatty():
        yield lambda: ""
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def typed() -> str:
        ready, _, _ = select.select([keyboard], [], [], 0)
        return os.read(keyboard, 64).decode("utf-8", "replace") if ready else ""

    try:
        tty.setcbreak(keyboard)
        yield typed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
