"""Verification of a large checkpoint by all ranks at once, each its own shard: parallel reads, no file read twice.

Rank 0 names what is to be looked at (`look-<k>.json`), every rank hashes its share and says what it found, and rank 0
goes on when all have. A rank whose own shard is in its share keeps the state that it has read for `load`.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heapify, heapreplace
from pathlib import Path
from typing import Any, TypeVar

from sickbay.train import beats, disk, shard
from sickbay.train.errors import CheckpointError, Unreadable
from sickbay.train.far import far_copy
from sickbay.train.layout import CheckpointName, Manifest, look_path, read_manifest, shard_name, step_path
from sickbay.train.near import Near
from sickbay.train.validity import MISSING, fault_in

log = logging.getLogger("sickbay.train")
TOGETHER = 256 * 1024 * 1024  # bytes from which all ranks look: less is read by rank 0 before the others are awake
A_FILE = 64 * 1024  # bytes that could be read in the time in which one more file is opened
SLOWEST = 20e6  # bytes a second that a rank surely reads or writes: time limits follow the size
NOWHERE = "a shard of it is on none of the nodes that take part"
Thing = TypeVar("Thing")


def allowance(size: float) -> float:
    """Seconds that so many bytes may take beyond any patience."""
    return size / SLOWEST


class Looking:
    """One rank's part in looking at checkpoints together."""

    def __init__(self, root: Path, attempt: int, rank: int, world_size: int, patience: float) -> None:
        self.root, self.attempt, self.rank, self.world_size = root, attempt, rank, world_size
        self.patience = patience
        self.more = 0.0  # seconds beyond our patience that what was looked at until now may take
        self.near: Near | None = None  # what is on the nodes' own disks, where they are used
        self.loaded: dict[int, Any] = {}
        self.of: CheckpointName | None = None  # what `loaded` is from
        self._number = 0

    # --- rank 0

    def together(self, root: Path, manifest: Manifest) -> str | None:
        """The first fault in a checkpoint, as all ranks see it."""
        if manifest.size < TOGETHER and self.near is None:
            return fault_in(root, manifest)
        for name in sorted(manifest.files):
            copies = copies_of(self.root, manifest, name, self.near)
            durable = len(copies) == 1 and manifest.far is not None  # what is near only may be on other nodes' disks
            if durable and (fault := disk.misfit_of(copies[0], manifest.files[name], name)) is not None:
                return fault
        number = self._ask(manifest.place)
        self.more += allowance(manifest.size / self.world_size)
        faults = [self._look(manifest)]
        for rank in range(1, self.world_size):
            what = f"rank {rank} did not look at its share of {manifest.place}"
            answer = look_path(self.root, self.attempt, number, rank)
            told = wait_for(partial(disk.read, answer), self, what)
            if told["unreadable"]:
                why = f"rank {rank}: {told['unreadable']}"
                raise Unreadable(why) from OSError(told["errno"], why)
            faults.append(told["fault"])
        return next((fault for fault in faults if fault), None)

    def _ask(self, place: CheckpointName) -> int:
        """All ranks to look; under which number. One that was asked for before an error may be there already."""
        if self.world_size > 1:
            self._number = disk.ask(partial(look_path, self.root, self.attempt), self._number, place._asdict())
        self._number += 1
        return self._number - 1

    # --- every other rank

    def share(self) -> None:
        """Look at what rank 0 asks for now, if it does."""
        path = look_path(self.root, self.attempt, self._number)
        with disk.undamaged(path):
            asked = disk.read(path)
        if asked is None:
            return
        place = CheckpointName(asked["attempt"], asked["step"])
        near = self.near.whole.get(place) if self.near is not None and self.near.learn() else None
        told: dict[str, Any] = {"fault": None, "unreadable": "", "errno": 0}
        try:
            manifest = read_manifest(self.root, place) or near or read_manifest(self.root, place, removed=True)
            if manifest is not None:
                self.more += allowance(manifest.size / self.world_size)
                told["fault"] = self._look(manifest)
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

    def _look(self, manifest: Manifest) -> str | None:
        self.loaded, self.of = {}, manifest.place
        sizes = {name: one.size for name, one in manifest.files.items()}
        mine = shares_of(sizes, self.world_size)[self.rank]
        progress = telling(f"verifying {manifest.place}", sum(sizes[name] for name in mine))
        for name in mine:
            form = manifest.forms.get(self.rank)
            copies, expected = copies_of(self.root, manifest, name, self.near), manifest.files[name]
            try:
                if name == shard_name(self.rank) and form is not None and manifest.world_size == self.world_size:
                    self.loaded[self.rank] = read_any(copies, expected, form, progress)
                elif (fault := fault_of_all(copies, expected, progress, name)) is not None:
                    return fault
            except CorruptShard as fault:
                return str(fault)
            except (ValueError, MemoryError):  # it is what was written, and `load` will tell why it is of no use here
                self.loaded.pop(self.rank, None)
            except Unreadable as why:
                if manifest.far is not None:
                    raise
                return str(why)  # of what is near only there is no other copy to wait for
        return None


def copies_of(root: Path, manifest: Manifest, name: str, near: Near | None) -> list[disk.File]:
    """Of a file of a checkpoint, the nearest first; the durable one last."""
    found = near.copies(manifest, name) if near is not None else []
    far = far_copy(root, manifest, name)
    return found if far is None else [*found, far]


def fault_of_all(
    copies: Sequence[disk.File], expected: disk.Sum, progress: Callable[[int], None] | None = None, name: str = ""
) -> str | None:
    """None: one of the copies is whole. Else what is wrong with the last, the durable one."""
    for copy in copies[:-1]:
        try:
            fault = disk.fault_of(copy, expected, progress, name)
        except Unreadable as why:
            fault = str(why)
        if fault is None:
            return None
        log.warning("%s; another copy is read", fault)
    return disk.fault_of(copies[-1], expected, progress, name) if copies else NOWHERE


def read_any(
    copies: Sequence[disk.File], expected: disk.Sum, form: str, progress: Callable[[int], None] | None = None
) -> Any:
    """What a shard holds, from the first of its copies that is whole."""
    for copy in copies[:-1]:
        try:
            return read_shard(copy, expected, form, progress)
        except (CorruptShard, Unreadable) as why:
            log.warning("%s; another copy is read", why)
    if not copies:
        raise CorruptShard(NOWHERE)
    return read_shard(copies[-1], expected, form, progress)


def shares_of(sizes: Mapping[str, int], ranks: int) -> list[list[str]]:
    """Which rank reads which files, the same wherever it is worked out.

    A rank's own shard is its own; the others are dealt out, the largest first, to the rank that has least.
    """
    shares: list[list[str]] = [[] for _ in range(ranks)]
    least = [(0, rank) for rank in range(ranks)]
    for rank in range(ranks):
        if (name := shard_name(rank)) in sizes:
            shares[rank], least[rank] = [name], (sizes[name], rank)
    heapify(least)
    own = {name for share in shares for name in share}
    for name in sorted(sizes.keys() - own, key=lambda name: (-sizes[name], name)):
        load, rank = least[0]
        shares[rank].append(name)
        heapreplace(least, (load + sizes[name] + A_FILE, rank))
    return [sorted(share) for share in shares]


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


def read_shard(path: disk.File, expected: disk.Sum, form: str, progress: Callable[[int], None] | None = None) -> Any:
    """What a shard holds, hashed while it is read: nothing is returned that was not verified."""
    if (misfit := disk.misfit_of(path, expected)) is not None:
        raise CorruptShard(misfit)
    try:
        with disk.opened(path) as file:
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
        raise CorruptShard(disk.corrupt(path.name))
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
