"""Rows: nouns under keys, in units that a store commits together or not at all."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from sickbay.model.checkup import Checkup, ScheduleWalk
from sickbay.model.clock import Deadline, Standstill, WatchedClock
from sickbay.model.facts import EarlyAgent
from sickbay.model.fleet import (
    Ages,
    Aside,
    Brake,
    ConfirmPace,
    Cursor,
    Errand,
    Flipped,
    FormerSeat,
    Freed,
    InForce,
    KnownMachine,
    Ledger,
    Node,
    Part,
    Record,
    Roster,
    Token,
    Withholding,
)
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, IntentState
from sickbay.model.job import Attempt, Job
from sickbay.model.notice import NoticeChannel
from sickbay.model.noun import Noun
from sickbay.model.order import OrderRecord

AnyRow = (
    Node
    | Incident
    | Job
    | Intent
    | Ledger
    | Brake
    | ConfirmPace
    | Record
    | KnownMachine
    | FormerSeat
    | EarlyAgent
    | Withholding
    | InForce
    | Cursor
    | WatchedClock
    | Standstill
    | Token
    | Checkup
    | ScheduleWalk
    | Aside
    | Ages
    | Freed
    | Flipped
    | Errand
    | Part
    | Roster
    | OrderRecord
    | Attempt
    | NoticeChannel
)

KINDS: dict[str, type[AnyRow]] = {
    "node": Node,
    "incident": Incident,
    "job": Job,
    "intent": Intent,
    "ledger": Ledger,
    "brake": Brake,
    "record": Record,
    "voice": EarlyAgent,
    "withholding": Withholding,
    "inforce": InForce,
    "cursor": Cursor,
    "clock": WatchedClock,
    "standstill": Standstill,
    "token": Token,
    "checkup": Checkup,
    "aside": Aside,
    "ages": Ages,
    "freed": Freed,
    "flipped": Flipped,
    "errand": Errand,
    "part": Part,
    "roster": Roster,
    "order": OrderRecord,
    "attempt": Attempt,
    "channel": NoticeChannel,
}

# They were told by their names alone before they were nouns of their own, and keep the keys that they had then.
_NAMED: Mapping[str, Mapping[str, type[AnyRow]]] = {
    "brake": {"brake:pace/": ConfirmPace},
    "checkup": {"checkup:schedule": ScheduleWalk},
    "record": {"record:holder/": KnownMachine, "record:seat/": FormerSeat},
}

WITHHOLDING = "withholding:"
SCHEDULE = "checkup:schedule"
IN_FORCE = "inforce:"
CURSOR = "cursor:"
AGES = "ages:"
AUDIT = "operator:"  # the subject of the audit log

TO_SEND = "planned:"  # tags, before the lane: intents that may be sent now
BACKING_OFF = "later:"  # and those that may not be sent before some time

UNIT_ACTIONS = 100  # DynamoDB's limit for one transaction
ITEM_BYTES = 400_000
UNIT_BYTES = 4_000_000


def key_of(row: AnyRow) -> str:
    match row:
        case Node() | Incident() | Job() | Checkup() | Errand():
            return f"{type(row).__name__.lower()}:{row.id}"
        case Intent():
            return f"intent:{row.key}"
        case Ledger():
            return f"ledger:{row.pool}"
        case Freed():
            return f"freed:{row.pool}"
        case Flipped():
            return f"flipped:{row.brake}"
        case Brake():
            return f"brake:{row.scope}:{row.signature}"
        case ConfirmPace():
            return f"brake:pace/{row.scope}:{row.signature}"
        case Record() | KnownMachine() | FormerSeat():
            return f"record:{row.subject}"
        case ScheduleWalk():
            return SCHEDULE
        case EarlyAgent():
            return f"voice:{row.node}"
        case Withholding():
            return WITHHOLDING
        case InForce():
            return IN_FORCE
        case Cursor():
            return CURSOR
        case Ages():
            return AGES
        case Token():
            return f"token:{row.hash}"
        case WatchedClock():
            return f"clock:{row.source}"
        case Part():
            return f"part:{row.of}/{row.number}"
        case Roster():
            return f"roster:{row.job}/{row.attempt}/{row.number}"
        case Attempt():
            return f"attempt:{row.job}/{row.number}"
        case Aside():
            return f"aside:{row.subject}"
        case Standstill():
            return f"standstill:{row.source}"
        case NoticeChannel():
            return f"channel:{row.name}"
        case OrderRecord():
            return f"order:{row.id}"


def kind_of(key: str) -> str:
    return key.partition(":")[0]


def type_of(key: str) -> type[AnyRow] | None:
    """Which noun a row under this key is."""
    kind = kind_of(key)
    if kind in _NAMED:  # asked for every row that is read or written: most kinds have one noun
        for prefix, type_ in _NAMED[kind].items():
            if key.startswith(prefix):
                return type_
    return KINDS.get(kind)


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
            return f"open-job:{row.spec.cluster}"
        case Intent() if row.state is IntentState.PLANNED:
            # By lane, and apart from what is not due yet: nobody is looked at in vain, or hidden behind another.
            return f"{TO_SEND if row.not_before is None else BACKING_OFF}{row.lane}"
        case Token():
            return f"token:{row.name}"
        case _:
            return ""


def tag_moves(was: str, row: AnyRow | None) -> int:
    """How many entries of the index of tags change when this row takes the place of one that had that tag."""
    tag = tag_of(row) if row is not None else ""
    return 0 if was == tag else bool(was) + bool(tag)


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


class AuditEntry(Noun):
    """Who did what, and why: beside the words of a line, which nothing reads back."""

    by: str
    verb: str
    target: str = ""
    reason: str = ""


class Line(Noun):
    """One line of the story, kept for `explain`."""

    subjects: tuple[str, ...]  # row keys that it is told under
    at: datetime
    text: str
    event: str = ""
    audit: AuditEntry | None = None  # of a person's act; then it is told under AUDIT too


class Unit(Noun):
    """One incident, job or batch of facts with all that goes with it."""

    writes: dict[str, AnyRow | None] = {}  # None deletes
    expect: dict[str, int] = {}
    waits: dict[str, WaitMark | None] = {}
    story: tuple[Line, ...] = ()
    counts: dict[str, int] = {}  # what goes up with it in the controller's metrics; no store keeps it
    durable: bool = True  # fsynced; what follows from stored facts alone need not be: it is planned anew

    def actions(self, tags: Mapping[str, str]) -> int:
        """What a store must do for it at most, counted the same by all: at most UNIT_ACTIONS.

        The epoch; each row written or expected; each tag that is taken away or given; each wait, and what it is on
        besides those rows; each subject of each line. `tags`: of the written rows as they were before.
        """
        rows = self.writes.keys() | self.expect.keys()
        moves = sum(tag_moves(tags.get(key, ""), row) for key, row in self.writes.items())
        marks = [mark for mark in self.waits.values() if mark is not None]
        on = sum(key not in rows for mark in marks for key in mark.on)
        told = sum(len(set(line.subjects)) or 1 for line in self.story)
        return 1 + len(rows) + moves + len(self.waits) + on + told

    @property
    def empty(self) -> bool:
        return not (self.writes or self.waits or self.story)


def given(unit: Unit, versions: Sequence[int]) -> Unit:
    """A unit of a group with the versions that those before it were given, in place of −n for the n-th of them."""

    def real(version: int) -> int:
        return versions[-version - 1] if version < 0 else version

    if all(version >= 0 for version in unit.expect.values()) and not any(
        version < 0 for mark in unit.waits.values() if mark is not None for version in mark.on.values()
    ):
        return unit
    return replace(
        unit,
        expect={key: real(version) for key, version in unit.expect.items()},
        waits={
            subject: mark and replace(mark, on={key: real(version) for key, version in mark.on.items()})
            for subject, mark in unit.waits.items()
        },
    )


Rows = Mapping[str, Versioned]


class Lease(Noun):
    """A term of leadership. `ttl` is counted by the holder on its own monotonic clock from before it asked."""

    epoch: int
    holder: str
    ttl: float
