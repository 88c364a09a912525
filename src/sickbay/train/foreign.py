"""Adoption of checkpoints that other code writes: DeepSpeed, Megatron-LM, `save_pretrained`, whatever writes files.

    from sickbay.train import foreign

    path = foreign.resumed(checkpoints)                     # the verified directory; None at the first run
    with foreign.saving(checkpoints, step) as directory:    # every rank, also one that writes nothing
        engine.save_checkpoint(str(directory), tag="state")

The files are the other code's own, in one directory for all ranks, inside the same attempts, steps and manifests. Two
phases agree on them, by files alone. Each rank says that it has left its block; when all have, rank 0 lists what is
there, once. The list is dealt out by size, each rank syncs and hashes its share in the background, and rank 0 commits
if nothing has come, gone or changed since it was listed.

The block is never left out by one rank alone: what runs in it may wait for all the others.
"""

import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sickbay.train import disk, tree
from sickbay.train.checkpoints import Checkpoints
from sickbay.train.errors import CheckpointError, Superseded
from sickbay.train.layout import (
    FILES,
    CheckpointName,
    Manifest,
    RankPart,
    create_listed,
    files_path,
    left_path,
    listed_path,
    read_listed,
)
from sickbay.train.pruning import make_room
from sickbay.train.resuming import is_foreign, reader_of, recheck, refuse_what_others_write
from sickbay.train.sharing import allowance, shares_of, telling
from sickbay.train.validity import Checkpoint

log = logging.getLogger("sickbay.train")
# Formats whose readers run nothing that they read. All others may be a pickle, or code.
SAFE = {".safetensors", ".json", ".jsonl", ".txt", ".md", ".csv", ".tsv", ".toml"}
BACKGROUND = "a writer that works in the background must have ended when the block ends"
_warned: set[Path] = set()


# --- saving


@contextmanager
def saving(checkpoints: Checkpoints, step: int) -> Iterator[Path]:
    """The directory into which other code saves this step, as long as the block lasts. Every rank enters it.

    It waits for the save before it, without a budget. What goes wrong in the block is raised by it, and this step is
    not saved; what goes wrong afterwards, in the background, is told as with `checkpoints.save`.
    """
    checkpoints.ready(step, shared=True, patiently=True)
    place = CheckpointName(checkpoints.attempt, step)
    directory = files_path(checkpoints.directory, place)
    try:
        checkpoints.at.check_fence()
        disk.make_in(directory.parent)
        disk.make_in(directory)
        if checkpoints.rank == 0:
            make_room(checkpoints.directory, place, checkpoints.world_size)
    except Superseded:
        raise
    except (CheckpointError, OSError) as error:
        why = str(error) if isinstance(error, CheckpointError) else f"{place} was not saved: {error.strerror}"
        checkpoints.leave_out(step, why)
        raise CheckpointError(why) from error
    try:
        yield directory
    except BaseException as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        checkpoints.leave_out(step, f"{place} was not saved: on rank {checkpoints.rank} its block failed ({said})")
        if isinstance(error, OSError):
            checkpoints.at.check_fence()  # a later attempt may have removed what was being written
        raise
    adoption = _Adoption(checkpoints, place)
    checkpoints.put(step, adoption.write, adoption.unchanged)


class _Adoption:
    """One rank's part in making a checkpoint of what was left in a directory. It lasts over the tries of one save."""

    def __init__(self, checkpoints: Checkpoints, place: CheckpointName) -> None:
        self.checkpoints, self.place = checkpoints, place
        self.files = files_path(checkpoints.directory, place)
        self.open = tree.open_for_writing(self.files)
        self.stamps: dict[str, tree.Stamp] = {}  # rank 0: what it has listed

    def write(self, directory: Path) -> RankPart:
        """Agree on what is there, then sync and hash this rank's share of it."""
        if self.open:
            raise CheckpointError(f"{self.place} was not saved: {self.open} is still open for writing; {BACKGROUND}")
        left_path(self.checkpoints.directory, self.place, self.checkpoints.rank).touch()
        sizes = self._list() if self.checkpoints.rank == 0 else self._listed()
        mine = shares_of(sizes, self.checkpoints.world_size)[self.checkpoints.rank]
        self.checkpoints.expect(sum(sizes[name] for name in mine))
        return RankPart({name: self._measure(directory / name, name, sizes[name]) for name in mine})

    def _list(self) -> dict[str, int]:
        """On rank 0: what is there when all have left. Published once, and the same at every try."""
        root, place = self.checkpoints.directory, self.place
        began = time.monotonic()
        for rank in range(1, self.checkpoints.world_size):
            what = (
                f"rank {rank} did not leave foreign.saving",
                "every rank must enter it, also one that writes nothing",
            )
            self._wait_for(left_path(root, place, rank), rank, began, what)
        if not self.stamps:
            self.stamps = self._stamps()
            self._warn_if_others_write()
        sizes = {name: one.size for name, one in self.stamps.items()}
        if not sizes:
            raise CheckpointError(f"{place} was not saved: nothing was written into {self.files}")
        if not create_listed(root, place, sizes) and self._listed() != sizes:
            raise CheckpointError(f"another process saves as rank 0 of attempt {place.attempt}")
        return sizes

    def _listed(self) -> dict[str, int]:
        root, place = self.checkpoints.directory, self.place
        what = ("rank 0 did not list the files", "do all ranks see the same directory?")
        self._wait_for(listed_path(root, place), 0, time.monotonic(), what)
        try:
            sizes = read_listed(root, place)
        except disk.Damaged as damage:
            raise CheckpointError(f"{place} was not saved: {listed_path(root, place).name} {damage}") from None
        if sizes is None:
            raise CheckpointError(f"{place} was not saved: {listed_path(root, place).name} was there and is gone")
        return sizes

    def _wait_for(self, path: Path, rank: int, began: float, what: tuple[str, str]) -> None:
        """As long as the ranks have patience, and longer the more there is in the directory: others still write."""
        most, pause = self.checkpoints.patience, 0.001
        while not disk.exists(path):
            self.checkpoints.at.check_hope(self.place, rank)
            if (waited := time.monotonic() - began) > most:
                most = self.checkpoints.patience + allowance(tree.size_below(self.files))
                if waited > most:
                    raise CheckpointError(f"{self.place} was not saved: {what[0]} within {most:g} s; {what[1]}")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.05 if self.checkpoints.rank == 0 else 1.0)  # there may be thousands of others

    def _stamps(self) -> dict[str, tree.Stamp]:
        try:
            return tree.stamps_below(self.files)
        except tree.Unfit as why:
            raise CheckpointError(f"{self.place} was not saved: {why}") from None

    def _measure(self, path: Path, name: str, size: int) -> disk.Sum:
        """Synced before it is hashed: from then on a write through a mapping shows in the file's times, too."""
        try:
            handle = tree.opened(path)
        except FileNotFoundError:
            raise self._vanished(name) from None
        with os.fdopen(handle, "rb", buffering=0) as file:
            try:
                os.fsync(handle)
            except OSError as error:  # a second try would pass, and prove nothing
                raise self._not_on_disk(name, error) from None
            before = tree.stamp(handle)
            total = disk.Hashing(file).finish()
            after = tree.stamp(handle)
        if before != after or total.size != size:
            raise self._changed(f"{name} was written to")
        return total

    def unchanged(self, manifest: Manifest) -> None:
        """On rank 0, right before the commit: every name is on the disk, and all is as it was when it was listed."""
        expected = {name: one.size for name, one in self.stamps.items()}
        if {name: one.size for name, one in manifest.files.items()} != expected:
            raise CheckpointError(
                f"{self.place} was not saved: its ranks do not agree on its files; do all run the same sickbay?"
            )
        try:
            self._sync_directories()
            now = self._stamps()
        except FileNotFoundError:
            gone = (name for name in sorted(self.stamps) if not disk.exists(self.files.parent / name))
            raise self._vanished(next(gone, FILES)) from None
        for name in sorted(now.keys() | self.stamps.keys()):
            if name not in now:
                raise self._vanished(name)
            if now[name] != self.stamps.get(name):
                raise self._changed(f"{name} {'was written to' if name in self.stamps else 'came'}")

    def _sync_directories(self) -> None:
        directories = {directory for name in self.stamps for directory in Path(name).parents}
        for directory in sorted(directories, reverse=True):  # what is deep first
            try:
                disk.sync(self.files.parent / directory)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise self._not_on_disk(str(directory), error) from None

    def _vanished(self, name: str) -> FileNotFoundError:
        """Of a network file system it may be there again in a moment: then the next try finds it."""
        return FileNotFoundError(errno.ENOENT, f"{name} vanished after the block had ended; {BACKGROUND}")

    def _changed(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.place} was not saved: {what} after the block had ended; {BACKGROUND}")

    def _not_on_disk(self, what: str, error: OSError) -> CheckpointError:
        return CheckpointError(f"{self.place} was not saved: {what} is not on the disk ({error.strerror})")

    def _warn_if_others_write(self) -> None:
        """Better now than in the night in which the job is restarted."""
        root = self.checkpoints.directory
        if root in _warned:
            return
        try:
            _refuse_pickles(root, self.files.parent)
        except CheckpointError as why:
            _warned.add(root)
            log.warning("%s would not be resumed from: %s", self.place, why)
        except OSError:
            return


# --- resuming


def resumed(checkpoints: Checkpoints, *, reshard: bool = False, trust: bool = False) -> Path | None:
    """The verified directory of the checkpoint that this attempt goes on from. None: there is none, begin anew.

    `reshard`: its format can be read by another number of ranks than wrote it. `trust`: hand it out although it holds
    files that may run code when they are read (pickles), and others can write where they lie.
    """
    chosen = checkpoints.resumed
    if chosen is None:
        return None
    manifest = checkpoints.manifest()
    if not is_foreign(manifest):
        raise CheckpointError(f"{chosen} was not saved by sickbay.train.foreign: read it with {reader_of(manifest)}")
    if manifest.world_size != checkpoints.world_size and not reshard:
        raise CheckpointError(
            f"{chosen} was saved by {manifest.world_size} ranks and this run has {checkpoints.world_size}:"
            " resumed(…, reshard=True) if its format can be read by another number of ranks, else start"
            f" {manifest.world_size}"
        )
    with disk.readable(chosen.path):
        _refuse_links(checkpoints, chosen, manifest)
        _recheck(checkpoints, chosen, manifest)
        if not trust:
            _refuse_pickles(checkpoints.directory, chosen.path)
    return chosen.path / FILES


def _refuse_links(checkpoints: Checkpoints, chosen: Checkpoint, manifest: Manifest) -> None:
    """What was a file is one: a link could lead anywhere, and somewhere else in a minute. What is new is told."""
    listed = {str(part) for name in manifest.files for part in (Path(name), *Path(name).parents)}
    links = {FILES} if (chosen.path / FILES).is_symlink() else set[str]()
    others = []
    for name, entry in tree.entries_below(chosen.path / FILES):
        if name in listed and entry.is_symlink():
            links.add(name)
        elif name not in listed and not entry.is_dir(follow_symlinks=False):
            others.append(name)
    if links:
        raise CheckpointError(f"{chosen} was whole and is no longer: {min(links)} has become a symbolic link")
    if others and checkpoints.rank == 0:
        log.warning("%s: %r is not in its manifest: if its writer wrote it, %s", chosen, min(others), BACKGROUND)


def _recheck(checkpoints: Checkpoints, chosen: Checkpoint, manifest: Manifest) -> None:
    sizes = {name: one.size for name, one in manifest.files.items()}
    mine = shares_of(sizes, checkpoints.world_size)[checkpoints.rank]
    progress = telling(f"verifying {chosen}", sum(sizes[name] for name in mine))
    recheck(chosen, manifest, set(mine), progress)


def _refuse_pickles(root: Path, directory: Path) -> None:
    """Also those that no manifest lists: a reader of a directory reads what is in it."""
    dangerous: list[str] = []
    paths = [root, directory.parent, directory, directory / FILES]
    for name, entry in tree.entries_below(directory / FILES):
        if entry.is_dir(follow_symlinks=False):
            paths.append(directory / name)
        elif entry.is_symlink() or Path(name).suffix.lower() not in SAFE:
            dangerous.append(name)
            paths += [] if entry.is_symlink() else [directory / name]
    if dangerous:
        what = f"{dangerous[0]!r} may run code when it is read"
        refuse_what_others_write(paths, what, "resumed(…, trust=True)")
