"""Which checkpoint to go on from.

The highest attempt that has begun decides: its own checkpoints, newest first, then exactly the one that it began
from, and below that one what its parent attempt had saved earlier, and so on. What an older attempt commits after a
younger one has chosen its parent is on nobody's way, so it is never found, however whole it is.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.errors import Unreadable
from sickbay.train.layout import (
    Lineage,
    Manifest,
    Place,
    Skipped,
    begun,
    lineage_path,
    read_lineage,
    read_manifest,
    removed_path,
    step_path,
    steps,
)

READERS = 16  # checksums of shards that are computed at once


class Checkpoint(NamedTuple):
    """A whole checkpoint, and the newer ones that were not."""

    attempt: int
    step: int
    skipped: tuple[Skipped, ...]
    world_size: int
    path: Path

    def __str__(self) -> str:
        return str(Place(self.attempt, self.step))


class Survey(NamedTuple):
    chosen: Checkpoint | None
    skipped: tuple[Skipped, ...]


def latest_valid(directory: str | os.PathLike[str]) -> Checkpoint | None:
    """The newest checkpoint that is whole; None: there is none. Raises Unreadable if it could not be looked at."""
    return survey(Path(directory)).chosen


def survey(root: Path, below: int | None = None) -> Survey:
    """The newest whole checkpoint of the attempts (below a number), and what was passed over on the way to it."""
    try:
        return _survey(root, below)
    except OSError as error:
        raise disk.unreadable(Path(error.filename or root), error) from error


def _survey(root: Path, below: int | None) -> Survey:
    skipped: list[Skipped] = []
    for place in candidates(root, below):
        manifest, why = examine(root, place)
        if manifest is None:
            skipped.append(Skipped(*place, why))
            continue
        chosen = Checkpoint(*place, tuple(skipped), manifest.world_size, step_path(root, place))
        return Survey(chosen, tuple(skipped))
    return Survey(None, tuple(skipped))


def candidates(root: Path, below: int | None = None) -> Iterator[Place]:
    """Every checkpoint, whole or not, on the way back from the highest attempt; newest first."""
    numbers = [number for number in begun(root) if below is None or number < below]
    attempt: int | None = numbers[-1] if numbers else None
    upto: int | None = None
    while attempt is not None:
        known = [step for step in steps(root, attempt) if upto is None or step <= upto]
        if upto is not None and upto not in known:
            known.append(upto)  # named by a child, but gone: that must be told
        for step in reversed(known):
            yield Place(attempt, step)
        parent = lineage_of(root, attempt).parent
        attempt, upto = parent or (None, None)


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


def examine(root: Path, place: Place) -> tuple[Manifest | None, str]:
    """A checkpoint's manifest if everything that it lists is as it was written; else the reason."""
    try:
        manifest = read_manifest(root, place)
    except disk.Damaged as damage:
        return None, f"manifest.json {damage}"
    if manifest is None:
        return None, _without_manifest(root, place)
    fault = _fault_in(step_path(root, place), manifest)
    return (manifest, "") if fault is None else (None, fault)


def _without_manifest(root: Path, place: Place) -> str:
    if removed_path(root, place).exists():
        return "it was being removed"
    if not step_path(root, place).exists():
        return "it is gone"
    return "it has no manifest: its save was never finished"


def _fault_in(directory: Path, manifest: Manifest) -> str | None:
    """The first fault, by name of the file. Many shards are read at once: a large checkpoint must not take hours."""
    names = sorted(manifest.files)
    if len(names) == 1:
        return disk.fault_of(directory / names[0], manifest.files[names[0]])
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(READERS, max(1, len(names)))) as pool:
        faults = pool.map(lambda name: disk.fault_of(directory / name, manifest.files[name]), names)
        return next((fault for fault in faults if fault is not None), None)
