"""Verification of a large checkpoint by all ranks at once, each its own shard: parallel reads, no file read twice.

Rank 0 names what is to be looked at (`look-<k>.json`), every rank hashes its share and says what it found, and rank 0
goes on when all have. A rank whose own shard is in its share keeps the state that it has read for `load`.
"""

import errno
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sickbay.train import beats, disk, shard
from sickbay.train.errors import CheckpointError, Unreadable
from sickbay.train.layout import Manifest, Place, look_path, read_manifest, shard_name, step_path
from sickbay.train.validity import MISSING, fault_in

TOGETHER = 256 * 1024 * 1024  # bytes from which all ranks look: less is read by rank 0 before the others are awake
SLOWEST = 20e6  # bytes a second that a rank surely reads or writes: time limits follow the size
Thing = TypeVar("Thing")


def allowance(size: float) -> float:
    """Seconds that so many bytes may take beyond any patience."""
    return size / SLOWEST


class Looking:
    """One rank's part in looking at checkpoints together."""

    def __init__(self, root: Path, attempt: int, rank: int, world_size: int, patience: float) -> None:
        self.root, self.attempt, self.rank, self.world_size = root, attempt, rank, world_size
        self.patience = patience
        self.run = ""
        self.more = 0.0  # seconds beyond our patience that what is looked at now may take
        self.loaded: dict[int, Any] = {}
        self.of: Place | None = None  # what `loaded` is from
        self._number = 0

    # --- rank 0

    def together(self, directory: Path, manifest: Manifest) -> str | None:
        """The first fault in a checkpoint, as all ranks see it."""
        if manifest.size < TOGETHER:
            return fault_in(directory, manifest)
        for name in sorted(manifest.files):
            if (fault := disk.misfit_of(directory / name, manifest.files[name])) is not None:
                return fault
        number = self._ask(manifest.place)
        self.more = allowance(manifest.size / self.world_size)
        faults = [self._look(directory, manifest)]
        for rank in range(1, self.world_size):
            what = f"rank {rank} did not look at its share of {manifest.place}"
            answer = look_path(self.root, self.attempt, number, rank)
            told = wait_for(partial(disk.read, answer), self, what)
            if told["unreadable"]:
                why = f"rank {rank}: {told['unreadable']}"
                raise Unreadable(why) from OSError(told["errno"], why)
            faults.append(told["fault"])
        return next((fault for fault in faults if fault), None)

    def _ask(self, place: Place) -> int:
        """All ranks to look; under which number. One that was asked for before an error may be there already."""
        while self.world_size > 1:
            path = look_path(self.root, self.attempt, self._number)
            if disk.create(path, place._asdict()) or disk.read(path) == place._asdict():
                break
            self._number += 1
        self._number += 1
        return self._number - 1

    # --- every other rank

    def share(self) -> None:
        """Look at what rank 0 asks for now, if it does."""
        path = look_path(self.root, self.attempt, self._number)
        try:
            asked = disk.read(path)
        except disk.Damaged as damage:
            raise Unreadable(f"{path} {damage}") from None
        if asked is None:
            return
        place = Place(asked["attempt"], asked["step"])
        told: dict[str, Any] = {"fault": None, "unreadable": "", "errno": 0}
        try:
            manifest = read_manifest(self.root, place) or read_manifest(self.root, place, removed=True)
            if manifest is not None:
                self.more = allowance(manifest.size / self.world_size)
                told["fault"] = self._look(step_path(self.root, place), manifest)
            if manifest is None or (told["fault"] or "").endswith(MISSING):  # rank 0 has seen all of it a moment ago
                raise disk.unreadable(step_path(self.root, place), OSError(errno.ESTALE, os.strerror(errno.ESTALE)))
        except disk.Damaged as damage:
            told["fault"] = f"manifest.json {damage}"
        except Unreadable as why:
            cause = why.__cause__
            number = cause.errno if isinstance(cause, OSError) and cause.errno is not None else errno.ESTALE
            told |= {"fault": None, "unreadable": str(why), "errno": number}
        disk.create(look_path(self.root, self.attempt, self._number, self.rank), told)
        self._number += 1

    def _look(self, directory: Path, manifest: Manifest) -> str | None:
        self.loaded, self.of = {}, manifest.place
        mine = [name for n, name in enumerate(sorted(manifest.files)) if self._whose(n, name) == self.rank]
        progress = telling(f"verifying {manifest.place}", sum(manifest.files[name].size for name in mine))
        for name in mine:
            form = manifest.forms.get(self.rank)
            try:
                if name == shard_name(self.rank) and form is not None and manifest.world_size == self.world_size:
                    self.loaded[self.rank] = read_shard(directory / name, manifest.files[name], form, progress)
                elif (fault := disk.fault_of(directory / name, manifest.files[name], progress)) is not None:
                    return fault
            except CorruptShard as fault:
                return str(fault)
            except (ValueError, MemoryError):  # it is what was written, and `load` will tell why it is of no use here
                self.loaded.pop(self.rank, None)
        return None

    def _whose(self, position: int, name: str) -> int:
        """A rank's own shard is its own; the others are dealt out."""
        own = next((rank for rank in range(self.world_size) if name == shard_name(rank)), None)
        return position % self.world_size if own is None else own


def telling(what: str, total: int) -> Callable[[int], None]:
    """Takes how many bytes more are done, and has the heartbeat say so."""
    done = 0

    def progress(size: int) -> None:
        nonlocal done
        done += size
        beats.busy(what, done, total)

    return progress


class CorruptShard(ValueError):  # noqa: N818
    """It is not what was written."""


def read_shard(path: Path, expected: disk.Sum, form: str, progress: Callable[[int], None] | None = None) -> Any:
    """What a shard holds, hashed while it is read: nothing is returned that was not verified."""
    if (misfit := disk.misfit_of(path, expected)) is not None:
        raise CorruptShard(misfit)
    try:
        with path.open("rb", buffering=0) as file:
            hashing = disk.Hashing(file, progress)
            try:
                state, wrong = shard.restore(form, hashing, expected.size), None
            except (ValueError, KeyError, TypeError, IndexError, MemoryError) as error:
                state, wrong = None, error
            found = hashing.finish()
    except FileNotFoundError:
        raise CorruptShard(f"{path.name} is missing") from None
    except OSError as error:
        raise disk.unreadable(path, error) from error
    if found != expected:
        raise CorruptShard(disk.corrupt(path))
    if wrong is not None:
        raise wrong
    return state


def wait_for(ask: Callable[[], Thing | None], looking: Looking, what: str) -> Thing:
    """Asks until there is an answer; for as long as the ranks have patience and what they look at may take."""
    began, pause = time.monotonic(), 0.001
    while (answer := ask()) is None:
        if time.monotonic() - began > looking.patience + looking.more:
            most = looking.patience + looking.more
            raise CheckpointError(f"{what} in {looking.root} within {most:g} s; do all ranks see the same directory?")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return answer
