"""What a large fleet takes in memory."""

import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.figure import Figure, Line, Size
from bench.rig import Bench, store_of, xid

GOAL = 1024.0
MIB = 1024.0 * 1024.0
STEP = 2_000


def resident() -> float:
    """MiB that this process holds now; where the system does not say, the most it has held."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text(encoding="ascii").split()[1]) * resource.getpagesize() / MIB
    unit = 1.0 if sys.platform == "darwin" else 1024.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB


def measure(kind: str, nodes: int) -> float:
    """MiB by which this process grows at most over a fleet, one node in a hundred of which has an open incident."""
    with store_of(kind) as store:
        bench = Bench.over(store)
        before = peak = resident()
        for upto in range(STEP, nodes + STEP, STEP):
            bench.populate(min(upto, nodes))
            peak = max(peak, resident())
        bench.learn([xid(number, 79, number, at=bench.clock.wall()) for number in range(0, nodes, 100)])
        return max(peak, resident()) - before


def alone(kind: str, nodes: int) -> float:
    """The same in a process of its own: what other figures left behind must not count."""
    code = f"from bench.memory import measure; print(measure({kind!r}, {nodes}))"
    root = Path(__file__).resolve().parent.parent
    told = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return float(told.stdout)


def run(size: Size) -> Figure:
    nodes = size.pick(full=100_000, quick=10_000, tiny=200)
    start = time.perf_counter()
    sqlite, memory = alone("sqlite", nodes), alone("memory", nodes)
    return Figure(
        title=f"Memory at {nodes:,} nodes",
        about=(
            "The most by which a process grows (resident memory) from an empty engine until it has learned and planned"
            " every node: eight GPUs each, one in a hundred with an open incident."
        ),
        lines=(
            Line("engine over SQLite", f"{sqlite:,.0f} MiB", f"≤ {GOAL:,.0f} MiB", sqlite <= GOAL),
            Line("engine and store in memory, facts and story included", f"{memory:,.0f} MiB", f"≤ {GOAL:,.0f} MiB",
                 memory <= GOAL),
        ),
        notes=(f"Both fleets were learned in {time.perf_counter() - start:.0f} s.",),
    )  # fmt: skip
