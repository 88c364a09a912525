"""Bounded subprocesses: a deadline, a limit of output, and a kill of the whole process group.

What may hang (a driver's tool on a dying GPU, a site's own command) holds nobody up, not even where the kernel does not
let it go.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

TO_DIE = 3.0  # seconds in which a killed process ends, unless the kernel holds it
MOST = 4 << 20  # bytes of output that are read: the last ones

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None  # before any fork: after it nothing is loaded

# Processes that did not end when they were killed: kept, so that they are reaped should a device ever let go of them.
_stuck: list[subprocess.Popen[bytes]] = []


class ChildEnd(NamedTuple):
    code: int | None  # None: it did not end by itself, and was killed
    out: str
    err: str
    seconds: float
    stuck: bool = False  # not even a kill ended it

    @property
    def last(self) -> str:
        """The last line that says something: how most tools tell what is wrong."""
        lines = [line.strip() for line in (*self.out.splitlines(), *self.err.splitlines()) if line.strip()]
        return lines[-1][:300] if lines else ""


class Child:
    """Its output goes to files without names: nobody must read along, and a dead child leaves nothing."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        merged: bool = False,
        stdin: bytes = b"",
        keeps: Sequence[int] = (),
    ) -> None:
        """`merged`: both streams are `out`, in the order in which they came. `keeps`: descriptors that it has, too.

        Raises OSError.
        """
        import tempfile  # here: an agent that only watches starts no command

        for one in [one for one in _stuck if one.poll() is not None]:
            _stuck.remove(one)
        self._began = time.monotonic()
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            with tempfile.TemporaryFile() as told:  # a file, not a pipe: a child that does not read holds nobody up
                told.write(stdin)
                told.seek(0)
                self._process = subprocess.Popen(  # noqa: S603 - words of ours or of the operator, no shell
                    argv, stdin=told if stdin else subprocess.DEVNULL, stdout=self._out,
                    stderr=subprocess.STDOUT if merged else self._err, env=dict(env) if env else None,
                    start_new_session=True, pass_fds=keeps,
                )  # fmt: skip
        except BaseException:
            self._out.close()
            self._err.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def so_far(self) -> str:
        return _end_of(self._out)

    def finish(self, until: float, *, spare: bool = False) -> ChildEnd:
        """Waits until then, kills what is left, and reads what it said. Whatever interrupts this kills it too.

        `spare`: what it started and left behind lives on, if it ended in time.
        """
        code: int | None = None
        stuck = False
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(max(0.0, until - time.monotonic()))
        finally:
            if code is None or not spare:
                stuck = self.kill()
        try:
            return ChildEnd(code, self.so_far(), _end_of(self._err), time.monotonic() - self._began, stuck)
        finally:
            self._out.close()
            self._err.close()

    def kill(self) -> bool:
        """Its whole group: also what outlived it. Returns whether it is still there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(TO_DIE)
        except subprocess.TimeoutExpired:
            _stuck.append(self._process)
            return True
        return False


def run_bounded(
    argv: Sequence[str],
    seconds: float,
    *,
    merged: bool = False,
    spare: bool = False,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    keeps: Sequence[int] = (),
) -> ChildEnd:
    """Runs a command to its end or its deadline. Raises OSError where it cannot be started."""
    return Child(argv, env, merged=merged, stdin=stdin, keeps=keeps).finish(time.monotonic() + seconds, spare=spare)


def finish_all(children: Sequence[Child], until: float) -> list[ChildEnd]:
    """All of them, whatever happens to one."""
    ended: list[ChildEnd] = []
    try:
        ended.extend(child.finish(until) for child in children)
    finally:
        for child in children[len(ended) :]:
            child.finish(0.0)
    return ended


def die_with(parent: int) -> Callable[[], None]:
    """For a child: the kernel kills it when `parent`, its parent, is gone. Also between fork and exec."""

    def arm() -> None:
        if _LIBC is None:
            return
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before we could ask
            os._exit(128 + signal.SIGKILL)

    return arm


def _end_of(file: IO[bytes]) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), MOST, max(0, size - MOST)).decode(errors="replace")
