"""kill -9 and SIGSTOP between any two lines of `sickbay.train`, in real processes."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.support.thorough import THOROUGH

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIVES = ROOT / "tests/support/train_lives.py"
JOBS = ROOT / "tests/support/train_jobs.py"
WORLD = Path(__file__).parents[1] / "support/train_world.py"


def scene(name: str, disk: Path, *numbers: int, script: Path = LIVES) -> dict[str, int]:
    with tempfile.TemporaryDirectory(dir=disk) as directory:
        command = [sys.executable, str(script), name, directory, *map(str, numbers)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path}
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr
    told: dict[str, int] = json.loads(ran.stdout)
    return told


def test_a_death_at_many_lines_of_an_adoption_loses_nothing_that_was_committed(quick_disk: Path) -> None:
    assert scene("adopted_killed", quick_disk, 97, 1)["deaths"] > 1640 // 97


@pytest.mark.parametrize("first", [1, 2] if THOROUGH else [1])
def test_a_death_at_every_line_of_a_save_loses_nothing_that_was_committed(first: int, quick_disk: Path) -> None:
    every = 2 if THOROUGH else 17
    assert scene("killed", quick_disk, every, first)["deaths"] > 2000 // every


def test_adopting_stands_still_at_any_line_and_cannot_reach_the_lineage_of_those_who_began_meanwhile(
    quick_disk: Path,
) -> None:
    assert scene("adopted_frozen", quick_disk, 4 if THOROUGH else 60, 1)["stops"] > 50


@pytest.mark.parametrize("first", [1, 7] if THOROUGH else [1])
def test_what_stood_still_at_any_line_cannot_reach_the_lineage_of_those_who_began_meanwhile(
    first: int, quick_disk: Path
) -> None:
    every = 12 if THOROUGH else 53
    assert scene("frozen", quick_disk, every, first)["stops"] > 3000 // every


def test_one_that_stood_still_at_any_line_of_its_beginning_goes_on_from_what_is_there_then(quick_disk: Path) -> None:
    assert scene("begun_over", quick_disk, 3 if THOROUGH else 20, 1)["began"] > 20


def test_what_an_attempt_began_from_is_never_removed_by_one_that_was_about_to(quick_disk: Path) -> None:
    told = scene("both_frozen", quick_disk, 300, 20261116)
    assert told["from_old"] > 50


@pytest.mark.parametrize("kind", ["calm", "stale", "errors", "nolinks", "remounted", "adopted"])
def test_three_attempts_interleaved_at_every_call_never_fall_behind_what_was_committed(
    kind: str, quick_disk: Path
) -> None:
    runs = 1500 if THOROUGH else 50
    told = scene(kind, quick_disk, 1, runs, script=WORLD)
    assert told["resumed"] > runs, told


def test_a_death_at_any_line_loses_neither_what_is_near_nor_what_was_uploaded(quick_disk: Path) -> None:
    told = scene("near_killed", quick_disk, 7 if THOROUGH else 43, 1)
    assert told["resumed_near"] > told["deaths"] // 3


def test_what_stood_still_at_any_line_takes_nothing_near_from_those_who_began_meanwhile(quick_disk: Path) -> None:
    every = 12 if THOROUGH else 190
    assert scene("near_frozen", quick_disk, every, 1)["stops"] > 5000 // every


def test_a_death_at_any_line_of_a_job_that_goes_on_from_a_step_costs_nothing_and_mixes_nothing(
    quick_disk: Path,
) -> None:
    every = 11 if THOROUGH else 131
    assert scene("killed", quick_disk, every, 1, script=JOBS)["deaths"] > 5000 // every


def test_a_late_attempt_of_a_job_that_is_continued_stands_still_at_any_line_and_comes_too_late(
    quick_disk: Path,
) -> None:
    every = 7 if THOROUGH else 131
    assert scene("late", quick_disk, every, 1, script=JOBS)["stops"] > 3000 // every


def test_two_strange_jobs_that_begin_in_one_directory_at_any_line_never_mix_their_weights(quick_disk: Path) -> None:
    every = 5 if THOROUGH else 83
    told = scene("strangers", quick_disk, every, 1, script=JOBS)
    assert told["stops"] > 2500 // every
    assert told["began_first"], told
