"""sickbay jobs, job ID, stop ID."""

from typing import Any

import click

from sickbay.faces.cli.client import connect, segment
from sickbay.faces.cli.columns import Column, ago, card, columns, count, hint, say, short_node, some
from sickbay.faces.cli.names import complete_job, complete_running, reason_option
from sickbay.faces.cli.show import as_json, clean, print_json
from sickbay.faces.cli.stages import print_interruptions, why

MOST = 5000  # that the server gives at once
STATES = ("QUEUED", "GATING", "RUNNING", "STOPPING", "DIAGNOSING", "COMPLETE", "FAILED", "STOPPED")


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
    found = connect().get("/v1/jobs", state=state, limit=MOST)
    if as_json:
        print_json(found)
        return
    if not found:
        say(
            f"no jobs that are {state}: 'sickbay jobs' shows all"
            if state
            else "no jobs yet: sickbay submit --name first --nodes 1 -- python train.py"
        )
        return
    columns(
        [Column("job"), Column("state"), Column("attempt", right=True), Column("step", right=True), Column("nodes"),
         Column("because", cut=True)],
        [
            (job["id"], job["state"], job["attempt"], job["step"], some(job["nodes"], 2), why(job))
            for job in found
        ],
    )  # fmt: skip


@click.command("job")
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@as_json
def job(job: str, as_json: bool) -> None:
    """One job: where it runs, how far it is, and each interruption with the time that every stage took.

    \b
    sickbay job train-1a2b3
    """
    found = connect().get(f"/v1/jobs/{segment(job)}")
    if as_json:
        print_json(found)
    else:
        print_job(found)
        hint(f"its story: sickbay explain {found['id']}", f"its output: sickbay logs {found['id']}")


def print_job(job: dict[str, Any]) -> None:
    card(
        f"job {job['id']}",
        job["state"],
        [
            ("because", why(job)),
            ("diagnosis", job["diagnosis"] if job["diagnosis"] != why(job) and job["state"] != "COMPLETE" else ""),
            ("attempt", job["attempt"] or "none yet"),
            ("restarts", job["restarts"] or ""),
            ("nodes", ", ".join(short_node(name) for name in job["nodes"])),
            ("step", job["step"]),
            ("resumed from", f"step {job['resumed_from']}" if job["resumed_from"] is not None else ""),
            ("saved", saved(job)),
            ("not saved", job.get("save_failed")),
            ("now", job.get("doing")),
        ],
    )
    if job["interruptions"]:
        click.echo(f"  {click.style(count(len(job['interruptions']), 'interruption'), dim=True)}")
        print_interruptions(job["interruptions"])


def saved(job: dict[str, Any]) -> str:
    """step 40, 3 m 05 s ago."""
    if job.get("saved") is None:
        return ""
    return f"step {job.get('saved')}{f', {when}' if (when := ago(job.get('saved_at'))) else ''}"


@click.command("stop")
@click.argument("job", metavar="JOB", shell_complete=complete_running)
@reason_option
@click.option("--now", is_flag=True, help="At once; else a job that listens is asked to save first.")
@as_json
def stop(job: str, reason: str, now: bool, as_json: bool) -> None:
    """Stop a job, whatever it is doing, and do not start it again.

    \b
    sickbay stop train-1a2b3 --reason "wrong learning rate"
    sickbay stop train-1a2b3 --now
    """
    body = {"reason": reason or "stopped by its owner", **({"now": True} if now else {})}
    found = connect().post(f"/v1/jobs/{segment(job)}/stop", body)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found['id']} is {found['state']}{clean(f': {said}') if (said := why(found)) else ''}")
