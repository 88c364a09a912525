"""The command line as a whole: what it shows, how it refuses, and with which exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sickbay import __version__
from sickbay.faces.cli.main import COMMANDS, main


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def refused(*args: str) -> str:
    """Wrong use: exit 2, nothing on standard output, one line on standard error."""
    result = sickbay(*args)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_shows_the_commands_that_exist_and_where_to_begin(args: tuple[str, ...]) -> None:
    result = sickbay(*args)
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
    assert "\n  console" not in result.stdout  # not built yet: not shown
    assert "Begin here" in result.stdout
    assert "Exit codes: 0 done, 1 the answer is no, 2 wrong use, 3 cannot reach" in result.stdout


def test_every_command_that_is_shown_can_be_asked_for_help() -> None:
    for name in COMMANDS:
        result = sickbay(name, "--help")
        assert result.exit_code == 0, name
        assert result.stdout.startswith(f"Usage: sickbay {name}")


def test_the_version_is_the_packages_own() -> None:
    assert sickbay("--version").stdout == f"sickbay {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, sickbay.faces.cli.main; print([m for m in ('sqlalchemy', 'rich', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("expain",), "did you mean 'explain'?"),
        (("qqq",), "known: demo, up, down, controller, backup"),
        (("sim", "soak", "--run", "3"), "Did you mean '--runs'?"),
        (("sim", "standrd"), "did you mean 'standard'?"),
        (("sim", "standard", "--sed", "3"), "'sickbay sim --help'"),
        (("sim", "standard", "--policy", "defalt"), "did you mean 'default'?"),
        (("sim", "standard", "--nodes", "1"), "standard needs 2 or more"),
        (("sim", "no-such.yaml"), "no such file"),
        (("sim", "standard", "--seed", "-1"), "--seed"),
        (("explain", "train", "--sim", "standard", "--store", "x"), "one of them"),
        (("explain", "train", "--store", "no-such-file"), "no such file"),
        (("explain", "train", "--store", "mysql://x"), "there is no store of the kind 'mysql'"),
        (("explain", "train", "--store", "x", "--at", "5m"), "--sim NAME with it"),
        (("explain", "train", "--sim", "standard", "--at", "5x"), "such as 30s, 10m or 1h30m"),
        (("explain",), "Missing argument"),
        (("sim", "standard", "--keep", "/no/such/directory/x.db"), "there is no directory"),
        (("up", "--nodes", "-1"), "--nodes"),
        (("up", "--nodes", "four"), "'four' is not a whole number"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_write(args: tuple[str, ...], says: str) -> None:
    assert says in refused(*args)


def test_a_file_that_is_no_store_is_wrong_use(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    assert "no SQLite file" in refused("explain", "train", "--store", str(file))


def test_a_store_that_cannot_be_reached_is_exit_3() -> None:
    pytest.importorskip("psycopg")
    result = sickbay("explain", "train", "--store", "postgresql://nobody@127.0.0.1:1/none")
    assert result.exit_code == 3
    assert result.stderr.startswith("cannot reach the store")
    assert result.stderr.count("\n") == 1


def test_a_reader_that_has_had_enough_is_no_traceback() -> None:
    sickbay_command = str(Path(sys.executable).with_name("sickbay"))
    done = subprocess.run(
        ["bash", "-c", f"{sickbay_command} sim standard | head -n 1"], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_json_is_alone_on_standard_output_and_has_no_colours() -> None:
    result = CliRunner().invoke(main, ["sim", "list", "--json"], color=True)
    assert {row["name"] for row in json.loads(result.stdout)} >= {"standard", "storm", "fleet"}
    assert "\x1b" not in result.stdout
