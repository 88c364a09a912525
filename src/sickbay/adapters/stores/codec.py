"""What every store does the same way: the wire form of rows, the limits of a unit, the step of a clock, what ages.

The limits are DynamoDB's, and all stores keep them, so that an engine that works on one works on all.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

import msgspec

from sickbay.model.checkup import Checkup
from sickbay.model.clock import WatchedClock
from sickbay.model.errors import Conflict, UnitRefused, UnitTooLarge, UnreadableRow, Unstorable, UnusableStore
from sickbay.model.facts import EarlyAgent, Fact, Garbled, Mark
from sickbay.model.fleet import FormerSeat, KnownMachine, Part, Record, Roster
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent
from sickbay.model.job import Attempt, Job
from sickbay.model.order import OrderRecord
from sickbay.model.protocol import Command
from sickbay.model.rows import ITEM_BYTES, UNIT_ACTIONS, UNIT_BYTES, AnyRow, Line, Unit, Versioned, type_of

NO_ROW = Versioned(row=None, version=0)
REFUSALS = (Conflict, UnitRefused)  # what is wrong with one unit, and with no other of its group

_encode = msgspec.json.Encoder().encode
_row_decoders: Mapping[type[AnyRow] | None, msgspec.json.Decoder[Any]] = {
    type_: msgspec.json.Decoder(type_) for type_ in get_args(AnyRow)
}
_fact_decoder = msgspec.json.Decoder(Fact)
_line_decoder = msgspec.json.Decoder(Line)
_letter_decoder = msgspec.json.Decoder(Command)


class WireUnit(NamedTuple):
    """A unit in its wire form."""

    writes: dict[str, bytes | None]
    story: tuple[bytes, ...]


def pack(unit: Unit) -> WireUnit:
    """Encodes a unit once; refuses with UnitTooLarge what no store would take."""
    writes: dict[str, bytes | None] = {}
    total = 0
    for key, row in unit.writes.items():
        if row is None:
            writes[key] = None
            continue
        writes[key] = body = pack_row(key, row)
        total += len(body)
    story = tuple(_encode(line) for line in unit.story)
    total += sum(map(len, story)) + sum(len(_encode(mark)) for mark in unit.waits.values())
    if total > UNIT_BYTES:
        raise UnitTooLarge(f"a unit has {total} bytes: at most {UNIT_BYTES}")
    return WireUnit(writes, story)


def count(unit: Unit, tags: Mapping[str, str]) -> None:
    """Refuses a unit with too many actions. `tags`: of the written rows as they are in the store."""
    if (actions := unit.actions(tags)) > UNIT_ACTIONS:
        raise UnitTooLarge(f"a unit has {actions} actions: at most {UNIT_ACTIONS}")


def pack_row(key: str, row: AnyRow) -> bytes:
    type_ = type_of(key)
    if type_ is not type(row):
        # Found now, not when the row is read back: then it could not be decoded, and nothing would plan on.
        raise TypeError(f"the key {key!r} is not that of a {type(row).__name__}")
    body = _encode(row)
    if len(body) > ITEM_BYTES:
        raise UnitTooLarge(f"the row {key} has {len(body)} bytes: at most {ITEM_BYTES}")
    _prove(f"the row {key}", row, body, _row_decoders[type_])
    return body


def _prove(what: str, value: object, body: bytes, decoder: msgspec.json.Decoder[Any]) -> None:
    """Reads back what is about to be written: NaN becomes `null` in JSON, and who reads it later cannot go on.

    Costs 1 to 4 µs for a row or a fact; a commit takes a hundred.
    """
    try:
        same = decoder.decode(body) == value
    except (msgspec.MsgspecError, ValueError) as error:
        raise Unstorable(f"{what} could not be read back ({error}): it is not written") from error
    if not same:
        raise Unstorable(f"{what} would be read back as something else: it is not written")


def unpack_row(key: str, body: bytes) -> AnyRow:
    try:
        row: AnyRow = _row_decoders[type_of(key)].decode(body)
    except msgspec.MsgspecError as error:
        raise UnreadableRow(_unreadable(f"the row {key}", error)) from error
    return row


def read_row(key: str, body: bytes, version: int) -> Versioned:
    """A row as it is loaded. One that is damaged is told apart, so that those beside it can be read."""
    try:
        return Versioned(row=unpack_row(key, body), version=version)
    except UnreadableRow as error:
        return Versioned(row=None, version=version, damage=str(error))


def pack_fact(fact: Fact) -> bytes:
    body = _encode(fact)
    _prove(f"the fact {fact.id}", fact, body, _fact_decoder)
    return body


def unpack_fact(seq: int, body: bytes) -> Fact:
    """A fact as it is read. One that cannot be decoded says so, so that those after it can be learned."""
    try:
        fact = _fact_decoder.decode(body)
    except msgspec.MsgspecError as error:
        news = Garbled(because=_unreadable(f"fact {seq}", error))
        return Fact(id=f"garbled/{seq}", at=datetime.fromtimestamp(0, UTC), news=news, seq=seq)
    # The object was made on the line above and nobody else has it: cheaper than building a second one.
    msgspec.structs.force_setattr(fact, "seq", seq)
    return fact


def unpack_line(body: bytes) -> Line:
    try:
        return _line_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UnusableStore(_unreadable("a line of the story", error)) from error


def pack_letter(command: Command) -> bytes:
    return _encode(command)


def unpack_letter(body: bytes) -> Command:
    try:
        return _letter_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise UnusableStore(_unreadable("a command for an agent", error)) from error


def _unreadable(what: str, error: Exception) -> str:
    return f"{what} in the store cannot be read ({error}): restore the store from a backup"


def moved(clock: WatchedClock | None, mark: Mark, *, facts: int, wall: float | None) -> WatchedClock:
    """The clock of a mark's source after it. `facts`: the newest one; `wall`: the store's own time, if it has one."""
    before = clock or WatchedClock(source=mark.source, period=mark.period)
    at = mark.at if wall is None else wall
    if before.period != mark.period:
        before = msgspec.structs.replace(before, period=mark.period)
    after = before.heard(at, mark.took)
    return msgspec.structs.replace(
        after,
        facts=max(after.facts, facts),
        cursor=after.cursor if mark.cursor is None else mark.cursor,
        as_of=after.as_of if mark.as_of is None else max(after.as_of, mark.as_of),
    )


def ended_at(row: AnyRow) -> datetime | None:
    """When the life that a row tells was over. None: it is open, or it holds present state and does not age."""
    match row:
        case Incident() | Job() | Checkup() if not row.open:
            return row.closed_at
        case Intent() if row.state.over:
            return row.planned_at
        case Part() | Roster() | Attempt() | EarlyAgent() | OrderRecord():
            return row.at
        case Record():
            return row.told_until
        case KnownMachine() | FormerSeat():
            return row.gone_at
        case _:
            return None


def owner_of(row: AnyRow) -> str:
    """The row for whose sake this one is kept while that one is open."""
    match row:
        case Intent() | Part():
            return row.owner
        case Roster() | Attempt():
            return f"job:{row.job}"
        case OrderRecord() if row.incident is not None:
            return f"incident:{row.incident}"
        case _:
            return ""


def opened(row: AnyRow) -> bool:
    """Whether a row tells a life that goes on: what was told of it and done for it is kept, whatever its age."""
    return isinstance(row, Incident | Job | Checkup) and row.open
