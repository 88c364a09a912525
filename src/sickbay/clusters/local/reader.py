"""Reads of the whole local cluster: what is there now, and what has changed since the last read."""

import time
from pathlib import Path

from msgspec.structs import replace

from sickbay.clusters.local.attempts import Attempts, GangRecord, NodePart
from sickbay.clusters.local.outcomes import Evidence, boot_lasts, judge
from sickbay.clusters.local.processes import find
from sickbay.clusters.local.rack import reap
from sickbay.clusters.local.ranks import RANK_MARK
from sickbay.clusters.local.ring import ChangeRing
from sickbay.clusters.local.seat_state import Looker, SeatState
from sickbay.clusters.local.ticks import Ticks
from sickbay.model.errors import BadInput
from sickbay.model.facts import JobSeen, NodeSeen, NodeVanished
from sickbay.model.fleet import JobId, NodeId

_BLINK = 0.01  # seconds between two looks: a program that just begins shows its environment a moment later


def marks(attempt: GangRecord, part: NodePart) -> list[str]:
    """What everything that the part's ranks have started carries in its environment."""
    return [f"{RANK_MARK}={attempt.name}.{plan.rank}.{part.boot_id}" for plan in part.ranks]


class ClusterReader:
    """Not for two threads at once. `nodes` and `jobs` are as last read, with `as_of` 0; `reached` dates them."""

    def __init__(self, root: Path, cluster_id: str, keep: int, patience: float | None = None) -> None:
        self._root = root
        self._id = cluster_id
        self.attempts = Attempts(root, patience)
        self.looker = Looker(root)
        self.ticks = Ticks.of(root)
        self.ring = ChangeRing(keep)
        self.reached = 0.0
        self.nodes: dict[NodeId, NodeSeen] = {}
        self.jobs: dict[tuple[JobId, int], JobSeen] = {}
        self.sights: dict[str, SeatState] = {}

    def read(self) -> None:
        """Look at everything. Dated before it begins: so it shows all that was done until then."""
        as_of = self.ticks.now()
        reap()
        attempts = self.attempts.all()
        # Orders before statuses: an order is removed only after its effect is in the status.
        pending = {attempt.name: self._pending(attempt) for attempt in attempts if attempt.closed_at is None}
        self.sights = {name: self._look(name) for name in self.names()}
        ghosts = self._ghosts(attempts)
        jobs = {}
        for attempt in attempts:
            evidence = Evidence(
                sights=self.sights,
                pending=pending.get(attempt.name, frozenset()),
                haunted=lambda attempt, part: not ghosts.isdisjoint(marks(attempt, part)),
                now=time.time(),
            )
            jobs[attempt.job, attempt.attempt] = self._judged(attempt, evidence)
        self._compare({sight.seat.id: self._seen(sight) for sight in self.sights.values()}, jobs)
        self.reached = as_of

    def names(self) -> tuple[str, ...]:
        """Raises BadInput. A list that cannot be found is no empty list: nobody has taken the nodes away."""
        cluster = self.looker.cluster()
        if cluster is None:
            raise BadInput(f"there is no list of its nodes in {self._root}")
        return cluster.seats

    def _look(self, name: str) -> SeatState:
        sight = self.looker.look(name)
        if sight is None:
            raise BadInput(f"node {name} is listed, and there is no file of it in {self._root}")
        return sight

    def order_path(self, part: NodePart, order: str) -> Path:
        return self._root / "seats" / part.seat / "orders" / f"{order}.json"

    def _pending(self, attempt: GangRecord) -> frozenset[NodeId]:
        name = attempt.start_name
        return frozenset(part.node for part in attempt.open if self.order_path(part, name).exists())

    def _judged(self, attempt: GangRecord, evidence: Evidence) -> JobSeen:
        after, states = judge(attempt, evidence)
        if after != attempt:
            with self.attempts.held():
                # Another may have written a stop meanwhile: that must not be lost.
                now = self.attempts.get(attempt.job, attempt.attempt) or attempt
                after, states = judge(now, evidence)
                self.attempts.save(after, durable=False)
        return JobSeen(job=after.job, attempt=after.attempt, as_of=0.0, ranks=states, end=after.end, cluster=self._id)

    def _ghosts(self, attempts: list[GangRecord]) -> set[str]:
        """Marks of what outlives its boot. A node's end takes its ranks along, but not always all that they started."""
        wanted = [
            mark
            for attempt in attempts
            for part in attempt.open
            if not boot_lasts(part, self.sights.get(part.seat))
            for mark in marks(attempt, part)
        ]
        if not wanted:
            return set()
        living = set(find(marks=wanted).values())
        time.sleep(_BLINK)
        return living | set(find(marks=wanted).values())

    def _compare(self, nodes: dict[NodeId, NodeSeen], jobs: dict[tuple[JobId, int], JobSeen]) -> None:
        for node in self.nodes.keys() - nodes.keys():
            self.ring.add(NodeVanished(node=node, as_of=0.0))
        for node, seen in nodes.items():
            if self.nodes.get(node) != seen:
                self.ring.add(seen)
        for key, job in jobs.items():
            if self.jobs.get(key) != job:
                self.ring.add(job)
        self.nodes, self.jobs = nodes, jobs

    def _seen(self, sight: SeatState) -> NodeSeen:
        seat = sight.seat
        return NodeSeen(
            node=seat.id,
            cluster=self._id,
            pool=seat.pool,
            as_of=0.0,
            incarnation=sight.shown,
            domain=seat.domain,
            devices=sight.devices,
            linked=False,  # each virtual device can be reset alone
            ready=sight.ready,
            cordons=tuple(sorted(cordon.owner for cordon in seat.cordons)),
        )

    def dated(self, news: NodeSeen | NodeVanished | JobSeen) -> NodeSeen | NodeVanished | JobSeen:
        return replace(news, as_of=self.reached)
