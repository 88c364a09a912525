"""Inverted indexes over rows that the view remembers: who holds a node, what is free in a pool.

They are derived, built once from the store and kept right by what is written, so that a decision costs what it is about
and not the size of the fleet. Whoever forgets the rows forgets them, too.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge

from sickbay.model.fleet import AgentState, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Room
from sickbay.model.job import Interruption, Job, JobState

Attempt = tuple[int, int, float]  # that was lost: its number, its rosters, and when
Claim = Mapping[NodeId, tuple[int, ...]]
File = tuple[int, bool, bool]  # free devices of a node, whether nobody is there at all, whether its agent is heard

Rosters = Callable[[Job, Interruption], frozenset[NodeId]]  # the nodes of an attempt that was interrupted


def _attempts(job: Job) -> list[Attempt]:
    return [(lost.attempt, lost.rosters, lost.at) for lost in job.interruptions]


class OpenJobs:
    """The open jobs of one tag: by the nodes that they claim, by those they were interrupted on, by their directory."""

    def __init__(self) -> None:
        self._claims: defaultdict[NodeId, dict[str, tuple[int, ...]]] = defaultdict(dict)
        self._interrupted: defaultdict[NodeId, set[str]] = defaultdict(set)
        self._lost: dict[str, dict[Attempt, frozenset[NodeId]]] = {}  # nodes of each attempt that a job lost
        self.waiting: defaultdict[str, set[str]] = defaultdict(set)  # by pool
        self.sharing: defaultdict[str, set[str]] = defaultdict(set)  # by the directory of their checkpoints

    def put(self, key: str, before: Job | None, after: Job | None, roster: Rosters) -> list[NodeId]:
        """A job changed; None: it was not open, or is not any more. Returns the nodes whose claims changed."""
        changed = self._claim(key, before.claim if before else {}, after.claim if after else {})
        self._interrupt(key, before, after, roster)
        if before is not None:
            self.waiting[before.pool].discard(key)
            self._leave(before.directory, key)
        if after is not None and waits(after):
            self.waiting[after.pool].add(key)
        if after is not None:
            self.sharing[after.directory].add(key)
        return changed

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
            name: known[name] if name in known else roster(after, lost)
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
        self._files: defaultdict[File, list[NodeId]] = defaultdict(list)
        self._filed: dict[NodeId, File] = {}

    def put(self, node: NodeId, row: Node | None, claims: Iterable[tuple[int, ...]]) -> None:
        """`row` None: it is not of this pool, or cannot be claimed."""
        there = None if row is None else _free(row, claims)
        was = self._filed.pop(node, None)
        if was is not None:
            file = self._files[was]
            del file[bisect_left(file, node)]
        if there is not None:
            self._filed[node] = there
            insort(self._files[there], node)

    def _fitting(self, wanted: int, *, heard: bool) -> list[list[NodeId]]:
        return [file for there, file in self._files.items() if _fits(there, wanted, heard=heard)]

    def count(self, wanted: int, *, heard: bool = False) -> int:
        """How many nodes have so many free devices; 0 wants a node to itself. `heard`: with an agent that we hear."""
        return sum(len(file) for file in self._fitting(wanted, heard=heard))

    def fits(self, node: NodeId, wanted: int, *, heard: bool = False) -> bool:
        return node in self._filed and _fits(self._filed[node], wanted, heard=heard)

    def first(self, wanted: int, *, heard: bool = False) -> Iterator[NodeId]:
        return merge(*self._fitting(wanted, heard=heard))


def _fits(there: File, wanted: int, *, heard: bool) -> bool:
    free, untouched, speaks = there
    return (untouched if wanted == 0 else free >= wanted) and (speaks or not heard)


def _free(node: Node, claims: Iterable[tuple[int, ...]]) -> File:
    held: set[int] = set()
    untouched = True
    for devices in claims:
        untouched = False
        held |= set(devices) or {device.index for device in node.devices}
    free = sum(device.index not in held for device in node.devices)
    return free, untouched, node.agent is AgentState.HEARD
