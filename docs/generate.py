"""Writes the pages that are made from the code. `make docs` runs it; a test fails when they are out of date."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from sickbay.adapters.notifiers.message import NoticeMessage
from sickbay.faces.api.families import FAMILIES
from sickbay.faces.api.openapi import REFUSALS, document
from sickbay.faces.api.route import Route
from sickbay.faces.api.routes import ROUTES
from sickbay.faces.cli.main import main
from sickbay.model.fault import RUNGS
from sickbay.model.incident import TRANSITIONS
from sickbay.model.intent import INTENT_LIFE
from sickbay.model.job import JOB_LIFE

HERE = Path(__file__).parent
NOTE = "<!-- Made by docs/generate.py; run `make docs` after a change. -->\n\n"

INTRODUCTION = """\
All bodies are JSON, times are ISO 8601 in UTC, durations are seconds. A controller serves this document in machine
form at `/openapi.json`.

Send `Authorization: Bearer <token>` to all paths below `/v1`. A **viewer** sees everything, an **operator** may act,
an **agent** may only report for its own node. Tokens are made with `POST /v1/tokens`. Whoever is refused gets one line
that says why: `{"error": "…"}`.

What changes something takes the header `Idempotency-Key`: sent twice with the same key it has one effect, and is
answered alike. Every act of an operator is in the audit log (`GET /v1/audit`) with who and why.

Lists and single objects have the same keys as the command line's `--json`.
"""

EVENTS = """\

The stream begins with `reset` (read everything now), or, where the header `Last-Event-ID` (or the parameter) names the
last event of an earlier connection, with what was missed since. `changed` names a row that is different now, `told` is
a line of the story, `reset` says that some events are forgotten: read everything again. A comment comes every 15 s.
"""

METRICS = """\
# Metrics

Everything that `GET /metrics` tells of itself; [how to scrape and to watch it](../metrics.md). Counters begin at zero
with each process, as `rate` and `increase` expect. What only the leader tells is about the fleet: a sum over replicas
counts nothing twice.

| metric | type | labels | told by | meaning |
|---|---|---|---|---|
"""

MEASURED = """\

Beside these, the newest value of each series that an agent has measured: `gpu.0.temperature` of a node is told as
`sickbay_gpu_temperature{node="…",gpu="0"}`, `cpu.busy` as `sickbay_cpu_busy{node="…"}`; at most 1,024 series of a node.
"""


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
    text = f"{NOTE}# HTTP API\n\n{INTRODUCTION}\n"
    text += "| status | meaning |\n|---|---|\n"
    for code, (meaning, _) in REFUSALS.items():
        text += f"| {code} | {meaning} |\n"
    text += "\n| route | role | |\n|---|---|---|\n"
    for route in ROUTES:
        text += f"| [`{route.method} {route.path}`](#{_anchor(route)}) | {route.role or '–'} | {route.summary} |\n"
    shown: dict[str, str] = {}
    for route in ROUTES:
        text += _section(route) + _answered(route, shown)
    return text


def _anchor(route: Route) -> str:
    """As Markdown renderers make it from the heading."""
    kept = "".join(c for c in f"{route.method} {route.path}".lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _section(route: Route) -> str:
    told = document(ROUTES)["paths"][route.path][route.method.lower()]
    text = f"\n## {route.method} {route.path}\n\n{route.summary}."
    text += f" Needs the role {route.role}.\n" if route.role else " Needs no token.\n"
    for parameter in (one for one in told["parameters"] if one["in"] == "query"):
        text += f"\n- `{parameter['name']}`: {_kind(parameter['schema'])}"
        text += f"; {parameter['description']}" if "description" in parameter else ""
    text += "\n" if any(one["in"] == "query" for one in told["parameters"]) else ""
    if route.body is not None:
        text += f"\n```json\n{_json(route.ask_example)}\n```\n"
    return text


def _answered(route: Route, shown: dict[str, str]) -> str:
    """An object that was shown before is named, not shown again."""
    if route.path == "/v1/events":
        return f"{EVENTS}\n```\n{route.answer_example.strip()}\n```\n"
    example = _json(route.answer_example)
    if example in shown and len(example) > 200:
        return f"\nAnswers {route.status}, with an object like that of {shown[example]}.\n"
    shown[example] = f"[`{route.method} {route.path}`](#{_anchor(route)})"
    return f"\nAnswers {route.status}:\n\n```json\n{example}\n```\n"


def _kind(schema: dict[str, Any]) -> str:
    words = " \\| ".join(schema["enum"]) if "enum" in schema else str(schema["type"])
    if "minimum" in schema and abs(schema["minimum"]) < 2**60:
        words += f", {schema['minimum']} to {schema['maximum']}"
    return words + (f", default {schema['default']}" if schema.get("default") not in {None, ""} else "")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _walk(inner, (*path, name))


def metrics() -> str:
    text = NOTE + METRICS
    for family in FAMILIES.values():
        who = "every controller" if family.everywhere else "the leader"
        labels = ", ".join(f"`{label}`" for label in family.labels)
        text += f"| `{family.name}` | {family.kind} | {labels} | {who} | {family.help} |\n"
    return text + MEASURED


def notice_schema() -> str:
    """What machines that read notices may rely on."""
    return json.dumps(msgspec.json.schema(NoticeMessage), indent=2, ensure_ascii=False) + "\n"


PAGES = {
    "reference/lives.md": lives,
    "reference/cli.md": commands,
    "reference/api.md": api,
    "reference/metrics.md": metrics,
    "reference/notice.schema.json": notice_schema,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{name}")
