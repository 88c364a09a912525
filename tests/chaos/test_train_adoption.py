"""Every call that adopting a directory makes fails once: the step is whole, or it is told that it was not saved."""

import atexit
import builtins
import errno
import io
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.thorough import THOROUGH

from sickbay import train
from sickbay.train import foreign, saves

pytestmark = pytest.mark.slow

CALLS = ("open", "close", "fsync", "fstat", "stat", "lstat", "scandir", "listdir", "link", "mkdir", "unlink", "rename")
FILES = {f"{at}/rank-{rank}.bin": b"%d of %%d" % rank * 500 for rank in (0, 1) for at in ("state", "state/deep")}


class Failing:
    """One of many calls raises an error, whichever thread makes it."""

    def __init__(self, number: int, at: int, calls: tuple[str, ...]) -> None:
        self.number, self.at, self.calls, self.count = number, at, calls, 0
        self.what = ""
        self.lock = threading.Lock()

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **named: Any) -> Any:
            with self.lock:
                self.count += 1
                fails = self.count == self.at
                if fails:
                    path = Path(f"/proc/self/fd/{args[0]}").readlink() if name == "fsync" else args[0]
                    self.what = f"{name} {path}"
            if fails and name != "close":
                raise OSError(self.number, os.strerror(self.number), args[0])
            return call(*args, **named)

        return called


def saved(directory: Path, attempt: int, step: int, failing: Failing | None = None) -> tuple[set[str], int]:
    """What two ranks hear when they save this step; and the step that they went on from."""
    ranks = [
        train.Checkpoints(directory, attempt=attempt, rank=rank, world_size=2, keep=1, patience=20) for rank in (0, 1)
    ]
    began = ranks[0].resumed.step if ranks[0].resumed else 0
    for rank in ranks:
        there = foreign.resumed(rank)
        if there is not None:
            held = {name: (there / name).read_bytes() for name in FILES}
            assert held == {name: content % ((began,) * 500) for name, content in FILES.items()}
    told: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        for name in failing.calls if failing is not None else ():
            patch.setattr(os, name, failing.around(name, getattr(os, name)))
        if failing is not None and "open" in failing.calls:
            patch.setattr(io, "open", failing.around("io.open", builtins.open))
        for rank in ranks:
            told |= saved_by(rank, step)
        for rank in ranks:
            try:
                rank.wait()
            except train.CheckpointError as error:
                told.add(str(error))
    return told, began


def saved_by(rank: train.Checkpoints, step: int) -> set[str]:
    try:
        with foreign.saving(rank, step) as directory:
            for name, content in FILES.items():
                if f"rank-{rank.rank}." in name:
                    (directory / name).parent.mkdir(exist_ok=True, parents=True)
                    (directory / name).write_bytes(content % ((step,) * 500))
    except (train.CheckpointError, OSError) as error:
        return {str(error)}
    return set()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.ENOSPC, errno.ESTALE], ids=errno.errorcode.get)
def test_whichever_call_fails_the_step_is_whole_or_told(
    number: int, quick_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = 1 if THOROUGH else 3
    assert committed_in_spite_of(number, CALLS, range(1 + number % every, 10_000, every), quick_disk, monkeypatch) > 20


def test_whichever_sync_fails_nothing_is_committed_that_is_perhaps_not_on_the_disk(
    quick_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed_in_spite_of(errno.EIO, ("fsync",), range(1, 1000), quick_disk, monkeypatch)


def committed_in_spite_of(
    number: int, calls: tuple[str, ...], numbers: range, quick_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    monkeypatch.setattr(saves, "AGAIN", (0.001,))
    monkeypatch.setattr(atexit, "register", lambda _: None)
    logging.disable()
    fine = unsynced = 0
    for at in numbers:
        directory, failing = quick_disk / f"adopted-{number}", Failing(number, at, calls)
        assert saved(directory, 1, 1) == (set(), 0)
        told, began = saved(directory, 2, 2, failing)
        assert began == 1
        assert all("\n" not in one for one in told), failing.what
        newest = train.latest_valid(directory).step
        assert newest == 2 or told, f"{failing.what}: nobody was told"
        lost = failing.what.startswith("fsync") and failing.what.endswith(".bin")
        assert newest == (1 if lost else newest), f"{failing.what}: what is perhaps not on the disk was committed"
        assert saved(directory, 3, 3) == (set(), newest), failing.what
        fine += newest == 2
        unsynced += lost
        shutil.rmtree(directory)
        if failing.count < at:
            break
    logging.disable(logging.NOTSET)
    assert failing.count < at
    assert unsynced or "open" in calls
    return fine
