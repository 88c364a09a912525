"""Choice of the checkpoint to resume from, on rank 0: what a survey finds whole, or why nothing may be begun from.

An empty directory is no new one where this job has been further, and a directory in which nothing is whole is no empty
one: both are refused instead of beginning at step 0.
"""

import errno
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.errors import NoSuchStep, Unreadable
from sickbay.train.fencing import ANEW, confirm_fence
from sickbay.train.layout import (
    CheckpointName,
    Lineage,
    Manifest,
    RunFile,
    attempts,
    begun,
    is_committed,
    manifest_path,
    removed_path,
    step_path,
    steps,
)
from sickbay.train.numbering import owner_of, refuse_strangers
from sickbay.train.run import Run
from sickbay.train.sharing import Looking
from sickbay.train.validity import NONE_NEAR, Survey, lineage_of, survey

log = logging.getLogger("sickbay.train")
READ_AGAIN = (1.0, 4.0, 15.0, 60.0)  # seconds after which what could not be read is tried again, before it is refused
NAMED = 20  # steps that a refusal names
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


def choose(run: Run, fence: RunFile, looking: Looking) -> Lineage:
    """What this attempt goes on from: verified after the fence was there, and still there when it was chosen."""
    for _ in range(CHOICES):
        found, anew, asked = _choose(run, fence, looking)
        parent = found.chosen and CheckpointName(found.chosen.attempt, found.chosen.step)
        there = parent is not None and is_committed(run.directory, parent)
        near = parent is not None and not there and looking.near is not None and parent in looking.near.whole
        if parent is None or there or near:
            break
    refuse_strangers(run, fence.attempt)  # one that began meanwhile: its fence came before ours, ours before its word
    asked = asked or (parent is not None and _asked_before(run.directory, fence.attempt, parent))
    owner = owner_of(run.directory, parent.attempt) if parent is not None else ""
    of = owner if owner != run.job else ""
    return Lineage(fence.attempt, parent, run.world_size, found.skipped, fence.run, anew, near, asked, of)


def _asked_before(root: Path, below: int, parent: CheckpointName) -> bool:
    """Whether an attempt that saved nothing was sent back to this one on wish: it is on nobody's way any more."""
    attempt = max((number for number in begun(root) if number < below), default=None)
    while attempt is not None and attempt > parent.attempt:
        lineage = lineage_of(root, attempt)
        if lineage.asked and lineage.parent is not None and lineage.parent.attempt == parent.attempt:
            return True
        attempt = lineage.parent.attempt if lineage.parent is not None else None
    return False


class _Choice(NamedTuple):
    """What to go on from; whether that lineage was begun anew on wish; and whether a person named this very step."""

    found: Survey
    anew: bool = False
    asked: bool = False


def _choose(run: Run, fence: RunFile, looking: Looking) -> _Choice:
    confirm_fence(run.directory, fence.attempt)
    refuse_strangers(run, fence.attempt)
    latest = max((number for number in begun(run.directory) if number < fence.attempt), default=None)
    ours = latest is not None and (not run.job or owner_of(run.directory, latest) == run.job)
    if run.from_step is not None and run.job and not ours:
        return _exactly(run, fence, looking, run.from_step)
    lineage = lineage_of(run.directory, latest) if latest is not None else None
    was_anew = lineage is not None and lineage.anew
    kept = was_anew and ours and ((lineage and lineage.parent) or _any_finished(run.directory, latest))
    if run.anew and not kept:
        log.warning("attempt %d begins anew in %s, as was asked for", fence.attempt, run.directory)
        return _Choice(Survey(None, ()), anew=True)
    return _Choice(_chosen(run, fence, looking), anew=was_anew)


def _exactly(run: Run, fence: RunFile, looking: Looking, step: int) -> _Choice:
    """The step that a person named, the newest one of that number; what is younger is not the lineage any more."""
    found = _survey(run, fence, looking, step)
    if found.chosen is None:
        why = f": {'; '.join(map(str, found.skipped[:3]))}" if found.skipped else ", as there is none"
        raise NoSuchStep(
            f"job {run.job} cannot go on from step {step} in {run.directory}{why}; {_there(run, fence, looking)}"
        )
    place = CheckpointName(found.chosen.attempt, found.chosen.step)
    if looking.near is None or place not in looking.near.whole:
        _put_back(run.directory, place)
    return _Choice(found, anew=lineage_of(run.directory, place.attempt).anew, asked=True)


def _there(run: Run, fence: RunFile, looking: Looking) -> str:
    """Which steps a person may ask for."""
    numbers = [number for number in attempts(run.directory) if number < fence.attempt]
    near = looking.near.whole if looking.near is not None else {}
    known = sorted({place.step for place in (*_finished(run.directory, numbers), *near)})
    more = "…, " if len(known) > NAMED else ""
    return f"there are {more}{', '.join(map(str, known[-NAMED:]))}" if known else "no step is saved there at all"


def _any_finished(root: Path, attempt: int | None) -> bool:
    """Whether a checkpoint was ever finished by this attempt (None: by any)."""
    return bool(_finished(root, attempts(root) if attempt is None else [attempt]))


def _finished(root: Path, numbers: list[int]) -> list[CheckpointName]:
    places = (CheckpointName(number, step) for number in numbers for step in steps(root, number))
    return [place for place in places if is_committed(root, place)]


def _beside(run: Run, found: Survey) -> str:
    """Where the lineage of the latest attempt leads to nothing, others may still be there."""
    looked_at = {CheckpointName(one.attempt, one.step) for one in found.skipped}
    others = [place for place in _finished(run.directory, attempts(run.directory)) if place not in looked_at]
    if not others:
        return ""
    return f"; or move the attempts after {others[-1].attempt} away to go on from {others[-1]}"


def _chosen(run: Run, fence: RunFile, looking: Looking) -> Survey:
    found = _survey(run, fence, looking)
    if found.chosen is not None:
        place = CheckpointName(found.chosen.attempt, found.chosen.step)
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


def _survey(run: Run, fence: RunFile, looking: Looking, step: int | None = None) -> Survey:
    """A server that does not answer now may answer in a minute."""
    near: Mapping[CheckpointName, Manifest | str] = looking.near.found if looking.near is not None else NONE_NEAR
    for pause in READ_AGAIN:
        try:
            return survey(run.directory, fence.attempt, looking.together, near, step)
        except Unreadable as why:
            if not isinstance(why.__cause__, OSError) or why.__cause__.errno not in COMES_BACK:
                raise
            log.warning("%s; tried again in %g s", why, pause)
            time.sleep(pause)
            confirm_fence(run.directory, fence.attempt)
    return survey(run.directory, fence.attempt, looking.together, near, step)


def _put_back(root: Path, place: CheckpointName) -> None:
    """One whose removal was not finished, and that an older attempt began from: it is a checkpoint again."""
    if not is_committed(root, place):
        with suppress(FileNotFoundError):  # its remover has put it back himself, or it is gone, which is looked at next
            removed_path(root, place).rename(manifest_path(root, place))
            disk.sync(step_path(root, place))
