"""What `sickbay up --demo` and `sickbay demo` show: a job trains, a GPU breaks under it, and it trains again."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime

import click
from msgspec.structs import replace

from sickbay.faces.archive import Archive
from sickbay.faces.cli.columns import figures
from sickbay.faces.cli.show import SMALL, heading, span, story_line
from sickbay.faces.story import tell
from sickbay.hosts.backend import Backend
from sickbay.model.fleet import NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.rows import Line, kind_of
from sickbay.ports.breakable import Breakage
from sickbay.sim.report import incident_seconds, interruption_seconds, training_again

AS_USUAL = frozenset({"opened", "quarantine", "empty", "verify"})  # what every newcomer goes through
READY_WITHIN, HEALED_WITHIN = 60.0, 180.0
WIDTH = 14  # of a name: demo-1a2b3c4d and the like
SILENT_MOST = 2.0  # seconds; then it says how far things are
BREAK_AT = 25  # the step: two checkpoints are written by then
MEANINGS = {
    "detected": "the first symptom",
    "stopped": "all ranks gone",
    "diagnosed": "its nodes looked at, the cause named",
    "placed": "nodes claimed for the next attempt",
    "gated": "those nodes passed their check",
    "started": "all ranks seen running",
    "first_step": "the first new training step",
}


class Ticker:
    """Prints what happens, line by line, as it is committed."""

    def __init__(self, backend: Backend, *, everything: bool = False) -> None:
        self._changes = backend.changes
        self._store = backend.store
        self._seen = backend.changes.seq
        self._everything = everything

    def print(self) -> bool:
        """Whether there was anything to tell."""
        news = self._changes.since(self._seen)
        self._seen = self._changes.seq if news is None else news[-1].seq if news else self._seen
        lines = [change.line for change in news or () if change.line is not None]
        told = tell([self._welcomed(line) for line in lines if self._everything or not self._small(line)])
        shown = [one for one in told if one.about.partition(":")[0] in {"node", "job", "incident", "brake"}]
        for one in shown:
            click.echo(story_line(local(one.at), one, WIDTH))
        return bool(shown)

    def _small(self, line: Line) -> bool:
        return line.event in SMALL or (line.event in AS_USUAL and self._intake(line))

    def _welcomed(self, line: Line) -> Line:
        """A newcomer's intake is told of the node: its incident is nothing that a person would look up."""
        nodes = [subject for subject in line.subjects if kind_of(subject) == "node"]
        if not nodes or not self._intake(line):
            return line
        text = "new here: checked, and fit for work" if line.event == "release" else line.text
        return replace(line, subjects=(nodes[0], *line.subjects), text=text)

    def _intake(self, line: Line) -> bool:
        about = line.subjects[0] if line.subjects else ""
        row = self._store.load([about])[about].row
        return isinstance(row, Incident) and row.kind is IncidentKind.INTAKE


def local(at: datetime) -> str:
    return at.astimezone().strftime("%H:%M:%S.%f")[:-4]


class Showcase:
    def __init__(self, backend: Backend, *, steps: int) -> None:
        self._backend = backend
        self._steps = steps
        self._ticker = Ticker(backend)
        self.job: Job | None = None
        self._spoke = time.monotonic()

    def run(self, *, to_the_end: bool) -> bool:
        """Whether everything healed. `to_the_end`: the job completes, too."""
        if not self._until(self._nodes_ready, READY_WITHIN):
            click.echo("the nodes did not come up in time: 'sickbay nodes' says why", err=True)
            return False
        job = self._backend.submit(self._spec(), f"demo-{time.time_ns()}")
        self.job = job
        self._say(f"job {job.id} is submitted: 2 nodes, a checkpoint every 10 steps")
        if not self._until(lambda: (self._now(job).step or 0) >= BREAK_AT, READY_WITHIN):
            click.echo("the job did not begin to train: 'sickbay jobs' says why", err=True)
            return False
        sick = self._break(self._now(job))
        healed = self._until(lambda: self._healed(self._now(job), sick), HEALED_WITHIN)
        if healed and to_the_end:
            healed = self._until(lambda: not self._now(job).open, HEALED_WITHIN)
            healed = healed and self._now(job).state == "COMPLETE"
        self.job = self._now(job)
        self._sum_up(self.job, sick)
        return healed

    def _spec(self) -> JobSpec:
        command = (sys.executable, "-m", "sickbay.train.sample", "--steps", str(self._steps))
        env = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # as we were started
        return JobSpec(name="demo", cluster="local", pool="default", nodes=2, command=command, env=env)

    def _break(self, job: Job) -> NodeId:
        sick = max(job.claim)
        click.echo()
        self._say(f"now GPU 0 of {sick} falls off the bus at step {job.step} (Xid 79; only a reboot cures it)")
        if self._backend.breakable is not None:
            self._backend.breakable.inject(sick, Breakage(xid=79, cured_by="reboot"))
        return sick

    # --- what is so
    def _archive(self) -> Archive:
        return Archive(self._backend.store, self._backend.policies)

    def _nodes_ready(self) -> bool:
        nodes = self._archive().nodes()
        return bool(nodes) and all(node.claimable for node in nodes)

    def _now(self, job: Job) -> Job:
        return self._archive().job(job.id) or job

    def _incidents(self, job: Job) -> Iterator[Incident]:
        for name in dict.fromkeys(i for lost in job.interruptions for i in lost.incidents):
            if (incident := self._archive().incident(name)) is not None:
                yield incident

    def _healed(self, job: Job, sick: NodeId) -> bool:
        lost = job.interruptions[-1] if job.interruptions else None
        if lost is None or "first_step" not in lost.stages:
            return False
        return any(i.node == sick and i.phase is Phase.RELEASED for i in self._incidents(job))

    # --- telling it
    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            if self._ticker.print():
                self._spoke = now
            elif now - self._spoke >= SILENT_MOST:
                self._spoke = now
                self._say_step()
            if condition():
                self._ticker.print()
                return True
            self._backend.changes.wait(condition, 0.1)
        return False

    def _say_step(self) -> None:
        """Where nothing happens but training, or somebody waits: how far it is, or what for."""
        job = self._now(self.job) if self.job is not None else None
        if job is None:
            text = "waiting for the nodes: each is checked before it gets work"
        elif job.state is JobState.RUNNING and job.step is not None:
            text = f"{job.id} trains: step {job.step} of {self._steps}"
        else:
            text = f"{job.id} is {job.state}{f': {job.wait.because}' if job.wait is not None else ''}"
        click.echo(f"{click.style(local(self._backend.now()), dim=True)}  {text}")

    def _say(self, text: str) -> None:
        click.echo(f"{click.style(local(self._backend.now()), dim=True)}  {click.style(text, bold=True)}")

    def _sum_up(self, job: Job, sick: NodeId) -> None:
        for lost in job.interruptions:
            heading(f"The job's interruption (attempt {lost.attempt}: {lost.cause})")
            for name, took in interruption_seconds(lost).items():
                click.echo(f"  {name:<10}  {span(took):>9}  {click.style(MEANINGS[name], dim=True)}")
        for incident in self._incidents(job):
            heading(f"The node's incident ({incident.id}, {incident.node}, {incident.fault.code})")
            figures(("phase", "took"), [(phase, span(took)) for phase, took in incident_seconds(incident).items()])
        click.echo()
        again = [seconds for lost in job.interruptions if (seconds := training_again(lost)) is not None]
        for seconds in again:
            resumed = f", resumed from step {job.resumed_from}" if job.resumed_from is not None else ""
            click.echo(click.style(f"training again after {seconds:.1f} s{resumed}", bold=True, fg="green"))
        if not again:
            click.echo(
                click.style(f"not training again: {job.state}, {job.diagnosis or 'see sickbay explain'}", fg="red")
            )
        for incident in self._incidents(job):
            if incident.node == sick:
                whole = (incident.closed_at - incident.opened_at).total_seconds() if incident.closed_at else None
                click.echo(f"{incident.node}: {incident.phase} after {span(whole)}; job {job.id}: {job.state}")
