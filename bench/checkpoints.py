"""What a checkpoint costs the training that it interrupts."""

import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from bench.figure import Figure, Line, Size, in_words
from sickbay import train

GOAL = 0.5
STEP = 0.025  # seconds; short ones make the most of every delay
BEAT_GOAL = 50e-6
MIB = 1024 * 1024

BEATS = """
import sys, time
from statistics import median
from sickbay import train

def once(step):
    start = time.perf_counter()
    train.heartbeat(step, 0.5)
    return time.perf_counter() - start

print(median(once(step) for step in range(int(sys.argv[1]))))
"""

Save = Callable[[int], None]


class Loop:
    """A step waits, as the host does while a GPU computes; then the state has changed."""

    def __init__(self, octets: int, steps: int, every: int) -> None:
        self.state = array("d", bytes(octets))
        self.steps, self.every = steps, every

    def run(self, save: Save | None) -> float:
        """Seconds per step. What is still being written at the end of the loop is waited for outside."""
        start = time.perf_counter()
        for step in range(1, self.steps + 1):
            time.sleep(STEP)
            self.state[step] = step
            if save is not None and step % self.every == 0:
                save(step)
        return (time.perf_counter() - start) / self.steps


def plain(loop: Loop, path: Path) -> Save:
    """What a careful script does by hand: write aside, fsync, rename."""

    def save(step: int) -> None:
        aside = path.with_suffix(".aside")
        with aside.open("wb") as file:
            file.write(loop.state)
            file.flush()
            os.fsync(file.fileno())
        aside.rename(path.with_suffix(f".{step % 3}"))

    return save


def torch_save(loop: Loop, path: Path) -> Save | None:
    """None: there is no torch here."""
    if find_spec("torch") is None:
        return None
    torch: Any = import_module("torch")
    tensor = torch.frombuffer(loop.state, dtype=torch.float64)
    return lambda step: torch.save({"step": step, "weights": tensor}, path.with_suffix(f".{step % 3}"))


def measure(loop: Loop, rounds: int, where: Path) -> dict[str, float]:
    """Seconds per step; the ways take turns, so that a busy moment of the machine hits all of them."""
    taken: dict[str, list[float]] = {}
    for number in range(1, rounds + 1):
        with train.Checkpoints(where / "sickbay", attempt=number, rank=0, world_size=1) as checkpoints:
            ways: dict[str, Save | None] = {
                "none": None,
                "sickbay": lambda step, to=checkpoints: to.save(step, {"weights": loop.state}),  # type: ignore[misc]
                "plain": plain(loop, where / "plain"),
            }
            if (with_torch := torch_save(loop, where / "torch")) is not None:
                ways["torch.save"] = with_torch
            for name, save in ways.items():
                taken.setdefault(name, []).append(loop.run(save))
                checkpoints.wait()
    return {name: median(values) for name, values in taken.items()}


def beat(times: int) -> float:
    """Seconds of the median heartbeat, in a process whose environment asks for one."""
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        environment = {**os.environ, "SICKBAY_HEARTBEAT": str(Path(directory) / "heartbeat.json")}
        command = [sys.executable, "-c", BEATS, str(times)]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(told.stdout)


def run(size: Size) -> Figure:
    octets = size.pick(full=64 * MIB, quick=16 * MIB, tiny=MIB)
    loop = Loop(octets, steps=size.pick(full=100, quick=40, tiny=4), every=size.pick(full=10, quick=10, tiny=2))
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        costs = measure(loop, size.pick(full=5, quick=3, tiny=1), Path(directory))
    bare = costs.pop("none")
    added = {name: max(cost - bare, 0.0) * loop.every for name, cost in costs.items()}
    heartbeat = beat(size.pick(full=20_000, quick=5_000, tiny=50))
    lines = [Line("a step without checkpoints", in_words(bare))]
    lines += [
        Line(f"{name}: a checkpoint adds", f"{in_words(added[name])} ({(cost / bare - 1):+.1%} per step)")
        for name, cost in costs.items()
    ]
    for other in [name for name in added if name != "sickbay"]:
        ratio = added["sickbay"] / added[other] if added[other] else float("inf")
        lines.append(Line(f"sickbay ÷ {other}, added time", f"{ratio:.2f}", f"≤ {GOAL}", ratio <= GOAL))
    lines.append(Line("a heartbeat, median", in_words(heartbeat), f"≤ {in_words(BEAT_GOAL)}", heartbeat <= BEAT_GOAL))
    return Figure(
        title=f"Checkpoints of {octets // MIB} MiB, every {loop.every} steps",
        about=(
            f"A loop whose steps wait {in_words(STEP)}, as a host waits for its GPU: without checkpoints, with"
            " `train.Checkpoints.save` (copied at once; checksum, write and fsync in the background), and with a plain"
            " write, fsync and rename in the step itself. The ways take turns on one disk; the median round counts."
        ),
        lines=tuple(lines),
        notes=() if "torch.save" in costs else ("`torch.save` was not measured: torch is not installed here.",),
    )
