"""Near and far, where it goes wrong: what was whole near is found again, or durable, whoever dies, and when."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.near_gang import Gang
from tests.support.waiting import until

from sickbay import train
from sickbay.train import uploads
from sickbay.train.disk import Sum
from sickbay.train.layout import CheckpointName, Manifest

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

    def start(attempt: int, nodes: list[int], **settings: str) -> Gang:
        gangs.append(Gang(tmp_path, attempt, nodes, **settings))
        return gangs[-1].begin()

    yield start
    for gang in gangs:
        gang.kill()


def save_near_and_die(start: Start, attempt: int, nodes: list[int], *steps: int, **settings: Any) -> None:
    gang = start(attempt, nodes, **OFFLINE, **settings)
    for step in steps:
        assert gang.all("save", step) == [True] * len(nodes)
    gang.kill()


# --- the end of a script


def test_no_rank_says_that_a_step_is_durable_before_it_is_committed(tmp_path: Path, started: Start) -> None:
    gang = started(1, [0, 1], **ALONE, SICKBAY_TEST_COMMITS=str(tmp_path / "never"), SICKBAY_TEST_PATIENCE="2")
    gang.all("save", 10)
    gang.ranks[1].tell("end")
    told = "CheckpointError: attempt-1/step-10 is on the nodes' own disks only: it was not uploaded within 2"
    assert gang.ranks[1].says().startswith(told)
    gang.kill()
    assert durable(tmp_path) == "nothing"
    assert started(2, [0, 1], **ALONE).resumed == "attempt-1/step-10"


def test_a_script_that_has_nothing_left_to_do_ends_with_what_it_went_on_from_durable(
    tmp_path: Path, started: Start
) -> None:
    save_near_and_die(started, 1, [0, 1], 10, **ALONE)
    started(2, [0, 1], **ALONE).end()
    assert durable(tmp_path) == "attempt-2/step-10"


def test_a_step_below_what_it_went_on_from_is_refused_where_that_is_saved_again_and_would_hide_it(
    started: Start,
) -> None:
    save_near_and_die(started, 1, [0], 10)
    gang = started(2, [0])
    assert gang.all("save", 3) == [
        "CheckpointError: step 3 after step 10, which attempt 2 goes on from and saves again: steps only go up"
    ]
    gang.all("save", 11)
    gang.end()


def test_what_it_went_on_from_is_loaded_late_from_where_it_was_saved_again(started: Start) -> None:
    save_near_and_die(started, 1, [0, 1, 2], 10, **ALONE)
    gang = started(2, [0, 1, 2], **ALONE)
    gang.all("wait")
    gang.all("save", 20)
    gang.all("wait")
    assert [one["rank"] for one in gang.all("load", 2)] == [2] * 3


# --- two attempts at once


def test_an_attempt_that_is_over_drops_nothing_near_that_a_younger_one_goes_on_from(
    tmp_path: Path, started: Start
) -> None:
    far = tmp_path / "far"
    save_near_and_die(started, 1, [0, 1], 10, **ALONE)
    old = started(2, [0, 1], **ALONE, SICKBAY_TEST_COMMITS=str(tmp_path / "commits"))
    until(lambda: len(list(far.glob("attempt-2/step-10/rank-?.json"))) == 2)
    young = Gang(tmp_path, 3, [0, 1], **OFFLINE, **ALONE, SICKBAY_TEST_CHOOSES=str(tmp_path / "chooses"))
    try:
        until((far / "attempt-3" / "look-0.rank-1.json").exists)  # it is past attempt 2, and verifies
        old.ranks[0].tell("save", 20)
        (tmp_path / "commits").touch()
        until((far / "attempt-2" / "upload-1.json").exists)  # it is done with step 10
        (tmp_path / "chooses").touch()
        assert young.begin().resumed == "attempt-1/step-10"
    finally:
        young.kill()
    assert started(4, [0, 1], **ALONE).resumed == "attempt-1/step-10"


# --- another run of the same number


def test_what_another_run_of_this_number_has_left_near_is_never_taken_for_ours(tmp_path: Path, started: Start) -> None:
    save_near_and_die(started, 1, [0], 10)
    (tmp_path / "far" / "attempt-1").rename(tmp_path / "moved away")
    gang = started(1, [0])
    assert gang.resumed is None
    assert gang.all("save", 10, "another") == [True]
    gang.end()
    assert started(2, [0]).begun[0]["state"]["more"] == ["another"]


def test_a_node_that_brings_what_another_run_has_left_there_hides_nothing(tmp_path: Path, started: Start) -> None:
    save_near_and_die(started, 1, [5, 6], 10)
    (tmp_path / "far" / "attempt-1").rename(tmp_path / "moved away")
    gang = started(1, [0, 1], **OFFLINE)
    gang.all("save", 10, "ours")
    gang.kill()
    again = started(2, [5, 0, 1], **OFFLINE)
    assert again.resumed == "attempt-1/step-10"
    assert [one["more"] for one in again.all("load", 0)] == [["ours"]] * 3


def test_a_damaged_marker_is_refused_as_what_is_near_is_found_by_it(tmp_path: Path, started: Start) -> None:
    save_near_and_die(started, 1, [0], 10)
    marker = tmp_path / "far" / "SICKBAY"
    marker.write_text(marker.read_text().replace('"id": "', '"id": "0'))
    gang = started(2, [0], SICKBAY_CHECKPOINT_COPIES="0")
    assert gang.resumed.startswith(f"Unreadable: {marker} does not have the checksum that it was written with")


# --- nodes that are lost, or that nobody reaches


def test_what_is_near_in_part_only_is_told(started: Start) -> None:
    save_near_and_die(started, 1, [0, 1], 10, 20, **ALONE)
    gang = started(2, [0, 2], **ALONE)
    assert gang.resumed is None
    assert gang.begun[1]["skipped"] == [
        f"attempt-1/step-{step}: it was not uploaded yet, and what rank 1 saved of it is on none of the nodes that take"
        " part"
        for step in (20, 10)
    ]


def test_ranks_that_cannot_reach_one_another_go_on_from_their_own_disks(started: Start) -> None:
    save_near_and_die(started, 1, [0, 1], 10, **ALONE)
    gang = started(2, [0, 1], **OFFLINE, SICKBAY_TEST_PEERS="deaf")
    assert gang.resumed == "attempt-1/step-10"
    assert [begun["state"]["rank"] for begun in gang.begun] == [0, 1]


# --- while it saves


def test_a_save_never_waits_for_the_network(tmp_path: Path, started: Start) -> None:
    gang = started(1, [0, 1], **OFFLINE)
    gang.ranks[1].process.send_signal(signal.SIGSTOP)  # it is reached, and does not answer
    began = time.monotonic()
    for step in (10, 20, 30):
        gang.ranks[0].tell("save", step, "", "at once")
        assert gang.ranks[0].says() is True
    assert time.monotonic() - began < 5
    (tmp_path / "far").rename(tmp_path / "away")
    gang.ranks[0].tell("save", 40, "", "at once")
    assert gang.ranks[0].says() is True
    assert "attempt-1/step-40/rank-0.shard" in shards(tmp_path, 0)


def test_copies_for_a_rank_whose_steps_the_other_leaves_out_do_not_fill_its_disk(
    tmp_path: Path, started: Start
) -> None:
    gang = started(1, [0, 1], **OFFLINE)
    for step in range(1, 10):
        gang.ranks[0].tell("save", step)
        assert gang.ranks[0].says() is True
        gang.ranks[1].tell("leave_out" if 1 < step < 8 else "save", step)
        gang.ranks[1].says()
    kept = [f"attempt-1/step-{step}/rank-{rank}.shard" for step in (8, 9) for rank in (0, 1)]
    assert shards(tmp_path, 1) == kept
    for step in range(10, 19):
        gang.ranks[0].tell("save", step)
        assert gang.ranks[0].says() is True
        gang.ranks[1].tell("leave_out", step)
        gang.ranks[1].says()
    until(lambda: set(shards(tmp_path, 1)) == {*kept, *(f"attempt-1/step-{step}/rank-0.shard" for step in (17, 18))})


def test_an_older_attempt_that_still_saves_takes_nothing_away_that_a_younger_one_goes_on_from(started: Start) -> None:
    old = started(1, [0, 1], **OFFLINE, **ALONE)
    old.all("save", 10)
    old.all("save", 20)
    young = started(2, [0, 1], **OFFLINE, **ALONE)
    assert young.resumed == "attempt-1/step-20"
    for step in (30, 40, 50):
        old.all("save", step)
    old.kill()
    young.kill()
    assert started(3, [0, 1], **ALONE).resumed == "attempt-1/step-20"


def test_an_older_attempt_is_told_that_it_is_over_though_its_uploads_stand_still(started: Start) -> None:
    old = started(1, [0, 1], **OFFLINE, **ALONE)
    started(2, [0, 1], **OFFLINE, **ALONE)
    told = [old.all("save", step)[1] for step in (10, 20, 30, 40)]
    assert told[-1] == f"Superseded: {told[-1].removeprefix('Superseded: ')}"


def test_a_request_that_failed_half_way_is_made_again_where_there_are_no_hard_links(
    tmp_path: Path, started: Start
) -> None:
    gang = started(1, [0, 1], **ALONE, SICKBAY_TEST_LINKS="none", SICKBAY_TEST_PATIENCE="8")
    gang.all("save", 10)
    assert gang.all("wait") == ["durable"] * 2
    assert durable(tmp_path) == "attempt-1/step-10"


def test_ranks_that_have_moved_to_other_nodes_read_what_they_saved_there_though_no_copies_are_sent(
    tmp_path: Path, started: Start
) -> None:
    save_near_and_die(started, 1, [0, 1, 2], 10, **ALONE)
    gang = started(2, [2, 0, 1], **ALONE)
    assert [begun["state"]["rank"] for begun in gang.begun] == [0, 1, 2]
    gang.end()
    assert durable(tmp_path) == "attempt-2/step-10"


def test_what_rots_near_between_its_save_and_its_upload_is_never_durable(tmp_path: Path, started: Start) -> None:
    gang = started(1, [0], SICKBAY_TEST_UPLOADS=str(tmp_path / "now"))
    gang.all("save", 10)
    for path in (tmp_path / "node-0").glob("*/attempt-1/step-10/rank-0.shard"):
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    (tmp_path / "now").touch()
    (told,) = gang.all("wait")
    assert told.endswith("is not what was saved there any more")
    assert durable(tmp_path) == "nothing"


def test_what_is_being_uploaded_stays_near_however_many_steps_are_saved_meanwhile(
    tmp_path: Path, started: Start
) -> None:
    gate = tmp_path / "now"
    gate.touch()
    gang = started(1, [0], SICKBAY_TEST_UPLOADS=str(gate), SICKBAY_TEST_COMMITS=str(tmp_path / "commits"))
    gang.all("save", 1)
    until((tmp_path / "far" / "attempt-1" / "upload-0.json").exists)
    for step in range(2, 7):
        gang.all("save", step)
    assert shards(tmp_path, 0) == [f"attempt-1/step-{step}/rank-0.shard" for step in (1, 5, 6)]


def test_parts_that_do_not_add_up_to_what_is_saved_again_are_never_committed() -> None:
    whole = Manifest(
        CheckpointName(1, 10), 2, {f"rank-{rank}.shard": Sum(1, "0" * 64) for rank in (0, 1)}, {}, far=None
    )
    parts = whole._replace(place=CheckpointName(2, 10), files={"rank-0.shard": Sum(1, "0" * 64)})
    with pytest.raises(train.CheckpointError, match="attempt-2/step-10 was not saved: its parts are not those of"):
        uploads._as_it_was(parts, far="", like=whole)


def test_a_part_of_a_nodes_disk_that_cannot_be_read_keeps_no_attempt_from_what_is_durable(
    tmp_path: Path, started: Start
) -> None:
    gang = started(1, [0])
    gang.all("save", 10)
    gang.all("wait")
    gang.kill()
    save_near_and_die(started, 2, [0])
    (unreadable,) = (tmp_path / "node-0").glob("*/attempt-2")
    unreadable.rmdir()
    unreadable.touch()
    assert started(3, [0]).resumed == "attempt-1/step-10"


def test_what_was_uploaded_leaves_a_full_disk_without_another_save_that_would_need_its_room(
    tmp_path: Path, started: Start
) -> None:
    gate, commits = tmp_path / "now", tmp_path / "commits"
    gate.touch()
    gang = started(1, [0], SICKBAY_TEST_UPLOADS=str(gate), SICKBAY_TEST_COMMITS=str(commits))
    gang.all("save", 1)
    until((tmp_path / "far" / "attempt-1" / "upload-0.json").exists)
    for step in (2, 3, 4):
        gang.all("save", step)
    assert shards(tmp_path, 0) == [f"attempt-1/step-{step}/rank-0.shard" for step in (1, 3, 4)]
    commits.touch()
    until(lambda: shards(tmp_path, 0) == [f"attempt-1/step-{step}/rank-0.shard" for step in (3, 4)])


def test_steps_that_one_rank_does_not_save_push_no_whole_one_from_the_disks_of_the_others(started: Start) -> None:
    gang = started(1, [0, 1], **OFFLINE, **ALONE)
    gang.all("save", 1)
    gang.all("save", 2)
    for step in range(3, 8):
        gang.ranks[1].tell("leave_out", step)
        gang.ranks[1].says()
        gang.ranks[0].tell("save", step)
        assert gang.ranks[0].says() is True
    gang.kill()
    assert started(2, [0, 1], **ALONE).resumed == "attempt-1/step-2"
