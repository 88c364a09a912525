"""Shell completion of names, and the arguments and options that several commands share."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.show import as_json as json_option
from sickbay.faces.cli.stages import OVER
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

QUICK = 0.7  # seconds: whoever presses the tab key does not wait longer

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


def _completer(names: Callable[[str], list[tuple[str, str]]]) -> Completer:
    """`names`: those that fit what is begun, or more, each with what is said of it."""

    def complete(ctx: click.Context, param: click.Parameter, begun: str) -> "list[CompletionItem]":
        del ctx, param
        return _items(names(begun), begun)

    return complete


def _last_of_list(begun: str) -> list[tuple[str, str]]:
    """Of a list with commas, the last."""
    before, comma, last = begun.rpartition(",")
    return [(f"{before}{comma}{name}", about) for name, about in _node_names(last)]


complete_node = _completer(_node_names)
complete_nodes = _completer(_last_of_list)
complete_job = _completer(lambda _: _job_names())
complete_running = _completer(lambda _: [(name, state) for name, state in _job_names() if state not in OVER])
complete_over = _completer(lambda _: [(name, state) for name, state in _job_names() if state in OVER])
complete_incident = _completer(lambda _: _incident_names("all"))
complete_open_incident = _completer(lambda _: _incident_names("open"))
complete_anything = _completer(lambda begun: [*_node_names(begun), *_job_names(), *_incident_names("all")])


reason_option = click.option(
    "--reason", metavar="WHY", default="", help="Why; it is kept in the audit log with your token's name."
)

now_option = click.option(
    "--now", is_flag=True, help="Do not wait for a maintenance window or for work to end; proof is never skipped."
)


wait_option = click.option(
    "--wait", is_flag=True, help="Stay until it is done (exit 0) or refused (exit 1); it goes on if you leave."
)


def reasoned(given: str, example: str) -> str:
    if not given.strip():
        raise BadInput(f'say why, for those who come after you: add --reason, such as --reason "{example}"')
    return given


def seconds(option: str, text: str | None) -> float | None:
    """A duration. A bare number has no unit and is refused, as in policies. Raises BadInput."""
    from sickbay.model.durations import parse_duration

    if text is None:
        return None
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise BadInput(f"{option}: {error}") from None


def act_command(
    verb: str, argument: Callable[[Any], Any], example: str, about: str, act: Callable[..., None], *, now: bool = False
) -> click.Command:
    """The command of a person's act on `subject`: it asks for a reason, and with `now` takes the flag --now.

    `act` is given the verb, the subject, the body that is sent, whether to stay until its end, whether to print JSON.
    """

    def command(subject: str, reason: str, *, wait: bool, as_json: bool, now: bool = False) -> None:
        body = {"reason": reasoned(reason, example), **({"now": True} if now else {})}
        act(verb, subject, body, wait=wait, as_json=as_json)

    decorated = wait_option(json_option(command))
    if now:
        decorated = now_option(decorated)
    return click.command(verb, help=about)(argument(reason_option(decorated)))
