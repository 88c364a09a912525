"""sd_notify: tells systemd READY, and gives a sign of life for its watchdog. No more than a datagram each."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

TAKES = 1.0  # seconds


class Watchdog:
    """Where nobody listens every call does nothing."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = environment.get("NOTIFY_SOCKET", "")
        given = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        # Half of the time that systemd allows, as it advises.
        self.every = int(given) / 2e6 if given.isdecimal() and mine and int(given) > 0 else 0.0
        self._last = 0.0

    def ready(self, text: str = "") -> None:
        self._tell(f"READY=1\nSTATUS={_one_line(text)}")

    def alive(self, now: float) -> None:
        """Called by the loop, not by a thread of its own: what is to be watched is the loop."""
        if self.every and now - self._last >= min(self.every, 30.0):
            self._last = now
            self._tell("WATCHDOG=1")

    def status(self, text: str) -> None:
        self._tell(f"STATUS={_one_line(text)}")

    def ending(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, text: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # A leading @ is the abstract namespace, which the kernel writes as a zero byte.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.settimeout(TAKES)  # a systemd that has stopped reads nothing, and its queue is short
            line.connect(address)
            line.sendall(text.encode())


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
