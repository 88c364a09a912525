"""sickbay restart: what is asked, and what is answered."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.canned import Answer, Canned, job, serving

from sickbay.faces.cli.main import main

PATH = "POST /v1/jobs/train-1a2b3/restart"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("SICKBAY_TOKEN", "secret")
    with serving() as canned:
        monkeypatch.setenv("SICKBAY_URL", canned.url)
        canned.says(PATH, Answer(job("train-99", state="QUEUED", continues="train-1a2b3"), 201))
        yield canned


def restart(*args: str) -> Result:
    return CliRunner().invoke(main, ["restart", "train-1a2b3", *args])


def test_a_plain_restart_changes_nothing_and_says_whose_checkpoints(server: Canned) -> None:
    result = restart()
    assert result.exit_code == 0, result.output
    assert server.asked[0].body == {}
    assert "train-99 submitted: QUEUED\n  goes on from the checkpoints of train-1a2b3\n" in result.stdout


def test_everything_that_can_be_changed_is_sent(server: Canned) -> None:
    words = ("--from", "0", "--nodes", "3", "--min-nodes", "2", "--reason", "lr", "--json", "--", "python", "x", "--lr")
    result = restart(*words)
    assert json.loads(result.stdout)["id"] == "train-99"
    assert server.asked[0].body == {
        "step": 0, "nodes": 3, "min_nodes": 2, "reason": "lr", "command": ["python", "x", "--lr"],
    }  # fmt: skip


def test_beginning_anew_is_said_as_that(server: Canned) -> None:
    assert "begins anew, beside what is saved of train-1a2b3" in restart("--anew").stdout
    assert server.asked[0].body == {"anew": True}


def test_from_a_step_and_anew_at_once_is_refused(server: Canned) -> None:
    result = restart("--anew", "--from", "40")
    assert result.exit_code == 2
    assert "--from and --anew contradict each other" in result.stderr
    assert not server.asked


def test_a_refusal_is_one_line(server: Canned) -> None:
    server.says(PATH, Answer({"error": "train-1a2b3 is RUNNING: sickbay stop train-1a2b3 first"}, 409))
    result = restart()
    assert result.exit_code == 1
    assert result.stderr == "train-1a2b3 is RUNNING: sickbay stop train-1a2b3 first\n"
