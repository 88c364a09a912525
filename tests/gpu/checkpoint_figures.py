"""What a save adds to a step and what a resume costs, with a state on a GPU, by size: sickbay beside torch's own ways.

python -m tests.gpu.checkpoint_figures DIRECTORY GB … [--limit S] [--out DIR] [--way NAME …] [--device cpu]

Small sizes first. A size or way for which the time, the disk or the memory does not last is left out, and told. Nothing
is on the disk twice: each save is removed before the next. Results, after each turn: figures.json and figures.md.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from subprocess import TimeoutExpired

from bench.checkpoint_sizes import ALL_ROUNDS, COPIES, EXTRAPOLATED, Costs, per_gb, room, scaled, turn
from bench.checkpoint_ways import ways

START = 20.0  # seconds that a process takes until it has torch, a GPU and a state
CAREFUL = 1.3  # times what the sizes before it took per GB
ROWS = {
    "wait": "a step waits",
    "first": "a step waits, the first time",
    "durable": "on the disk after",
    "resume": "resume",
}


class Measured:
    """What has been measured so far, and what not and why."""

    def __init__(self, names: Sequence[str], limit: float) -> None:
        self.costs: Costs = {name: {} for name in names}
        self.left_out: list[str] = []
        self.end = time.monotonic() + limit

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def seconds(self, names: Sequence[str], gb: float) -> float:
        """What these will take, as far as the sizes before say; a way that has none is as slow as the slowest."""
        each = {name: per_gb(costs) for name, costs in self.costs.items() if costs}
        times = 2 if gb <= ALL_ROUNDS else 1
        took = {name: times * cost.durable + cost.wait + (cost.resume or cost.durable) for name, cost in each.items()}
        return START + CAREFUL * gb * sum(took.get(name, max(took.values(), default=0.0)) for name in names)

    def why_not(self, names: Sequence[str], gb: float, where: Path, device: str) -> str | None:
        memory, disk = room(where, in_memory=2.5 if device == "cuda" else COPIES)
        if gb > disk:
            return f"the disk has room for {disk:.0f} GB"
        if gb > memory:
            return f"the memory has room for {memory:.0f} GB"
        needed = self.seconds(names, gb)
        return None if needed <= self.left else f"about {needed:.0f} s, and {self.left:.0f} s were left"

    def turn(self, names: Sequence[str], gb: float, where: Path, device: str) -> None:
        why = self.why_not(names, gb, where, device)
        if why is None:
            try:
                found = turn(names, gb, where / "turn", twice=gb <= ALL_ROUNDS, device=device, limit=self.left)
            except (RuntimeError, TimeoutExpired) as error:
                why = str(error)
            else:
                for name, cost in found.items():
                    self.costs[name][gb] = cost
                    print(json.dumps({"gb": gb, "way": name, **cost._asdict()}), flush=True)
        if why is not None:
            self.left_out.append(f"{gb:g} GB, {', '.join(names)}: {why}")


def table(measured: Measured) -> Iterator[str]:
    """Markdown."""
    sizes = sorted({gb for costs in measured.costs.values() for gb in costs})
    yield "| seconds | " + " | ".join(f"{gb:g} GB" for gb in sizes) + " | per GB | 1 TB over 64 ranks (extrapolated) |"
    yield "|---|" + "---|" * (len(sizes) + 2)
    for name, costs in measured.costs.items():
        if not costs:
            continue
        columns = [costs.get(gb) for gb in sizes] + [each := per_gb(costs), scaled(each, 1000 / 64)]
        for field, words in ROWS.items():
            cells = [None if one is None else getattr(one, field) for one in columns]
            if any(cell is not None for cell in cells):
                yield f"| {name}: {words} | " + " | ".join("" if c is None else f"{c:.3g}" for c in cells) + " |"
    yield ""
    yield EXTRAPOLATED
    for why in measured.left_out:
        yield f"Left out: {why}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="on the disk that is measured")
    parser.add_argument("sizes", type=float, nargs="+", metavar="GB")
    parser.add_argument("--limit", type=float, default=450.0, help="seconds in all")
    parser.add_argument("--out", type=Path, default=Path(), help="where figures.json and figures.md are written")
    parser.add_argument("--way", action="append", choices=list(ways()), help="default: all")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    asked = parser.parse_args()
    asked.directory.mkdir(parents=True, exist_ok=True)
    measured = Measured(asked.way or list(ways()), asked.limit)
    for gb in sorted(asked.sizes):
        names = list(measured.costs)
        for some in [names] if gb <= ALL_ROUNDS else [[name] for name in names]:  # small ones share a process
            measured.turn(some, gb, asked.directory, asked.device)
            write(measured, asked.out, asked.device)
    print((asked.out / "figures.md").read_text(), flush=True)


def write(measured: Measured, out: Path, device: str) -> None:
    told = {name: {f"{gb:g}": cost._asdict() for gb, cost in costs.items()} for name, costs in measured.costs.items()}
    versions = {"torch": version("torch"), "python": sys.version.split()[0], "device": device}
    (out / "figures.json").write_text(
        json.dumps({**versions, "seconds": told, "left_out": measured.left_out}, indent=1)
    )
    (out / "figures.md").write_text("\n".join(table(measured)) + "\n")


if __name__ == "__main__":
    main()
