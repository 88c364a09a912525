"""Jobs that follow one another in one directory: numbers that rise, weights that are never mixed, steps asked for."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sickbay import train
from sickbay.train import choosing, disk, layout, saves
from sickbay.train.run import Run, Tiers

Start = Callable[..., train.Checkpoints]
NAMES = (
    "CHECKPOINT_DIR", "ATTEMPT", "LAST_STEP", "JOB_ID", "CONTINUES", "FROM_STEP", "BEGIN_ANEW", "ADOPT",
)  # fmt: skip


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(f"SICKBAY_{name}" for name in NAMES), "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choosing, "READ_AGAIN", ())
    monkeypatch.setattr(saves, "AGAIN", (0.01,))


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """One attempt of a job, as its cluster starts it: with its own count, and what the engine says of other jobs."""

    def begin(job: str, attempt: int, *steps: int, keep: int | None = None, **told: Any) -> train.Checkpoints:
        said = {"CHECKPOINT_DIR": str(tmp_path), "JOB_ID": job, "ATTEMPT": str(attempt)}
        for name in NAMES:
            value = str(told.get(name.lower(), said.get(name, "")))
            if value:
                monkeypatch.setenv(f"SICKBAY_{name}", value)
            else:
                monkeypatch.delenv(f"SICKBAY_{name}", raising=False)
        with train.Checkpoints(keep=keep) as found:
            for step in steps:
                found.save(step, {"job": job, "step": step})
        return found

    return begin


def whole(directory: Path) -> list[str]:
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in directory.glob("*/*/manifest.json"))


def test_a_job_that_continues_another_takes_the_next_number_and_goes_on_from_it(start: Start) -> None:
    for attempt in (1, 2, 3):
        start("a", attempt, 10 * attempt)
    second = start("b", 1, 40, continues="a/3")
    assert (second.attempt, str(second.resumed)) == (4, "attempt-3/step-30")
    assert second._of == "a"
    assert str(start("b", 2, continues="a/3").resumed) == "attempt-4/step-40", "and counts on from there"


def test_without_others_the_numbers_are_the_jobs_own(start: Start, tmp_path: Path) -> None:
    assert [start("a", attempt, attempt).attempt for attempt in (1, 2, 4)] == [1, 2, 4]
    assert start("a", 5)._of == "", "its own checkpoints are nobody else's"
    assert disk.read(tmp_path / "jobs" / "a.json") == {"job": "a", "base": 0, "continues": []}


def test_a_strange_job_is_refused_in_one_line_with_the_ways_out(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10)
    with pytest.raises(train.NotOurs) as refused:
        start("b", 1)
    said = str(refused.value)
    assert "job a (attempt-1)" in said
    assert "sickbay restart a" in said
    assert "--anew" in said
    assert "--adopt" in said
    assert "\n" not in said
    assert not (tmp_path / "attempt-2").exists(), "it leaves nothing behind"
    assert not (tmp_path / "jobs" / "b.json").exists()
    assert str(start("a", 2).resumed) == "attempt-1/step-10", "and the other one never noticed"


@pytest.mark.parametrize(("told", "resumed"), [({"adopt": 1}, "attempt-1/step-10"), ({"begin_anew": 1}, "None")])
def test_told_otherwise_it_takes_the_directory_over_and_the_other_one_is_over(
    start: Start, told: dict[str, int], resumed: str
) -> None:
    start("a", 1, 10)
    assert str(start("b", 1, 20, **told).resumed) == resumed
    assert str(start("b", 2, **told).resumed) == "attempt-2/step-20", "the wish is for its beginning"
    with pytest.raises(train.NotOurs, match=r"job b has taken .* over \(attempt-3\), where a saved before"):
        start("a", 4)


def test_the_one_that_was_taken_over_cannot_take_it_back_by_the_wish_of_its_own_beginning(start: Start) -> None:
    start("a", 1, 10, adopt=1)
    start("b", 1, 20, adopt=1)
    with pytest.raises(train.NotOurs, match="job b has taken"):
        start("a", 9, adopt=1)
    with pytest.raises(train.NotOurs, match="job b has taken"):
        start("a", 9, begin_anew=1)


def test_a_fence_that_a_stranger_raised_at_the_same_moment_gives_it_nothing(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10)
    (tmp_path / "attempt-2").mkdir()
    layout.create_fence(tmp_path, layout.RunFile(2, "x", 1, job="b"))  # b looked before a began, and was refused then
    with pytest.raises(train.NotOurs, match="holds checkpoints of job a"):
        start("b", 3)
    with pytest.raises(train.AlreadyBegun):
        start("a", 2)
    assert str(start("a", 3).resumed) == "attempt-1/step-10"


def test_where_nobody_has_chosen_yet_the_first_come_has_it(start: Start, tmp_path: Path) -> None:
    (tmp_path / "attempt-1").mkdir()
    layout.create_fence(tmp_path, layout.RunFile(1, "x", 1, job="a"))
    with pytest.raises(train.NotOurs, match="job a"):
        start("b", 1)


def test_a_directory_that_was_filled_by_hand_is_gone_on_from(start: Start, tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path) as by_hand:
        by_hand.save(10, b"by hand")
    found = start("a", 1)
    assert (found.attempt, str(found.resumed), found._of) == (2, "attempt-1/step-10", "")


def test_a_late_start_of_the_job_before_is_below_those_that_continue_it(start: Start) -> None:
    start("a", 1, 10)
    # Attempts 2 and 3 of a were started and never came to begin; the node that they were on cannot be reached.
    assert start("b", 1, 20, continues="a/3").attempt == 4
    with pytest.raises(train.NotOurs, match="job b has taken"):
        start("a", 3)
    assert str(start("b", 2, continues="a/3").resumed) == "attempt-4/step-20"


def test_one_before_the_one_before_may_own_the_directory_still(start: Start) -> None:
    start("a", 1, 10)
    assert str(start("c", 1, continues="b/0,a/1").resumed) == "attempt-1/step-10"


@pytest.mark.parametrize("dies_at", ["record", "directory", "fence"])
def test_a_death_while_the_number_is_taken_costs_one_number_at_most(
    start: Start, monkeypatch: pytest.MonkeyPatch, dies_at: str
) -> None:
    start("a", 1, 10)

    class Killed(BaseException):
        pass

    def dies(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if dies_at == "record":
            patched.setattr(disk, "_place", dies)
        elif dies_at == "directory":
            patched.setattr("sickbay.train.fencing.attempt_path", dies)
        else:
            patched.setattr("sickbay.train.fencing.create_fence", dies)
        with pytest.raises(Killed):
            start("b", 1, continues="a/1")
    found = start("b", 2, continues="a/1")
    assert str(found.resumed) == "attempt-1/step-10"
    assert found.attempt in {2, 3}


def test_a_record_that_died_between_its_claim_and_its_name_is_written_under_the_next(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "this disk has none")

    start("a", 1, 10)
    monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "jobs" / ".b.json.claim").touch()
    assert start("b", 1, 20, continues="a/1").attempt == 2
    assert start("b", 2, continues="a/1").attempt == 3
    assert (tmp_path / "jobs" / "b.1.json").exists()


def test_a_damaged_record_is_refused_and_not_counted_anew(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10)
    record = tmp_path / "jobs" / "a.json"
    record.write_bytes(record.read_bytes().replace(b"0", b"7", 1))
    with pytest.raises(train.Unreadable, match=r"a\.json does not have the checksum"):
        start("a", 2)


def test_ids_that_could_not_be_the_name_of_a_file_have_records_all_the_same(start: Start, tmp_path: Path) -> None:
    assert start("../../x", 1, 10).attempt == 1
    assert str(start("../../x", 2).resumed) == "attempt-1/step-10"
    assert not list(tmp_path.parent.parent.glob("x*"))


# --- all ranks have one number


def run_of(directory: Path, rank: int, **more: Any) -> Run:
    return Run(directory, 1, rank, 3, 20.0, tiers=Tiers(), job="b", counted=True, before=(("a", 1),), **more)


def test_every_rank_gets_the_number_that_rank_0_has_fixed(start: Start, tmp_path: Path) -> None:
    from sickbay.train.beginning import begin

    start("a", 1, 10)
    found: dict[int, str] = {}

    def one(rank: int) -> None:
        begun = begin(run_of(tmp_path, rank))
        found[rank] = f"{begun.lineage.attempt} from {begun.lineage.parent}"

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys((0, 1, 2), "2 from attempt-1/step-10")


def test_no_rank_waits_for_a_rank_0_that_is_refused(start: Start, tmp_path: Path) -> None:
    from sickbay.train.beginning import begin

    start("stranger", 1, 10)
    with pytest.raises(train.NotOurs, match="job stranger"):
        begin(run_of(tmp_path, 2))


# --- a step that a person names


def test_the_step_that_was_asked_for_is_loaded_and_the_younger_ones_stay_beside(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10, 20, 30, 40, 50)
    found = start("b", 1, 31, 41, 51, 61, keep=1, continues="a/1", from_step=30)
    assert str(found.resumed) == "attempt-1/step-30"
    assert {"attempt-1/step-40", "attempt-1/step-50"} <= set(whole(tmp_path)), "they stay where they are"
    again = start("b", 2, continues="a/1", from_step=30)
    assert str(again.resumed) == "attempt-2/step-61", "the wish is for the job's beginning"
    lineage = layout.read_lineage(tmp_path, 2)
    assert lineage is not None
    assert lineage.asked


def test_an_attempt_that_saved_nothing_goes_on_from_the_step_asked_for_once_more(start: Start) -> None:
    start("a", 1, 10, 20)
    start("b", 1, continues="a/1", from_step=10)
    assert str(start("b", 2, continues="a/1", from_step=10).resumed) == "attempt-1/step-10"


def test_what_was_left_stays_also_when_the_attempt_that_went_back_has_saved_nothing(
    start: Start, tmp_path: Path
) -> None:
    start("a", 1, 10, 20)
    start("b", 1, continues="a/1", from_step=10)
    start("b", 2, 11, 12, 13, 14, keep=1, continues="a/1", from_step=10)
    assert "attempt-1/step-20" in whole(tmp_path)


def test_one_may_come_back_to_what_was_left_beside(start: Start) -> None:
    start("a", 1, 10, 20, 30)
    start("b", 1, 11, continues="a/1", from_step=10)
    back = start("c", 1, 31, continues="b/1,a/1", from_step=30)
    assert str(back.resumed) == "attempt-1/step-30"
    assert back._of == "a"
    assert str(start("c", 2, continues="b/1,a/1").resumed) == "attempt-3/step-31"


def test_pruning_spares_what_is_younger_than_the_step_also_attempts_later(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10, 20, 30)
    start("b", 1, 11, 12, 13, keep=1, continues="a/1", from_step=10)
    for attempt in (2, 3, 4):
        start("b", attempt, 12 + attempt * 3, 13 + attempt * 3, 14 + attempt * 3, keep=1, continues="a/1")
    left = whole(tmp_path)
    assert {"attempt-1/step-20", "attempt-1/step-30"} <= set(left)
    assert len(left) <= 4, left


def test_a_step_that_is_not_there_is_refused_with_those_that_are(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10, 20)
    with pytest.raises(train.NoSuchStep, match=r"cannot go on from step 15 in .*, as there is none; there are 10, 20"):
        start("b", 1, continues="a/1", from_step=15)
    (tmp_path / "attempt-1" / "step-20" / "rank-0.shard").write_bytes(b"")
    with pytest.raises(train.NoSuchStep, match=r"step 20 .*: attempt-1/step-20: rank-0\.shard is torn"):
        start("b", 2, continues="a/1", from_step=20)
    assert str(start("b", 3, continues="a/1", from_step=10).resumed) == "attempt-1/step-10"


def test_a_refusal_names_some_steps_of_many(start: Start) -> None:
    start("a", 1, *range(1, 31))
    with pytest.raises(train.NoSuchStep, match=r"there are …, 11, 12, .*, 30$"):
        start("b", 1, continues="a/1", from_step=99)


def test_the_step_of_an_empty_directory_is_refused(start: Start) -> None:
    with pytest.raises(train.NoSuchStep, match="no step is saved there at all"):
        start("b", 1, from_step=5)


# --- beginning anew


def test_anew_beside_an_older_lineage_that_was_begun_anew_itself(start: Start) -> None:
    start("a", 1, 10, begin_anew=1)
    found = start("b", 1, 5, continues="a/1", begin_anew=1)
    assert found.resumed is None
    assert str(start("b", 2, continues="a/1", begin_anew=1).resumed) == "attempt-2/step-5"


def test_one_that_began_anew_and_saved_is_not_begun_anew_by_an_attempt_after_one_that_saved_nothing(
    start: Start,
) -> None:
    start("a", 1, 10, begin_anew=1)
    start("a", 2, begin_anew=1)
    assert str(start("a", 3, begin_anew=1).resumed) == "attempt-1/step-10"


def test_an_empty_directory_under_a_job_that_continues_one_that_made_steps_is_refused(
    start: Start,
) -> None:
    with pytest.raises(train.Unreadable, match="has never held a checkpoint"):
        start("b", 1, continues="a/3", last_step=120)
    assert start("b", 2, continues="a/3", last_step=120, begin_anew=1).resumed is None


# --- places


def test_a_part_of_other_checkpoints_is_no_place_for_checkpoints(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10)
    for inside in (tmp_path / "attempt-1", tmp_path / "attempt-1" / "step-10"):
        with pytest.raises(train.NotOurs, match=f"is a part of the checkpoints in {tmp_path}"):
            start("b", 1, checkpoint_dir=inside)


def test_a_directory_below_another_one_and_one_beside_it_are_their_own(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10)
    assert start("b", 1, checkpoint_dir=tmp_path / "ema").attempt == 1


def test_a_link_leads_to_the_directory_of_another_job_and_is_refused_there(start: Start, tmp_path: Path) -> None:
    start("a", 1, 10)
    (tmp_path.parent / "link").symlink_to(tmp_path)
    with pytest.raises(train.NotOurs, match="holds checkpoints of job a"):
        start("b", 1, checkpoint_dir=tmp_path.parent / "link")


def test_a_step_is_gone_on_from_where_saves_go_near_first_too(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, near = tmp_path / "ck", tmp_path / "nodes"
    monkeypatch.setenv("SICKBAY_CHECKPOINT_NEAR", str(near))
    start("a", 1, 10, 20, checkpoint_dir=directory)
    found = start("b", 1, 11, checkpoint_dir=directory, continues="a/1", from_step=10)
    assert str(found.resumed) == "attempt-1/step-10"
    assert whole(directory)[-1] == "attempt-2/step-11"
    assert "attempt-1/step-20" in whole(directory)
