"""A disk that is full: an error at the next call, never a torn checkpoint that is taken for a whole one."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sickbay import train

pytestmark = pytest.mark.slow

FILLS = """
import resource, sys
from sickbay import train
from sickbay.train import saves as module
module.AGAIN = (0.01,)  # that it is tried again is shown elsewhere
limit = int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
checkpoints = train.Checkpoints(sys.argv[1], rank=0, world_size=1, keep=None)
size = 50_000
for step in range(1, 100):
    try:
        checkpoints.save(step, bytes(size))
        checkpoints.wait()
        print(step, flush=True)
    except train.CheckpointError as error:
        print(error, flush=True)
        break
    size += 50_000
"""


def fill(directory: Path, limit: int = 0) -> list[str]:
    command = [sys.executable, "-c", FILLS, str(directory), str(limit)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout.splitlines()


def test_a_shard_that_does_not_fit_is_an_error_and_the_one_before_is_used(tmp_path: Path) -> None:
    *saved, error = fill(tmp_path, limit=220_000)
    assert saved == ["1", "2", "3", "4"]
    assert error == "attempt-1/step-5 was not saved: File too large"
    assert train.latest_valid(tmp_path).step == 4
    assert [path.name for path in (tmp_path / "attempt-1" / "step-5").iterdir()] == ["rank-0.failed"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One megabyte, mounted for this test."""
    directory, mount = tmp_path / "disk", shutil.which("mount")
    directory.mkdir()
    command = [str(mount), "-t", "tmpfs", "-o", "size=1m", "sickbay-test", str(directory)]
    made = subprocess.run(command, check=False, capture_output=True, text=True) if mount else None
    if made is None or made.returncode:
        pytest.skip(f"no small disk could be mounted here: {made.stderr.strip() if made else 'no mount command'}")
    yield directory
    subprocess.run([str(shutil.which("umount")), "-l", str(directory)], check=True)


def test_a_full_disk_is_an_error_and_the_newest_whole_checkpoint_is_used(small_disk: Path) -> None:
    *saved, error = fill(small_disk)
    assert saved
    assert error.endswith("was not saved: No space left on device")
    assert train.latest_valid(small_disk).step == int(saved[-1])
    # With room again the next attempt goes on from there.
    (small_disk / "attempt-1" / "step-1" / "rank-0.shard").unlink()
    with train.Checkpoints(small_disk, rank=0, world_size=1) as second:
        assert second.resumed.step == int(saved[-1])
        second.save(second.resumed.step + 1, b"small")
    assert train.latest_valid(small_disk).attempt == 2


def test_a_disk_that_is_not_mounted_is_no_new_training(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_CHECKPOINT_DIR", str(small_disk))
    monkeypatch.setenv("SICKBAY_LAST_STEP", "7")  # as the engine says of a job that has made steps
    with train.Checkpoints(small_disk, rank=0, world_size=1, anew=True) as first:
        first.save(5, b"five")
        first.wait()
        subprocess.run([str(shutil.which("umount")), "-l", str(small_disk)], check=True)
        first.save(6, b"six")
        with pytest.raises(train.CheckpointError, match="is its disk still mounted"):
            first.wait()
    with pytest.raises(train.Unreadable, match="has never held a checkpoint, but this job has been at step 7"):
        train.Checkpoints(small_disk, rank=0, world_size=1)
    assert not list(small_disk.iterdir())
    subprocess.run([str(shutil.which("mount")), "-t", "tmpfs", "sickbay-test", str(small_disk)], check=True)
