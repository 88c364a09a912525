"""sickbay demo: one fault to its end."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sickbay.faces.cli.main import main


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_the_demo_heals_and_says_after_how_long_training_went_on(seed: int) -> None:
    result = sickbay("demo", "--seed", str(seed))
    assert result.exit_code == 0, result.output
    assert re.search(r"^training again after \d+ s$", result.stdout, re.MULTILINE)
    assert "RELEASED" in result.stdout
    assert "job train: COMPLETE" in result.stdout
    assert result.stderr == ""


def test_the_demos_story_is_told_in_order() -> None:
    lines = sickbay("demo").stdout.splitlines()
    said = [
        "a GPU breaks: xid.79",
        "SUSPECT",
        "cordons the node",
        "STOPPING",
        "reboots the node",
        "what was broken is cured by reboot",
        "training again at step",
        "VERIFYING",
        "RELEASED",
        "COMPLETE",
    ]
    places = [next(n for n, line in enumerate(lines) if text in line) for text in said]
    assert places == sorted(places)


def test_the_demo_is_the_same_for_the_same_seed() -> None:
    assert sickbay("demo", "--seed", "5").stdout == sickbay("demo", "--seed", "5").stdout


def test_the_demos_json_adds_up() -> None:
    told = json.loads(sickbay("demo", "--json").stdout)
    assert told["healed"] is True
    assert told["broken"] is None
    (interruption,) = told["job"]["interruptions"]
    assert interruption["training_again_after"] == told["training_again_after"] > 0
    assert [stage["phase"] for stage in told["incidents"][0]["stages"]][-1] == "RELEASED"


def test_a_kept_demo_can_be_explained(tmp_path: Path) -> None:
    file = tmp_path / "demo.db"
    kept = sickbay("demo", "--keep", str(file))
    assert kept.exit_code == 0, kept.output
    for name in ("train-0000", "sim/train-0000", "train", "job:train"):
        result = sickbay("explain", name, "--store", str(file))
        assert result.exit_code == 0, result.output
        assert "RELEASED" in result.stdout
    assert sickbay("explain", "train", "--store", f"sqlite:///{file}").exit_code == 0


def test_a_kept_story_is_the_one_that_was_told(tmp_path: Path) -> None:
    file = tmp_path / "demo.db"
    sickbay("demo", "--keep", str(file))
    kept = json.loads(sickbay("explain", "train", "--store", str(file), "--json").stdout)
    told = json.loads(sickbay("explain", "train", "--sim", "standard", "--json").stdout)
    assert kept["story"] == told["story"]


def test_never_overwrites_a_file(tmp_path: Path) -> None:
    file = tmp_path / "precious.db"
    file.write_text("precious")
    result = sickbay("demo", "--keep", str(file))
    assert result.exit_code == 2
    assert "exists" in result.stderr
    assert file.read_text() == "precious"
