"""What a decision can be: a move, an act, or a wait. Nothing else."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sickbay.model.fleet import JobId
from sickbay.model.incident import Wait
from sickbay.model.intent import AnyAct, Notify


@dataclass(frozen=True, slots=True)
class Tell:
    """A notification that goes with a decision; `once` names it so that it is not sent again."""

    notice: Notify
    once: str


@dataclass(frozen=True, slots=True)
class Move:
    """Take this event of TRANSITIONS, then decide again."""

    event: str
    because: str
    also: dict[str, Any] = field(default_factory=dict)  # fields that change with it
    tell: Tell | None = None
    answer: str = ""  # to whoever ordered it


@dataclass(frozen=True, slots=True)
class Change:
    """Stay in the state, change these fields, then decide again."""

    because: str
    also: dict[str, Any] = field(default_factory=dict)
    tell: Tell | None = None
    call: tuple[JobId, ...] = ()  # attempts that are asked to end
    before: str = ""  # what can wait until they have saved; empty: they end at once
    answer: str = ""  # to whoever ordered it


@dataclass(frozen=True, slots=True)
class Do:
    """Write this intent down (if it is admitted), taking `event` with it if there is one."""

    act: AnyAct
    because: str
    patience: timedelta  # until it must have been seen
    clock: str  # by the source that will show it
    event: str = ""
    also: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stay:
    """Wait. The engine adds what the decision read."""

    wait: Wait
    tell: Tell | None = None
    also: dict[str, Any] = field(default_factory=dict)


Decision = Move | Change | Do | Stay
