"""Process marks: a word in the environment of all that a command has started, also of what left its process group.

torchrun starts each worker in a session of its own, so the group that the command leads is not all of it.
"""

import os
import signal
from contextlib import suppress

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
    """Processes that live: zombies have no environment any more."""
    me, begins = os.getpid(), f"{MARK}=".encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - a Path for each process is half of the cost
        if not name.isdigit() or int(name) == me:
            continue
        words = _environ(name).split(b"\0")
        if any(word.startswith(begins) and mark in word[len(begins) :].split(b":") for word in words):
            found.append(int(name))
    return found


def _environ(name: str) -> bytes:
    try:
        handle = os.open(f"/proc/{name}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""  # it has ended, or is another user's
    try:
        parts = []
        while part := os.read(handle, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(handle)
