"""Names as the shell completes them, and the arguments and options that several commands share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

QUICK = 0.7  # seconds: whoever presses the tab key does not wait longer
OVER = frozenset({"COMPLETE", "FAILED", "STOPPED"})

Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _ask(path: str, which: str | None = None) -> list[dict[str, Any]]:
    """Nothing at all where the server does not answer: a completion must never print or fail."""
    from sickbay.faces.cli.client import connect

    try:
        found = connect(QUICK).get(path, which=which)
    except Exception:  # noqa: BLE001 - whatever it is, the line that is being typed matters more
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _items(found: list[tuple[str, str]], begun: str) -> "list[CompletionItem]":
    from click.shell_completion import CompletionItem

    return [CompletionItem(name, help=about) for name, about in found if name.startswith(begun)]


def _node_names(begun: str) -> list[tuple[str, str]]:
    """Without the cluster unless one has begun to write it, or the name alone means more than one."""
    ids = [(str(node.get("id", "")), f"{node.get('state', '')} {node.get('pool', '')}") for node in _ask("/v1/nodes")]
    short = [name.rpartition("/")[2] for name, _ in ids]
    whole = "/" in begun
    return [
        (name if whole or short.count(brief) > 1 else brief, about)
        for (name, about), brief in zip(ids, short, strict=True)
    ]


def _job_names() -> list[tuple[str, str]]:
    return [(str(job.get("id", "")), str(job.get("state", ""))) for job in _ask("/v1/jobs")]


def _incident_names(which: str) -> list[tuple[str, str]]:
    return [
        (str(one.get("id", "")), f"{one.get('phase', '')} {one.get('node', '')}")
        for one in _ask("/v1/incidents", which)
    ]


def complete_node(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    del ctx, param
    return _items(_node_names(begun), begun)


def complete_nodes(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    """Of a list with commas, the last."""
    del ctx, param
    before, comma, last = begun.rpartition(",")
    return _items([(f"{before}{comma}{name}", about) for name, about in _node_names(last)], begun)


def complete_job(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    del ctx, param
    return _items(_job_names(), begun)


def complete_running(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    del ctx, param
    return _items([(name, state) for name, state in _job_names() if state not in OVER], begun)


def complete_incident(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    del ctx, param
    return _items(_incident_names("all"), begun)


def complete_open_incident(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    del ctx, param
    return _items(_incident_names("open"), begun)


def complete_anything(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
    del ctx, param
    return _items([*_node_names(begun), *_job_names(), *_incident_names("all")], begun)


reason_option = click.option(
    "--reason", metavar="WHY", default="", help="Why; it is kept in the audit log with your token's name."
)


def reason(given: str, example: str) -> str:
    if not given.strip():
        raise BadInput(f'say why, for those who come after you: add --reason, such as --reason "{example}"')
    return given


def seconds(option: str, text: str | None, *, plain: bool = False) -> float | None:
    """`plain`: a bare number means seconds. Raises BadInput."""
    from sickbay.model.durations import parse_duration

    if text is None:
        return None
    if plain and text.isascii() and text.isdigit():
        text = f"{text}s"
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None
