"""What watches a node without disturbing it.

A probe is a function that says what is new since it looked last; the loop owns its period and its failures. A new one
(NVML, the network's counters) is one more `Probe` in the list of a place (`sickbay.clusters.local.node`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sickbay.model.noun import Noun
from sickbay.model.protocol import Item

HURRIED = 0.1
Look = Callable[[float], Sequence[Item]]  # the monotonic clock now → what is new


@dataclass(frozen=True, slots=True)
class Probe:
    """`witness`: the watermark waits for it, and a look reads it through. `flush`: what it holds back to sum it up.

    `places`: how far it has read its sources, which is kept in one stroke with what it found there.

    A look reads all witnesses one after the other: one that can hang asks a child process, and gives up.
    """

    name: str
    look: Look
    period: float  # seconds after which it looks again though nothing has called it
    gap: float = 0.0  # it looks no oftener than this, however much happens
    witness: bool = False
    flush: Look | None = None
    places: Callable[[], Mapping[str, Noun | None]] | None = None
    restless: Callable[[], bool] | None = None  # while this holds, it looks every `HURRIED` seconds
    told: Callable[[float], None] | None = None  # what it found is in the outbox and on disk: it may remember that
    may_hang: bool = False  # runs in a thread of its own; one that hangs is left alone, and that is said

    @property
    def now_every(self) -> float:
        return HURRIED if self.restless is not None and self.restless() else self.period
