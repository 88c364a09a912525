"""sickbay doctor: what is missing or follows, one line each."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import msgspec

from sickbay.faces.cli.client import Unreachable, connect
from sickbay.faces.cli.show import as_json, clean, leave, print_json
from sickbay.model.errors import BadInput
from sickbay.model.finding import Finding, FindingLevel, missing, ok

COLOURS = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.MISSING: "bright_red"}


@click.command("doctor")
@click.option(
    "--config", "file", metavar="FILE", type=click.Path(path_type=Path),
    help="A controller's file, before it runs; with --agent, an agent's settings.",
)  # fmt: skip
@click.option("--agent", "of_agent", is_flag=True, help="Look at the agent of this machine.")
@as_json
def doctor(file: Path | None, *, of_agent: bool, as_json: bool) -> None:
    """Say what is missing or follows, one line each, with the way out. Exit 1 if something would fail.

    It looks, and changes nothing: no node, no job, no file, no report.

    \b
    sickbay doctor                                         the running controller and its agents
    sickbay doctor --config /etc/sickbay/controller.yaml   a configuration, before anything runs
    sickbay doctor --agent                                 this node: its settings, token, kernel log, GPUs
    """
    if of_agent:
        from sickbay.agent.doctor import agent_findings

        found: Iterable[Finding] = agent_findings(file, os.environ)
    elif file is not None:
        from sickbay.hosts.doctor import config_findings

        found = config_findings(file)
    else:
        found = _running()
    if as_json:
        found = list(found)
        print_json([{name: getattr(one, name) for name in one.__struct_fields__} for one in found])
    else:
        found = _print(found)
    if any(one.level is FindingLevel.MISSING for one in found):
        leave(1)


def _running() -> Iterable[Finding]:
    client = connect()
    try:
        answer: list[dict[str, Any]] = client.get("/v1/doctor")
    except Unreachable as error:
        return [missing("controller", str(error), "sickbay doctor --config FILE looks at one that does not run")]
    except (BadInput, click.ClickException) as error:
        said = error.message if isinstance(error, click.ClickException) else str(error)
        return [missing("controller", said)]
    return [ok("controller", f"{client.url} answers"), *msgspec.convert(answer, list[Finding])]


def _print(found: Iterable[Finding]) -> list[Finding]:
    """Each as soon as it is known: a cluster may take its time."""
    shown: list[Finding] = []
    for one in found:
        shown.append(one)
        level = click.style(f"{one.level:<8}", fg=COLOURS[one.level])
        click.echo(f"{level} {clean(one.subject)}: {clean(one.text)}")
        if one.way_out:
            click.echo(f"         → {clean(one.way_out)}")
    bad = sum(one.level is FindingLevel.MISSING for one in shown)
    doubtful = sum(one.level is FindingLevel.WARNING for one in shown)
    click.echo(f"{bad or 'nothing'} missing, {doubtful or 'no'} warning{'' if doubtful == 1 else 's'}")
    return shown
