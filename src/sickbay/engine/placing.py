"""Where a job's next attempt may run."""

from collections.abc import Collection, Iterable
from heapq import merge
from itertools import chain

from sickbay.brain.gate import gate_of
from sickbay.brain.job_input import AVOIDED, Placement, listing
from sickbay.engine.view import Draft
from sickbay.model.fleet import AgentState, Capability, Freed, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Job, RankState
from sickbay.model.policy import PlaceBy

POOLS = 8  # of one cluster: a unit has room for few rows
TOLD = 3  # sick nodes that a waiting job names
UNCHECKED = "no agent has been heard, and only an agent can do the check before its start"
WATCHED = 12  # nodes that a waiting job keeps an eye on; a unit has room for few rows


def place(draft: Draft, job: Job) -> Placement | str:
    """Nodes and devices for the next attempt, or why there are none.

    Expects the pool's ledger, so that claims take turns, and waits for what is freed: nothing else can help a job that
    waits, so nothing else wakes it.
    """
    draft.turn(job.pool)
    if job.spec.on:
        return _named(draft, job)
    free = _Free(draft, job)
    order = draft.rules.policy.resume.place
    last = draft.roster(job, job.interruptions[-1]) if job.interruptions else frozenset()
    if last and PlaceBy.SPARE not in order and all(draft.peek(Node, f"node:{node}") for node in last):
        # No spare by policy: only its own nodes will do, as long as their seats are there.
        return _own(draft, job, free, last)
    most, least = job.spec.most, job.spec.least
    fewer = PlaceBy.FEWER in order and bool(job.interruptions)
    count = free.count()
    if count >= (least if fewer else most):
        return free.choose(min(count, most), last if order[:1] == (PlaceBy.SAME,) else ())
    needs = f"needs {least if fewer else most} nodes of {job.pool}, {count} can be claimed"
    deaf = [f"{UNCHECKED} on {more} others"] if (more := free.unchecked()) else []
    return "; ".join([needs, *deaf, *_sick(draft, sorted(last))])


def _checked_by_agents(draft: Draft, job: Job) -> bool:
    """Whether its nodes must pass a check before it starts that only their agents can do."""
    by_agent = Capability.CHECK_BY_AGENT in draft.can(job.spec.cluster)
    return by_agent and gate_of(job, draft.rules.policy) is not None


def _deaf(node: Node) -> bool:
    return node.agent is not AgentState.HEARD


def mute(draft: Draft, job: Job, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Which of these nobody can check: only an agent could, and none has been heard there."""
    if Capability.CHECK_BY_AGENT not in draft.can(job.spec.cluster):
        return ()
    rows = {node: draft.peek(Node, f"node:{node}") for node in nodes}
    return tuple(node for node, row in rows.items() if row is not None and row.agent is AgentState.NONE)


def _sick(draft: Draft, nodes: Iterable[NodeId]) -> list[str]:
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
    return told


def _own(draft: Draft, job: Job, free: "_Free", last: frozenset[NodeId]) -> Placement | str:
    placed = {node: devices for node in last if (devices := free.on(node)) is not None}
    avoid = set(job.avoid)
    chosen = sorted(placed, key=lambda node: (node in avoid, node))[: job.spec.most]
    fewer = PlaceBy.FEWER in draft.rules.policy.resume.place
    if len(chosen) >= (job.spec.least if fewer else job.spec.most):
        return {node: placed[node] for node in chosen}
    return f"waits for its own nodes: {listing(n for n in sorted(last) if n not in placed)} cannot be claimed"


class _Free:
    """What one job may claim in its pool: by the index, but for what this unit has changed or the job itself holds."""

    def __init__(self, draft: Draft, job: Job) -> None:
        self._draft = draft
        self._job = job
        self._wanted = job.spec.gpus_per_node
        self._heard = _checked_by_agents(draft, job)
        self._index = draft.free(job.pool)
        self._apart = draft.touched() | job.claim.keys()

    def count(self) -> int:
        filed = sum(self._index.fits(node, self._wanted, heard=self._heard) for node in self._apart)
        free = self._index.count(self._wanted, heard=self._heard)
        return free - filed + sum(self.on(node) is not None for node in self._apart)

    def unchecked(self) -> int:
        """How many more it could have if it asked for no check before it starts."""
        return self._index.count(self._wanted) - self._index.count(self._wanted, heard=self._heard)

    def on(self, node: NodeId) -> tuple[int, ...] | None:
        """Devices of a node that it may have; none of them: the whole node. None: it may not."""
        row = self._draft.peek(Node, f"node:{node}")
        if row is None or not row.claimable or row.pool != self._job.pool or (self._heard and _deaf(row)):
            return None
        return free_devices(self._draft, self._job, row)

    def choose(self, many: int, first: Collection[NodeId]) -> Placement:
        """So many, in order: those that it had last before others if policy says so, those to avoid last of all."""
        avoid = set(self._job.avoid)
        theirs = sorted(node for node in self._apart if self.on(node) is not None)
        filed = (node for node in self._index.first(self._wanted, heard=self._heard) if node not in self._apart)
        others = (node for node in merge(filed, theirs) if node not in avoid and node not in first)
        preferred = (node for node in sorted(first) if node not in avoid)
        rest = sorted(avoid, key=lambda node: (node not in first, node))
        placed: Placement = {}
        for node in chain(preferred, others, rest):
            if len(placed) == many:
                break
            if (devices := self.on(node)) is not None:
                placed[node] = devices
        return placed


def free_devices(draft: Draft, job: Job, node: Node) -> tuple[int, ...] | None:
    """What others leave of a node: as many devices as the job wants, or nothing."""
    claims = [other.claim[node.id] for other in draft.holders(node) if other.id != job.id]
    wanted = job.spec.gpus_per_node
    if wanted == 0 or not all(claims):  # a claim without devices is one of the whole node
        return None if claims else ()
    held = {index for devices in claims for index in devices}
    free = [device.index for device in node.devices if device.index not in held]
    return tuple(free[:wanted]) if len(free) >= wanted else None


def _named(draft: Draft, job: Job) -> Placement | str:
    placed: Placement = {}
    for name in job.spec.on:
        node = draft.peek(Node, f"node:{name}")
        if node is not None:
            draft.turn(node.pool)
        deaf = node is not None and node.claimable and _checked_by_agents(draft, job) and _deaf(node)
        devices = free_devices(draft, job, node) if node is not None and node.claimable and not deaf else None
        if deaf:
            return f"{name}: {UNCHECKED}"
        if node is None or devices is None:
            why = "is not known" if node is None else "is taken"
            if node is not None and not node.claimable:
                why = f"is being checked ({node.checking})" if node.checking else "cannot be claimed"
                why = "; ".join([why, *_sick(draft, (node.id,))])
            return f"{name} {why}"
        placed[name] = devices
    return placed


def unusable(draft: Draft, job: Job) -> tuple[NodeId, ...] | str:
    """What a cluster that chooses nodes itself is told to avoid, or why it is not asked yet.

    Nodes with our cordon are left out: the cluster keeps off them by itself, and returns to them when they are well,
    while a node that was named once is avoided for as long as the attempt waits.
    """
    pools = _pools(draft, job)
    found = [incident for pool in pools for incident in draft.find(Incident, f"open-incident:{pool}")]
    sick = {incident.node for incident in found if incident.phase is not Phase.WATCHED}
    last = draft.roster(job, job.interruptions[-1]) if job.interruptions else frozenset()
    checked = [node.id for pool in pools for node in draft.find(Node, f"checking:{pool}")]
    rows = {node: draft.peek(Node, f"node:{node}") for node in (*sick, *last, *checked)}
    bad = {node for node, row in rows.items() if row is not None and not row.claimable and not row.cordons}
    seats = sum(draft.ledger(pool).seats for pool in pools)
    least = min(job.spec.least, job.spec.most)
    if bad & set(job.spec.on) or seats - len(bad) < least:
        for node in sorted(bad)[:WATCHED]:
            draft.node(node)  # our cordon on one of them is enough to ask
        short = f": {listing(sorted(bad))} cannot be used" if bad else f", {seats} are there"
        return f"needs {least} nodes of {job.pool}{short}"
    dark = set(job.avoid)
    avoid = bad | dark if seats - len(bad | dark) >= least and not dark & set(job.spec.on) else bad
    return tuple(sorted(avoid))[:AVOIDED]


def _pools(draft: Draft, job: Job) -> list[str]:
    """Where a cluster that chooses nodes itself may put the job: a partition may lie across other nodes' pools."""
    if draft.ledger(job.pool).seats:
        return [job.pool]
    mine = (key.removeprefix("ledger:") for key in draft.keys("ledger"))
    return [pool for pool in mine if pool.startswith(f"{job.spec.cluster}/")][:POOLS]


def well(draft: Draft, job: Job, nodes: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    """Which of these can be claimed now."""
    if not nodes:
        return ()
    rows = {node: draft.peek(Node, f"node:{node}") for node in nodes}
    for pool in sorted({job.pool} | {row.pool for row in rows.values() if row is not None})[:POOLS]:
        draft.ledger(pool)  # what can be claimed changes with its version
    for node in [node for node, row in rows.items() if row is None][:WATCHED]:
        draft.node(node)  # nobody knows in which pool one that is gone comes back
    return tuple(node for node, row in rows.items() if row is not None and row.claimable)


def lost(draft: Draft, job: Job) -> tuple[NodeId, ...]:
    """Nodes with ranks of this attempt that cannot be reached."""
    return tuple(node for node, row in _seats(draft, job) if row is None or row.incarnation is None or row.lost)


def unseen(draft: Draft, job: Job) -> tuple[NodeId, ...]:
    """Nodes with ranks of this attempt that its cluster cannot reach: its word that they are gone proves nothing."""
    return tuple(node for node, row in _seats(draft, job) if row is None or row.incarnation is None or not row.ready)


def fenceable(draft: Draft, job: Job) -> tuple[NodeId, ...]:
    """Those of them where nobody else's attempt would suffer from a fence."""
    return tuple(node for node in unseen(draft, job) if may_fence(draft, job, node))


def may_fence(draft: Draft, job: Job, node: NodeId) -> bool:
    """Whether a node cannot be reached by its cluster, and nobody else's attempt would suffer from a fence."""
    row = draft.peek(Node, f"node:{node}")
    if row is None or row.lost:
        return True
    return (row.incarnation is None or not row.ready) and not _shared(draft, job, row)


def dismissed(draft: Draft, job: Job) -> bool:
    """Whether all that called for its end was dismissed since."""
    called = [draft.incident(call.incident) if call.incident else None for call in job.calls]
    return bool(called) and all(incident is not None and was_dismissed(incident) for incident in called)


def was_dismissed(incident: Incident) -> bool:
    """A person vouches for the node, or wants it no longer.

    A fault that asks only for a restart of the job ends by itself, and was right.
    """
    over = Phase.DISMISSED in {incident.phase, incident.closing}
    return over and (incident.kind is IncidentKind.OPERATOR or incident.remedy.disrupts)


def _shared(draft: Draft, job: Job, node: Node) -> bool:
    """Whether somebody else holds a part of it; then what is freed in its pool is waited for, too."""
    shared = any(other.id != job.id for other in draft.holders(node))
    if shared:
        draft.read(Freed, f"freed:{node.pool}")
    return shared


def _seats(draft: Draft, job: Job) -> list[tuple[NodeId, Node | None]]:
    running = sorted(node for node, state in job.ranks.items() if state is RankState.RUNNING)
    # The last few are watched: that one of them is lost must wake the job, whoever else knows it already.
    few = len(running) <= WATCHED
    return [(node, draft.node(node) if few else draft.peek(Node, f"node:{node}")) for node in running]
