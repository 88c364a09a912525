"""Checkpoints that other code writes: what is in their directory is adopted whole, or not at all."""

import errno
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from sickbay import train
from sickbay.train import choosing, disk, foreign, layout, resuming, saves, sharing
from sickbay.train.layout import CheckpointName, RankPart

pytestmark = pytest.mark.slow

Ranks = list[train.Checkpoints]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("SICKBAY_CHECKPOINT_DIR", "SICKBAY_ATTEMPT", "SICKBAY_LAST_STEP", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choosing, "READ_AGAIN", ())
    monkeypatch.setattr(saves, "AGAIN", (0.01,))
    monkeypatch.setattr(foreign, "_warned", set())
    before = os.umask(0o022)
    yield
    os.umask(before)


def begun(directory: Path, attempt: int, world: int = 1, **more: Any) -> Ranks:
    """All ranks of an attempt, in this process."""
    more = {"keep": None, "patience": 20.0, **more}
    return [train.Checkpoints(directory, attempt=attempt, rank=rank, world_size=world, **more) for rank in range(world)]


def files_of(step: int, rank: int) -> dict[str, bytes]:
    """What our foreign code writes: a share of each rank, and what rank 0 adds."""
    own = {f"state/zero_rank_{rank}.pt": b"%d of %d " % (rank, step) * 1000}
    return own | ({"latest": b"state", "state/deep/er/index.json": b"{}"} if rank == 0 else {})


def write(directory: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def save(ranks: Ranks, step: int) -> None:
    for rank in ranks:
        with foreign.saving(rank, step) as directory:
            write(directory, files_of(step, rank.rank))


def wait(ranks: Ranks) -> list[str]:
    """What each rank hears of its last save; empty: it is well."""
    heard = []
    for rank in ranks:
        try:
            rank.wait()
            heard.append("")
        except train.CheckpointError as error:
            heard.append(str(error))
    return heard


def expected(step: int, world: int) -> dict[str, bytes]:
    return {name: content for rank in range(world) for name, content in files_of(step, rank).items()}


def held(directory: Path | None) -> dict[str, bytes]:
    assert directory is not None
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def whole(directory: Path) -> list[str]:
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in directory.glob("*/*/manifest.json"))


def refused(directory: Path, ranks: Ranks, *said: str) -> None:
    """Nothing was committed, and rank 0 says why in one line."""
    heard = wait(ranks)[0]
    assert "\n" not in heard
    for words in said:
        assert words in heard
    assert whole(directory) == []


def once_synced(monkeypatch: pytest.MonkeyPatch, name: str, then: Callable[[Path], object]) -> None:
    """Something happens to the files as soon as one of them is synced: after they were listed, before the commit."""
    fsync = os.fsync
    done: list[Path] = []

    def synced(handle: int) -> None:
        fsync(handle)
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.name == name and not done:
            done.append(path)
            then(path)

    monkeypatch.setattr(os, "fsync", synced)


# --- saved, and gone on from


def test_what_other_code_writes_is_listed_verified_and_handed_out(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    assert foreign.resumed(first[0]) is None
    save(first, 5)
    save(first, 6)
    assert wait(first) == [""]
    second = begun(tmp_path, 2)
    directory = foreign.resumed(second[0])
    assert directory == tmp_path / "attempt-1" / "step-6" / "files"
    assert held(directory) == expected(6, 1)
    manifest = layout.read_manifest(tmp_path, CheckpointName(1, 6))
    assert sorted(manifest.files) == ["files/latest", "files/state/deep/er/index.json", "files/state/zero_rank_0.pt"]
    assert (manifest.world_size, manifest.forms) == (1, {})


def test_ranks_share_one_directory_and_each_hashes_an_even_share(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=3)
    save(first, 5)
    assert wait(first) == [""] * 3
    parts = [layout.read_part(tmp_path, CheckpointName(1, 5), rank).files for rank in range(3)]
    assert sorted(name for part in parts for name in part) == [f"files/{name}" for name in sorted(expected(5, 3))]
    big = [sum(one.size for one in part.values()) // len(b"0 of 5 " * 1000) for part in parts]
    assert big == [1, 1, 1]
    second = begun(tmp_path, 2, world=3)
    assert [held(foreign.resumed(rank)) for rank in second] == [expected(5, 3)] * 3


def test_a_rank_that_writes_nothing_takes_part_all_the_same(tmp_path: Path) -> None:
    """As with `save_pretrained` on rank 0 alone, and with more ranks than files."""
    first = begun(tmp_path, 1, world=4)
    for rank in reversed(first):
        with foreign.saving(rank, 1) as directory:
            if rank.rank == 0:
                write(directory, {"model.safetensors": b"w" * 100})
    assert wait(first) == [""] * 4
    assert whole(tmp_path) == ["attempt-1/step-1"]


@pytest.mark.slow
def test_thousands_of_nested_files_are_one_checkpoint(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2)
    files = {f"zarr/{n % 7}/{n % 31}/chunk.{n}": b"%d" % n for n in range(1500)}
    for rank in first:
        with foreign.saving(rank, 1) as directory:
            write(directory, files if rank.rank == 1 else {"index.json": b"{}"})
    assert wait(first) == ["", ""]
    second = begun(tmp_path, 2, world=2)
    assert held(foreign.resumed(second[1])) == files | {"index.json": b"{}"}
    assert [len(layout.read_part(tmp_path, CheckpointName(1, 1), rank).files) for rank in (0, 1)] in (
        [750, 751],
        [751, 750],
    )


def test_safetensors_come_back(tmp_path: Path) -> None:
    numpy: Any = import_module("numpy")
    tensors: Any = import_module("safetensors.numpy")
    first = begun(tmp_path, 1)
    weights = {"layer.0": numpy.arange(10_000, dtype=numpy.float32), "layer.1": numpy.ones((3, 4), dtype=numpy.int8)}
    with foreign.saving(first[0], 9) as directory:
        tensors.save_file(weights, directory / "model.safetensors")
    assert wait(first) == [""]
    there = foreign.resumed(begun(tmp_path, 2)[0])
    assert there is not None
    back = tensors.load_file(there / "model.safetensors")
    assert all(numpy.array_equal(back[name], weights[name]) for name in weights)


@pytest.mark.filterwarnings("ignore")  # of torch's own making
def test_what_torch_saves_comes_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed here")
    first = begun(tmp_path, 1, world=2)
    model = torch.nn.Linear(64, 64)
    for rank in first:
        with foreign.saving(rank, 9) as directory:
            (directory / "state").mkdir(exist_ok=True)
            torch.save({"rank": rank.rank, "model": model.state_dict()}, directory / "state" / f"rank_{rank.rank}.pt")
    assert wait(first) == ["", ""]
    for rank in begun(tmp_path, 2, world=2):
        there = foreign.resumed(rank)
        assert there is not None
        back = torch.load(there / "state" / f"rank_{rank.rank}.pt", weights_only=True)
        assert back["rank"] == rank.rank
        assert torch.equal(back["model"]["weight"], model.state_dict()["weight"])


def test_what_is_kept_and_pruned_is_the_same_as_for_our_own(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2, keep=2)
    for step in (1, 2, 3, 4):
        save(first, step)
    assert wait(first) == ["", ""]
    assert whole(tmp_path) == ["attempt-1/step-3", "attempt-1/step-4"]
    assert not (tmp_path / "attempt-1" / "step-1").exists()
    second = begun(tmp_path, 2, world=2, keep=1)
    save(second, 5)
    assert wait(second) == ["", ""]
    assert whole(tmp_path) == ["attempt-1/step-4", "attempt-2/step-5"]


def test_one_of_which_a_nested_file_is_torn_missing_or_corrupt_is_passed_over(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    for step in (1, 2, 3, 4):
        save(first, step)
    assert wait(first) == [""]
    state = [tmp_path / "attempt-1" / f"step-{step}" / "files" / "state" for step in range(5)]
    (state[4] / "zero_rank_0.pt").write_bytes(b"torn")
    (state[3] / "deep" / "er" / "index.json").unlink()
    (state[2] / "zero_rank_0.pt").write_bytes(b"x" * len(files_of(2, 0)["state/zero_rank_0.pt"]))
    second = begun(tmp_path, 2)
    assert [str(one) for one in second[0].skipped] == [
        "attempt-1/step-4: files/state/zero_rank_0.pt is torn (4 of 7000 bytes)",
        "attempt-1/step-3: files/state/deep/er/index.json is missing",
        "attempt-1/step-2: files/state/zero_rank_0.pt is corrupt (its checksum differs)",
    ]
    assert held(foreign.resumed(second[0])) == expected(1, 1)


def test_a_large_one_is_verified_by_all_ranks_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begun(tmp_path, 1, world=2)
    save(first, 1)
    save(first, 2)
    assert wait(first) == ["", ""]
    broken = tmp_path / "attempt-1" / "step-2" / "files" / "state" / "zero_rank_1.pt"
    broken.write_bytes(b"x" * broken.stat().st_size)
    monkeypatch.setattr(sharing, "TOGETHER", 0)
    second: dict[int, train.Checkpoints] = {}

    def begin(rank: int) -> None:
        second[rank] = train.Checkpoints(tmp_path, attempt=2, rank=rank, world_size=2, patience=20)

    threads = [threading.Thread(target=begin, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [held(foreign.resumed(second[rank])) for rank in (0, 1)] == [expected(1, 2)] * 2
    assert [str(one) for one in second[1].skipped] == [
        "attempt-1/step-2: files/state/zero_rank_1.pt is corrupt (its checksum differs)"
    ]
    assert len(list((tmp_path / "attempt-2").glob("look-*.rank-1.json"))) == 2


def test_every_file_and_every_directory_is_synced_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path, 1, world=2)
    fsync, link = os.fsync, os.link
    synced: set[str] = set()
    at_commit: list[set[str]] = []

    def recorded(handle: int) -> None:
        fsync(handle)
        synced.add(str(Path(f"/proc/self/fd/{handle}").readlink()))

    def linked(source: Any, target: Any) -> None:
        if Path(target).name == "manifest.json":
            at_commit.append(set(synced))
        link(source, target)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(os, "link", linked)
    save(first, 1)
    assert wait(first) == ["", ""]
    step = tmp_path / "attempt-1" / "step-1"
    there = {str(path) for path in (step, step / "files", *(step / "files").rglob("*"))}
    assert len(at_commit) == 1
    assert there - at_commit[0] == set()


# --- a save that is refused


def overwritten(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def replaced(path: Path) -> None:
    found = path.stat()
    path.with_name("new").write_bytes(b"x" * found.st_size)
    os.utime(path.with_name("new"), ns=(found.st_atime_ns, found.st_mtime_ns))
    path.with_name("new").rename(path)


@pytest.mark.parametrize(
    ("late", "says"),
    [
        (lambda path: (path.parent / "late.pt").write_bytes(b"late"), "files/state/late.pt came"),
        (lambda path: path.open("ab").write(b"more"), "files/state/zero_rank_0.pt was written to"),
        (overwritten, "files/state/zero_rank_0.pt was written to"),
        (replaced, "files/state/zero_rank_0.pt was written to"),
        (Path.unlink, "files/state/zero_rank_0.pt vanished"),
        (lambda path: shutil.rmtree(path.parent), "files/state/deep/er/index.json vanished"),
        (lambda path: shutil.rmtree(path.parents[1]), "files/latest vanished"),
    ],
    ids=["comes", "grows", "is overwritten", "is replaced", "vanishes", "loses its directory", "all vanishes"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_changes_after_it_was_listed_is_found_before_the_commit(
    late: Callable[[Path], object], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path, 1)
    once_synced(monkeypatch, "zero_rank_0.pt", late)
    save(first, 1)
    refused(
        tmp_path, first, says, "after the block had ended; a writer that works in the background must have ended when"
    )
    save(first, 2)
    assert wait(first) == [""]


def test_what_changes_between_two_tries_of_one_save_is_found_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(tmp_path, 1, world=2)
    link, failed = os.link, threading.Event()

    def fails_once(source: Any, target: Any) -> None:
        if Path(target).name == "rank-0.json" and not failed.is_set():
            while not layout.part_path(tmp_path, CheckpointName(1, 1), 1).exists():  # rank 1 has hashed its share
                time.sleep(0.001)
            for name in layout.read_part(tmp_path, CheckpointName(1, 1), 1).files:
                overwritten(tmp_path / "attempt-1" / "step-1" / name)
            failed.set()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        link(source, target)

    monkeypatch.setattr(os, "link", fails_once)
    save(first, 1)
    refused(tmp_path, first, "was written to after the block had ended")
    assert failed.is_set()


def test_what_failed_saves_have_left_is_removed_before_the_next_as_the_disk_may_be_full(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2)
    save(first, 1)
    assert wait(first) == ["", ""]

    def fails(rank: train.Checkpoints, step: int) -> None:
        with foreign.saving(rank, step) as directory:
            write(directory, files_of(step, rank.rank))
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        fails(first[0], 2)
    left = [tmp_path / "attempt-1" / f"step-{step}" / "files" for step in range(4)]
    with foreign.saving(first[0], 3):
        assert left[2].exists(), "rank 1 may still write into it"
    with foreign.saving(first[1], 2):
        pass
    assert "its own error says why" in wait(first[1:])[0]
    with foreign.saving(first[1], 3) as directory:
        write(directory, files_of(3, 1))
    assert wait(first) == ["", ""]
    with pytest.raises(OSError, match="No space"):
        fails(first[0], 4)
    with pytest.raises(OSError, match="No space"):
        fails(first[1], 4)
    assert (tmp_path / "attempt-1" / "step-4" / "files" / "latest").exists()
    with foreign.saving(first[1], 5) as directory:
        write(directory, files_of(5, 1))
    with foreign.saving(first[0], 5):
        assert not (tmp_path / "attempt-1" / "step-4" / "files").exists()
        assert (tmp_path / "attempt-1" / "step-4" / "rank-0.failed").exists()
        assert left[1].exists()
        assert left[3].exists()
    assert wait(first) == ["", ""]


def test_a_file_that_is_still_open_for_writing_when_the_block_ends_is_named(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    with foreign.saving(first[0], 1) as directory:
        write(directory, {"latest": b"x", "read.json": b"{}"})
        writer = (directory / "model.bin").open("wb")
        reader = (directory / "read.json").open("rb")
    with writer, reader:
        refused(tmp_path, first, "attempt-1/step-1 was not saved: files/model.bin is still open for writing")


def fifo(directory: Path) -> None:
    os.mkfifo(directory / "pipe")


def linked(directory: Path) -> None:
    (directory / "model.bin").symlink_to("/etc/hostname")


def linked_directory(directory: Path) -> None:
    (directory / "deep").mkdir()
    (directory / "deep" / "state").symlink_to("/etc", target_is_directory=True)


def moved_away(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory.with_name("elsewhere"), target_is_directory=True)


def made_a_file(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_bytes(b"x")


def unprintable(directory: Path) -> None:
    (directory / "two\nlines").touch()


def not_text(directory: Path) -> None:
    Path(os.fsdecode(os.fsencode(directory) + b"/\xff\xfe")).touch()


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (linked, "files/model.bin is a symbolic link: write the file itself into the directory"),
        (linked_directory, "files/deep/state is a symbolic link"),
        (moved_away, "files has become a symbolic link"),
        (shutil.rmtree, "files is no directory any more: leave the directory where it is"),
        (made_a_file, "files is no directory any more: leave the directory where it is"),
        (fifo, "files/pipe is no file"),
        (unprintable, r"a name that is no plain text: 'files/two\nlines'"),
        (not_text, r"a name that is no plain text: 'files/\udcff\udcfe'"),
    ],
)
def test_what_is_no_file_of_a_checkpoint_is_refused_by_its_name(
    made: Callable[[Path], None], says: str, tmp_path: Path
) -> None:
    first = begun(tmp_path, 1)
    with foreign.saving(first[0], 1) as directory:
        write(directory, {"latest": b"x"})
        made(directory)
    refused(tmp_path, first, "attempt-1/step-1 was not saved: ", says)


def test_a_block_that_writes_nothing_saves_nothing(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    with foreign.saving(first[0], 1) as directory:
        (directory / "empty").mkdir()
    refused(tmp_path, first, "attempt-1/step-1 was not saved: nothing was written into ")


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_fails_in_its_block_fails_the_save_and_the_others_hear_of_it(failing: int, tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=3)
    order = sorted(first, key=lambda rank: rank.rank == failing)  # the others wait for it by then
    for rank in order[:2]:
        with foreign.saving(rank, 1) as directory:
            write(directory, files_of(1, rank.rank))

    def breaks() -> None:
        with foreign.saving(order[2], 1) as directory:
            write(directory, files_of(1, failing))
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        breaks()
    heard = wait(first)
    assert heard[failing] == ""  # it has been raised already
    by_0 = f"rank {failing} could not save its shard of attempt-1/step-1; its own error says why"
    for other in {0, 1, 2} - {failing}:
        assert heard[other] in {by_0, by_0.replace(f"rank {failing}", "rank 0")}
    assert whole(tmp_path) == []
    save(first, 2)
    assert wait(first) == [""] * 3
    assert begun(tmp_path, 2, world=3)[1].resumed.step == 2


def test_a_rank_that_never_enters_is_named_and_growing_files_are_waited_for(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2, patience=0.05)
    with foreign.saving(first[0], 1) as directory:
        write(directory, {"big.bin": bytes(2_000_000)})
    refused(
        tmp_path,
        first[:1],
        "attempt-1/step-1 was not saved: rank 1 did not leave foreign.saving within 0.15 s; every rank must enter it",
    )
    with foreign.saving(first[1], 1) as directory:
        pass
    assert wait(first[1:]) == ["rank 0 could not save its shard of attempt-1/step-1; its own error says why"]


def test_a_rank_that_sees_another_directory_says_so(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2, patience=0.05)
    with foreign.saving(first[1], 1):
        pass
    heard = wait(first[1:])[0]
    assert heard.startswith("attempt-1/step-1 was not saved: rank 0 did not list the files within 0.05 s; do all ranks")


def test_it_is_never_left_out_however_long_the_save_before_takes(tmp_path: Path) -> None:
    gate = threading.Event()
    first = begun(tmp_path, 1, budget=0.01)

    def slow(directory: Path) -> RankPart:
        assert gate.wait(10)
        return RankPart({"rank-0.shard": disk.write(directory / "rank-0.shard", [b"x"])}, "bytes")

    first[0].put(1, slow)
    threading.Timer(0.1, gate.set).start()
    save(first, 2)
    assert wait(first) == [""]
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-1/step-2"]


def test_a_file_that_could_not_be_synced_fails_the_save_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fsync of the same file says that all is well, and it is not."""
    fsync = os.fsync
    failed: list[int] = []

    def failing(handle: int) -> None:
        if not failed and Path(f"/proc/self/fd/{handle}").readlink().name == "zero_rank_0.pt":
            failed.append(1)
            raise OSError(errno.EIO, "Input/output error")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", failing)
    first = begun(tmp_path, 1)
    save(first, 1)
    refused(tmp_path, first, "attempt-1/step-1 was not saved: files/state/zero_rank_0.pt is not on the disk (Input/out")


def test_what_could_not_be_read_in_the_background_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saves, "AGAIN", (0.01,) * 5)
    once = os.open
    failed: list[str] = []

    def failing(path: Any, *more: Any, **named: Any) -> int:
        name = Path(path).name
        if name in {"latest", "manifest.json", "zero_rank_1.pt"} and name not in failed:
            failed.append(name)
            raise OSError(errno.EIO, "Input/output error", str(path))
        return once(path, *more, **named)

    first = begun(tmp_path, 1, world=2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with foreign.saving(first[1], 1) as directory:
            write(directory, files_of(1, 1))
        with foreign.saving(first[0], 1) as directory:
            write(directory, files_of(1, 0))
        assert wait(first) == ["", ""]
    assert {"latest", "zero_rank_1.pt"} <= set(failed)
    assert held(foreign.resumed(begun(tmp_path, 2, world=2)[0])) == expected(1, 2)


# --- who may write, and who reads what


def test_an_older_attempt_that_is_still_in_its_block_disturbs_nobody(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    save(first, 1)
    assert wait(first) == [""]
    with foreign.saving(first[0], 2) as directory:
        write(directory, files_of(2, 0))
        second = begun(tmp_path, 2)
        assert second[0].resumed.step == 1
        assert not directory.exists(), "what it has not finished is removed by whoever follows"
        write(directory, files_of(2, 0))
        save(second, 2)
        assert wait(second) == [""]
    assert wait(first) == [
        f"attempt 2 has begun in {tmp_path}: nothing that attempt 1 saves is read",
    ]
    with pytest.raises(train.Superseded), foreign.saving(first[0], 3):
        pytest.fail("one that is over has no block to enter")
    third = begun(tmp_path, 3)
    assert (third[0].resumed.attempt, third[0].resumed.step) == (2, 2)
    save(third, 3)
    assert wait(third) == [""]
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-2/step-2", "attempt-3/step-3"]


def test_a_block_that_fails_because_a_later_attempt_has_cleared_away_says_so(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)

    def late() -> None:
        with foreign.saving(first[0], 1) as directory:
            begun(tmp_path, 2)
            (directory / "latest").write_bytes(b"x")

    with pytest.raises(train.Superseded, match="attempt 2 has begun") as raised:
        late()
    assert isinstance(raised.value.__context__, FileNotFoundError)
    assert begun(tmp_path, 3)[0].resumed is None


def test_below_a_disk_that_is_gone_no_block_is_entered(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    first = begun(root, 1)
    root.rename(tmp_path / "aside")
    root.mkdir()
    with pytest.raises(train.CheckpointError, match="is its disk still mounted"), foreign.saving(first[0], 1):
        pytest.fail("it would write below the mount point")
    assert list(root.iterdir()) == []


def test_steps_that_somebody_left_under_a_new_number_are_never_adopted(tmp_path: Path) -> None:
    begun(tmp_path, 1)
    write(tmp_path / "attempt-2" / "step-5" / "files", {"stale.pt": b"old"})
    with pytest.raises(train.Unreadable, match="attempt-2 holds steps, but attempt 2 has just begun: move that"):
        begun(tmp_path, 2)


def test_with_another_number_of_ranks_only_what_the_caller_says_can_be_resharded_is_handed_out(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=3)
    save(first, 1)
    assert wait(first) == [""] * 3
    second = begun(tmp_path, 2, world=2)
    for rank in second:
        with pytest.raises(
            train.CheckpointError, match=r"was saved by 3 ranks and this run has 2: .*reshard=True.* 3$"
        ):
            foreign.resumed(rank)
    assert [held(foreign.resumed(rank, reshard=True)) for rank in second] == [expected(1, 3)] * 2


def test_each_form_says_who_reads_it(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2)
    save(first, 1)
    assert wait(first) == ["", ""]
    for world in (1, 2):
        second = begun(tmp_path, 1 + world, world=world)
        with pytest.raises(
            train.CheckpointError, match=r"read it with sickbay\.train\.foreign\.resumed\(checkpoints\)"
        ):
            second[0].load()
    third = begun(tmp_path, 4)
    third[0].save(2, b"ours")
    assert wait(third) == [""]
    with pytest.raises(train.CheckpointError, match=r"not saved by sickbay\.train\.foreign: .*checkpoints\.load\(\)"):
        foreign.resumed(begun(tmp_path, 5)[0])

    def dcp(directory: Path) -> RankPart:
        return RankPart({resuming.METADATA: disk.write(directory / resuming.METADATA, [b"x"])})

    fifth = begun(tmp_path, 6)
    fifth[0].put(3, dcp)
    assert wait(fifth) == [""]
    sixth = begun(tmp_path, 7)[0]
    with pytest.raises(train.CheckpointError, match=r"read it with sickbay\.train\.torch\.load"):
        foreign.resumed(sixth)
    with pytest.raises(train.CheckpointError, match=r"read it with sickbay\.train\.torch\.load"):
        sixth.load()


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "files/../../x", "files//x", "", ".", "files/a\nb", "files/\udcff"]
)
def test_a_manifest_that_names_a_file_outside_its_checkpoint_is_damaged(name: str, tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    save(first, 1)
    save(first, 2)
    assert wait(first) == [""]
    manifest = layout.read_manifest(tmp_path, CheckpointName(1, 2))
    assert manifest is not None
    hostile = manifest._replace(files={**manifest.files, name: disk.Sum(0, "0")})
    layout.manifest_path(tmp_path, manifest.place).unlink()
    layout.create_manifest(tmp_path, hostile)
    (skipped,) = begun(tmp_path, 2)[0].skipped
    assert "manifest.json has another shape than expected" in str(skipped)
    assert "\n" not in str(skipped)


def test_what_has_changed_since_the_attempt_began_is_not_handed_out(tmp_path: Path) -> None:
    first = begun(tmp_path, 1, world=2)
    save(first, 1)
    assert wait(first) == ["", ""]
    second = begun(tmp_path, 2, world=2)
    mine = [layout.read_part(tmp_path, CheckpointName(1, 1), rank).files for rank in (0, 1)]
    path = tmp_path / "attempt-1" / "step-1" / "files" / "state" / "zero_rank_1.pt"
    whose = next(rank for rank in (0, 1) if "files/state/zero_rank_1.pt" in mine[rank])
    content = path.read_bytes()
    path.write_bytes(b"x" * len(content))
    with pytest.raises(train.CheckpointError, match=r"was whole and is no longer: files/state/zero_rank_1\.pt is corr"):
        foreign.resumed(second[whose])
    path.write_bytes(content[:-1])
    for rank in second:
        with pytest.raises(train.CheckpointError, match=r"no longer: files/state/zero_rank_1\.pt is torn"):
            foreign.resumed(rank)
    path.unlink()
    with pytest.raises(train.CheckpointError, match=r"no longer: files/state/zero_rank_1\.pt is missing"):
        foreign.resumed(second[0])
    (tmp_path / "elsewhere").write_bytes(content)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(train.CheckpointError, match=r"files/state/zero_rank_1\.pt has become a symbolic link"):
        foreign.resumed(second[0])
    path.unlink()
    path.write_bytes(content)
    assert held(foreign.resumed(second[0])) == expected(1, 2)


@pytest.mark.parametrize("where", [".", "attempt-1", "attempt-1/step-1/files/state", "attempt-1/step-1/files/latest"])
def test_a_pickle_is_not_handed_out_where_others_can_write(where: str, tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    save(first, 1)
    assert wait(first) == [""]
    (tmp_path / where).chmod((tmp_path / where).stat().st_mode | stat.S_IWGRP)
    second = begun(tmp_path, 2)[0]
    with pytest.raises(train.CheckpointError, match=r"others can write .*, and 'files/.*' may run code .*trust=True"):
        foreign.resumed(second)
    assert held(foreign.resumed(second, trust=True)) == expected(1, 1)


def test_what_runs_nothing_may_lie_anywhere_until_somebody_adds_what_does(tmp_path: Path) -> None:
    first = begun(tmp_path, 1)
    with foreign.saving(first[0], 1) as directory:
        write(directory, {"model-1.SAFETENSORS": b"w", "model.safetensors.index.json": b"{}", "merges.txt": b""})
    assert wait(first) == [""]
    directory.chmod(0o777)
    second = begun(tmp_path, 2)[0]
    assert foreign.resumed(second) == directory
    (directory / "pytorch_model.bin").write_bytes(b"planted")
    with pytest.raises(train.CheckpointError, match=r"and 'files/pytorch_model\.bin' may run code when it is read"):
        foreign.resumed(second)


def test_what_came_after_the_commit_is_told_when_it_is_gone_on_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = begun(tmp_path, 1)
    save(first, 1)
    assert wait(first) == [""]
    write(
        tmp_path / "attempt-1" / "step-1" / "files", {"state/zero_rank_9.pt": b"late", ".nfs0000000000abcdef0001": b""}
    )
    with caplog.at_level(logging.WARNING, "sickbay.train"):
        foreign.resumed(begun(tmp_path, 2)[0])
    (told,) = [one.getMessage() for one in caplog.records]
    assert told.startswith("attempt-1/step-1: 'files/state/zero_rank_9.pt' is not in its manifest: if its writer wrote")


def test_a_save_that_would_not_be_resumed_from_is_told_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.umask(0o002)
    first = begun(tmp_path, 1)
    with caplog.at_level(logging.WARNING, "sickbay.train"):
        save(first, 1)
        save(first, 2)
        assert wait(first) == [""]
    (told,) = [one.getMessage() for one in caplog.records if "would not be resumed from" in one.getMessage()]
    assert told.startswith("attempt-1/step-1 would not be resumed from: others can write")


# --- whose files are whose


@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_shares_are_even_and_leave_nothing_out(ranks: int) -> None:
    sizes = {f"files/{n}": (n * 7919) % 5_000_000 for n in range(500)} | {"rank-0.shard": 100, "rank-3.shard": 7}
    shares = sharing.shares_of(sizes, ranks)
    assert sorted(name for share in shares for name in share) == sorted(sizes)
    assert "rank-0.shard" in shares[0]
    assert ranks <= 3 or "rank-3.shard" in shares[3]
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) - min(loads) <= 5_000_000 + 500 * sharing.A_FILE
    assert sharing.shares_of(dict(reversed(sizes.items())), ranks) == shares


# --- real processes

LIFE = """
import json, os, resource, signal, sys, threading, time
from pathlib import Path
from sickbay import train
from sickbay.train import checkpoints, foreign

told = json.loads(sys.argv[1])
OURS = os.sep + os.path.join("sickbay", "train") + os.sep
if told.get("dies"):
    function, event, when = told["dies"]
    def profile(frame, happened, _):
        if (happened, frame.f_code.co_name) == (event, function) and OURS in frame.f_code.co_filename:
            if told["now"] == when:
                os.kill(os.getpid(), signal.SIGKILL)
    threading.setprofile(profile)
    sys.setprofile(profile)
try:
    found = train.Checkpoints(
        told["directory"], attempt=told["attempt"], rank=told["rank"], world_size=told["world"], patience=30, keep=2
    )
    there = foreign.resumed(found)
    if there is not None:
        for rank in range(told["world"]):
            text = (there / "state" / f"rank-{rank}.bin").read_bytes()
            assert text == b"%d of %d" % (rank, found.resumed.step) * told["size"], (rank, found.resumed)
    print("begun", found.resumed.step if found.resumed else 0, flush=True)
    if told.get("limit"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (told["limit"], told["limit"]))
    for step in told["steps"]:
        told["now"] = step
        with foreign.saving(found, step) as directory:
            (directory / "state").mkdir(exist_ok=True)
            with (directory / "state" / f"rank-{told['rank']}.bin").open("wb") as file:
                file.write(b"%d of %d" % (told["rank"], step))
                file.flush()
                if told.get("dies") == ["in the block", "", step]:
                    os.kill(os.getpid(), signal.SIGKILL)
                file.write(b"%d of %d" % (told["rank"], step) * (told["size"] - 1))
        found.wait()
        while not (directory.parent / "manifest.json").exists():  # rank 0 may still be at it
            time.sleep(0.001)
        print(step, flush=True)
except (train.CheckpointError, OSError) as error:
    print("error", error, flush=True)
    sys.exit(1)
"""


class Lives:
    """Processes of a test, all ended with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: list[subprocess.Popen[str]] = []

    def start(self, rank: int, world: int, attempt: int, *steps: int, **more: Any) -> subprocess.Popen[str]:
        told = {"directory": str(self.directory), "rank": rank, "world": world, "attempt": attempt, "steps": steps}
        command = [sys.executable, "-c", LIFE, json.dumps({"size": 1000, **told, **more})]
        self.all.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return self.all[-1]

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path)
    yield lives
    lives.end()


def said(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate(timeout=60)[0].splitlines()


DEATHS = {
    "rank 1 in its block": (1, ["in the block", "", 2]),
    "rank 0 in its block": (0, ["in the block", "", 2]),
    "rank 1 before it says that it has left": (1, ["left_path", "call", 2]),
    "rank 0 before it lists": (0, ["stamps_below", "call", 2]),
    "rank 0 when it has listed": (0, ["create_listed", "return", 2]),
    "rank 1 while it hashes": (1, ["_measure", "call", 2]),
    "rank 1 when it has hashed": (1, ["create_part", "call", 2]),
    "rank 0 before it looks once more": (0, ["unchanged", "call", 2]),
    "rank 0 before the commit": (0, ["create_manifest", "call", 2]),
    "rank 0 after the commit": (0, ["create_manifest", "return", 2]),
}


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
def test_a_rank_that_is_killed_at_any_point_leaves_the_step_before_or_a_whole_one(
    death: str, lives: Lives, tmp_path: Path
) -> None:
    who, dies = DEATHS[death]
    gang = [lives.start(rank, 2, 1, 1, 2, dies=dies if rank == who else None) for rank in (0, 1)]
    assert gang[who].wait(60) == -signal.SIGKILL
    gang[1 - who].kill()
    newest = 2 if death == "rank 0 after the commit" else 1
    assert whole(tmp_path) == [f"attempt-1/step-{step}" for step in range(1, newest + 1)]
    assert train.latest_valid(tmp_path).step == newest
    again = [lives.start(rank, 2, 2, 3) for rank in (0, 1)]
    assert [said(rank) for rank in again] == [[f"begun {newest}", "3"]] * 2


def test_a_file_that_does_not_fit_fails_the_step_and_the_one_before_is_gone_on_from(
    lives: Lives, tmp_path: Path
) -> None:
    assert said(lives.start(0, 1, 1, 1)) == ["begun 0", "1"]
    assert said(lives.start(0, 1, 2, 2, limit=5000)) == ["begun 1", "error [Errno 27] File too large"]
    torn = tmp_path / "attempt-2" / "step-2" / "files" / "state" / "rank-0.bin"
    assert 0 < torn.stat().st_size <= 5000
    assert train.latest_valid(tmp_path).step == 1
    assert said(lives.start(0, 1, 3, 2)) == ["begun 1", "2"]
    assert not torn.exists()


def test_a_script_that_ends_without_wait_has_its_last_directory_adopted(tmp_path: Path) -> None:
    code = (
        "import sys; from sickbay import train; from sickbay.train import foreign\n"
        "with foreign.saving(train.Checkpoints(sys.argv[1]), 5) as directory:\n"
        "    (directory / 'model.bin').write_bytes(bytes(20_000_000))"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert whole(tmp_path) == ["attempt-1/step-5"]
