"""Loading on demand what a job's decision reads of its pool and its nodes. What its wait is on follows from this."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from sickbay.brain.attempt import may_be_fenced, out_of_reach, unseen, was_dismissed
from sickbay.brain.decision import Need, ReadFirst
from sickbay.brain.gate import checked_by_agents
from sickbay.brain.job_input import JobInput, OutOfReach, PoolRoom, Seat, TheirChoice
from sickbay.brain.place import free_devices, is_to_be_avoided
from sickbay.brain.queue import QueueTurn, needed
from sickbay.engine.line import allowed, line_of
from sickbay.engine.view import Draft
from sickbay.model.fleet import AgentState, Freed, Node, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job, RankState
from sickbay.model.policy import PlaceBy
from sickbay.model.rows import key_of

POOLS = 8  # of one cluster: a unit has room for few rows
TOLD = 3  # sick nodes that a waiting job names
WATCHED = 12  # nodes that a waiting job keeps an eye on; a unit has room for few rows


def input_of(draft: Draft, job: Job) -> JobInput:
    clock = draft.clocks.get(job.spec.cluster)
    return JobInput(
        job=job,
        intent=draft.intent(job.intent),
        fences=tuple(fence for key in job.fences if (fence := draft.intent(key)) is not None),
        readings=draft.readings,
        can=draft.can(job.spec.cluster),
        present=draft.present,
        as_of=clock.as_of if clock is not None else 0.0,
    )


def supply(draft: Draft, s: JobInput, asked: ReadFirst) -> JobInput:
    """The input with what its decision asks for."""
    match asked.need:
        case Need.ROOM:
            return replace(s, room=_room(draft, s.job))
        case Need.SEATS:
            return replace(s, seats=_seats(draft, s.job, asked.nodes, asked.more))
        case Need.WITHHELD:
            return replace(s, withheld=_withheld(draft, asked.nodes))
        case Need.THEIRS:
            return replace(s, theirs=_theirs(draft, s.job))
        case Need.WELL:
            return replace(s, well=_well(draft, s.job, asked.nodes))
        case Need.MUTE:
            rows = {node: draft.peek(Node, f"node:{node}") for node in asked.nodes}
            mute = (node for node, row in rows.items() if row is not None and row.agent is AgentState.NONE)
            return replace(s, mute=tuple(mute))
        case Need.AWAY:
            return replace(s, away=_away(draft, s.job))
        case Need.DISMISSED:
            return replace(s, dismissed=dismissed(draft, s.job))


def _last(draft: Draft, job: Job) -> frozenset[NodeId]:
    return draft.roster(job, job.interruptions[-1]) if job.interruptions else frozenset()


def _room(draft: Draft, job: Job) -> PoolRoom:
    """Expects the pool's ledger, so that claims take turns. Whoever can begin is called (`engine.line`)."""
    draft.turn(job.pool)
    if job.interruptions and PlaceBy.SPARE not in draft.rules.policy.resume.place:
        draft.read(Freed, f"freed:{job.pool}")  # it waits for certain nodes, which its queue does not know
    free, last = _Free(draft, job), sorted(_last(draft, job))
    verdict = free.verdict
    return PoolRoom(
        free=len(free.own) + verdict.room,
        begins=verdict.begins,
        more=verdict.room,
        own=tuple(sorted(free.own)),
        behind=verdict.behind,
        unchecked=free.unchecked(),
        last=tuple(last),
        last_there=all(draft.peek(Node, f"node:{node}") is not None for node in last),
    )


def _seats(draft: Draft, job: Job, named: tuple[NodeId, ...], more: int) -> tuple[Seat, ...]:
    draft.turn(job.pool)
    free = _Free(draft, job)
    if job.spec.on:  # each takes its turn wherever it is
        rows = (draft.peek(Node, f"node:{node}") for node in named)
        for pool in sorted({row.pool for row in rows if row is not None}):
            draft.turn(pool)
            if pool != job.pool:
                draft.read(Freed, f"freed:{pool}")  # its own pool's queue calls it
    return (*map(free.seat, named), *free.first(more, set(named)))


class _Free:
    """What one job may claim in its pool: by the index, but for what this unit has changed or the job itself holds."""

    def __init__(self, draft: Draft, job: Job) -> None:
        self._draft = draft
        self._job = job
        self._wanted = job.spec.gpus_per_node
        self._heard = checked_by_agents(job, draft.rules.policy, draft.can(job.spec.cluster))
        self._index = draft.free(job.pool)
        self._kept = draft.open_jobs(job.pool).kept(key_of(job)) if job.keeps_place else {}
        self._apart = draft.touched() | job.claim.keys() | self._kept.keys()
        mine = frozenset(node for node in self._apart if _offered(self.seat(node)))
        self.own = mine.difference(job.avoid)
        self._line = line_of(draft, job.pool, job, self.own)
        if len(self.own) < len(mine) and len(self.own) + self.verdict.room < needed(job, draft.rules.policy):
            self.own = mine  # what it would rather avoid is better than nothing
            self._line = line_of(draft, job.pool, job, self.own)

    @property
    def verdict(self) -> QueueTurn:
        """What the queue says. One that too many stand in front of is not looked at."""
        return self._line.of(self._job) or QueueTurn(job=self._job.id, begins=False)

    def unchecked(self) -> int:
        """How many more it could have if it asked for no check before it starts."""
        return self._index.count(self._wanted) - self._index.count(self._wanted, heard=self._heard)

    def seat(self, name: NodeId) -> Seat:
        row = self._draft.peek(Node, f"node:{name}")
        if row is None:
            return Seat(node=name, known=False)
        return Seat(
            node=name,
            claimable=row.claimable,
            checking=row.checking,
            here=row.pool == self._job.pool,
            unchecked=self._heard and row.agent is not AgentState.HEARD,
            free=free_on(self._draft, self._job, row) if row.claimable else None,
        )

    def first(self, many: int, beside: set[NodeId]) -> Iterator[Seat]:
        """So many others that it may claim, in order."""
        if self._line.of(self._job) is None:
            return
        for node in allowed(self._line, self._index, self._job):
            if many <= 0:
                return
            if node not in beside and node not in self.own and _offered(seat := self.seat(node)):
                yield seat
                many -= 1


def _offered(seat: Seat) -> bool:
    return seat.here and seat.offer is not None


def free_on(draft: Draft, job: Job, node: Node) -> tuple[int, ...] | None:
    claims = [other.claim[node.id] for other in draft.holders(node) if other.id != job.id]
    kept = draft.kept_on(node)
    claims += [devices for key, devices in kept.items() if key != f"job:{job.id}"]
    return free_devices(node, claims, job.spec.gpus_per_node)


def _withheld(draft: Draft, nodes: Iterable[NodeId]) -> tuple[str, ...]:
    """Nodes whose treatment is withheld, and by what: that keeps a job waiting, too. What is told is waited on."""
    told: list[str] = []
    for name in nodes:
        node = draft.peek(Node, f"node:{name}")
        if node is None or node.claimable or node.incident is None or len(told) == TOLD:
            continue
        incident = draft.peek(Incident, f"incident:{node.incident}")
        if incident is not None and incident.phase is Phase.SUSPECT:
            draft.incident(incident.id)
            if incident.wait is not None:
                told.append(f"{name} has {incident.fault.code}: {incident.wait.because}")
    return tuple(told)


def _theirs(draft: Draft, job: Job) -> TheirChoice:
    pools = _pools(draft, job)
    found = [incident for pool in pools for incident in draft.find(Incident, f"open-incident:{pool}")]
    sick = {incident.node for incident in found if incident.phase is not Phase.WATCHED}
    checked = [node.id for pool in pools for node in draft.find(Node, f"checking:{pool}")]
    rows = {node: draft.peek(Node, f"node:{node}") for node in (*sick, *_last(draft, job), *checked)}
    bad = sorted(node for node, row in rows.items() if row is not None and is_to_be_avoided(row))
    for node in bad[:WATCHED]:
        draft.node(node)  # our cordon on one of them may be enough to ask
    return TheirChoice(seats=sum(draft.ledger(pool).seats for pool in pools), bad=tuple(bad))


def _pools(draft: Draft, job: Job) -> list[str]:
    """Where a cluster that chooses nodes itself may put the job: a partition may lie across other nodes' pools."""
    if draft.ledger(job.pool).seats:
        return [job.pool]
    mine = (key.removeprefix("ledger:") for key in draft.keys("ledger"))
    return [pool for pool in mine if pool.startswith(f"{job.spec.cluster}/")][:POOLS]


def _well(draft: Draft, job: Job, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    if not nodes:
        return ()
    rows = {node: draft.peek(Node, f"node:{node}") for node in nodes}
    for pool in sorted({job.pool} | {row.pool for row in rows.values() if row is not None})[:POOLS]:
        draft.ledger(pool)  # what can be claimed changes with its version
    for node in [node for node, row in rows.items() if row is None][:WATCHED]:
        draft.node(node)  # nobody knows in which pool one that is gone comes back
    return tuple(node for node, row in rows.items() if row is not None and row.claimable)


def _away(draft: Draft, job: Job) -> OutOfReach:
    running = sorted(node for node, state in job.ranks.items() if state is RankState.RUNNING)
    # The last few are watched: that one of them is lost must wake the job, whoever else knows it already.
    few = len(running) <= WATCHED
    rows = {node: draft.node(node) if few else draft.peek(Node, f"node:{node}") for node in running}
    missed = tuple(node for node, row in rows.items() if unseen(row))
    return OutOfReach(
        lost=tuple(node for node, row in rows.items() if out_of_reach(row)),
        unseen=missed,
        fenceable=tuple(node for node in missed if may_fence(draft, job, node)),
    )


def may_fence(draft: Draft, job: Job, node: NodeId) -> bool:
    """Whether a node cannot be reached by its cluster, and nobody else's attempt would suffer from a fence."""
    row = draft.peek(Node, f"node:{node}")
    shared = row is not None and unseen(row) and not row.lost and _shared(draft, job, row)
    return may_be_fenced(row, shared=shared)


def _shared(draft: Draft, job: Job, node: Node) -> bool:
    """Whether somebody else holds a part of it; then what is freed in its pool is waited for, too."""
    shared = any(other.id != job.id for other in draft.holders(node))
    if shared:
        draft.read(Freed, f"freed:{node.pool}")
    return shared


def dismissed(draft: Draft, job: Job) -> bool:
    """Whether all that called for its end was dismissed since."""
    called = [draft.incident(call.incident) if call.incident else None for call in job.calls]
    return bool(called) and all(incident is not None and was_dismissed(incident) for incident in called)
