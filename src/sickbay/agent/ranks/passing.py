"""Tee of a child's standard streams: to our own, and into the file that is kept."""

import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType

from sickbay.agent.ranks.output import CHUNK, OutputFile

PATIENCE = 1.0  # seconds for what others still hold open once the command is over
LOOK = 1.0  # seconds between two looks whether it has ended, should its signal be lost


class Streams:
    """Pipes for standard output and standard error, one where they are the same file, so that their order is kept."""

    def __init__(self, kept: OutputFile | None, hopeless: Callable[[], bool]) -> None:
        """`hopeless`: nobody waits any more for whoever should read our own streams and does not."""
        self._kept = kept
        self._hopeless = hopeless
        self._to: dict[int, int] = {}  # reading end → our own stream; -1: nobody listens there any more
        self.out = self._pipe(1)
        self.err = self.out if _same(1, 2) else self._pipe(2)
        self._bell, self._ringer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakes = signal.set_wakeup_fd(self._ringer, warn_on_full_buffer=False)
        self._child = signal.signal(signal.SIGCHLD, _noticed)

    def _pipe(self, own: int) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        self._to[reader] = own
        return writer

    def begin(self) -> None:
        """The child has its own ends by now."""
        for writer in {self.out, self.err}:
            os.close(writer)

    def pump(self, ended: Callable[[], bool]) -> None:
        """Until the child has ended."""
        while not ended():
            self._turn(LOOK)

    def finish(self) -> None:
        """What is left in the pipes; who still holds one is not of the child."""
        until = time.monotonic() + PATIENCE
        while self._to and time.monotonic() < until:
            self._turn(max(0.0, until - time.monotonic()))
        for reader in self._to:
            os.close(reader)
        self._to.clear()
        signal.set_wakeup_fd(self._wakes)
        signal.signal(signal.SIGCHLD, self._child)
        os.close(self._bell)
        os.close(self._ringer)

    def _turn(self, seconds: float) -> None:
        for handle in select.select([*self._to, self._bell], [], [], seconds)[0]:
            try:
                data = os.read(handle, CHUNK)
            except BlockingIOError:
                continue
            if handle == self._bell:
                continue
            if not data:
                os.close(handle)
                del self._to[handle]
                continue
            if self._kept is not None:
                self._kept.write(data)
            if self._to[handle] >= 0 and not _pass(self._to[handle], data, self._hopeless):
                self._to[handle] = -1


def _pass(own: int, data: bytes, hopeless: Callable[[], bool]) -> bool:
    """False: nobody reads our own stream any more, or it takes nothing more; the training goes on all the same.

    A pipe that has room takes so much without blocking: whoever blocked in it could not be ended by SIGTERM.
    """
    while data:
        try:
            if select.select([], [own], [], LOOK)[1]:
                data = data[os.write(own, data[: select.PIPE_BUF]) :]
            elif hopeless():
                return False
        except BlockingIOError:
            continue  # another has taken the room
        except OSError:
            return False
    return True


def fill_closed() -> None:
    """A standard stream that is closed would be the number of the next file that we open, and get our output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _same(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False


def _noticed(number: int, frame: FrameType | None) -> None:
    """Only so that the pump wakes."""
