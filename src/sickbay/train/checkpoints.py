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
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from sickbay.train import beats, disk, snapshot
from sickbay.train.beginning import begin
from sickbay.train.committing import Committing
from sickbay.train.errors import CheckpointError, Superseded, may_pass
from sickbay.train.layout import (
    Manifest,
    Part,
    Place,
    Skipped,
    part_path,
    read_manifest,
    shard_name,
    step_path,
)
from sickbay.train.pruning import clear, prune
from sickbay.train.resuming import reader_of
from sickbay.train.run import Run, Tiers
from sickbay.train.sharing import CorruptShard, allowance, copies_of, read_any, telling
from sickbay.train.uploads import Uploads
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
        lineage, self.resumed, self._loaded = begun.lineage, begun.resumed, begun.loaded
        self._manifest, self._near, self.far = begun.manifest, begun.near, begun.far
        self.attempt: int = lineage.attempt
        self.skipped: tuple[Skipped, ...] = lineage.skipped
        self.at = Committing(run, lineage.attempt, lineage.run)
        self._verified = {Place(*lineage.parent)} if lineage.parent else set[Place]()
        self._last: int | None = None
        self._thread: Thread | None = None
        self._error: Exception | None = None
        self._size = 0  # bytes of the last save of this rank
        self._failed = 0  # saves in a row
        self._hurry = Event()  # the next save waits, or the end: nothing is tried again
        self._kept: list[Any] = []
        self._pid = os.getpid()
        self._tell()
        if self.rank == 0:
            clear(self.directory, self.attempt)
        self._uploads: Uploads | None = None
        if self._near is not None:
            self._uploads = Uploads(
                self.at,
                self._near,
                self.far,
                self.rank,
                resumed=self._manifest,
                committed=self._committed,
                drops_older=not lineage.anew,  # who began anew on wish may want to go back
            )
        atexit.register(self._at_exit)

    def _tell(self) -> None:
        if beats.tells_of(str(self.directory)):
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
            self._ours()
            raise CheckpointError(
                f"{chosen} was saved by {count} ranks and this run has {self.world_size}: load(rank=0) for state"
                f" that is the same on all ranks, or the shards that you need of 0 to {count - 1}"
            )
        rank = self.rank if rank is None else rank
        if not 0 <= rank < count:
            raise CheckpointError(f"{chosen} has no rank {rank}: it was saved by {count} ranks, write 0 to {count - 1}")
        return self._read(chosen, rank)

    def manifest(self) -> Manifest:
        """Of what this attempt goes on from, as it is now."""
        chosen = self.resumed
        if chosen is None or self._manifest is None:
            raise CheckpointError("there is no checkpoint that this attempt goes on from")
        try:
            manifest = read_manifest(self.directory, self._manifest.place)
        except disk.Damaged as damage:
            raise CheckpointError(f"{chosen} was whole and is no longer: manifest.json {damage}") from None
        if manifest is None and self._manifest.far is None:
            return self._manifest
        if manifest is None:
            raise CheckpointError(f"{chosen} is being removed by another process")
        return manifest

    def _ours(self) -> Manifest:
        """The manifest of one that `save` has made."""
        manifest = self.manifest()
        if not manifest.forms:
            how = reader_of(manifest)
            raise CheckpointError(f"{self.resumed} was not saved with checkpoints.save: read it with {how}")
        return manifest

    def _read(self, chosen: Checkpoint, rank: int) -> Any:
        held, self._loaded = self._loaded, {}  # read when this attempt began; asked for now, or not at all
        if rank in held:
            return held.pop(rank)
        manifest, name = self._ours(), shard_name(rank)
        if name not in manifest.files:
            raise CheckpointError(f"{chosen} has no {name}")
        progress = telling(f"loading {chosen}", manifest.files[name].size)
        read = partial(read_any, expected=manifest.files[name], form=manifest.forms[rank], progress=progress)
        try:
            try:
                return read(copies_of(self.directory, manifest, name, self._near))
            except CorruptShard:  # what was near only goes when this attempt has saved it again
                again = read_manifest(self.directory, Place(self.attempt, chosen.step))
                if manifest.far is not None or again is None or again.files != manifest.files:
                    raise
                return read(copies_of(self.directory, again, name, None))
        except CorruptShard as fault:
            raise CheckpointError(f"{chosen} was whole and is no longer: {fault}") from None
        except snapshot.NotAShard as why:
            raise CheckpointError(f"cannot load {chosen}/{name}: {why}") from None

    def save(self, step: int, state: object) -> bool:
        """Copy the state and write it in the background.

        False: it is left out, as the save before has not ended, or as there is no memory or no thread for it.

        What has failed is tried again, and told; after too many failures in a row the last one is raised here.
        """
        if self.ready(step) is None:
            return False
        self._loaded = {}
        try:
            shot = snapshot.take(state, self._kept)
        except MemoryError as error:  # none for the copy, now
            return self._cannot_begin(step, error)
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

    def put(self, step: int, write: Callable[[Path], Part], sure: Callable[[Manifest], None] | None = None) -> bool:
        """For writers of another form (see sickbay.train.torch): `write` makes this rank's files, in the background.

        `sure`: what rank 0 makes sure of when all ranks have, right before it commits; it raises if it is not so. All
        ranks then write into one directory, the checkpoint directory, also where others are near first.
        """
        if self.ready(step, shared=sure is not None) is None:
            return False
        self._last = step
        self._hurry.clear()
        place = Place(self.attempt, step)
        self._thread = Thread(target=self._run, args=(place, write, sure), name=f"sickbay-save-{step}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of processes
            self._thread = None
            return self._cannot_begin(step, error)
        return True

    def _cannot_begin(self, step: int, error: Exception) -> bool:
        self._last, place = step, Place(self.attempt, step)
        self._error = _named(place, error)
        log.warning("%s", self._error)
        self._fails(place)
        return False

    def ready(self, step: int, *, shared: bool = False, patiently: bool = False) -> Path | None:
        """The directory into which this step may be saved. None: the save before has not ended within the budget.

        `shared`: the same for all ranks. `patiently`: wait for it however long it takes, as where all ranks save
        together none can be left out alone.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise CheckpointError(f"a step is a whole number from 0 on, not {step!r}")
        if self._last is not None and step <= self._last:
            raise CheckpointError(f"step {step} after step {self._last}: in one attempt steps only go up")
        place = Place(self.attempt, step)
        if self._thread is not None:
            self._hurry.set()
            _join(self._thread, None if patiently else self.budget)
            if self._thread.is_alive():
                self.leave_out(step, f"{place} is left out: the save before it has not ended within {self.budget:g} s")
                return None
            self._thread = None
        if self._failed > self.failures or isinstance(self._error, Superseded):
            self._raise()
        if self._uploads is None or shared:
            return self.path_of(step, shared=shared)
        if self._uploads.hopeless(self.failures):
            self._uploads.raise_last()
        if (resumed := self._uploads.saved_again) is not None and step <= resumed:
            if step < resumed:
                what = f"step {step} after step {resumed}, which attempt {self.attempt} goes on from and saves again"
                raise CheckpointError(f"{what}: steps only go up")
            log.warning("%s is left out: it is what this attempt went on from, and is being uploaded", place)
            return None
        return self.path_of(step)

    def path_of(self, step: int, *, shared: bool = False) -> Path:
        """Into which a step is written."""
        root = self.directory if self._near is None or shared else self._near.root
        return step_path(root, Place(self.attempt, step))

    def expect(self, size: int) -> None:
        """So many bytes this rank reads or writes for the save that is under way: how long it may take at the end."""
        self._size = size

    def tell_failed(self, step: int, why: str) -> None:
        """People hear of it by the heartbeat."""
        if beats.tells_of(str(self.directory)):
            beats.save_failed(step, why)

    def leave_out(self, step: int, why: str) -> None:
        """This rank does not save this step, and the others must not wait for its part."""
        self._last, place = step, Place(self.attempt, step)
        log.warning("%s", why)
        self.tell_failed(step, why)
        self.at.tell_failed(place, near=self._uploads is not None)
        if self._uploads is not None:
            self._uploads.offer(step, None)

    def wait(self) -> None:
        """Until what was saved last is on the disk (on rank 0: committed). Raises what went wrong with it.

        What goes to the nodes' own disks first is waited for until it is uploaded.
        """
        self._wait(None)

    def _wait(self, within: float | None) -> None:
        if self._thread is not None:
            _join(self._thread)
            self._thread = None
        self._raise()
        if self._uploads is not None:
            self._uploads.finish(within)

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
        if os.getpid() != self._pid:  # a child that was forked within the block
            return
        if error is None:
            self.wait()
            self._close(leave=False)
        elif isinstance(error, SystemExit):  # it ends as it wants to
            self._at_exit()
        else:
            self._give_up()
        beats.ended(str(self.directory))
        atexit.unregister(self._at_exit)  # it would keep all of this in memory
        self._kept = []

    def _at_exit(self) -> None:
        """A script that ends without `wait` has its last save finished all the same."""
        if (self._thread is None and self._uploads is None) or os.getpid() != self._pid:
            return
        if getattr(sys, "last_value", None) is not None:
            self._give_up()
            return
        self._hurry.set()
        if self._thread is not None:
            began = time.monotonic()
            while self._thread.is_alive() and time.monotonic() - began < AT_EXIT + allowance(self._size):
                _join(self._thread, 1.0)
            if self._thread.is_alive():  # others may have ended before their part was written
                self.at.giving_up.set()
        try:
            self._wait(AT_EXIT)
        except CheckpointError as error:
            log.error("the last checkpoint was not saved: %s", error)  # noqa: TRY400  # one line, not a traceback
        self._close(leave=True)

    def _give_up(self) -> None:
        if self._thread is not None:
            _join(self._thread, GRACE)
            self.at.giving_up.set()
            _join(self._thread, 1.0)
        self._close(leave=True)

    def _close(self, *, leave: bool) -> None:
        """`leave`: what is on the nodes' own disks stays there, as the training may go on from it."""
        if self._uploads is not None:
            if leave:
                self._uploads.near.copying.wait(GRACE)
            self._uploads.stop()
            self._uploads.near.close(leave=leave)
            self._uploads = None

    def _run(self, place: Place, write: Callable[[Path], Part], sure: Callable[[Manifest], None] | None) -> None:
        for pause in (*AGAIN, None):
            try:
                if self._uploads is None or sure is not None:
                    self._save(place, write, sure)
                else:
                    self._save_near(self._uploads, place, write)
            except Exception as error:  # noqa: BLE001  # it is told, and raised in the thread that trains
                why = self._reason(place, error)
                self._error = why
                log.warning("%s", why)
                if pause is None or isinstance(why, Superseded) or not may_pass(error):
                    break
                if self._hurry.wait(pause) or self.at.giving_up.is_set():
                    break
            else:
                self._error, self._failed = None, 0
                return
        self._fails(place)

    def _fails(self, place: Place) -> None:
        """It counts, people hear of it, and the other ranks need not wait for it."""
        self._failed += 1
        self.tell_failed(place.step, str(self._error))
        self.at.tell_failed(place, near=self._uploads is not None)
        if self._uploads is not None:
            self._uploads.offer(place.step, None)

    def _reason(self, place: Place, error: Exception) -> Exception:
        """A later attempt may have removed what we were writing: then that is the reason, not a missing file."""
        try:
            self.at.check_fence()
        except CheckpointError as reason:
            return reason
        return _named(place, error)

    def _save(self, place: Place, write: Callable[[Path], Part], sure: Callable[[Manifest], None] | None) -> None:
        self.at.check_fence()
        disk.make_in(step_path(self.directory, place))
        if not disk.exists(part_path(self.directory, place, self.rank)):  # else it was written by an earlier try
            self.at.put(place, write(step_path(self.directory, place)))
        if self.rank == 0:
            self.at.commit(place, partial(_made_sure, sure=sure))
            self._committed(place)

    def _save_near(self, uploads: Uploads, place: Place, write: Callable[[Path], Part]) -> None:
        """Whole on this node: nothing is asked of another one. Uploads and copies follow in threads of their own."""
        near = uploads.near
        directory = near.directory_of(place)
        part = near.part_of(place)  # written by an earlier try
        if part is None:
            part = write(directory)._replace(run=self.at.run)
            near.put(place, part)
        uploads.offer(place.step, part)
        near.copying.offer((place, part))

    def _committed(self, place: Place) -> None:
        self._verified.add(place)
        if beats.tells_of(str(self.directory)):
            beats.saved(place.step)
        if self.keep is not None:
            prune(self.directory, place, self.keep, self._verified)


def _join(thread: Thread, within: float | None = None) -> None:
    with suppress(RuntimeError):  # an interrupt came right before it was started
        thread.join(within)


def _made_sure(manifest: Manifest, *, sure: Callable[[Manifest], None] | None) -> Manifest:
    if sure is not None:
        sure(manifest)
    return manifest


def _named(place: Place, error: Exception) -> Exception:
    """One line; what the system said stays as the cause."""
    if isinstance(error, CheckpointError):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
    named = CheckpointError(f"{place} was not saved: {why}")
    named.__cause__ = error
    return named
