"""The Mirror port's contract on every mirror there is, and what is the local one's own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.memory_mirror import MemoryMirror

from sickbay.clusters.local.mirror import LocalMirror
from sickbay.model.errors import Rejected, Transient
from sickbay.model.fleet import JobId, NodeId
from sickbay.ports.mirror import Mirror
from sickbay.testing.mirror_contract import MirrorContract, ill, runs, well


class MemoryMirrorRig:
    def __init__(self) -> None:
        self._one = MemoryMirror()

    def mirror(self) -> Mirror:
        return self._one

    def nodes(self) -> Sequence[NodeId]:
        return [NodeId("c/n0"), NodeId("c/n1")]

    def jobs(self) -> Sequence[JobId]:
        return [JobId("llama-1"), JobId("c/ns/llama")]

    def seen(self, subject: str) -> object:
        return self._one.values.get(subject)

    def others_write(self) -> None:
        pytest.skip("nobody else has a place in it")

    def others_have(self) -> bool:
        return False

    def break_far_side(self) -> None:
        def down(_: str) -> None:
            raise Transient("it is away")

        self._one.trouble = down


class LocalMirrorRig(MemoryMirrorRig):
    def __init__(self, root: Path) -> None:
        self._root = root

    def mirror(self) -> Mirror:
        return LocalMirror(self._root, "c")

    def seen(self, subject: str) -> object:
        file = next((one for one in (self._root / "mirror").glob("*/*.json") if self._of(one) == subject), None)
        return None if file is None else file.read_bytes()

    def _of(self, file: Path) -> str:
        try:
            found: dict[str, Any] = json.loads(file.read_text())
        except ValueError:
            return ""
        return f"{found['shows']}:{found[found['shows']]}"

    @property
    def _theirs(self) -> list[Path]:
        return [self._root / "mirror" / place for place in ("README", "nodes/notes.txt", "jobs/n0.json.bak")]

    def others_write(self) -> None:
        for file in self._theirs:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("mine")

    def others_have(self) -> bool:
        return all(file.read_text() == "mine" for file in self._theirs)

    def break_far_side(self) -> None:
        (self._root / "mirror").rename(self._root / "away")
        (self._root / "mirror").write_text("a file is in the way")


class TestMemoryMirror(MirrorContract):
    @pytest.fixture
    def rig(self) -> MemoryMirrorRig:
        return MemoryMirrorRig()


class TestLocalMirror(MirrorContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> LocalMirrorRig:
        return LocalMirrorRig(tmp_path)


def test_a_file_has_every_field_so_that_who_reads_it_need_not_know_what_is_left_out(tmp_path: Path) -> None:
    mirror = LocalMirror(tmp_path, "c")
    mirror.show(well(NodeId("c/n0")))
    mirror.show(runs(JobId("llama-1"), 7, "RUNNING: all ranks were seen"))
    node = json.loads((tmp_path / "mirror/nodes/n0.json").read_text())
    job = json.loads((tmp_path / "mirror/jobs/llama-1.json").read_text())
    assert (node["state"], node["incident"], node["jobs"], node["schedulable"]) == ("READY", None, [], True)
    assert (job["state"], job["step"], job["restarts"], job["lines"][0]["text"]) == (
        "RUNNING", 7, 0, "RUNNING: all ranks were seen",
    )  # fmt: skip


def test_a_writer_that_was_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    mirror = LocalMirror(tmp_path, "c")
    mirror.show(well(NodeId("c/n0")))
    aside = tmp_path / "mirror/nodes/.n0.json.0123456789ab"
    aside.write_text('{"shows": "no')
    assert mirror.shown() == ["node:c/n0"]
    assert not aside.exists()


def test_a_name_is_never_a_path(tmp_path: Path) -> None:
    """An id that another made may have anything in it."""
    mirror = LocalMirror(tmp_path, "c")
    names = [JobId("../../outside"), JobId(".hidden"), JobId("a/b"), JobId("a%2Fb"), JobId("ü")]
    for name in names:
        mirror.show(runs(name))
    assert sorted(mirror.shown()) == sorted(f"job:{name}" for name in names)
    assert {file.parent for file in tmp_path.rglob("*") if file.is_file()} == {tmp_path / "mirror/jobs"}
    with pytest.raises(Rejected, match="not of cluster"):
        mirror.show(ill(NodeId("other/n0")))
