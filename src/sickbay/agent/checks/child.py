"""A process of its own for what may hang, killed with all that it started when its time is over."""

import contextlib
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

TO_DIE = 3.0  # seconds in which a killed process ends, unless the kernel holds it
MOST = 1 << 20  # bytes of output that are read

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

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None, cwd: str | None = None) -> None:
        for one in [one for one in _stuck if one.poll() is not None]:
            _stuck.remove(one)
        self._began = time.monotonic()
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by finish
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                argv, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, env=dict(env) if env else None,
                cwd=cwd, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            self._out.close()
            self._err.close()
            raise
        _let_loose(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def so_far(self) -> str:
        return os.pread(self._out.fileno(), MOST, 0).decode(errors="replace")

    def finish(self, until: float) -> ChildEnd:
        """Waits until then, kills what is left, and reads what it said. Whatever interrupts this kills it too."""
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(max(0.0, until - time.monotonic()))
        finally:
            stuck = self.kill()
        try:
            out, err = self.so_far(), os.pread(self._err.fileno(), MOST, 0).decode(errors="replace")
        finally:
            self._out.close()
            self._err.close()
        return ChildEnd(code, out, err, time.monotonic() - self._began, stuck)

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


def _let_loose(pid: int) -> None:
    """The agent's own limit of memory is not that of a check, which goes first where memory is short."""
    with contextlib.suppress(OSError, ValueError):
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.prlimit(pid, resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123
        score.write("500")


def finish_all(children: Sequence[Child], until: float) -> list[ChildEnd]:
    """All of them, whatever happens to one."""
    ended: list[ChildEnd] = []
    try:
        ended.extend(child.finish(until) for child in children)
    finally:
        for child in children[len(ended) :]:
            child.finish(0.0)
    return ended


def run_tool(argv: Sequence[str], until: float, env: Mapping[str, str] | None = None) -> ChildEnd:
    return Child(argv, env).finish(until)
