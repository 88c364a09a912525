"""Stack traces of a job's ranks, for people who want to know why it hung.

A rank that uses `sickbay.train` writes its Python stacks when it gets the signal that it named; of any other the
kernel tells the state of its threads.
"""

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sickbay.agent.user_files import append, read_small

WRITES_WITHIN = 1.0  # seconds
QUIET = 0.05  # seconds without growth after which a file counts as written
SHORT = 2000  # characters that go into the story
FRAMES = 3  # innermost frames of each thread
THREADS = 64
SIGNAL = 16  # bytes that its number may have
WRITTEN = 1 << 22  # bytes of a file of stacks, old ones and new ones

_FRAME = re.compile(r'\s+File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)')
_STATES = {
    "R": "running", "S": "sleeping", "D": "waiting for a device", "T": "stopped", "t": "being traced", "Z": "dead",
}  # fmt: skip


class RunningRank(NamedTuple):
    """A rank that lives on this node; `run` is the directory with its output and its stacks."""

    rank: int
    pid: int
    run: Path


def collect_stacks(ranks: Iterable[RunningRank], until: float) -> str:
    """Saves the stacks of these ranks beside their output; returns a short text."""
    parts = [f"rank {rank.rank}: {_of_rank(rank.pid, rank.run, until)}" for rank in sorted(ranks)]
    room = SHORT // max(1, len(parts))
    return "\n".join(part if len(part) <= room else f"{part[: room - 1]}…" for part in parts)[:SHORT]


def _of_rank(pid: int, run: Path, until: float) -> str:
    if pid <= 0:  # 0 would be our own process group
        return "its process cannot be seen from here, or is not whom its file names"
    state = _state(pid)
    written = "" if state == _STATES["T"] else _signalled(pid, run, until)
    if written:
        return f"{state}\n{_innermost(written)}"
    seen = _of_kernel(pid)
    with suppress(OSError):
        append(run / "stacks.txt", seen + "\n")
    return f"{state}\n{seen}"


def _signalled(pid: int, run: Path, until: float) -> str:
    """What the rank writes when it is asked; empty: it does not know how, or does not answer."""
    try:
        number = int(read_small(run / "stacks.signal", SIGNAL))
        file = run / "stacks.txt"
        before = _size(file)
        os.kill(pid, number)
    except (OSError, ValueError):
        return ""
    until = min(until, time.monotonic() + WRITES_WITHIN)
    size, since = before, time.monotonic()
    while (now := time.monotonic()) < until:
        if (found := _size(file)) != size:
            size, since = found, now
        elif size > before and now - since > QUIET:
            break
        time.sleep(0.01)
    if size <= before:
        return ""
    try:
        return read_small(file, WRITTEN)[before:].decode(errors="replace")
    except OSError:
        return ""


def _size(file: Path) -> int:
    try:
        return file.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _innermost(text: str) -> str:
    """The first frames of each thread, as `faulthandler` writes them (innermost first)."""
    lines: list[str] = []
    left = 0
    for line in text.splitlines():
        if line.startswith(("Thread ", "Current thread ")):
            lines.append("the thread that was running:" if line.startswith("Current") else "a thread:")
            left = FRAMES
        elif left and (frame := _FRAME.match(line)):
            left -= 1
            lines.append(f"  {frame['name']} ({Path(frame['file']).name}:{frame['line']})")
    return "\n".join(lines) or text.strip()[-500:]


def _state(pid: int) -> str:
    letter = _line(Path(f"/proc/{pid}/status"), "State:")
    return _STATES.get(letter[:1], letter or "gone")


def _of_kernel(pid: int) -> str:
    """Each thread's name, state, and where in the kernel it waits."""
    said = []
    with suppress(OSError):
        for task in sorted(Path(f"/proc/{pid}/task").iterdir())[:THREADS]:
            state = _line(task / "status", "State:")
            waits = _word(task / "wchan").strip("0")
            call = _word(task / "syscall").split(" ", 1)[0]
            where = f" in {waits}" if waits else ""
            said.append(f"  {_word(task / 'comm')}: {_STATES.get(state[:1], state)}{where}, system call {call or '?'}")
            if stack := _word(task / "stack"):
                said.extend(f"    {line}" for line in stack.splitlines()[:FRAMES])
    return "\n".join(said)


def _line(file: Path, begins: str) -> str:
    return next((line[len(begins) :].strip() for line in _word(file).splitlines() if line.startswith(begins)), "")


def _word(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
