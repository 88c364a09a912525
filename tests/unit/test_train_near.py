"""Near and far: saves go to the nodes' own disks first, are uploaded behind, and are found where they are nearest."""

from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from tests.support.near_gang import Gang

from sickbay import train

OFFLINE = {"SICKBAY_TEST_UPLOADS": "none"}
ALONE = {"SICKBAY_CHECKPOINT_COPIES": "0"}
Start = Callable[..., Gang]
pytestmark = pytest.mark.slow


def durable(where: Path) -> str:
    found = train.latest_valid(where / "far")
    return str(found) if found else "nothing"


def shards(where: Path, node: int) -> list[str]:
    return sorted("/".join(path.parts[-3:]) for path in (where / f"node-{node}").glob("*/*/*/*.shard"))


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    gangs: list[Gang] = []

    def start(attempt: int, nodes: list[int], where: Path = tmp_path, **settings: str) -> Gang:
        gangs.append(Gang(where, attempt, nodes, **settings))
        return gangs[-1].begin()

    yield start
    for gang in gangs:
        gang.kill()


def train_and_die(start: Start, attempt: int, nodes: list[int], *steps: int, **settings: Any) -> None:
    gang = start(attempt, nodes, **settings)
    for step in steps:
        assert gang.all("save", step) == [True] * len(nodes)
    if "SICKBAY_TEST_UPLOADS" not in settings:
        gang.all("wait")


def test_what_is_near_is_uploaded_and_durable_once_it_was_waited_for(tmp_path: Path, started: Start) -> None:
    gang = started(1, [0, 1], **ALONE)
    gang.all("save", 10)
    assert gang.all("wait") == ["durable"] * 2
    assert durable(tmp_path) == "attempt-1/step-10"
    gang.end()
    assert [shards(tmp_path, node) for node in (0, 1)] == [[], []]  # it ended well: nothing of it is needed there


def test_a_job_goes_on_from_what_is_near_although_it_was_not_uploaded(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1], 10, **ALONE)
    train_and_die(started, 2, [0, 1], 20, 30, **ALONE, **OFFLINE)
    assert durable(tmp_path) == "attempt-1/step-10"
    gang = started(3, [0, 1], **ALONE)
    assert gang.resumed == "attempt-2/step-30"
    assert [begun["state"] for begun in gang.begun] == [{"step": 30, "rank": rank, "attempt": 2} for rank in (0, 1)]
    gang.all("save", 40)
    gang.end()
    assert durable(tmp_path) == "attempt-3/step-40"


def test_what_it_went_on_from_becomes_durable_before_anything_is_saved(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1], 10, **ALONE, **OFFLINE)
    gang = started(2, [0, 1], **ALONE)
    while durable(tmp_path) == "nothing":
        pass
    assert durable(tmp_path) == "attempt-2/step-10"
    gang.kill()
    for node in (0, 1):
        rmtree(tmp_path / f"node-{node}")
    assert started(3, [0, 1], **ALONE).begun[1]["state"] == {"step": 10, "rank": 1, "attempt": 1}


def test_a_node_that_is_lost_takes_what_was_near_only_along_and_it_is_told(started: Start) -> None:
    train_and_die(started, 1, [0, 1], 10, **ALONE)
    train_and_die(started, 2, [0, 1], 20, **ALONE, **OFFLINE)
    gang = started(3, [0, 2], **ALONE)
    assert gang.resumed == "attempt-1/step-10"


def test_a_copy_on_another_node_stands_in_for_a_lost_one(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1, 2], 10, 20, **OFFLINE)
    gang = started(2, [0, 5, 2], **OFFLINE)
    assert gang.resumed == "attempt-1/step-20"
    assert [begun["state"]["rank"] for begun in gang.begun] == [0, 1, 2]
    gang.kill()
    again = started(3, [2, 0, 6])  # other ranks on other nodes, and online again
    assert [begun["state"]["rank"] for begun in again.begun] == [0, 1, 2]
    again.all("save", 30)
    again.end()
    assert durable(tmp_path) == "attempt-3/step-30"


def test_a_near_shard_that_rots_is_read_from_elsewhere(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1], 10)
    for path in (tmp_path / "node-0").glob("*/attempt-1/step-10/rank-0.shard"):
        flip(path)
    gang = started(2, [0, 1])
    assert gang.resumed == "attempt-1/step-10"
    assert gang.begun[0]["state"] == {"step": 10, "rank": 0, "attempt": 1}


def test_what_is_near_only_and_rotten_is_passed_over_and_told(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1], 10, **ALONE)
    train_and_die(started, 2, [0, 1], 20, **ALONE, **OFFLINE)
    for path in (tmp_path / "node-1").glob("*/attempt-2/step-20/rank-1.shard"):
        flip(path)
    gang = started(3, [0, 1], **ALONE)
    assert gang.resumed == "attempt-1/step-10"
    assert gang.begun[0]["skipped"] == [
        "attempt-2/step-20: it was not uploaded yet, and rank-1.shard is corrupt (its checksum differs)"
    ]


def test_what_rots_before_it_is_uploaded_is_never_durable(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0], 10, **OFFLINE)
    for path in (tmp_path / "node-0").glob("*/attempt-1/step-10/rank-0.shard"):
        flip(path)
    gang = started(2, [0])
    assert gang.resumed is None
    gang.all("save", 11)
    gang.end()
    assert durable(tmp_path) == "attempt-2/step-11"


def test_a_smaller_world_reads_what_is_near_too(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1, 2], 10, **OFFLINE)
    gang = started(2, [0, 1])  # node 2 is gone, and rank 2's shard is at node 0
    assert gang.resumed == "attempt-1/step-10"
    assert [one["rank"] for one in gang.all("load", 2)] == [2, 2]
    gang.all("save", 20)
    gang.end()
    assert durable(tmp_path) == "attempt-2/step-20"


def test_two_jobs_share_the_disk_of_a_node(tmp_path: Path, started: Start) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    settings = {"SICKBAY_CHECKPOINT_NEAR": str(tmp_path / "nvme"), **OFFLINE}
    one.mkdir()
    other.mkdir()
    train_and_die(started, 1, [0], 10, where=one, **settings)
    train_and_die(started, 1, [0], 20, where=other, **settings)
    for where, step in ((one, 10), (other, 20)):
        gang = started(2, [0], where=where, **settings)
        assert gang.resumed == f"attempt-1/step-{step}"


def test_an_older_attempt_that_goes_on_saving_near_is_told_that_it_is_over(tmp_path: Path, started: Start) -> None:
    old = started(1, [0], **OFFLINE)
    old.all("save", 10)
    new = started(2, [0])
    assert new.resumed == "attempt-1/step-10"
    old.all("save", 20)
    assert old.all("wait")[0].startswith("Superseded: attempt 2 has begun")
    new.all("save", 20)
    new.end()
    assert durable(tmp_path) == "attempt-2/step-20"


def test_the_disk_of_a_node_holds_the_newest_two_steps_of_its_ranks_and_of_those_that_it_keeps_copies_for(
    tmp_path: Path, started: Start
) -> None:
    gang = started(1, [0, 1], **OFFLINE)
    for step in range(1, 8):
        gang.all("save", step)
    newest = [f"attempt-1/step-{step}/rank-{rank}.shard" for step in (6, 7) for rank in (0, 1)]
    assert [shards(tmp_path, node) for node in (0, 1)] == [newest, newest]


def test_what_older_attempts_left_near_goes_once_something_newer_is_durable(tmp_path: Path, started: Start) -> None:
    train_and_die(started, 1, [0, 1], 10, 20, **OFFLINE)
    gang = started(2, [0, 1], LOCAL_RANK="3")  # the others of its node belong to another job
    gang.all("save", 30)
    gang.all("wait")
    gang.all("save", 40)
    gang.all("wait")
    assert {path.split("/")[0] for node in (0, 1) for path in shards(tmp_path, node)} == {"attempt-2"}


def test_ranks_that_differ_in_their_tiers_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(train.CheckpointError, match="s3://x is filled from the nodes' own disks: write near=DIR"):
        train.Checkpoints(tmp_path, far="s3://x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


# --- an object store


@pytest.fixture
def bucket(tmp_path: Path) -> dict[str, str]:
    pytest.importorskip("fsspec")
    (tmp_path / "bucket" / "run").mkdir(parents=True)
    return {"SICKBAY_CHECKPOINT_FAR": f"file://{tmp_path}/bucket/run"}


def objects(where: Path) -> list[str]:
    """Steps of which something is in the store, by attempt."""
    found = {path.parent for path in (where / "bucket").rglob("*.shard")}
    return sorted(f"{path.parent.name.partition('.')[0]}/{path.name}" for path in found)


def test_an_object_store_holds_the_files_and_the_directory_what_decides(
    tmp_path: Path, started: Start, bucket: dict[str, str]
) -> None:
    gang = started(1, [0, 1], **bucket)
    gang.all("save", 10)
    gang.all("wait")
    gang.kill()
    assert not list((tmp_path / "far").rglob("*.shard"))
    assert objects(tmp_path) == ["attempt-1/step-10"]
    assert durable(tmp_path) == "attempt-1/step-10"
    for node in (0, 1):
        rmtree(tmp_path / f"node-{node}")
    again = started(2, [0, 1], **bucket)
    assert [begun["state"] for begun in again.begun] == [{"step": 10, "rank": rank, "attempt": 1} for rank in (0, 1)]


def test_a_store_that_is_not_there_is_told_before_anything_begins(tmp_path: Path, started: Start) -> None:
    pytest.importorskip("fsspec")
    gang = started(1, [0], SICKBAY_CHECKPOINT_FAR=f"file://{tmp_path}/nowhere")
    assert "there is no directory" in gang.resumed
    assert "create it, or mount it" in gang.resumed
    assert not (tmp_path / "far" / "attempt-1").exists()


def test_what_is_removed_is_removed_from_the_store_too(tmp_path: Path, started: Start, bucket: dict[str, str]) -> None:
    gang = started(1, [0], **bucket)
    for step in range(1, 8):
        gang.all("save", step)
        gang.all("wait")
    assert objects(tmp_path) == [f"attempt-1/step-{step}" for step in (5, 6, 7)]
    assert durable(tmp_path) == "attempt-1/step-7"


def test_an_object_that_is_gone_or_rotten_is_passed_over(
    tmp_path: Path, started: Start, bucket: dict[str, str]
) -> None:
    gang = started(1, [0], **bucket)
    for step in (1, 2, 3):
        gang.all("save", step)
        gang.all("wait")
    gang.kill()
    rmtree(tmp_path / "node-0")
    for path in (tmp_path / "bucket").rglob("step-3/rank-0.shard"):
        path.unlink()
    for path in (tmp_path / "bucket").rglob("step-2/rank-0.shard"):
        flip(path)
    again = started(2, [0], **bucket)
    assert again.resumed == "attempt-1/step-1"
    assert again.begun[0]["skipped"] == [
        "attempt-1/step-3: rank-0.shard is missing",
        "attempt-1/step-2: rank-0.shard is corrupt (its checksum differs)",
    ]


def test_two_jobs_below_one_prefix_do_not_meet(tmp_path: Path, started: Start, bucket: dict[str, str]) -> None:
    for name in ("one", "other"):
        gang = started(1, [0], where=tmp_path / name, **bucket)
        gang.all("save", 10)
        gang.all("wait")
        gang.kill()
    for name in ("one", "other"):
        rmtree(tmp_path / name / "node-0")
        assert started(2, [0], where=tmp_path / name, **bucket).resumed == "attempt-1/step-10"


def test_what_was_uploaded_of_a_save_that_never_ended_is_removed_by_the_next_attempt(
    tmp_path: Path, started: Start, bucket: dict[str, str]
) -> None:
    gang = started(1, [0, 1], **ALONE, **bucket)
    gang.ranks[0].tell("save", 10)  # rank 1 never saves
    assert gang.ranks[0].says()
    while not objects(tmp_path):
        pass
    gang.kill()
    assert started(2, [0, 1], **ALONE, **bucket).resumed is None
    assert objects(tmp_path) == []
