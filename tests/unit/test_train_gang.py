"""Ranks that save together through torch.distributed.checkpoint: real processes on gloo."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sickbay import train
from sickbay.train import disk
from sickbay.train.layout import CheckpointName, Manifest, read_manifest

pytest.importorskip("torch", reason="torch is not installed here: ranks that save together were not tried")
pytestmark = pytest.mark.slow
GANG = Path(__file__).parents[1] / "support/dcp_gang.py"
SCENARIOS = ("sums", "budgets", "steps", "unmounted", "unsaveable", "too_large", "refused_load", "misfit", "asked")
PAIR = f"2:{','.join(SCENARIOS)},alone"  # what ends the group comes last
RESHARDED = ("4:reshard", "2:reshard")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the gangs were: torch takes seconds to load, so one process does it for all of them."""
    where = tmp_path_factory.mktemp("gang")
    gangs = [PAIR, *RESHARDED] if hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard") else [PAIR]
    ran = subprocess.run([sys.executable, str(GANG), str(where), *gangs], check=False, timeout=240)
    assert ran.returncode == 0
    return where


def stories(root: Path, gang: str) -> list[dict[str, Any]]:
    """What each rank has seen."""
    return [json.loads((root / f"{gang}-{rank}.json").read_text()) for rank in range(int(gang[0]))]


@pytest.fixture(scope="module")
def seen(root: Path) -> list[dict[str, Any]]:
    return stories(root, PAIR)


def manifest_of(directory: Path, step: int) -> Manifest:
    found = read_manifest(directory, CheckpointName(1, step))
    assert found is not None
    return found


def test_what_dcp_writes_is_hashed_on_its_way_and_never_read_again(seen: list[dict[str, Any]], root: Path) -> None:
    written = {name for rank in seen for mode, name in map(str.split, rank["sums"]) if mode == "w"}
    assert {"__0_0.distcp", "__1_0.distcp"} <= written
    assert [name for rank in seen for name in rank["sums"] if name.startswith("r")] == []
    for step in (1, 2):
        manifest = manifest_of(root / "sums", step)
        directory = root / "sums" / "attempt-1" / f"step-{step}"
        assert set(manifest.files) == {"__0_0.distcp", "__1_0.distcp", ".metadata"}
        assert manifest.files == {name: disk.measure(directory / name) for name in manifest.files}
        assert manifest.files["__0_0.distcp"].size > 2_000_000


def test_all_ranks_leave_out_what_one_is_too_busy_for(seen: list[dict[str, Any]], root: Path) -> None:
    assert [rank["budgets"]["said"] for rank in seen] == [[True, False, True, None]] * 2
    assert [rank["budgets"]["told"] for rank in seen] == [
        ["attempt-1/step-2 is left out: the save before it has not ended within 0.2 s"],
        ["attempt-1/step-2 is left out: the save before it has not ended on rank 0"],
    ]
    assert train.latest_valid(root / "budgets").step == 3


def test_ranks_that_save_different_steps_are_told_so_and_go_on(seen: list[dict[str, Any]], root: Path) -> None:
    why = "CheckpointError: one rank is at step 5, another at step 6: all must save the same steps"
    assert [rank["steps"] for rank in seen] == [[why, True, None]] * 2
    assert train.latest_valid(root / "steps").step == 10


def test_a_rank_that_cannot_begin_makes_the_save_fail_on_all(seen: list[dict[str, Any]], root: Path) -> None:
    for rank in seen:
        first, (begun, why), third = rank["unmounted"]
        assert (first, begun, third) == ([True, None], True, [True, None])
        assert why.startswith("CheckpointError: ")
    assert "attempt-1/step-2 was not saved: rank 1 could not begin" in seen[0]["unmounted"][1][1]
    assert "is its disk still mounted?" in seen[1]["unmounted"][1][1]
    found = train.latest_valid(root / "unmounted")
    assert (found.step, found.skipped) == (3, ())


def test_a_rank_with_a_state_that_cannot_be_copied_raises_and_so_do_the_others(seen: list[dict[str, Any]]) -> None:
    (other, *later), (own, *too) = (rank["unsaveable"] for rank in seen)
    assert own.startswith("TypeError: cannot pickle")
    assert other == "CheckpointError: attempt-1/step-1 is not saved: rank 1 refuses to; its own error says why"
    assert later == too == [True, None]


def test_an_error_within_dcp_is_told_in_one_line_by_all_and_the_next_save_goes_well(seen: list[dict[str, Any]]) -> None:
    why = "CheckpointError: attempt-1/step-1 was not saved: rank 1: File too large"
    assert [rank["too_large"] for rank in seen] == [[[True, why], [True, None]]] * 2


def test_a_rank_that_refuses_to_load_is_not_waited_for(seen: list[dict[str, Any]]) -> None:
    other, own = (rank["refused_load"] for rank in seen)
    assert "__1_0.distcp is corrupt" in own
    assert other.endswith("is not loaded: rank 1 refuses to; its own error says why")


def test_what_does_not_fit_is_refused_in_one_line(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        missing, size = rank["misfit"]
        assert "could not be loaded into this state: rank 0: " in missing
        assert "bias" in missing
        assert "could not be loaded into this state: " in size
        assert "480" in size or "rank 1 refuses to" in size
        assert "\n" not in missing + size


def test_a_rank_that_does_not_come_is_waited_for_so_long_and_then_all_are_told(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["alone"]["said"][:2] == [True, None]
        assert "could not agree on step 2 within 2 s (patience and budget)" in rank["alone"]["said"][2]
        assert "\n" not in rank["alone"]["said"][2]
    assert 1.5 < seen[0]["alone"]["took"] < 60


def test_all_ranks_save_at_the_same_call_once_when_each_was_asked(seen: list[dict[str, Any]]) -> None:
    heard_at_the_next = [False, False, True, False, False, False]
    assert [rank["asked"] for rank in seen] == [[heard_at_the_next, [False, True, False]]] * 2


def test_two_ranks_go_on_bit_by_bit_from_what_four_have_saved(root: Path) -> None:
    if not (root / f"{RESHARDED[0]}-0.json").exists():
        pytest.skip("this torch has no FSDP2")
    assert stories(root, RESHARDED[0]) == [{"reshard": "saved"}] * 4
    for rank in stories(root, RESHARDED[1]):
        assert rank["reshard"] == {"different": [], "seen": 28, "tensors": 4 + 3 * 4}
