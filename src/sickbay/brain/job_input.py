"""What a job's decision may read, and the words that its states share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta

from sickbay.brain.decision import Tell
from sickbay.model.clock import Deadline
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.intent import Intent, Notify
from sickbay.model.job import Job

Placement = dict[NodeId, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class JobInput:
    """All that a job's decision may read."""

    job: Job
    intent: Intent | None
    fences: tuple[Intent, ...]  # of nodes out of reach, under way or failed
    place: Callable[[], Placement | str]  # nodes for the next attempt, or why there are none
    unusable: Callable[[], tuple[NodeId, ...] | str]  # what a cluster that chooses is to avoid, or why it is not asked
    well: Callable[[tuple[NodeId, ...]], tuple[NodeId, ...]]  # which of these nodes can be claimed
    mute: Callable[[tuple[NodeId, ...]], tuple[NodeId, ...]]  # which of these nodes nobody can check
    lost: Callable[[], tuple[NodeId, ...]]  # nodes of its attempt that nobody can reach
    unseen: Callable[[], tuple[NodeId, ...]]  # nodes of its attempt that its cluster cannot reach
    fenceable: Callable[[], tuple[NodeId, ...]]  # those of them that no other attempt would miss
    dismissed: Callable[[], bool]  # whether all that calls for its end was dismissed by now
    readings: dict[str, float]
    can: frozenset[Capability]
    present: dict[str, float] | None = None  # what deadlines are set from, where `readings` lag behind it
    as_of: float = float("inf")  # how far its cluster has been read

    def passed(self, deadline: Deadline | None) -> bool:
        return deadline is not None and deadline.passed(self.readings)

    def within(self, clock: str, duration: timedelta) -> Deadline:
        present = self.readings if self.present is None else self.present
        return Deadline(clock=clock, at=present.get(clock, 0.0) + duration.total_seconds())

    def unread(self, stop: Intent) -> Deadline | None:
        """Nothing is left to stop: an attempt that its controller has begun since shows itself in a newer read.

        When to look for it again; None: it would have been shown.
        """
        if not stop.gone or self.as_of >= stop.doubt_until:
            return None
        return Deadline(clock=self.cluster, at=self.readings.get(self.cluster, 0.0) + 1e-6)

    @property
    def native(self) -> bool:
        """Whether its cluster has an object of its own for it, made once, that a native controller runs again."""
        made_once = Capability.RERUN in self.can and Capability.PLACE not in self.can
        return self.job.adopted or (made_once and self.job.made)

    @property
    def cluster(self) -> str:
        return self.job.spec.cluster


TOLD = 20  # names that one line has


def listing(names: Iterable[str]) -> str:
    """A few names, and how many more there are: a gang may have thousands."""
    every = list(names)
    more = f" and {len(every) - TOLD} more" if len(every) > TOLD else ""
    return ", ".join(every[:TOLD]) + more


AVOIDED = 500  # nodes that a job or an order names as to be avoided: more is an outage, not a choice


def tell(job: Job, event: str, text: str) -> Tell:
    return Tell(Notify(event=event, subject=f"job:{job.id}", text=text), f"{event}:{job.attempt}:{len(job.told)}")
