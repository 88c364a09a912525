"""A job's interruptions in words: what the cause was, and how long each stage took."""

import itertools
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from sickbay.faces.cli.show import clean, span

OVER = frozenset({"COMPLETE", "FAILED", "STOPPED"})


def reached(interruption: dict[str, Any]) -> list[tuple[str, datetime]]:
    """The stages that it has reached, in order."""
    return [(name, datetime.fromisoformat(at)) for name, at in interruption["stages"].items() if at is not None]


def durations(interruption: dict[str, Any]) -> list[tuple[str, float]]:
    """What each stage took, counted from the one before."""
    return [
        (name, (at - before).total_seconds()) for (_, before), (name, at) in itertools.pairwise(reached(interruption))
    ]


def end_of(interruption: dict[str, Any]) -> str:
    """A job that reports no steps is back when all its ranks run."""
    again = interruption.get("training_again_after")
    if again is not None:
        return f"training again after {again:.1f} s"
    times = dict(reached(interruption))
    if "detected" in times and "started" in times:
        return f"running again after {(times['started'] - times['detected']).total_seconds():.1f} s"
    return "not running again"


def why(job: dict[str, Any]) -> str:
    """One that is complete needs no reason; what it once stumbled over is in its interruptions."""
    return "" if job["state"] == "COMPLETE" else str(job["because"] or job["diagnosis"])


def in_words(interruption: dict[str, Any]) -> str:
    end = end_of(interruption)
    incidents = f" ({', '.join(interruption['incidents'])})" if interruption["incidents"] else ""
    return clean(f"attempt {interruption['attempt']}: {interruption['cause']}{incidents}: {end}")


def print_interruptions(interruptions: Sequence[dict[str, Any]]) -> None:
    for one in interruptions:
        click.echo(f"  {in_words(one)}")
        took = ", ".join(f"{name} {span(seconds)}" for name, seconds in durations(one))
        if took:
            click.echo(f"    {took}")
