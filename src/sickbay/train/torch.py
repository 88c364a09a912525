"""`torch.distributed.checkpoint` (DCP) inside the same attempts, steps and manifests.

    from sickbay import train
    from sickbay.train import torch as sickbay_torch

    sickbay_torch.load(checkpoints, state_dict)         # in place; False if there is nothing to go on from
    sickbay_torch.save(checkpoints, step, state_dict)   # every rank; returns when the state is staged

DCP reshards, so a run may go on with another number of ranks. With several ranks saving has a process group of its own
on gloo, made at the first save: it writes in the background, and one group must not be used by two threads at once.

DCP reads a pickle (.metadata), which runs whatever it says. It is opened only if its checksum is the one of the
manifest and nobody but this user and root can write where it lies.
"""

import sys
from collections import OrderedDict
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sickbay.train import disk
from sickbay.train.checkpoints import Checkpoints
from sickbay.train.errors import CheckpointError
from sickbay.train.layout import Manifest, Part
from sickbay.train.resuming import METADATA, manifest_of, reader_of, recheck, refuse_what_others_write
from sickbay.train.validity import Checkpoint

try:
    dcp: Any = import_module("torch.distributed.checkpoint")
except ImportError as missing:
    raise ImportError(f"sickbay.train.torch needs torch 2.3 or newer ({missing}): pip install torch") from None


def save(checkpoints: Checkpoints, step: int, state_dict: dict[str, Any], *, process_group: Any = None) -> bool:
    """Stage the state and let DCP write it in the background; the manifest lists the files that DCP made.

    False: it is left out, as the save before has not ended.
    """
    directory = checkpoints.ready(step)
    if directory is None:
        return False
    try:
        disk.make_in(directory)
    except OSError as error:
        return checkpoints.put(step, partial(_fail, error))
    group = process_group if process_group is not None else _own_group()
    written = dcp.async_save(_apart(state_dict), checkpoint_id=str(directory), process_group=group)

    def write(there: Path) -> Part:
        written.result()
        return Part({path.name: disk.measure(path) for path in _files_of(there, checkpoints.rank)})

    return checkpoints.put(step, write)


def _fail(error: OSError, _directory: Path) -> Part:
    """It counts like any other save that fails."""
    raise error


def _apart(value: Any) -> Any:
    """Tensors on the CPU are cloned: torch 2.3 stages with `.to("cpu")`, which copies none of these."""
    if type(value) in {dict, OrderedDict}:
        return type(value)((key, _apart(held)) for key, held in value.items())
    if type(value) in {list, tuple}:
        return type(value)([_apart(held) for held in value])
    torch: Any = sys.modules["torch"]
    ours = type(value) in {torch.Tensor, torch.nn.Parameter} or hasattr(value, "to_local")
    return value.detach().clone() if ours and value.device.type == "cpu" else value


@cache
def _own_group() -> Any:
    """Every rank saves, so every rank comes here: making a group is collective. None: there is one rank."""
    dist: Any = import_module("torch.distributed")
    return dist.new_group(backend="gloo") if dist.is_available() and dist.is_initialized() else None


def load(
    checkpoints: Checkpoints, state_dict: dict[str, Any], *, process_group: Any = None, trust: bool = False
) -> bool:
    """Fill `state_dict` from the checkpoint that this attempt goes on from. False: there is none, begin anew.

    `trust`: open DCP's pickle although others can write into its directory.
    """
    chosen = checkpoints.resumed
    if chosen is None:
        return False
    manifest = manifest_of(checkpoints.directory, chosen)
    if METADATA not in manifest.files:
        raise CheckpointError(f"{chosen} was not saved by sickbay.train.torch: read it with {reader_of(manifest)}")
    _check(checkpoints, chosen, manifest)
    if not trust:
        paths = (checkpoints.directory, chosen.path.parent, chosen.path, chosen.path / METADATA)
        refuse_what_others_write(paths, f"DCP runs what its {METADATA} says", "load(…, trust=True)")
    dcp.load(state_dict, checkpoint_id=str(chosen.path), process_group=process_group)
    return True


def _check(checkpoints: Checkpoints, chosen: Checkpoint, manifest: Manifest) -> None:
    """All ranks have hashed their share when the attempt began; what has changed since then shows here.

    Each rank hashes its own files and the pickle once more: those of the others are hashed by them.
    """
    recheck(chosen, manifest, {METADATA, *(path.name for path in _files_of(chosen.path, checkpoints.rank))})


def _files_of(directory: Path, rank: int) -> list[Path]:
    """DCP's names begin with the rank that wrote them."""
    mine = sorted(directory.glob(f"__{rank}_*.distcp"))
    return [*mine, directory / METADATA] if rank == 0 else mine
