"""sickbay incidents, incident ID, and what a person may decide of one: confirm, hold, dismiss, escalate."""

from datetime import datetime
from operator import itemgetter
from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, ago, card, clock, field, hint, short_node, show_list, show_one, took
from sickbay.faces.cli.names import act_command, complete_incident, complete_open_incident
from sickbay.faces.cli.orders import post_order
from sickbay.faces.cli.show import as_json, clean, span
from sickbay.model.errors import BadInput

NONE = {
    "all": "no incident, ever: break something with 'sickbay inject NODE --xid 79'",
    "open": "no open incidents",
    None: "no incidents: 'sickbay incidents --all' shows old ones too",
}
COLUMNS = (
    Column("incident", itemgetter("id")),
    Column("node", lambda one: short_node(one["node"])),
    Column("fault", lambda one: one["fault"]["code"]),
    field("phase"),
    Column("opened", lambda one: ago(one["opened_at"]), right=True),
    Column("took", lambda one: took(one["opened_at"], one["closed_at"]) or "", right=True),
    field("because", cut=True),
)


@click.command("incidents")
@click.option("--open", "only_open", is_flag=True, help="Only those that are open.")
@click.option("--all", "everything", is_flag=True, help="All, also old ones and the intake of new nodes.")
@as_json
def incidents(only_open: bool, everything: bool, as_json: bool) -> None:
    """The illnesses of nodes: those that are open, and those that ended lately.

    \b
    sickbay incidents --open
    sickbay incidents --all --json | jq '.[] | {id, node, phase, took: ([.stages[].seconds // 0] | add)}'
    """
    if only_open and everything:
        raise BadInput("--open and --all exclude each other: write one of them")
    which = "open" if only_open else "all" if everything else None
    found = connect().pages("/v1/incidents", which=which)
    # Two clusters may have a node of one name.
    several = len({one["node"].partition("/")[0] for one in found}) > 1
    whole = {"node": field("node")} if several else {}
    show_list(found, [whole.get(column.name, column) for column in COLUMNS], empty=NONE[which], as_json=as_json)


@click.command("incident")
@click.argument("incident", metavar="INCIDENT", shell_complete=complete_incident)
@as_json
def incident(incident: str, as_json: bool) -> None:
    """One incident: its fault, what was tried, and the time that every stage took.

    \b
    sickbay incident i12
    """
    show_one(connect().get(f"/v1/incidents/{segment(incident)}"), _print_and_hint, as_json=as_json)


def _print_and_hint(incident: dict[str, Any]) -> None:
    print_incident(incident)
    hint(f"its story: sickbay explain {incident['id']}")


def print_incident(incident: dict[str, Any]) -> None:
    fault = incident["fault"]
    as_of = incident.get("as_of")  # of a store that was kept, or a simulation: its own time
    now = datetime.fromisoformat(as_of) if as_of is not None else None
    card(
        f"incident {incident['id']}",
        incident["phase"],
        [
            ("because", incident["because"]),
            ("node", incident["node"]),
            ("fault", f"{fault['code']} ({fault['component']}, {fault['severity']})"),
            ("asks for", incident["remedy"]),
            ("opened", f"{clock(incident['opened_at'])} ({ago(incident['opened_at'], now)})"),
            ("closed", clock(incident["closed_at"])),
            ("took", took(incident["opened_at"], incident["closed_at"])),
            ("jobs", ", ".join(incident["jobs"])),
            *((f"tried {n}", f"{one['rung']}: {one['result']}") for n, one in enumerate(incident["tries"], 1)),
            *(("evidence", text) for text in fault["evidence"]),
        ],
    )
    for stage in incident["stages"]:
        seconds = span(stage["seconds"]) if stage["seconds"] is not None else ""
        click.echo(f"  {stage['phase']:<12} {seconds:>10}  {click.style(clean(stage['because']), dim=True)}")


# --- what a person may decide of one


def _act(verb: str, incident: str, body: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    post_order(f"/v1/incidents/{segment(incident)}/{verb}", body, wait=wait, as_json=as_json)


def _verb(verb: str, example: str, about: str) -> click.Command:
    argument = click.argument("subject", metavar="INCIDENT", shell_complete=complete_open_incident)
    return act_command(verb, argument, example, f'{about}\n\n\b\nsickbay {verb} i12 --reason "{example}"', _act)


confirm = _verb(
    "confirm", "the GPU was swapped",
    "Say that a held incident's repair is done: the node is checked, and returns if it passes.",
)  # fmt: skip
hold = _verb(
    "hold", "the vendor wants to look at it",
    "Stop the machinery for one incident: the node stays out until a person decides.",
)  # fmt: skip
dismiss = _verb(
    "dismiss", "a test of the alarm",
    "Close an incident on your own word, without a check; the node goes back to work.",
)  # fmt: skip
escalate = _verb(
    "escalate", "a reboot never helped this one",
    "Go one rung up: from a reset to a reboot, from a reboot to a replacement.",
)  # fmt: skip
