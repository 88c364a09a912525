"""Watchdog of one rank's processes: a process of its own that kills them when whoever runs the rank dies.

The kernel kills a child whose parent died, but not that child's children: workers of a launcher would go on training,
seen by nobody.
"""

import os
import signal
from contextlib import suppress

from sickbay.agent.ranks.marks import kill_marked


class GroupGuard:
    """Forked before the group is there; costs nothing until it is needed."""

    def __init__(self, mark: str) -> None:
        """`mark`: what is killed besides the group carries it. Raises OSError."""
        reader, self._writer = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            _stand_by(reader, mark)
        os.close(reader)

    def protect(self, group: int) -> None:
        self._say(f"{group}\n")

    def dismiss(self) -> None:
        """All is over as it should be."""
        self._say("done\n")
        os.close(self._writer)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # somebody has killed it: then there is one safety less
            os.write(self._writer, text.encode())


def _stand_by(reader: int, mark: str) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        os.closerange(0, reader)  # neither lock nor output lives longer than its owner because of us
        os.closerange(reader + 1, min(1 << 16, os.sysconf("SC_OPEN_MAX")))
        said = b""
        while part := os.read(reader, 256):
            said += part
        words = said.split()
        if words[-1:] == [b"done"]:
            return
        with suppress(ProcessLookupError, PermissionError):
            if words:
                os.killpg(int(words[-1]), signal.SIGKILL)
        kill_marked(mark)
    finally:
        os._exit(0)
