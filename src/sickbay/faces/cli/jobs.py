"""sickbay jobs, job ID, stop ID."""

import json
import shlex
from operator import itemgetter
from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import (
    Column,
    ago,
    card,
    clock,
    count,
    field,
    hint,
    short_node,
    show_list,
    show_one,
    some,
)
from sickbay.faces.cli.names import complete_job, complete_running, reason_option, wait_option
from sickbay.faces.cli.orders import post_order
from sickbay.faces.cli.show import as_json
from sickbay.faces.cli.stages import print_attempts, print_interruptions, why

COMMAND_MOST = 500  # characters that are shown
STATES = ("QUEUED", "GATING", "RUNNING", "STOPPING", "DIAGNOSING", "COMPLETE", "FAILED", "STOPPED")
COLUMNS = (
    Column("job", itemgetter("id")),
    field("state"),
    field("attempt", right=True),
    Column("step", itemgetter("step"), right=True),
    Column("owner", lambda job: job.get("owner", "")),
    field("pool"),
    Column("nodes", lambda job: some(job["nodes"], 2)),
    Column("because", why, cut=True),
)


@click.command("jobs")
@click.option(
    "--state", type=click.Choice(STATES, case_sensitive=False), help="Only those in this state."
)  # fmt: skip
@as_json
def jobs(state: str | None, as_json: bool) -> None:
    """All jobs, the newest first: their state, nodes, last step, and what they wait for.

    \b
    sickbay jobs
    sickbay jobs --state running --json | jq -r '.[].id'
    """
    found = connect().pages("/v1/jobs", state=state)
    some_state = f"no jobs that are {state}: 'sickbay jobs' shows all"
    none = "no jobs yet: sickbay submit -- python train.py"
    several = len({job["pool"] for job in found}) > 1
    columns = [column for column in COLUMNS if column.name != "pool" or several]
    show_list(found, columns, empty=some_state if state else none, as_json=as_json)


@click.command("job")
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@as_json
def job(job: str, as_json: bool) -> None:
    """One job: where it runs, how far it is, and each interruption with the time that every stage took.

    \b
    sickbay job train-1a2b3
    """
    show_one(connect().get(f"/v1/jobs/{segment(job)}"), _print_and_hint, as_json=as_json)


def _print_and_hint(job: dict[str, Any]) -> None:
    print_job(job)
    hint(f"its story: sickbay explain {job['id']}", f"its output: sickbay logs {job['id']}")


def print_job(job: dict[str, Any]) -> None:
    card(
        f"job {job['id']}",
        job["state"],
        [
            ("because", why(job)),
            ("diagnosis", job["diagnosis"] if job["diagnosis"] != why(job) and job["state"] != "COMPLETE" else ""),
            ("owner", job.get("owner", "")),
            ("attempt", job["attempt"] or "none yet"),
            ("restarts", job["restarts"] or ""),
            ("nodes", ", ".join(short_node(name) for name in job["nodes"])),
            ("step", job["step"]),
            ("continues", job.get("continues")),
            ("continued by", job.get("continued_by")),
            ("resumed from", resumed(job)),
            ("saved", saved(job)),
            ("not saved", job.get("save_failed")),
            ("now", job.get("doing")),
            ("checkpoints", job.get("checkpoint")),
            ("command", shlex.join(job.get("command", ()))[:COMMAND_MOST]),
            ("in", job.get("cwd")),
            ("storage", ", ".join(job.get("storage", ()))),
            ("image", job.get("image")),
            ("native", json.dumps(native)[:COMMAND_MOST] if (native := job.get("native")) else ""),
            ("environment", ", ".join([*job.get("env", ()), *job.get("env_files", ())])),
            ("submitted", clock(job.get("submitted_at"))),
            ("ended", clock(job.get("ended_at"))),
        ],
    )
    print_attempts(job.get("attempts", ()))
    if job["interruptions"]:
        click.echo(f"  {click.style(count(len(job['interruptions']), 'interruption'), dim=True)}")
        print_interruptions(job["interruptions"])


def resumed(job: dict[str, Any]) -> str:
    """step 40 of job train-1a2b3."""
    if job["resumed_from"] is None:
        return ""
    return f"step {job['resumed_from']}{f' of job {of}' if (of := job.get('resumed_of')) else ''}"


def saved(job: dict[str, Any]) -> str:
    """step 40, 3 m 05 s ago."""
    if job.get("saved") is None:
        return ""
    return f"step {job.get('saved')}{f', {when}' if (when := ago(job.get('saved_at'))) else ''}"


@click.command("stop")
@click.argument("job", metavar="JOB", shell_complete=complete_running)
@reason_option
@click.option("--now", is_flag=True, help="At once; else a job that listens is asked to save first.")
@wait_option
@as_json
def stop(job: str, reason: str, now: bool, wait: bool, as_json: bool) -> None:
    """Stop a job, whatever it is doing, and do not start it again.

    \b
    sickbay stop train-1a2b3 --reason "wrong learning rate"
    sickbay stop train-1a2b3 --now --wait
    """
    body = {"reason": reason or "stopped by its owner", **({"now": True} if now else {})}
    post_order(f"/v1/jobs/{segment(job)}/stop", body, wait=wait, as_json=as_json)
