"""A job's interruptions in words, with how long each stage took; and progress lines for one who waits for a job."""

import itertools
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import click

from sickbay.faces.cli.columns import clock, count, short_node, some, took
from sickbay.faces.cli.show import clean, span

STEP_EVERY = 10.0  # seconds between two lines that tell a step
SHOWN = 8  # names of nodes in one line
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


def ended_how(attempt: dict[str, Any]) -> str:
    """rank 1 on node-0: SIGKILL, in a few words: why is in the interruption, or the job's own reason."""
    if attempt["ended_at"] is None:
        return "has not ended"
    first = attempt["first_failed"]
    if first is not None:
        code = f"exit code {first['exit_code']}" if first["exit_code"] is not None else "its end was not seen"
        said = ", ".join(filter(None, (first["signal"] or code, first["why"])))
        return f"rank {first['rank']} on {short_node(first['node'])}: {said}"
    codes = ", ".join(f"exit code {code} on {short_node(node)}" for node, code in attempt["exit_codes"].items())
    return codes or attempt["because"] or attempt["reason"]


def print_attempts(attempts: Sequence[dict[str, Any]]) -> None:
    """A line for each: when, where, how it ended; and what the last one that failed wrote last."""
    if not attempts:
        return
    click.echo(f"  {click.style(count(len(attempts), 'attempt'), dim=True)}")
    for one in attempts:
        times = f"{clock(one['started_at'] or one['began_at']) or 'when is not known'}"
        if one["ended_at"] is not None:
            times += f", {took(one['started_at'] or one['began_at'], one['ended_at']) or 'ended'}"
        where = some(one["names"], SHOWN) if one["nodes"] <= SHOWN else f"{one['nodes']} nodes"
        click.echo(clean(f"  {one['number']}: {times}, on {where}: {ended_how(one)}"))
    wrote = next((one for one in reversed(attempts) if one["last_lines"]), None)
    if wrote is not None:
        click.echo(click.style(f"  the last lines of attempt {wrote['number']}", dim=True))
        for line in wrote["last_lines"]:
            click.echo(f"    {clean(line)}")


class ProgressLine:
    """States, interruptions with their stages, and now and then a step, each told once."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._begin = clock()
        self._state, self._because, self._attempt = "", "", 0
        self._step: int | None = None
        self._step_at = clock()
        self._doing, self._doing_at = "", clock() - STEP_EVERY
        self._stages: set[tuple[int, str]] = set()

    def show(self, job: dict[str, Any]) -> None:
        self._interruptions(job)
        if job["state"] in OVER:  # how it ended is the last word
            self._steps(job)
            self._states(job)
        else:
            self._states(job)
            self._steps(job)

    def _tell(self, text: str) -> None:
        whole = int(self._clock() - self._begin)
        self._say(f"{whole // 3600:02d}:{whole % 3600 // 60:02d}:{whole % 60:02d}  {text}")

    def _interruptions(self, job: dict[str, Any]) -> None:
        for number, one in enumerate(job["interruptions"]):
            before = None
            for stage, at in reached(one):
                if (number, stage) not in self._stages:
                    self._stages.add((number, stage))
                    self._tell(self._stage(one, stage, (at - before).total_seconds() if before else None))
                before = at

    @staticmethod
    def _stage(one: dict[str, Any], stage: str, seconds: float | None) -> str:
        if stage == "detected":
            incidents = f" ({', '.join(one['incidents'])})" if one["incidents"] else ""
            return f"interrupted, attempt {one['attempt']}: {one['cause']}{incidents}"
        took = f" after {span(seconds)}" if seconds is not None else ""
        again = one.get("training_again_after")
        whole = f": training again after {again:.1f} s" if stage == "first_step" and again is not None else ""
        return f"  {stage}{took}{whole}"

    def _states(self, job: dict[str, Any]) -> None:
        state, because = job["state"], why(job)
        waits = state in {"QUEUED", "GATING"} or state in OVER
        if (state, job["attempt"]) != (self._state, self._attempt) or (waits and because != self._because):
            attempt = f", attempt {job['attempt']}" if job["attempt"] else ""
            where = f" on {', '.join(job['nodes'])}" if state == "RUNNING" and job["nodes"] else ""
            reason = f": {because}" if because and state != "RUNNING" else ""
            self._tell(f"{state}{attempt}{where}{reason}")
        self._state, self._because, self._attempt = state, because, job["attempt"]

    def _steps(self, job: dict[str, Any]) -> None:
        now = self._clock()
        doing = job.get("doing", "")
        if doing and doing != self._doing and now - self._doing_at >= STEP_EVERY:
            self._tell(f"  {doing}")
            self._doing, self._doing_at = doing, now
        step = job["step"]
        if step is None or step == self._step or now - self._step_at < STEP_EVERY:
            return
        self._tell(f"  step {step}")
        self._step, self._step_at = step, now
