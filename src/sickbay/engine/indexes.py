"""Inverted indexes over rows that the view remembers: who holds a node, what is free in a pool.

They are derived, built once from the store and kept right by what is written, so that a decision costs what it is about
and not the size of the fleet. Whoever forgets the rows forgets them, too.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from typing import TypeVar

from sickbay.brain.queue import Pile, Turn, fits, turn_of
from sickbay.model.fleet import AgentState, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Room
from sickbay.model.job import Interruption, Job, JobState

Attempt = tuple[int, int, float]  # that was lost: its number, its rosters, and when
Claim = Mapping[NodeId, tuple[int, ...]]
Claims = Mapping[str, tuple[int, ...]]  # by job

Rosters = Callable[[Job, Interruption], Claim]  # the nodes and devices of an attempt that was interrupted
Place = TypeVar("Place", Turn, float)
End = tuple[float, str]  # of a job's time, as a reading of its cluster's clock


def _attempts(job: Job) -> list[Attempt]:
    return [(lost.attempt, lost.rosters, lost.at) for lost in job.interruptions]


class OpenJobs:
    """The open jobs of one tag: by the nodes that they claim, by those they were interrupted on, by their directory."""

    def __init__(self) -> None:
        self._claims: defaultdict[NodeId, dict[str, tuple[int, ...]]] = defaultdict(dict)
        self._interrupted: defaultdict[NodeId, set[str]] = defaultdict(set)
        self._lost: dict[str, dict[Attempt, frozenset[NodeId]]] = {}  # nodes of each attempt that a job lost
        self._kept: dict[str, Claim] = {}  # nodes that are reserved for a job, beside its claim
        self._reserved: defaultdict[NodeId, dict[str, tuple[int, ...]]] = defaultdict(dict)  # the same, by node
        self._kept_in: dict[str, str] = {}  # and in which pool
        self._lines: defaultdict[str, list[tuple[Turn, str]]] = defaultdict(list)  # by pool
        self._ends: defaultdict[str, list[End]] = defaultdict(list)  # by pool
        self.beginning: defaultdict[str, set[str]] = defaultdict(set)  # with a time limit that has not begun, by pool
        self.growing: defaultdict[str, set[str]] = defaultdict(set)  # that run on fewer nodes than they want, by pool
        self.waiting: defaultdict[str, set[str]] = defaultdict(set)  # by pool
        self.sharing: defaultdict[str, set[str]] = defaultdict(set)  # by the directory of their checkpoints

    def put(self, key: str, before: Job | None, after: Job | None, roster: Rosters) -> list[NodeId]:
        """A job changed; None: it was not open, or is not any more. Returns the nodes whose claims changed."""
        changed = self._claim(key, before.claim if before else {}, after.claim if after else {})
        self._interrupt(key, before, after, roster)
        changed += self._keep(key, before, after, roster)
        self._queue(key, before, after)
        if before is not None:
            self.waiting[before.pool].discard(key)
            self._leave(before.directory, key)
        if after is not None and waits(after):
            self.waiting[after.pool].add(key)
        if after is not None:
            self.sharing[after.directory].add(key)
        return changed

    def _keep(self, key: str, before: Job | None, after: Job | None, roster: Rosters) -> list[NodeId]:
        """The nodes of its last attempt are its own while its place is kept. Those that it claims are so anyway."""
        was = self._kept.get(key, {})
        if after is None or not _keeps_nodes(after):
            now: Claim = {}
        elif was and before is not None and _attempts(before) == _attempts(after) and before.claim == after.claim:
            now = was
        else:
            held = roster(after, after.interruptions[-1])
            now = {node: devices for node, devices in held.items() if node not in after.claim}
        if was is now or was == now:
            return []
        for node in was:
            self._reserved[node].pop(key, None)
            if not self._reserved[node]:
                del self._reserved[node]
        for node, devices in now.items():
            self._reserved[node][key] = devices
        if now and after is not None:
            self._kept[key], self._kept_in[key] = now, after.pool
        else:
            self._kept.pop(key, None)
            self._kept_in.pop(key, None)
        return list({**was, **now})

    def _queue(self, key: str, before: Job | None, after: Job | None) -> None:
        _move(self._lines, key, _ticket_of(before), _ticket_of(after))
        _move(self._ends, key, _end(before), _end(after))
        for sets, holds in ((self.beginning, _begins), (self.growing, grows)):
            if before is not None:
                sets[before.pool].discard(key)
            if after is not None and holds(after):
                sets[after.pool].add(key)

    def line(self, pool: str) -> Iterator[str]:
        """Keys of the jobs that queue for nodes of a pool, and of those whose place in it is kept, in turn."""
        return (key for _, key in self._lines.get(pool, ()))

    def ends(self, pool: str) -> Iterator[End]:
        """Jobs that run there and are over by their own limit, the next one first."""
        return iter(self._ends.get(pool, ()))

    def reserved(self, node: NodeId, pool: str) -> Claims:
        """Keys of jobs that a node of this pool is kept for, with the devices. One that left theirs is for others."""
        kept = self._reserved.get(node, {})
        return {key: devices for key, devices in kept.items() if self._kept_in[key] == pool}

    def kept(self, key: str) -> Claim:
        """Nodes that are kept for a job, beside those that it claims."""
        return self._kept.get(key, {})

    def _leave(self, directory: str, key: str) -> None:
        self.sharing[directory].discard(key)
        if not self.sharing[directory]:
            del self.sharing[directory]  # each has a name of its own: they would be as many as there ever were jobs

    def _claim(self, key: str, before: Claim, after: Claim) -> list[NodeId]:
        if before is after or before == after:
            return []
        for node in before.keys() - after.keys():
            self._claims[node].pop(key, None)
        changed = [node for node, devices in after.items() if before.get(node) != devices]
        for node in changed:
            self._claims[node][key] = after[node]
        return [*changed, *(before.keys() - after.keys())]

    def _interrupt(self, key: str, before: Job | None, after: Job | None, roster: Rosters) -> None:
        if before is not None and after is not None and _attempts(before) == _attempts(after):
            return  # mostly the last of them got a stamp
        known = self._lost.pop(key, {})
        for node in {node for nodes in known.values() for node in nodes}:
            self._interrupted[node].discard(key)
        if after is None:
            return
        self._lost[key] = {
            name: known[name] if name in known else frozenset(roster(after, lost))
            for name, lost in zip(_attempts(after), after.interruptions, strict=True)
        }
        for node in {node for nodes in self._lost[key].values() for node in nodes}:
            self._interrupted[node].add(key)

    def on(self, node: NodeId) -> dict[str, tuple[int, ...]]:
        """Keys of jobs that claim a node, with the devices; none of them: all."""
        return self._claims.get(node, {})

    def interrupted_on(self, node: NodeId) -> Iterable[str]:
        return self._interrupted.get(node, ())


def waits(job: Job) -> bool:
    """It has no nodes yet."""
    return job.state is JobState.QUEUED or (job.state is JobState.GATING and not job.claim)


def _move(
    lines: defaultdict[str, list[tuple[Place, str]]],
    key: str,
    was: tuple[str, Place] | None,
    now: tuple[str, Place] | None,
) -> None:
    if was == now:
        return
    if was is not None:
        line = lines[was[0]]
        del line[bisect_left(line, (was[1], key))]
    if now is not None:
        insort(lines[now[0]], (now[1], key))


def _keeps_nodes(job: Job) -> bool:
    return job.keeps_place and bool(job.interruptions) and job.state is not JobState.RUNNING


def grows(job: Job) -> bool:
    """It runs on fewer nodes than it asked for, and wants to be restarted on more."""
    return job.spec.grow and job.state is JobState.RUNNING and not job.calls and len(job.claim) < job.spec.most


def queues(job: Job) -> bool:
    """Whether it stands in the queue of its pool: it wants nodes and has none, or nodes are reserved for it."""
    return not job.adopted and ((waits(job) and not job.stands_aside) or job.keeps_place)


def _ticket_of(job: Job | None) -> tuple[str, Turn] | None:
    return (job.pool, turn_of(job)) if job is not None and queues(job) else None


def _end(job: Job | None) -> tuple[str, float] | None:
    at = job.over_at if job is not None and job.claim else None
    return (job.pool, at) if job is not None and at is not None else None


def _begins(job: Job) -> bool:
    return (
        job.spec.time_limit is not None and job.runs_since is None and job.state is JobState.GATING and bool(job.claim)
    )


class RoomQueue:
    """The incidents of one pool that wait for room within its limit: what a person asked for first, then by age."""

    def __init__(self) -> None:
        self._lines: defaultdict[Room, list[tuple[bool, float, str]]] = defaultdict(list)

    def put(self, key: str, before: Incident | None, after: Incident | None) -> None:
        """An incident changed; None: it was not of this pool, or is not any more."""
        was, now = _ticket(key, before), _ticket(key, after)
        if was == now:
            return
        if was is not None:
            line = self._lines[was[0]]
            del line[bisect_left(line, was[1])]
        if now is not None:
            insort(self._lines[now[0]], now[1])

    def first(self, room: Room) -> Iterator[str]:
        return (key for _, _, key in self._lines.get(room, ()))


def _ticket(key: str, incident: Incident | None) -> tuple[Room, tuple[bool, float, str]] | None:
    room = incident.queues_for if incident is not None else None
    if incident is None or room is None:
        return None
    asked = incident.ordered or incident.kind is IncidentKind.OPERATOR
    return room, (not asked, incident.began, key)


class FreeNodes:
    """The claimable nodes of one pool, in order, filed by how many of their devices nobody claims."""

    def __init__(self) -> None:
        self._files: defaultdict[Pile, list[NodeId]] = defaultdict(list)
        self._filed: dict[NodeId, Pile] = {}
        self._owners: dict[NodeId, tuple[Pile, tuple[str, ...]]] = {}
        self._alone: dict[NodeId, tuple[str, Pile]] = {}
        self.mine: defaultdict[str, Counter[Pile]] = defaultdict(Counter)  # by job: what it claims, or is kept for it
        self.alone: defaultdict[str, Counter[Pile]] = defaultdict(Counter)  # by job: what is free when it ends

    def put(self, node: NodeId, row: Node | None, claims: Claims, kept: Claims) -> None:
        """`row` None: it is not of this pool, or cannot be claimed. `kept`: for jobs that do not claim it now."""
        there = None if row is None else _free(row, (*claims.values(), *kept.values()))
        self._own(node, there, claims if row is not None else {}, kept if row is not None else {})
        was = self._filed.pop(node, None)
        if was is not None:
            file = self._files[was]
            del file[bisect_left(file, node)]
        if there is not None:
            self._filed[node] = there
            insort(self._files[there], node)

    def _own(self, node: NodeId, there: Pile | None, claims: Claims, kept: Claims) -> None:
        if (owned := self._owners.pop(node, None)) is not None:
            pile, jobs = owned
            for job in jobs:
                _less(self.mine, job, pile)
        if (alone := self._alone.pop(node, None)) is not None:
            _less(self.alone, *alone)
        owners = (*claims, *(key for key, devices in kept.items() if not _clash(devices, claims.values())))
        if owners and there is not None:
            self._owners[node] = there, owners
            for job in owners:
                self.mine[job][there] += 1
        if there is not None and len(claims) == 1 and not kept and not there[0]:
            _, devices, _, heard = there
            self._alone[node] = job, pile = next(iter(claims)), (devices, devices, True, heard)
            self.alone[job][pile] += 1

    def piles(self) -> dict[Pile, int]:
        """How many nodes there are of each sort."""
        return {pile: len(file) for pile, file in self._files.items() if file}

    def pile(self, node: NodeId) -> Pile | None:
        return self._filed.get(node)

    def of(self, pile: Pile) -> list[NodeId]:
        return self._files.get(pile, [])

    def _fitting(self, wanted: int, *, heard: bool) -> list[list[NodeId]]:
        return [file for there, file in self._files.items() if fits(there, wanted, heard=heard)]

    def count(self, wanted: int, *, heard: bool = False) -> int:
        """How many nodes have so many free devices; 0 wants a node to itself. `heard`: with an agent that we hear."""
        return sum(len(file) for file in self._fitting(wanted, heard=heard))

    def fits(self, node: NodeId, wanted: int, *, heard: bool = False) -> bool:
        return node in self._filed and fits(self._filed[node], wanted, heard=heard)

    def first(self, wanted: int, *, heard: bool = False) -> Iterator[NodeId]:
        return merge(*self._fitting(wanted, heard=heard))


def _less(counts: defaultdict[str, Counter[Pile]], job: str, pile: Pile) -> None:
    counts[job][pile] -= 1
    if not counts[job][pile]:
        del counts[job][pile]
    if not counts[job]:
        del counts[job]


def _clash(devices: tuple[int, ...], claims: Iterable[tuple[int, ...]]) -> bool:
    return any(not devices or not held or set(devices) & set(held) for held in claims)


def _free(node: Node, claims: Iterable[tuple[int, ...]]) -> Pile:
    held: set[int] = set()
    untouched = True
    for devices in claims:
        untouched = False
        held |= set(devices) or {device.index for device in node.devices}
    free = sum(device.index not in held for device in node.devices)
    return free, len(node.devices), untouched, node.agent is AgentState.HEARD
