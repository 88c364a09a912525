"""The API's page of the reference, made from the OpenAPI document."""

import json
from typing import Any

from sickbay.faces.api.openapi import REFUSALS, document
from sickbay.faces.api.route import Route
from sickbay.faces.api.routes import ROUTES

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


def page() -> str:
    text = f"# HTTP API\n\n{INTRODUCTION}\n"
    text += "| status | meaning |\n|---|---|\n"
    for code, (meaning, _) in REFUSALS.items():
        text += f"| {code} | {meaning} |\n"
    text += "\n| route | role | |\n|---|---|---|\n"
    for route in ROUTES:
        text += f"| [`{route.method} {route.path}`](#{_anchor(route)}) | {route.role or '–'} | {route.summary} |\n"
    shown: dict[str, str] = {}
    for route in ROUTES:
        text += _section(route) + _answer(route, shown)
    return text


def _anchor(route: Route) -> str:
    """As Markdown renderers make it from the heading."""
    kept = "".join(c for c in f"{route.method} {route.path}".lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _section(route: Route) -> str:
    told = document()["paths"][route.path][route.method.lower()]
    text = f"\n## {route.method} {route.path}\n\n{route.summary}."
    text += f" Needs the role {route.role}.\n" if route.role else " Needs no token.\n"
    for parameter in (one for one in told["parameters"] if one["in"] == "query"):
        text += f"\n- `{parameter['name']}`: {_kind(parameter['schema'])}"
        text += f"; {parameter['description']}" if "description" in parameter else ""
    text += "\n" if any(one["in"] == "query" for one in told["parameters"]) else ""
    if route.body is not None:
        text += f"\n```json\n{_json(route.ask_example)}\n```\n"
    return text


def _answer(route: Route, shown: dict[str, str]) -> str:
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
