"""Durability (fsync): what a power cut would leave, by a model of a disk that keeps nothing that was not synced."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sickbay import train


class Volatile:
    """What a power cut would take: contents of files, and names in directories."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: set[Path] = set()
        self.names: set[Path] = set()
        self.open: dict[int, Path] = {}
        self.checked = {"committed": 0, "removed": 0}

    def new_name(self, path: Path) -> None:
        """A checkpoint has a manifest last of all; of one that is removed nothing goes before its manifest has gone."""
        if path.name == "manifest.json":
            self.checked["committed"] += 1
            assert self.lost_with(path.parent) == [], "what the manifest lists is on the disk before it"
        self.names.add(path)

    def lost_with(self, step: Path) -> list[Path]:
        """What of a step, and of what leads to it, a power cut would take now."""
        needed = {step, step.parent, step.parent / "RUN", step.parent / "LINEAGE", self.root / "SICKBAY"}
        volatile = self.names | self.contents
        return sorted(
            path
            for path in volatile
            if path in needed or (path.parent == step and path.name.startswith(("rank-", "m")))
        )


@pytest.fixture
def volatile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Volatile]:
    disk = Volatile(tmp_path / "ck")
    calls = {
        name: getattr(os, name) for name in ("open", "write", "fsync", "close", "link", "rename", "mkdir", "unlink")
    }

    def opened(path: Any, flags: int, *more: Any, **also: Any) -> int:
        handle: int = calls["open"](path, flags, *more, **also)
        if not also:
            disk.open[handle] = Path(path)
            if flags & os.O_CREAT:
                disk.new_name(Path(path))
        return handle

    def wrote(handle: int, octets: Any) -> int:
        if handle in disk.open:
            disk.contents.add(disk.open[handle])
        done: int = calls["write"](handle, octets)
        return done

    def synced(handle: int) -> None:
        calls["fsync"](handle)
        path = disk.open[handle]
        disk.contents.discard(path)
        disk.names = {name for name in disk.names if name.parent != path}

    def closed(handle: int) -> None:
        disk.open.pop(handle, None)
        calls["close"](handle)

    def linked(aside: Path, path: Path) -> None:
        if aside in disk.contents:
            disk.contents.add(path)
        disk.new_name(path)
        calls["link"](aside, path)

    def renamed(path: Path, target: Path) -> None:
        calls["rename"](path, target)
        disk.new_name(target)

    def made(path: Path, *more: Any) -> None:
        calls["mkdir"](path, *more)
        disk.new_name(Path(path))

    def unlinked(path: Any, **also: Any) -> None:
        if str(path).endswith(".shard") and also:  # by shutil.rmtree
            disk.checked["removed"] += 1
            assert not [name for name in disk.names if name.name == "removed.json"], (
                "its manifest is gone for good first"
            )
        calls["unlink"](path, **also)
        disk.names.discard(Path(path))
        disk.contents.discard(Path(path))

    mine = (opened, wrote, synced, closed, linked, renamed, made, unlinked)
    for name, replacement in zip(calls, mine, strict=True):
        monkeypatch.setattr(os, name, replacement)
    yield disk
    monkeypatch.undo()


def test_a_power_cut_at_any_moment_leaves_what_was_promised(tmp_path: Path, volatile: Volatile) -> None:
    for attempt in (1, 2):
        with train.Checkpoints(tmp_path / "ck", attempt=attempt, rank=0, world_size=1, keep=1, failures=0) as found:
            assert volatile.lost_with(tmp_path / "ck" / f"attempt-{attempt}" / "step-0") == []
            for step in range(attempt * 10, attempt * 10 + 4):
                found.save(step, {"step": step, "weights": bytearray(100)})
                found.wait()
                assert volatile.lost_with(tmp_path / "ck" / f"attempt-{attempt}" / f"step-{step}") == []
    assert volatile.checked["committed"] >= 8
    assert volatile.checked["removed"] >= 6
