"""Retention in the SQL stores: a few thousand rows in one transaction, so that commits can go between."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sickbay.adapters.stores.database import Database
from sickbay.adapters.stores.statements import Statements

AT_ONCE = 5000


def forget(database: Database, sql: Statements, *, planned: int, before: datetime) -> int:
    """Removes what is older than `before`, facts only up to the number `planned`; returns how many."""
    limits = {"before": before.timestamp(), "limit": AT_ONCE}
    # Lines before rows: a line is kept for the sake of an open row, never the other way round.
    rows = _facts(database, sql, planned, limits) + _lines(database, sql, limits) + _rows(database, sql, limits)
    return rows + _letters(database, sql, limits)


def _letters(database: Database, sql: Statements, limits: Mapping[str, Any]) -> int:
    # In one go: there are a few for each node at most, because they are struck when they are answered.
    with database.writing(facts=True) as connection:
        return connection.execute(sql.forget_letters, {"before": limits["before"]}).rowcount


def _facts(database: Database, sql: Statements, planned: int, limits: Mapping[str, Any]) -> int:
    forgotten, after = 0, 0
    while True:
        # There is no index on a fact's age, because every append would pay for it: they are searched in the order of
        # their numbers, outside the transaction that removes them.
        with database.reading() as connection:
            old = connection.execute(sql.old_facts, {**limits, "after": after, "planned": planned})
            numbers = [{"seq": seq} for seq in old.scalars()]
        if not numbers:
            return forgotten
        with database.writing(facts=True) as connection:
            connection.execute(sql.forget_fact, numbers)
        forgotten, after = forgotten + len(numbers), numbers[-1]["seq"]


def _lines(database: Database, sql: Statements, limits: Mapping[str, Any]) -> int:
    forgotten = 0
    while True:
        with database.writing(rows=True) as connection:
            numbers = [{"seq": seq} for seq in connection.execute(sql.old_lines, limits).scalars()]
            if not numbers:
                return forgotten
            connection.execute(sql.forget_told, numbers)
            connection.execute(sql.forget_line, numbers)
        forgotten += len(numbers)


def _rows(database: Database, sql: Statements, limits: Mapping[str, Any]) -> int:
    forgotten = 0
    while True:
        with database.writing(rows=True) as connection:
            keys = connection.execute(sql.old_rows, limits).scalars().all()
            if not keys:
                return forgotten
            many = {"keys": database.many(keys)}
            connection.execute(sql.delete, many)
            connection.execute(sql.wake, many)
            connection.execute(sql.drop_reads, many)
            connection.execute(sql.drop_waits, many)
        forgotten += len(keys)
