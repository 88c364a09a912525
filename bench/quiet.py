"""What a round costs when nothing is due: it must not follow the size of the fleet."""

import time
from statistics import median

from bench.figure import Figure, Line, Size, in_words
from bench.rig import Bench, store_of

GOAL = 1.5


def measure(kind: str, nodes: int, rounds: int) -> float:
    """Seconds of the median quiet round over a fleet that the engine has learned."""
    with store_of(kind) as store:
        bench = Bench.over(store)
        bench.populate(nodes)
        taken = []
        for _ in range(rounds):
            start = time.perf_counter()
            done = bench.engine.round()
            taken.append(time.perf_counter() - start)
            if done:
                raise RuntimeError(f"a round over {nodes} nodes at rest did {done} things")
    return median(taken)


def run(size: Size) -> Figure:
    nodes = size.pick(full=1_000, quick=200, tiny=10)
    fleets = [nodes * 10**power for power in range(3)]
    rounds = size.pick(full=2_000, quick=500, tiny=5)
    lines = []
    for kind in ("memory", "sqlite"):
        costs = [measure(kind, fleet, rounds) for fleet in fleets]
        lines += [Line(f"{kind}, {fleet:,} nodes", in_words(cost)) for fleet, cost in zip(fleets, costs, strict=True)]
        ratio = costs[-1] / costs[0]
        what = f"{kind}: {fleets[-1]:,} ÷ {fleets[0]:,} nodes"
        lines.append(Line(what, f"{ratio:.2f}", f"near 1 (≤ {GOAL})", ratio <= GOAL))
    return Figure(
        title="A round with nothing due",
        about=(
            "The engine has learned every node from the facts of a first connection, and has heard every agent."
            " Then: the median round in which nothing is new and nothing is due."
        ),
        lines=tuple(lines),
    )
