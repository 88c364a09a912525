"""Writes the pages that are made from the code. `make docs` runs it; a test fails when they are out of date."""

from collections.abc import Iterable
from pathlib import Path

import click

from sickbay.faces.api.page import page as api_page
from sickbay.faces.cli.main import main
from sickbay.model.fault import RUNGS
from sickbay.model.incident import TRANSITIONS
from sickbay.model.intent import INTENT_LIFE
from sickbay.model.job import JOB_LIFE

HERE = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py; run `make docs` after a change. -->\n\n"


def lives() -> str:
    text = (
        NOTE + "# Lives\n\nEvery step that an incident, a job or an intent can take. What is not here cannot happen.\n"
    )
    for life in (TRANSITIONS, JOB_LIFE, INTENT_LIFE):
        text += f"\n## {life.what.capitalize()}\n\n| from | event | to | only if |\n|---|---|---|---|\n"
        for step in life.steps:
            guard = step.guard.__name__.strip("<>") if step.guard is not None else ""
            text += f"| {step.source} | {step.event} | {step.target} | {guard} |\n"
    text += "\n## Rungs\n\n| remedy | rank | proof | needs | leaves service |\n|---|---|---|---|---|\n"
    for remedy, rung in RUNGS.items():
        disrupts = "yes" if rung.disrupts else ""
        text += f"| {remedy} | {rung.rank} | {rung.proof} | {rung.needs or ''} | {disrupts} |\n"
    return text


def commands() -> str:
    text = NOTE + "# Command line\n"
    for path, command in _walk(main, ("sickbay",)):
        # With the names of the command line itself: click keeps a command's help option, whoever asked for it first.
        for each in (command, *getattr(command, "commands", {}).values()):
            each._help_option = None  # noqa: SLF001
        context = click.Context(command, info_name=" ".join(path), **main.context_settings)
        text += f"\n## {' '.join(path)}\n\n```\n{command.get_help(context)}\n```\n"
    return text


def api() -> str:
    return NOTE + api_page()


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _walk(inner, (*path, name))


PAGES = {"reference/lives.md": lives, "reference/cli.md": commands, "reference/api.md": api}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")
