"""Far tier: where the files of a committed checkpoint are, in its directory or in an object store.

Fence, lineage, parts and manifests are always in the checkpoint directory. A manifest says where its files are.
"""

import errno
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import cast

from sickbay.train import disk
from sickbay.train.layout import CheckpointName, Manifest, step_path
from sickbay.train.objects import Objects, connect

Opened = AbstractContextManager[disk.ByteStream]


@lru_cache(maxsize=8)
def store_of(url: str) -> Objects:
    return connect(url)


def key_of(place: CheckpointName, run: str, name: str) -> str:
    """With the run's own id: two jobs may have one prefix, and a number may be given twice."""
    return f"{prefix_of(place, run)}/{name}"


def prefix_of(place: CheckpointName, run: str) -> str:
    return f"attempt-{place.attempt}.{run}/step-{place.step}"


def far_copy(root: Path, manifest: Manifest, name: str) -> disk.File | None:
    """The durable copy of a file that a manifest names; None: there is none yet."""
    if manifest.far is None:
        return None
    if not manifest.far:
        return step_path(root, manifest.place) / name
    store, key = store_of(manifest.far), key_of(manifest.place, manifest.run, name)

    def size() -> int:
        found = store.size_of(key)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "it is not there", key)
        return found

    return disk.Copy(name, f"{manifest.far}/{key}", size, lambda: cast(Opened, store.open(key)))
