"""The answer to a person's order: done, under way, waiting or refused, now or at its end (`--wait`)."""

import time
from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import clock, hint
from sickbay.faces.cli.show import clean, leave, print_json

AGAIN = 1.0  # seconds between two questions of --wait
OPEN = frozenset({"under_way", "waits"})
WORDS = {"done": "done", "under_way": "under way", "waits": "waits", "refused": "refused"}


def post_order(path: str, body: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    """Send it and say what has become of it. Leaves with 1 where it is refused."""
    client = connect()
    found = client.post(path, body)
    order = found["order"]
    said = ""
    while wait and order["verdict"] in OPEN:
        if not as_json and (line := in_words(order)) != said:
            click.echo(said := line)
        time.sleep(AGAIN)
        order = client.get(f"/v1/orders/{segment(order['id'])}")
    if as_json:
        print_json({**found, "order": order})
    else:
        click.echo(in_words(order), err=order["verdict"] == "refused")
        _more(order)
    if order["verdict"] == "refused":
        leave(1)


def in_words(order: dict[str, Any]) -> str:
    """One line."""
    until = f" (until about {clock(order['until'])}{_then(order)})" if order["until"] else ""
    line = f"{order['verb']} of {order['target']}: {WORDS[order['verdict']]}: {order['because']}"
    return clean(f"{line}{until if order['verdict'] in OPEN else ''}")


def _then(order: dict[str, Any]) -> str:
    return f": then {order['then']}" if order["then"] else ""


def _more(order: dict[str, Any]) -> None:
    for way in order["changed_by"] if order["verdict"] == "waits" else ():
        click.echo(clean(f"  it goes on when {way}"))
    if order["verdict"] in OPEN and (subject := order["incident"] or order["job"]):
        hint(f"watch it: sickbay explain {subject}")
