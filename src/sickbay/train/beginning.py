"""How an attempt begins: one LINEAGE, created exclusively by rank 0 and read by all the others."""

import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.errors import AlreadyBegun, CheckpointError, Superseded, Unreadable
from sickbay.train.layout import (
    Lineage,
    Place,
    attempt_path,
    begun,
    create_lineage,
    lineage_path,
    manifest_path,
    read_lineage,
    read_manifest,
    step_path,
)
from sickbay.train.validity import Checkpoint, survey

log = logging.getLogger("sickbay.train")


class Run(NamedTuple):
    """Who we are."""

    directory: Path
    attempt: int | None  # None: the next free number
    rank: int
    world_size: int
    patience: float

    @classmethod
    def from_environment(
        cls,
        directory: str | os.PathLike[str] | None,
        *,
        attempt: int | None,
        rank: int | None,
        world_size: int | None,
        patience: float,
    ) -> "Run":
        where = directory or os.environ.get("SICKBAY_CHECKPOINT_DIR")
        if not where:
            raise CheckpointError("no checkpoint directory: set SICKBAY_CHECKPOINT_DIR, or write Checkpoints('DIR')")
        run = cls(
            Path(where).absolute(),
            _number("SICKBAY_ATTEMPT", attempt, least=1),
            _number("RANK", rank, least=0) or 0,
            _number("WORLD_SIZE", world_size, least=1) or 1,
            patience,
        )
        if run.rank >= run.world_size:
            raise CheckpointError(f"rank {run.rank} of {run.world_size}: ranks go from 0 to {run.world_size - 1}")
        if run.attempt is None and run.world_size > 1:
            raise CheckpointError(
                f"{run.world_size} ranks must agree which attempt this is: give all of them the same SICKBAY_ATTEMPT"
                " (or attempt=), a number that no earlier run had"
            )
        return run


def _number(name: str, given: int | None, *, least: int) -> int | None:
    value: object = os.environ.get(name) if given is None else given
    if value is None or value == "":
        return None
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if number < least:
        raise CheckpointError(f"{name} is {value!r}: write a whole number from {least} on")
    return number


def begin(run: Run) -> tuple[Lineage, Checkpoint | None]:
    """This attempt's lineage, the same for all its ranks, and the checkpoint that it goes on from."""
    try:
        lineage = _lead(run) if run.rank == 0 else _follow(run)
    except OSError as error:
        where = error.filename or run.directory
        raise Unreadable(f"cannot use {where} for checkpoints: {error.strerror}") from error
    return lineage, _parent(run.directory, lineage)


def _lead(run: Run) -> Lineage:
    while True:
        numbers = begun(run.directory)
        highest = numbers[-1] if numbers else 0
        number = run.attempt or _free(run.directory, highest + 1)
        if number < highest:
            raise _superseded(run.directory, number, highest)
        if number != highest:
            lineage = _began(run, number)
            if lineage is not None:
                return lineage
        if run.attempt is not None:
            raise AlreadyBegun(
                f"attempt {number} has already begun in {run.directory}: every run needs a number of its own"
                " (a launcher must not restart ranks within an attempt: torchrun --max-restarts=0)"
            )


def _free(directory: Path, number: int) -> int:
    """A number whose claim is there but whose LINEAGE is not belongs to one who died between the two."""
    while disk.claim_of(lineage_path(directory, number)).exists():
        number += 1
    return number


def _began(run: Run, number: int) -> Lineage | None:
    """None: another was faster."""
    found = survey(run.directory, below=number)
    if number > 1 and not begun(run.directory):
        log.warning("attempt %d finds no earlier attempt in %s: is it the same disk everywhere?", number, run.directory)
    parent = found.chosen and Place(found.chosen.attempt, found.chosen.step)
    disk.make(attempt_path(run.directory, number))
    lineage = Lineage(number, parent, run.world_size, found.skipped)
    if not create_lineage(run.directory, lineage):
        return None
    highest = begun(run.directory)[-1]
    if highest > number:
        raise _superseded(run.directory, number, highest)
    if parent is not None and not manifest_path(run.directory, parent).exists():
        # The other half of what pruning does.
        raise CheckpointError(f"{parent} was removed by another process while attempt {number} began: start once more")
    return lineage


def _follow(run: Run) -> Lineage:
    """Wait until rank 0 has chosen."""
    number, pause = run.attempt or 1, 0.001
    deadline = time.monotonic() + run.patience
    while (lineage := _read(run.directory, number)) is None:
        later = [one for one in begun(run.directory) if one > number]
        if later:
            raise _superseded(run.directory, number, later[-1])
        if time.monotonic() > deadline:
            raise CheckpointError(
                f"rank 0 did not begin attempt {number} in {run.directory} within {run.patience:g} s;"
                " do all ranks see the same directory?"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    later = [one for one in begun(run.directory) if one > number]
    if later:
        raise _superseded(run.directory, number, later[-1])
    if lineage.world_size != run.world_size:
        raise CheckpointError(
            f"rank 0 began attempt {number} with {lineage.world_size} ranks, rank {run.rank} counts {run.world_size}:"
            " WORLD_SIZE must be the same for all"
        )
    return lineage


def _read(directory: Path, number: int) -> Lineage | None:
    try:
        return read_lineage(directory, number)
    except disk.Damaged as damage:
        raise Unreadable(f"{lineage_path(directory, number)} {damage}") from None


def _parent(directory: Path, lineage: Lineage) -> Checkpoint | None:
    """As the LINEAGE names it. Not checked once more: rank 0 has read all of it, and `load` reads its share again."""
    if lineage.parent is None:
        return None
    try:
        manifest = read_manifest(directory, lineage.parent)
    except disk.Damaged as damage:
        raise CheckpointError(f"{lineage.parent} was whole and is no longer: manifest.json {damage}") from None
    if manifest is None:
        raise CheckpointError(
            f"{lineage.parent}, from which attempt {lineage.attempt} goes on, is gone: start once more"
        )
    return Checkpoint(*lineage.parent, lineage.skipped, manifest.world_size, step_path(directory, lineage.parent))


def _superseded(directory: Path, number: int, later: int) -> Superseded:
    return Superseded(f"attempt {later} has begun in {directory}: attempt {number} is over")
