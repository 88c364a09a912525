"""Rows: nouns under keys, in units that a store commits together or not at all."""

from collections.abc import Mapping
from datetime import datetime

from sickbay.model.checkup import Checkup
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.fleet import Aside, Brake, Cursor, InForce, Ledger, Node, Record, Token, Voice, Withholding
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, IntentState
from sickbay.model.job import Job
from sickbay.model.noun import Noun

AnyRow = (
    Node
    | Incident
    | Job
    | Intent
    | Ledger
    | Brake
    | Record
    | Voice
    | Withholding
    | InForce
    | Cursor
    | WatchedClock
    | Token
    | Checkup
    | Aside
)

KINDS: dict[str, type[AnyRow]] = {
    "node": Node,
    "incident": Incident,
    "job": Job,
    "intent": Intent,
    "ledger": Ledger,
    "brake": Brake,
    "record": Record,
    "voice": Voice,
    "withholding": Withholding,
    "inforce": InForce,
    "cursor": Cursor,
    "clock": WatchedClock,
    "token": Token,
    "checkup": Checkup,
    "aside": Aside,
}

WITHHOLDING = "withholding:"
IN_FORCE = "inforce:"
CURSOR = "cursor:"

UNIT_ITEMS = 50  # DynamoDB's transactions take 100; the other half is for the index of waits
ITEM_BYTES = 400_000
UNIT_BYTES = 4_000_000


def key_of(row: AnyRow) -> str:
    match row:
        case Node() | Incident() | Job() | Checkup():
            return f"{type(row).__name__.lower()}:{row.id}"
        case Intent():
            return f"intent:{row.key}"
        case Ledger():
            return f"ledger:{row.pool}"
        case Brake():
            return f"brake:{row.scope}:{row.signature}"
        case Record():
            return f"record:{row.subject}"
        case Voice():
            return f"voice:{row.node}"
        case Withholding():
            return WITHHOLDING
        case InForce():
            return IN_FORCE
        case Cursor():
            return CURSOR
        case Token():
            return f"token:{row.hash}"
        case WatchedClock():
            return f"clock:{row.source}"
        case Aside():
            return f"aside:{row.subject}"


def kind_of(key: str) -> str:
    return key.split(":", 1)[0]


def tag_of(row: AnyRow) -> str:
    """The one index that a row is found by, besides its key. Empty: none."""
    match row:
        case Node() if row.claimable:
            return f"claimable:{row.pool}"
        case Node() if row.vacant_until is not None:
            return f"vacant:{row.pool}"
        case Node() if row.checking:
            return f"checking:{row.pool}"
        case Incident() if row.open:
            return f"open-incident:{row.pool}"
        case Job() if row.open:
            return f"open-job:{row.spec.pool}"
        case Intent() if row.state is IntentState.PLANNED:
            return "planned"
        case Token():
            return f"token:{row.name}"
        case _:
            return ""


class Versioned(Noun):
    """A row as it was read. Version 0: there is none."""

    row: AnyRow | None
    version: int = 0
    damage: str = ""  # why a row that is there cannot be decoded; then `row` is None


class WaitMark(Noun):
    """When a subject is to be planned again: at a deadline, or when a row that its decision read has changed."""

    until: Deadline | None = None
    on: dict[str, int] = {}  # key → version that was read
    urgency: int = 9  # 0 first


DUE_NOW = WaitMark(until=Deadline(clock="ingest", at=-1.0), urgency=0)


class Line(Noun):
    """One line of the story, kept for `explain`."""

    subjects: tuple[str, ...]  # row keys that it is told under
    at: datetime
    text: str
    event: str = ""


class Unit(Noun):
    """One incident, job or batch of facts with all that goes with it."""

    writes: dict[str, AnyRow | None] = {}  # None deletes
    expect: dict[str, int] = {}
    waits: dict[str, WaitMark | None] = {}
    story: tuple[Line, ...] = ()
    follows: bool = False  # from stored facts alone: a power cut may take it back, and it is planned again

    @property
    def items(self) -> int:
        return len(self.writes.keys() | self.expect.keys() | self.waits.keys()) + len(self.story)

    @property
    def empty(self) -> bool:
        return not (self.writes or self.waits or self.story)


Rows = Mapping[str, Versioned]


class Lease(Noun):
    """A term of leadership. `ttl` is counted by the holder on its own monotonic clock from before it asked."""

    epoch: int
    holder: str
    ttl: float
