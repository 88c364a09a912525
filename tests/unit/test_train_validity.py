"""Which checkpoint is gone on from, and what is said of those that are not."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sickbay import train
from sickbay.train import disk

STATE = bytes(range(256)) * 16


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Steps 10 to 40 of one attempt, all whole."""
    with train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1, keep=None) as checkpoints:
        for step in (10, 20, 30, 40):
            checkpoints.save(step, STATE)
    return tmp_path


def newest(directory: Path) -> Path:
    return directory / "attempt-1" / "step-40"


def tear(step: Path) -> None:
    os.truncate(step / "rank-0.shard", 120)


def lengthen(step: Path) -> None:
    with (step / "rank-0.shard").open("ab") as file:
        file.write(b"!")


def flip(step: Path) -> None:
    octets = bytearray((step / "rank-0.shard").read_bytes())
    octets[1000] ^= 1
    (step / "rank-0.shard").write_bytes(octets)


def flip_manifest(step: Path) -> None:
    text = (step / "manifest.json").read_text(encoding="ascii")
    (step / "manifest.json").write_text(text.replace('"size": 4096', '"size": 4097'), encoding="ascii")


def of_another_step(step: Path) -> None:
    (step / "manifest.json").write_bytes((step.parent / "step-30" / "manifest.json").read_bytes())


DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (tear, "rank-0.shard is torn (120 of 4096 bytes)"),
    (lengthen, "rank-0.shard is too long (4097 of 4096 bytes)"),
    (flip, "rank-0.shard is corrupt (its checksum differs)"),
    (lambda step: (step / "rank-0.shard").unlink(), "rank-0.shard is missing"),
    (lambda step: (step / "manifest.json").unlink(), "it has no manifest: its save was never finished"),
    (lambda step: (step / "manifest.json").write_bytes(b""), "manifest.json is empty"),
    (lambda step: (step / "manifest.json").write_bytes(b"\x00\xff{"), "manifest.json is not JSON"),
    (lambda step: (step / "manifest.json").write_bytes(b"[" * 100_000), "manifest.json is not JSON"),
    (lambda step: (step / "manifest.json").write_bytes(b"[1]"), "manifest.json does not have the checksum"),
    (flip_manifest, "manifest.json does not have the checksum that it was written with"),
    (of_another_step, "manifest.json is of attempt-1/step-30"),
]


@pytest.mark.parametrize(("damage", "why"), DAMAGE)
def test_one_that_is_not_whole_is_skipped_and_the_reason_is_told(
    damage: Callable[[Path], object], why: str, directory: Path
) -> None:
    damage(newest(directory))
    found = train.latest_valid(directory)
    assert found.step == 30
    ((attempt, step, told),) = found.skipped
    assert (attempt, step) == (1, 40)
    assert told.startswith(why)


def test_a_run_that_skipped_one_hands_the_reason_to_every_rank(directory: Path) -> None:
    tear(newest(directory))
    ranks = [train.Checkpoints(directory, attempt=2, rank=rank, world_size=2) for rank in (0, 1)]
    for rank in ranks:
        assert rank.resumed.step == 30
        assert [str(one) for one in rank.skipped] == ["attempt-1/step-40: rank-0.shard is torn (120 of 4096 bytes)"]


def test_all_that_were_passed_over_are_named_newest_first(directory: Path) -> None:
    for step in (20, 30, 40):
        tear(directory / "attempt-1" / f"step-{step}")
    found = train.latest_valid(directory)
    assert (found.step, [one.step for one in found.skipped]) == (10, [40, 30, 20])


def test_when_none_is_whole_training_begins_anew_only_on_wish_and_removes_nothing(directory: Path) -> None:
    for step in (10, 20, 30, 40):
        flip(directory / "attempt-1" / f"step-{step}")
    with pytest.raises(train.Unreadable, match=r"none of the checkpoints in .* is whole.*SICKBAY_BEGIN_ANEW=1"):
        train.Checkpoints(directory, attempt=2, rank=0, world_size=1)
    with train.Checkpoints(directory, attempt=3, rank=0, world_size=1, keep=1, anew=True) as third:
        assert third.resumed is None
        for step in (1, 2, 3):
            third.save(step, STATE)
    assert len(list(directory.glob("attempt-1/*/manifest.json"))) == 4, "another lineage is nobody's to remove"
    assert [path.parent.name for path in directory.glob("attempt-3/*/manifest.json")] == ["step-3"]


def test_what_an_older_attempt_commits_after_its_child_began_is_dead(directory: Path) -> None:
    tear(newest(directory))
    train.Checkpoints(directory, attempt=2, rank=0, world_size=1).wait()
    (newest(directory) / "rank-0.shard").write_bytes(STATE)  # whole again, and newer than the parent
    found = train.latest_valid(directory)
    assert (found.attempt, found.step) == (1, 30)


def test_the_way_back_goes_through_exactly_the_parents(directory: Path) -> None:
    for attempt, steps in ((2, (50, 60)), (3, (70,))):
        with train.Checkpoints(directory, attempt=attempt, rank=0, world_size=1, keep=None) as checkpoints:
            for step in steps:
                checkpoints.save(step, STATE)
    order = []
    while (found := train.latest_valid(directory)) is not None:
        order.append((found.attempt, found.step))
        tear(found.path)
    assert order == [(3, 70), (2, 60), (2, 50), (1, 40), (1, 30), (1, 20), (1, 10)]


def test_a_parent_that_is_gone_is_told_and_passed_over(directory: Path) -> None:
    train.Checkpoints(directory, attempt=2, rank=0, world_size=1).wait()
    for path in sorted(newest(directory).iterdir()):
        path.unlink()
    newest(directory).rmdir()
    found = train.latest_valid(directory)
    assert (found.step, [str(one) for one in found.skipped]) == (30, ["attempt-1/step-40: it is gone"])


def test_an_attempt_without_lineage_never_began(directory: Path) -> None:
    (directory / "attempt-9").mkdir()
    assert train.latest_valid(directory).step == 40
    with train.Checkpoints(directory, rank=0, world_size=1) as checkpoints:
        assert checkpoints.attempt == 2


@pytest.mark.parametrize("rot", [b"", b"garbage", b"{}"])
def test_a_damaged_lineage_stops_rather_than_guesses(rot: bytes, directory: Path) -> None:
    train.Checkpoints(directory, attempt=2, rank=0, world_size=1).wait()
    (directory / "attempt-2" / "LINEAGE").write_bytes(rot)
    with pytest.raises(train.Unreadable, match="move attempt-2 away to go on from what is below it"):
        train.Checkpoints(directory, attempt=3, rank=0, world_size=1)
    (directory / "attempt-2").rename(directory / "aside")
    assert train.latest_valid(directory).step == 40


def test_a_lineage_that_names_itself_does_not_lead_in_a_circle(directory: Path) -> None:
    (directory / "attempt-2").mkdir()
    content = {"attempt": 2, "parent": {"attempt": 2, "step": 5}, "world_size": 1, "skipped": []}
    disk.create(directory / "attempt-2" / "LINEAGE", content)
    with pytest.raises(train.Unreadable, match="names a parent that is not older, attempt-2/step-5"):
        train.latest_valid(directory)


@pytest.mark.parametrize(
    "name", ["attempt-", "attempt-0", "attempt-01", "attempt-1x", "attempt--1", "Attempt-5", "attempt-1٣", "x"]
)
def test_what_is_not_ours_is_left_alone(name: str, directory: Path) -> None:
    (directory / name).mkdir()
    (directory / "attempt-1" / "step-x").mkdir()
    (directory / "attempt-1" / "notes.txt").write_bytes(b"mine")
    assert train.latest_valid(directory).step == 40


def test_an_empty_or_missing_directory_has_no_checkpoint(tmp_path: Path) -> None:
    assert train.latest_valid(tmp_path) is None
    assert train.latest_valid(tmp_path / "none") is None


def test_a_directory_that_cannot_be_looked_into_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(train.Unreadable, match=r"cannot read .*file: Not a directory"):
        train.latest_valid(tmp_path / "file")


UNREADABLE = """
import os, sys
from sickbay import train
os.chmod(sys.argv[2], 0)
if os.getuid() == 0:
    os.setuid(65534)
try:
    print(train.latest_valid(sys.argv[1]))
except train.Unreadable as error:
    print("unreadable:", error)
"""


@pytest.mark.parametrize("part", [".", "attempt-1", "attempt-1/step-40", "attempt-1/step-40/rank-0.shard"])
def test_what_may_not_be_read_is_an_error_not_a_corrupt_checkpoint(part: str, directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sickbay-") as open_to_all:  # pytest's own is closed to other users
        Path(open_to_all).chmod(0o755)
        copy = shutil.copytree(directory, Path(open_to_all) / "checkpoints")
        told = subprocess.run(
            [sys.executable, "-c", UNREADABLE, str(copy), str(copy / part)],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        (copy / part).chmod(0o755)
    assert told.stdout.startswith("unreadable: cannot read ")
    assert "Permission denied" in told.stdout


PROTECTED = """
import os, sys
from sickbay import train
if os.getuid() == 0:
    os.setuid(65534)
with train.Checkpoints(sys.argv[1], attempt=2, rank=0, world_size=1, keep=1) as second:
    print(second.resumed, second.load() == bytes(range(256)) * 16)
    second.save(50, b"next")
"""


def test_an_attempt_that_somebody_has_protected_from_writing_is_gone_on_from(directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="sickbay-") as open_to_all:
        Path(open_to_all).chmod(0o755)
        copy = shutil.copytree(directory, Path(open_to_all) / "checkpoints")
        owner = 65534 if os.getuid() == 0 else os.getuid()
        for path in (copy, *copy.rglob("*")):
            os.chown(path, owner, -1)
        closed = [copy / "attempt-1", *(copy / "attempt-1").rglob("*")]
        for path in reversed(closed):
            path.chmod(0o555 if path.is_dir() else 0o444)
        told = subprocess.run(
            [sys.executable, "-c", PROTECTED, str(copy)], check=False, capture_output=True, text=True, timeout=60
        )
        kept = len(list(copy.glob("*/*/manifest.json")))
        for path in closed:
            path.chmod(0o755)
    assert (told.stdout, kept) == ("attempt-1/step-40 True\n", 5), told.stderr
