"""`sickbay check` on the machine it runs on: no controller, a table or JSON, exit 1 unless all pass."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner, Result
from tests.support.waiting import until

from sickbay.agent.checks import Exercise
from sickbay.faces.cli.check_here import chosen
from sickbay.faces.cli.main import main
from sickbay.model.errors import BadInput


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, ["check", *args], catch_exceptions=False)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asked a controller would get no answer there."""
    monkeypatch.setenv("SICKBAY_URL", "http://127.0.0.1:1")


def test_a_sound_disk_is_a_table_and_exit_0() -> None:
    result = sickbay("--only", "disk_quick")
    assert result.exit_code == 0
    head, row = result.stdout.splitlines()
    assert head.split() == ["test", "verdict", "took", "figures", "because"]
    assert row.split()[:2] == ["disk_quick", "pass"]
    assert "tested_mib 32" in row
    assert "disk_quick …" in result.stderr


def test_json_is_alone_on_standard_output() -> None:
    result = sickbay("--here", "--only", "disk_quick", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {"node", "level", "verdict", "tests"} <= set(found)
    (test,) = found["tests"]
    assert set(test) == {"name", "verdict", "seconds", "because", "figures"}
    assert (found["verdict"], test["verdict"], test["figures"]["tested_mib"]) == ("pass", "pass", 32)


def test_what_could_not_run_has_not_passed() -> None:
    """No machine has 1,024 GPUs: some are missing, or nobody can say."""
    result = sickbay("--gpus", "1024", "--only", "gpu_inventory", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] in {"fail", "could_not_run"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--only", "nothing"), "there is no test 'nothing' here: write one of "),
        (("--profile", "memroy"), "there is no profile 'memroy'"),
        (("--profile", "memory", "--only", "disk"), "exclude each other"),
        (("n0", "--profile", "memory"), "--profile is for a check of this machine"),
        (("--all", "--only", "disk"), "--only is for a check of this machine"),
        (("n0", "--here"), "one of them"),
    ],
)
def test_wrong_use_is_one_line(args: tuple[str, ...], says: str) -> None:
    result = sickbay(*args)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_help_explains_both_ways() -> None:
    text = sickbay("--help").stdout
    assert "needs no controller" in text
    assert "idle nodes" in text


def exercise(name: str, level: int, **more: Any) -> Exercise:
    return Exercise(name, level, lambda _: "", **more)


def test_whoever_names_tests_gets_them_whatever_their_level() -> None:
    tests = [exercise("cpu", 2), exercise("cpu_long", 3, contains=("cpu",)), exercise("disk", 1)]
    some, level, _ = chosen(tests, 1, "", ["cpu*"])
    assert ([test.name for test in some], level) == (["cpu", "cpu_long"], 3)
    assert all(not test.contains for test in some)
    with pytest.raises(BadInput):
        chosen(tests, 1, "", ["gpu*"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_no_process_behind(number: int, tmp_path: Path) -> None:
    for _ in range(3):  # on a busy machine it may be over before it hears
        if (code := _ended_by(number, tmp_path)) != 0:
            break
    assert code == 130


def _ended_by(number: int, tmp_path: Path) -> int:
    with (tmp_path / "said").open("wb") as said:
        command = [sys.executable, "-c", "from sickbay.faces.cli.main import main; main()", "check", "--only", "cpu"]
        process = psutil.Popen(command, stdout=said, stderr=said, env={**os.environ, "TMPDIR": str(tmp_path)})
        try:
            cores = len(os.sched_getaffinity(0))
            assert until(lambda: len(process.children(recursive=True)) == 1 + cores)
            below = process.children(recursive=True)
            process.send_signal(number)
            code: int = process.wait(20)
        finally:
            if process.is_running():
                process.kill()
                process.wait()
    assert until(lambda: not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in below))
    return code


@pytest.mark.slow
def test_a_whole_check_of_level_1_needs_no_controller_and_takes_seconds() -> None:
    command = [sys.executable, "-c", "from sickbay.faces.cli.main import main; main()", "check", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["verdict"] == "pass" else 1)
    assert {"cpu_quick", "disk_quick"} <= {test["name"] for test in found["tests"]}
    assert time.monotonic() - began < 60
