"""What a job's decision may read, and the words that its states share."""

from collections.abc import Iterable
from datetime import timedelta

from sickbay.brain.decision import Tell
from sickbay.model.clock import Deadline
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.intent import Intent, Notify
from sickbay.model.job import Job
from sickbay.model.noun import Noun

Placement = dict[NodeId, tuple[int, ...]]


class Seat(Noun):
    """One node, as a job that may run there sees it."""

    node: NodeId
    known: bool = True
    claimable: bool = False
    checking: str = ""
    here: bool = False  # in the pool that the job asks for
    unchecked: bool = False  # only its agent can do the check before the start, and is not heard
    free: tuple[int, ...] | None = None  # devices that others leave it; none of them: the whole node; None: too few

    @property
    def offer(self) -> tuple[int, ...] | None:
        """What it may have of the node, wherever that is."""
        return self.free if self.claimable and not self.unchecked else None


class PoolRoom(Noun):
    """How much of its pool a job may claim: numbers, because a pool has thousands of nodes."""

    free: int  # that it may claim, in its turn
    begins: bool = True  # it is its turn, and they are enough
    more: int = 0  # of those, the ones beside its own
    own: tuple[NodeId, ...] = ()  # of those, the ones that are kept for it or that it claims
    behind: JobId | None = None  # for whom others are kept
    unchecked: int = 0  # how many more if it asked for no check before its start
    last: tuple[NodeId, ...] = ()  # nodes of the attempt that it lost last, in order
    last_there: bool = False  # each of these still is a seat


class TheirChoice(Noun):
    """Where a cluster that chooses nodes itself may put a job."""

    seats: int
    bad: tuple[NodeId, ...] = ()  # that it must be told to avoid, in order


class OutOfReach(Noun):
    """Nodes with ranks of the attempt."""

    lost: tuple[NodeId, ...] = ()  # that nobody can reach
    unseen: tuple[NodeId, ...] = ()  # that its cluster cannot reach: its word that they are gone proves nothing
    fenceable: tuple[NodeId, ...] = ()  # of those, where nobody else's attempt would suffer from a fence


class JobInput(Noun):
    """All that a job's decision may read: a value, so that each decision can be recorded and made again.

    What costs reads is loaded on demand: a decision that finds None returns `ReadFirst`, and is made again with it.
    """

    job: Job
    intent: Intent | None
    fences: tuple[Intent, ...]  # of nodes out of reach, under way or failed
    readings: dict[str, float]
    can: frozenset[Capability]
    as_of: float  # how far its cluster has been read
    present: dict[str, float] | None = None  # what deadlines are set from, where `readings` lag behind it
    room: PoolRoom | None = None
    seats: tuple[Seat, ...] | None = None  # those that were asked for by name, then others in order
    withheld: tuple[str, ...] | None = None  # sick ones of the nodes that were asked for, and why they are not treated
    theirs: TheirChoice | None = None
    well: tuple[NodeId, ...] | None = None  # which of the nodes that were asked for can be claimed
    mute: tuple[NodeId, ...] | None = None  # which of them no agent has ever been heard on
    away: OutOfReach | None = None
    dismissed: bool | None = None  # whether all that calls for its end was dismissed by now

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
