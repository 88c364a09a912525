"""Selection and verification: which checkpoint to go on from, the newest whole one on the way of the lineage.

The highest attempt that has chosen decides: its own checkpoints, newest first, then exactly the one that it began
from, and below that one what its parent attempt had saved earlier, and so on. What an older attempt commits after a
younger one has chosen its parent is on nobody's way, so it is never found, however whole it is.

What cannot be read now (EIO, a stale handle, a LINEAGE that is missing) is not corrupt: then nothing is chosen at all.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.errors import Unreadable
from sickbay.train.far import far_copy
from sickbay.train.layout import (
    CheckpointName,
    Lineage,
    Manifest,
    Skipped,
    attempts,
    begun,
    is_committed,
    lineage_path,
    read_lineage,
    read_manifest,
    removed_path,
    step_path,
    steps,
)

READERS = 16  # checksums of shards that are computed at once
MISSING = " is missing"
ROUNDS = 20  # surveys in which something vanished, before it is called unreadable

Look = Callable[[Path, Manifest], str | None]  # the first fault in a checkpoint's files, or None
NONE_NEAR: Mapping[CheckpointName, Manifest | str] = {}


class Checkpoint(NamedTuple):
    """A whole checkpoint, and the newer ones that were not."""

    attempt: int
    step: int
    skipped: tuple[Skipped, ...]
    world_size: int
    path: Path

    def __str__(self) -> str:
        return str(CheckpointName(self.attempt, self.step))


class Survey(NamedTuple):
    """`committed`: whether any of those that were passed over had been finished once."""

    chosen: Checkpoint | None
    skipped: tuple[Skipped, ...]
    committed: bool = False


class _Vanished(Exception):  # noqa: N818
    """Somebody removed it while we looked: what is there now must be looked at from the beginning."""


def latest_valid(directory: str | os.PathLike[str]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None: there is none. Raises Unreadable if it could not be looked at."""
    return survey(Path(directory)).chosen


def survey(
    root: Path,
    below: int | None = None,
    look: Look | None = None,
    near: Mapping[CheckpointName, Manifest | str] = NONE_NEAR,
    step: int | None = None,
) -> Survey:
    """The newest whole checkpoint of the attempts (below a number), and what was passed over on the way to it.

    `near`: those that are whole on the nodes' own disks, whether or not they were uploaded, and why others are not.
    `step`: only of this number, on the way of the lineage first, and then wherever it is.
    """
    with disk.readable(root):
        for _ in range(ROUNDS):
            try:
                ways = candidates(root, below, near) if step is None else _of_step(root, below, near, step)
                return _survey(root, ways, look or fault_in, near)
            except _Vanished:
                continue
    raise Unreadable(f"checkpoints in {root} vanish while they are looked at: end what removes them, and start again")


def _survey(
    root: Path,
    ways: Iterable[tuple[CheckpointName, bool]],
    look: Look,
    near: Mapping[CheckpointName, Manifest | str],
) -> Survey:
    skipped: list[Skipped] = []
    committed = False
    for place, named in ways:
        manifest, why, finished = _examine(root, place, look, named=named, near=near.get(place))
        committed = committed or finished
        if manifest is None:
            skipped.append(Skipped(*place, why))
            continue
        chosen = Checkpoint(*place, tuple(skipped), manifest.world_size, step_path(root, place))
        return Survey(chosen, tuple(skipped), committed=True)
    return Survey(None, tuple(skipped), committed)


def candidates(
    root: Path, below: int | None = None, near: Mapping[CheckpointName, Manifest | str] = NONE_NEAR
) -> Iterator[tuple[CheckpointName, bool]]:
    """Every checkpoint, whole or not, on the way back from the highest attempt, newest first.

    With each, whether an attempt names it as the one that it began from.
    """
    _all_have_chosen(root, below)
    numbers = [number for number in begun(root) if below is None or number < below]
    attempt: int | None = numbers[-1] if numbers else None
    upto: int | None = None
    while attempt is not None:
        saved = {*steps(root, attempt), *(place.step for place in near if place.attempt == attempt)}
        known = sorted(step for step in saved if upto is None or step <= upto)
        if upto is not None and upto not in known:
            known.append(upto)  # named by a child, but gone: that must be told
        for step in reversed(known):
            yield CheckpointName(attempt, step), step == upto
        parent = lineage_of(root, attempt).parent
        attempt, upto = parent or (None, None)


def _of_step(
    root: Path, below: int | None, near: Mapping[CheckpointName, Manifest | str], step: int
) -> Iterator[tuple[CheckpointName, bool]]:
    """Checkpoints of one step: on the way back from the highest attempt, then those beside it, the newest first."""
    seen = set()
    for place, named in candidates(root, below, near):
        if place.step == step:
            seen.add(place)
            yield place, named
    numbers = [number for number in attempts(root) if below is None or number < below]
    beside = {CheckpointName(number, step) for number in numbers if step in steps(root, number)}
    beside |= {place for place in near if place.step == step and place.attempt in numbers}
    for place in sorted(beside - seen, reverse=True):
        yield place, False


def _all_have_chosen(root: Path, below: int | None) -> None:
    """An attempt saves only after it has chosen: one that has saved and has no LINEAGE has lost it."""
    for attempt in attempts(root):
        lacks = (below is None or attempt < below) and not disk.exists(lineage_path(root, attempt))
        if lacks and steps(root, attempt):
            lineage_of(root, attempt)  # raises
            raise _Vanished  # it is there, after all


def lineage_of(root: Path, attempt: int) -> Lineage:
    """Of an attempt that must have one. Without it nobody knows which older checkpoints are dead."""
    try:
        lineage = read_lineage(root, attempt)
    except disk.Damaged as damage:
        lineage, why = None, str(damage)
    else:
        why = "is missing"
    if lineage is None:
        raise Unreadable(
            f"{lineage_path(root, attempt)} {why}: which checkpoint attempt {attempt} began from is not known;"
            f" move attempt-{attempt} away to go on from what is below it"
        )
    return lineage


def examine(root: Path, place: CheckpointName) -> tuple[Manifest | None, str]:
    """A checkpoint's manifest if everything that it lists is as it was written; else the reason."""
    try:
        manifest, why, _ = _examine(root, place, fault_in, named=False)
    except _Vanished:
        return None, "it is gone"
    return manifest, why


def _examine(
    root: Path, place: CheckpointName, look: Look, *, named: bool, near: Manifest | str | None = None
) -> tuple[Manifest | None, str, bool]:
    """The manifest if all is whole, else the reason; and whether its save was finished once."""
    try:
        manifest = read_manifest(root, place) or read_manifest(root, place)  # a server may be wrong once
        if manifest is None and named:
            # A process that removes looks for younger attempts right after this rename, and takes it back if there is
            # one: this one died in between.
            manifest = read_manifest(root, place, removed=True)
    except disk.Damaged as damage:
        return None, f"manifest.json {damage}", True
    if manifest is None and near is not None:
        fault = near if isinstance(near, str) else look(root, near)
        whole = None if isinstance(near, str) or fault is not None else near
        return (whole, "", True) if whole else (None, f"it was not uploaded yet, and {fault}", False)
    if manifest is None:
        return None, _without_manifest(root, place), named or disk.exists(removed_path(root, place))
    fault = look(root, manifest)
    still_there = is_committed(root, place) or (named and disk.exists(removed_path(root, place)))
    lost = fault.removesuffix(MISSING) if fault is not None and fault.endswith(MISSING) else ""
    if fault is not None and (not still_there or (lost and disk.exists(step_path(root, place) / lost))):
        raise _Vanished  # or it was not seen a moment ago, and is there
    return (manifest, "", True) if fault is None else (None, fault, True)


def _without_manifest(root: Path, place: CheckpointName) -> str:
    if disk.exists(removed_path(root, place)):
        return "it was being removed"
    if not disk.exists(step_path(root, place)):
        return "it is gone"
    return "it has no manifest: its save was never finished"


def fault_in(root: Path, manifest: Manifest) -> str | None:
    """The first fault, by name of the file. Many shards are read at once: a large checkpoint must not take hours."""
    names = sorted(manifest.files)
    files = [(far_copy(root, manifest, name), manifest.files[name], name) for name in names]
    known = [(file, expected, name) for file, expected, name in files if file is not None]
    for file, expected, name in known:  # what shows by its size alone is known before anything is read
        if (fault := disk.misfit_of(file, expected, name)) is not None:
            return fault
    if len(known) == 1:
        return disk.fault_of(*known[0][:2], None, known[0][2])
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(READERS, max(1, len(known)))) as pool:
        faults = pool.map(lambda one: disk.fault_of(one[0], one[1], None, one[2]), known)
        return next((fault for fault in faults if fault is not None), None)
