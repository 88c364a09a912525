"""Several ranks as several processes, with only the files between them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.waiting import until

from sickbay import train
from sickbay.train.shard import restore

pytestmark = pytest.mark.slow

PATIENCE = 60.0
TRAIN = """
import os, sys, time
from sickbay import train
directory, rank, world, attempt, steps, pace = sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6])
try:
    checkpoints = train.Checkpoints(directory, attempt=attempt, rank=rank, world_size=world, keep=3)
    print("begun", checkpoints.resumed.step if checkpoints.resumed else 0, flush=True)
    state = checkpoints.load(None if not checkpoints.resumed or checkpoints.resumed.world_size == world else 0)
    step = state["step"] if state else 0
    while step < steps:
        step += 1
        checkpoints.save(step, {"step": step, "rank": rank, "attempt": attempt, "pad": bytes(100_000)})
        time.sleep(pace)
    checkpoints.wait()
    print("done", step, flush=True)
except train.CheckpointError as error:
    print(type(error).__name__, error, flush=True)
    sys.exit(1)
"""


class Ranks:
    """Processes of a test, all ended with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.all: list[subprocess.Popen[str]] = []

    def start(self, rank: int, world: int, attempt: int, steps: int, pace: float = 0.0) -> subprocess.Popen[str]:
        numbers = map(str, (rank, world, attempt, steps, pace))
        process = subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(self.directory), *numbers], stdout=subprocess.PIPE, text=True
        )
        self.all.append(process)
        return process

    def gang(self, world: int, attempt: int, steps: int, pace: float = 0.0) -> list[subprocess.Popen[str]]:
        return [self.start(rank, world, attempt, steps, pace) for rank in range(world)]

    def end(self) -> None:
        for process in self.all:
            with suppress(ProcessLookupError):
                process.kill()
            process.communicate()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(tmp_path)
    yield ranks
    ranks.end()


def said(process: subprocess.Popen[str]) -> list[str]:
    return process.communicate(timeout=PATIENCE)[0].splitlines()


def committed(directory: Path, attempt: int) -> list[int]:
    return sorted(int(path.parent.name[5:]) for path in directory.glob(f"attempt-{attempt}/step-*/manifest.json"))


def test_four_ranks_resume_from_the_same_checkpoint_each_with_its_own_shard(ranks: Ranks, tmp_path: Path) -> None:
    assert [said(rank)[-1] for rank in ranks.gang(4, 1, steps=5)] == ["done 5"] * 4
    late_first = [ranks.start(rank, 4, 2, steps=7) for rank in (3, 2, 1, 0)]  # rank 0 comes last
    assert [said(rank) for rank in late_first] == [["begun 5", "done 7"]] * 4
    found = train.latest_valid(tmp_path)
    assert (found.attempt, found.step, found.world_size) == (2, 7, 4)
    for rank in range(4):
        shard = found.path / f"rank-{rank}.shard"
        with shard.open("rb") as file:
            assert restore("state", file, shard.stat().st_size)["rank"] == rank


def test_a_rank_that_dies_takes_no_committed_step_with_it(ranks: Ranks, tmp_path: Path) -> None:
    gang = ranks.gang(3, 1, steps=10_000)
    assert until(lambda: committed(tmp_path, 1)[-1:] >= [5])
    gang[2].kill()
    gang[2].wait(PATIENCE)
    for rank in gang[:2]:
        rank.kill()
        rank.wait(PATIENCE)
    newest = committed(tmp_path, 1)[-1]
    assert [said(rank)[0] for rank in ranks.gang(3, 2, steps=newest)] == [f"begun {newest}"] * 3


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_rank_frozen_before_the_restart_and_thawed_after_it_touches_nothing_of_the_new_attempt(
    frozen: int, ranks: Ranks, tmp_path: Path
) -> None:
    old = ranks.gang(2, 1, steps=10_000)
    assert until(lambda: committed(tmp_path, 1)[-1:] >= [3])
    old[frozen].send_signal(signal.SIGSTOP)
    old[1 - frozen].kill()
    old[1 - frozen].wait(PATIENCE)
    base = train.latest_valid(tmp_path)
    new = ranks.gang(2, 2, steps=base.step + 3)
    assert [said(rank)[-1] for rank in new] == [f"done {base.step + 3}"] * 2
    before = {path: path.read_bytes() for path in tmp_path.glob("attempt-2/**/*") if path.is_file()}
    old[frozen].send_signal(signal.SIGCONT)
    assert said(old[frozen])[-1].startswith("Superseded attempt 2 has begun")
    assert {path: path.read_bytes() for path in tmp_path.glob("attempt-2/**/*") if path.is_file()} == before
    third = ranks.gang(2, 3, steps=base.step + 3)
    assert [said(rank)[0] for rank in third] == [f"begun {base.step + 3}"] * 2


def test_a_run_with_fewer_ranks_reads_the_shard_of_rank_0(ranks: Ranks) -> None:
    assert [said(rank)[-1] for rank in ranks.gang(3, 1, steps=4)] == ["done 4"] * 3
    assert [said(rank) for rank in ranks.gang(2, 2, steps=6)] == [["begun 4", "done 6"]] * 2


def test_without_saying_which_a_shard_of_another_world_size_is_refused(ranks: Ranks, tmp_path: Path) -> None:
    assert [said(rank)[-1] for rank in ranks.gang(3, 1, steps=4)] == ["done 4"] * 3
    with train.Checkpoints(tmp_path, attempt=2, rank=0, world_size=1) as alone:
        with pytest.raises(train.CheckpointError, match=r"saved by 3 ranks and this run has 1: load\(rank=0\)"):
            alone.load()
        assert [alone.load(rank=rank)["rank"] for rank in range(3)] == [0, 1, 2]
        with pytest.raises(train.CheckpointError, match="has no rank 3: it was saved by 3 ranks, write 0 to 2"):
            alone.load(rank=3)


def test_of_many_that_begin_the_same_attempt_at_once_exactly_one_wins(ranks: Ranks, tmp_path: Path) -> None:
    told = [said(rival)[0] for rival in [ranks.start(0, 1, 1, steps=1) for _ in range(8)]]
    assert sorted(line.split()[0] for line in told) == ["AlreadyBegun"] * 7 + ["begun"]
    assert any("every run needs a number of its own" in line for line in told)
    assert committed(tmp_path, 1) == [1]


def test_of_many_without_a_number_each_has_its_own(ranks: Ranks, tmp_path: Path) -> None:
    code = "import sys; from sickbay import train; print(train.Checkpoints(sys.argv[1], rank=0, world_size=1).attempt)"
    clean = {name: value for name, value in os.environ.items() if name != "SICKBAY_ATTEMPT"}
    for _ in range(8):
        command = [sys.executable, "-c", code, str(tmp_path)]
        ranks.all.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=clean)
        )
    told = [line for rival in ranks.all for line in said(rival)]
    # One that sees a later attempt right after its own beginning ends at once: it has its number all the same.
    assert len(set(told)) == len(told) >= 1
    assert sorted(path.parent.name for path in tmp_path.glob("attempt-*/RUN")) == [f"attempt-{n}" for n in range(1, 9)]


def test_ranks_that_wait_in_vain_say_for_whom(tmp_path: Path) -> None:
    with pytest.raises(train.CheckpointError, match=r"rank 0 did not begin attempt 1 .* see the same directory"):
        train.Checkpoints(tmp_path, attempt=1, rank=1, world_size=2, patience=0.05)
    leader = train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=2, patience=0.05)
    leader.save(1, b"x")
    with pytest.raises(train.CheckpointError, match=r"rank 1 did not save its shard of attempt-1/step-1 within 0\.05"):
        leader.wait()
    assert train.latest_valid(tmp_path) is None


def test_ranks_that_count_differently_are_told(tmp_path: Path) -> None:
    train.Checkpoints(tmp_path, attempt=1, rank=0, world_size=2).wait()
    with pytest.raises(train.CheckpointError, match="began attempt 1 with 2 ranks, rank 2 counts 3"):
        train.Checkpoints(tmp_path, attempt=1, rank=2, world_size=3)
