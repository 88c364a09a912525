"""Stack dump on a signal: a hung rank cannot say what it does, but the interpreter's fault handler can.

The agent finds the signal's number in `stacks.signal` beside the heartbeat, sends it to the rank, and reads the stacks
of all threads from `stacks.txt`.
"""

import faulthandler
import os
import signal
from contextlib import suppress
from pathlib import Path

SIGNAL = signal.SIGUSR1


def answer(heartbeat: str) -> bool:
    """Register the handler. False: this process is not the rank itself, or uses the signal for something else."""
    if not heartbeat or signal.getsignal(SIGNAL) is not signal.SIG_DFL or _child_of_rank(heartbeat):
        return False
    directory = Path(heartbeat).parent
    with suppress(OSError):
        # A bare descriptor: it stays open as long as the process, and nobody closes it by collecting garbage.
        handle = os.open(directory / "stacks.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        faulthandler.register(SIGNAL, file=handle, all_threads=True)
        # Last: the agent that reads the number may send it at once, and an unhandled one would end the rank.
        aside = directory / f".stacks.signal.{os.getpid()}"
        aside.write_text(f"{int(SIGNAL)}\n", encoding="ascii")
        aside.rename(directory / "stacks.signal")
        return True
    return False


def _child_of_rank(heartbeat: str) -> bool:
    """The signal goes to the process that was started as the rank; a shell or a launcher there would die of it.

    The rank's parent, unlike a worker's, was not given this heartbeat file.
    """
    try:
        environment = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return os.getpid() != os.getpgrp()  # no /proc: a rank leads its own process group
    return f"SICKBAY_HEARTBEAT={heartbeat}".encode() in environment
