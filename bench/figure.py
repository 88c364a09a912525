"""What a bench hands back: lines of a table, with the goal where there is one."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Line:
    what: str
    value: str
    goal: str = ""
    met: bool | None = None  # None: there is no goal, it is for orientation

    @property
    def verdict(self) -> str:
        return "" if self.met is None else "yes" if self.met else "**no**"


@dataclass(frozen=True, slots=True)
class Figure:
    title: str
    about: str
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()  # what a reader must know to judge it


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured. Ratios hold from `full` on; `tiny` only shows that a bench runs."""

    name: str

    def pick(self, *, full: float, quick: float, tiny: float) -> int:
        return int({"full": full, "quick": quick, "tiny": tiny}[self.name])


FULL, QUICK, TINY = Size("full"), Size("quick"), Size("tiny")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * share) - 1)]


def in_words(seconds: float) -> str:
    """A duration with three digits that count."""
    units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    unit, scale = next((pair for pair in units if seconds * pair[1] >= 1.0), units[-1])
    return f"{seconds * scale:.3g} {unit}"
