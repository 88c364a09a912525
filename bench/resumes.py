"""How long a training job stands still when a GPU breaks under it, on real processes."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.up_rig import Sickbay

from bench.figure import Figure, Line, Size, in_words
from bench.local import LADDER, OPEN, kernel_log, until, up, wall
from bench.rig import busy

GOAL = 1.0
STAGES = ("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")
EVERY = 5  # steps between two checkpoints
TRAINED = 2 * EVERY  # steps of an attempt before the next fault: there is something to go back to
GANG = 2  # nodes of the job

# Rank 0 notes when its first step of each attempt was done; nobody else's clock is asked.
SCRIPT = """
import json, os, sys, time
from pathlib import Path
from sickbay import train

checkpoints = train.Checkpoints()
step = json.loads(checkpoints.load(rank=0)) if checkpoints.resumed is not None else 0
notes, first = Path(sys.argv[1]), checkpoints.rank == 0
while True:
    step += 1
    time.sleep(0.02)
    train.heartbeat(step, loss=1 / step)
    if first:
        note = notes / f".{checkpoints.attempt}"
        note.write_text(repr(time.time()))
        note.rename(notes / str(checkpoints.attempt))
        first = False
    if step % int(sys.argv[2]) == 0:
        checkpoints.save(step, json.dumps(step).encode())
"""


@dataclass(frozen=True, slots=True)
class Outage:
    """Seconds after the fault."""

    trained: float  # the first new step was done
    own: float  # of these: from the start of rank 0's process to that step
    stages: dict[str, float]

    @property
    def ours(self) -> float:
        return self.trained - self.own


def measure(nodes: int, rounds: int) -> list[Outage]:
    """One job on two nodes; a GPU under it falls off the bus, again and again."""
    with up(nodes, OPEN + LADDER) as rig:
        notes = rig.state / "notes"
        notes.mkdir()
        job = rig.submit(sys.executable, "-c", SCRIPT, str(notes), str(EVERY), nodes=GANG)
        return [_outage(rig, job, notes, number) for number in range(1, rounds + 1)]


def _outage(rig: Sickbay, job: str, notes: Path, number: int) -> Outage:
    before = _at_work(rig, job)
    attempt: int = before["attempt"]
    sick = sorted(before["nodes"])[number % GANG]  # now the node of rank 0, now the other
    fault = _break(rig, sick)
    note = notes / str(attempt + 1)
    until(note.exists, rig, f"{job} trains again")
    trained = float(note.read_text())
    rig.until(lambda: rig.job(job)["interruptions"][-1]["stages"]["first_step"], 30, "the first step is known")
    told = rig.job(job)
    (lost,) = [one for one in told["interruptions"] if one["attempt"] == attempt]
    stages = {name: wall(at) - fault for name, at in lost["stages"].items() if at is not None}
    return Outage(trained - fault, trained - _began(rig, told), stages)


def _at_work(rig: Sickbay, job: str) -> dict[str, Any]:
    """The job, once all nodes are well and it has trained for a while since its last interruption."""
    rig.ready()
    rig.until(lambda: rig.job(job)["step"], 30, "it trains")
    begun: int = rig.job(job)["step"]
    return rig.reaches(job, begun + TRAINED)


def _break(rig: Sickbay, node: str) -> float:
    """The moment of the symptom: when its line was in the kernel log."""
    log = kernel_log(rig, node)
    size = log.stat().st_size if log.exists() else 0
    rig.inject(node, xid=79, cured_by="reboot")
    until(lambda: log.exists() and log.stat().st_size > size, rig, "the symptom shows")
    return min(log.stat().st_mtime, time.time())


def _began(rig: Sickbay, job: dict[str, Any]) -> float:
    """When the supervisor started the process of rank 0."""
    ranks = [rank for node in job["nodes"] for rank in rig.ranks(node, job["id"])]
    return next(rank.began_at for rank in ranks if rank.rank == 0 and rank.attempt == job["attempt"])


def _lines(name: str, outages: Sequence[Outage], goal: float | None) -> list[Line]:
    ours = median(one.ours for one in outages)
    lines = [
        Line(f"{name}: fault → first new step", in_words(median(one.trained for one in outages))),
        Line(f"{name}: of these the job's own start", in_words(median(one.own for one in outages))),
        Line(f"{name}: without it", in_words(ours), f"≤ {goal:g} s" if goal else "", ours <= goal if goal else None),
        Line(f"{name}: without it, the longest", in_words(max(one.ours for one in outages))),
    ]
    last = 0.0
    for stage in STAGES:
        at = [one.stages[stage] for one in outages if stage in one.stages]
        if at:
            lines.append(Line(f"{name}: {stage}", f"{in_words(median(at))} ({median(at) - last:+.3f} s)"))
            last = median(at)
    return lines


def run(size: Size) -> Figure:
    rounds = size.pick(full=12, quick=2, tiny=1)
    then = busy()
    spare, none = measure(GANG + 2, rounds), measure(GANG, rounds)
    return Figure(
        title="Fault → first new training step, on real processes",
        about=(
            "A job on two nodes of the local cluster, each with its agent; a GPU falls off the bus (Xid 79, cured by a"
            " reboot) under one of its ranks. The clock runs from the line in the node's kernel log to the end of the"
            " new attempt's first step, by the job's own clock. The job's own start is what lies between the start of"
            " rank 0's new process and that step: the interpreter, its imports, the checkpoint. Every attempt is gated"
            " by a check of its nodes."
        ),
        lines=(*_lines("a warm spare", spare, GOAL), *_lines("no spare", none, None)),
        notes=(
            then,
            f"Medians of {rounds} faults each; stages are seconds after the fault (and after the stage before).",
            f"{GANG + 2} nodes with a spare, {GANG} without.",
            "Without a spare the job waits until its node was rebooted (1 s here), checked at level 2 and released.",
            "The default policy, but without limits, brakes and strikes: here every round is a fault of the same code.",
        ),
    )
