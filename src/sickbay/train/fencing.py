"""Fencing: the number of an attempt is taken exclusively, and from then on no older attempt commits or removes.

RUN is the fence. Rank 0 creates it before it looks at anything; afterwards every rank checks that no younger one is
there.
"""

import os
import sys
from pathlib import Path
from types import TracebackType

from sickbay.train import disk
from sickbay.train.errors import (
    RESTARTED_IN_PLACE,
    AlreadyBegun,
    CheckpointError,
    NotOurs,
    Superseded,
    Unreadable,
)
from sickbay.train.layout import (
    ATTEMPT,
    CheckpointName,
    RunFile,
    attempt_path,
    attempts,
    create_fence,
    fenced,
    is_committed,
    lineage_path,
    marker_path,
    run_path,
    step_path,
    steps,
)
from sickbay.train.numbering import fix_number, number_of, refuse_strangers
from sickbay.train.run import Run, launch

ANEW = "SICKBAY_BEGIN_ANEW=1 (or anew=True) begins at step 0 beside what is there, and removes none of it"


def raise_fence(run: Run) -> RunFile:
    """Rank 0 takes a number. Nothing is looked at before, but for whether this is the directory that it was."""
    _same_directory(run)
    _no_part_of_another(run.directory)
    disk.make(run.directory)
    if not disk.exists(marker_path(run.directory)):
        marker = {"keeps": "checkpoints of sickbay.train", "id": os.urandom(8).hex()}
        disk.create(marker_path(run.directory), marker)
    while True:
        disk.refresh(run.directory)
        refuse_strangers(run)
        number = fix_number(run) or _free(run.directory, max(fenced(run.directory), default=0) + 1)
        highest = max(fenced(run.directory), default=0)
        if number < highest:
            raise _superseded(run.directory, number, highest)
        disk.make(attempt_path(run.directory, number))
        tiers = (run.tiers.far, bool(run.tiers.near))
        fence = RunFile(number, os.urandom(8).hex(), run.world_size, launch(), *tiers, run.job)
        if number != highest and create_fence(run.directory, fence):
            if number_of(run) not in {None, number}:  # on a disk without hard links a lost record came to be there
                raise CheckpointError(f"{run.directory} has two records of job {run.job}: start once more")
            return fence
        if run.attempt is not None:
            refuse_strangers(run)  # of a job that began here at this very moment
            end_with_own_code()
            raise AlreadyBegun(
                f"attempt {number} has already begun in {run.directory}: every run needs a number of its own"
                " (a launcher must not restart ranks within an attempt: torchrun --max-restarts=0)"
            )


def _free(directory: Path, number: int) -> int:
    """A number whose claim is there but whose RUN is not belongs to a process that died between the two."""
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


def _no_part_of_another(directory: Path) -> None:
    """A checkpoint's own directory is no place for others: they would be taken for a part of it."""
    for path in (directory, *directory.parents):
        if ATTEMPT.match(path.name) and disk.exists(marker_path(path.parent)):
            raise NotOurs(
                f"{directory} is a part of the checkpoints in {path.parent}: write that directory (sickbay restart JOB"
                " --from STEP goes on from one step), or another one"
            )


def confirm_fence(directory: Path, number: int) -> None:
    """Our fence is there, and no younger one.

    What decides is listed anew: a client may remember what a directory held, and what it did not hold.
    """
    disk.refresh(directory)
    for attempt in attempts(directory):
        _refresh(attempt_path(directory, attempt))
        for step in steps(directory, attempt):
            if not is_committed(directory, CheckpointName(attempt, step)):
                _refresh(step_path(directory, CheckpointName(attempt, step)))
    there = fenced(directory, least=number)
    if number not in there:
        raise Unreadable(f"{directory} does not show attempt {number}, which has just begun in it: start once more")
    if there[-1] > number:
        raise _superseded(directory, number, there[-1])


def refuse_if_overtaken(directory: Path, number: int) -> None:
    """The same as far as our client knows: cheap enough to be asked while a rank waits."""
    if later := fenced(directory, least=number + 1):
        raise _superseded(directory, number, later[-1])


def _refresh(directory: Path) -> None:
    try:
        disk.refresh(directory)
    except PermissionError:
        if os.access(directory, os.W_OK):
            raise  # else somebody has protected it from writing: it stays as it is


def end_with_own_code() -> None:
    """A script that does not catch AlreadyBegun ends with a code of its own, by which its launcher knows what it is."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if issubclass(kind, AlreadyBegun):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(RESTARTED_IN_PLACE)

    sys.excepthook = hook


def _superseded(directory: Path, number: int, later: int) -> Superseded:
    return Superseded(f"attempt {later} has begun in {directory}: attempt {number} is over")
