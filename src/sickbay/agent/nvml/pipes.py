"""Piped subprocess with deadlines: read with a deadline and ended without ever waiting for it in vain."""

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

CHUNK = 1 << 16
MOST = 1 << 24  # bytes that are held: more is nonsense
LEAVES_WITHIN = 0.2  # seconds: whoever has nobody to talk to ends by itself
DIES_WITHIN = 1.0  # seconds


class Late(Exception):  # noqa: N818
    """The deadline has passed."""


class PipeEnded(Exception):  # noqa: N818
    """There is nobody at the other end any more."""


class Process:
    """Its stderr is ours. It has a session of its own: a signal for the agent's group is not for it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._popen = subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._in, self._out = self._popen.stdin, self._popen.stdout
        os.set_blocking(self._out.fileno(), False)
        os.set_blocking(self._in.fileno(), False)
        self._held = bytearray()
        self._over = False
        self.started = time.monotonic()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def descriptor(self) -> int:
        return self._out.fileno()

    @property
    def gone(self) -> bool:
        return self._popen.poll() is not None

    @property
    def how(self) -> str:
        """How it ended, in words."""
        code = self._popen.returncode if self._leaves(LEAVES_WITHIN) else None
        if code is None:
            return "it closed its output"
        return f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"

    def send(self, line: bytes) -> None:
        try:
            if os.write(self._in.fileno(), line) != len(line):
                raise PipeEnded("its input is full")
        except (BrokenPipeError, BlockingIOError):
            raise PipeEnded(self.how) from None

    def line(self, until: float) -> bytes:
        """The next line. Raises Late when there is none by `until` (monotonic), Ended when there will be none."""
        while True:
            end = self._held.find(b"\n")
            if end >= 0:
                line = bytes(self._held[:end])
                del self._held[: end + 1]
                return line
            if self._over:
                raise PipeEnded(self.how)
            self._fill(until)

    def everything(self, until: float) -> bytes:
        """All that it prints until it ends."""
        while not self._over:
            self._fill(until)
        return bytes(self._held)

    def _fill(self, until: float) -> None:
        poll = select.poll()
        poll.register(self._out.fileno(), select.POLLIN)
        if not poll.poll(1000 * max(0.0, until - time.monotonic())):
            raise Late
        with suppress(BlockingIOError):
            data = os.read(self._out.fileno(), CHUNK)
            self._over = not data
            self._held += data
            if len(self._held) > MOST:
                raise PipeEnded("it says more than anybody asked for")

    def end(self, kill: Callable[[int], None]) -> bool:
        """Whether it is gone. One that waits in the kernel cannot be killed; it is not waited for either."""
        self._in.close()
        try:
            if self._leaves(LEAVES_WITHIN):
                return True
            with suppress(ProcessLookupError):
                kill(self.pid)
            return self._leaves(DIES_WITHIN)
        finally:
            self._out.close()

    def _leaves(self, within: float) -> bool:
        try:
            self._popen.wait(within)
        except subprocess.TimeoutExpired:
            return False
        return True
