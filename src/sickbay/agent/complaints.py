"""The agent's own words on stderr: one line, whoever reads it or not."""

import sys
from contextlib import suppress
from select import select
from typing import TextIO


def complain(text: str) -> None:
    """Never waits: a journal hangs, a terminal is paused. Never raises: a journal that was restarted answers EPIPE.

    Neither is a reason to stop watching a node.
    """
    line = "".join(sign if sign.isprintable() else " " for sign in text)
    with suppress(OSError, ValueError, AttributeError):
        if _takes(sys.stderr):
            print(f"agent: {line[:1000]}", file=sys.stderr, flush=True)


def _takes(file: TextIO) -> bool:
    try:
        return bool(select([], [file], [], 0)[1])
    except (OSError, ValueError, TypeError):
        return True  # it is no file of the system's
