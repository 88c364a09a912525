"""Fairness of the queue, judged by the rows at each start: nobody takes what is kept for another, and nobody begins so
that the job at the head has to wait longer than it would have.

It counts nodes one by one, now and at the end of every stated limit, and knows nothing of how the engine does.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from sickbay.brain.gate import checked_by_agents
from sickbay.brain.place import free_devices
from sickbay.brain.queue import lasts, needed, turn_of
from sickbay.model.fleet import AgentState, Capability, Node, NodeId, Roster
from sickbay.model.job import Job, JobState
from sickbay.sim.chronicle import Wrong
from sickbay.sim.witness import Witness

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation

NEVER = float("inf")


class Hold(NamedTuple):
    """Devices of a node that a job has, or that are kept for it, and in how many seconds that is over."""

    job: str
    devices: tuple[int, ...]
    left: float


class QueueInvariant:
    def __init__(self, sim: "Simulation", witness: Witness) -> None:
        self._sim = sim
        self._witness = witness

    def changed(self, before: Job | None, after: Job) -> list[Wrong]:
        """Hears of each row of a job that was written."""
        placed = before is not None and after.state is JobState.GATING and after.claim and not before.claim
        if before is None or not placed or after.adopted or not self._ours(after):
            return []
        nodes = [row for row in self._witness.rows.values() if isinstance(row, Node) and row.pool == after.pool]
        ahead = [job for job in self._queue(after.pool) if job.id != after.id and turn_of(job) < turn_of(before)]
        held, then = self._holds(but=after), self._holds()
        for node, devices in self._place(before).items():
            held[node].append(Hold(after.id, devices, NEVER))
        return [*self._kept(after, ahead, nodes, held, then), *self._overtaken(after, ahead, nodes, held, then)]

    def _ours(self, job: Job) -> bool:
        return Capability.PLACE in self._sim.rules.can.get(job.spec.cluster, frozenset())

    def _queue(self, pool: str) -> list[Job]:
        """Who waits, and whose place is kept; but nobody who cannot be planned."""
        jobs = [job for job in self._witness.open.values() if isinstance(job, Job) and job.pool == pool]
        mine = [job for job in jobs if not job.adopted and (job.keeps_place or _waits(job))]
        asides = self._sim.store.load(f"aside:job:{job.id}" for job in mine)
        return [job for job in mine if asides[f"aside:job:{job.id}"].row is None]

    def _holds(self, but: Job | None = None) -> dict[NodeId, list[Hold]]:
        held: defaultdict[NodeId, list[Hold]] = defaultdict(list)
        for job in self._witness.open.values():
            if not isinstance(job, Job) or (but is not None and job.id == but.id):
                continue
            left = self._left(job)
            for node, devices in job.claim.items():
                held[node].append(Hold(job.id, devices, left))
            for node, devices in self._place(job).items():
                if node not in job.claim:
                    held[node].append(Hold(job.id, devices, NEVER))
        return held

    def _left(self, job: Job) -> float:
        now = self._sim.store.load([f"clock:{job.spec.cluster}"])[f"clock:{job.spec.cluster}"].row
        reading = getattr(now, "reading", 0.0)
        if job.over_at is not None:
            return max(0.0, job.over_at - reading)
        limit = lasts(job)
        return limit if limit is not None and job.state is JobState.GATING else NEVER

    def _place(self, job: Job) -> dict[NodeId, tuple[int, ...]]:
        if not job.keeps_place or not job.interruptions or job.state is JobState.RUNNING:
            return {}
        lost = job.interruptions[-1]
        rows = (self._witness.rows.get(f"roster:{job.id}/{lost.attempt}/{n}") for n in range(lost.rosters))
        held = {node: devices for row in rows if isinstance(row, Roster) for node, devices in row.held.items()}
        return {node: devices for node, devices in held.items() if self._pool(node) == job.pool}

    def _pool(self, node: NodeId) -> str:
        row = self._witness.rows.get(f"node:{node}")
        return row.pool if isinstance(row, Node) else ""

    def _keeps(self, job: str, node: NodeId) -> bool:
        row = self._witness.open.get(f"job:{job}")
        return isinstance(row, Job) and node in self._place(row) and node not in row.claim

    def _could(self, job: Job, node: Node) -> bool:
        heard = checked_by_agents(job, self._sim.policy, self._sim.rules.can[job.spec.cluster])
        return len(node.devices) >= job.spec.gpus_per_node and (node.agent is AgentState.HEARD or not heard)

    def _usable(self, job: Job, nodes: Iterable[Node], held: dict[NodeId, list[Hold]], after: float) -> int:
        """How many nodes a job could have in so many seconds, if nothing else happened."""
        heard = checked_by_agents(job, self._sim.policy, self._sim.rules.can[job.spec.cluster])
        count = 0
        for node in nodes:
            speaks = node.agent is AgentState.HEARD or not heard
            others = [hold.devices for hold in held[node.id] if hold.job != job.id and hold.left > after]
            if node.claimable and speaks and free_devices(node, others, job.spec.gpus_per_node) is not None:
                count += 1
        return count

    def _kept(
        self,
        job: Job,
        ahead: list[Job],
        nodes: list[Node],
        held: dict[NodeId, list[Hold]],
        then: dict[NodeId, list[Hold]],
    ) -> list[Wrong]:
        wrong: list[Wrong] = []
        for node, devices in job.claim.items():
            for hold in held[node]:
                kept = hold.job != job.id and hold.left == NEVER and self._keeps(hold.job, node)
                if kept and (not devices or not hold.devices or set(devices) & set(hold.devices)):
                    wrong.append(Wrong("kept_place", f"{job.id} claims {node}, which is kept for {hold.job}"))
        for other in ahead:
            if not other.keeps_place or other.spec.on:
                continue
            could, can = self._usable(other, nodes, held, 0.0), self._usable(other, nodes, then, 0.0)
            if can < min(other.spec.most, could):
                wrong.append(Wrong("kept_spare", f"{job.id} begins on what {other.id} lacks: {could}, then {can}"))
        return wrong

    def _overtaken(
        self,
        job: Job,
        ahead: list[Job],
        nodes: list[Node],
        held: dict[NodeId, list[Hold]],
        then: dict[NodeId, list[Hold]],
    ) -> list[Wrong]:
        seats = sum(node.counted and not node.away for node in nodes)
        for head in sorted(ahead, key=turn_of):
            need = needed(head, self._sim.policy)
            unfit = sum(node.claimable and not self._could(head, node) for node in nodes)
            if head.keeps_place or head.spec.on or head.state is not JobState.QUEUED or need > seats - unfit:
                continue
            ends = sorted({hold.left for holds in held.values() for hold in holds if hold.left < NEVER} | {0.0})
            begins = next((end for end in ends if self._usable(head, nodes, held, end) >= need), None)
            moment = 0.0 if begins is None else begins
            could, can = self._usable(head, nodes, held, moment), self._usable(head, nodes, then, moment)
            if can < min(need, could):
                text = f"{job.id} begins before {head.id}, which needs {need} nodes and could have {could}, then {can}"
                return [Wrong("overtaken", text)]
            return []
        return []


def _waits(job: Job) -> bool:
    return job.state is JobState.QUEUED and not job.stands_aside
