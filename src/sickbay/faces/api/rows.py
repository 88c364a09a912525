"""All rows of one kind."""

from typing import TypeVar

from sickbay.faces.api.reading import Reading
from sickbay.faces.api.table import Ask
from sickbay.model.rows import AnyRow

Kind = TypeVar("Kind", bound=AnyRow)


def all_of(ask: Ask, kind: type[Kind], name: str) -> list[Kind]:
    reading = Reading(ask.desk.store)
    found: list[Kind] = []
    after = ""
    while page := reading.keys(name, after=after):
        found += [version.row for version in reading.load(page).values() if isinstance(version.row, kind)]
        after = page[-1]
    return found
