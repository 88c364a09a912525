"""Counters under /sys and what their growth means, from data/counters.csv."""

import csv
import io
from collections.abc import Collection
from functools import cache

from sickbay.knowledge.shipped import shipped
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun

COLUMNS = ("under", "name", "code", "grown_by", "within", "at_start", "source")


class CounterRule(Noun):
    """`under`: a glob of devices below /sys; `name`: a glob of files below one; then how much growth in which time."""

    under: str
    name: str
    code: str
    grown_by: int
    within: float
    at_start: bool  # what is there when we first look is new to us: it counts from the driver's start, not from ours


def read_counters(text: str, name: str = "counters.csv", *, checked: bool = True) -> tuple[CounterRule, ...]:
    """Raises BadInput with one line that says what to write. `checked`: every code must have a meaning."""
    known = _codes() if checked else None
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise BadInput(f"{name} line 1: the columns must be {','.join(COLUMNS)}")
    rules = []
    for row in reader:
        where = f"{name} line {reader.line_num}"
        if known is not None and row["code"] not in known:
            raise BadInput(f"{where}: code {row['code']!r} is in no fault table; add it there first")
        if row["under"].startswith("/") or ".." in row["under"] or ".." in row["name"]:
            raise BadInput(f"{where}: write a path below /sys, without its first slash")
        try:
            grown_by, within = int(row["grown_by"]), float(row["within"])
        except (TypeError, ValueError):
            raise BadInput(f"{where}: grown_by and within must be numbers") from None
        if grown_by < 1 or within <= 0 or row["at_start"] not in {"yes", "no"}:
            raise BadInput(f"{where}: grown_by and within must be above 0, at_start yes or no")
        rules.append(
            CounterRule(
                under=row["under"], name=row["name"], code=row["code"], grown_by=grown_by, within=within,
                at_start=row["at_start"] == "yes",
            )
        )  # fmt: skip
    return tuple(rules)


def _codes() -> Collection[str]:
    from sickbay.knowledge.load import load_tables

    return load_tables().faults


@cache
def counter_rules() -> tuple[CounterRule, ...]:
    # Every agent pays for this; that the codes have a meaning is proven by the tests, without the tables in memory.
    return read_counters(shipped("counters.csv"), checked=False)
