"""Retention: removing old checkpoints (keep-N) without ever removing one that somebody may go on from.

Only what an attempt has verified itself, as it wrote or read it, counts as kept: a manifest alone may belong to a
checkpoint that is corrupt by now. Only its own lineage is ever touched, and nothing at all once a younger attempt has
begun.
"""

import logging
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sickbay.train import disk
from sickbay.train.errors import CheckpointError
from sickbay.train.far import key_of, prefix_of, store_of
from sickbay.train.layout import (
    CheckpointName,
    attempt_path,
    attempts,
    failed_path,
    fenced,
    files_path,
    is_committed,
    left_path,
    manifest_path,
    read_fence,
    read_manifest,
    removed_path,
    run_path,
    step_path,
    steps,
)
from sickbay.train.objects import Objects
from sickbay.train.validity import candidates, lineage_of

log = logging.getLogger("sickbay.train")


class _Over(Exception):  # noqa: N818
    """A younger attempt has begun: what is surplus is not ours to say any more."""


def prune(root: Path, newest: CheckpointName, keep: int, verified: AbstractSet[CheckpointName]) -> list[CheckpointName]:
    """After `newest` was committed: keep the newest `keep` that were verified, and as many that attempts began from.

    Returns what was removed. Never raises: a disk that does not let go of old files is no reason to end a training.
    """
    return _remove_all(root, newest.attempt, lambda: _surplus(root, newest, keep, verified))


def clear(root: Path, attempt: int) -> list[CheckpointName]:
    """When an attempt has begun: remove what older ones did not come to finish. They cannot any more."""
    begun_from = set(parents(root, attempt))

    def unfinished() -> list[CheckpointName]:
        dead = _dead(root, CheckpointName(attempt, 0), begun_from)
        return [place for place in dead if not disk.exists(removed_path(root, place))]  # may be put back right now

    return _remove_all(root, attempt, unfinished)


def make_room(root: Path, place: CheckpointName, world_size: int) -> None:
    """Remove what other code left in earlier saves of this attempt that failed: it would fill the disk for the next.

    Their marks stay, as other ranks may still read them.
    """
    from shutil import rmtree

    with suppress(OSError, CheckpointError):  # it is only housekeeping
        for older in (CheckpointName(place.attempt, step) for step in steps(root, place.attempt) if step < place.step):
            if disk.exists(files_path(root, older)) and _is_over(root, older, world_size):
                rmtree(files_path(root, older), ignore_errors=True)


def _is_over(root: Path, place: CheckpointName, world_size: int) -> bool:
    """Whether it was not committed and nobody writes into it any more."""
    if is_committed(root, place):
        return False
    disk.refresh(step_path(root, place))
    if is_committed(root, place) or disk.exists(removed_path(root, place)):
        return False
    ended = (failed_path, left_path)
    return all(any(disk.exists(path(root, place, rank)) for path in ended) for rank in range(world_size))


def _remove_all(root: Path, attempt: int, choose: Callable[[], list[CheckpointName]]) -> list[CheckpointName]:
    removed = []
    try:
        _ours_to_say(root, attempt)
        for place in choose():
            try:
                _remove(root, attempt, place)
                removed.append(place)
            except (OSError, CheckpointError) as error:  # this one; the others are tried all the same
                log.warning("%s was not removed: %s", place, error)
    except (OSError, CheckpointError) as error:
        log.warning("old checkpoints were not removed: %s", error)
    except _Over:
        pass
    return removed


def _way(root: Path, attempt: int) -> tuple[list[CheckpointName], list[CheckpointName]]:
    """The checkpoints of this attempt's lineage, and those that its attempts began from; both newest first.

    Where an ancestor cannot be read the way ends: what lies below is left alone.
    """
    way: list[CheckpointName] = []
    with suppress(CheckpointError):  # `parents` says why
        for place, _ in candidates(root, below=attempt + 1):
            way.append(place)  # one by one: what comes before an error is known
    return way, parents(root, attempt)


def parents(root: Path, attempt: int) -> list[CheckpointName]:
    """What this attempt began from, and before it those on its lineage; newest first."""
    return _ancestry(root, attempt)[0]


def _ancestry(root: Path, attempt: int) -> tuple[list[CheckpointName], bool]:
    """The same, and whether all of it could be read: else nobody knows what else somebody began from."""
    found: list[CheckpointName] = []
    try:
        while (parent := lineage_of(root, attempt).parent) is not None:
            found.append(parent)
            attempt = parent.attempt
    except CheckpointError as error:
        log.warning("what lies below is left alone: %s", error)
        return found, False
    return found, True


def _surplus(
    root: Path, newest: CheckpointName, keep: int, verified: AbstractSet[CheckpointName]
) -> list[CheckpointName]:
    """Oldest first. What died on the way (unfinished, or saved by an ancestor after its child began) goes too."""
    way, begun_from = _way(root, newest.attempt)
    spared = set(begun_from[:keep])
    kept, held, most = 0, len(spared), 2 * keep
    for place in way:
        sure = place in verified
        if kept < keep and (sure or held < most):
            if _as_long_as_it_was(root, place):
                kept += sure
                held += place not in spared
            spared.add(place)
    dead = _dead(root, newest, set(begun_from))
    if not _ancestry(root, newest.attempt)[1]:  # one that is half removed may be what somebody began from
        dead = [place for place in dead if not disk.exists(removed_path(root, place))]
    if kept < keep and held < most:  # what nobody has verified lately may be all that there is
        return dead
    numbers = {place.attempt for place in way}
    known = [CheckpointName(number, step) for number in numbers for step in steps(root, number)]
    spared |= _left_on_wish(root, newest.attempt)
    return sorted({*dead, *(place for place in known if place < newest and place not in spared)})


def _left_on_wish(root: Path, attempt: int) -> set[CheckpointName]:
    """What is younger than a step that a person went back to, in the attempt that had saved it: he may come again."""
    found: set[CheckpointName] = set()
    with suppress(CheckpointError):
        while (parent := (lineage := lineage_of(root, attempt)).parent) is not None:
            if lineage.asked:
                found |= {CheckpointName(parent.attempt, n) for n in steps(root, parent.attempt) if n > parent.step}
            attempt = parent.attempt
    return found


def _dead(root: Path, newest: CheckpointName, begun_from: AbstractSet[CheckpointName]) -> list[CheckpointName]:
    """Saves of older attempts, or of this one's earlier steps, that never came to their end: they cannot any more."""
    numbers = [number for number in attempts(root) if number <= newest.attempt]
    known = sorted(CheckpointName(number, step) for number in numbers for step in steps(root, number))
    needed = begun_from - _near_only(root, newest.attempt)
    return [place for place in known if place < newest and place not in needed and not is_committed(root, place)]


def _near_only(root: Path, attempt: int) -> set[CheckpointName]:
    """Parents that were on the nodes' own disks only: what was uploaded of them is no use to anybody."""
    found: set[CheckpointName] = set()
    with suppress(CheckpointError):
        while (parent := (lineage := lineage_of(root, attempt)).parent) is not None:
            if lineage.near and not disk.exists(removed_path(root, parent)):
                found.add(parent)
            attempt = parent.attempt
    return found


def _as_long_as_it_was(root: Path, place: CheckpointName) -> bool:
    """Whether no file of it was lost or cut since it was verified."""
    try:
        manifest = read_manifest(root, place)
    except disk.Damaged:
        return False
    if manifest is None:
        return False
    if manifest.far:
        there = set(store_of(manifest.far).list(prefix_of(place, manifest.run)))
        return all(key_of(place, manifest.run, name) in there for name in manifest.files)
    return all(disk.misfit_of(step_path(root, place) / name, one) is None for name, one in manifest.files.items())


def is_newest(root: Path, attempt: int) -> bool:
    """Whether surely no younger attempt has begun: one that begins from now on finds what was committed before."""
    try:
        _ours_to_say(root, attempt)
    except (OSError, CheckpointError, _Over):
        return False
    return True


def _ours_to_say(root: Path, attempt: int) -> None:
    disk.refresh(root)
    for number in attempts(root):
        if number > attempt:
            disk.refresh(attempt_path(root, number))  # our client may remember that there was no RUN
    if fenced(root, least=attempt + 1):
        raise _Over


def _remove(root: Path, attempt: int, place: CheckpointName) -> None:
    """The manifest first: from then on it is no checkpoint, wherever this process dies.

    A younger attempt may begin at this very moment. It creates its RUN and then looks for manifests; we take the
    manifest and then look for a younger RUN. So at least one of us sees the other, and what we took is put back.
    """
    manifest, removed = manifest_path(root, place), removed_path(root, place)
    store = _store_with(root, place)
    try:
        manifest.rename(removed)
    except FileNotFoundError:
        taken = False  # it never had one, or an earlier process died at this point
    else:
        taken = True
        disk.sync(step_path(root, place))
    try:
        _ours_to_say(root, attempt)
    except BaseException:
        if taken and disk.exists(removed):
            removed.rename(manifest)
        raise
    from shutil import rmtree

    if store is not None:  # first what is named nowhere once the directory is gone
        store.objects.remove_all(store.prefix)
    rmtree(step_path(root, place))


class _Store(NamedTuple):
    """Where an attempt put the files of one of its steps."""

    objects: Objects
    prefix: str


def _store_with(root: Path, place: CheckpointName) -> _Store | None:
    try:
        fence = read_fence(root, place.attempt)
    except disk.Damaged as damage:
        why = f"where its files are is not known, as {run_path(root, place.attempt)} {damage}"
        raise CheckpointError(why) from None
    return _Store(store_of(fence.far), prefix_of(place, fence.run)) if fence is not None and fence.far else None
