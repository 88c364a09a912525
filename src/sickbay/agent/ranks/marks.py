"""Process marks: a word in the environment of all that a command has started, also of what left its process group.

torchrun starts each worker in a session of its own, so the group that the command leads is not all of it.
"""

import os
import signal
from contextlib import suppress

from sickbay.wire.proc import environment, others

MARK = "SICKBAY_RUN"  # of each `sickbay run` that is around a process, the outermost first
ROUNDS = 20  # whoever is killed may have started another just before


def marked_by(outer: str) -> tuple[str, str]:
    """A word of our own, and the variable's value for what we start."""
    mine = os.urandom(8).hex()
    return mine, f"{outer}:{mine}" if outer else mine


def kill_marked(mark: str) -> None:
    """All that carry it, except ourselves. No import happens here: a fork may call it."""
    for _ in range(ROUNDS):
        found = _marked(mark.encode())
        if not found:
            return
        for pid in found:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _marked(mark: bytes) -> list[int]:
    begins = f"{MARK}=".encode()
    found = []
    for pid in others():
        with suppress(OSError):
            if any(word.startswith(begins) and mark in word[len(begins) :].split(b":") for word in environment(pid)):
                found.append(int(pid))
    return found
