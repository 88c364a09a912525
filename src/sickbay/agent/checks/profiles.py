"""Test selection: which tests a check consists of, after a fault those that would meet it again, or a named set.

The table is profiles.csv. A `component` row says what must be proved after a fault of that component; a `set` row says
which tests belong to a named set, and up to which level. Tests of level 1 always run: they take moments.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from sickbay.knowledge.csv_table import TableRow, read_table, shipped

EVERYTHING = "*"


class UnknownProfile(Exception):  # noqa: N818 - one line for whoever asked
    """There is no such profile."""


class Wanted(NamedTuple):
    components: frozenset[str] = frozenset({EVERYTHING})
    tests: tuple[tuple[str, int], ...] = ()  # a set: names with stars, up to which level

    def takes(self, name: str, at: int, components: Sequence[str], level: int) -> bool:
        if at <= 1:
            return True
        if self.tests:  # a set brings its own levels
            return any(fnmatchcase(name, pattern) and at <= limit for pattern, limit in self.tests)
        if at > level:
            return False
        return EVERYTHING in self.components or not components or not self.components.isdisjoint(components)


def wanted(profile: str) -> Wanted:
    """By the name of a set, a component (`memory`) or a fault (`xid.48`, `nvlink.down`); empty: everything."""
    if not profile:
        return Wanted()
    table = _table()
    if profile in table:
        return table[profile]
    component = _component_of(profile)
    if component:
        # A component that a table has and this one not yet: whoever asks gets more than needed, not less.
        return table.get(component, Wanted())
    raise UnknownProfile(
        f"there is no profile {profile!r}: write one of {', '.join(sorted(table))}, or the code of a fault"
    )


def _component_of(code: str) -> str:
    from sickbay.knowledge.load import load_tables

    for row in load_tables().meanings():
        if code in {row.code, row.component}:
            return row.component
    return ""


@cache
def _table() -> dict[str, Wanted]:
    table: dict[str, Wanted] = {}

    def add(row: TableRow) -> None:
        if row["kind"] == "set":
            before = table.get(row["profile"], Wanted(frozenset()))
            table[row["profile"]] = before._replace(tests=(*before.tests, (row["chooses"], row.whole("level"))))
        else:
            table[row["profile"]] = Wanted(frozenset(row["chooses"].split()))

    name = "profiles.csv"
    read_table(name, ("kind", "profile", "chooses", "level"), add, shipped(name, "sickbay.agent.checks", ""))
    return table
