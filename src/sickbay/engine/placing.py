"""Where a job's next attempt may run."""

from collections.abc import Iterable

from sickbay.brain.job_sight import AVOIDED, Placement, listing
from sickbay.engine.view import Draft
from sickbay.model.fleet import Node, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job
from sickbay.model.policy import PlaceBy

POOLS = 8  # of one cluster: a unit has room for few rows
TOLD = 3  # sick nodes that a waiting job names
WATCHED = 12  # nodes that a waiting job keeps an eye on; a unit has room for few rows


def place(draft: Draft, job: Job) -> Placement | str:
    """Nodes and devices for the next attempt, or why there are none. Reads the pool's ledger: claims wait for turns."""
    draft.ledger(job.pool)
    taken = _taken(draft, job)
    if job.spec.on:
        return _named(draft, job, taken)
    free = {node.id: devices for node in _candidates(draft, job) if (devices := _free(node, job, taken)) is not None}
    order = draft.rules.policy.resume.place
    last = draft.roster(job, job.interruptions[-1]) if job.interruptions else frozenset()
    own = last and PlaceBy.SPARE not in order and all(draft.peek(Node, f"node:{node}") for node in last)
    if own:  # no spare by policy: only its own nodes will do, as long as their seats are there
        free = {node: devices for node, devices in free.items() if node in last}
    avoid = set(job.avoid)
    chosen = sorted(free, key=lambda n: (n in avoid, n not in last if order[:1] == (PlaceBy.SAME,) else False, n))
    most, least = job.spec.most, job.spec.least
    if len(chosen) >= most:
        return {node: free[node] for node in chosen[:most]}
    fewer = PlaceBy.FEWER in order and bool(job.interruptions)
    if fewer and len(chosen) >= least:
        return {node: free[node] for node in chosen}
    if own:
        return f"waits for its own nodes: {listing(n for n in sorted(last) if n not in free)} cannot be claimed"
    needs = f"needs {least if fewer else most} nodes of {job.pool}, {len(chosen)} can be claimed"
    return "; ".join([needs, *_sick(draft, sorted(last))])


def _sick(draft: Draft, nodes: Iterable[NodeId]) -> list[str]:
    """Nodes whose treatment is withheld, and by what: that keeps a job waiting, too."""
    told: list[str] = []
    for name in nodes:
        node = draft.peek(Node, f"node:{name}")
        if node is None or node.claimable or node.incident is None or len(told) == TOLD:
            continue
        incident = draft.peek(Incident, f"incident:{node.incident}")
        if incident is not None and incident.phase is Phase.SUSPECT and incident.wait is not None:
            told.append(f"{name} has {incident.fault.code}: {incident.wait.because}")
    return told


def _candidates(draft: Draft, job: Job) -> list[Node]:
    return draft.find(Node, f"claimable:{job.pool}")


def _taken(draft: Draft, job: Job) -> dict[NodeId, set[int] | None]:
    """Devices that other attempts hold; None: the whole node."""
    taken: dict[NodeId, set[int] | None] = {}
    for other in draft.open_jobs(job.spec.cluster):
        if other.id == job.id:
            continue
        for node, devices in other.claim.items():
            held = taken.setdefault(node, set())
            taken[node] = None if not devices or held is None else held | set(devices)
    return taken


def _free(node: Node, job: Job, taken: dict[NodeId, set[int] | None]) -> tuple[int, ...] | None:
    held = taken.get(node.id, set())
    if held is None:
        return None
    wanted = job.spec.gpus_per_node
    if wanted == 0:
        return None if held else ()
    free = [device.index for device in node.devices if device.index not in held]
    return tuple(free[:wanted]) if len(free) >= wanted else None


def _named(draft: Draft, job: Job, taken: dict[NodeId, set[int] | None]) -> Placement | str:
    placed: Placement = {}
    for name in job.spec.on:
        node = draft.peek(Node, f"node:{name}")
        if node is not None:
            draft.ledger(node.pool)
        devices = _free(node, job, taken) if node is not None and node.claimable else None
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
        return f"needs {least} nodes of {job.pool}: {listing(sorted(bad))} cannot be used"
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
    return tuple(node for node, row in rows.items() if row is not None and row.claimable)


def lost(draft: Draft, job: Job) -> tuple[NodeId, ...]:
    """Nodes with ranks of this attempt that cannot be reached."""
    return tuple(node for node, row in _seats(draft, job) if row is None or row.incarnation is None or row.lost)


def unseen(draft: Draft, job: Job) -> tuple[NodeId, ...]:
    """Nodes with ranks of this attempt that its cluster cannot reach, and where nobody else's attempt would suffer."""
    away = [(node, row) for node, row in _seats(draft, job) if row is None or row.incarnation is None or not row.ready]
    shared = {node for other in draft.open_jobs(job.spec.cluster) if other.id != job.id for node in other.claim}
    return tuple(node for node, row in away if row is None or row.lost or node not in shared)


def _seats(draft: Draft, job: Job) -> list[tuple[NodeId, Node | None]]:
    running = sorted(node for node, state in job.ranks.items() if state == "running")
    # The last few are watched: that one of them is lost must wake the job, whoever else knows it already.
    few = len(running) <= WATCHED
    return [(node, draft.node(node) if few else draft.peek(Node, f"node:{node}")) for node in running]
