"""What a decision can be: a move, an act, or a wait. Nothing else."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Any, Generic, TypedDict, TypeVar

from sickbay.model.clock import Deadline
from sickbay.model.fault import Fault, Remedy
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.incident import Doubt, IncidentKind, OperatorRequest, Phase, Proven, Try, Wait
from sickbay.model.intent import AnyAct, Notify
from sickbay.model.job import Call, End, Interruption, RankState, StorageTrouble, Work
from sickbay.model.order import OrderVerdict


class IncidentChanges(TypedDict, total=False):
    """Fields of an incident that change with a step of it."""

    incarnation: Incarnation | None
    fault: Fault
    kind: IncidentKind
    evidence: tuple[str, ...]
    seen_at: float
    shown_at: float
    remedy: Remedy
    beside: tuple[int, ...]
    wide: bool
    others: tuple[Fault, ...]
    least: Remedy
    needs_human: bool
    tries: tuple[Try, ...]
    spent: int
    healed: Remedy | None
    relapse: str
    told: tuple[str, ...]
    proof: Proven | None
    cut_short: int
    bared: bool
    serves: bool
    cordon_as_of: float | None
    cordon_from: float | None
    intent: str
    acts: int
    digest: str
    orders: tuple[OperatorRequest, ...]
    ordered: bool
    cordoned: bool
    kept: bool
    now: bool
    to_verify: bool
    closing: Phase | None
    closing_why: str
    doubt: Doubt | None
    sequel: Fault | None
    later: tuple[OperatorRequest, ...]
    deadline: Deadline | None


class JobChanges(TypedDict, total=False):
    """Fields of a job that change with a step of it."""

    attempt: int
    claim: dict[NodeId, tuple[int, ...]]
    ranks: dict[NodeId, RankState]
    ranks_as_of: float
    missing_as_of: float | None
    made: bool
    began_at: datetime | None
    began: float
    started_at: datetime | None
    runs_since: float | None
    ran: float
    place_until: Deadline | None
    stop_asked: str
    end: End | None
    calls: tuple[Call, ...]
    avoid: tuple[NodeId, ...]
    restarts: tuple[float, ...]
    interruptions: tuple[Interruption, ...]
    gates: int
    storage_trouble: StorageTrouble | None
    resumed_from: int | None
    work: Work | None
    listens: bool
    save_by: Deadline | None
    diagnosis: str
    held: bool
    intent: str
    fences: tuple[str, ...]
    remind: Deadline | None
    acts: int
    digest: str
    deadline: Deadline | None


Changes = TypeVar("Changes", IncidentChanges, JobChanges)


def _none() -> Any:
    return {}


@dataclass(frozen=True, slots=True)
class Tell:
    """A notification that goes with a decision; `once` names it so that it is not sent again."""

    notice: Notify
    once: str


@dataclass(frozen=True, slots=True)
class OrderReply:
    """To whoever ordered it: taken up, put off, done at once, or refused, and why."""

    verdict: OrderVerdict
    because: str
    rung: Remedy | None = None  # the repair that he is promised


@dataclass(frozen=True, slots=True)
class Move(Generic[Changes]):
    """Take this event of TRANSITIONS, then decide again."""

    event: str
    because: str
    also: Changes = field(default_factory=_none)
    tell: Tell | None = None
    answer: OrderReply | None = None


@dataclass(frozen=True, slots=True)
class Change(Generic[Changes]):
    """Stay in the state, change these fields, then decide again."""

    because: str
    also: Changes = field(default_factory=_none)
    tell: Tell | None = None
    call: tuple[JobId, ...] = ()  # attempts that are asked to end
    before: str = ""  # what can wait until they have saved; empty: they end at once
    answer: OrderReply | None = None


@dataclass(frozen=True, slots=True)
class Do(Generic[Changes]):
    """Write this intent down (if it is admitted), taking `event` with it if there is one."""

    act: AnyAct
    because: str
    patience: timedelta  # until it must have been seen
    clock: str  # by the source that will show it
    event: str = ""
    also: Changes = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class Stay:
    """Wait. The engine adds what the decision read."""

    wait: Wait
    tell: Tell | None = None


class Need(Enum):
    """What a job's decision may ask to have read: fields of `JobInput`."""

    ROOM = auto()
    SEATS = auto()
    WITHHELD = auto()
    THEIRS = auto()
    WELL = auto()
    MUTE = auto()
    AWAY = auto()
    DISMISSED = auto()


@dataclass(frozen=True, slots=True)
class ReadFirst:
    """Load this on demand, then decide again. A wait that follows is on what was read for it, and on nothing else."""

    need: Need
    nodes: tuple[NodeId, ...] = ()
    more: int = 0  # seats beside those, the first that the job may have


AnyDo = Do[IncidentChanges] | Do[JobChanges]
IncidentDecision = Move[IncidentChanges] | Change[IncidentChanges] | Do[IncidentChanges] | Stay
JobDecision = Move[JobChanges] | Change[JobChanges] | Do[JobChanges] | Stay | ReadFirst
