"""Checkpoints of one attempt: begun once, saved in the background, committed by rank 0 when every rank is there.

A save that fails is tried again, then told; the training goes on until too many in a row have failed.
"""

import atexit
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
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
    create_manifest,
    create_part,
    failed_path,
    fenced,
    part_path,
    read_manifest,
    read_part,
    shard_name,
    step_path,
)
from sickbay.train.pruning import clear, prune
from sickbay.train.sharing import CorruptShard, allowance, read_shard, telling
from sickbay.train.validity import Checkpoint

log = logging.getLogger("sickbay.train")
AT_EXIT = 60.0  # seconds that a script which ends without `wait` gives its last save, besides what its bytes take
GRACE = 10.0  # seconds that a save in flight has left when the script fails: other ranks may never come
AGAIN = (1.0, 5.0, 20.0)  # seconds after which a save that failed is tried again, before it is given up


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
    all; as many that attempts began from stay, too. `patience`: seconds that ranks wait for one another, and so much
    longer as what they read or write takes at 20 MB/s. `budget`: seconds that a `save` waits for the one before it;
    then this one is left out. `failures`: how many saves in a row may fail before the training is told by an error.
    `anew`: begin at step 0, whatever is there. One thread uses it at a time.
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
        budget: float = 600.0,
        failures: int = 3,
        anew: bool = False,
    ) -> None:
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} would remove every checkpoint: write 1 or more, or None to keep all")
        run = Run.from_environment(
            directory, attempt=attempt, rank=rank, world_size=world_size, patience=patience, anew=anew
        )
        self.directory, self.rank, self.world_size = run.directory, run.rank, run.world_size
        self.keep, self.patience, self.budget, self.failures = keep, patience, budget, failures
        lineage, self.resumed, self._loaded = begin(run)
        self.attempt: int = lineage.attempt
        self.skipped: tuple[Skipped, ...] = lineage.skipped
        self._run_id = lineage.run
        self._verified = {Place(*lineage.parent)} if lineage.parent else set[Place]()
        self._last: int | None = None
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._size = 0  # bytes of the last save of this rank
        self._failed = 0  # saves in a row
        self._hurry = Event()  # the next save waits, or the end: nothing is tried again
        self._giving_up = Event()
        self._kept: list[Any] = []
        self._pid = os.getpid()
        self._tell()
        if self.rank == 0:
            clear(self.directory, self.attempt)
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
        held, self._loaded = self._loaded, {}  # read when this attempt began; asked for now, or not at all
        if rank in held:
            return held.pop(rank)
        place, shard = Place(chosen.attempt, chosen.step), chosen.path / shard_name(rank)
        try:
            manifest = read_manifest(self.directory, place)
        except disk.Damaged as damage:
            raise CheckpointError(f"{chosen} was whole and is no longer: manifest.json {damage}") from None
        if manifest is None or shard.name not in manifest.files:
            gone = "is being removed by another process" if manifest is None else f"has no {shard.name}"
            raise CheckpointError(f"{chosen} {gone}")
        try:
            progress = telling(f"loading {chosen}", manifest.files[shard.name].size)
            return read_shard(shard, manifest.files[shard.name], manifest.forms[rank], progress)
        except CorruptShard as fault:
            raise CheckpointError(f"{chosen} was whole and is no longer: {fault}") from None
        except snapshot.NotAShard as why:
            raise CheckpointError(f"cannot load {chosen}/{shard.name}: {why}") from None

    def save(self, step: int, state: object) -> bool:
        """Copy the state and write it in the background. False: it is left out, as the save before has not ended.

        What has failed is tried again, and told; after too many failures in a row the last one is raised here.
        """
        if self.ready(step) is None:
            return False
        self._loaded = {}
        shot = snapshot.take(state, self._kept)
        self._kept = shot.kept
        self._size = sum(len(part) for part in shot.parts)
        shard = shard_name(self.rank)
        tries = count()

        def write(directory: Path) -> Part:
            if next(tries):
                (directory / shard).unlink(missing_ok=True)  # our own, of a try that failed after it
            progress = telling(f"saving {Place(self.attempt, step)}", self._size)
            return Part({shard: disk.write(directory / shard, shot.parts, progress)}, shot.form)

        return self.put(step, write)

    def put(self, step: int, write: Callable[[Path], Part]) -> bool:
        """For writers of another form (see sickbay.train.torch): `write` makes this rank's files, in the background."""
        if self.ready(step) is None:
            return False
        self._last = step
        self._hurry.clear()
        place = Place(self.attempt, step)
        self._thread = Thread(target=self._run, args=(place, write), name=f"sickbay-save-{step}", daemon=True)
        self._thread.start()
        return True

    def ready(self, step: int) -> Path | None:
        """The directory into which this step may be saved. None: the save before has not ended within the budget."""
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise CheckpointError(f"a step is a whole number from 0 on, not {step!r}")
        if self._last is not None and step <= self._last:
            raise CheckpointError(f"step {step} after step {self._last}: in one attempt steps only go up")
        place = Place(self.attempt, step)
        if self._thread is not None:
            self._hurry.set()
            self._thread.join(self.budget)
            if self._thread.is_alive():
                self._leave_out(place)
                return None
            self._thread = None
        if self._failed > self.failures or isinstance(self._error, Superseded):
            self._raise()
        return step_path(self.directory, place)

    def _leave_out(self, place: Place) -> None:
        """The others must not wait for this rank's part."""
        self._last = place.step
        why = f"{place} is left out: the save before it has not ended within {self.budget:g} s"
        log.warning("%s", why)
        beats.save_failed(place.step, why)
        with suppress(OSError):
            disk.make_in(step_path(self.directory, place))
            failed_path(self.directory, place, self.rank).touch()

    def wait(self) -> None:
        """Until what was saved last is on the disk (on rank 0: committed). Raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._failed = 0
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
        self._hurry.set()
        self._thread.join(AT_EXIT + allowance(self._size))
        if self._thread.is_alive():  # others may have ended before their part was written
            self._giving_up.set()
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
        for pause in (*AGAIN, None):
            try:
                self._save(place, write)
            except Exception as error:  # noqa: BLE001  # it is told, and raised in the thread that trains
                why = self._reason(place, error)
                self._error = why
                log.warning("%s", why)
                if pause is None or isinstance(why, Superseded) or not isinstance(error, OSError):
                    break
                if self._hurry.wait(pause) or self._giving_up.is_set():
                    break
            else:
                self._error, self._failed = None, 0
                return
        self._failed += 1
        beats.save_failed(place.step, str(self._error))
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
        disk.make_in(step_path(self.directory, place))
        if not part_path(self.directory, place, self.rank).exists():  # else it was written by an earlier try
            part = write(step_path(self.directory, place))._replace(run=self._run_id)
            if not create_part(self.directory, place, self.rank, part):
                raise CheckpointError(f"another process saves as rank {self.rank} of attempt {self.attempt}")
        if self.rank != 0:
            return
        manifest = self._gather(place)
        self._fenced()
        if not create_manifest(self.directory, manifest):
            self._only_we(place)
        self._verified.add(place)
        beats.saved(place.step)
        if self.keep is not None:
            prune(self.directory, place, self.keep, self._verified)

    def _only_we(self, place: Place) -> None:
        """Its manifest is there: from an earlier try of ours, whose answer was an error, or from somebody else."""
        try:
            there = read_manifest(self.directory, place)
        except disk.Damaged:
            there = None
        if there is None or there.run != self._run_id:
            raise CheckpointError(f"another process has committed {place}")
        disk.sync(step_path(self.directory, place))

    def _fenced(self) -> None:
        """Not what keeps the lineage safe (nothing follows us any more), but who is too late should hear of it."""
        there = fenced(self.directory)
        if there and there[-1] > self.attempt:
            raise Superseded(
                f"attempt {there[-1]} has begun in {self.directory}: nothing that attempt {self.attempt} saves is read"
            )
        if self.attempt not in there:
            raise CheckpointError(
                f"{self.directory} does not show attempt {self.attempt} any more, which has begun in it: is its disk"
                " still mounted?"
            )

    def _gather(self, place: Place) -> Manifest:
        """Every rank's part, as they arrive. One that says that it has failed outweighs all that are there."""
        files: dict[str, disk.Sum] = {}
        forms: dict[int, str] = {}
        began, pause = time.monotonic(), 0.001
        for rank in range(self.world_size):
            while not disk.exists(part_path(self.directory, place, rank)):
                written = sum(one.size for one in files.values())
                self._still_hope(place, rank, began, self.patience + allowance(written / max(1, rank)))
                self._giving_up.wait(pause)
                pause = min(pause * 1.5, 0.05)
            part = self._part(place, rank)
            files |= part.files
            if part.form is not None:
                forms[rank] = part.form
        self._none_failed(place)
        return Manifest(place, self.world_size, files, forms, self._run_id)

    def _none_failed(self, place: Place) -> None:
        for rank in range(1, self.world_size):
            if disk.exists(failed_path(self.directory, place, rank)):
                raise CheckpointError(f"rank {rank} could not save its shard of {place}; its own error says why")

    def _part(self, place: Place, rank: int) -> Part:
        try:
            part = read_part(self.directory, place, rank)
        except disk.Damaged as damage:
            raise CheckpointError(f"{place} was not saved: rank-{rank}.json {damage}") from None
        if part is None:
            raise CheckpointError(f"{place} was not saved: rank-{rank}.json was there and is gone")
        if part.run != self._run_id:
            raise CheckpointError(
                f"{place} was not saved: rank {rank} belongs to another run of attempt {place.attempt}"
            )
        return part

    def _still_hope(self, place: Place, rank: int, began: float, most: float) -> None:
        self._none_failed(place)
        if self._giving_up.is_set():
            raise CheckpointError(f"this script failed before rank {rank} had saved its shard of {place}")
        self._fenced()  # a later attempt may also have removed what had arrived
        if time.monotonic() - began > most:
            raise CheckpointError(f"rank {rank} did not save its shard of {place} within {most:g} s")


def _named(place: Place, error: Exception) -> Exception:
    """One line; what the system said stays as the cause."""
    if isinstance(error, CheckpointError):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    named = CheckpointError(f"{place} was not saved: {why}")
    named.__cause__ = error
    return named
