"""sickbay nodes, node ID, and what a person may ask of one: cordon, uncordon, drain, reset, reboot, replace."""

from collections import Counter
from operator import itemgetter
from typing import Any

import click

from sickbay.faces.cli.client import connect, node_path
from sickbay.faces.cli.columns import Column, card, count, field, hint, say, show_list, show_one
from sickbay.faces.cli.names import act_command, complete_node, reason_option, reasoned
from sickbay.faces.cli.orders import post_order
from sickbay.faces.cli.show import as_json, clean
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
    found = connect().pages("/v1/nodes", pool=pool)
    pools = {node["pool"] for node in found}
    states = Counter(node["state"] for node in found)
    show_list(
        found,
        [column for column in COLUMNS if column.name != "pool" or len(pools) > 1],
        empty=f"no nodes in pool {pool}: 'sickbay nodes' shows all" if pool else "no nodes yet: none has been seen",
        as_json=as_json,
        then=lambda: f"{count(len(found), 'node')}: {', '.join(f'{n} {state}' for state, n in states.items())}",
    )


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
    show_one(connect().get(node_path(node)), _print_and_hint, as_json=as_json)


def _print_and_hint(node: dict[str, Any]) -> None:
    print_node(node)
    hint(f"its story: sickbay explain {node['id']}")


def _collect(node: str, why: str, *, as_json: bool) -> None:
    body = {"reason": reasoned(why, "for support")}
    say(f"the agent of {node} gathers what there is; this takes a moment …")
    found = connect(timeout=COLLECTS).post(f"{node_path(node)}/collect", body)
    show_one(found, lambda done: click.echo(f"{done['node']}: {clean(done['done'])}"), as_json=as_json)


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


COLUMNS = (
    Column("node", itemgetter("id")),
    field("pool"),
    field("state"),
    Column("gpus", lambda node: len(node["devices"]), right=True),
    field("job"),
    field("incident"),
    Column("because", reason_of, cut=True),
)


# --- what a person may ask of one


def _act(verb: str, node: str, body: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    post_order(f"{node_path(node)}/{verb}", body, wait=wait, as_json=as_json)


def _verb(verb: str, example: str, about: str, *more: str, now: bool = True) -> click.Command:
    lines = [f'sickbay {verb} node-0 --reason "{example}"', *more]
    argument = click.argument("subject", metavar="NODE", shell_complete=complete_node)
    return act_command(verb, argument, example, "\n".join([about, "", "\b", *lines]), _act, now=now)


cordon = _verb(
    "cordon", "a cable is being moved",
    "Keep new work off a node, and hold it for a person. What runs there goes on.", now=False,
)  # fmt: skip
uncordon = _verb(
    "uncordon", "the cable is in place",
    "Give a node back on your own word: its incident is dismissed and our cordon taken back.", now=False,
)  # fmt: skip
drain = _verb(
    "drain", "a new power supply",
    "Take a node out of service; its jobs go on elsewhere, and it is held until a person gives it back.",
)  # fmt: skip
reset = _verb(
    "reset", "a GPU is stuck", "Reset the GPUs of a node, when nothing holds them; it returns after a passed check."
)
reboot = _verb(
    "reboot", "a new driver",
    "Reboot a node once its jobs are off; it returns with a new boot id and after a passed check. One that a person "
    "has cordoned is rebooted and checked, and stays cordoned until 'sickbay uncordon'.",
    'sickbay reboot node-0 --reason "it hangs" --now --wait',
)  # fmt: skip
replace = _verb(
    "replace", "the third failure this week",
    "Give a node's seat to another machine once its jobs are off; the new one is checked first.",
)  # fmt: skip
