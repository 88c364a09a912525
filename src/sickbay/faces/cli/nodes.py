"""sickbay nodes, node ID, and what a person may ask of one: cordon, uncordon, drain, reset, reboot, replace."""

from collections import Counter
from typing import Any

import click

from sickbay.faces.cli.client import connect, node_path
from sickbay.faces.cli.columns import Column, card, columns, count, hint, say
from sickbay.faces.cli.names import complete_node, reason, reason_option
from sickbay.faces.cli.show import as_json, clean, print_json
from sickbay.model.errors import BadInput

COLLECTS = 60.0  # seconds

node_argument = click.argument("node", metavar="NODE", shell_complete=complete_node)


@click.command("nodes")
@click.option("--pool", metavar="P", help="Only those of one pool.")
@as_json
def nodes(pool: str | None, as_json: bool) -> None:
    """All nodes: their state, the job on each, and why one is not at work.

    READY can work, SUSPECT waits for its turn, OUT is being healed, HELD waits for a person, UNKNOWN has a silent
    agent, LOST cannot be reached at all, INTAKE is new and not proven yet.

    \b
    sickbay nodes
    sickbay nodes --json | jq -r '.[] | select(.state != "READY") | .id'
    """
    found = connect().get("/v1/nodes", pool=pool)
    if as_json:
        print_json(found)
        return
    if not found:
        say(f"no nodes in pool {pool}: 'sickbay nodes' shows all" if pool else "no nodes yet: none has been seen")
        return
    pools = len({node["pool"] for node in found}) > 1
    head = [Column("node"), *([Column("pool")] if pools else []), Column("state"), Column("gpus", right=True)]
    columns(
        [*head, Column("job"), Column("incident"), Column("because", cut=True)],
        [
            (
                node["id"],
                *([node["pool"]] if pools else []),
                node["state"],
                len(node["devices"]),
                node["job"] or "",
                node["incident"] or "",
                reason_of(node),
            )
            for node in found
        ],
    )
    states = Counter(node["state"] for node in found)
    hint(f"{count(len(found), 'node')}: {', '.join(f'{n} {state}' for state, n in states.items())}")


@click.command("node")
@node_argument
@click.option("--collect", is_flag=True, help="Have its agent gather logs and device states into one file there.")
@reason_option
@as_json
def node(node: str, collect: bool, reason: str, as_json: bool) -> None:
    """One node: what it is, what works there, and why it is as it is.

    \b
    sickbay node node-0
    sickbay node gpu-17 --collect --reason "for the vendor's support"
    """
    if collect:
        _collect(node, reason, as_json=as_json)
        return
    if reason:
        raise BadInput("--reason belongs to --collect: add it, or leave the reason out")
    found = connect().get(node_path(node))
    if as_json:
        print_json(found)
    else:
        print_node(found)
        hint(f"its story: sickbay explain {found['id']}")


def _collect(node: str, why: str, *, as_json: bool) -> None:
    body = {"reason": reason(why, "for support")}
    say(f"the agent of {node} gathers what there is; this takes a moment …")
    found = connect(timeout=COLLECTS).post(f"{node_path(node)}/collect", body)
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found['node']}: {clean(found['done'])}")


def print_node(node: dict[str, Any]) -> None:
    serials = ", ".join(f"{device['index']}: {device['serial']}" for device in node["devices"])
    card(
        f"node {node['id']}",
        node["state"],
        [
            ("because", reason_of(node)),
            ("pool", node["pool"]),
            ("schedulable", "yes" if node["schedulable"] else "no"),
            ("jobs", ", ".join(node.get("jobs") or [])),
            ("incident", node["incident"]),
            ("cordons", ", ".join(node.get("cordons") or [])),
            ("instance", node["instance_id"]),
            ("boot", node["boot_id"]),
            ("devices", serials or "none"),
        ],
    )


def reason_of(node: dict[str, Any]) -> str:
    """Without the phase in front where it is the state's own word."""
    return str(node["because"]).removeprefix(f"{node['state']}: ")


def _act(verb: str, node: str, why: str, *, now: bool | None, example: str, as_json: bool) -> None:
    body = {"reason": reason(why, example), **({"now": True} if now else {})}
    found = connect().post(f"{node_path(node)}/{verb}", body)
    if as_json:
        print_json(found)
        return
    # What is asked for takes a moment: what is shown is how things stand now.
    said = f" ({reason_of(found)})" if reason_of(found) else ""
    click.echo(clean(f"{verb} of {found['id']} is asked for; it is {found['state']} now{said}"))
    if found["incident"]:
        hint(f"watch it: sickbay explain {found['incident']}")


now_option = click.option(
    "--now", is_flag=True, help="Do not wait for a maintenance window or for work to end; proof is never skipped."
)


@click.command("cordon")
@node_argument
@reason_option
@as_json
def cordon(node: str, reason: str, as_json: bool) -> None:
    """Keep new work off a node, and hold it for a person. What runs there goes on.

    \b
    sickbay cordon node-0 --reason "a cable is being moved"
    """
    _act("cordon", node, reason, now=None, example="a cable is being moved", as_json=as_json)


@click.command("uncordon")
@node_argument
@reason_option
@as_json
def uncordon(node: str, reason: str, as_json: bool) -> None:
    """Give a node back on your own word: its incident is dismissed and our cordon taken back.

    \b
    sickbay uncordon node-0 --reason "the cable is in place"
    """
    _act("uncordon", node, reason, now=None, example="the cable is in place", as_json=as_json)


@click.command("drain")
@node_argument
@reason_option
@now_option
@as_json
def drain(node: str, reason: str, now: bool, as_json: bool) -> None:
    """Take a node out of service; its jobs go on elsewhere, and it is held until a person gives it back.

    \b
    sickbay drain node-0 --reason "a new power supply"
    """
    _act("drain", node, reason, now=now, example="a new power supply", as_json=as_json)


@click.command("reset")
@node_argument
@reason_option
@now_option
@as_json
def reset(node: str, reason: str, now: bool, as_json: bool) -> None:
    """Reset the GPUs of a node, when nothing holds them; it returns after a passed check.

    \b
    sickbay reset node-0 --reason "a GPU is stuck"
    """
    _act("reset", node, reason, now=now, example="a GPU is stuck", as_json=as_json)


@click.command("reboot")
@node_argument
@reason_option
@now_option
@as_json
def reboot(node: str, reason: str, now: bool, as_json: bool) -> None:
    """Reboot a node once its jobs are off; it returns with a new boot id and after a passed check.

    \b
    sickbay reboot node-0 --reason "a new driver"
    sickbay reboot node-0 --reason "it hangs" --now
    """
    _act("reboot", node, reason, now=now, example="a new driver", as_json=as_json)


@click.command("replace")
@node_argument
@reason_option
@now_option
@as_json
def replace(node: str, reason: str, now: bool, as_json: bool) -> None:
    """Give a node's seat to another machine once its jobs are off; the new one is checked first.

    \b
    sickbay replace node-0 --reason "the third failure this week"
    """
    _act("replace", node, reason, now=now, example="the third failure this week", as_json=as_json)
