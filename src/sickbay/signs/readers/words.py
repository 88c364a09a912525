"""What tools write, and what Kubernetes and Slurm call things → codes: the tables *_words.csv and cluster_names.csv."""

import re
from collections import defaultdict
from functools import cache
from typing import NamedTuple

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.noun import Noun

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
