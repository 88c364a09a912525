"""Every statement of the SQL store. Both databases take the same words, but for those that `Database` fills in."""

from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy import TextClause, text

from sickbay.adapters.stores.database import Database

_WORDS: Mapping[str, str] = {
    "load": "SELECT key, version, body FROM nouns WHERE key {in_keys}",
    "versions": "SELECT key, version, tag FROM nouns WHERE key {in_keys}",
    "find": "SELECT key FROM nouns WHERE tag = :tag AND tag <> '' ORDER BY key LIMIT :limit",
    # Goes from tag to tag through the index: there are few tags of a kind and many rows.
    "tags": (
        "WITH RECURSIVE tags (tag) AS (SELECT min(tag) FROM nouns WHERE tag >= :first AND tag < :end AND tag <> ''"
        " UNION ALL SELECT (SELECT min(tag) FROM nouns WHERE tag > tags.tag AND tag < :end AND tag <> '') FROM tags"
        " WHERE tags.tag IS NOT NULL) SELECT tag FROM tags WHERE tag IS NOT NULL"
    ),
    "keys": "SELECT key FROM nouns WHERE key > :after AND key >= :first AND key < :end ORDER BY key LIMIT :limit",
    "leads": "SELECT epoch FROM lease WHERE epoch = :epoch AND holder IS NOT NULL {share}",
    "next_version": "UPDATE versions SET last = last + :by RETURNING last",
    "put": (
        "INSERT INTO nouns (key, tag, version, opened, owner, ended, body)"
        " VALUES (:key, :tag, :version, :opened, :owner, :ended, :body)"
        " ON CONFLICT (key) DO UPDATE SET tag = excluded.tag, version = excluded.version, opened = excluded.opened,"
        " owner = excluded.owner, ended = excluded.ended, body = excluded.body"
    ),
    "delete": "DELETE FROM nouns WHERE key {in_keys}",
    # --- waits
    "wake": (
        "UPDATE waits SET dirty = 1 WHERE subject IN (SELECT subject FROM wait_on WHERE key {in_keys}) AND dirty = 0"
    ),
    "drop_waits": "DELETE FROM waits WHERE subject {in_keys}",
    "drop_reads": "DELETE FROM wait_on WHERE subject {in_keys}",
    "mark": ("INSERT INTO waits (subject, clock, at, urgency, dirty) VALUES (:subject, :clock, :at, :urgency, :dirty)"),
    "read_by": "INSERT INTO wait_on (subject, key, version) VALUES (:subject, :key, :version)",
    "dirty": "SELECT urgency, subject FROM waits WHERE dirty = 1 ORDER BY urgency, subject LIMIT :limit",
    "passed": (
        "SELECT urgency, subject FROM waits WHERE clock = :clock AND at <= :reading"
        " ORDER BY urgency, subject LIMIT :limit"
    ),
    # --- facts and pulses
    "present": "SELECT coalesce(max(seq), 0), {wall} FROM facts",
    "wall": "SELECT {wall}",
    "facts": "SELECT seq, body FROM facts WHERE seq > :after ORDER BY seq LIMIT :limit",
    "hear": (
        "INSERT INTO pulses (node, reading, incarnation, news) VALUES (:node, :reading, :incarnation, 1)"
        " ON CONFLICT (node) DO UPDATE SET reading = excluded.reading, incarnation = excluded.incarnation,"
        " news = CASE WHEN CASE WHEN pulses.hushed_at IS NULL"
        " THEN pulses.told IS NULL OR pulses.told <> excluded.incarnation"
        " ELSE excluded.reading > pulses.hushed_at END THEN 1 ELSE 0 END"
        " WHERE excluded.reading >= pulses.reading"
    ),
    "tell": (
        "UPDATE pulses SET told = :incarnation, hushed_at = NULL,"
        " news = CASE WHEN incarnation <> :incarnation THEN 1 ELSE 0 END WHERE node = :node"
    ),
    "hush": "UPDATE pulses SET hushed_at = reading, news = 0 WHERE node = :node",
    "silent": (
        "SELECT node, reading, incarnation FROM pulses WHERE told IS NOT NULL AND hushed_at IS NULL"
        " AND reading < :before ORDER BY reading, node LIMIT :limit"
    ),
    "heard": "SELECT node, reading, incarnation FROM pulses WHERE news = 1 ORDER BY node LIMIT :limit",
    # --- the story
    "line": "INSERT INTO lines (seq, at, body) VALUES (:seq, :at, :body)",
    "told": "INSERT INTO told (subject, seq) VALUES (:subject, :seq)",
    "story": (
        "SELECT lines.body FROM told JOIN lines ON lines.seq = told.seq WHERE told.subject = :subject"
        " ORDER BY told.seq DESC LIMIT :limit"
    ),
    # --- the lease
    "lease": (
        "UPDATE lease SET epoch = CASE WHEN holder = :holder AND until > {now} THEN epoch ELSE epoch + 1 END,"
        " holder = :holder, until = {now} + :ttl"
        " WHERE holder IS NULL OR holder = :holder OR until <= {now} RETURNING epoch"
    ),
    "resign": "UPDATE lease SET holder = NULL WHERE holder = :holder",
    # --- mail
    "post": ("INSERT INTO letters (id, node, at, body) VALUES (:id, :node, :at, :body) ON CONFLICT (id) DO NOTHING"),
    "mail": "SELECT body FROM letters WHERE node = :node ORDER BY seq LIMIT :limit",
    "mailed": "SELECT DISTINCT node FROM letters WHERE node {in_keys}",
    "strike": "DELETE FROM letters WHERE id {in_keys}",
    # --- age
    "forget_letters": "DELETE FROM letters WHERE at < :before",
    "hushed": (
        "SELECT node FROM pulses WHERE node > :node AND hushed_at IS NOT NULL AND news = 0"
        " AND NOT EXISTS (SELECT 1 FROM nouns WHERE key = 'node:' || pulses.node) ORDER BY node LIMIT :limit"
    ),
    "forget_pulse": "DELETE FROM pulses WHERE node = :node AND hushed_at IS NOT NULL AND news = 0",
    "oldest_facts": "SELECT seq, at FROM facts WHERE seq > :after AND seq <= :planned ORDER BY seq LIMIT :limit",
    "forget_fact": "DELETE FROM facts WHERE seq = :seq",
    "old_lines": (
        "SELECT seq, at, EXISTS (SELECT 1 FROM told JOIN nouns ON nouns.key = told.subject"
        " WHERE told.seq = lines.seq AND nouns.opened = 1 AND told.seq > coalesce((SELECT later.seq FROM told AS later"
        " WHERE later.subject = told.subject ORDER BY later.seq DESC LIMIT 1 OFFSET :story), -1)) FROM lines"
        " WHERE at < :before AND at >= :at AND (at, seq) > (:at, :seq) ORDER BY at, seq LIMIT :limit"
    ),
    "forget_line": "DELETE FROM lines WHERE seq = :seq",
    "forget_told": "DELETE FROM told WHERE seq = :seq",
    "old_rows": (
        "SELECT key, ended, EXISTS (SELECT 1 FROM nouns AS of WHERE of.key = nouns.owner AND of.opened = 1) FROM nouns"
        " WHERE ended < :before AND ended >= :at AND ended IS NOT NULL AND (ended, key) > (:at, :key)"
        " ORDER BY ended, key LIMIT :limit"
    ),
}

# Goes to the driver as it is: named parameters would nearly double the cost of a large batch.
_APPEND = "INSERT INTO facts (id, at, body) VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING"


class Statements(NamedTuple):
    """Built once per store, so that SQLAlchemy compiles and the driver prepares each of them once."""

    append: str
    load: TextClause
    versions: TextClause
    find: TextClause
    tags: TextClause
    keys: TextClause
    leads: TextClause
    next_version: TextClause
    put: TextClause
    delete: TextClause
    wake: TextClause
    drop_waits: TextClause
    drop_reads: TextClause
    mark: TextClause
    read_by: TextClause
    dirty: TextClause
    passed: TextClause
    present: TextClause
    wall: TextClause
    facts: TextClause
    hear: TextClause
    tell: TextClause
    hush: TextClause
    silent: TextClause
    heard: TextClause
    line: TextClause
    told: TextClause
    story: TextClause
    lease: TextClause
    resign: TextClause
    post: TextClause
    mail: TextClause
    mailed: TextClause
    strike: TextClause
    forget_letters: TextClause
    hushed: TextClause
    forget_pulse: TextClause
    oldest_facts: TextClause
    forget_fact: TextClause
    old_lines: TextClause
    forget_line: TextClause
    forget_told: TextClause
    old_rows: TextClause

    @classmethod
    def of(cls, database: Database) -> "Statements":
        words = {"in_keys": database.in_keys, "now": database.now, "wall": database.wall, "share": database.share}
        return cls(
            append=_APPEND.replace("?", database.placeholder),
            **{name: text(statement.format_map(words)) for name, statement in _WORDS.items()},
        )
