"""Ground truth: an event log of what was told and what happened, apart from what anybody sees."""

from collections import Counter
from typing import NamedTuple

from sickbay.sim.schedule import Scheduler


class TrueEvent(NamedTuple):
    """Something true: it happened in the world, whoever knows of it."""

    at: float
    what: str
    subject: str
    detail: str = ""


class Violation(NamedTuple):
    """Something that must never happen, seen by the world itself.

    `key` names the act that did it; `since` is when it became wrong: whoever could not know that yet is excused.
    """

    at: float
    kind: str
    subject: str
    detail: str
    key: str = ""
    since: float = -1.0


class Wrong(NamedTuple):
    """An invariant that does not hold. `kind` names the invariant: what a planted defect must be found by."""

    kind: str
    text: str


class CallRecord(NamedTuple):
    """A call that reached, or should have reached, the world, and what its caller was told."""

    at: float
    act: str
    key: str
    target: str
    fate: str
    answer: str


class Chronicle:
    """The world's own log. Invariants are asserted on it, never on the journal of the engine."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.events: list[TrueEvent] = []
        self.violations: list[Violation] = []
        self.told: list[CallRecord] = []
        self.counts: Counter[str] = Counter()

    def note(self, what: str, subject: str, detail: str = "") -> None:
        self.counts[what] += 1
        self.events.append(TrueEvent(self._scheduler.now, what, subject, detail))

    def violate(self, kind: str, subject: str, detail: str, *, key: str = "", since: float = -1.0) -> None:
        self.violations.append(Violation(self._scheduler.now, kind, subject, detail, key, since))
        self.note(f"violation.{kind}", subject, detail)

    def tell(self, act: str, key: str, target: str, fate: str, answer: str) -> None:
        self.told.append(CallRecord(self._scheduler.now, act, key, target, fate, answer))

    def of(self, what: str, subject: str | None = None) -> list[TrueEvent]:
        return [event for event in self.events if event.what == what and subject in {None, event.subject}]
