"""How an attempt begins: first the fence, then the look, then one LINEAGE that all its ranks read.

RUN is created exclusively by rank 0 before it looks at anything: from then on no older attempt commits or removes a
checkpoint. What was chosen is written into LINEAGE only after it was verified. A large checkpoint is verified by all
ranks, each its share (`sickbay.train.sharing`).
"""

import errno
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from sickbay.train import disk
from sickbay.train.errors import RESTARTED_IN_PLACE, AlreadyBegun, CheckpointError, Superseded, Unreadable
from sickbay.train.far import store_of
from sickbay.train.layout import (
    Lineage,
    Manifest,
    Place,
    RunFile,
    attempt_path,
    attempts,
    begun,
    begun_path,
    create_fence,
    create_lineage,
    fenced,
    lineage_path,
    manifest_path,
    marker_path,
    read_fence,
    read_lineage,
    read_manifest,
    refused_path,
    removed_path,
    run_path,
    step_path,
    steps,
)
from sickbay.train.near import Near, create_secret, secret_of
from sickbay.train.run import Run, launch
from sickbay.train.sharing import Looking, wait_for
from sickbay.train.validity import NONE_NEAR, Checkpoint, Survey, lineage_of, survey

log = logging.getLogger("sickbay.train")
READ_AGAIN = (1.0, 4.0, 15.0, 60.0)  # seconds after which what could not be read is tried again, before it is refused
CHOICES = 5  # checkpoints that vanish after they were chosen
COMES_BACK = {
    errno.ENOENT,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOTCONN,
}
ANEW = "SICKBAY_BEGIN_ANEW=1 (or anew=True) begins at step 0 beside what is there, and removes none of it"


class Begun(NamedTuple):
    """What all ranks agree on, and what this one has read already on the way."""

    lineage: Lineage
    resumed: Checkpoint | None
    loaded: dict[int, Any]  # by rank: states of shards that were verified while they were read
    manifest: Manifest | None  # of `resumed`
    far: str  # where the files of this attempt's checkpoints go
    near: Near | None


def begin(run: Run) -> Begun:
    """This attempt's lineage, the same for all its ranks, and the checkpoint that it goes on from."""
    try:
        if run.rank == 0:
            if run.tiers.far:
                store_of(run.tiers.far).size_of("SICKBAY")  # no bucket, no rights: told now, not at the first upload
            fence, looking = _fence(run)
            lineage = _lead(run, fence, looking)
        else:
            looking = Looking(run.directory, run.attempt or 1, run.rank, run.world_size, run.patience)
            fence, lineage = _follow(run, looking)
        loaded = looking.loaded if looking.of == lineage.parent else {}  # else of one that was passed over
        manifest = _manifest_of(run.directory, lineage, looking.near)
        resumed = _parent(run.directory, lineage, manifest)
        return Begun(lineage, resumed, loaded, manifest, fence.far, looking.near)
    except IndexError:  # a listing that was not empty a moment ago
        raise Unreadable(f"{run.directory} was removed while an attempt began in it: start once more") from None
    except OSError as error:
        where = error.filename or run.directory
        raise Unreadable(f"cannot use {where} for checkpoints: {error.strerror}") from error


# --- rank 0


def _fence(run: Run) -> tuple[RunFile, Looking]:
    """Take a number. Nothing is looked at before, but for whether this is the directory that it was."""
    _same_directory(run)
    disk.make(run.directory)
    if not disk.exists(marker_path(run.directory)):
        marker = {"keeps": "checkpoints of sickbay.train", "id": os.urandom(8).hex()}
        disk.create(marker_path(run.directory), marker)
    while True:
        disk.refresh(run.directory)
        highest = max(fenced(run.directory), default=0)
        number = run.attempt or _free(run.directory, highest + 1)
        if number < highest:
            raise superseded(run.directory, number, highest)
        disk.make(attempt_path(run.directory, number))
        fence = RunFile(number, os.urandom(8).hex(), run.world_size, launch(), run.tiers.far, bool(run.tiers.near))
        if number != highest and create_fence(run.directory, fence):
            break
        if run.attempt is not None:
            _end_with(RESTARTED_IN_PLACE)
            raise AlreadyBegun(
                f"attempt {number} has already begun in {run.directory}: every run needs a number of its own"
                " (a launcher must not restart ranks within an attempt: torchrun --max-restarts=0)"
            )
    return fence, Looking(run.directory, number, 0, run.world_size, run.patience)


def _free(directory: Path, number: int) -> int:
    """A number whose claim is there but whose RUN is not belongs to one who died between the two."""
    while any(disk.exists(disk.claim_of(path(directory, number))) for path in (run_path, lineage_path)):
        number += 1
    return number


def _same_directory(run: Run) -> None:
    """A job that has made steps has begun in its directory: one that is empty is another disk, or none at all."""
    if run.anew or not run.last_step or disk.exists(marker_path(run.directory)) or fenced(run.directory):
        return
    raise Unreadable(
        f"{run.directory} has never held a checkpoint, but this job has been at step {run.last_step}: mount the disk"
        f" that it was on and start again; {ANEW}"
    )


def _lead(run: Run, fence: RunFile, looking: Looking) -> Lineage:
    try:
        _nothing_saved_yet(run.directory, fence.attempt)
        _learn_all(run, looking)
        for _ in range(CHOICES):
            found, anew = _choose(run, fence, looking)
            parent = found.chosen and Place(found.chosen.attempt, found.chosen.step)
            there = parent is not None and disk.exists(manifest_path(run.directory, parent))
            near = parent is not None and not there and looking.near is not None and parent in looking.near.whole
            if parent is None or there or near:
                break
    except (CheckpointError, OSError) as why:
        with suppress(OSError):
            disk.create(refused_path(run.directory, fence.attempt), {"why": str(why)})
        raise
    lineage = Lineage(fence.attempt, parent, run.world_size, found.skipped, fence.run, anew, near)
    if not create_lineage(run.directory, lineage):
        raise AlreadyBegun(f"another process has chosen for attempt {fence.attempt} in {run.directory}")
    _still_first(run.directory, fence.attempt)
    if parent is not None and not near and not disk.exists(manifest_path(run.directory, parent)):
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


def _open_near(run: Run, looking: Looking) -> None:
    """What is on this node's own disk is told to the others."""
    if run.tiers.near is None:
        return
    secret = ""
    if run.world_size > 1:
        what = f"rank 0 wrote no secret for attempt {looking.attempt}"
        secret = wait_for(lambda: secret_of(run.directory, looking.attempt), looking, what)
    looking.near = Near(run.tiers.near, run, looking.attempt, secret)
    looking.near.tell()


def _learn_all(run: Run, looking: Looking) -> None:
    """Rank 0: what is whole on the disks of all nodes that take part."""
    if run.tiers.near is None:
        return
    if run.world_size > 1:
        create_secret(run.directory, looking.attempt)
    _open_near(run, looking)
    near = looking.near
    if near is not None:
        what = f"a rank of attempt {looking.attempt} did not say what is on its node"
        try:
            near.decide([wait_for(partial(near.told_by, rank), looking, what) for rank in range(run.world_size)])
        except disk.Damaged as damage:
            raise Unreadable(f"what the ranks of attempt {looking.attempt} told of their nodes {damage}") from None


def _choose(run: Run, fence: RunFile, looking: Looking) -> tuple[Survey, bool]:
    """What to go on from; and whether that is a lineage that was begun anew on wish."""
    _still_first(run.directory, fence.attempt)
    latest = max((number for number in begun(run.directory) if number < fence.attempt), default=None)
    was_anew = latest is not None and lineage_of(run.directory, latest).anew
    if run.anew and not (was_anew and _any_finished(run.directory, latest)):
        log.warning("attempt %d begins anew in %s, as was asked for", fence.attempt, run.directory)
        return Survey(None, ()), True
    return _chosen(run, fence, looking), was_anew


def _any_finished(root: Path, attempt: int | None) -> bool:
    """Whether a checkpoint was ever finished by this attempt (None: by any)."""
    return bool(_finished(root, attempts(root) if attempt is None else [attempt]))


def _finished(root: Path, numbers: list[int]) -> list[Place]:
    places = (Place(number, step) for number in numbers for step in steps(root, number))
    return [place for place in places if disk.exists(manifest_path(root, place))]


def _beside(run: Run, found: Survey) -> str:
    """Where the lineage of the latest attempt leads to nothing, others may still be there."""
    looked_at = {Place(one.attempt, one.step) for one in found.skipped}
    others = [place for place in _finished(run.directory, attempts(run.directory)) if place not in looked_at]
    if not others:
        return ""
    return f"; or move the attempts after {others[-1].attempt} away to go on from {others[-1]}"


def _chosen(run: Run, fence: RunFile, looking: Looking) -> Survey:
    found = _survey(run, fence, looking)
    if found.chosen is not None:
        place = Place(found.chosen.attempt, found.chosen.step)
        if looking.near is None or place not in looking.near.whole:
            _put_back(run.directory, place)
    elif found.committed:
        raise Unreadable(
            f"none of the checkpoints in {run.directory} is whole: {'; '.join(map(str, found.skipped[:3]))};"
            f" restore one of them and start again{_beside(run, found)}; {ANEW}"
        )
    elif _any_finished(run.directory, None):
        raise Unreadable(
            f"{run.directory} holds checkpoints of older attempts, and the latest attempt began anew and saved none:"
            f" move that attempt away to go on from them; {ANEW}"
        )
    elif fence.attempt > 1 and not begun(run.directory):
        if run.last_step:
            raise Unreadable(
                f"{run.directory} holds no earlier attempt, but this job has been at step {run.last_step}: see that it"
                f" is the same disk everywhere and start again; {ANEW}"
            )
        log.warning("attempt %d finds no earlier attempt in %s", fence.attempt, run.directory)
    return found


def _survey(run: Run, fence: RunFile, looking: Looking) -> Survey:
    """A server that does not answer now may answer in a minute."""
    near: Mapping[Place, Manifest | str] = looking.near.found if looking.near is not None else NONE_NEAR
    for pause in READ_AGAIN:
        try:
            return survey(run.directory, fence.attempt, looking.together, near)
        except Unreadable as why:
            if not isinstance(why.__cause__, OSError) or why.__cause__.errno not in COMES_BACK:
                raise
            log.warning("%s; tried again in %g s", why, pause)
            time.sleep(pause)
            _still_first(run.directory, fence.attempt)
    return survey(run.directory, fence.attempt, looking.together, near)


def _put_back(root: Path, place: Place) -> None:
    """One whose removal was not finished, and that an older attempt began from: it is a checkpoint again."""
    if not disk.exists(manifest_path(root, place)):
        with suppress(FileNotFoundError):  # its remover has put it back himself, or it is gone, which is looked at next
            removed_path(root, place).rename(manifest_path(root, place))
            disk.sync(step_path(root, place))


def _still_first(directory: Path, number: int) -> None:
    """What decides is listed anew: a client may remember what a directory held, and what it did not hold."""
    disk.refresh(directory)
    for attempt in attempts(directory):
        _refresh(attempt_path(directory, attempt))
        for step in steps(directory, attempt):
            if not disk.exists(manifest_path(directory, Place(attempt, step))):
                _refresh(step_path(directory, Place(attempt, step)))
    there = fenced(directory, least=number)
    if number not in there:
        raise Unreadable(f"{directory} does not show attempt {number}, which has just begun in it: start once more")
    if there[-1] > number:
        raise superseded(directory, number, there[-1])


def _refresh(directory: Path) -> None:
    try:
        disk.refresh(directory)
    except PermissionError:
        if os.access(directory, os.W_OK):
            raise  # else somebody has protected it from writing: it stays as it is


# --- the others


def _follow(run: Run, looking: Looking) -> tuple[RunFile, Lineage]:
    """Take this rank's place, look at what rank 0 names, and wait until it has chosen."""
    number = looking.attempt
    disk.make(begun_path(run.directory, number, run.rank).parent)
    if not disk.take(begun_path(run.directory, number, run.rank)):
        _end_with(RESTARTED_IN_PLACE)
        raise AlreadyBegun(
            f"rank {run.rank} of attempt {number} has begun already in {run.directory}: a rank that ends takes its"
            " attempt along, all ranks start again under the next number (torchrun --max-restarts=0)"
        )
    ours = wait_for(lambda: _fence_of(run, number), looking, f"rank 0 did not begin attempt {number}")
    if ours.launch != launch():
        raise AlreadyBegun(
            f"attempt {number} in {run.directory} belongs to another launch than rank {run.rank}: every run needs a"
            " number of its own"
        )
    if ours.world_size != run.world_size:
        raise CheckpointError(
            f"rank 0 began attempt {number} with {ours.world_size} ranks, rank {run.rank} counts {run.world_size}:"
            " WORLD_SIZE must be the same for all"
        )
    if (ours.near, ours.far) != (bool(run.tiers.near), run.tiers.far):
        raise CheckpointError(
            f"rank 0 and rank {run.rank} differ in near= or far= (SICKBAY_CHECKPOINT_NEAR, SICKBAY_CHECKPOINT_FAR): all"
            " ranks need the same"
        )
    looking.run = ours.run
    _open_near(run, looking)

    def chosen() -> Lineage | None:
        looking.share()
        if (refused := _read(refused_path(run.directory, number))) is not None:
            raise Unreadable(str(refused["why"]))
        return _lineage_of(run.directory, number)

    lineage = wait_for(chosen, looking, f"rank 0 did not choose a checkpoint for attempt {number}")
    _not_later(run.directory, number)
    if looking.near is not None and not looking.near.learn():
        raise Unreadable(f"{run.directory} does not show what rank 0 has found on the nodes: start once more")
    return ours, lineage


def _fence_of(run: Run, number: int) -> RunFile | None:
    _not_later(run.directory, number)
    try:
        return read_fence(run.directory, number)
    except disk.Damaged as damage:
        raise Unreadable(f"{run_path(run.directory, number)} {damage}") from None


def _not_later(directory: Path, number: int) -> None:
    if later := fenced(directory, least=number + 1):
        raise superseded(directory, number, later[-1])


def _lineage_of(directory: Path, number: int) -> Lineage | None:
    try:
        return read_lineage(directory, number)
    except disk.Damaged as damage:
        raise Unreadable(f"{lineage_path(directory, number)} {damage}") from None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return disk.read(path)
    except disk.Damaged as damage:
        raise Unreadable(f"{path} {damage}") from None


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


def _end_with(code: int) -> None:
    """A script that does not catch AlreadyBegun ends with a code of its own, by which its launcher knows what it is."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if issubclass(kind, AlreadyBegun):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    sys.excepthook = hook


def superseded(directory: Path, number: int, later: int) -> Superseded:
    return Superseded(f"attempt {later} has begun in {directory}: attempt {number} is over")
