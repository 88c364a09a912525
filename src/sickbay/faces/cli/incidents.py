"""sickbay incidents, incident ID, and what a person may decide of one: confirm, hold, dismiss, escalate."""

from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, ago, card, clock, columns, hint, say, short_node, took
from sickbay.faces.cli.names import complete_incident, complete_open_incident, reason, reason_option
from sickbay.faces.cli.show import as_json, clean, print_json, span
from sickbay.model.errors import BadInput

MOST = 5000  # that the server gives at once


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
    found = connect().get("/v1/incidents", which=which, limit=MOST)
    if as_json:
        print_json(found)
        return
    if not found:
        say(
            "no incident, ever: break something with 'sickbay inject NODE --xid 79'"
            if everything
            else "no open incidents" if only_open else "no incidents: 'sickbay incidents --all' shows old ones too"
        )  # fmt: skip
        return
    columns(
        [Column("incident"), Column("node"), Column("fault"), Column("phase"), Column("opened", right=True),
         Column("took", right=True), Column("because", cut=True)],
        [
            (
                one["id"],
                short_node(one["node"]),
                one["fault"]["code"],
                one["phase"],
                ago(one["opened_at"]),
                took(one["opened_at"], one["closed_at"]) or "",
                one["because"],
            )
            for one in found
        ],
    )  # fmt: skip


@click.command("incident")
@click.argument("incident", metavar="INCIDENT", shell_complete=complete_incident)
@as_json
def incident(incident: str, as_json: bool) -> None:
    """One incident: its fault, what was tried, and the time that every stage took.

    \b
    sickbay incident i12
    """
    found = connect().get(f"/v1/incidents/{segment(incident)}")
    if as_json:
        print_json(found)
    else:
        print_incident(found)
        hint(f"its story: sickbay explain {found['id']}")


def print_incident(incident: dict[str, Any]) -> None:
    fault = incident["fault"]
    card(
        f"incident {incident['id']}",
        incident["phase"],
        [
            ("because", incident["because"]),
            ("node", incident["node"]),
            ("fault", f"{fault['code']} ({fault['component']}, {fault['severity']})"),
            ("asks for", incident["remedy"]),
            ("opened", f"{clock(incident['opened_at'])} ({ago(incident['opened_at'])})"),
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


def _act(verb: str, incident: str, why: str, *, example: str, as_json: bool) -> None:
    found = connect().post(f"/v1/incidents/{segment(incident)}/{verb}", {"reason": reason(why, example)})
    if as_json:
        print_json(found)
        return
    because = f": {found['because']}" if found["because"] else ""
    click.echo(f"{found['id']} on {found['node']} is {found['phase']}{clean(because)}")


incident_argument = click.argument("incident", metavar="INCIDENT", shell_complete=complete_open_incident)


@click.command("confirm")
@incident_argument
@reason_option
@as_json
def confirm(incident: str, reason: str, as_json: bool) -> None:
    """Say that a held incident's repair is done: the node is checked, and returns if it passes.

    \b
    sickbay confirm i12 --reason "the GPU was swapped"
    """
    _act("confirm", incident, reason, example="the GPU was swapped", as_json=as_json)


@click.command("hold")
@incident_argument
@reason_option
@as_json
def hold(incident: str, reason: str, as_json: bool) -> None:
    """Stop the machinery for one incident: the node stays out until a person decides.

    \b
    sickbay hold i12 --reason "the vendor wants to look at it"
    """
    _act("hold", incident, reason, example="the vendor wants to look at it", as_json=as_json)


@click.command("dismiss")
@incident_argument
@reason_option
@as_json
def dismiss(incident: str, reason: str, as_json: bool) -> None:
    """Close an incident on your own word, without a check; the node goes back to work.

    \b
    sickbay dismiss i12 --reason "a test of the alarm"
    """
    _act("dismiss", incident, reason, example="a test of the alarm", as_json=as_json)


@click.command("escalate")
@incident_argument
@reason_option
@as_json
def escalate(incident: str, reason: str, as_json: bool) -> None:
    """Go one rung up: from a reset to a reboot, from a reboot to a replacement.

    \b
    sickbay escalate i12 --reason "a reboot never helped this one"
    """
    _act("escalate", incident, reason, example="a reboot never helped this one", as_json=as_json)
