"""Removing old checkpoints without ever removing one that somebody goes on from."""

import logging
from pathlib import Path

from sickbay.train import disk
from sickbay.train.errors import CheckpointError
from sickbay.train.layout import (
    Place,
    attempts,
    begun,
    manifest_path,
    removed_path,
    step_path,
    steps,
)
from sickbay.train.validity import candidates, lineage_of

log = logging.getLogger("sickbay.train")


def prune(root: Path, newest: Place, keep: int) -> list[Place]:
    """After `newest` was committed: keep the newest `keep` on its lineage and every parent; what was removed.

    Never raises: a disk that does not let go of old files is no reason to end a training.
    """
    try:
        return [place for place in _surplus(root, newest, keep) if _remove(root, place)]
    except (OSError, CheckpointError) as error:
        log.warning("old checkpoints were not removed: %s", error)
        return []


def parents(root: Path) -> set[Place]:
    """Every checkpoint that some attempt began from. Raises if a LINEAGE cannot be read: it may name any of them."""
    lineages = [lineage_of(root, attempt) for attempt in begun(root)]
    return {lineage.parent for lineage in lineages if lineage.parent is not None}


def _surplus(root: Path, newest: Place, keep: int) -> list[Place]:
    """Oldest first. What died on the way (no manifest, or on nobody's lineage) goes too, parents never."""
    if any(number > newest.attempt for number in begun(root)):
        return []  # we are the past: what is surplus is no longer ours to say
    whole = [place for place in candidates(root) if manifest_path(root, place).exists()]
    spared = set(whole[:keep]) | parents(root)
    known = [Place(attempt, step) for attempt in attempts(root) for step in steps(root, attempt)]
    return [place for place in known if place < newest and place not in spared]


def _remove(root: Path, place: Place) -> bool:
    """The manifest first: from then on it is no checkpoint, wherever this process dies.

    An attempt may begin from it at this very moment. It writes its LINEAGE and then looks whether the manifest is
    still there; we take the manifest and then look into every LINEAGE. So at least one of us sees the other.
    """
    manifest, removed = manifest_path(root, place), removed_path(root, place)
    try:
        manifest.rename(removed)
    except FileNotFoundError:
        pass  # it never had one, or an earlier process died at this point
    else:
        disk.sync(step_path(root, place))
    if place in parents(root):
        if removed.exists() and not manifest.exists():
            removed.rename(manifest)
        return False
    from shutil import rmtree

    rmtree(step_path(root, place))
    return True
