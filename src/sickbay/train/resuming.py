"""Re-verification of the checkpoint that an attempt goes on from, for formats that other code reads.

It was verified when the attempt began. What could have changed since then is looked at once more, and what may run code
when it is read (a pickle) is handed out only where nobody else can write.
"""

from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from sickbay.train import disk
from sickbay.train.errors import CheckpointError
from sickbay.train.layout import FILES, Manifest
from sickbay.train.validity import Checkpoint

METADATA = (
    ".metadata"  # of torch's distributed checkpoints: which file holds which piece; written by rank 0, last of all
)


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
