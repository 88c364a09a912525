"""sickbay explain NODE|JOB|INCIDENT."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sickbay.faces.cli.columns import ago, clock, count
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
from sickbay.faces.words import words_in
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.faces.story import StoryAnswer
    from sickbay.model.policy import Policy
    from sickbay.ports.store import Store

STORY_LINES = 200
FOLDED = frozenset({"incarnation", "joined", "inventory"})  # a machine that boots each morning says them each morning


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
@click.option("--all", "everything", is_flag=True, help="The whole story, not only its last chapter.")
@click.option("--since", metavar="TIME", help="The story from then on: 2h, 30m, or 2026-03-01T12:30 (UTC).")
@click.option("--words", is_flag=True, help="Explain the words that are used in it.")
@as_json
def explain(
    name: str,
    store: str | None,
    sim: str | None,
    seed: int,
    at: str | None,
    policy: str | None,
    everything: bool,
    since: str | None,
    words: bool,
    as_json: bool,
) -> None:
    """Why a node, a job or an incident is as it is: what it waits for, what would change that, and how it came to it.

    The present comes first, each way out with its command; then the last chapter of its story. What a node did before
    its last incident, and a job before its last interruption, is shown with --all or --since.

    \b
    sickbay explain node-0
    sickbay explain train-1a2b3 --since 2h
    sickbay explain i12 --words
    sickbay explain train-0000 --sim standard --at 12m
    sickbay explain train --store demo.db
    """
    if store is not None and sim is not None:
        raise BadInput("say where to look: write --store FILE (or a URL), or --sim NAME, one of them, or none")
    if at is not None and sim is None:
        raise BadInput("--at stops a simulation: write --sim NAME with it, or leave it out")
    if policy is not None and store is None and sim is None:
        raise BadInput("--policy is for --store and --sim: the server knows the policy in force, leave it out")
    if everything and since:
        raise BadInput("--all and --since exclude each other: write one of them")
    asked = Asked(name, everything, since or "")
    explained, begin = _served(asked) if store is None and sim is None else _read(asked, store, sim, seed, at, policy)
    if as_json:
        print_json({**explained, **({"words": words_in(explained)} if words else {})})
        return
    _print(explained, begin)
    if words:
        _print_words(explained)


class Asked(NamedTuple):
    name: str
    everything: bool
    since: str


def _served(asked: Asked) -> "tuple[dict[str, Any], datetime | None]":
    from sickbay.faces.cli.client import connect

    everything = "true" if asked.everything else None
    return connect().get("/v1/explain", name=asked.name, all=everything, since=asked.since or None), None


def _read(
    asked: Asked, store: str | None, sim: str | None, seed: int, at: str | None, policy: str | None
) -> "tuple[dict[str, Any], datetime | None]":
    import msgspec

    from sickbay.faces.archive import Archive
    from sickbay.faces.chapters import span_of
    from sickbay.faces.explain import explain as explain_it

    quiet()
    opened, begin, policies = _simulated(sim, seed, at, policy) if sim is not None else _stored(str(store), policy)
    try:
        span = span_of(asked.since, Archive(opened).as_of, everything=asked.everything)
        return msgspec.to_builtins(explain_it(opened, asked.name, policies, span)), begin
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
    kind, waits = explained["kind"], explained["waits_for"]
    click.echo(click.style(clean(explained["now"]), bold=True))
    if waits is not None:
        _waits(waits, explained["as_of"], "now" if explained.get("state") == "RUNNING" else "waits")
    click.echo()
    {"node": print_node, "job": print_job, "incident": print_incident}[kind](explained)
    _story(explained, begin)


def _story(explained: dict[str, Any], begin: datetime | None) -> None:
    story, earlier = [told_of(line) for line in explained["story"]], explained["earlier"]
    heading({"all of it": "Story"}.get(explained["chapter"], f"Story: {explained['chapter']}"))
    shown = folded(story)
    print_story(shown[-STORY_LINES:], begin)
    if len(shown) > STORY_LINES:
        click.echo(f"(the last {STORY_LINES} of {len(shown)} lines: --json has them all)")
    if earlier["lines"]:
        incidents = f", {count(earlier['incidents'], 'older incident')}" if earlier["incidents"] else ""
        line = f"({count(earlier['lines'], 'earlier line')}{incidents}: sickbay explain {explained['id']} --all)"
        click.echo(click.style(line, dim=True))


def folded(story: "Sequence[StoryAnswer]") -> "list[StoryAnswer]":
    """Run-length coding of what says nothing new: a machine that is switched on each morning boots each morning."""
    from msgspec.structs import replace

    found: list[StoryAnswer] = []
    times = 1
    for told in story:
        last = found[-1] if found else None
        same = last is not None and told.event in FOLDED and (told.event, told.about) == (last.event, last.about)
        times = times + 1 if same else 1
        if same:
            found[-1] = replace(told, text=f"{told.text} (the last of {times} times)")
        else:
            found.append(told)
    return found


def _waits(waits: dict[str, Any], as_of: str | None, because: str) -> None:
    """`because`: what its reason is called; a job that trains waits for nothing."""
    card_lines = [
        (because, waits["because"]),
        ("since", _since(waits["since"], as_of)),
        ("until", _until(waits, as_of)),
        ("would", waits["would"]),
        *(("note", note) for note in waits["notes"]),
    ]
    if waits["budget"] is not None:
        card_lines.append(("budget", budget_words(waits["budget"])))
        card_lines += [("", f"{seat['node']}: {seat['because']}") for seat in waits["budget"]["used_by"]]
    known = [(name, text) for name, text in card_lines if text]
    for name, text in known:
        click.echo(f"  {click.style(name.ljust(6), dim=True)}  {clean(text)}")
    if waits["ways_out"]:
        heading("What would change that")
        _ways(waits["ways_out"], "  ")
    for one in waits["behind"]:
        heading(f"{one['node']} is {one['state']} ({one['about']}): {clean(one['because'])}")
        if until := _until(one, as_of):
            click.echo(f"  until {until}")
        _ways(one["ways_out"], "  ")


def _ways(ways: "Sequence[dict[str, Any]]", indent: str) -> None:
    for one in ways:
        click.echo(f"{indent}- {clean(one['what'])}")
        if one["command"]:
            click.echo(f"{indent}    {click.style(clean(one['command']), fg='cyan')}")


def _since(since: str | None, as_of: str | None) -> str:
    if since is None:
        return ""
    now = datetime.fromisoformat(as_of) if as_of is not None else None
    return f"{clock(since)} ({ago(since, now)})"


def _print_words(explained: dict[str, Any]) -> None:
    heading("Words")
    for word, meaning in words_in(explained).items():
        click.echo(f"  {click.style(word, bold=True)}: {meaning}")


def _until(waits: dict[str, Any], as_of: str | None) -> str:
    until, then = waits["until"], waits["then"]
    if until is None:
        return ""
    at = datetime.fromisoformat(until["about"])
    left = (at - datetime.fromisoformat(as_of)).total_seconds() if as_of is not None else 0.0
    stands = f", not counting now: {until['clock']} is not heard" if until["stands_since"] is not None else ""
    about = f"about {at:%Y-%m-%d %H:%M:%S} UTC (in {span(left)}{stands})"
    return f"{about}: then {then}" if then else about
