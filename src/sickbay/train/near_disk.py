"""Staging directory of one node: whose it is, which whole parts of checkpoints are there, and how they are removed."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.errors import Unreadable
from sickbay.train.layout import (
    CheckpointName,
    RankPart,
    attempts,
    marker_path,
    part_path,
    read_part,
    shard_name,
    step_path,
    steps,
)

log = logging.getLogger("sickbay.train")


class NearPart(NamedTuple):
    """One rank's part of a checkpoint on this node."""

    place: CheckpointName
    rank: int
    part: RankPart


def root_of(where: Path, directory: Path) -> Path:
    """Two jobs that share a node's disk do not meet there, also where both call their directory by one name."""
    try:
        marker = disk.read(marker_path(directory)) or {}
    except disk.Damaged as damage:
        raise Unreadable(
            f"{marker_path(directory)} {damage}: what is on the nodes' own disks is found by its id; restore it"
        ) from None
    return where / hashlib.sha256(f"{marker.get('id', '')} {directory}".encode()).hexdigest()[:16]


def held_in(root: Path, below: int) -> list[NearPart]:
    """All whole parts of attempts below a number. What cannot be read is not held: there are other copies."""
    found: list[NearPart] = []
    try:
        for attempt in attempts(root):
            if attempt < below:
                found += _held_of(root, attempt)
    except Unreadable as why:
        log.warning("what is near here is passed over: %s", why)
    return found


def _held_of(root: Path, attempt: int) -> Iterator[NearPart]:
    for step in steps(root, attempt):
        place = CheckpointName(attempt, step)
        for path in sorted(step_path(root, place).glob("rank-*.json")):
            try:
                rank = int(path.stem.removeprefix("rank-"))
                part = read_part(root, place, rank)
                if part is None or any(
                    disk.misfit_of(step_path(root, place) / name, one) for name, one in part.files.items()
                ):
                    continue
            except (ValueError, Unreadable) as why:  # a damaged one is a ValueError, too
                log.warning("%s is no copy of anything: %s", path, why)
                continue
            yield NearPart(place, rank, part)


def drop(root: Path, place: CheckpointName, rank: int) -> None:
    """The part first: without it the shard is nothing."""
    with suppress(OSError):
        part_path(root, place, rank).unlink(missing_ok=True)
        (step_path(root, place) / shard_name(rank)).unlink(missing_ok=True)
        step_path(root, place).rmdir()  # by the last rank that comes
