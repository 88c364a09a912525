"""sickbay pause, unpause, brake and exclude: what keeps the machinery from acting, and who said so."""

from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, ago, clock, count, field, show_list, show_one, some
from sickbay.faces.cli.names import complete_node, reason_option, reasoned, seconds
from sickbay.faces.cli.show import as_json, span
from sickbay.model.errors import BadInput

for_option = click.option("--for", "length", metavar="TIME", help="It ends by itself after so long, such as 2h.")


# --- pause


@click.command("pause")
@reason_option
@for_option
@as_json
def pause(reason: str, length: str | None, as_json: bool) -> None:
    """Take no node out of service and repair none until 'sickbay unpause'. What it would have done is recorded.

    Jobs that end are still restarted, checks still run, and nodes that are well still return.

    \b
    sickbay pause --reason "the network is being changed" --for 2h
    """
    lasts = seconds("--for", length)
    found = connect().post("/v1/pause", {"reason": reasoned(reason, "the network is being changed"), "seconds": lasts})
    until = f"for {span(lasts)}" if lasts is not None else "until 'sickbay unpause'"
    show_one(found, lambda _: click.echo(f"paused {until}"), as_json=as_json)


@click.command("unpause")
@reason_option
@as_json
def unpause(reason: str, as_json: bool) -> None:
    """End the pause: the present state is judged afresh, nothing is made up for.

    \b
    sickbay unpause --reason "the network is well"
    """
    found = connect().post("/v1/unpause", {"reason": reasoned(reason, "the network is well")})
    show_one(found, lambda _: click.echo("not paused any more"), as_json=as_json)


# --- brakes


@click.group("brake")
def brake() -> None:
    """The brakes: when many nodes show the same fault at once, nothing is done to them until a person has looked.

    \b
    sickbay brake list
    sickbay brake reset xid.79 --reason "it was a power cut"
    """


@brake.command("list")
@as_json
def list_brakes(as_json: bool) -> None:
    """The brakes that are on: since when, by which nodes, and when each goes off by itself if no more nodes show it.

    \b
    sickbay brake list
    """
    head = [
        field("signature"),
        field("scope"),
        Column("since", lambda one: ago(one["tripped_at"]), right=True),
        Column("goes off", lambda one: clock(one["goes_off"]) or "when it is reset"),
        Column("nodes", lambda one: some(one["nodes"], 8), cut=True),
    ]
    found = connect().get("/v1/brakes")
    show_list(
        found, head, empty="no brake is on", as_json=as_json,
        then=lambda: f'when the cause is known: sickbay brake reset {found[0]["signature"]} --reason "WHY"',
    )  # fmt: skip


@brake.command("reset")
@click.argument("signature", required=False)
@click.option("--scope", metavar="SCOPE", help="Only in this one, as 'sickbay brake list' shows it.")
@reason_option
@as_json
def reset_brake(signature: str | None, scope: str | None, reason: str, as_json: bool) -> None:
    """Take brakes off: those of a signature, or all. Each suspect is then looked at again, one after the other.

    \b
    sickbay brake reset --reason "it was a power cut"
    sickbay brake reset xid.79 --scope pool:gpu --reason "it was a power cut"
    """
    body = {"signature": signature, "scope": scope, "reason": reasoned(reason, "it was a power cut")}
    found = connect().post("/v1/brakes/reset", body)
    left = ", ".join(f"{one['signature']} in {one['scope']}" for one in found)
    still = f"reset; still on: {left}" if left else "reset; no brake is on"
    show_one(found, lambda _: click.echo(still), as_json=as_json)


# --- exclusions


@click.group("exclude")
def exclude() -> None:
    """Faults, pools or nodes that are left alone for a time. What would have been done is recorded.

    \b
    sickbay exclude add --fault xid.94 --for 7d --reason "a known application bug"
    sickbay exclude list
    sickbay exclude remove exclude-17
    """


@exclude.command("add")
@click.option("--fault", metavar="CODE", help="Such as xid.94; may have * in it.")
@click.option("--pool", metavar="P", help="Of one pool only; may have * in it.")
@click.option("--node", metavar="NODE", help="Of one node only; may have * in it.", shell_complete=complete_node)
@for_option
@reason_option
@as_json
def add(fault: str | None, pool: str | None, node: str | None, length: str | None, reason: str, as_json: bool) -> None:
    """Leave something alone.

    \b
    sickbay exclude add --fault xid.94 --for 7d --reason "a known application bug"
    sickbay exclude add --node node-3 --for 4h --reason "a benchmark of the vendor"
    """
    if fault is None and pool is None and node is None:
        raise BadInput(
            "say what is left alone: write --fault CODE, --pool P or --node NODE; 'sickbay pause' is for all"
        )
    body = {"fault": fault, "pool": pool, "node": node, "seconds": seconds("--for", length)}
    found = connect().post("/v1/exclusions", {**body, "reason": reasoned(reason, "a known application bug")})
    show_one(found, _print_exclusion, as_json=as_json)


def _print_exclusion(row: dict[str, Any]) -> None:
    click.echo(f"{row['id']}: {_what(row)} left alone{f' until {clock(end)}' if (end := row['until']) else ''}")


@exclude.command("remove")
@click.argument("ident", metavar="ID")
@reason_option
@as_json
def remove(ident: str, reason: str, as_json: bool) -> None:
    """Take an exclusion back; the present state is judged afresh.

    \b
    sickbay exclude remove exclude-17 --reason "the bug is fixed"
    """
    found = connect().delete(f"/v1/exclusions/{segment(ident)}", reason=reason or None)
    show_one(found, lambda _: click.echo(f"{ident} is taken back"), as_json=as_json)


@exclude.command("list")
@as_json
def list_exclusions(as_json: bool) -> None:
    """What is left alone now, by whom, and until when.

    \b
    sickbay exclude list
    """
    found = connect().get("/v1/exclusions")
    head = [
        field("id"),
        Column("what", _what),
        Column("until", lambda one: clock(one["until"]) or "removed by a person"),
        field("by"),
        field("because", cut=True),
    ]
    empty = 'nothing is left alone: sickbay exclude add --fault CODE --for 7d --reason "…"'
    more = f"{count(len(found), 'exclusion')}; take one back with: sickbay exclude remove ID"
    show_list(found, head, empty=empty, as_json=as_json, then=lambda: more)


def _what(row: dict[str, Any]) -> str:
    named = [f"{name} {row[name]}" for name in ("fault", "pool", "node") if row[name] not in {"*", "", None}]
    return ", ".join(named) or "everything"
