"""sickbay run: one rank of a job that others start, watched by its node's agent."""

import os
import sys

import click

from sickbay.faces.cli.names import seconds
from sickbay.model.errors import BadInput
from sickbay.model.job import LogRule

STALL_AFTER, START_WITHIN = 900.0, 3600.0  # seconds: as the default policy has them for submitted jobs


@click.command("run", context_settings={"allow_interspersed_args": False})
@click.option("--job", metavar="ID", help="Its job, as the controller knows it; else SICKBAY_JOB_ID, or Slurm's.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Else SICKBAY_ATTEMPT, or Slurm's count.")
@click.option("--rank", metavar="R", type=click.IntRange(min=0), help="Else RANK, SLURM_PROCID, … or 0.")
@click.option("--stall-after", metavar="TIME", help="Hung after so long without a heartbeat; none: never; else 15m.")
@click.option("--start-within", metavar="TIME", help="Hung unless its first heartbeat comes so soon; else 1h.")
@click.option(
    "--log-rule", metavar="RULE", multiple=True,
    help="Hung unless a line appears: 'NAME=REGEX;start=5m;every=1m'. Repeat it.",
)  # fmt: skip
@click.argument("command", metavar="-- CMD …", nargs=-1, type=click.UNPROCESSED)
def run(
    job: str | None,
    attempt: int | None,
    rank: int | None,
    stall_after: str | None,
    start_within: str | None,
    log_rule: tuple[str, ...],
    command: tuple[str, ...],
) -> None:
    """Run CMD as one rank of a job, so that this node's agent sees its steps, hangs, stacks and how it ends.

    It goes into the batch script, the pod or the task, around the command that trains, once on each node or once for
    each rank. Its output, its signals and its exit code are the command's own. Whatever keeps it from being watched
    keeps nothing from running: that is one line on standard error.

    \b
    srun sickbay run -- torchrun --nproc-per-node 8 train.py        in an sbatch script
    sickbay run --job $JOB -- python train.py                       anywhere
    """
    from sickbay.agent.ranks.wrapper import Wrapped
    from sickbay.agent.ranks.wrapper import run as run_wrapped

    if not command:
        raise BadInput("no command was given: write it after --, for example: sickbay run -- python train.py")
    asked = Wrapped(
        command=command,
        job=job or "",
        attempt=attempt,
        rank=rank,
        stall_after=_limit("--stall-after", stall_after, STALL_AFTER),
        start_within=_limit("--start-within", start_within, START_WITHIN),
        expects_heartbeats=stall_after is not None or start_within is not None,
        log_rules=_rules(log_rule),
    )
    sys.exit(run_wrapped(asked, dict(os.environ)))


def _limit(option: str, text: str | None, usual: float) -> float:
    if text in {"none", "never", "0"}:
        return 0.0
    said = seconds(option, text)
    return usual if said is None else said


def _rules(texts: tuple[str, ...]) -> tuple[LogRule, ...]:
    if not texts:
        return ()
    from sickbay.faces.cli.submit import log_rule_of

    return tuple(LogRule(**log_rule_of(text)) for text in texts)
