"""Runs the figures: `python -m bench [NAME …] [--quick] [--write]`."""

import argparse
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench import (
    agent,
    checkpoint_sizes,
    checkpoints,
    decisions,
    edges,
    flood,
    lines,
    many_steps,
    memory,
    quarantine,
    quiet,
    reports,
    resumes,
    scanner,
    takeover,
    years,
)
from bench.figure import FULL, QUICK, TINY, Figure, Size

BENCHES: Mapping[str, Callable[[Size], Figure]] = {
    "quiet": quiet.run,
    "decisions": decisions.run,
    "quarantine": quarantine.run,
    "flood": flood.run,
    "memory": memory.run,
    "edges": edges.run,
    "years": years.run,
    "takeover": takeover.run,
    "checkpoints": checkpoints.run,
    "checkpoint_sizes": checkpoint_sizes.run,
    "many_steps": many_steps.run,
    "resumes": resumes.run,
    "lines": lines.run,
    "reports": reports.run,
    "scanner": scanner.run,
    "agent": agent.run,
}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "figures.md"
HEAD = """# Figures

Written by `python -m bench --write`; `make bench` measures them again. What is claimed are the goals and the ratios,
measured side by side in one run; absolute numbers are for orientation and differ from machine to machine.
"""


def machine() -> str:
    """In neutral words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    python = ".".join(platform.python_version_tuple()[:2])
    busy = os.getloadavg()[0]
    return (
        f"{cores} cores ({platform.machine()}), {platform.system()}, Python {python}, SQLite {sqlite3.sqlite_version};"
        f" {busy:.1f} processes were running on average when it began"
    )


def told(figure: Figure) -> str:
    """A figure as plain text."""
    width = max(len(line.what) for line in figure.lines)
    goals = [f"  [{line.goal}: {line.verdict.strip('*')}]" if line.goal else "" for line in figure.lines]
    body = [f"  {line.what:<{width}}  {line.value}{goal}" for line, goal in zip(figure.lines, goals, strict=True)]
    return "\n".join([figure.title, *body, *(f"  {note}" for note in figure.notes)])


def page(figures: Sequence[Figure], where: str) -> str:
    parts = [HEAD, f"Measured on: {where}.\n"]
    for figure in figures:
        rows = [f"| {line.what} | {line.value} | {line.goal} | {line.verdict} |" for line in figure.lines]
        parts.append(
            "\n".join([f"## {figure.title}\n", f"{figure.about}\n", "| | | goal | met |", "|---|---|---|---|", *rows])
            + "\n"
            + "".join(f"\n{note}\n" for note in figure.notes)
        )
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="smaller fleets, a few minutes in all: for a first look")
    parser.add_argument("--tiny", action="store_true", help="only shows that everything runs; the numbers mean nothing")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name} (all figures, full size)")
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in BENCHES]
    if unknown:
        parser.error(f"there is no bench {unknown[0]!r}: write one of {', '.join(BENCHES)}")
    size = TINY if asked.tiny else QUICK if asked.quick else FULL
    if asked.write and (asked.names or size is not FULL):
        parser.error("--write needs all figures in full size: leave names, --quick and --tiny out")
    where, figures = machine(), []
    print(f"on {where}\n", flush=True)
    for name in asked.names or BENCHES:
        start = time.monotonic()
        figures.append(BENCHES[name](size))
        print(f"{told(figures[-1])}\n  ({time.monotonic() - start:.0f} s)\n", flush=True)
    if asked.write:
        PAGE.write_text(page(figures, where), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
