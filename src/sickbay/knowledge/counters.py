"""Counters under /sys and what their growth means, from data/counters.csv."""

from collections.abc import Collection
from functools import cache

from sickbay.knowledge.csv_table import TableRow, read_table
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


def read_counters(text: str | None = None, *, checked: bool = True) -> tuple[CounterRule, ...]:
    """Raises BadInput with one line that says what to write. `checked`: every code must have a meaning."""
    known = _codes() if checked else None

    def rule(row: TableRow) -> CounterRule:
        if known is not None and row["code"] not in known:
            raise row.wrong(f"code {row['code']!r} is in no fault table; add it there first")
        if row["under"].startswith("/") or ".." in row["under"] or ".." in row["name"]:
            raise row.wrong("write a path below /sys, without its first slash")
        grown_by, within = row.whole("grown_by"), row.number("within")
        if not grown_by or not within:
            raise row.wrong("grown_by and within must be above 0")
        return CounterRule(
            under=row["under"], name=row["name"], code=row["code"], grown_by=grown_by, within=within,
            at_start=row.yes("at_start"),
        )  # fmt: skip

    return tuple(read_table("counters.csv", COLUMNS, rule, text))


def _codes() -> Collection[str]:
    from sickbay.knowledge.load import load_tables

    return load_tables().faults


@cache
def counter_rules() -> tuple[CounterRule, ...]:
    # Every agent pays for this; that the codes have a meaning is proven by the tests, without the tables in memory.
    return read_counters(checked=False)
