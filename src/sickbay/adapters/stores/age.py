"""Retention in the SQL stores: pages by index, a short transaction for each, so that commits and reads go between."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sickbay.adapters.stores.database import Database
from sickbay.adapters.stores.statements import Statements
from sickbay.ports.store import STORY

AT_ONCE = 200  # rows that are looked at in one transaction: a few milliseconds
LINES_AT_ONCE = 50  # for those of an open subject its story is counted back
BREATH = 0.002  # seconds between two pages: whoever waits for the file gets it

Place = Mapping[str, Any]  # where a page begins: behind this
Page = Callable[[Database, Statements, Mapping[str, Any]], tuple[int, Place | None]]


def forget(database: Database, sql: Statements, *, planned: int, before: datetime) -> int:
    """Removes what is older than `before`, facts only up to the number `planned`; returns how many."""
    limits = {"before": before.timestamp(), "planned": planned, "limit": AT_ONCE}
    # Lines before rows: a line is kept for the sake of an open row, never the other way round.
    begins: tuple[tuple[Page, Place], ...] = (
        (_facts, {"after": 0}),
        (_lines, FIRST),
        (_rows, FIRST),
        (_pulses, {"node": ""}),
    )
    return sum(_all(database, sql, page, {**limits, **first}) for page, first in begins) + _letters(
        database, sql, limits
    )


FIRST: Place = {"at": 0.0, "seq": 0, "key": ""}


def _all(database: Database, sql: Statements, page: Page, limits: Mapping[str, Any]) -> int:
    forgotten = 0
    while True:
        removed, place = page(database, sql, limits)
        forgotten += removed
        if place is None:
            return forgotten
        limits = {**limits, **place}
        time.sleep(BREATH)


def _letters(database: Database, sql: Statements, limits: Mapping[str, Any]) -> int:
    # In one go: there are a few for each node at most, because they are struck when they are answered.
    with database.writing(facts=True) as connection:
        return connection.execute(sql.forget_letters, {"before": limits["before"]}).rowcount


def _facts(database: Database, sql: Statements, limits: Mapping[str, Any]) -> tuple[int, Place | None]:
    """There is no index on a fact's age, because every append would pay for it. They come in about the order of their
    age: a page without an old one ends the search.
    """
    with database.reading() as connection:
        found = connection.execute(sql.oldest_facts, limits).all()
    old = [{"seq": seq} for seq, at in found if at < limits["before"]]
    if not old:
        return 0, None
    with database.writing(facts=True, durable=False) as connection:
        connection.execute(sql.forget_fact, old)
    return len(old), {"after": found[-1][0]} if len(found) == limits["limit"] else None


def _lines(database: Database, sql: Statements, limits: Mapping[str, Any]) -> tuple[int, Place | None]:
    limits = {**limits, "limit": LINES_AT_ONCE, "story": STORY}
    with database.writing(rows=True, durable=False) as connection:
        found = connection.execute(sql.old_lines, limits).all()
        old = [{"seq": seq} for seq, _, kept in found if not kept]
        if old:
            connection.execute(sql.forget_told, old)
            connection.execute(sql.forget_line, old)
    return len(old), {"seq": found[-1][0], "at": found[-1][1]} if len(found) == limits["limit"] else None


def _rows(database: Database, sql: Statements, limits: Mapping[str, Any]) -> tuple[int, Place | None]:
    with database.writing(rows=True, durable=False) as connection:
        found = connection.execute(sql.old_rows, limits).all()
        keys = [key for key, _, kept in found if not kept]
        if keys:
            many = {"keys": database.many(keys)}
            connection.execute(sql.delete, many)
            connection.execute(sql.wake, many)
            connection.execute(sql.drop_reads, many)
            connection.execute(sql.drop_waits, many)
    return len(keys), {"key": found[-1][0], "at": found[-1][1]} if len(found) == limits["limit"] else None


def _pulses(database: Database, sql: Statements, limits: Mapping[str, Any]) -> tuple[int, Place | None]:
    """Of agents whose silence was told and whose node is gone. One that speaks again begins anew."""
    with database.reading() as connection:
        found = [{"node": node} for (node,) in connection.execute(sql.hushed, limits).all()]
    if found:
        with database.writing(durable=False) as connection:
            connection.execute(sql.forget_pulse, found)
    return len(found), found[-1] if len(found) == limits["limit"] else None
