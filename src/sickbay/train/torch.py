"""`torch.distributed.checkpoint` (DCP) inside the same attempts, steps and manifests.

    from sickbay import train
    from sickbay.train import torch as sickbay_torch

    sickbay_torch.load(checkpoints, state_dict)         # in place; False if there is nothing to go on from
    sickbay_torch.save(checkpoints, step, state_dict)   # every rank; returns when the state is staged
    sickbay_torch.should_save()                         # every rank; the same answer on all of them
    sickbay_torch.should_end()                          # after it: whether all of them leave now

DCP reshards, so a run may go on with another number of ranks. What is collective is done on groups of its own on gloo,
with limits of time, and only when all ranks have said that they can.

DCP reads a pickle (.metadata), which runs whatever it says. It is opened only if its checksum is the one of the
manifest and nobody but this user and root can write where it lies.
"""

import logging
import time
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sickbay.train import disk
from sickbay.train.asked import should_end as ends_here
from sickbay.train.asked import should_save as asked_here
from sickbay.train.checkpoints import Checkpoints
from sickbay.train.errors import CheckpointError
from sickbay.train.hashing import hash_writes
from sickbay.train.layout import CheckpointName, Manifest, RankPart
from sickbay.train.resuming import METADATA, reader_of, recheck, refuse_what_others_write
from sickbay.train.validity import Checkpoint

try:
    dcp: Any = import_module("torch.distributed.checkpoint")
    stateful: Any = import_module("torch.distributed.checkpoint.stateful")
    from sickbay.train import ranks as gang
except ImportError as missing:
    raise ImportError(f"sickbay.train.torch needs torch 2.3 or newer ({missing}): pip install torch") from None

log = logging.getLogger("sickbay.train")
VERSION = tuple(int(part) for part in import_module("torch").__version__.split(".")[:2])


def save(checkpoints: Checkpoints, step: int, state_dict: dict[str, Any], *, process_group: Any = None) -> bool:
    """Stage the state and let DCP write it in the background; the manifest lists the files that DCP made.

    False: it is left out on all ranks, as the save before has not ended on one of them.
    """
    if checkpoints.far:
        raise CheckpointError(
            f"{checkpoints.far} holds what checkpoints.save writes: DCP needs a directory, without far="
        )
    ranks = gang.ranks_of(checkpoints, process_group)
    place = CheckpointName(checkpoints.attempt, step)
    staged, standing, why = None, gang.RankStanding.READY, ""
    try:
        staged = _stage(checkpoints, ranks, step, state_dict)
        standing = gang.RankStanding.BUSY if staged is None else gang.RankStanding.READY
    except OSError as error:
        standing, why = gang.RankStanding.FAILED, gang.in_one_line(error)
    except BaseException:
        with suppress(CheckpointError):
            ranks.agree(step, gang.RankStanding.REFUSES)
        raise
    verdict = ranks.agree(step, standing)
    match verdict.standing:
        case gang.RankStanding.READY:
            written = ranks.begin(partial(_write, checkpoints, place, staged))
            return checkpoints.put(step, lambda _: RankPart(written.result()))
        case gang.RankStanding.BUSY:
            if standing is gang.RankStanding.READY:
                _tell(
                    checkpoints, place, f"{place} is left out: the save before it has not ended on rank {verdict.rank}"
                )
            return False
        case gang.RankStanding.FAILED:
            why = why or f"rank {verdict.rank} could not begin"
            return standing is not gang.RankStanding.BUSY and checkpoints.put(step, partial(_fail, place, why))
        case gang.RankStanding.REFUSES:
            raise CheckpointError(f"{place} is not saved: rank {verdict.rank} refuses to; its own error says why")


def _stage(checkpoints: Checkpoints, ranks: gang.Ranks, step: int, state_dict: dict[str, Any]) -> Any:
    """A copy that nobody changes. None: the save before has not ended, and its copy is in the same memory."""
    began = time.monotonic()
    directory = checkpoints.ready(step)
    if directory is None:
        return None
    if ranks.still_writing(max(0.0, checkpoints.budget - (time.monotonic() - began))):
        place = CheckpointName(checkpoints.attempt, step)
        _tell(
            checkpoints,
            place,
            f"{place} is left out: DCP has not ended the save before it within {checkpoints.budget:g} s",
        )
        return None
    disk.make_in(directory)
    return ranks.staging.take(_plain(state_dict))


def _plain(state_dict: dict[str, Any]) -> dict[str, Any]:
    return {key: one.state_dict() if isinstance(one, stateful.Stateful) else one for key, one in state_dict.items()}


def _write(checkpoints: Checkpoints, place: CheckpointName, staged: Any, group: Any) -> dict[str, disk.Sum]:
    """What DCP has made of this rank's share."""
    directory = checkpoints.path_of(place.step)
    # What is staged is on the host: copying ahead would only wake GPU 0 from a thread that belongs to another.
    writer = dcp.FileSystemWriter(directory, per_thread_copy_ahead=0)
    hashed = hash_writes(writer)
    try:
        dcp.save(staged, storage_writer=writer, process_group=group)
    except (dcp.CheckpointException, RuntimeError) as error:  # the first is no Exception
        raise CheckpointError(f"{place} was not saved: {gang.in_one_line(error)}") from error
    sum_of = disk.measure if hashed is None else hashed.sum_of
    return {path.name: sum_of(path) for path in _files_of(directory, checkpoints.rank)}


def _tell(checkpoints: Checkpoints, place: CheckpointName, why: str) -> None:
    log.warning("%s", why)
    checkpoints.tell_failed(place.step, why)


def _fail(place: CheckpointName, why: str, _directory: Path) -> RankPart:
    """It counts like any other save that fails."""
    raise CheckpointError(f"{place} was not saved: {why}")


def should_save(process_group: Any = None, *, now: bool = False) -> bool:
    """`train.should_save()` of all ranks: True on all of them, at the same call, when one of them was asked to end.

        if step % 100 == 0 or sickbay_torch.should_save():
            sickbay_torch.save(checkpoints, step, state_dict)

    Every rank asks at the same steps. What the ranks say at one call is heard at the next, so that none waits: a call
    sends a few bytes on gloo, which takes some tenths of a millisecond of the host and nothing of the GPU. `now` waits
    for the answers of this call, for a loop that asks seldom: as long as the last rank takes to come to it.
    """
    others = gang.asking_of(process_group)
    return asked_here() if others is None else others.ask(now=now)


def should_end(process_group: Any = None) -> bool:
    """`train.should_end()` of all ranks, as they heard it in the last `should_save()`: all leave after the same step.

        if sickbay_torch.should_save():
            checkpoints.save(step, state)
        if sickbay_torch.should_end():
            break

    A rank that leaves by its own SIGTERM alone ends the others in their next collective, and their save with it.
    """
    others = gang.asking_of(process_group)
    return ends_here() if others is None else others.ending


def load(
    checkpoints: Checkpoints, state_dict: dict[str, Any], *, process_group: Any = None, trust: bool = False
) -> bool:
    """Fill `state_dict` from the checkpoint that this attempt goes on from. False: there is none, begin anew.

    `trust`: open DCP's pickle although others can write into its directory.
    """
    chosen = checkpoints.resumed
    if chosen is None:
        return False
    ranks = gang.ranks_of(checkpoints, process_group)
    try:
        size = _check_all(checkpoints, ranks, chosen, trust=trust) / checkpoints.world_size
        if VERSION < (2, 6):
            _refuse_other_sizes(chosen, state_dict)
    except BaseException:
        with suppress(CheckpointError):
            ranks.agree(chosen.step, gang.RankStanding.REFUSES)
        raise
    verdict = ranks.agree(chosen.step, gang.RankStanding.READY)
    if verdict.standing is not gang.RankStanding.READY:
        raise CheckpointError(f"{chosen} is not loaded: rank {verdict.rank} refuses to; its own error says why")
    try:
        dcp.load(state_dict, checkpoint_id=str(chosen.path), process_group=ranks.group(size))
    except (dcp.CheckpointException, RuntimeError) as error:
        raise CheckpointError(f"{chosen} could not be loaded into this state: {gang.in_one_line(error)}") from error
    return True


def _check_all(checkpoints: Checkpoints, ranks: gang.Ranks, chosen: Checkpoint, *, trust: bool) -> int:
    """Raises what this rank has against loading it. Returns how many bytes there are."""
    manifest = checkpoints.manifest()
    if METADATA not in manifest.files:
        raise CheckpointError(f"{chosen} was not saved by sickbay.train.torch: read it with {reader_of(manifest)}")
    _check(checkpoints, chosen, manifest)
    if not trust:
        paths = (checkpoints.directory, chosen.path.parent, chosen.path, chosen.path / METADATA)
        refuse_what_others_write(paths, f"DCP runs what its {METADATA} says", "load(…, trust=True)")
    if ranks.still_writing(checkpoints.budget):
        raise CheckpointError(f"{chosen} cannot be loaded while another is being saved: call checkpoints.wait() first")
    return manifest.size


def _refuse_other_sizes(chosen: Checkpoint, state_dict: dict[str, Any]) -> None:
    """Before 2.6 torch fills as much of a tensor as there is, and says nothing."""
    saved = dcp.FileSystemReader(str(chosen.path)).read_metadata()
    planner = dcp.DefaultLoadPlanner()
    planner.set_up_planner(_plain(state_dict), saved, is_coordinator=False)
    for name, value in planner.state_dict.items():
        size = getattr(saved.state_dict_metadata.get(name), "size", None)
        if size is not None and hasattr(value, "size") and size != value.size():
            raise CheckpointError(
                f"{chosen} could not be loaded into this state: {name} was of {tuple(size)} and is of"
                f" {tuple(value.size())}"
            )


def _check(checkpoints: Checkpoints, chosen: Checkpoint, manifest: Manifest) -> None:
    """All ranks have hashed their share when the attempt began; what has changed since then shows here.

    Each rank hashes its own files and the pickle once more: those of the others are hashed by them.
    """
    recheck(chosen, manifest, {METADATA, *(path.name for path in _files_of(chosen.path, checkpoints.rank))})


def _files_of(directory: Path, rank: int) -> list[Path]:
    """DCP's names begin with the rank that wrote them."""
    mine = sorted(directory.glob(f"__{rank}_*.distcp"))
    return [*mine, directory / METADATA] if rank == 0 else mine
