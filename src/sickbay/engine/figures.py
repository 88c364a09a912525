"""Counters of the loop itself: rounds, refused commits, facts. In memory: a process that restarts begins at zero."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sickbay.model.facts import Fact


@dataclass(slots=True)
class LoopFigures:
    """Written by the engine's thread, read by any."""

    rounds: int = 0
    seconds: float = 0.0  # that rounds took, all together
    refused: int = 0  # commits: a row had changed since it was read
    facts: Counter[str] = field(default_factory=Counter)  # by the kind of their news

    def learned(self, facts: Iterable[Fact]) -> None:
        for fact in facts:
            self.facts[str(type(fact.news).__struct_config__.tag)] += 1
