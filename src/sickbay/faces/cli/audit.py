"""sickbay audit: the audit log: who did what, when and why."""

from operator import itemgetter

import click

from sickbay.faces.cli.client import connect
from sickbay.faces.cli.columns import Column, clock, count, field, show_list
from sickbay.faces.cli.names import complete_anything, seconds
from sickbay.faces.cli.show import as_json


@click.command("audit")
@click.option("--since", metavar="TIME", help="Only what was done within so long, such as 8h or 7d.")
@click.option("--by", metavar="NAME", help="Only what was done with the token of this name.")
@click.option(
    "--target", metavar="NAME", help="Only about this node, job, incident or token.", shell_complete=complete_anything
)
@click.option("--limit", metavar="N", type=click.IntRange(1, 5000), default=200, show_default=True, help="The newest.")
@as_json
def audit(since: str | None, by: str | None, target: str | None, limit: int, as_json: bool) -> None:
    """Who did what, when and why, the newest first: orders, submissions, stops, injections, tokens, pauses, and
    every start of the controller with its policy. What the engine did by itself is in 'sickbay explain'.

    \b
    sickbay audit
    sickbay audit --since 8h --target node-3
    sickbay audit --by alice --json | jq -r '.[] | [.at, .verb, .target, .reason] | @tsv'
    """
    within = seconds("--since", since)
    found = connect().get("/v1/audit", since=within, by=by, target=target, limit=limit)
    head = [
        Column("at", lambda act: clock(act["at"])),
        Column("who", itemgetter("by")),
        Column("what", lambda act: act["verb"] or act["text"]),
        field("target"),
        field("reason", cut=True),
    ]
    none = "nothing of that kind was done: leave --since, --by and --target out to see all"
    more = f"{count(len(found), 'act')}, the newest; more with --limit" if len(found) == limit else ""
    show_list(found, head, empty=none, as_json=as_json, then=lambda: more)
