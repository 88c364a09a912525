"""A simulated run that is kept as a file can be explained later."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from sickbay.faces.cli.main import main


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def test_a_kept_run_can_be_explained(tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    kept = sickbay("sim", "standard", "--keep", str(file))
    assert kept.exit_code == 0, kept.output
    for name in ("train-0000", "sim/train-0000", "train", "job:train"):
        result = sickbay("explain", name, "--store", str(file))
        assert result.exit_code == 0, result.output
        assert "RELEASED" in result.stdout
    assert sickbay("explain", "train", "--store", f"sqlite:///{file}").exit_code == 0


def test_a_kept_story_is_the_one_that_was_told(tmp_path: Path) -> None:
    file = tmp_path / "kept.db"
    sickbay("sim", "standard", "--keep", str(file))
    kept = json.loads(sickbay("explain", "train", "--store", str(file), "--json").stdout)
    told = json.loads(sickbay("explain", "train", "--sim", "standard", "--json").stdout)
    assert kept["story"] == told["story"]


def test_never_overwrites_a_file(tmp_path: Path) -> None:
    file = tmp_path / "precious.db"
    file.write_text("precious")
    result = sickbay("sim", "standard", "--keep", str(file))
    assert result.exit_code == 2
    assert "exists" in result.stderr
    assert file.read_text() == "precious"
