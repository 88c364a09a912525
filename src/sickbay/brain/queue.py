"""The queue of a pool: who may begin now, whose nodes are reserved (EASY backfill), and who waits behind whom.

Interrupted jobs stand in front while their place is kept: their nodes are nobody else's. Then by priority, then by time
of submission. The first that cannot be placed has a reservation: whoever begins before it takes nodes that it does not
need, or is over, by its own stated limit, before it could begin. Named nodes are kept for the first who names them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import Job
from sickbay.model.noun import Noun
from sickbay.model.policy import PlaceBy, Policy

LOOKED_AT = 100  # jobs of one queue that may begin out of turn: a change costs as much, however long the queue is

Pile = tuple[int, int, bool, bool]  # of nodes: free devices, all devices, nobody is there at all, its agent is heard
Piles = Mapping[Pile, int]
Turn = tuple[bool, int, float, str]  # in the queue


class QueueTicket(Noun):
    """A job in the queue of its pool."""

    job: JobId
    wanted: int  # devices of each node; 0: the whole node
    heard: bool  # on nodes whose agent is heard
    most: int
    need: int  # it begins with so many
    mine: int = 0  # nodes that are its own already, claimed or kept, and can be used
    own: tuple[tuple[Pile, int], ...] = ()  # of those, the ones where it could have as much once more: no spares of it
    keeps: bool = False  # its place is kept
    spares: bool = True  # others than its own will do, and are kept for it
    waits: bool = True  # for nodes, now; else it is on its way to
    lasts: float | None = None  # seconds until it is over by its own limit
    on: tuple[NodeId, ...] = ()  # named nodes
    away: bool = False  # one of them waits for a person, or is gone


class QueueTurn(Noun):
    """What the queue lets a job do now."""

    job: JobId
    begins: bool
    room: int = 0  # nodes that it may take beside its own
    head: bool = False  # the first that cannot be placed: it has the reservation
    kept: int = 0  # nodes that are reserved for it and free already
    hopeless: bool = False  # more than are in service: nothing is reserved for it
    behind: JobId | None = None  # whose reservation keeps it from nodes that are free


@dataclass(frozen=True, slots=True)
class Reserve:
    """So many of the free nodes of a shape that those behind must leave."""

    job: JobId
    wanted: int
    heard: bool
    nodes: int
    own: tuple[tuple[Pile, int], ...] = ()  # nodes that it has already

    def may_have(self, pile: Pile) -> bool:
        return fits(pile, self.wanted, heard=self.heard)


@dataclass(slots=True)
class Claimable:
    """What is left of a pool for the next in its queue."""

    piles: dict[Pile, int]
    reserves: list[Reserve] = field(default_factory=list)
    names: set[NodeId] = field(default_factory=set)  # that somebody in front names
    head: Reserve | None = None
    begins: float | None = None  # seconds until the head can begin at the latest; None: not known
    barred: dict[Pile, int] = field(default_factory=dict)  # used nodes that are drained for the head: the first of each

    def leave(self, reserve: Reserve) -> None:
        """One more reservation. Those of one shape are one: a long queue has few shapes."""
        if not reserve.nodes:
            return
        for n, known in enumerate(self.reserves):
            if (known.wanted, known.heard, known.own) == (reserve.wanted, reserve.heard, ()) and not reserve.own:
                self.reserves[n] = replace(known, nodes=known.nodes + reserve.nodes)
                return
        self.reserves.append(reserve)

    def against(self, ticket: QueueTicket) -> list[Reserve]:
        """What a job must leave. One that is over before the head could begin is not in its way."""
        return self.reserves if self.head is None or self.in_time(ticket) else [*self.reserves, self.head]

    def in_time(self, ticket: QueueTicket) -> bool:
        return self.begins is not None and ticket.lasts is not None and ticket.lasts <= self.begins

    def barred_from(self, ticket: QueueTicket) -> Mapping[Pile, int]:
        return {} if self.in_time(ticket) else self.barred

    def room(self, ticket: QueueTicket) -> int:
        """How many nodes a job may take: those that nobody in front could use, then of the others what is too many."""
        barred, against = self.barred_from(ticket), self.against(ticket)
        plain = shared = 0
        meets: set[int] = set()
        own = dict(ticket.own)
        for pile, number in self.piles.items():
            count = number - own.get(pile, 0)
            if not fits(pile, ticket.wanted, heard=ticket.heard):
                continue
            met = [n for n, each in enumerate(against) if fits(pile, each.wanted, heard=each.heard)]
            meets.update(met)
            if met:
                shared += max(0, count - barred.get(pile, 0))
            else:
                plain += max(0, count - barred.get(pile, 0))
        if not meets:
            return plain
        left = min(self.count_for(against[n]) for n in meets)
        left -= sum(against[n].nodes for n in meets)
        return plain + max(0, min(shared, left, self._left_by([against[n] for n in meets], against)))

    def count_for(self, reserve: Reserve) -> int:
        """Nodes that a reservation can be met with: not those that its job has already."""
        fit = count_of(self.piles, reserve.wanted, heard=reserve.heard)
        return fit - sum(count for _, count in reserve.own)

    def _left_by(self, met: Sequence[Reserve], against: Sequence[Reserve]) -> int:
        """What reservations leave together with all that could take the same nodes: who gives way takes theirs."""
        linked, reached = list(met), len(self.piles) + 1
        piles: list[Pile] = []
        while len(piles) != reached:
            reached = len(piles)
            piles = [pile for pile in self.piles if any(each.may_have(pile) for each in linked)]
            linked = [each for each in against if any(each.may_have(pile) for pile in piles)]
        return sum(self.piles[pile] for pile in piles) - sum(each.nodes for each in linked)


def fits(pile: Pile, wanted: int, *, heard: bool) -> bool:
    free, _, untouched, speaks = pile
    return (untouched if wanted == 0 else free >= wanted) and (speaks or not heard)


def count_of(piles: Piles, wanted: int, *, heard: bool) -> int:
    return sum(count for pile, count in piles.items() if fits(pile, wanted, heard=heard))


def turn_of(job: Job) -> Turn:
    """Its place in the queue of its pool: by rank, then by age."""
    return not job.keeps_place, -job.spec.priority, job.submitted_at.timestamp(), job.id


def needed(job: Job, policy: Policy) -> int:
    """With how many nodes its next attempt begins: fewer than it asked for only after it was interrupted."""
    fewer = PlaceBy.FEWER in policy.resume.place and bool(job.interruptions)
    return job.spec.least if fewer else job.spec.most


def lasts(job: Job) -> float | None:
    """Seconds that an attempt that begins now runs at most, by the job's own limit; None: nobody knows."""
    limit = job.spec.time_limit
    return None if limit is None else max(0.0, limit - job.ran)


def walk(
    tickets: Iterable[QueueTicket],
    free: Claimable,
    releases: Sequence[tuple[float, Piles]],
    seats: int,
    named: Mapping[NodeId, Pile],
) -> Iterator[QueueTurn]:
    """One after the other, in turn: whoever can begin does, and leaves the others what is left.

    `releases`: in how many seconds which nodes are free, by the limits of who has them. `seats`: of the pool that are
    in service, or come back by themselves. `named`: the free ones of the nodes that tickets name.
    """
    for ticket in tickets:
        if ticket.on:
            yield _named(ticket, free, named)
            continue
        room = free.room(ticket)
        lack = max(0, ticket.most - ticket.mine) if ticket.spares else 0
        take = min(room, lack)
        begins = ticket.waits and ticket.mine + take >= ticket.need
        reserve = Reserve(ticket.job, ticket.wanted, ticket.heard, take, ticket.own)
        if begins or ticket.keeps:
            free.leave(reserve)
            yield QueueTurn(
                job=ticket.job, begins=begins, room=take, kept=0 if begins else take, behind=_who(free, ticket)
            )
        elif free.head is None and ticket.spares and not is_hopeless(ticket, free.piles, seats):
            _reserve(free, ticket, room, releases)
            yield QueueTurn(
                job=ticket.job, begins=False, room=take, head=True, kept=free.head.nodes if free.head else 0
            )
        else:
            hopeless = is_hopeless(ticket, free.piles, seats)
            yield QueueTurn(job=ticket.job, begins=False, room=take, hopeless=hopeless, behind=_who(free, ticket))


def _who(free: Claimable, ticket: QueueTicket) -> JobId | None:
    others = (each.job for each in free.against(ticket) if each.nodes and each.job != ticket.job)
    return next(others, None)


def is_hopeless(ticket: QueueTicket, piles: Piles, seats: int) -> bool:
    """Whether it needs more than is in service, or comes back by itself: nothing is reserved for it."""
    if ticket.on:
        return ticket.away
    heard = ticket.heard  # whose agent was lost is no seat that can be claimed: in the others none was ever heard
    unfit = (n for (_, most, _, speaks), n in piles.items() if most < ticket.wanted or (heard and not speaks))
    return ticket.need > seats - sum(unfit)


def _named(ticket: QueueTicket, free: Claimable, named: Mapping[NodeId, Pile]) -> QueueTurn:
    """All of its nodes or none. Nobody behind it is given one of them, if it can ever have them all."""
    if ticket.away:
        return QueueTurn(job=ticket.job, begins=False, hopeless=True, room=len(ticket.on))
    mine = {node: named[node] for node in ticket.on if node in named and node not in free.names}
    ready = ticket.waits and ticket.mine - sum(count for _, count in ticket.own) + sum(
        fits(pile, ticket.wanted, heard=ticket.heard) for pile in mine.values()
    ) >= len(ticket.on)
    against = free.against(ticket)
    kept = sum(each.nodes for each in against)
    behind = next((each.job for each in against if _takes(free, each, kept, mine.values())), None)
    barred = free.barred_from(ticket)
    drained = any(pile in barred for pile in mine.values())
    taken = any(node in free.names for node in ticket.on)
    for node, pile in mine.items():
        free.names.add(node)
        free.piles[pile] -= 1
    free.names.update(ticket.on)
    begins = ready and behind is None and not drained and not taken
    return QueueTurn(job=ticket.job, begins=begins, behind=behind, room=len(ticket.on))


def _takes(free: Claimable, reserve: Reserve, kept: int, piles: Iterable[Pile]) -> bool:
    """Whether these nodes are more than a reservation can spare, of so many that are kept in all."""
    theirs = sum(fits(pile, reserve.wanted, heard=reserve.heard) for pile in piles)
    left = free.count_for(reserve)
    return theirs > 0 and left - theirs < min(kept, left)


def _reserve(free: Claimable, ticket: QueueTicket, room: int, releases: Sequence[tuple[float, Piles]]) -> None:
    """The reservation of the first that cannot be placed: the nodes that are free first."""
    there = sure = room
    free.begins = None
    for seconds, piles in releases:
        nodes = count_of(piles, ticket.wanted, heard=ticket.heard)
        there += nodes
        sure += nodes if seconds > 0 else 0  # who should be over by now may be one that nobody can stop
        if there >= ticket.need:
            free.begins = seconds
            break
    extra = max(0, sure - ticket.need)
    free.head = Reserve(ticket.job, ticket.wanted, ticket.heard, max(0, room - extra))
    left = ticket.need - room
    used = [pile for pile in free.piles if pile[0] and not fits(pile, ticket.wanted, heard=ticket.heard)]
    for pile in sorted(used, key=lambda pile: -pile[0]):  # whose users end first, as far as one can tell
        free.barred[pile] = min(left, free.piles[pile])
        left -= free.barred[pile]
