"""All rows of one kind."""

from typing import TypeVar

from sickbay.faces.api.reading import RequestReads
from sickbay.faces.api.route import ApiRequest
from sickbay.model.parts import whole
from sickbay.model.rows import AnyRow

Kind = TypeVar("Kind", bound=AnyRow)


def all_of(ask: ApiRequest, kind: type[Kind], name: str) -> list[Kind]:
    reading = RequestReads(ask.desk.store)
    found: list[Kind] = []
    after = ""
    while page := reading.keys(name, after=after):
        found += [v.row for v in whole(reading.load(page), reading.load).values() if isinstance(v.row, kind)]
        after = page[-1]
    return found
