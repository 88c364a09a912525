"""Placement: the nodes and devices of a job's next attempt, or why it waits for them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sickbay.brain.decision import Need, ReadFirst
from sickbay.brain.job_input import AVOIDED, JobInput, Placement, PoolRoom, Seat, listing
from sickbay.brain.queue import needed
from sickbay.model.fleet import Node, NodeId
from sickbay.model.policy import PlaceBy, Policy

UNCHECKED = "no agent has been heard, and only an agent can do the check before its start"


@dataclass(frozen=True, slots=True)
class NoPlace:
    because: str


def place(s: JobInput, policy: Policy) -> Placement | NoPlace | ReadFirst:
    """Nodes and devices for the next attempt, or why there are none."""
    job, order = s.job, policy.resume.place
    room = s.room
    if room is None:
        return ReadFirst(Need.ROOM)
    if job.spec.on:
        return _named(s, room)
    if room.last and room.last_there and PlaceBy.SPARE not in order:
        # No spare by policy: only its own nodes will do, as long as their seats are there.
        return _own(s, policy, room.last)
    need = needed(job, policy)
    if room.begins and room.free >= need:
        chosen = _chosen(s, room, room.last if order[:1] == (PlaceBy.SAME,) else room.own)
        if isinstance(chosen, ReadFirst) or len(chosen) >= need:
            return chosen
    if s.withheld is None:
        return ReadFirst(Need.WITHHELD, room.last)
    needs = f"needs {need} node{'s' if need > 1 else ''} of {job.pool}, {room.free} can be claimed"
    kept = [f"others are kept for {room.behind}"] if room.behind is not None else []
    deaf = [f"{UNCHECKED} on {room.unchecked} others"] if room.unchecked else []
    return NoPlace("; ".join([needs, *kept, *deaf, *s.withheld]))


def _own(s: JobInput, policy: Policy, last: tuple[NodeId, ...]) -> Placement | NoPlace | ReadFirst:
    if s.seats is None:
        return ReadFirst(Need.SEATS, last)
    job, placed = s.job, _offers(s.seats)
    avoid = set(job.avoid)
    chosen = sorted(placed, key=lambda node: (node in avoid, node))[: job.spec.most]
    fewer = PlaceBy.FEWER in policy.resume.place
    if len(chosen) >= (job.spec.least if fewer else job.spec.most):
        return {node: placed[node] for node in chosen}
    return NoPlace(f"waits for its own nodes: {listing(n for n in last if n not in placed)} cannot be claimed")


def _chosen(s: JobInput, room: PoolRoom, first: tuple[NodeId, ...]) -> Placement | ReadFirst:
    """As many as it asked for, if it may have them: its own before others, those to avoid last of all."""
    many, avoid, had = min(room.free, s.job.spec.most), set(s.job.avoid), set(first)
    rest = sorted(avoid, key=lambda node: (node not in had, node))
    if s.seats is None:
        return ReadFirst(Need.SEATS, tuple(dict.fromkeys((*first, *rest))), more=min(many, room.more))
    offers = _offers(s.seats)
    preferred = (node for node in first if node not in avoid)
    others = (node for node in offers if node not in avoid and node not in had)
    placed = [node for node in (*preferred, *others, *rest) if node in offers][:many]
    return {node: offers[node] for node in placed}


def _offers(seats: Iterable[Seat]) -> Placement:
    return {seat.node: seat.offer for seat in seats if seat.here and seat.offer is not None}


def _named(s: JobInput, room: PoolRoom) -> Placement | NoPlace | ReadFirst:
    """All of them or nothing, with the reason of the first."""
    if s.seats is None:
        return ReadFirst(Need.SEATS, s.job.spec.on)
    placed: Placement = {}
    for seat in s.seats:
        if seat.offer is None:
            return _why_not(s, seat)
        placed[seat.node] = seat.offer
    if not room.begins and all(seat.here for seat in s.seats):
        return NoPlace(f"its nodes are kept for {room.behind}" if room.behind else "jobs in front of it name its nodes")
    return placed


def _why_not(s: JobInput, seat: Seat) -> NoPlace | ReadFirst:
    if not seat.known:
        return NoPlace(f"{seat.node} is not known")
    if seat.claimable:
        return NoPlace(f"{seat.node}: {UNCHECKED}" if seat.unchecked else f"{seat.node} is taken")
    if s.withheld is None:
        return ReadFirst(Need.WITHHELD, (seat.node,))
    why = f"is being checked ({seat.checking})" if seat.checking else "cannot be claimed"
    return NoPlace("; ".join([f"{seat.node} {why}", *s.withheld]))


def free_devices(node: Node, claims: Collection[tuple[int, ...]], wanted: int) -> tuple[int, ...] | None:
    """What others' claims leave of a node: as many devices as are wanted (0: the whole node), or nothing."""
    if wanted == 0 or not all(claims):  # a claim without devices is one of the whole node
        return None if claims else ()
    held = {index for devices in claims for index in devices}
    free = [device.index for device in node.devices if device.index not in held]
    return tuple(free[:wanted]) if len(free) >= wanted else None


def to_avoid(s: JobInput) -> tuple[NodeId, ...] | NoPlace | ReadFirst:
    """What a cluster that chooses nodes itself is told to avoid, or why it is not asked yet."""
    if s.theirs is None:
        return ReadFirst(Need.THEIRS)
    spec, seats, bad = s.job.spec, s.theirs.seats, set(s.theirs.bad)
    least = min(spec.least, spec.most)
    if bad & set(spec.on) or seats - len(bad) < least:
        short = f": {listing(s.theirs.bad)} cannot be used" if bad else f", {seats} are there"
        return NoPlace(f"needs {least} nodes of {s.job.pool}{short}")
    dark = set(s.job.avoid)
    avoid = bad | dark if seats - len(bad | dark) >= least and not dark & set(spec.on) else bad
    return tuple(sorted(avoid))[:AVOIDED]


def is_to_be_avoided(node: Node) -> bool:
    """Whether a cluster that chooses nodes itself must be told to.

    It keeps off nodes with a cordon by itself, and returns to them when they are well, while a node that was named once
    is avoided for as long as the attempt waits.
    """
    return not node.claimable and not node.cordons
