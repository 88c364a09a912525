"""Rows that were told by their names alone: each is a noun of its own now, and is read from an old database as such."""

from datetime import UTC, datetime

import pytest

from sickbay.adapters.stores.codec import pack_row, unpack_row
from sickbay.model.checkup import Checkup, ScheduleWalk
from sickbay.model.fleet import Brake, ConfirmPace, FormerSeat, Incarnation, IncidentId, KnownMachine, Record
from sickbay.model.rows import AnyRow, key_of, type_of

THEN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "body", "row"),
    [
        (
            "brake:pace/pool:sim/gpu:xid.79",
            b'{"scope":"pace/pool:sim/gpu","signature":"xid.79","next_check":7.5}',
            ConfirmPace(scope="pace/pool:sim/gpu", signature="xid.79", next_check=7.5),
        ),
        (
            "checkup:schedule",
            b'{"id":"schedule","level":0,"by":"schedule","reason":"","asked_at":"2026-01-01T00:00:00Z","after":"node:b"}',
            ScheduleWalk(after="node:b"),
        ),
        (
            "record:holder/uid/7",
            b'{"subject":"holder/uid/7","gone_at":"2026-01-01T00:00:00Z","left":"i3"}',
            KnownMachine(subject="holder/uid/7", gone_at=THEN, left=IncidentId("i3")),
        ),
        (
            "record:seat/sim/a",
            b'{"subject":"seat/sim/a","boots":["b"],"holder":{"boot_id":"b"},"gone_at":"2026-01-01T00:00:00Z"}',
            FormerSeat(subject="seat/sim/a", gone_at=THEN, boots=("b",), holder=Incarnation(boot_id="b")),
        ),
    ],
)
def test_what_an_older_version_wrote_is_read(key: str, body: bytes, row: AnyRow) -> None:
    assert unpack_row(key, body) == row


@pytest.mark.parametrize(
    "row",
    [
        ConfirmPace(scope="pool:sim/gpu", signature="xid.79", next_check=1.0),
        Brake(scope="pool:sim/gpu", signature="xid.79"),
        ScheduleWalk(after="node:b"),
        Checkup(id="check-1", level=1, by="ann", reason="", asked_at=THEN),
        KnownMachine(subject="holder/i-1"),
        FormerSeat(subject="seat/sim/a", gone_at=THEN),
        Record(subject="i-1"),
    ],
)
def test_a_key_tells_which_noun_is_under_it(row: AnyRow) -> None:
    key = key_of(row)
    assert type_of(key) is type(row)
    assert unpack_row(key, pack_row(key, row)) == row
