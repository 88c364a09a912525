"""Pid translation: the process of a rank in our own numbers, wherever it lives.

A container has a pid namespace of its own, so the number in its rank.json is another process here. `NSpid` of
/proc/<pid>/status has a process' numbers in all the namespaces that it is in, and /proc/<pid>/ns/pid says which the
last is. Whoever writes a rank.json could name any process, and a root's agent can signal all: so only a descendant of
whoever holds the rank's lock counts, which the kernel says, and only one of the directory's owner.
"""

from collections.abc import Iterator
from pathlib import Path

from sickbay.agent.rank_stacks import RunningRank
from sickbay.agent.ranks.directory import FoundRank, pid_space, runner_of

PROC = Path("/proc")
DEPTH = 32  # generations between whoever runs a rank and its main process
MOST = 10_000  # processes that are looked at for one rank


def in_our_numbers(found: FoundRank, proc: Path = PROC) -> RunningRank:
    """With pid 0 where it cannot be seen from here, or is not whom its file names."""
    runner = runner_of(found.run)
    pid = process_of(found, runner, proc) if runner else 0
    return RunningRank(found.file.rank, pid, found.run)


def process_of(found: FoundRank, runner: int, proc: Path = PROC) -> int:
    """`runner`: the pid of whoever holds the rank's lock, in our numbers."""
    wanted, space = found.file.pid, found.file.pid_space
    if wanted <= 0 or found.owner != _owner(proc, runner):
        return 0
    for pid in _below(proc, runner):
        last = _numbers(proc, pid)[-1:]
        if last == [wanted] and pid_space(pid, proc) == space and _owner(proc, pid) == found.owner:
            return pid
    return 0


def _below(proc: Path, pid: int) -> Iterator[int]:
    """A process and its descendants, nearest first."""
    row, seen = [pid], 0
    for _ in range(DEPTH):
        following: list[int] = []
        for one in row:
            yield one
            seen += 1
            if seen >= MOST:
                return
            following.extend(_children(proc, one))
        if not following:
            return
        row = following


def _children(proc: Path, pid: int) -> list[int]:
    found: list[int] = []
    for task in _tasks(proc, pid):
        try:
            found.extend(map(int, (task / "children").read_text().split()))
        except (OSError, ValueError):
            continue  # it has ended meanwhile
    return found


def _tasks(proc: Path, pid: int) -> list[Path]:
    try:
        return list((proc / str(pid) / "task").iterdir())
    except OSError:
        return []


def _numbers(proc: Path, pid: int) -> list[int]:
    """Its pids, from our namespace to its own."""
    words = _field(proc, pid, "NSpid:")
    return [int(word) for word in words if word.isdigit()] or [pid]


def _owner(proc: Path, pid: int) -> int:
    """The effective user; -1: there is no such process."""
    words = _field(proc, pid, "Uid:")
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else -1


def _field(proc: Path, pid: int, name: str) -> list[str]:
    try:
        status = (proc / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return []
    return next((line[len(name) :].split() for line in status.splitlines() if line.startswith(name)), [])
