"""Committing a checkpoint: every rank's part is gathered by rank 0, and one manifest makes it a checkpoint.

An attempt that is too late (a younger one has begun) commits nothing; a rank that says that it has failed outweighs all
parts that are there.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event

from sickbay.train import disk
from sickbay.train.errors import CheckpointError, Superseded
from sickbay.train.layout import (
    CheckpointName,
    Manifest,
    RankPart,
    absent_path,
    create_manifest,
    create_part,
    failed_path,
    fenced,
    part_path,
    read_manifest,
    read_part,
    step_path,
)
from sickbay.train.run import Run
from sickbay.train.sharing import allowance

FRESH = 5.0  # seconds: a network client may remember for a minute that a part is not there


class Committing:
    """What the ranks of one run agree on, step by step, in the checkpoint directory."""

    def __init__(self, run: Run, attempt: int, run_id: str) -> None:
        self.directory, self.rank = run.directory, run.rank
        self.world_size, self.patience = run.world_size, run.patience
        self.attempt, self.run = attempt, run_id
        self.giving_up = Event()

    def put(self, place: CheckpointName, part: RankPart) -> None:
        """This rank's part: its files are where they are durable."""
        if not create_part(self.directory, place, self.rank, part._replace(run=self.run)):
            raise CheckpointError(f"another process saves as rank {self.rank} of attempt {self.attempt}")

    def tell_failed(self, place: CheckpointName, *, near: bool = False) -> None:
        """The others must not wait for this rank's part. `near`: nor count on one on its node's own disk."""
        with suppress(OSError):
            disk.make_in(step_path(self.directory, place))
            if near:
                absent_path(self.directory, place, self.rank).touch()
            failed_path(self.directory, place, self.rank).touch()

    def commit(self, place: CheckpointName, sure: Callable[[Manifest], Manifest]) -> None:
        """Rank 0, once its own part is there. `sure`: what it makes sure of when all are; it raises if it is not so."""
        manifest = sure(self.gather(place))
        self.check_fence()
        if not create_manifest(self.directory, manifest):
            self._only_we(place)

    def _only_we(self, place: CheckpointName) -> None:
        """Its manifest is there: from an earlier try of ours, whose answer was an error, or from somebody else."""
        try:
            there = read_manifest(self.directory, place)
        except disk.Damaged:
            there = None
        if there is None or there.run != self.run:
            raise CheckpointError(f"another process has committed {place}")
        disk.sync(step_path(self.directory, place))

    def check_fence(self) -> None:
        """Not what keeps the lineage safe (nothing follows us any more), but a rank that is late should hear of it."""
        there = fenced(self.directory, least=self.attempt)
        if there and there[-1] > self.attempt:
            raise Superseded(
                f"attempt {there[-1]} has begun in {self.directory}: nothing that attempt {self.attempt} saves is read"
            )
        if self.attempt not in there:
            raise CheckpointError(
                f"{self.directory} does not show attempt {self.attempt} any more, which has begun in it: is its disk"
                " still mounted?"
            )

    def gather(self, place: CheckpointName) -> Manifest:
        """Every rank's part, as they arrive. One that says that it has failed outweighs all that are there."""
        files: dict[str, disk.Sum] = {}
        forms: dict[int, str] = {}
        began, pause = time.monotonic(), 0.001
        fresh = began
        for rank in range(self.world_size):
            while not disk.exists(part_path(self.directory, place, rank)):
                written = sum(one.size for one in files.values())
                self._still_hope(place, rank, began, self.patience + allowance(written / max(1, rank)))
                if time.monotonic() - fresh > FRESH:
                    disk.refresh(step_path(self.directory, place))
                    fresh = time.monotonic()
                self.giving_up.wait(pause)
                pause = min(pause * 1.5, 0.05)
            part = self._part(place, rank)
            files |= part.files
            if part.form is not None:
                forms[rank] = part.form
        self._none_failed(place)
        return Manifest(place, self.world_size, files, forms, self.run)

    def _none_failed(self, place: CheckpointName) -> None:
        """Rank 0 hears of every rank, and every rank of rank 0."""
        for rank in range(1, self.world_size) if self.rank == 0 else (0,):
            if disk.exists(failed_path(self.directory, place, rank)):
                raise CheckpointError(f"rank {rank} could not save its shard of {place}; its own error says why")

    def _part(self, place: CheckpointName, rank: int) -> RankPart:
        try:
            part = read_part(self.directory, place, rank)
        except disk.Damaged as damage:
            raise CheckpointError(f"{place} was not saved: rank-{rank}.json {damage}") from None
        if part is None:
            raise CheckpointError(f"{place} was not saved: rank-{rank}.json was there and is gone")
        if part.run != self.run:
            raise CheckpointError(
                f"{place} was not saved: rank {rank} belongs to another run of attempt {place.attempt}"
            )
        return part

    def check_hope(self, place: CheckpointName, rank: int) -> None:
        """Raises if it has become pointless to wait for what that rank does for this save."""
        self._none_failed(place)
        if self.giving_up.is_set():
            raise CheckpointError(f"this script failed before rank {rank} had saved its shard of {place}")
        self.check_fence()  # a later attempt may also have removed what had arrived

    def _still_hope(self, place: CheckpointName, rank: int, began: float, most: float) -> None:
        self.check_hope(place, rank)
        if time.monotonic() - began > most:
            raise CheckpointError(f"rank {rank} did not save its shard of {place} within {most:g} s")
