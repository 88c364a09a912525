"""sickbay check: exercise hardware now and wait for the verdict, of this machine or of idle nodes of a cluster."""

import time
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, columns, count, field, say
from sickbay.faces.cli.names import complete_node
from sickbay.faces.cli.show import as_json, leave, print_json, span
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.faces.cli.client import Client

LOOK_EVERY = 0.5
PASS = "pass"  # noqa: S105 - a verdict


@click.command("check")
@click.argument("node", metavar="[NODE]", required=False, shell_complete=complete_node)
@click.option("--all", "everything", is_flag=True, help="All idle nodes at once.")
@click.option("--pool", metavar="P", help="All idle nodes of a pool.")
@click.option("--here", is_flag=True, help="This machine, without a controller; so it is when nothing else is named.")
@click.option(
    "--level", metavar="1..4", type=click.IntRange(1, 4), default=1, show_default="1",
    help="1 takes moments, 4 exercises everything for long.",
)  # fmt: skip
@click.option(
    "--profile", metavar="NAME", help="Here: what to prove after a fault (memory, nvlink, xid.48 …), or hyperpod."
)
@click.option("--only", metavar="TEST", multiple=True, help="Here: only this test, whatever its level; again for more.")
@click.option("--gpus", metavar="N", type=click.IntRange(0, 1024), help="Here: how many GPUs there must be.")
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="Here: which rank of all_reduce_nodes this is.")
@click.option("--world", metavar="N", type=click.IntRange(min=2), help="Here: how many ranks it has.")
@click.option("--at", metavar="HOST:PORT", help="Here: where rank 0 waits for the others.")
@click.option("--floor", metavar="GBPS", type=click.FloatRange(min=0), help="Least bus bandwidth of all_reduce_nodes.")
@click.option(
    "--within", metavar="SECONDS", type=click.FloatRange(2, 3600), help="Time for all_reduce_nodes, or for each pair."
)
@click.option("--search", metavar="HOST,…", help="Which of these hosts breaks a collective: two rounds of pairs.")
@click.option("--with", "template", metavar="CMD", help="How to run a command on a host. [default: ssh {host}]")
@as_json
def check(
    node: str | None, everything: bool, pool: str | None, here: bool, level: int, profile: str | None,
    only: tuple[str, ...], gpus: int | None, rank: int | None, world: int | None, at: str | None, floor: float | None,
    within: float | None, search: str | None, template: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Exercise hardware and wait for the verdict; exit 1 unless all pass.

    Without a name it tests the machine it runs on and needs no controller: GPUs, links, processors, memory, disk.
    With a name, --all or --pool the controller has idle nodes checked, and a node that fails gets its incident.
    A test that could not run has not passed.

    \b
    Level 1 takes seconds, 2 about two minutes, 3 some minutes, 4 half an hour and more.

    \b
    Started on many machines at once (srun, torchrun, mpirun, or --rank --world --at) level 3 has the test
    all_reduce_nodes: one all-reduce over all of them, by NCCL or else over TCP. If it fails, --search finds out
    who it is: hosts are tried in pairs, and who fails with a partner that works with others is named.

    \b
    sickbay check --level 2
    sickbay check --level 3 --json | jq '.tests[] | select(.verdict != "pass")'
    sickbay check --level 3 --profile memory
    sickbay check node-0 --level 2
    sickbay check --all
    sickbay check --pool gpu --level 4 --json | jq -r '.[] | select(.verdict != "pass") | .node'
    srun -N8 sickbay check --only all_reduce_nodes --floor 300
    sickbay check --search gpu1,gpu2,gpu3,gpu4
    sickbay check --search a=10.0.0.1,b=10.0.0.2 --with 'kubectl exec {host} --'
    """
    named = (node is not None) + everything + (pool is not None)
    if named + here > 1:
        raise BadInput("say what to check: write NODE, --all, --pool P or --here, one of them")
    if template is not None and search is None:
        raise BadInput("--with says how to reach the hosts of a search: write --search HOST,HOST too, or leave it out")
    among = (("--rank", rank), ("--world", world), ("--at", at))
    local = (("--profile", profile), ("--only", only or None), ("--gpus", gpus), *among)
    if search is not None:
        from sickbay.faces.cli.check_search import check_search

        if named or here or any(given is not None for _, given in local):
            raise BadInput("--search takes --with, --within, --floor and --json: leave the other options and names out")
        leave(check_search(search, template, within, floor, as_json=as_json))
    if not named:
        from sickbay.faces.cli.check_here import check_here, who

        launch = who(rank, world, at, floor, within)
        leave(check_here(level, profile or "", only, gpus, launch, as_json=as_json))
    for option, given in (*local, ("--floor", floor), ("--within", within)):
        if given is not None:
            raise BadInput(
                f"{option} is for a check of this machine: leave NODE, --all and --pool out, or leave it out"
            )
    _check_nodes(node, pool, level, everything=everything, as_json=as_json)


def _check_nodes(node: str | None, pool: str | None, level: int, *, everything: bool, as_json: bool) -> None:
    """The controller has idle nodes checked; we wait for every verdict."""
    client = connect()
    began = client.post("/v1/checks", {"node": node, "all": everything or None, "pool": pool, "level": level})
    for one in began["skipped"]:
        say(f"{one['node']} is not checked: {one['because']}")
    try:
        results = _verdicts(client, began) if began["nodes"] else []
    except KeyboardInterrupt:
        say(
            f"the check of {count(len(began['nodes']), 'node')} goes on without you: 'sickbay nodes' shows its findings"
        )
        raise
    if node is not None and not results:  # nobody looked, which is not a pass
        because = began["skipped"][0]["because"] if began["skipped"] else "it was not checked"
        name = began["skipped"][0]["node"] if began["skipped"] else node
        results = [{"node": name, "level": level, "verdict": "could_not_run", "tests": [], "because": because}]
    if as_json:
        print_json(results[0] if node is not None else results)
    else:
        _print(results)
    leave(0 if results and all(one["verdict"] == PASS for one in results) else 1)


def _verdicts(client: "Client", began: dict[str, Any]) -> list[dict[str, Any]]:
    from sickbay.faces.cli.watch import ReconnectPatience

    patience = ReconnectPatience(say)
    told: set[str] = set()
    say(f"checking {count(len(began['nodes']), 'node')} …")
    while True:
        found = patience.ask(lambda: client.get(f"/v1/checks/{segment(began['check'])}"), LOOK_EVERY)
        for one in found["results"]:
            if one["node"] not in told and one["verdict"]:
                told.add(one["node"])
                say(f"  {one['node']}: {one['verdict']} ({len(told)} of {len(began['nodes'])})")
        if found["over"]:
            return _complete(found["results"], began, found["level"])
        time.sleep(LOOK_EVERY)


def _complete(results: list[dict[str, Any]], began: dict[str, Any], level: int) -> list[dict[str, Any]]:
    """A node that was to be checked and has no verdict could not be checked."""
    judged = {one["node"] for one in results}
    silent = {"level": level, "verdict": "could_not_run", "tests": [], "because": "no verdict came"}
    return [*results, *({"node": node, **silent} for node in began["nodes"] if node not in judged)]


def _print(results: list[dict[str, Any]]) -> None:
    if not results:
        say("no node was checked: none is idle")
        return
    columns(
        [
            field("node"),
            field("level", right=True),
            field("verdict"),
            Column("tests", lambda one: len(one["tests"]), right=True),
            Column("took", _took, right=True),
            Column("because", _why, cut=True),
        ],
        results,
    )


def _took(result: dict[str, Any]) -> str:
    return span(sum(test["seconds"] for test in result["tests"])) if result["tests"] else ""


def _why(result: dict[str, Any]) -> str:
    bad = [f"{one['name']}: {one['because'] or one['verdict']}" for one in result["tests"] if one["verdict"] != PASS]
    return "; ".join(bad) or ("" if result["verdict"] == PASS else str(result["because"]))
