"""What tools write, and what Kubernetes and Slurm call things → codes, by the tables of words, names and counts."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.noun import Noun
from sickbay.model.sign import Fields, Sign

# Before what Slurm says stands one of its programs, or the stamp of its logs.
_AT = r"^(?:\[?[\dT:.\- ]{10,32}\]? ?)?(?:\S{1,64} )?"
SHORTHANDS = {
    "%program%": _AT + r"(?:slurmstepd(?:-\S{1,64})?|slurmctld|slurmd(?:-\S{1,64})?|srun|sbatch"
    r"|salloc)(?:\[\d{1,10}\])?: (?:error: |debug: |info: )?",
    "%log%": r"^\[\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{3})?\] (?:\[[\w.+]{1,40}\] )?(?:error: )?",
}


class ClusterName(Noun):
    """A reason of events, a condition, a taint, a state. `when`: the type or status with which it counts."""

    code: str  # empty: it is known, and no fault
    when: tuple[str, ...]


class Wording(NamedTuple):
    pattern: re.Pattern[str]
    code: str


@cache
def _names() -> dict[str, dict[str, ClusterName]]:
    found: dict[str, dict[str, ClusterName]] = defaultdict(dict)

    def add(row: TableRow) -> None:
        named = ClusterName(code=row["code"], when=tuple(row["when"].split()))
        found[row["said_as"]][row.given("name")] = named

    read_table("cluster_names.csv", ("said_as", "name", "when", "code", "source"), add)
    return found


@cache
def _wordings(table: str) -> dict[str, list[Wording]]:
    found: dict[str, list[Wording]] = defaultdict(list)

    def add(row: TableRow) -> None:
        found[row["said_as"]].append(Wording(row.pattern("pattern", shorthands=SHORTHANDS), row.given("code")))

    read_table(table, ("said_as", "pattern", "code", "source"), add)
    return found


def names(said_as: str) -> dict[str, ClusterName]:
    return _names()[said_as]


def wordings(table: str, said_as: str) -> list[Wording]:
    """In the order in which they are tried."""
    return _wordings(table)[said_as]


def code_of(said_as: str, name: str) -> str:
    known = names(said_as).get(name)
    return known.code if known else ""


class CountRule(NamedTuple):
    """From how many on a count that a tool shows means a fault, and in which words."""

    least: int
    code: str
    words: str


@cache
def _counts() -> dict[str, dict[str, CountRule]]:
    found: dict[str, dict[str, CountRule]] = defaultdict(dict)

    def add(row: TableRow) -> None:
        found[row["tool"]][row.given("count")] = CountRule(row.whole("from"), row.given("code"), row.given("words"))

    read_table("device_counts.csv", ("tool", "count", "from", "code", "words", "source"), add)
    return found


def counted(tool: str, name: str, count: int, who: str, fields: Fields, line: int) -> Iterator[Sign]:
    """The sign of a count; none if it is too small, or none of those that mean something."""
    rule = _counts()[tool].get(name)
    if rule is not None and count >= rule.least:
        text = f"{who}: {rule.words.format(count=count)}"
        yield Sign(kind=rule.code, fields=fields, text=text, line=line, count=count)


def count_names(tool: str) -> tuple[str, ...]:
    return tuple(_counts()[tool])
