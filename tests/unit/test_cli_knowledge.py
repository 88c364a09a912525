"""sickbay knowledge: each fault with its meaning and its sources."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sickbay.faces.cli.knowledge import knowledge
from sickbay.knowledge.load import load_tables
from sickbay.model.errors import BadInput


def run(*args: str) -> Result:
    return CliRunner().invoke(knowledge, args)


def test_a_bare_number_is_an_xid() -> None:
    shown = json.loads(run("79", "--json").stdout)
    assert (shown["code"], shown["remedy"], shown["severity"]) == ("xid.79", "reboot", "fatal")
    assert shown["positions"]["nvidia_immediate"]


def test_all_faults_are_listed_and_each_says_where_it_comes_from() -> None:
    shown = json.loads(run("--json").stdout)
    assert {row["code"] for row in shown} == {row.code for row in load_tables().meanings()}
    assert all(row["source"] and row["because"] for row in shown)


def test_a_glob_is_a_list_though_it_finds_one() -> None:
    assert isinstance(json.loads(run("nvlink.dow*", "--json").stdout), list)


def test_a_person_reads_one_fault_as_a_card() -> None:
    text = run("xid.74").output
    assert "what to do" in text
    assert "nvidia_immediate" in text


def test_a_typo_is_answered_with_what_was_meant() -> None:
    result = run("gpu.fallen_of_bus")
    assert isinstance(result.exception, BadInput)
    assert "did you mean gpu.fallen_off_bus" in str(result.exception)


def test_an_operators_own_row_is_shown_over_the_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("- code: xid.74\n  remedy: replace\n  because: our vendor wants the board\n")
    shown = json.loads(run("74", "--json", "--knowledge", str(file)).stdout)
    assert (shown["remedy"], shown["source"]) == ("replace", "operator")


@pytest.mark.parametrize("text", ["- code: no.such\n  remedy: reboot\n  because: x\n", "{", "- 3\n"])
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    result = run("74", "--knowledge", str(file))
    assert isinstance(result.exception, BadInput)
    assert "\n" not in str(result.exception)
