"""Backup and restore of a SQLite store: an online copy, and what makes it safe to go on from an old one.

A copy says when it was made (`PRAGMA user_version`, 0 in a store that is at home). Whoever opens it to write renews it:
since then the world went on, under names that the copy does not know. So

- numbers of facts, and with them ids of incidents, and keys of acts go on far above all that were given: what has a
  guard by key (a cluster, an agent's journal) would else take a new act for one that is done;
- what was written down to be done counts as sent: it may have been done since, so it is looked for before it is done
  again, and what cannot promise one effect for one key is not done again at all;
- every wait is due: nothing is waited for that has happened meanwhile.
"""

import os
import sqlite3
import time
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec
from sqlalchemy import Connection

from sickbay.adapters.stores.codec import pack_row, unpack_row
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.errors import BadInput, UnreadableRow
from sickbay.model.incident import Incident
from sickbay.model.intent import AskToSave, Intent, IntentState, Notify, Strike
from sickbay.model.job import Job
from sickbay.model.rows import AnyRow, tag_of

BEGAN = 1_735_689_600.0  # 2025-01-01: numbers of renewed stores are milliseconds since then
LEAP = 1_000_000  # at least so far above what was given
RENEWED = (
    "SELECT key, body FROM nouns WHERE (opened = 1 AND (key GLOB 'incident:*' OR key GLOB 'job:*'))"
    " OR (ended IS NULL AND key GLOB 'intent:*') ORDER BY key"
)


def back_up(source: Path, target: Path) -> datetime:
    """A consistent copy of a store that may be in use. It is whole, checked, and under its name only then."""
    if target.exists():
        raise BadInput(f"{target} is there already: give another name, or move it away")
    if not source.is_file():
        raise BadInput(f"{source} is not there: say where the controller's state is with --state")
    made = int(time.time())
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # tokens and environments are in it
        os.close(handle)
        _copy(source, unfinished, made)
        _sync(unfinished)
        _name(unfinished, target)
        _sync(target.parent)
    except sqlite3.Error as error:
        raise BadInput(f"{source} could not be copied to {target}: {error}") from None
    except OSError as error:
        raise BadInput(f"{target} cannot be written: {error.strerror}") from None
    finally:
        for rest in ("", "-journal", "-wal", "-shm"):
            with suppress(OSError):
                unfinished.with_name(unfinished.name + rest).unlink(missing_ok=True)
    return datetime.fromtimestamp(made, UTC)


def _name(unfinished: Path, target: Path) -> None:
    """Never over what came there meanwhile, as a rename would. Some file systems have no links: there it is one."""
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise BadInput(f"{target} is there already: give another name, or move it away") from None
    except OSError:
        unfinished.rename(target)


def _copy(source: Path, target: Path, made: int) -> None:
    with (
        closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True, timeout=30.0)) as there,
        closing(sqlite3.connect(target, isolation_level=None)) as here,
    ):
        there.backup(here)  # in one step, of one moment: commits go on beside it
        here.execute("PRAGMA journal_mode = DELETE")  # one file is all of it
        here.execute(f"PRAGMA user_version = {made}")
        found = [row[0] for row in here.execute("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise sqlite3.DatabaseError(f"the copy is damaged: {found[0]}")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def renew(connection: Connection) -> datetime | None:
    """Within one transaction: make a copy a store of its own. Returns when it was made; None: it is no copy."""
    made = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
    if not made:
        return None
    newest = connection.exec_driver_sql("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").scalar_one()
    last = connection.exec_driver_sql("SELECT last FROM versions").scalar_one()
    base = max(int((time.time() - BEGAN) * 1000), max(newest, last) + LEAP)
    for table in ("facts", "letters"):
        connection.exec_driver_sql("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        connection.exec_driver_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, base))
    connection.exec_driver_sql("UPDATE versions SET last = ?", (base,))
    connection.exec_driver_sql("UPDATE lease SET epoch = ?, holder = NULL", (base,))
    readings = _readings(connection)
    for key, body in connection.exec_driver_sql(RENEWED).all():
        with suppress(UnreadableRow):  # whoever plans it says so
            row = _renewed(unpack_row(key, body), base, readings)
            connection.exec_driver_sql(
                "UPDATE nouns SET body = ?, tag = ?, version = ? WHERE key = ?",
                (pack_row(key, row), tag_of(row), base, key),
            )
    connection.exec_driver_sql("UPDATE waits SET dirty = 1")
    connection.exec_driver_sql("PRAGMA user_version = 0")
    return datetime.fromtimestamp(made, UTC)


def _readings(connection: Connection) -> dict[str, float]:
    found = connection.exec_driver_sql("SELECT key, body FROM nouns WHERE key GLOB 'clock:*'").all()
    readings = {}
    for key, body in found:
        with suppress(UnreadableRow):  # as above
            row = unpack_row(key, body)
            if isinstance(row, WatchedClock):
                readings[row.source] = row.reading
    return readings


def _renewed(row: AnyRow, base: int, readings: dict[str, float]) -> AnyRow:
    match row:
        case Incident() | Job():
            return msgspec.structs.replace(row, acts=base)
        case Intent(state=IntentState.PLANNED) if not isinstance(row.act, Notify | Strike | AskToSave):
            reading = readings.get(row.clock, 0.0)
            return msgspec.structs.replace(
                row,
                state=IntentState.SENT,
                sends=row.sends + 1,
                sent_at=reading + 1e-6,
                seen_by=row.seen_by or Deadline(clock=row.clock, at=reading + row.patience),
                not_before=None,
            )
        case _:
            return row
