"""sickbay notify test and sickbay notices: whether people are told, and what came of each notice."""

import time
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.client import connect
from sickbay.faces.cli.columns import Column, ago, columns, count, field, show_list
from sickbay.faces.cli.names import seconds
from sickbay.faces.cli.show import as_json, leave, print_json
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.faces.cli.client import Client

MOST = 5000  # that the server gives at once
LOOK_EVERY = 0.3
OVER = {"delivered": "delivered", "refused": "refused", "given_up": "given up", "left_out": "left out"}
NONE = {
    "open": "no notice is under way",
    "failed": "no notice failed to reach whom it was for",
    None: "nobody was told of anything yet: 'sickbay notify test' tries every channel",
}
COLUMNS = (
    Column("when", lambda one: ago(one["at"]), right=True),
    Column("channel", lambda one: one["to"]),
    Column("outcome", lambda one: OVER.get(one["outcome"], "under way")),
    field("tries", right=True),
    field("event"),
    Column("about", lambda one: one["subject"].partition(":")[2]),
    Column("answer or text", lambda one: one["answer"] if one["outcome"] != "delivered" else one["text"], cut=True),
)


@click.group("notify")
def notify() -> None:
    """Whether people can be told: try the channels.

    \b
    sickbay notify test
    sickbay notify test oncall
    """


@notify.command("test")
@click.argument("channels", metavar="[CHANNEL]…", nargs=-1)
@click.option("--within", metavar="TIME", default="30s", show_default=True, help="How long to wait for each of them.")
@as_json
def test(channels: tuple[str, ...], within: str, as_json: bool) -> None:
    """Send a marked test through channels, or through all of them, and say what came of each; exit 1 if any failed.

    It goes the way of every notice: the running controller's outbox, its settings and secrets, the far side.

    \b
    sickbay notify test
    sickbay notify test oncall mail --within 10s
    """
    span = seconds("--within", within)
    client = connect()
    found = client.post("/v1/notices/test", {"channels": list(channels)})
    if not found:
        raise BadInput("no test was sent: the controller is busy; try again, or look with 'sickbay notices'")
    found = _settled(client, found, span or 0.0)
    if as_json:
        print_json(found)
    else:
        head = [
            Column("channel", lambda one: one["to"]),
            Column("outcome", _outcome),
            Column("answer", _answer, cut=True),
        ]
        columns(head, found)
    leave(0 if all(one["outcome"] == "delivered" for one in found) else 1)


def _settled(client: "Client", sent: list[dict[str, Any]], within: float) -> list[dict[str, Any]]:
    until = time.monotonic() + within
    while any(one["outcome"] == "open" for one in sent) and time.monotonic() < until:
        time.sleep(LOOK_EVERY)
        sent = [client.get("/v1/notices", key=one["key"])[0] if one["outcome"] == "open" else one for one in sent]
    return sent


def _outcome(notice: dict[str, Any]) -> str:
    return OVER.get(notice["outcome"], "not delivered yet")


def _answer(notice: dict[str, Any]) -> str:
    tried = f" (tried {count(notice['tries'], 'time')})" if notice["tries"] > 1 else ""
    return f"{notice['answer']}{tried}".strip()


@click.command("notices")
@click.option("--open", "only_open", is_flag=True, help="Only those that are under way.")
@click.option("--failed", is_flag=True, help="Only those that a channel has refused, or that were given up.")
@click.option(
    "--limit", metavar="N", type=click.IntRange(1, MOST), default=200, show_default=True, help="The newest N."
)
@as_json
def notices(only_open: bool, failed: bool, limit: int, as_json: bool) -> None:
    """What people were told, through which channel, and what came of it; newest first.

    \b
    sickbay notices
    sickbay notices --failed
    sickbay notices --open --json | jq '.[] | {to, tries, answer}'
    """
    if only_open and failed:
        raise BadInput("--open and --failed exclude each other: write one of them")
    which = "open" if only_open else "failed" if failed else None
    found = connect().get("/v1/notices", which=which, limit=limit)
    show_list(found, COLUMNS, empty=NONE[which], as_json=as_json)
