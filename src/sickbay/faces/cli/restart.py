"""sickbay restart: an ended job goes on from its checkpoints, as a new job."""

from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.names import complete_over
from sickbay.faces.cli.show import as_json
from sickbay.faces.cli.submit import answer, stay
from sickbay.model.errors import BadInput


@click.command("restart")
@click.argument("job", metavar="JOB", shell_complete=complete_over)
@click.option("--from", "step", metavar="STEP", type=click.IntRange(min=0), help="Exactly this step; else the newest.")
@click.option("--anew", is_flag=True, help="Begin at step 0, beside what is there; none of it is removed.")
@click.option("--nodes", metavar="N", type=click.IntRange(min=1), help="On so many nodes; else as before.")
@click.option("--min-nodes", metavar="M", type=click.IntRange(min=1), help="Restart on fewer, down to so many.")
@click.option("--reason", metavar="WHY", default="", help="Why; it is kept in the story of both jobs.")
@click.option("--wait", is_flag=True, help="Stay until it is over: exit 0 COMPLETE, 1 FAILED or STOPPED.")
@as_json
@click.argument("command", metavar="[-- CMD …]", nargs=-1, type=click.UNPROCESSED)
def restart(job: str, command: tuple[str, ...], step: int | None, wait: bool, as_json: bool, **options: Any) -> None:
    """Continue a job that is STOPPED, FAILED or COMPLETE, from its newest checkpoint or from one step.

    It becomes a new job of the same name, with the same command, nodes and directory unless you say otherwise, and
    with restarts of its own. Checkpoints that are younger than STEP stay where they are.

    \b
    sickbay restart train-1a2b3
    sickbay restart train-1a2b3 --from 400 --reason "the loss went up" -- python train.py --lr 1e-4
    sickbay restart train-1a2b3 --nodes 4 --wait
    """
    if options["anew"] and step is not None:
        raise BadInput("--from and --anew contradict each other: write one of them")
    client = connect()
    said = {name: value or None for name, value in options.items()}
    body = {**said, "step": step, "command": list(command) or None}
    made = client.post(f"/v1/jobs/{segment(job)}/restart", body)
    if wait:
        stay(client, made, as_json=as_json)
    else:
        answer(made, anew=options["anew"], as_json=as_json)
