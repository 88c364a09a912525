"""Whoever runs ranks, played by a test: their directories, with locks that a process of its own holds."""

import atexit
import subprocess
import sys
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from sickbay.agent.ranks.directory import ALIVE, RANK_FILE, RankFile, pid_space, rank_dir
from sickbay.wire.files import replace_file

HOLDER = """
import fcntl, os, sys
held = {}
for line in sys.stdin:
    what, path = line.rstrip("\\n").split(" ", 1)
    if what == "free":
        os.close(held.pop(path))
    elif path not in held:
        held[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.lockf(held[path], fcntl.LOCK_EX)
    print("done", flush=True)
"""


class LockHolder:
    """A record lock is nothing to the process that holds it, so another must."""

    def __init__(self) -> None:
        words = [sys.executable, "-I", "-S", "-c", HOLDER]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        atexit.register(self.end)

    def ask(self, what: str, path: Path) -> None:
        print(what, path, file=self.process.stdin, flush=True)
        assert self.process.stdout.readline() == "done\n"

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


_holders: list[LockHolder] = []


def holder() -> LockHolder:
    """One for all tests of this process."""
    if not _holders:
        _holders.append(LockHolder())
    return _holders[0]


class PlayedRanks:
    """The ranks of one node, by their directories."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._alive: dict[Path, RankFile] = {}

    def put(self, *ranks: RankFile) -> None:
        """Exactly these live; of those that lived before, one that is over says how, and the others were killed."""
        named = {self.run(rank): rank for rank in ranks}
        for run, rank in named.items():
            self.make(run)
            if rank.ended_at is None and run not in self._alive:
                holder().ask("hold", run / ALIVE)
                self._alive[run] = rank
            self.write(run, rank)
        for run in [run for run in self._alive if run not in named or named[run].ended_at is not None]:
            holder().ask("free", run / ALIVE)
            del self._alive[run]

    def run(self, rank: RankFile) -> Path:
        return rank_dir(self.base, *rank.key)

    def make(self, run: Path) -> Path:
        run.mkdir(parents=True, exist_ok=True)
        return run

    def write(self, run: Path, rank: RankFile) -> None:
        replace_file(run / RANK_FILE, msgspec.json.encode(rank), durable=False)

    def close(self) -> None:
        self.put()


def over(rank: RankFile, code: int | None = 0, **more: object) -> RankFile:
    return replace(rank, ended_at=time.time(), exit_code=code, **more)


def here(rank: RankFile, pid: int) -> RankFile:
    """A process of ours, in the numbers of our own namespace."""
    return replace(rank, pid=pid, pid_space=pid_space())
