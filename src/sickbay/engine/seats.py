"""Seats and their pools: what is in service, what may be claimed, and the ledger that changes with it."""

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice

from msgspec.structs import replace

from sickbay.brain.admit import limit_for, room_for
from sickbay.brain.seat import derive
from sickbay.engine.line import call_namers, coming, look_along, moves_queue
from sickbay.engine.view import Draft
from sickbay.model.fleet import Aside, Brake, Capability, Errand, Flipped, Freed, Ledger, Node, NodeId
from sickbay.model.incident import Incident, Room
from sickbay.model.job import Job, JobState
from sickbay.model.rows import DUE_NOW, key_of, kind_of

POOLS_AT_ONCE = 20  # whose books one unit raises for a gang that comes or leaves
POOLS_NAMED = 2000  # by one errand; who waits in others looks again at the next reminder
WAKE_AT_ONCE = 10  # jobs, or incidents, by one unit; others look again at their next reminder


def settle(draft: Draft) -> None:
    """Derive what follows from this unit's changes to seats, and bring the ledgers along. Called once per unit."""
    for node_id in _touched(draft):
        key = f"node:{node_id}"
        before, after = draft.before(Node, key), draft.peek(Node, key)
        if after is not None:
            incident = draft.incident(after.incident) if after.incident else None
            derived = derive(after, incident, draft.can(after.cluster))
            if derived != after:
                draft.put(derived)
            after = derived
        _book(draft, before, after)
    for row in list(draft.writes.values()):
        if isinstance(row, Incident):
            _book_repair(draft, row)
    _open_pools(draft)
    _flip(draft)
    _free_up(draft)
    _call_in(draft)


def _flip(draft: Draft) -> None:
    """Wake whoever a brake holds, or may hold, where this unit trips or resets it."""
    for brake in [row for row in draft.writes.values() if isinstance(row, Brake)]:
        before = draft.before(Brake, key_of(brake)) or Brake(scope=brake.scope, signature=brake.signature)
        if (before.tripped_at, before.reset_at) != (brake.tripped_at, brake.reset_at):
            name = f"{brake.scope}:{brake.signature}"
            flipped = draft.read(Flipped, f"flipped:{name}", watch=False) or Flipped(brake=name)
            draft.put(replace(flipped, times=flipped.times + 1))


def _call_in(draft: Draft) -> None:
    """Call those who wait for room within a pool's limit, as many as there is room for, first come, first served.

    Whoever is called and does not take it leaves the queue, or is at its head when the next is called; so there is
    never room and a queue at once, and a change of the ledger costs a few plans, however long the queue is.
    """
    called = 0
    for pool in _moved(draft):
        ledger = draft.peek(Ledger, f"ledger:{pool}") or Ledger(pool=pool)
        limit = limit_for(pool, draft.rules.policy)
        for room in Room:
            most = min(room_for(room, ledger, limit), WAKE_AT_ONCE - called)
            if room is Room.SEAT and _more_held(draft, ledger):
                most = max(most, 1)  # a person is to be told that the limit is used up by seats that only he can free
            for key in islice(_able(draft, pool, room), max(most, 0)):
                draft.waits[key] = DUE_NOW
                called += 1


def _moved(draft: Draft) -> list[str]:
    """Pools whose queues may move by this unit: their ledgers change, or somebody leaves."""
    pools: dict[str, None] = {}
    for key, row in draft.writes.items():
        if isinstance(row, Ledger):
            pools[row.pool] = None
        elif kind_of(key) == "incident":
            before, after = draft.before(Incident, key), row if isinstance(row, Incident) else None
            if before is not None and before.queues_for is not None and not _queues_still(before, after):
                pools[before.pool] = None
    return list(pools)


def _queues_still(before: Incident, after: Incident | None) -> bool:
    return after is not None and (after.queues_for, after.pool) == (before.queues_for, before.pool)


def _more_held(draft: Draft, ledger: Ledger) -> bool:
    before = draft.before(Ledger, key_of(ledger))
    return ledger.held > (before.held if before is not None else 0)


def _able(draft: Draft, pool: str, room: Room) -> Iterator[str]:
    """Who queues, but for those that this unit is about, and those that cannot be planned: they would block it."""
    for key in draft.queue(pool, room):
        if key not in draft.writes and key not in draft.waits and draft.peek(Aside, f"aside:{key}") is None:
            yield key


def _free_up(draft: Draft) -> None:
    """Wake whoever waits for nodes where this unit lets go of something."""
    pools: set[str] = set()
    lines: set[str] = set()  # where somebody may begin though nothing is freed: he waited for whom nothing helps now
    for key, row in draft.writes.items():
        if kind_of(key) == "node":
            before, after = draft.before(Node, key), row if isinstance(row, Node) else None
            if before is not None and before.claimable and (after is None or not after.claimable):
                lines.add(before.pool)
            if before is not None and after is not None and before.pool != after.pool:
                call_namers(draft, before)
            if before is not None and after is None:
                pools.add(before.pool)  # who waits for its own seats may take others now
            elif after is not None and after.claimable and not _as_free(before, after):
                pools.add(after.pool)
        elif kind_of(key) == "job":
            held, kept = draft.before(Job, key), row.claim if isinstance(row, Job) else {}
            left = [node for node, devices in held.claim.items() if kept.get(node) != devices] if held else []
            seats = (draft.peek(Node, f"node:{node}") for node in left)
            pools.update(seat.pool for seat in seats if seat is not None)
            if held is not None and held.keeps_place and not (isinstance(row, Job) and row.keeps_place):
                pools.add(held.pool)
            lines.update(_moved_queue(draft, held, row if isinstance(row, Job) else None))
        elif isinstance(row, Ledger) and coming(row) != coming(draft.before(Ledger, key) or Ledger(pool=row.pool)):
            lines.add(row.pool)
    few = _few(draft, sorted(pools))
    for pool in few:
        _free(draft, pool)
    for pool in sorted(lines.union(few))[:POOLS_AT_ONCE]:
        look_along(draft, pool)


def _moved_queue(draft: Draft, before: Job | None, after: Job | None) -> Iterator[str]:
    """The pool in which somebody may begin because a job comes, goes, or begins itself."""
    job = after or before
    if job is None or Capability.PLACE not in draft.can(job.spec.cluster):
        return
    claims = (before.claim if before else {}) != (after.claim if after else {})
    if claims or moves_queue(before, after):
        yield job.pool


def _as_free(before: Node | None, after: Node) -> bool:
    if before is None or not before.claimable:
        return False
    return (before.pool, before.devices, before.agent) == (after.pool, after.devices, after.agent)


def _book_repair(draft: Draft, incident: Incident) -> None:
    """Apart from the seat's own count: the seat of a repair may have gone before the repair ends."""
    before = draft.before(Incident, f"incident:{incident.id}")
    moved = Counter({incident.pool: int(incident.repairs)})
    if before is not None and before.repairs:
        moved.subtract([before.pool])
    for pool, begun in moved.items():
        if begun:
            ledger = draft.ledger(pool)
            draft.put(replace(ledger, repairing=ledger.repairing + begun))


def _was_repairing(draft: Draft, incident: Incident) -> int:
    before = draft.before(Incident, f"incident:{incident.id}")
    return int(before is not None and before.repairs and before.pool == incident.pool)


def _touched(draft: Draft) -> list[NodeId]:
    nodes: dict[NodeId, None] = {}
    for key, row in list(draft.writes.items()):
        if isinstance(row, Node):
            nodes[row.id] = None
        elif isinstance(row, Incident):
            nodes[row.node] = None
        elif row is None and kind_of(key) == "node":
            nodes[NodeId(key.removeprefix("node:"))] = None
    return list(nodes)


def _book(draft: Draft, before: Node | None, after: Node | None) -> None:
    """A seat that moves leaves the books of one pool and enters those of the other."""
    if before is not None and after is not None and before.pool != after.pool:
        _book_in(draft, before.pool, before, None)
        _book_in(draft, after.pool, None, after)
    elif (seat := after or before) is not None:
        _book_in(draft, seat.pool, before, after)


def _book_in(draft: Draft, pool: str, before: Node | None, after: Node | None) -> None:
    ledger = draft.ledger(pool)
    # A newcomer that leaves is in no number of these books; whoever waits for it by name looks for it elsewhere.
    leaves = before is not None and after is None
    changed = replace(
        ledger,
        seats=ledger.seats + _count(after, "counted") - _count(before, "counted"),
        out=ledger.out + _count(after, "out") - _count(before, "out"),
        ours=ledger.ours + _count(after, "ours") - _count(before, "ours"),
        held=ledger.held + _count(after, "held") - _count(before, "held"),
        held_apart=ledger.held_apart + _count(after, "held_apart") - _count(before, "held_apart"),
        turn=ledger.turn + (leaves or _count(after, "claimable") != _count(before, "claimable")),
    )
    size = limit_for(pool, draft.rules.policy).size
    changed = replace(changed, size=size if size is not None else changed.seats)
    if changed != ledger:
        draft.put(changed)


def _open_pools(draft: Draft) -> None:
    """A cluster has one more pool: who waits for seats anywhere in it could not wait on a row that was not there."""
    ledgers = [row for row in draft.writes.values() if isinstance(row, Ledger)]
    for ledger in ledgers:
        if draft.before(Ledger, key_of(ledger)) is None:
            cluster = ledger.pool.split("/", 1)[0]
            waiting = [job for job in draft.find(Job, f"open-job:{cluster}") if job.state is JobState.QUEUED]
            for job in waiting[:WAKE_AT_ONCE]:
                draft.waits[key_of(job)] = DUE_NOW


def _count(node: Node | None, what: str) -> int:
    return int(node is not None and bool(getattr(node, what)))


def ledger_now(draft: Draft, incident: Incident) -> Ledger:
    """The pool's ledger, less this incident's own repair if it has left REPAIRING in this unit.

    It is expected, not waited on: it changes with every seat, and few of these changes are any use to who waits.
    """
    ledger = draft.read(Ledger, f"ledger:{incident.pool}", watch=False) or Ledger(pool=incident.pool)
    freed = _was_repairing(draft, incident) - int(incident.repairs)
    return replace(ledger, repairing=ledger.repairing - freed)


def take_turns(draft: Draft, job: Job, nodes: Collection[NodeId]) -> None:
    """A claim takes its turn at the ledger of every pool that its nodes are in: two attempts never hold one device."""
    if not nodes:
        return
    seats = (draft.peek(Node, f"node:{node}") for node in nodes)
    pools = sorted({seat.pool for seat in seats if seat is not None}) or [job.pool]
    # What we place ourselves takes all its turns at once. What is given up, or recorded as it is, must be known however
    # many pools it lies in: the other turns follow.
    placed = not job.adopted and Capability.PLACE in draft.can(job.spec.cluster) and set(nodes) - job.claim.keys()
    for pool in pools if placed else _few(draft, pools):
        _turn(draft, pool)


def _turn(draft: Draft, pool: str) -> None:
    ledger = draft.ledger(pool)
    draft.put(replace(ledger, turn=ledger.turn + 1))


def _free(draft: Draft, pool: str) -> None:
    freed = draft.read(Freed, f"freed:{pool}", watch=False) or Freed(pool=pool)
    draft.put(replace(freed, times=freed.times + 1))


def _few(draft: Draft, pools: list[str]) -> list[str]:
    """As many pools as a unit has room for; the others' books follow in units of their own, up to a row's size."""
    if len(pools) > POOLS_AT_ONCE:
        rest = pools[POOLS_AT_ONCE:]
        errand = Errand(id=f"pools/{rest[0]}", because="a gang has come or left", at=draft.now)
        before = draft.read(Errand, key_of(errand), watch=False)
        named = dict.fromkeys((*before.pools, *rest) if before is not None else rest)
        draft.put(replace(errand, pools=tuple(named)[:POOLS_NAMED]))
        draft.waits[key_of(errand)] = DUE_NOW
    return pools[:POOLS_AT_ONCE]


def turn_pools(draft: Draft, errand: Errand) -> None:
    """Raise the books of some pools of an errand, and drop it with the last of them."""
    for pool in errand.pools[:POOLS_AT_ONCE]:
        _turn(draft, pool)
        _free(draft, pool)
        look_along(draft, pool)
    rest = errand.pools[POOLS_AT_ONCE:]
    if rest:
        draft.put(replace(errand, pools=rest))
        draft.waits[key_of(errand)] = DUE_NOW
    else:
        draft.drop(key_of(errand))
