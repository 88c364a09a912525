"""Checkpoints of one attempt: begun once, saved in the background, committed by rank 0 when every rank is there."""

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from sickbay.train import beats, disk, snapshot
from sickbay.train.beginning import Run, begin
from sickbay.train.errors import CheckpointError, Superseded
from sickbay.train.layout import (
    Manifest,
    Part,
    Place,
    Skipped,
    begun,
    create_manifest,
    create_part,
    failed_path,
    part_path,
    read_manifest,
    read_part,
    shard_name,
    step_path,
)
from sickbay.train.pruning import prune
from sickbay.train.validity import Checkpoint

log = logging.getLogger("sickbay.train")
GRACE = 10.0  # seconds that a save in flight has left when the script fails: other ranks may never come


class Checkpoints:
    """The checkpoints of this attempt.

        with train.Checkpoints() as checkpoints:
            state = checkpoints.load() or {"step": 0, …}
            for step in range(state["step"] + 1, steps + 1):
                …
                checkpoints.save(step, state)   # every rank calls it; returns once the state is copied
                train.heartbeat(step, loss)

    Under Sickbay everything is known from the environment. Elsewhere give a directory; with several ranks also the
    same `attempt` to all of them, a number that no earlier run had. `keep`: how many whole checkpoints stay, None for
    all; those that an attempt began from stay in any case. `patience`: seconds that ranks wait for one another.
    One thread uses it at a time.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        attempt: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        keep: int | None = 3,
        patience: float = 1800.0,
    ) -> None:
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} would remove every checkpoint: write 1 or more, or None to keep all")
        run = Run.from_environment(directory, attempt=attempt, rank=rank, world_size=world_size, patience=patience)
        self.directory, self.rank, self.world_size = run.directory, run.rank, run.world_size
        self.keep, self.patience = keep, patience
        lineage, self.resumed = begin(run)
        self.attempt: int = lineage.attempt
        self.skipped: tuple[Skipped, ...] = lineage.skipped
        self._last: int | None = None
        self._thread: Thread | None = None
        self._error: BaseException | None = None
        self._giving_up = Event()
        self._kept: list[Any] = []
        self._pid = os.getpid()
        self._tell()
        atexit.register(self._at_exit)

    def _tell(self) -> None:
        beats.began(self.attempt, self.rank, self.resumed.step if self.resumed else None, self.skipped)
        if self.rank == 0:
            for one in self.skipped:
                log.warning("skipped %s", one)
            log.info("attempt %d %s", self.attempt, f"goes on from {self.resumed}" if self.resumed else "begins anew")

    def load(self, rank: int | None = None) -> Any:
        """What this rank had saved in the checkpoint that this attempt goes on from; None if there is none.

        With `rank` the shard of that rank. It must be said if the world size has changed: 0 for state that was the
        same on all ranks, or every rank that had a share of what this one needs now.
        """
        if self.resumed is None:
            return None
        chosen, count = self.resumed, self.resumed.world_size
        if rank is None and count != self.world_size:
            raise CheckpointError(
                f"{chosen} was saved by {count} ranks and this run has {self.world_size}: load(rank=0) for state"
                f" that is the same on all ranks, or the shards that you need of 0 to {count - 1}"
            )
        rank = self.rank if rank is None else rank
        if not 0 <= rank < count:
            raise CheckpointError(f"{chosen} has no rank {rank}: it was saved by {count} ranks, write 0 to {count - 1}")
        return self._read(chosen, rank)

    def _read(self, chosen: Checkpoint, rank: int) -> Any:
        place, shard = Place(chosen.attempt, chosen.step), chosen.path / shard_name(rank)
        try:
            manifest = read_manifest(self.directory, place)
        except disk.Damaged as damage:
            raise CheckpointError(f"{chosen} was whole and is no longer: manifest.json {damage}") from None
        if manifest is None or shard.name not in manifest.files:
            gone = "is being removed by another process" if manifest is None else f"has no {shard.name}"
            raise CheckpointError(f"{chosen} {gone}")
        # Looked at again: rank 0 has seen it whole, perhaps through another machine's cache.
        if (fault := disk.fault_of(shard, manifest.files[shard.name])) is not None:
            raise CheckpointError(f"{chosen} was whole and is no longer: {fault}")
        try:
            with shard.open("rb") as file:
                return snapshot.restore(manifest.forms[rank], file)
        except snapshot.NotAShard as why:
            raise CheckpointError(f"cannot load {chosen}/{shard.name}: {why}") from None

    def save(self, step: int, state: object) -> None:
        """Copy the state and write it in the background. An error of the save before is raised here, or by `wait`."""
        self.ready(step)
        shot = snapshot.take(state, self._kept)
        self._kept = shot.kept
        shard = shard_name(self.rank)

        def write(directory: Path) -> Part:
            return Part({shard: disk.write(directory / shard, shot.parts)}, shot.form)

        self.put(step, write)

    def put(self, step: int, write: Callable[[Path], Part]) -> None:
        """For writers of another form (see sickbay.train.torch): `write` makes this rank's files, in the background."""
        self.ready(step)
        self._last = step
        place = Place(self.attempt, step)
        self._thread = Thread(target=self._run, args=(place, write), name=f"sickbay-save-{step}", daemon=True)
        self._thread.start()

    def ready(self, step: int) -> Path:
        """Wait for the save before; the directory into which this step may be saved."""
        self.wait()
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise CheckpointError(f"a step is a whole number from 0 on, not {step!r}")
        if self._last is not None and step <= self._last:
            raise CheckpointError(f"step {step} after step {self._last}: in one attempt steps only go up")
        return step_path(self.directory, Place(self.attempt, step))

    def wait(self) -> None:
        """Until what was saved last is on the disk (on rank 0: committed). Raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        else:
            self._give_up()

    def _at_exit(self) -> None:
        """A script that ends without `wait` has its last save finished all the same."""
        if self._thread is None or os.getpid() != self._pid:
            return
        if getattr(sys, "last_value", None) is not None:
            self._give_up()
            return
        try:
            self.wait()
        except CheckpointError as error:
            log.error("the last checkpoint was not saved: %s", error)  # noqa: TRY400  # one line, not a traceback

    def _give_up(self) -> None:
        if self._thread is not None:
            self._thread.join(GRACE)
            self._giving_up.set()
            self._thread.join(1.0)

    def _run(self, place: Place, write: Callable[[Path], Part]) -> None:
        try:
            self._save(place, write)
        except Exception as error:  # noqa: BLE001  # it is raised again in the thread that trains
            self._error = self._reason(place, error)
            with suppress(OSError):
                failed_path(self.directory, place, self.rank).touch()

    def _reason(self, place: Place, error: Exception) -> Exception:
        """A later attempt may have removed what we were writing: then that is the reason, not a missing file."""
        try:
            self._fenced()
        except CheckpointError as reason:
            return reason
        return _named(place, error)

    def _save(self, place: Place, write: Callable[[Path], Part]) -> None:
        self._fenced()
        disk.make(step_path(self.directory, place))
        part = write(step_path(self.directory, place))
        if not create_part(self.directory, place, self.rank, part):
            raise CheckpointError(f"another process saves as rank {self.rank} of attempt {self.attempt}")
        if self.rank != 0:
            return
        manifest = self._gather(place)
        if not create_manifest(self.directory, manifest):
            raise CheckpointError(f"another process has committed {place}")
        if self.keep is not None:
            prune(self.directory, place, self.keep)

    def _fenced(self) -> None:
        """Not what keeps the lineage safe (nothing follows us any more), but who is too late should hear of it."""
        later = [number for number in begun(self.directory) if number > self.attempt]
        if later:
            raise Superseded(
                f"attempt {later[-1]} has begun in {self.directory}: nothing that attempt {self.attempt} saves is read"
            )

    def _gather(self, place: Place) -> Manifest:
        """Every rank's part, as they arrive."""
        files: dict[str, disk.Sum] = {}
        forms: dict[int, str] = {}
        deadline, pause = time.monotonic() + self.patience, 0.001
        for rank in range(self.world_size):
            while not part_path(self.directory, place, rank).exists():
                self._still_hope(place, rank, deadline)
                self._giving_up.wait(pause)
                pause = min(pause * 1.5, 0.05)
            part = self._part(place, rank)
            files |= part.files
            if part.form is not None:
                forms[rank] = part.form
        return Manifest(place, self.world_size, files, forms)

    def _part(self, place: Place, rank: int) -> Part:
        try:
            part = read_part(self.directory, place, rank)
        except disk.Damaged as damage:
            raise CheckpointError(f"{place} was not saved: rank-{rank}.json {damage}") from None
        if part is None:
            raise CheckpointError(f"{place} was not saved: rank-{rank}.json was there and is gone")
        return part

    def _still_hope(self, place: Place, rank: int, deadline: float) -> None:
        if failed_path(self.directory, place, rank).exists():
            raise CheckpointError(f"rank {rank} could not save its shard of {place}; its own error says why")
        if self._giving_up.is_set():
            raise CheckpointError(f"this script failed before rank {rank} had saved its shard of {place}")
        self._fenced()  # a later attempt may also have removed what had arrived
        if time.monotonic() > deadline:
            raise CheckpointError(f"rank {rank} did not save its shard of {place} within {self.patience:g} s")


def _named(place: Place, error: Exception) -> Exception:
    """One line; what the system said stays as the cause."""
    if isinstance(error, CheckpointError):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    named = CheckpointError(f"{place} was not saved: {why}")
    named.__cause__ = error
    return named
