"""What a save adds to a step and what a resume costs as the state grows, beside torch's own ways."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from bench.checkpoint_ways import Cost, ways
from bench.figure import Figure, Line, Size, in_words

GOAL = 0.5  # of what torch.save, or a plain write, holds the step up
GROWTH = 1.5  # per GB, at the largest size against the smallest: more would be worse than in proportion
SIZES = (1.0, 4.0, 16.0, 64.0)  # GB
ALL_ROUNDS = 4.0  # GB up to which each way has all its turns, and saves twice in each; above, one
COPIES = 3.5  # in memory: the state, what is staged, what a resume reads
FREE = 16e9  # bytes of memory, where nobody tells how much there is
ROOT = Path(__file__).resolve().parent.parent
HOW = (
    "The state is on the host. The first save of a process finds no memory of an earlier one. `torch.save` is not"
    " synced in the step; what syncing takes is in the time until it is on the disk. Before a resume the files are"
    " dropped from memory as far as the system does that. sickbay verifies every byte, the others none."
)
EXTRAPOLATED = (
    "What is extrapolated is the share of one rank by what was measured per GB, as if every rank had a disk like this"
    " one to itself: what many ranks do to one disk or network is not in it."
)
Costs = dict[str, dict[float, Cost]]  # by way and GB


def turn(
    names: Sequence[str], gb: float, where: Path, *, twice: bool, device: str = "cpu", limit: float | None = None
) -> dict[str, Cost]:
    """Each of these ways once (one way, if not `twice`), in a new process: memory of the one before is gone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    asked = {"ways": names, "gb": gb, "where": str(where), "twice": twice, "device": device, "port": port}
    where.mkdir()
    os.sync()  # else this turn writes what the one before has left
    command = [sys.executable, "-m", "bench.checkpoint_ways", json.dumps(asked)]
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit)
    finally:
        shutil.rmtree(where)
    if ran.returncode:
        raise RuntimeError(f"{', '.join(names)} at {gb:g} GB ended with {ran.returncode}: {ran.stderr[-2000:]}")
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    return {one.pop("way"): Cost(**one) for one in found}


def room(where: Path, *, in_memory: float = COPIES) -> tuple[float, float]:
    """GB that fit into memory and onto the disk."""
    told = Path("/proc/meminfo").read_text().split() if Path("/proc/meminfo").exists() else []
    free = float(told[told.index("MemAvailable:") + 1]) * 1024 if "MemAvailable:" in told else FREE
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (most := limit.read_text().strip()).isdigit():
        free = min(free, float(most))
    return free / in_memory / 1e9, shutil.disk_usage(where).free * 0.9 / 1e9


def measure(sizes: Iterable[float], rounds: int, where: Path) -> Costs:
    """The ways take turns, and another one begins each time: a busy moment of the machine hits all of them."""
    names = list(ways())
    taken: dict[str, dict[float, list[Cost]]] = {name: {} for name in names}
    for gb in sizes:
        for number in range(rounds if gb <= ALL_ROUNDS else 1):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                (cost,) = turn([name], gb, where / "turn", twice=gb <= ALL_ROUNDS).values()
                taken[name].setdefault(gb, []).append(cost)
    return {name: {gb: middle(costs) for gb, costs in by_size.items()} for name, by_size in taken.items()}


def middle(costs: Sequence[Cost]) -> Cost:
    """Each figure's median."""
    resumes = [cost.resume for cost in costs if cost.resume is not None]
    first, wait, durable = (median(getattr(cost, name) for cost in costs) for name in ("first", "wait", "durable"))
    return Cost(first, wait, durable, median(resumes) if resumes else None)


def slope(points: dict[float, float]) -> float:
    """Seconds per GB: least squares through the origin, so that the largest sizes count most."""
    return sum(gb * seconds for gb, seconds in points.items()) / sum(gb * gb for gb in points)


def per_gb(costs: dict[float, Cost]) -> Cost:
    def over(name: str) -> float | None:
        known = {gb: value for gb, cost in costs.items() if (value := getattr(cost, name)) is not None}
        return slope(known) if known else None

    return Cost(over("first") or 0.0, over("wait") or 0.0, over("durable") or 0.0, over("resume"))


def scaled(cost: Cost, gb: float) -> Cost:
    resume = None if cost.resume is None else cost.resume * gb
    return Cost(cost.first * gb, cost.wait * gb, cost.durable * gb, resume)


def told(cost: Cost) -> str:
    resume = "" if cost.resume is None else f", {in_words(cost.resume)} to resume"
    first, wait, durable = map(in_words, (cost.first, cost.wait, cost.durable))
    return f"{wait} a step waits ({first} the first time), {durable} until it is on the disk{resume}"


def lines_of(costs: Costs) -> list[Line]:
    sizes = sorted({gb for by_size in costs.values() for gb in by_size})
    lines = [
        Line(f"{gb:g} GB, {name}", told(by_size[gb]))
        for gb in sizes
        for name, by_size in costs.items()
        if gb in by_size
    ]
    lines += [Line(f"per GB, {name}", told(per_gb(by_size))) for name, by_size in costs.items() if by_size]
    largest = max(gb for gb in sizes if gb in costs["sickbay"])
    lines += list(ratios(costs, largest))
    growth = costs["sickbay"][largest].wait / largest / (costs["sickbay"][sizes[0]].wait / sizes[0])
    lines.append(
        Line(
            f"sickbay, a step waits per GB: at {largest:g} GB ÷ at {sizes[0]:g} GB",
            f"{growth:.2f}",
            f"≤ {GROWTH}",
            growth <= GROWTH,
        )
    )
    return lines + list(extrapolated(costs))


def ratios(costs: Costs, gb: float) -> Iterable[Line]:
    pairs = [("sickbay", other) for other in costs if other not in {"sickbay", "sickbay DCP"}]
    pairs += [("sickbay DCP", other) for other in costs if other.startswith("dcp")]
    for ours, other in pairs:
        if not (gb in costs.get(ours, {}) and gb in costs[other]):
            continue
        mine, theirs = costs[ours][gb], costs[other][gb]
        ratio = mine.wait / theirs.wait
        goal = (f"≤ {GOAL}", ratio <= GOAL) if ours == "sickbay" and other in {"torch.save", "plain"} else ("", None)
        yield Line(f"{ours} ÷ {other}, a step waits, {gb:g} GB", f"{ratio:.2f}", *goal)
        yield Line(f"{ours} ÷ {other}, until it is on the disk, {gb:g} GB", f"{mine.durable / theirs.durable:.2f}")
        if mine.resume is not None and theirs.resume is not None:
            yield Line(f"{ours} ÷ {other}, resume, {gb:g} GB", f"{mine.resume / theirs.resume:.2f}")


def extrapolated(costs: Costs) -> Iterable[Line]:
    """In proportion to the share of a rank: nothing of what many ranks do to one disk is in it."""
    for ranks in (8, 64, 512):
        for name in ("sickbay", "sickbay DCP"):
            if costs.get(name):
                share = scaled(per_gb(costs[name]), 1000 / ranks)
                yield Line(f"extrapolated, not measured: 1 TB over {ranks} ranks, {name}", told(share))


def run(size: Size) -> Figure:
    wanted = {"full": SIZES, "quick": (0.1, 0.4), "tiny": (0.001, 0.002)}[size.name]
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        memory, disk = room(Path(directory))
        sizes = [gb for gb in wanted if gb <= min(memory, disk)] or [wanted[0]]
        costs = measure(sizes, size.pick(full=3, quick=2, tiny=1), Path(directory))
    left_out = [f"{gb:g}" for gb in wanted if gb not in sizes]
    notes = [HOW, EXTRAPOLATED]
    if left_out:
        notes.append(
            f"{' and '.join(left_out)} GB were left out: this machine has room for {memory:.1f} GB ({COPIES:g} times"
            f" that in memory) and for {disk:.0f} GB on its disk."
        )
    if "plain" in costs:
        notes.append("torch's own ways were not measured: torch is not installed here. `plain` is a write, and fsync.")
    return Figure(
        title=f"Checkpoints of {', '.join(f'{gb:g}' for gb in sizes)} GB",
        about=(
            "One rank saves a state and resumes from it, each way in a process of its own, the ways in turn on one"
            " disk; medians. What holds a step up, what it takes until the checkpoint is on the disk (for sickbay:"
            " hashed, synced, committed), and what it takes to have it in memory again."
        ),
        lines=tuple(lines_of(costs)),
        notes=tuple(notes),
    )
