"""What it costs that a directory holds many checkpoints: to find the newest, to begin, to save one more."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.figure import Figure, Line, Size, in_words
from sickbay import train
from sickbay.train import disk, layout

GOAL = 10.0  # times what it costs to list the directory and look at each manifest's size


def fill(where: Path, steps: int) -> None:
    """Checkpoints as a training would leave them, but for the syncs."""
    first = train.Checkpoints(where, attempt=1, rank=0, world_size=1, keep=None)
    content = os.urandom(1024)
    run = layout.read_fence(where, 1)
    for step in range(1, steps + 1):
        place = layout.CheckpointName(first.attempt, step)
        directory = layout.step_path(where, place)
        directory.mkdir()
        shard = layout.shard_name(0)
        (directory / shard).write_bytes(content)
        files = {shard: disk.measure(directory / shard)}
        layout.create_manifest(where, layout.Manifest(place, 1, files, {0: "bytes"}, run.run if run else ""))


def timed(act: Callable[[], Any]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def look_at_each(where: Path) -> int:
    return sum((path / "manifest.json").stat().st_size for path in (where / "attempt-1").glob("step-*"))


def measure(steps: int, rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {}

    def note(name: str, act: Callable[[], Any]) -> None:
        taken.setdefault(name, []).append(timed(act))

    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
            where = Path(directory)
            fill(where, steps)
            note("each looked at", lambda at=where: look_at_each(at))  # type: ignore[misc]
            note("latest_valid", lambda at=where: train.latest_valid(at))  # type: ignore[misc]
            start = time.perf_counter()
            checkpoints = train.Checkpoints(where, attempt=2, rank=0, world_size=1, keep=None)
            checkpoints.load()
            taken.setdefault("begin and load", []).append(time.perf_counter() - start)
            start = time.perf_counter()
            checkpoints.save(steps + 1, b"x")
            checkpoints.wait()
            taken.setdefault("one more save", []).append(time.perf_counter() - start)
    return {name: median(values) for name, values in taken.items()}


def run(size: Size) -> Figure:
    steps, rounds = size.pick(full=10_000, quick=2_000, tiny=20), size.pick(full=3, quick=2, tiny=1)
    found = measure(steps, rounds)
    looked = found.pop("each looked at")
    lines = [Line("each of them listed and looked at once", in_words(looked))]
    for name, cost in found.items():
        ratio = cost / looked
        lines.append(Line(f"{name} (÷ that)", f"{in_words(cost)} ({ratio:.2f})", f"≤ {GOAL:g}", ratio <= GOAL))
    return Figure(
        title=f"A directory with {steps:,} checkpoints",
        about=(
            "Checkpoints of 1 KiB of one attempt, all kept (`keep=None`): finding the newest whole one, beginning an"
            " attempt that goes on from it, and one more save, beside a look at the size of each manifest."
        ),
        lines=tuple(lines),
        notes=(f"Medians of {rounds} directories, each read from memory as it was just written.",),
    )
