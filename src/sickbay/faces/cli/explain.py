"""sickbay explain NODE|JOB|INCIDENT."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.incidents import print_incident
from sickbay.faces.cli.jobs import print_job
from sickbay.faces.cli.names import complete_anything, seconds
from sickbay.faces.cli.nodes import print_node
from sickbay.faces.cli.show import (
    as_json,
    budget_words,
    clean,
    heading,
    print_json,
    print_story,
    quiet,
    seed_option,
    span,
    told_of,
)
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.model.policy import Policy
    from sickbay.ports.store import Store

STORY_LINES = 200


@click.command("explain")
@click.argument("name", metavar="NODE|JOB|INCIDENT", shell_complete=complete_anything)
@click.option(
    "--store", metavar="FILE|URL", help="A store instead of the server: a SQLite file or a URL. It is only read."
)
@click.option("--sim", metavar="NAME|FILE", help="A simulation instead of the server.")
@seed_option
@click.option("--at", metavar="DURATION", help="With --sim: stop it so long after its beginning, such as 12m30s.")
@click.option(
    "--policy", metavar="NAME|FILE", help="Where a policy of your own is in force: its limits are then shown."
)
@as_json
def explain(
    name: str, store: str | None, sim: str | None, seed: int, at: str | None, policy: str | None, as_json: bool
) -> None:
    """Why a node, a job or an incident is as it is: its story, what it waits for, and what would change that.

    \b
    sickbay explain node-0
    sickbay explain train-0000 --sim standard --at 12m
    sickbay explain train --store demo.db
    """
    if store is not None and sim is not None:
        raise BadInput("say where to look: write --store FILE (or a URL), or --sim NAME, one of them, or none")
    if at is not None and sim is None:
        raise BadInput("--at stops a simulation: write --sim NAME with it, or leave it out")
    if policy is not None and store is None and sim is None:
        raise BadInput("--policy is for --store and --sim: the server knows the policy in force, leave it out")
    explained, begin = _served(name) if store is None and sim is None else _read(name, store, sim, seed, at, policy)
    if as_json:
        print_json(explained)
    else:
        _print(explained, begin)


def _served(name: str) -> "tuple[dict[str, Any], datetime | None]":
    from sickbay.faces.cli.client import connect

    return connect().get("/v1/explain", name=name), None


def _read(
    name: str, store: str | None, sim: str | None, seed: int, at: str | None, policy: str | None
) -> "tuple[dict[str, Any], datetime | None]":
    import msgspec

    from sickbay.faces.explain import explain as explain_it

    quiet()
    opened, begin, policies = _simulated(sim, seed, at, policy) if sim is not None else _stored(str(store), policy)
    try:
        return msgspec.to_builtins(explain_it(opened, name, policies)), begin
    finally:
        opened.close()


def _stored(where: str, policy: str | None) -> "tuple[Store, datetime | None, Mapping[str, Policy]]":
    from sickbay.wiring import open_store

    if "://" not in where and not where.startswith("memory:"):
        if not Path(where).is_file():
            raise BadInput(f"{where}: no such file: give the store's SQLite file, or a URL such as postgresql://…")
        where = f"sqlite:///{Path(where).absolute()}"
    return open_store(where, readonly=True), None, _policies(policy)


def _policies(own: str | None) -> "Mapping[str, Policy]":
    """Those that may be in force, by digest: the shipped ones, and the one that was named."""
    from sickbay.policy.load import digest, load_policy, shipped

    loaded = [load_policy(name) for name in [*shipped(), *([own] if own else [])]]
    return {digest(policy): policy for policy in loaded}


def _simulated(
    sim: str, seed: int, at: str | None, policy: str | None
) -> "tuple[Store, datetime | None, Mapping[str, Policy]]":
    from msgspec.structs import replace

    from sickbay.faces.cli.sim import scenario_of
    from sickbay.policy.load import digest
    from sickbay.sim.invariants import Broken
    from sickbay.sim.scenarios import perform, stage
    from sickbay.sim.schedule import EPOCH

    scenario = scenario_of(sim)
    if policy is not None:
        scenario = replace(scenario, policy=policy)
    length = seconds("--at", at)
    simulation = stage(scenario, seed)
    try:
        if length is None:
            perform(simulation, scenario, seed)
        else:
            simulation.run(length)
    except Broken as error:
        click.echo(f"it broke here: {error}", err=True)  # and what led to it is what one wants to read
    return simulation.store, EPOCH, {digest(simulation.policy): simulation.policy}


# --- in words


def _print(explained: dict[str, Any], begin: datetime | None) -> None:
    kind, story = explained["kind"], [told_of(line) for line in explained["story"]]
    {"node": print_node, "job": print_job, "incident": print_incident}[kind](explained)
    heading("Story")
    print_story(story[-STORY_LINES:], begin)
    if len(story) > STORY_LINES:
        click.echo(f"(the last {STORY_LINES} of {len(story)} lines: --json has them all)")
    heading("Waits for")
    if explained["waits_for"] is None:
        click.echo("  nothing: it is fit for work" if kind == "node" else "  nothing: it is over")
    else:
        _waits(explained["waits_for"], explained["as_of"])


def _waits(waits: dict[str, Any], as_of: str | None) -> None:
    click.echo(f"  {clean(waits['because'])}")
    if waits["would"]:
        click.echo(f"  would have: {waits['would']}")
    if waits["until"] is not None:
        click.echo(f"  until {_until(waits['until'], as_of)}{f': then {then}' if (then := waits['then']) else ''}")
    for note in waits["notes"]:
        click.echo(f"  {clean(note)}")
    if waits["changed_by"]:
        click.echo("What would change that:")
        for change in waits["changed_by"]:
            click.echo(f"  - {clean(change)}")
    if waits["budget"] is not None:
        click.echo(f"Budget: {budget_words(waits['budget'])}")


def _until(until: dict[str, Any], as_of: str | None) -> str:
    at = datetime.fromisoformat(until["about"])
    left = (at - datetime.fromisoformat(as_of)).total_seconds() if as_of is not None else 0.0
    stands = f", not counting now: {until['clock']} is not heard" if until["stands_since"] is not None else ""
    return f"about {at:%Y-%m-%d %H:%M:%S} UTC (in {span(left)}{stands})"
