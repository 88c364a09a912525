"""The tables of the SQL stores, as numbered steps. A step that was released is never changed: a new one follows it."""

from collections.abc import Mapping

# What the two databases spell differently. Keys are compared byte by byte, whatever the locale of the database.
SPELLING: Mapping[str, Mapping[str, str]] = {
    "sqlite": {
        "text": "TEXT",
        "bytes": "BLOB",
        # AUTOINCREMENT: without it the number of a forgotten fact would return, below what was already planned.
        "numbered": "INTEGER PRIMARY KEY AUTOINCREMENT",
        "clustered": "WITHOUT ROWID",
    },
    "postgresql": {
        "text": 'TEXT COLLATE "C"',
        "bytes": "BYTEA",
        "numbered": "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "clustered": "",
    },
}

META = "CREATE TABLE meta (schema_version BIGINT NOT NULL)"

STEPS: Mapping[int, tuple[str, ...]] = {
    1: (
        # The last version that was given to a row: kept apart, so that a deletion does not set it back.
        "CREATE TABLE versions (last BIGINT NOT NULL)",
        "INSERT INTO versions (last) VALUES (0)",
        (
            "CREATE TABLE nouns (key {text} PRIMARY KEY, tag {text} NOT NULL, version BIGINT NOT NULL,"
            " opened SMALLINT NOT NULL, owner {text} NOT NULL, ended DOUBLE PRECISION, body {bytes} NOT NULL)"
        ),
        "CREATE INDEX nouns_by_tag ON nouns (tag, key) WHERE tag <> ''",
        "CREATE INDEX nouns_by_end ON nouns (ended) WHERE ended IS NOT NULL",
        (
            "CREATE TABLE waits (subject {text} PRIMARY KEY, clock {text}, at DOUBLE PRECISION,"
            " urgency BIGINT NOT NULL, dirty SMALLINT NOT NULL)"
        ),
        "CREATE INDEX waits_dirty ON waits (urgency, subject) WHERE dirty = 1",
        "CREATE INDEX waits_by_deadline ON waits (clock, at)",
        (
            "CREATE TABLE wait_on (subject {text} NOT NULL, key {text} NOT NULL, version BIGINT NOT NULL,"
            " PRIMARY KEY (subject, key)) {clustered}"
        ),
        "CREATE INDEX wait_on_by_key ON wait_on (key)",
        (
            "CREATE TABLE facts (seq {numbered}, id {text} NOT NULL UNIQUE, at DOUBLE PRECISION NOT NULL,"
            " body {bytes} NOT NULL)"
        ),
        (
            "CREATE TABLE pulses (node {text} PRIMARY KEY, reading DOUBLE PRECISION NOT NULL,"
            " incarnation {bytes} NOT NULL, told {bytes}, hushed_at DOUBLE PRECISION, news SMALLINT NOT NULL)"
        ),
        "CREATE INDEX pulses_news ON pulses (node) WHERE news = 1",
        "CREATE INDEX pulses_quiet ON pulses (reading, node) WHERE told IS NOT NULL AND hushed_at IS NULL",
        "CREATE TABLE lines (seq BIGINT PRIMARY KEY, at DOUBLE PRECISION NOT NULL, body {bytes} NOT NULL)",
        "CREATE INDEX lines_by_age ON lines (at)",
        "CREATE TABLE told (subject {text} NOT NULL, seq BIGINT NOT NULL, PRIMARY KEY (subject, seq)) {clustered}",
        "CREATE INDEX told_by_line ON told (seq)",
        "CREATE TABLE lease (epoch BIGINT NOT NULL, holder {text}, until DOUBLE PRECISION NOT NULL)",
        "INSERT INTO lease (epoch, holder, until) VALUES (0, NULL, 0)",
    ),
    2: (
        (
            "CREATE TABLE letters (seq {numbered}, id {text} NOT NULL UNIQUE, node {text} NOT NULL,"
            " at DOUBLE PRECISION NOT NULL, body {bytes} NOT NULL)"
        ),
        "CREATE INDEX letters_by_node ON letters (node, seq)",
    ),
    3: (),  # the tables are the same, what the rows say is not: pools carry their cluster, large rows have parts
}

NEWEST = max(STEPS)
OLDEST = 3  # rows that were written under an older schema are not understood


def steps_after(version: int, dialect: str) -> list[tuple[int, list[str]]]:
    """What is left to do to bring a store of this version up to date; version 0 is an empty database."""
    spelling = SPELLING[dialect]
    return [
        (number, [statement.format_map(spelling) for statement in STEPS[number]])
        for number in sorted(STEPS)
        if number > version
    ]
