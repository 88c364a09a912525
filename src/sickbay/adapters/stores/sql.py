"""The SQL store: one adapter for SQLite and PostgreSQL.

Its cost follows what changed, not how many rows there are: waits are found through an index on what they read, and
marked in the commit that makes them due.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from sickbay.adapters.stores.age import forget
from sickbay.adapters.stores.codec import (
    NO_ROW,
    ended_at,
    moved,
    opened,
    owner_of,
    pack_fact,
    pack_letter,
    pack_row,
    read_row,
    unpack_fact,
    unpack_letter,
    unpack_line,
)
from sickbay.adapters.stores.database import Database
from sickbay.adapters.stores.group_commit import CommitGroup, GroupedWrite, Marked
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sqlite import Sqlite
from sickbay.adapters.stores.statements import Statements
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import BadInput, Fenced, UnusableStore
from sickbay.model.facts import Fact, Mark
from sickbay.model.fleet import Cursor, Incarnation, NodeId
from sickbay.model.protocol import Command
from sickbay.model.rows import CURSOR, AnyRow, Lease, Line, Rows, Unit, tag_of
from sickbay.ports.store import STORY, Committed, LivenessChanges, Pulse, Store

ALL = 2**31 - 1

_encode = msgspec.json.Encoder().encode
_incarnation = msgspec.json.Decoder(Incarnation).decode


class SqlStore:
    """Rows, waits, facts, pulses and the story in tables."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = Statements.of(database)

    # --- rows

    def load(self, keys: Iterable[str]) -> Rows:
        rows = dict.fromkeys(keys, NO_ROW)
        with self._db.reading() as connection:
            for key, version, body in connection.execute(self._sql.load, {"keys": self._db.many(rows)}):
                rows[key] = read_row(key, body, version)
        return rows

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        with self._db.reading() as connection:
            return (
                connection.execute(self._sql.find, {"tag": tag, "limit": ALL if limit is None else limit})
                .scalars()
                .all()
            )

    def tags(self, prefix: str) -> Sequence[str]:
        with self._db.reading() as connection:
            return connection.execute(self._sql.tags, {"first": prefix, "end": _after_all(prefix)}).scalars().all()

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        # A semicolon follows the colon: all keys of a kind, and no other, are between the two.
        bounds = {"after": after, "first": f"{kind}:", "end": f"{kind};", "limit": limit}
        with self._db.reading() as connection:
            return connection.execute(self._sql.keys, bounds).scalars().all()

    def commit(self, unit: Unit, epoch: int) -> int:
        done = self.commit_many([unit], epoch)
        if done.refused is not None:
            raise done.refused
        return done.versions[0]

    def commit_many(self, units: Sequence[Unit], epoch: int) -> Committed:
        group = CommitGroup(units)
        if not group.packed:
            return Committed((), group.refused)
        with self._db.writing(rows=True, durable=any(unit.durable for unit in group.units)) as connection:
            if connection.execute(self._sql.leads, {"epoch": epoch}).first() is None:
                raise Fenced(f"epoch {epoch} does not lead")
            group.judge(*self._versions(connection, group.asked))
            group.number(self._next_version(connection, group.numbered) if group.numbered else 0)
            self._put(connection, group.rows.values())
            self._changed(connection, group.changed)
            if group.unmarked:
                many = {"keys": self._db.many(group.unmarked)}
                connection.execute(self._sql.drop_reads, many)
                connection.execute(self._sql.drop_waits, many)
            self._mark(connection, group.marks)
            self._tell(connection, group.told)
        return Committed(group.versions, group.refused)

    def _versions(self, connection: Connection, keys: Iterable[str]) -> tuple[dict[str, int], dict[str, str]]:
        """Versions and tags as they are."""
        if not keys:
            return {}, {}
        rows = connection.execute(self._sql.versions, {"keys": self._db.many(keys)}).all()
        return {row.key: row.version for row in rows}, {row.key: row.tag for row in rows if row.tag}

    def _next_version(self, connection: Connection, by: int = 1) -> int:
        return int(connection.execute(self._sql.next_version, {"by": by}).scalar_one())

    def _put(self, connection: Connection, rows: Iterable[GroupedWrite]) -> None:
        written: list[dict[str, Any]] = []
        deleted: list[str] = []
        for key, row, body, version in rows:
            if row is None:
                deleted.append(key)
                continue
            end = ended_at(row)
            written.append(
                {
                    "key": key,
                    "tag": tag_of(row),
                    "version": version,
                    "opened": int(opened(row)),
                    "owner": owner_of(row),
                    "ended": None if end is None else end.timestamp(),
                    "body": body,
                }
            )
        if written:
            connection.execute(self._sql.put, written)
        if deleted:
            connection.execute(self._sql.delete, {"keys": self._db.many(deleted)})

    def _changed(self, connection: Connection, keys: Sequence[str]) -> None:
        """Makes due all waits that read one of these."""
        if keys:
            connection.execute(self._sql.wake, {"keys": self._db.many(keys)})

    def _mark(self, connection: Connection, marks: Iterable[Marked]) -> None:
        waits: list[dict[str, Any]] = []
        reads: list[dict[str, Any]] = []
        for subject, mark, dirty in marks:
            until = mark.until
            waits.append(
                {
                    "subject": subject,
                    "clock": until.clock if until else None,
                    "at": until.at if until else None,
                    "urgency": mark.urgency,
                    # No clock reads less than nothing: this one is due whatever readings are given.
                    "dirty": int(dirty or (until is not None and until.at <= 0.0)),
                }
            )
            reads += [{"subject": subject, "key": key, "version": version} for key, version in mark.on.items()]
        if waits:
            connection.execute(self._sql.mark, waits)
        if reads:
            connection.execute(self._sql.read_by, reads)

    def _tell(self, connection: Connection, story: Sequence[tuple[int, Line, bytes]]) -> None:
        if not story:
            return
        lines = [{"seq": seq, "at": line.at.timestamp(), "body": body} for seq, line, body in story]
        connection.execute(self._sql.line, lines)
        told = [{"subject": subject, "seq": seq} for seq, line, _ in story for subject in dict.fromkeys(line.subjects)]
        if told:
            connection.execute(self._sql.told, told)

    def due(self, readings: Mapping[str, float], limit: int = 100) -> Sequence[str]:
        with self._db.reading() as connection:
            found = {(urgency, subject) for urgency, subject in connection.execute(self._sql.dirty, {"limit": limit})}
            for clock, reading in readings.items():
                passed = connection.execute(self._sql.passed, {"clock": clock, "reading": reading, "limit": limit})
                found.update((urgency, subject) for urgency, subject in passed)
        return [subject for _, subject in sorted(found)[:limit]]

    # --- facts

    def append(
        self,
        facts: Sequence[Fact],
        marks: Sequence[Mark] = (),
        told: Mapping[NodeId, Pulse | None] | None = None,
    ) -> int:
        rows = [(fact.id, fact.at.timestamp(), pack_fact(fact)) for fact in facts]
        new = 0
        with self._db.writing(rows=bool(marks), facts=bool(facts), durable=bool(facts or told)) as connection:
            if rows:
                new = connection.exec_driver_sql(self._sql.append, rows).rowcount
            if marks:
                self._move(connection, marks)
            for node, pulse in sorted((told or {}).items()):
                known = {"node": node, "incarnation": None if pulse is None else _encode(pulse.incarnation)}
                connection.execute(self._sql.hush if pulse is None else self._sql.tell, known)
        return new

    def _move(self, connection: Connection, marks: Sequence[Mark]) -> None:
        keys = {f"clock:{mark.source}" for mark in marks}
        clocks: dict[str, AnyRow | None] = {}
        for key, _, body in connection.execute(self._sql.load, {"keys": self._db.many(keys)}):
            clock = read_row(key, body, 0)
            if clock.damage:
                raise UnusableStore(clock.damage)
            clocks[key] = clock.row
        newest, wall = connection.execute(self._sql.present).one()
        for mark in marks:
            before = clocks.get(key := f"clock:{mark.source}")
            known = before if isinstance(before, WatchedClock) else None
            clocks[key] = moved(known, mark, facts=newest, wall=wall)
        bodies = {key: pack_row(key, clock) for key, clock in clocks.items() if clock is not None}
        version = self._next_version(connection)
        self._put(connection, [GroupedWrite(key, clock, bodies[key], version) for key, clock in clocks.items()])
        self._changed(connection, list(clocks))

    def time(self) -> float | None:
        with self._db.reading() as connection:
            wall: float | None = connection.execute(self._sql.wall).scalar_one()
        return wall

    def facts(self, after: int, limit: int = 500) -> Sequence[Fact]:
        with self._db.reading() as connection:
            found = connection.execute(self._sql.facts, {"after": after, "limit": limit}).all()
        return [unpack_fact(seq, body) for seq, body in found]

    def hear(self, pulses: Mapping[NodeId, Pulse]) -> None:
        if not pulses:
            return
        heard = [
            {"node": node, "reading": pulse.reading, "incarnation": _encode(pulse.incarnation)}
            for node, pulse in sorted(pulses.items())  # in one order, so that two replicas never wait in a circle
        ]
        # Not durable: a pulse that a power cut takes back is followed by the next.
        with self._db.writing(durable=False) as connection:
            connection.execute(self._sql.hear, heard)

    def voices(self, before: float, limit: int = 500) -> LivenessChanges:
        with self._db.reading() as connection:
            silent = connection.execute(self._sql.silent, {"before": before, "limit": limit}).all()
            heard = connection.execute(self._sql.heard, {"limit": limit}).all()
        return LivenessChanges(silent=_pulses(silent), heard=_pulses(heard))

    # --- mail

    def post(self, commands: Sequence[Command]) -> None:
        if not commands:
            return
        letters = [
            {"id": each.id, "node": each.node, "at": each.posted_at.timestamp(), "body": pack_letter(each)}
            for each in commands
        ]
        # Those who write letters come one after the other, so that two replicas never wait in a circle.
        with self._db.writing(facts=True) as connection:
            connection.execute(self._sql.post, letters)

    def mail(self, node: NodeId, limit: int = 20) -> Sequence[Command]:
        with self._db.reading() as connection:
            bodies = connection.execute(self._sql.mail, {"node": node, "limit": limit}).scalars().all()
        return [unpack_letter(body) for body in bodies]

    def mailed(self, nodes: Collection[NodeId]) -> Collection[NodeId]:
        with self._db.reading() as connection:
            return connection.execute(self._sql.mailed, {"keys": self._db.many(nodes)}).scalars().all()

    def strike(self, ids: Collection[str]) -> None:
        if not ids:
            return
        # Not durable: a letter that a power cut brings back is one that its agent has written down as done.
        with self._db.writing(facts=True, durable=False) as connection:
            connection.execute(self._sql.strike, {"keys": self._db.many(ids)})

    # --- the story, the lease, and age

    def story(self, subject: str, limit: int = STORY) -> Sequence[Line]:
        with self._db.reading() as connection:
            bodies = connection.execute(self._sql.story, {"subject": subject, "limit": limit}).scalars().all()
        return [unpack_line(body) for body in reversed(bodies)]

    def lease(self, holder: str, ttl: float) -> Lease | None:
        with self._db.writing() as connection:
            asked = {"holder": holder, "ttl": ttl, **self._db.time()}
            epoch = connection.execute(self._sql.lease, asked).scalar()
        return None if epoch is None else Lease(epoch=epoch, holder=holder, ttl=ttl)

    def resign(self, holder: str) -> None:
        with self._db.writing() as connection:
            connection.execute(self._sql.resign, {"holder": holder})

    def forget(self, before: datetime) -> int:
        cursor = self.load([CURSOR])[CURSOR].row
        planned = cursor.at if isinstance(cursor, Cursor) else 0
        return forget(self._db, self._sql, planned=planned, before=before)

    def close(self) -> None:
        self._db.close()


def _after_all(prefix: str) -> str:
    """What comes, byte by byte, behind everything that begins so."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _pulses(rows: Iterable[Any]) -> tuple[tuple[NodeId, Pulse], ...]:
    return tuple(
        (NodeId(node), Pulse(reading=reading, incarnation=_incarnation(incarnation)))
        for node, reading, incarnation in rows
    )


def open_store(url: str, *, readonly: bool = False) -> Store:
    """Opens the store that a URL names. `readonly` is for a look from another process: it takes no lock."""
    forms = "sqlite:///path/to/file, postgresql://user@host/database or memory:"
    if url in {"memory:", "memory://"}:
        return MemoryStore()
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadInput(f"{url!r} does not name a store: write {forms}") from None
    match parsed.get_backend_name():
        case "sqlite":
            path = parsed.database
            if path in {None, "", ":memory:"}:
                return SqlStore(Sqlite(None))
            return SqlStore(Sqlite(Path(str(path)), readonly=readonly))
        case "postgresql" | "postgres":
            from sickbay.adapters.stores.postgres import Postgres

            return SqlStore(Postgres(parsed, readonly=readonly))
        case other:
            raise BadInput(f"there is no store of the kind {other!r}: write {forms}")
