"""Asynchronous checkpoints of one attempt: begun once, saved in the background, committed by rank 0 for all ranks.

A save that fails is tried again, then told; the training goes on until too many in a row have failed.
"""

import atexit
import logging
import os
import sys
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sickbay.train import beats, disk, snapshot
from sickbay.train.beginning import Begun, begin
from sickbay.train.committing import Committing
from sickbay.train.errors import CheckpointError
from sickbay.train.layout import CheckpointName, Manifest, RankPart, Skipped, shard_name, step_path
from sickbay.train.pruning import clear, prune
from sickbay.train.resuming import Resumption
from sickbay.train.run import Run, Tiers
from sickbay.train.saves import Saves, Sure, Write
from sickbay.train.sharing import telling
from sickbay.train.uploads import Uploads

log = logging.getLogger("sickbay.train")


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
    then this one is left out. `failures`: how many saves in a row may fail before the training is told by an error, and
    that over ten minutes at least (0: at once). `anew`: begin at step 0, whatever is there. One thread uses it.

    `near`: a directory on each node's own disk, to which saves go first; they are uploaded in the background. `far`: an
    object store (s3://…) that holds the files instead of the directory. `copies`: whether what is near is copied to a
    second node.
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
        near: str | os.PathLike[str] | None = None,
        far: str | None = None,
        copies: bool | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise CheckpointError(f"keep={keep} would remove every checkpoint: write 1 or more, or None to keep all")
        run = Run.from_environment(
            directory,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            patience=patience,
            anew=anew,
            tiers=Tiers.from_environment(near, far, copies=copies),
        )
        self.directory, self.rank, self.world_size = run.directory, run.rank, run.world_size
        self.keep, self.patience, self.budget, self.failures = keep, patience, budget, failures
        begun = begin(run)
        lineage, self._near, self.far = begun.lineage, begun.near, run.tiers.far
        self.resumed = begun.resumed
        self._resumption = Resumption(run, begun)
        self.attempt: int = lineage.attempt
        self.skipped: tuple[Skipped, ...] = lineage.skipped
        self._of = lineage.of
        self.at = Committing(run, lineage.attempt, lineage.run)
        self._verified = {lineage.parent} if lineage.parent else set[CheckpointName]()
        self._last: int | None = None
        self._kept: list[Any] = []
        self._pid = os.getpid()
        self._tell()
        if self.rank == 0:
            clear(self.directory, self.attempt)
        self._saves = Saves(self.at, self._begin_uploads(begun), self._committed)
        atexit.register(self._at_exit)

    def _begin_uploads(self, begun: Begun) -> Uploads | None:
        if self._near is None:
            return None
        return Uploads(
            self.at,
            self._near,
            self.far,
            resumed=begun.manifest,
            committed=self._committed,
            drops_older=not (begun.lineage.anew or begun.lineage.asked),  # who began so on wish may want to go back
        )

    def _tell(self) -> None:
        if beats.tells_of(str(self.directory)):
            resumed = self.resumed.step if self.resumed else None
            beats.began(self.attempt, self.rank, resumed, self.skipped, self._of)
        if self.rank == 0:
            for one in self.skipped:
                log.warning("skipped %s", one)
            of = f" of job {self._of}" if self._of else ""
            begins = f"goes on from {self.resumed}{of}" if self.resumed else "begins anew"
            log.info("attempt %d %s", self.attempt, begins)

    def load(self, rank: int | None = None) -> Any:
        """What this rank had saved in the checkpoint that this attempt goes on from; None if there is none.

        With `rank` the shard of that rank. It must be said if the world size has changed: 0 for state that was the
        same on all ranks, or every rank that had a share of what this one needs now.
        """
        return self._resumption.load(rank)

    def manifest(self) -> Manifest:
        """Of what this attempt goes on from, as it is now."""
        return self._resumption.manifest()

    def save(self, step: int, state: object) -> bool:
        """Copy the state and write it in the background.

        False: it is left out, as the save before has not ended, or as there is no memory or no thread for it.

        What has failed is tried again, and told; after too many failures in a row the last one is raised here.
        """
        if self.ready(step) is None:
            return False
        self._resumption.forget()
        try:
            shot = snapshot.take(state, self._kept)
        except MemoryError as error:  # none for the copy, now
            self._last = step
            self._saves.cannot_begin(CheckpointName(self.attempt, step), error)
            return False
        self._kept = shot.kept
        self._saves.size = sum(len(part) for part in shot.parts)
        shard = shard_name(self.rank)
        tries = count()

        def write(directory: Path) -> RankPart:
            if next(tries):
                (directory / shard).unlink(missing_ok=True)  # our own, of a try that failed after it
            progress = telling(f"saving {CheckpointName(self.attempt, step)}", self._saves.size)
            return RankPart({shard: disk.write(directory / shard, shot.parts, progress)}, shot.form)

        return self.put(step, write)

    def put(self, step: int, write: Write, sure: Sure | None = None) -> bool:
        """For writers of another form (see sickbay.train.torch): `write` makes this rank's files, in the background.

        `sure`: what rank 0 makes sure of when all ranks have, right before it commits; it raises if it is not so. All
        ranks then write into one directory, the checkpoint directory, also where others are near first.
        """
        if self.ready(step, shared=sure is not None) is None:
            return False
        self._last = step
        return self._saves.start(CheckpointName(self.attempt, step), write, sure)

    def ready(self, step: int, *, shared: bool = False, patiently: bool = False) -> Path | None:
        """The directory into which this step may be saved. None: the save before has not ended within the budget.

        `shared`: the same for all ranks. `patiently`: wait for it however long it takes, as where all ranks save
        together none can be left out alone.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise CheckpointError(f"a step is a whole number from 0 on, not {step!r}")
        if self._last is not None and step <= self._last:
            raise CheckpointError(f"step {step} after step {self._last}: in one attempt steps only go up")
        place = CheckpointName(self.attempt, step)
        if not self._saves.ends_within(None if patiently else self.budget):
            self.leave_out(step, f"{place} is left out: the save before it has not ended within {self.budget:g} s")
            return None
        self._saves.raise_after(self.failures)
        uploads = self._saves.uploads
        if uploads is None or shared:
            return self.path_of(step, shared=shared)
        if uploads.hopeless(self.failures):
            uploads.raise_last()
        if (resumed := uploads.saved_again) is not None and step <= resumed:
            if step < resumed:
                what = f"step {step} after step {resumed}, which attempt {self.attempt} goes on from and saves again"
                raise CheckpointError(f"{what}: steps only go up")
            log.warning("%s is left out: it is what this attempt went on from, and is being uploaded", place)
            return None
        return self.path_of(step)

    def path_of(self, step: int, *, shared: bool = False) -> Path:
        """Into which a step is written."""
        root = self.directory if self._near is None or shared else self._near.root
        return step_path(root, CheckpointName(self.attempt, step))

    def expect(self, size: int) -> None:
        """So many bytes this rank reads or writes for the save that is under way: how long it may take at the end."""
        self._saves.size = size

    def tell_failed(self, step: int, why: str) -> None:
        """People hear of it by the heartbeat."""
        self._saves.tell_failed(step, why)

    def leave_out(self, step: int, why: str) -> None:
        """This rank does not save this step, and the others must not wait for its part."""
        self._last = step
        log.warning("%s", why)
        self._saves.leave_out(CheckpointName(self.attempt, step), why)

    def wait(self) -> None:
        """Until what was saved last is on the disk (on rank 0: committed). Raises what went wrong with it.

        What goes to the nodes' own disks first is waited for until it is uploaded.
        """
        self._saves.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:  # a child that was forked within the block
            return
        if error is None:
            self.wait()
            self._saves.close(leave=False)
        elif isinstance(error, SystemExit):  # it ends as it wants to
            self._at_exit()
        else:
            self._saves.give_up()
        beats.ended(str(self.directory))
        atexit.unregister(self._at_exit)  # it would keep all of this in memory
        self._kept = []

    def _at_exit(self) -> None:
        """A script that ends without `wait` has its last save finished all the same."""
        if self._saves.is_over or os.getpid() != self._pid:
            return
        if getattr(sys, "last_value", None) is not None:
            self._saves.give_up()
        else:
            self._saves.finish()

    def _committed(self, place: CheckpointName) -> None:
        self._verified.add(place)
        if beats.tells_of(str(self.directory)):
            beats.saved(place.step)
        if self.keep is not None:
            prune(self.directory, place, self.keep, self._verified)
