"""Beginning of an attempt: fence, choose, record; then all its ranks resume from the checkpoint that LINEAGE names.

RUN is created exclusively by rank 0 before it looks at anything: from then on no older attempt commits or removes a
checkpoint. What was chosen is written into LINEAGE only after it was verified. A large checkpoint is verified by all
ranks, each its share (`sickbay.train.sharing`).
"""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from sickbay.train import disk
from sickbay.train.choosing import choose
from sickbay.train.errors import AlreadyBegun, CheckpointError, Unreadable
from sickbay.train.far import store_of
from sickbay.train.fencing import confirm_fence, end_with_own_code, raise_fence, refuse_if_overtaken
from sickbay.train.layout import (
    Lineage,
    Manifest,
    RunFile,
    attempt_path,
    begun_path,
    create_lineage,
    is_committed,
    lineage_path,
    read_fence,
    read_lineage,
    read_manifest,
    refused_path,
    run_path,
    step_path,
    steps,
)
from sickbay.train.near import Near, create_secret, secret_of
from sickbay.train.numbering import number_of, refuse_strangers
from sickbay.train.run import Run, launch
from sickbay.train.sharing import Looking, wait_for
from sickbay.train.validity import Checkpoint


class Begun(NamedTuple):
    """What all ranks agree on, and what this one has read already on the way."""

    lineage: Lineage
    resumed: Checkpoint | None
    loaded: dict[int, Any]  # by rank: states of shards that were verified while they were read
    manifest: Manifest | None  # of `resumed`
    near: Near | None


def begin(run: Run) -> Begun:
    """This attempt's lineage, the same for all its ranks, and the checkpoint that it goes on from."""
    try:
        if run.rank == 0:
            if run.tiers.far:
                store_of(run.tiers.far).size_of("SICKBAY")  # no bucket, no rights: told now, not at the first upload
            fence = raise_fence(run)
            looking = Looking(run.directory, fence.attempt, 0, run.world_size, run.patience)
            lineage = _lead(run, fence, looking)
        else:
            looking = Looking(run.directory, _numbered(run), run.rank, run.world_size, run.patience)
            lineage = _follow(run, looking)
        loaded = looking.loaded if looking.of == lineage.parent else {}  # else of one that was passed over
        manifest = _manifest_of(run.directory, lineage, looking.near)
        resumed = _parent(run.directory, lineage, manifest)
        return Begun(lineage, resumed, loaded, manifest, looking.near)
    except IndexError:  # a listing that was not empty a moment ago
        raise Unreadable(f"{run.directory} was removed while an attempt began in it: start once more") from None
    except OSError as error:
        where = error.filename or run.directory
        raise Unreadable(f"cannot use {where} for checkpoints: {error.strerror}") from error


# --- rank 0


def _lead(run: Run, fence: RunFile, looking: Looking) -> Lineage:
    try:
        _nothing_saved_yet(run.directory, fence.attempt)
        _learn_all(run, looking)
        lineage = choose(run, fence, looking)
    except (CheckpointError, OSError) as why:
        with suppress(OSError):
            disk.create(refused_path(run.directory, fence.attempt), {"why": str(why)})
        raise
    if not create_lineage(run.directory, lineage):
        raise AlreadyBegun(f"another process has chosen for attempt {fence.attempt} in {run.directory}")
    confirm_fence(run.directory, fence.attempt)
    parent = lineage.parent
    if parent is not None and not lineage.near and not is_committed(run.directory, parent):
        raise CheckpointError(
            f"{parent} was removed by another process while attempt {fence.attempt} began: start once more"
        )
    return lineage


def _nothing_saved_yet(directory: Path, number: int) -> None:
    """What somebody left under our number (below a mount point, say) must not become part of what we save."""
    if steps(directory, number):
        raise Unreadable(
            f"{attempt_path(directory, number)} holds steps, but attempt {number} has just begun: move that directory"
            " away and start again"
        )


def _open_near(run: Run, looking: Looking) -> Near | None:
    """What is on this node's own disk is told to the others."""
    if run.tiers.near is None:
        return None
    secret = ""
    if run.world_size > 1:
        what = f"rank 0 wrote no secret for attempt {looking.attempt}"
        secret = wait_for(lambda: secret_of(run.directory, looking.attempt), looking, what)
    looking.near = Near(run.tiers.near, run, looking.attempt, secret)
    looking.near.tell()
    return looking.near


def _learn_all(run: Run, looking: Looking) -> None:
    """Rank 0: what is whole on the disks of all nodes that take part."""
    if run.tiers.near is not None and run.world_size > 1:
        create_secret(run.directory, looking.attempt)
    near = _open_near(run, looking)
    if near is None:
        return
    what = f"a rank of attempt {looking.attempt} did not say what is on its node"
    try:
        near.decide([wait_for(partial(near.told_by, rank), looking, what) for rank in range(run.world_size)])
    except disk.Damaged as damage:
        raise Unreadable(f"what the ranks of attempt {looking.attempt} told of their nodes {damage}") from None


# --- the others


def _numbered(run: Run) -> int:
    """The number of this attempt, as rank 0 counts: the first time in this directory it has to write it down first."""
    if number_of(run) is None:
        refuse_strangers(run)  # rank 0 does not begin then, and would be waited for in vain
    before = Looking(run.directory, 0, run.rank, run.world_size, run.patience)
    return wait_for(lambda: number_of(run), before, f"rank 0 did not begin attempt {run.attempt} of job {run.job}")


def _follow(run: Run, looking: Looking) -> Lineage:
    """Take this rank's place, look at what rank 0 names, and wait until it has chosen."""
    number = looking.attempt
    disk.make(begun_path(run.directory, number, run.rank).parent)
    if not disk.take(begun_path(run.directory, number, run.rank)):
        end_with_own_code()
        raise AlreadyBegun(
            f"rank {run.rank} of attempt {number} has begun already in {run.directory}: a rank that ends takes its"
            " attempt along, all ranks start again under the next number (torchrun --max-restarts=0)"
        )
    fence = wait_for(lambda: _fence_of(run, number), looking, f"rank 0 did not begin attempt {number}")
    _refuse_other_launch(run, fence)
    _open_near(run, looking)

    refused, chosen = refused_path(run.directory, number), lineage_path(run.directory, number)

    def choice() -> Lineage | None:
        looking.share()
        with disk.undamaged(refused):
            if (why := disk.read(refused)) is not None:
                raise Unreadable(str(why["why"]))
        with disk.undamaged(chosen):
            return read_lineage(run.directory, number)

    lineage = wait_for(choice, looking, f"rank 0 did not choose a checkpoint for attempt {number}")
    refuse_if_overtaken(run.directory, number)
    if looking.near is not None and not looking.near.learn():
        raise Unreadable(f"{run.directory} does not show what rank 0 has found on the nodes: start once more")
    return lineage


def _refuse_other_launch(run: Run, fence: RunFile) -> None:
    """All ranks of an attempt are of one launch, and see it alike."""
    if fence.launch != launch():
        raise AlreadyBegun(
            f"attempt {fence.attempt} in {run.directory} belongs to another launch than rank {run.rank}: every run"
            " needs a number of its own"
        )
    if fence.world_size != run.world_size:
        raise CheckpointError(
            f"rank 0 began attempt {fence.attempt} with {fence.world_size} ranks, rank {run.rank} counts"
            f" {run.world_size}: WORLD_SIZE must be the same for all"
        )
    if (fence.near, fence.far) != (bool(run.tiers.near), run.tiers.far):
        raise CheckpointError(
            f"rank 0 and rank {run.rank} differ in near= or far= (SICKBAY_CHECKPOINT_NEAR, SICKBAY_CHECKPOINT_FAR): all"
            " ranks need the same"
        )


def _fence_of(run: Run, number: int) -> RunFile | None:
    refuse_if_overtaken(run.directory, number)
    with disk.undamaged(run_path(run.directory, number)):
        return read_fence(run.directory, number)


def _manifest_of(directory: Path, lineage: Lineage, near: Near | None) -> Manifest | None:
    """Of what LINEAGE names. Not checked once more: it was verified, and what `load` reads is hashed on the way."""
    if lineage.parent is None:
        return None
    try:
        manifest = read_manifest(directory, lineage.parent)
    except disk.Damaged as damage:
        raise CheckpointError(f"{lineage.parent} was whole and is no longer: manifest.json {damage}") from None
    if manifest is None and near is not None and near.learn():
        manifest = near.whole.get(lineage.parent)
    if manifest is None:
        raise CheckpointError(
            f"{lineage.parent}, from which attempt {lineage.attempt} goes on, is gone: start once more"
        )
    return manifest


def _parent(directory: Path, lineage: Lineage, manifest: Manifest | None) -> Checkpoint | None:
    if manifest is None:
        return None
    where = step_path(directory, manifest.place)
    return Checkpoint(*manifest.place, lineage.skipped, manifest.world_size, where)
