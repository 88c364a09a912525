"""SQLite: one process, one file."""

import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import IO
from urllib.parse import quote

from sqlalchemy import Connection, create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from sickbay.adapters.stores.copies import renew
from sickbay.adapters.stores.database import Database
from sickbay.model.errors import StoreError, StoreUnavailable, StoreUnknown, UnusableStore

log = logging.getLogger("sickbay.store")

BUSY_SECONDS = 10.0  # longer than any reader of the command line holds the file


class Sqlite(Database):
    """One connection writes and one reads, so that planning does not wait for the disk while facts are appended."""

    dialect = "sqlite"
    in_keys = "IN (SELECT value FROM json_each(:keys))"
    placeholder = "?"
    now = ":now"
    wall = "NULL"  # there is one process
    share = ""  # there is one process, and one writer in it

    def __init__(self, path: Path | None, *, readonly: bool = False) -> None:
        self._path = path
        self._readonly = readonly
        self._unlogged = False  # opened while nobody else had it open
        self._guard = None if path is None or readonly else _only_process(path)
        if self._guard is not None and path is not None:
            _drop_anothers_log(path)
        self._engine = create_engine("sqlite+pysqlite://", creator=self._connect, poolclass=NullPool)
        self._writing = RLock()
        self._reading = self._writing if path is None else RLock()
        try:
            with self.told_apart():
                self._writer = self._engine.connect()
                self._reader = self._writer if path is None else self._engine.connect()
            if readonly:
                self.refuse_other_versions(str(self))
            else:
                self.migrate(str(self))
                self._renew_a_copy()
                self._forget_the_last_holder()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return "the store in memory" if self._path is None else str(self._path)

    def _connect(self) -> sqlite3.Connection:
        target = ":memory:" if self._path is None else f"file:{quote(str(self._path))}"
        if self._readonly:
            # Without a log nobody has it open; SQLite would make one, and leave it there as ours.
            self._unlogged = not self._has_log()
            target += "?mode=ro&immutable=1" if self._unlogged else "?mode=ro"
        # isolation_level=None: the driver begins nothing by itself, so that one BEGIN IMMEDIATE takes the write lock
        # before anything is read.
        connection = sqlite3.connect(
            target, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            if self._path is not None and not self._readonly:
                connection.execute("PRAGMA journal_mode = WAL")
            # FULL: with NORMAL a commit is on the disk only at the next checkpoint. A power cut would then take back an
            # intent whose effect has happened, and after the restart a node would be rebooted twice.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _has_log(self) -> bool:
        return Path(f"{self._path}-wal").exists()

    def _renew_a_copy(self) -> None:
        with self.writing() as connection:
            made = renew(connection)
        if made is not None:
            log.warning("%s is a backup of %s: what has happened since is looked for first", self, made.isoformat())

    def _forget_the_last_holder(self) -> None:
        # Whoever held the lease held the file's lock too, and that is ours now: it is gone.
        with self.writing() as connection:
            connection.exec_driver_sql("UPDATE lease SET holder = NULL")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._reading, self.told_apart():
            if self._unlogged and self._has_log():  # somebody works with it by now: what was opened shows none of that
                self._reader.close()
                self._reader = self._engine.connect()
            yield self._reader

    @contextmanager
    def writing(self, *, rows: bool = False, facts: bool = False, durable: bool = True) -> Iterator[Connection]:
        del rows, facts  # the file has one writer at a time
        with self._writing:
            connection = self._writer
            if not durable:
                connection.exec_driver_sql("PRAGMA synchronous = NORMAL")
            try:
                with self.told_apart():
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    yield connection
                with self.told_apart(at_commit=True):
                    connection.exec_driver_sql("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some errors (a full disk); then there is nothing to undo.
                with suppress(SQLAlchemyError):
                    connection.exec_driver_sql("ROLLBACK")
                raise
            finally:
                if not durable:
                    # A connection that cannot even do this fails again at the next BEGIN: the first error is the cause.
                    with suppress(SQLAlchemyError):
                        connection.exec_driver_sql("PRAGMA synchronous = FULL")

    def many(self, keys: Iterable[str]) -> str:
        return json.dumps(list(keys))

    def time(self) -> Mapping[str, float]:
        return {"now": time.monotonic()}

    def tables(self, connection: Connection) -> set[str]:
        found = connection.exec_driver_sql(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        )
        return set(found.scalars())

    def translated(self, error: DBAPIError, *, at_commit: bool) -> StoreError:
        # The low byte of the extended code is the kind of trouble: https://www.sqlite.org/rescode.html
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        match code:
            case sqlite3.SQLITE_FULL:
                return UnusableStore(f"the disk of {self} is full: nothing was written; make room, and it goes on")
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return UnusableStore(
                    f"{self} is damaged or no SQLite file ({error.orig}): restore it from a backup or move it away"
                )
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM if self._readonly:
                return UnusableStore(f"{self} was opened for reading only")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
                return UnusableStore(
                    f"cannot {'read' if self._readonly else 'write'} {self} ({error.orig}):"
                    " check that the directory exists and belongs to this user"
                )
            case sqlite3.SQLITE_BUSY:
                return StoreUnavailable(
                    f"{self} is locked by another process: close what else has it open (a shell, a backup)"
                )
            case sqlite3.SQLITE_IOERR if at_commit:
                return StoreUnknown(f"{self}: {error.orig}")
            case _:
                return StoreUnavailable(f"{self}: {error.orig}")

    def close(self) -> None:
        with self._writing, self._reading:
            for name in ("_reader", "_writer"):
                if (connection := getattr(self, name, None)) is not None:
                    connection.close()
            if self._guard is not None:
                # The file stays: removing it would let two processes lock two files of one name.
                self._guard.close()
                self._guard = None


def _drop_anothers_log(path: Path) -> None:
    """A copy was put in the place of a store whose controller was killed: what is left of that one's write-ahead log
    would be read into the copy. A store of ours says in its header that it has such a log before it has one.
    """
    with suppress(OSError), path.open("rb") as file:
        head = file.read(20)
        left = [one for end in ("-wal", "-shm") if (one := path.with_name(path.name + end)).exists()]
        if head.startswith(b"SQLite format 3\0") and head[18:19] == b"\1" and left:
            for one in left:
                one.unlink()
            log.warning("%s was left of the store that was here before %s: removed", left[0], path)


def _only_process(path: Path) -> IO[str]:
    """Takes the lock that makes this the only process on the file; the system gives it back if the process dies."""
    lock = path.with_name(path.name + ".lock")
    try:
        guard = lock.open("a+", encoding="ascii")
    except OSError as error:
        raise UnusableStore(
            f"cannot write {path} ({error.strerror}): check that the directory exists and belongs to this user"
        ) from error
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        guard.seek(0)
        holder = guard.read().strip() or "unknown"
        guard.close()
        raise UnusableStore(
            f"{path} is in use by process {holder}: stop that one first, or give this one another file"
        ) from error
    guard.truncate(0)
    guard.write(str(os.getpid()))
    guard.flush()
    return guard
