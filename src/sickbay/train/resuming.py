"""Resumption: loading our own shards of the checkpoint that an attempt goes on from, and rechecking other formats.

All of it was verified when the attempt began. Our own shards are hashed while they are read. Where other code reads the
files, what could have changed since then is looked at once more, and what may run code when it is read (a pickle) is
handed out only where nobody else can write.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from sickbay.train import disk
from sickbay.train.beginning import Begun
from sickbay.train.errors import CheckpointError
from sickbay.train.layout import FILES, CheckpointName, Manifest, read_manifest, shard_name
from sickbay.train.run import Run
from sickbay.train.shard import NotAShard
from sickbay.train.sharing import CorruptShard, copies_of, read_any, telling
from sickbay.train.validity import Checkpoint

# Of torch's distributed checkpoints: which file holds which piece; written by rank 0, last of all.
METADATA = ".metadata"


class Resumption:
    """What one rank may load of the checkpoint that its attempt goes on from."""

    def __init__(self, run: Run, begun: Begun) -> None:
        self.directory, self.rank, self.world_size = run.directory, run.rank, run.world_size
        self.attempt, self.chosen = begun.lineage.attempt, begun.resumed
        self._manifest, self._near, self._loaded = begun.manifest, begun.near, begun.loaded

    def load(self, rank: int | None) -> Any:
        if self.chosen is None:
            return None
        chosen, count = self.chosen, self.chosen.world_size
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

    def forget(self) -> None:
        """What was read when the attempt began and not asked for: its memory is needed."""
        self._loaded = {}

    def manifest(self) -> Manifest:
        """Of what this attempt goes on from, as it is now."""
        chosen = self.chosen
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
            raise CheckpointError(
                f"{self.chosen} was not saved with checkpoints.save: read it with {reader_of(manifest)}"
            )
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
                again = read_manifest(self.directory, CheckpointName(self.attempt, chosen.step))
                if manifest.far is not None or again is None or again.files != manifest.files:
                    raise
                return read(copies_of(self.directory, again, name, None))
        except CorruptShard as fault:
            raise CheckpointError(f"{chosen} was whole and is no longer: {fault}") from None
        except NotAShard as why:
            raise CheckpointError(f"cannot load {chosen}/{name}: {why}") from None


def is_foreign(manifest: Manifest) -> bool:
    return any(name.startswith(f"{FILES}/") for name in manifest.files)


def reader_of(manifest: Manifest) -> str:
    """What the call is that reads it."""
    if is_foreign(manifest):
        return "sickbay.train.foreign.resumed(checkpoints)"
    if METADATA in manifest.files:
        return "sickbay.train.torch.load(checkpoints, state_dict)"
    return "checkpoints.load()"


def recheck(
    chosen: Checkpoint, manifest: Manifest, surely: Collection[str], progress: Callable[[int], None] | None = None
) -> None:
    """These files are hashed once more, the others have to have their length: other ranks hash them."""
    for name, expected in sorted(manifest.files.items()):
        path = chosen.path / name
        if name in surely:
            fault = disk.fault_of(path, expected, progress, name)
        else:
            fault = disk.misfit_of(path, expected, name)
        if fault is not None:
            raise CheckpointError(f"{chosen} was whole and is no longer: {fault}")


def refuse_what_others_write(paths: Iterable[Path], runs: str, trusting: str) -> None:
    """`runs`: what it is that may run code; `trusting`: the call that reads it all the same."""
    for path in paths:
        if disk.writable_by_others(path):
            raise CheckpointError(
                f"others can write {path}, and {runs}: take their right to write there away (chmod -R go-w), or"
                f" {trusting} if you trust all of them"
            )
