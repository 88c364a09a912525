"""Whoever is woken pastes first and reads then: the commands of a runbook stand at its top, and each can be meant."""

import shlex
from pathlib import Path

import click
import pytest
from tests.support.manual import ROOT, in_blocks

from sickbay.faces.cli.main import main

PAGES = sorted(page for page in (ROOT / "docs" / "runbooks").rglob("*.md") if page.name != "README.md")
COMMANDS = sorted({line for page in PAGES for block in in_blocks(page) for line in block})
MEANING = "**What it means.**"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_runbook_begins_with_commands_to_paste(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "```sh\nsickbay " in text, "there is nothing to paste"
    if MEANING in text:
        assert text.index("```sh\n") < text.index(MEANING), "the commands come first, what lies behind them after that"


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_a_runbook_has_the_flags_that_it_is_given(line: str) -> None:
    name, *args = shlex.split(line)
    assert name == "sickbay"
    found: click.Command = main
    while isinstance(found, click.Group):
        sub = found.get_command(click.Context(found), args[0])
        assert sub is not None, f"there is no command {args[0]!r}"
        found, args = sub, args[1:]
    found.make_context(found.name, args)  # raises what click would say
