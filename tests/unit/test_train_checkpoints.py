"""Checkpoints as one script sees them: begin, load, save, keep."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sickbay import train
from sickbay.train import disk
from sickbay.train.layout import CheckpointName, RankPart
from sickbay.train.pruning import parents, prune


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SICKBAY_CHECKPOINT_DIR", "SICKBAY_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def trained(directory: Path, *steps: int, attempt: int | None = None, keep: int | None = None) -> train.Checkpoints:
    with train.Checkpoints(directory, attempt=attempt, keep=keep) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"step": step, "attempt": checkpoints.attempt})
    return checkpoints


def whole(directory: Path) -> list[str]:
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in directory.glob("*/*/manifest.json"))


def one_byte(directory: Path) -> RankPart:
    return RankPart({"rank-0.shard": disk.write(directory / "rank-0.shard", [b"x"])}, "bytes")


def test_the_first_run_has_nothing_to_resume(tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path / "new" / "deep") as checkpoints:
        assert (checkpoints.attempt, checkpoints.resumed, checkpoints.load()) == (1, None, None)


def test_the_next_run_goes_on_from_the_newest_step_with_the_next_free_number(tmp_path: Path) -> None:
    trained(tmp_path, 10, 20)
    with train.Checkpoints(tmp_path) as second:
        assert second.resumed is not None
        assert (second.attempt, second.resumed.attempt, second.resumed.step) == (2, 1, 20)
        assert second.load() == {"step": 20, "attempt": 1}


def test_everything_is_known_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SICKBAY_CHECKPOINT_DIR", str(tmp_path)), ("SICKBAY_ATTEMPT", "7"), ("RANK", "0")):
        monkeypatch.setenv(name, value)
    with train.Checkpoints() as checkpoints:
        checkpoints.save(3, b"state")
    assert (tmp_path / "attempt-7" / "step-3" / "rank-0.shard").read_bytes() == b"state"


def test_an_attempt_that_saved_nothing_hands_its_parent_on(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    trained(tmp_path)
    third = trained(tmp_path)
    assert third.attempt == 3
    assert (third.resumed.attempt, third.resumed.step) == (1, 10)


def test_a_snapshot_is_taken_at_once(tmp_path: Path) -> None:
    weights = bytearray(b"before")
    with train.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"weights": weights})
        weights[:] = b"after!"
    assert trained(tmp_path).load() == {"weights": b"before"}


def test_save_returns_before_the_state_is_written_and_a_second_one_waits_for_the_first(tmp_path: Path) -> None:
    gate = threading.Event()
    with train.Checkpoints(tmp_path) as checkpoints:

        def slow(directory: Path) -> RankPart:
            assert gate.wait(10)
            return one_byte(directory)

        checkpoints.put(1, slow)
        assert whole(tmp_path) == []
        threading.Timer(0.05, gate.set).start()
        checkpoints.put(2, one_byte)
        assert whole(tmp_path)[0] == "attempt-1/step-1"
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-1/step-2"]


def test_an_error_in_the_background_is_raised_once_by_the_next_call_and_training_may_go_on(tmp_path: Path) -> None:
    checkpoints = train.Checkpoints(tmp_path, failures=0)

    def broken(directory: Path) -> RankPart:
        raise OSError(28, "No space left on device", str(directory))

    checkpoints.put(1, broken)
    with pytest.raises(train.CheckpointError, match="attempt-1/step-1 was not saved: No space left on device"):
        checkpoints.save(2, b"two")
    checkpoints.save(3, b"three")
    checkpoints.wait()
    assert whole(tmp_path) == ["attempt-1/step-3"]
    assert train.latest_valid(tmp_path).step == 3


def test_a_script_that_fails_keeps_what_it_had_saved(tmp_path: Path) -> None:
    def fails() -> None:
        with train.Checkpoints(tmp_path) as checkpoints:
            checkpoints.save(1, b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert whole(tmp_path) == ["attempt-1/step-1"]


def test_a_script_that_ends_without_wait_has_its_last_save_finished(tmp_path: Path) -> None:
    code = "import sys; from sickbay import train; train.Checkpoints(sys.argv[1]).save(5, bytes(20_000_000))"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert whole(tmp_path) == ["attempt-1/step-5"]


# keep-N


def test_the_newest_are_kept_across_attempts_and_a_parent_is_never_removed(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3, 4, keep=2)
    assert whole(tmp_path) == ["attempt-1/step-3", "attempt-1/step-4"]
    trained(tmp_path, 5, keep=2)
    assert whole(tmp_path) == ["attempt-1/step-4", "attempt-2/step-5"]
    trained(tmp_path, 6, 7, 8, keep=2)
    assert whole(tmp_path) == ["attempt-1/step-4", "attempt-2/step-5", "attempt-3/step-7", "attempt-3/step-8"]
    assert parents(tmp_path, 3) == [CheckpointName(2, 5), CheckpointName(1, 4)]
    trained(tmp_path, 9, 10, keep=2)
    assert whole(tmp_path) == ["attempt-2/step-5", "attempt-3/step-8", "attempt-4/step-10", "attempt-4/step-9"]


def test_only_what_was_verified_counts_as_kept(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3)
    second = trained(tmp_path, 4, keep=3)
    assert second.resumed.step == 3
    assert whole(tmp_path) == [f"attempt-1/step-{step}" for step in (1, 2, 3)] + ["attempt-2/step-4"]
    trained(tmp_path, 5, 6, keep=3)
    assert whole(tmp_path)[0] == "attempt-1/step-3", "by now three were verified, and the parent of attempt 2 stays"


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "saves"), [(1, 1), (3, 1), (5, 1), (5, 3), (2, 3)])
def test_attempts_that_end_before_they_have_verified_enough_do_not_fill_the_disk(
    keep: int, saves: int, tmp_path: Path
) -> None:
    step = 0
    for _ in range(12):
        trained(tmp_path, *range(step + 1, step + saves + 1), keep=keep)
        step += saves
        kept = [int(path.name.removeprefix("step-")) for path in tmp_path.glob("*/step-*")]
        assert len(kept) <= 2 * keep
        assert set(range(max(1, step - keep + 1), step + 1)) <= set(kept), "the newest are among them"


def test_one_that_has_lost_a_file_since_does_not_count_as_kept(tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, b"state")
        checkpoints.wait()
        (tmp_path / "attempt-1" / "step-2" / "rank-0.shard").unlink()
        checkpoints.save(3, b"state")
        checkpoints.wait()
    assert "attempt-1/step-1" in whole(tmp_path), "it is the other one that is whole"


def test_what_an_attempt_left_unfinished_is_removed_with_the_old(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2)
    (tmp_path / "attempt-1" / "step-2" / "manifest.json").unlink()
    trained(tmp_path, 3, keep=1)
    assert sorted(path.name for path in (tmp_path / "attempt-1").iterdir()) == ["LINEAGE", "RUN", "step-1"]


def test_one_removed_by_half_is_no_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2)
    step = tmp_path / "attempt-1" / "step-2"
    (step / "manifest.json").rename(step / "removed.json")
    second = trained(tmp_path)
    assert second.resumed.step == 1
    assert [str(one) for one in second.skipped] == ["attempt-1/step-2: it was being removed"]


def test_nothing_is_removed_below_a_lineage_that_cannot_be_read(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3)
    trained(tmp_path, 4, 5)
    (tmp_path / "attempt-2" / "LINEAGE").write_bytes(b"rot")
    assert prune(tmp_path, CheckpointName(2, 5), 1, {CheckpointName(2, 5)}) == [CheckpointName(2, 4)]
    assert len(whole(tmp_path)) == 4


def test_what_is_half_removed_stays_while_nobody_can_say_who_began_from_it(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    trained(tmp_path, 4, 5)
    step = tmp_path / "attempt-1" / "step-1"
    (step / "manifest.json").rename(step / "removed.json")
    lineage = tmp_path / "attempt-2" / "LINEAGE"
    held = lineage.read_bytes()
    lineage.write_bytes(b"rot")
    prune(tmp_path, CheckpointName(2, 5), 1, {CheckpointName(2, 5)})
    assert (step / "rank-0.shard").exists()
    lineage.write_bytes(held)
    assert train.latest_valid(tmp_path).step == 5


def test_an_attempt_of_the_past_removes_nothing(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3)
    trained(tmp_path)
    assert prune(tmp_path, CheckpointName(1, 3), 1, {CheckpointName(1, 3)}) == []
    assert len(whole(tmp_path)) == 3


# Who may begin


def test_a_number_begins_once(tmp_path: Path) -> None:
    trained(tmp_path, attempt=4)
    with pytest.raises(train.AlreadyBegun, match=r"attempt 4 has already begun .* every run needs a number of its own"):
        train.Checkpoints(tmp_path, attempt=4)


def test_an_attempt_that_comes_after_a_later_one_is_over(tmp_path: Path) -> None:
    trained(tmp_path, attempt=4)
    with pytest.raises(train.Superseded, match=r"attempt 4 has begun .* attempt 3 is over"):
        train.Checkpoints(tmp_path, attempt=3)


def test_an_attempt_hears_that_a_later_one_has_begun(tmp_path: Path) -> None:
    first = train.Checkpoints(tmp_path)
    trained(tmp_path)
    first.save(1, b"late")
    with pytest.raises(train.Superseded, match="nothing that attempt 1 saves is read"):
        first.wait()


def test_a_file_system_without_hard_links_gives_a_number_once_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    trained(tmp_path, 1, 2, attempt=1)
    with pytest.raises(train.AlreadyBegun):
        train.Checkpoints(tmp_path, attempt=1)
    # One who died between claim and rename has spent the number, not stopped the job.
    (tmp_path / "attempt-2").mkdir()
    (tmp_path / "attempt-2" / ".LINEAGE.claim").touch()
    third = trained(tmp_path, 3)
    assert (third.attempt, third.resumed.step) == (3, 2)


# Bad input: one clear line


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "no checkpoint directory: set SICKBAY_CHECKPOINT_DIR, or write Checkpoints('DIR')"),
        ({"SICKBAY_ATTEMPT": "two"}, "SICKBAY_ATTEMPT is 'two': write a whole number from 1 on"),
        ({"SICKBAY_ATTEMPT": "0"}, "SICKBAY_ATTEMPT is '0': write a whole number from 1 on"),
        ({"RANK": "-1"}, "RANK is '-1': write a whole number from 0 on"),
        ({"RANK": "3", "WORLD_SIZE": "2", "SICKBAY_ATTEMPT": "1"}, "rank 3 of 2: ranks go from 0 to 1"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "2 ranks must agree which attempt this is: give all of them the same"),
    ],
)
def test_a_wrong_environment_says_what_to_write(
    environment: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment:
        monkeypatch.setenv("SICKBAY_CHECKPOINT_DIR", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(train.CheckpointError) as told:
        train.Checkpoints()
    assert str(told.value).startswith(says)
    assert "\n" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", [-1, 1.5, "3", True, None])
def test_a_step_is_a_whole_number(step: object, tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path) as checkpoints, pytest.raises(train.CheckpointError, match="a whole number"):
        checkpoints.save(step, b"")  # type: ignore[arg-type]


def test_steps_go_up_within_an_attempt(tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(5, b"")
        with pytest.raises(train.CheckpointError, match="step 5 after step 5"):
            checkpoints.save(5, b"")


def test_keeping_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(train.CheckpointError, match="keep=0 would remove every checkpoint"):
        train.Checkpoints(tmp_path, keep=0)


def test_a_directory_that_is_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(train.Unreadable, match="Not a directory"):
        train.Checkpoints(tmp_path / "file")


def test_importing_it_imports_nothing_else_of_sickbay_and_nothing_that_must_be_installed() -> None:
    code = (
        "import sys; before = set(sys.modules); import sickbay.train;"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names));"
        "print(*sorted(name for name in sys.modules if name.startswith('sickbay.') and '.train' not in name))"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert told.stdout.split("\n") == ["sickbay", "", ""]
