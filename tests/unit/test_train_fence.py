"""Nothing that was saved is lost: the fence, what cannot be read, what is half removed, and who may take part."""

import errno
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sickbay import train
from sickbay.train import choosing, committing, disk, errors, layout, saves, sharing, snapshot
from sickbay.train.errors import RESTARTED_IN_PLACE
from sickbay.train.layout import CheckpointName, Skipped
from sickbay.train.pruning import prune
from sickbay.train.shard import NotAShard
from sickbay.train.validity import examine
from sickbay.train.validity import survey as survey_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SICKBAY_CHECKPOINT_DIR", "SICKBAY_ATTEMPT", "SICKBAY_LAST_STEP", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choosing, "READ_AGAIN", ())
    monkeypatch.setattr(saves, "AGAIN", (0.01,))


def trained(directory: Path, *steps: int, keep: int | None = None, **more: Any) -> train.Checkpoints:
    with train.Checkpoints(directory, keep=keep, **more) as found:
        for step in steps:
            found.save(step, {"step": step, "attempt": found.attempt})
    return found


def whole(directory: Path) -> list[str]:
    return sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in directory.glob("*/*/manifest.json"))


def at(found: train.Checkpoint | None) -> str:
    return str(found) if found else "nothing"


# --- fence first, then look


def test_the_fence_is_there_before_anything_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(tmp_path, 1, 2, 3, keep=1)
    seen: list[str] = []
    looked = survey_of

    def survey(*args: Any) -> Any:
        seen.append(str((tmp_path / "attempt-2" / "RUN").exists()))
        first.save(4, b"late")  # the old one, still alive, saves and would remove
        with pytest.raises(train.Superseded):
            first.wait()
        return looked(*args)

    monkeypatch.setattr("sickbay.train.choosing.survey", survey)
    second = trained(tmp_path)
    assert (seen, at(second.resumed)) == (["True"], "attempt-1/step-3")
    assert whole(tmp_path) == ["attempt-1/step-3"]


def test_an_attempt_that_is_overtaken_while_it_writes_commits_nothing(tmp_path: Path) -> None:
    def overtaken(directory: Path) -> layout.RankPart:
        (tmp_path / "attempt-2").mkdir()
        layout.create_fence(tmp_path, layout.RunFile(2, "other", 1))
        return failing(0)(directory)

    found = train.Checkpoints(tmp_path)
    found.put(1, overtaken)
    with pytest.raises(train.Superseded, match="nothing that attempt 1 saves is read"):
        found.wait()
    found.put(2, failing(0))
    with pytest.raises(train.Superseded):
        found.wait()
    assert whole(tmp_path) == []
    assert not (tmp_path / "attempt-1" / "step-2" / "rank-0.shard").exists(), "it writes nothing in vain"


def test_a_removal_that_meets_a_younger_attempt_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = train.Checkpoints(tmp_path, keep=1)
    first.save(1, b"one")
    first.wait()
    begins: list[train.Checkpoints] = []
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        done = rename(path, target)
        if path.name == "manifest.json" and not begins:
            begins.append(train.Checkpoints(tmp_path, keep=1))
        return done

    monkeypatch.setattr(Path, "rename", renamed)
    first.save(2, b"two")
    first.wait()
    assert at(begins[0].resumed) == "attempt-1/step-2"
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-1/step-2"]


def test_a_removal_that_meets_one_that_has_only_its_fence_is_taken_back_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trained(tmp_path, 1)
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        done = rename(path, target)
        if path.name == "manifest.json":
            (tmp_path / "attempt-2").mkdir()
            layout.create_fence(tmp_path, layout.RunFile(2, "other", 1))
        return done

    monkeypatch.setattr(Path, "rename", renamed)
    first.keep = 1
    first.save(2, b"two")
    first.wait()
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-1/step-2"]
    assert examine(tmp_path, CheckpointName(1, 1))[1] == "", "nothing else of it was removed before"


def test_what_is_gone_when_it_was_chosen_is_not_begun_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1, 2, 3)
    looked = survey_of

    def survey(*args: Any) -> Any:
        found = looked(*args)
        (tmp_path / "attempt-1" / "step-3" / "manifest.json").unlink(missing_ok=True)
        return found

    monkeypatch.setattr("sickbay.train.choosing.survey", survey)
    assert at(trained(tmp_path).resumed) == "attempt-1/step-2"


def test_what_is_gone_when_lineage_names_it_is_told_and_not_begun_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1, 2, 3)
    create = layout.create_lineage

    def created(root: Path, lineage: layout.Lineage) -> bool:
        ours = create(root, lineage)
        (tmp_path / "attempt-1" / "step-3" / "manifest.json").unlink()
        return ours

    monkeypatch.setattr("sickbay.train.beginning.create_lineage", created)
    with pytest.raises(train.CheckpointError, match="attempt-1/step-3 was removed by another process while attempt 2"):
        trained(tmp_path)


def test_one_that_is_overtaken_while_it_chooses_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1)
    create = layout.create_lineage

    def created(root: Path, lineage: layout.Lineage) -> bool:
        (tmp_path / "attempt-3").mkdir()
        layout.create_fence(tmp_path, layout.RunFile(3, "other", 1))
        return create(root, lineage)

    monkeypatch.setattr("sickbay.train.beginning.create_lineage", created)
    with pytest.raises(train.Superseded, match="attempt 3 has begun"):
        trained(tmp_path)


def test_what_vanishes_while_it_is_looked_at_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = train.Checkpoints(tmp_path, keep=1)
    running.save(1, b"one")
    running.wait()
    fault_of = disk.fault_of
    again: list[Path] = []

    def slowly(path: Path, *more: Any) -> str | None:
        if not again:
            again.append(path)
            running.save(2, b"two")  # which removes the one that is being looked at
            running.wait()
        return fault_of(path, *more)

    monkeypatch.setattr(disk, "fault_of", slowly)
    assert at(train.latest_valid(tmp_path)) == "attempt-1/step-2"


def test_a_parent_that_was_being_removed_when_its_remover_died_is_put_back(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    trained(tmp_path)  # goes on from it, and dies without a save
    step = tmp_path / "attempt-1" / "step-10"
    (step / "manifest.json").rename(step / "removed.json")
    assert at(train.latest_valid(tmp_path)) == "attempt-1/step-10"
    third = trained(tmp_path)
    assert at(third.resumed) == "attempt-1/step-10"
    assert third.load() == {"step": 10, "attempt": 1}
    assert whole(tmp_path) == ["attempt-1/step-10"]


def test_what_other_ranks_save_ahead_of_rank_0_is_not_removed(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3)
    ahead = tmp_path / "attempt-1" / "step-4"
    ahead.mkdir()
    (ahead / "rank-1.shard").write_bytes(b"under way")
    assert prune(tmp_path, CheckpointName(1, 3), 1, {CheckpointName(1, 3)}) == [
        CheckpointName(1, 1),
        CheckpointName(1, 2),
    ]
    assert (ahead / "rank-1.shard").exists()


def test_what_somebody_left_under_our_number_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    (tmp_path / "attempt-2" / "step-7").mkdir(parents=True)
    with pytest.raises(train.Unreadable, match="attempt-2 holds steps, but attempt 2 has just begun"):
        trained(tmp_path)


def test_a_removal_that_was_not_finished_is_finished_by_the_next(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3)
    step = tmp_path / "attempt-1" / "step-1"
    (step / "manifest.json").rename(step / "removed.json")
    trained(tmp_path, 4, 5, keep=1)
    assert not step.exists()


def test_one_that_cannot_be_removed_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.parent.name == "step-1" and path.name == "manifest.json":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    trained(tmp_path, 1, 2, 3, 4, keep=1)
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-1/step-4"]


# --- unreadable is not corrupt, absent is not new


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_what_cannot_be_read_now_is_refused_and_nothing_is_removed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1, 2, 3)
    opened = Path.open

    def failing(path: Path, *args: Any, **more: Any) -> Any:
        if path.suffix == ".shard":
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        with pytest.raises(train.Unreadable, match=r"cannot read .*rank-0\.shard: .*; nobody knows what is in it"):
            trained(tmp_path, 4, keep=1)
    assert len(whole(tmp_path)) == 3
    assert at(trained(tmp_path).resumed) == "attempt-1/step-3"


@pytest.mark.parametrize("name", ["manifest.json", "LINEAGE"])
def test_what_says_what_there_is_and_cannot_be_read_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1, 2, 3)
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path.name == name and path.parent.name in {"step-3", "attempt-1"}:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", failing)
        with pytest.raises(train.Unreadable, match="Input/output error; nobody knows what is in it"):
            trained(tmp_path)
    assert at(trained(tmp_path).resumed) == "attempt-1/step-3"


@pytest.mark.parametrize("name", ["LINEAGE", "manifest.json", "rank-0.shard", "SICKBAY"])
def test_what_cannot_be_looked_for_is_not_absent(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1, 2)
    stat = Path.stat

    def failing(path: Path, **more: Any) -> os.stat_result:
        if path.name == name:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return stat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", failing)
        with pytest.raises(train.Unreadable, match=f"{name}.*Input/output error"):
            trained(tmp_path)
    assert at(trained(tmp_path).resumed) == "attempt-1/step-2"


def test_a_job_that_has_made_steps_does_not_begin_where_its_attempts_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1)
    (tmp_path / "attempt-1").rename(tmp_path / "aside")
    monkeypatch.setenv("SICKBAY_LAST_STEP", "57")
    monkeypatch.setenv("SICKBAY_CHECKPOINT_DIR", str(tmp_path))
    with pytest.raises(train.Unreadable, match="holds no earlier attempt, but this job has been at step 57"):
        train.Checkpoints(attempt=2, rank=0, world_size=1)


def test_a_server_that_answers_again_in_a_moment_costs_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1)
    monkeypatch.setattr(choosing, "READ_AGAIN", (0.0, 0.0))
    opened, failures = Path.open, [1, 2]

    def failing(path: Path, *args: Any, **more: Any) -> Any:
        if path.suffix == ".shard" and failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", failing)
    assert at(trained(tmp_path).resumed) == "attempt-1/step-1"


@pytest.mark.parametrize("there", [True, False], ids=["an empty mount point", "no directory at all"])
def test_a_job_that_has_made_steps_never_begins_in_an_empty_directory(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "disk"
    monkeypatch.setenv("SICKBAY_LAST_STEP", "5000")
    monkeypatch.setenv("SICKBAY_CHECKPOINT_DIR", str(where))
    if there:
        where.mkdir()
    with pytest.raises(train.Unreadable, match=r"this job has been at step 5000: mount the disk.*SICKBAY_BEGIN_ANEW=1"):
        train.Checkpoints(where, attempt=2, rank=0, world_size=1)
    assert where.exists() is there
    monkeypatch.setenv("SICKBAY_BEGIN_ANEW", "1")
    assert train.Checkpoints(where, attempt=2, rank=0, world_size=1).resumed is None


def test_a_job_that_made_steps_but_saved_none_begins_at_0_in_its_own_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=1)
    monkeypatch.setenv("SICKBAY_LAST_STEP", "57")
    monkeypatch.setenv("SICKBAY_CHECKPOINT_DIR", str(tmp_path))
    assert train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1).resumed is None


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """What our network client remembers not to be there, until it changes the directory itself."""
    paths: set[Path] = set()
    iterdir, stat, read, refresh = Path.iterdir, Path.stat, Path.read_bytes, disk.refresh

    def look(path: Path) -> None:
        if path in paths:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    def listed(path: Path) -> Iterator[Path]:
        return (found for found in iterdir(path) if found not in paths)

    def seen(path: Path, **more: Any) -> os.stat_result:
        look(path)
        return stat(path, **more)

    def opened(path: Path) -> bytes:
        look(path)
        return read(path)

    def refreshed(directory: Path) -> None:
        refresh(directory)
        paths.difference_update([path for path in paths if path.parent == directory])

    monkeypatch.setattr(Path, "iterdir", listed)
    monkeypatch.setattr(Path, "stat", seen)
    monkeypatch.setattr(Path, "read_bytes", opened)
    monkeypatch.setattr(disk, "refresh", refreshed)
    return paths


@pytest.mark.parametrize("name", ["attempt-2", "attempt-2/LINEAGE", "attempt-2/RUN", "attempt-2/step-40/manifest.json"])
def test_what_our_client_remembers_not_to_be_there_is_gone_on_from(
    name: str, tmp_path: Path, unseen: set[Path]
) -> None:
    trained(tmp_path, 20)
    trained(tmp_path, 30, 40)
    unseen.add(tmp_path / name)
    third = train.Checkpoints(tmp_path, attempt=3, rank=0, world_size=1, keep=1)
    assert at(third.resumed) == "attempt-2/step-40"


@pytest.mark.parametrize("name", ["attempt-2", "attempt-2/RUN"])
def test_a_younger_attempt_that_our_client_remembers_not_to_be_there_keeps_us_from_removing(
    name: str, tmp_path: Path, unseen: set[Path]
) -> None:
    trained(tmp_path, 1, 2, 3)
    (tmp_path / "attempt-2").mkdir()
    layout.create_fence(tmp_path, layout.RunFile(2, "other", 1))
    unseen.add(tmp_path / name)
    assert prune(tmp_path, CheckpointName(1, 3), 1, {CheckpointName(1, 3)}) == []
    assert len(whole(tmp_path)) == 3


def test_a_younger_attempt_that_our_client_remembers_not_to_be_there_ends_our_beginning(
    tmp_path: Path, unseen: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    create = layout.create_lineage

    def created(root: Path, lineage: layout.Lineage) -> bool:
        (tmp_path / "attempt-2").mkdir()
        layout.create_fence(tmp_path, layout.RunFile(2, "other", 1))
        unseen.add(tmp_path / "attempt-2")
        return create(root, lineage)

    monkeypatch.setattr("sickbay.train.beginning.create_lineage", created)
    with pytest.raises(train.Superseded, match="attempt 2 has begun"):
        trained(tmp_path)


def test_a_length_that_our_client_remembers_from_before_the_end_of_a_save_makes_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 10, 20)
    stat = Path.stat

    def remembered(path: Path, **more: Any) -> os.stat_result:
        found = stat(path, **more)
        return os.stat_result((*found[:6], 0, *found[7:])) if path.name == "rank-0.shard" else found

    monkeypatch.setattr(Path, "stat", remembered)
    second = train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1)
    assert (at(second.resumed), second.skipped) == ("attempt-1/step-20", ())


def test_a_part_that_our_client_remembers_not_to_be_there_is_found(
    tmp_path: Path, unseen: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [train.Checkpoints(tmp_path, attempt=1, rank=rank, world_size=2, patience=20) for rank in (0, 1)]
    monkeypatch.setattr(committing, "FRESH", 0.01)
    ranks[1].save(1, b"x")
    ranks[1].wait()
    unseen.add(layout.part_path(tmp_path, CheckpointName(1, 1), 1))
    ranks[0].save(1, b"x")
    ranks[0].wait()
    assert whole(tmp_path) == ["attempt-1/step-1"]


def test_a_number_that_our_client_does_not_list_yet_is_not_taken_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1)
    numbers, refresh, refreshes = layout._numbers, disk.refresh, [0]

    def refreshed(directory: Path) -> None:
        refresh(directory)
        refreshes[0] += directory == tmp_path

    def listed(directory: Path, *more: Any, **also: Any) -> list[int]:
        found = numbers(directory, *more, **also)
        assert refreshes[0], "it was to be listed anew"
        return [] if directory == tmp_path and refreshes[0] == 1 else found  # another began right after the first look

    monkeypatch.setattr(disk, "refresh", refreshed)
    monkeypatch.setattr(layout, "_numbers", listed)
    assert trained(tmp_path).attempt == 2


def test_steps_without_a_lineage_are_not_passed_over(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    trained(tmp_path, 20, 40)
    (tmp_path / "attempt-2" / "LINEAGE").unlink()
    with pytest.raises(train.Unreadable, match=r"attempt-2/LINEAGE is missing: .*move attempt-2 away"):
        trained(tmp_path, 11, keep=1)
    assert len(whole(tmp_path)) == 3


def test_a_directory_that_is_removed_under_it_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sickbay.train.choosing.survey", lambda *_: list[int]().pop())
    with pytest.raises(train.Unreadable, match="was removed while an attempt began in it"):
        train.Checkpoints(tmp_path)


# --- who takes part


def test_a_part_of_another_run_is_never_committed(tmp_path: Path) -> None:
    ranks = [train.Checkpoints(tmp_path, attempt=1, rank=rank, world_size=2, failures=0) for rank in (0, 1)]
    ranks[1].at.run = "another"
    for rank in ranks:
        rank.save(1, b"x")
    ranks[1].wait()
    with pytest.raises(train.CheckpointError, match="rank 1 belongs to another run of attempt 1"):
        ranks[0].wait()
    assert train.latest_valid(tmp_path) is None


def test_a_manifest_of_another_run_is_no_commit_of_ours(tmp_path: Path) -> None:
    found = train.Checkpoints(tmp_path, failures=0)
    (tmp_path / "attempt-1" / "step-1").mkdir()
    layout.create_manifest(tmp_path, layout.Manifest(CheckpointName(1, 1), 1, {}, {}, "another"))
    found.save(1, b"x")
    with pytest.raises(train.CheckpointError, match="another process has committed attempt-1/step-1"):
        found.wait()


def test_a_part_that_failed_outweighs_one_that_was_written(tmp_path: Path) -> None:
    ranks = [train.Checkpoints(tmp_path, attempt=1, rank=rank, world_size=2, failures=0) for rank in (0, 1)]
    ranks[1].save(1, b"x")
    ranks[1].wait()
    layout.failed_path(tmp_path, CheckpointName(1, 1), 1).touch()
    ranks[0].save(1, b"x")
    with pytest.raises(train.CheckpointError, match="rank 1 could not save its shard of attempt-1/step-1"):
        ranks[0].wait()
    assert train.latest_valid(tmp_path) is None


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_restarts_in_place_ends_with_a_code_of_its_own(rank: int, tmp_path: Path) -> None:
    for each in (0, 1):
        train.Checkpoints(tmp_path, attempt=1, rank=each, world_size=2)
    begins = "train.Checkpoints(sys.argv[1], attempt=1, rank=int(sys.argv[2]), world_size=2)"
    code = f"import sys; from sickbay import train; {begins}"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(rank)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == RESTARTED_IN_PLACE
    assert "sickbay.train.errors.AlreadyBegun: " in ended.stderr


def test_ranks_of_another_launch_do_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_JOB_ID", "llama-1")
    train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=2)
    monkeypatch.setenv("SICKBAY_JOB_ID", "llama-2")
    with pytest.raises(train.AlreadyBegun, match="belongs to another launch than rank 1"):
        train.Checkpoints(tmp_path, attempt=1, rank=1, world_size=2)


# --- what is loaded is what was verified


def test_what_changes_between_the_look_and_the_load_is_not_returned(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    second = train.Checkpoints(tmp_path)
    shard = tmp_path / "attempt-1" / "step-1" / "rank-0.shard"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    with pytest.raises(train.CheckpointError, match=r"was whole and is no longer: rank-0\.shard is corrupt"):
        second.load()


def together(directory: Path, world: int, attempt: int, **more: Any) -> list[train.Checkpoints | BaseException]:
    """All ranks of an attempt at once, each on a thread of its own."""
    found: list[train.Checkpoints | BaseException] = [ValueError()] * world

    def begin(rank: int) -> None:
        try:
            found[rank] = train.Checkpoints(directory, attempt=attempt, rank=rank, world_size=world, **more)
        except train.CheckpointError as error:
            found[rank] = error

    threads = [threading.Thread(target=begin, args=(rank,), name=f"rank-{rank}") for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the shards that were opened to be read, while all ranks look together."""
    monkeypatch.setattr(sharing, "TOGETHER", 1)
    opened, names = Path.open, []

    def noted(path: Path, *args: Any, **more: Any) -> Any:
        if path.suffix == ".shard":
            names.append(f"{path.parent.name}/{path.name}")
        return opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", noted)
    return names


def four_shards(directory: Path, *steps: int) -> None:
    ranks = [rank for rank in together(directory, 4, 1) if isinstance(rank, train.Checkpoints)]
    for step in steps:
        for rank in ranks:
            rank.save(step, {"step": step, "rank": rank.rank})
        for rank in reversed(ranks):
            rank.wait()


def test_a_large_checkpoint_is_read_once_each_rank_its_own_shard(tmp_path: Path, reads: list[str]) -> None:
    four_shards(tmp_path, 7)
    for rank in together(tmp_path, 4, 2):
        assert isinstance(rank, train.Checkpoints)
        assert rank.load() == {"step": 7, "rank": rank.rank}
    assert sorted(reads) == [f"step-7/rank-{rank}.shard" for rank in range(4)]


def test_a_large_checkpoint_of_one_rank_is_read_once_too(tmp_path: Path, reads: list[str]) -> None:
    trained(tmp_path, 7)
    assert trained(tmp_path).load() == {"step": 7, "attempt": 1}
    assert reads == ["step-7/rank-0.shard"]


@pytest.mark.parametrize("sick", [0, 3])
@pytest.mark.usefixtures("reads")
def test_a_fault_that_one_rank_finds_is_a_fault_for_all(sick: int, tmp_path: Path) -> None:
    four_shards(tmp_path, 7, 8)
    shard = tmp_path / "attempt-1" / "step-8" / f"rank-{sick}.shard"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    for rank in together(tmp_path, 4, 2):
        assert isinstance(rank, train.Checkpoints)
        assert at(rank.resumed) == "attempt-1/step-7"
        assert rank.skipped == (Skipped(1, 8, f"rank-{sick}.shard is corrupt (its checksum differs)"),)
        assert rank.load() == {"step": 7, "rank": rank.rank}


@pytest.mark.usefixtures("reads")
def test_what_one_rank_cannot_read_is_refused_by_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four_shards(tmp_path, 7)
    opened = Path.open

    def failing(path: Path, *args: Any, **more: Any) -> Any:
        if path.name == "rank-2.shard":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return opened(path, *args, **more)

    monkeypatch.setattr(Path, "open", failing)
    told = together(tmp_path, 4, 2)
    assert [type(one) for one in told] == [train.Unreadable] * 4
    assert all("rank-2.shard: Input/output error" in str(one) for one in told)


def test_another_number_of_ranks_shares_the_work_too(tmp_path: Path, reads: list[str]) -> None:
    four_shards(tmp_path, 7)
    ranks = together(tmp_path, 3, 2)
    assert sorted(reads) == [f"step-7/rank-{rank}.shard" for rank in range(4)]
    assert all(isinstance(rank, train.Checkpoints) and rank.load(rank=3)["rank"] == 3 for rank in ranks)


@pytest.mark.usefixtures("reads")
def test_a_rank_that_does_not_look_is_named_when_its_time_is_over(tmp_path: Path) -> None:
    four_shards(tmp_path, 7)
    with pytest.raises(train.CheckpointError, match="rank 1 did not look at its share of attempt-1/step-7"):
        train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=4, patience=0.05)


def test_ranks_wait_for_all_that_is_looked_at_and_not_only_for_the_last_of_it(tmp_path: Path) -> None:
    four_shards(tmp_path, 7, 8)
    (tmp_path / "attempt-2").mkdir()
    looking = sharing.Looking(tmp_path, 2, 1, 4, patience=1)
    for number, step in enumerate((8, 7)):
        disk.create(layout.look_path(tmp_path, 2, number), CheckpointName(1, step)._asdict())
        looking.share()
    size = sum(path.stat().st_size for path in tmp_path.glob("attempt-1/*/*.shard"))
    assert looking.more == pytest.approx(sharing.allowance(size / 4))


def test_who_waits_has_the_time_that_the_bytes_take_besides_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = sharing.Looking(tmp_path, 1, 1, 2, patience=0)
    looking.more = 60
    answers = iter([None, None, "answer"])
    assert sharing.wait_for(lambda: next(answers), looking, "nobody answered") == "answer"

    rank = train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=2, patience=0)
    (tmp_path / "attempt-1" / "step-1").mkdir()
    for number in (0, 1):
        part = layout.RankPart({f"rank-{number}.shard": disk.Sum(10**9, "")}, "bytes", rank.at.run)
        layout.create_part(tmp_path, CheckpointName(1, 1), number, part)
    exists, late = disk.exists, [layout.part_path(tmp_path, CheckpointName(1, 1), 1)] * 3
    monkeypatch.setattr(disk, "exists", lambda path: not (path in late and late.pop()) and exists(path))
    assert rank.at.gather(CheckpointName(1, 1)).size == 2 * 10**9


def test_time_limits_follow_the_size() -> None:
    assert sharing.allowance(1e12 / 128) > 300
    assert sharing.allowance(1e6) < 0.1


# --- saves that fail


def failing(times: int) -> Callable[[Path], layout.RankPart]:
    left = [*range(times)]

    def write(directory: Path) -> layout.RankPart:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device", str(directory))
        return layout.RankPart({"rank-0.shard": disk.write(directory / "rank-0.shard", [b"x"])}, "bytes")

    return write


def test_a_save_that_fails_is_tried_again(tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path) as found:
        found.put(1, failing(1))
    assert whole(tmp_path) == ["attempt-1/step-1"]


def test_what_will_not_pass_is_not_tried_again(tmp_path: Path) -> None:
    tries: list[Path] = []

    def wrong(directory: Path) -> layout.RankPart:
        tries.append(directory)
        raise train.CheckpointError("it is not what it was")

    found = train.Checkpoints(tmp_path)
    found.put(1, wrong)
    with pytest.raises(train.CheckpointError, match="it is not what it was"):
        found.wait()
    assert len(tries) == 1


def test_a_save_that_fails_for_good_does_not_end_the_training_before_too_many_have_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = train.Checkpoints(tmp_path, failures=2)
    for step in (1, 2, 3, 4, 5):  # within moments: somebody may be making room
        assert found.put(step, failing(99))
    monkeypatch.setattr(errors, "LASTING", 0.0)
    with pytest.raises(train.CheckpointError, match="attempt-1/step-5 was not saved: No space left on device"):
        found.put(6, failing(99))
    found.put(7, failing(0))
    found.wait()
    assert whole(tmp_path) == ["attempt-1/step-7"]
    monkeypatch.undo()
    found = train.Checkpoints(tmp_path / "strict", failures=0)
    found.put(1, failing(99))
    with pytest.raises(train.CheckpointError, match="No space left on device"):
        found.put(2, failing(99))


def test_a_save_for_which_there_is_no_thread_or_no_memory_counts_as_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def no_memory(*_: object) -> snapshot.SnapshotParts:
        raise MemoryError

    found = train.Checkpoints(tmp_path, failures=2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        found.save(1, b"one")
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "take", no_memory)
        found.save(2, b"two")
    found.save(3, b"three")
    found.wait()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        patch.setattr(errors, "LASTING", 0.0)
        for step in (4, 5, 6):
            found.save(step, b"more")
        with pytest.raises(train.CheckpointError, match="attempt-1/step-6 was not saved: can't start new thread"):
            found.save(7, b"seven")
    assert layout.failed_path(tmp_path, CheckpointName(1, 6), 0).exists(), "the others need not wait for it"
    assert whole(tmp_path) == ["attempt-1/step-3"]


def test_an_interrupt_right_before_a_save_begins_does_not_end_all_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: threading.Thread) -> None:
        raise KeyboardInterrupt

    found = train.Checkpoints(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            found.save(1, b"one")
    found.wait()
    found.save(2, b"two")
    found.wait()
    assert whole(tmp_path) == ["attempt-1/step-2"]


def test_a_shard_that_was_written_before_its_part_failed_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, failures = layout.create_part, [1]

    def part(*args: Any) -> bool:
        if failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        return create(*args)

    monkeypatch.setattr("sickbay.train.committing.create_part", part)
    trained(tmp_path, 1)
    assert trained(tmp_path).load() == {"step": 1, "attempt": 1}


def test_a_save_that_has_not_ended_within_the_budget_leaves_the_next_out(tmp_path: Path) -> None:
    gate = threading.Event()

    def slow(directory: Path) -> layout.RankPart:
        assert gate.wait(60)
        return failing(0)(directory)

    with train.Checkpoints(tmp_path, budget=0.01) as found:
        assert found.put(1, slow)
        assert found.save(2, b"two") is False
        assert layout.failed_path(tmp_path, CheckpointName(1, 2), 0).exists(), "the others need not wait for it"
        gate.set()
        found.wait()
        assert found.save(3, b"three")
    assert whole(tmp_path) == ["attempt-1/step-1", "attempt-1/step-3"]


def test_a_script_that_ends_without_wait_does_not_wait_for_ranks_that_are_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from sickbay import train; from sickbay.train import saves; saves.AT_EXIT = 0.2;"
        "c = train.Checkpoints(sys.argv[1], attempt=1, rank=0, world_size=2); c.save(1, b'x'); sys.exit(3)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False, timeout=60)
    assert ended.returncode == 3
    assert whole(tmp_path) == []


def test_a_script_that_exits_within_its_block_has_its_last_save_finished_by_all_ranks(tmp_path: Path) -> None:
    code = """
import sys, time
from sickbay import train
from sickbay.train import disk, saves
saves.GRACE = 0.1
write, rank = disk.write, int(sys.argv[2])
def slowly(path, *more):
    if path.suffix == ".shard":
        time.sleep(0.5 + rank)
    return write(path, *more)
disk.write = slowly
with train.Checkpoints(sys.argv[1], attempt=1, rank=rank, world_size=2) as found:
    found.save(7, b"state")
    sys.exit(0)
"""
    ranks = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(rank)]) for rank in (0, 1)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert whole(tmp_path) == ["attempt-1/step-7"]


def test_a_child_that_leaves_the_block_of_its_parent_ends_nothing(tmp_path: Path) -> None:
    code = """
import os, sys
from sickbay import train
with train.Checkpoints(sys.argv[1], near=sys.argv[1] + "/near") as found:
    found.save(7, b"state")
    found.wait()
    if not (child := os.fork()):
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    if not (child := os.fork()):
        found.__exit__(None, None, None)
        os._exit(6)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
    assert list(found.path_of(7).iterdir())
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=20)


def test_memory_for_copies_is_given_back_when_the_block_is_over(tmp_path: Path) -> None:
    with train.Checkpoints(tmp_path) as found:
        found.save(1, {"weights": bytearray(1000)})
        found.wait()
        kept = weakref.ref(found)
        assert found._kept
    assert not found._kept
    del found
    gc.collect()
    assert kept() is None, "a second training in this process has room of its own"


# --- asked to save


def test_a_script_that_is_asked_to_end_may_save_before_it_does(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from sickbay import train
with train.Checkpoints(sys.argv[1]) as checkpoints:
    assert not train.should_save()
    os.kill(os.getpid(), signal.SIGTERM)
    assert train.should_save()
    assert not train.should_save()
    checkpoints.save(1, b"saved")
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert whole(tmp_path) == ["attempt-1/step-1"]


def test_a_script_that_never_asks_ends_at_the_first_sigterm_and_one_that_stopped_asking_at_the_second() -> None:
    kill = "[os.kill(os.getpid(), signal.SIGTERM) for _ in range(int(sys.argv[1]))]"
    for call, times, code_of in (("0", 1, -15), ("asked.should_save()", 1, 0), ("asked.should_save()", 2, -15)):
        code = f"import os, signal, sys; from sickbay.train import asked; asked.AGAIN = -1; {call}; {kill}"
        ended = subprocess.run([sys.executable, "-c", code, str(times)], check=False, timeout=60)
        assert ended.returncode == code_of


def test_a_sigterm_that_a_launcher_passes_on_a_second_time_ends_nothing() -> None:
    kill = "[os.kill(os.getpid(), signal.SIGTERM) for _ in range(2)]"
    code = f"import os, signal; from sickbay import train; train.should_save(); {kill}; assert train.should_save()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_a_script_forks_ends_at_a_sigterm_like_any_process() -> None:
    code = """
import os, signal, time
from sickbay import train
train.should_save()
ear, mouth = os.pipe()
worker = os.fork()
if worker == 0:
    os.write(mouth, b"!")
    time.sleep(10)
    os._exit(0)
os.read(ear, 1)
os.kill(worker, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGTERM, "a worker of a data loader stays"
os.kill(os.getpid(), signal.SIGTERM)
assert train.should_save()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_sigterm_at_any_moment_of_the_one_before_holds_nothing_up() -> None:
    code = """
import faulthandler, signal, sys
from sickbay.train import asked
faulthandler.dump_traceback_later(5, exit=True)
asked.should_save()

def trace(frame, event, _):
    global line
    line += event == "line"
    if line == at and event == "line":
        signal.raise_signal(signal.SIGTERM)
    return trace

for at in range(1, 100):
    line = 0
    sys.settrace(trace)
    signal.raise_signal(signal.SIGTERM)
    answer = asked.should_save()
    sys.settrace(None)
    assert answer
    asked.should_save()
assert line < at, "every line was tried"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# --- found by attacks on the above


def test_what_was_read_of_a_checkpoint_that_was_passed_over_is_not_loaded(tmp_path: Path, reads: list[str]) -> None:
    ranks = [rank for rank in together(tmp_path, 2, 1) if isinstance(rank, train.Checkpoints)]
    for step, size in ((30, 10), (40, 10_000)):
        for rank in ranks:
            rank.save(step, {"step": step, "pad": bytes(size)})
        for rank in reversed(ranks):
            rank.wait()
    shard = tmp_path / "attempt-1" / "step-40" / "rank-0.shard"
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharing, "TOGETHER", 5_000)  # the newer one is looked at by all, the older one by rank 0 alone
        found = together(tmp_path, 2, 2)
    assert [rank.load()["step"] for rank in found if isinstance(rank, train.Checkpoints)] == [30, 30]
    assert reads


@pytest.mark.parametrize("number", [10**18, 10**30])
def test_numbers_of_any_length_are_found_again(number: int, tmp_path: Path) -> None:
    trained(tmp_path, number, attempt=number)
    assert at(trained(tmp_path, attempt=number + 1).resumed) == f"attempt-{number}/step-{number}"


def test_a_follower_that_does_not_see_yet_what_rank_0_has_seen_makes_nothing_corrupt(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    four_shards(tmp_path, 7, 8)
    read_manifest, blind = layout.read_manifest, [1, 2]

    def late(root: Path, place: CheckpointName, **more: Any) -> Any:
        if threading.current_thread().name == "rank-2" and place.step == 8 and blind:
            blind.pop()
            return None
        return read_manifest(root, place, **more)

    monkeypatch.setattr("sickbay.train.sharing.read_manifest", late)
    monkeypatch.setattr(choosing, "READ_AGAIN", (0.0, 0.0))
    assert {at(rank.resumed) for rank in together(tmp_path, 4, 2) if isinstance(rank, train.Checkpoints)} == {
        "attempt-1/step-8"
    }
    assert reads


@pytest.mark.parametrize("which", range(12))
def test_one_listing_or_stat_that_wrongly_says_no_never_begins_at_0(
    which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 10, 20)
    stat, iterdir, calls = Path.stat, Path.iterdir, [0]

    def once(path: Path) -> None:
        if tmp_path in path.parents and "attempt-1" in str(path):
            calls[0] += 1
            if calls[0] == which + 1:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))

    def wrong_stat(path: Path, **more: Any) -> os.stat_result:
        once(path)
        return stat(path, **more)

    def wrong_list(path: Path) -> Any:
        once(path)
        return iterdir(path)

    monkeypatch.setattr(Path, "stat", wrong_stat)
    monkeypatch.setattr(Path, "iterdir", wrong_list)
    try:
        found = at(train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1).resumed)
    except train.Unreadable:
        found = "refused"
    assert found in {"attempt-1/step-20", "refused"}


def test_a_wish_to_begin_anew_that_stays_in_the_environment_is_granted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 10)
    monkeypatch.setenv("SICKBAY_BEGIN_ANEW", "1")
    assert trained(tmp_path, 1).resumed is None
    assert at(trained(tmp_path, 2).resumed) == "attempt-2/step-1"
    assert at(trained(tmp_path).resumed) == "attempt-3/step-2"


def test_an_attempt_that_began_anew_and_saved_nothing_does_not_hide_what_is_older(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    trained(tmp_path, anew=True)
    with pytest.raises(train.Unreadable, match="began anew and saved none: move that attempt away"):
        trained(tmp_path)


def test_saves_that_never_came_to_their_end_do_not_fill_the_disk(tmp_path: Path) -> None:
    trained(tmp_path, 10)
    for attempt in range(2, 6):
        died = train.Checkpoints(tmp_path, attempt=attempt, rank=0, world_size=1)
        step = tmp_path / f"attempt-{died.attempt}" / "step-11"
        step.mkdir()
        (step / "rank-0.shard").write_bytes(b"half")
    trained(tmp_path)
    assert [path.parent.name for path in tmp_path.glob("attempt-*/step-*")] == ["attempt-1"]


def test_another_directory_of_the_script_begins_whenever_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SICKBAY_LAST_STEP", "5000")
    monkeypatch.setenv("SICKBAY_CHECKPOINT_DIR", str(tmp_path / "own"))
    assert train.Checkpoints(tmp_path / "other", attempt=2, rank=0, world_size=1).resumed is None


def test_a_shard_of_no_use_here_is_told_by_load_and_ends_no_beginning(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path, 1)

    def useless(*_: Any) -> Any:
        raise NotAShard("it holds arrays of numpy, which is not installed here")

    monkeypatch.setattr("sickbay.train.shard.restore", useless)
    second = train.Checkpoints(tmp_path)
    assert at(second.resumed) == "attempt-1/step-1"
    with pytest.raises(train.CheckpointError, match=r"cannot load attempt-1/step-1/rank-0\.shard: it holds arrays of"):
        second.load()
    assert reads


def test_a_commit_whose_answer_was_an_error_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, failures = disk.sync, [1]

    def failing_once(directory: Path) -> None:
        if (directory / "manifest.json").exists() and failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error", str(directory))
        sync(directory)

    monkeypatch.setattr(disk, "sync", failing_once)
    trained(tmp_path, 100)
    assert not failures
    assert at(train.latest_valid(tmp_path)) == "attempt-1/step-100"


def test_nothing_is_saved_below_a_mount_point_that_has_lost_its_disk(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    with train.Checkpoints(root) as found:
        found.save(1, b"one")
        found.wait()
        root.rename(tmp_path / "disk")
        root.mkdir()
        found.save(2, b"two")
        with pytest.raises(train.CheckpointError, match="does not show attempt 1 any more"):
            found.wait()
        assert list(root.iterdir()) == []
        root.rmdir()
        (tmp_path / "disk").rename(root)
        found.save(3, b"three")
    assert at(train.latest_valid(root)) == "attempt-1/step-3"
