"""The queue of one pool as its jobs and nodes stand now: read from the indexes, judged by `brain.queue`."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import islice

from sickbay.brain.gate import checked_by_agents
from sickbay.brain.queue import (
    LOOKED_AT,
    Claimable,
    Piles,
    QueueTicket,
    QueueTurn,
    fits,
    is_hopeless,
    lasts,
    needed,
    turn_of,
    walk,
)
from sickbay.engine.indexes import FreeNodes, grows, queues, waits
from sickbay.engine.view import Draft
from sickbay.model.fleet import Aside, Freed, Ledger, Node, NodeId
from sickbay.model.job import Job, JobState
from sickbay.model.policy import PlaceBy
from sickbay.model.rows import DUE_NOW, key_of

PASSED = 2000  # of a queue, at most: with all that need more than there is, and are passed over
NOTHING: Piles = {}
CALLED_AT_ONCE = 10  # jobs, by one unit; who begins has the queue looked at again
ENDS = 1000  # of running jobs that are counted on, to tell when the head of the queue can begin


@dataclass(frozen=True, slots=True)
class PoolQueue:
    """What the queue says to those who are looked at, and how to choose nodes within it."""

    verdicts: tuple[QueueTurn, ...]
    free: Claimable
    tickets: tuple[QueueTicket, ...]

    def of(self, job: Job) -> QueueTurn | None:
        return next((verdict for verdict in self.verdicts if verdict.job == job.id), None)


def line_of(draft: Draft, pool: str, until: Job | None = None, own: Collection[NodeId] = ()) -> PoolQueue:
    """The queue as it was before this unit; `until`: with that job as it is now, and up to it."""
    index, seats = draft.free(pool), expected(draft, pool)
    mine = Counter(pile for node in own if (pile := index.pile(node)) is not None)
    tickets = list(_tickets(draft, pool, index, seats, until, mine))
    names = dict.fromkeys(node for ticket in tickets for node in ticket.on)
    named = {node: pile for node in names if (pile := index.pile(node)) is not None}
    free = Claimable(piles=index.piles())
    releases = _releases(draft, pool, index) if len(tickets) > 1 else []
    return PoolQueue(tuple(walk(tickets, free, releases, seats, named)), free, tuple(tickets))


def _tickets(
    draft: Draft, pool: str, index: FreeNodes, seats: int, until: Job | None, mine: Piles
) -> Iterator[QueueTicket]:
    """In turn, as many as are looked at; then those that would grow, which take what nobody waits for.

    Whoever needs more than there is stands in nobody's way: hundreds of them in front must not hide who can begin.
    """
    jobs, piles = draft.open_jobs(pool), index.piles()
    growing = until is not None and grows(until)
    own = key_of(until) if until is not None else ""
    turn = turn_of(until) if until is not None and not growing else None
    number = 0
    for key in islice(jobs.line(pool), PASSED):
        job = draft.before(Job, key)
        if key == own or job is None or draft.peek(Aside, f"aside:{key}") is not None:
            continue
        if turn is not None and turn_of(job) > turn:
            break
        ticket = ticket_of(draft, job, index.mine.get(key, NOTHING))
        if not job.keeps_place and is_hopeless(ticket, piles, seats):
            continue
        number += not job.keeps_place
        if number > LOOKED_AT:
            return
        yield ticket
    if until is not None:
        yield ticket_of(draft, until, mine)
        return
    for key in islice(sorted(jobs.growing[pool]), LOOKED_AT):
        job = draft.before(Job, key)
        if job is not None:
            yield ticket_of(draft, job, index.mine.get(key, NOTHING))


def ticket_of(draft: Draft, job: Job, mine: Piles) -> QueueTicket:
    """`mine`: its own nodes, as they are filed: what is left of a shared one it could have once more."""
    policy, wanted = draft.rules.policy, job.spec.gpus_per_node
    heard = checked_by_agents(job, policy, draft.can(job.spec.cluster))
    spares = PlaceBy.SPARE in policy.resume.place or not job.interruptions or _left_for_good(draft, job)
    return QueueTicket(
        job=job.id,
        wanted=wanted,
        heard=heard,
        most=job.spec.most,
        need=job.spec.most if job.state is JobState.RUNNING else needed(job, policy),
        mine=sum(mine.values()),
        own=tuple((pile, count) for pile, count in mine.items() if fits(pile, wanted, heard=heard)),
        keeps=job.keeps_place,
        spares=spares,
        waits=waits(job) or grows(job),
        lasts=lasts(job),
        on=job.spec.on,
        away=any(_is_away(draft, node) for node in job.spec.on),
    )


def _is_away(draft: Draft, name: NodeId) -> bool:
    """Whether a node does not come back by itself."""
    node = draft.peek(Node, f"node:{name}")
    return node is None or node.away


def _left_for_good(draft: Draft, job: Job) -> bool:
    """Whether one of the nodes of its last attempt is no seat any more: nobody waits for that."""
    last = draft.roster(job, job.interruptions[-1])
    return any(draft.peek(Node, f"node:{node}") is None for node in last)


def _releases(draft: Draft, pool: str, index: FreeNodes) -> list[tuple[float, Piles]]:
    """In how many seconds which nodes are free, by the limits of those who have them to themselves."""
    jobs = draft.open_jobs(pool)
    now = draft.readings.get(pool.split("/", 1)[0], 0.0)
    beginning = sorted(
        (limit, key)
        for key in jobs.beginning[pool]
        if (job := draft.before(Job, key)) is not None and (limit := lasts(job)) is not None
    )
    running = ((max(0.0, at - now), key) for at, key in islice(jobs.ends(pool), ENDS))
    return [(seconds, index.alone[key]) for seconds, key in merge(running, beginning) if key in index.alone]


def expected(draft: Draft, pool: str) -> int:
    """Seats of a pool that are in service, or come back by themselves: not those that wait for a person."""
    ledger = draft.peek(Ledger, f"ledger:{pool}") or Ledger(pool=pool)
    return coming(ledger)


def coming(ledger: Ledger) -> int:
    away = ledger.held + max(0, ledger.out - ledger.ours) - max(0, ledger.held_apart)
    return ledger.seats - away


def allowed(line: PoolQueue, index: FreeNodes, job: Job) -> Iterator[NodeId]:
    """Free nodes that a job may take, in order, those first that nobody in front of it could use."""
    free = line.free
    ticket = next(ticket for ticket in line.tickets if ticket.job == job.id)
    against = [each for each in free.against(ticket) if each.job != job.id]
    barred = free.barred_from(ticket)
    plain: list[Iterator[NodeId]] = []
    shared: list[Iterator[NodeId]] = []
    for pile in index.piles():
        if fits(pile, ticket.wanted, heard=ticket.heard):
            names = islice(index.of(pile), barred.get(pile, 0), None)
            theirs = any(fits(pile, each.wanted, heard=each.heard) for each in against)
            (shared if theirs else plain).append(names)
    for some in (merge(*plain), merge(*shared)):
        yield from (node for node in some if node not in free.names)


# --- who is called when something changes


def look_along(draft: Draft, pool: str) -> None:
    """Have the queue of a pool looked at after this unit, if anybody stands in it."""
    if _anybody(draft, pool):
        freed = draft.read(Freed, f"freed:{pool}", watch=False) or Freed(pool=pool)
        draft.put(freed)
        draft.waits[key_of(freed)] = DUE_NOW


def _anybody(draft: Draft, pool: str) -> bool:
    written = (row for row in draft.writes.values() if isinstance(row, Job) and row.pool == pool)
    if any(row.open and (queues(row) or grows(row)) for row in written):
        return True
    jobs = draft.open_jobs(pool, readable=True)
    return next(jobs.line(pool), None) is not None or bool(jobs.growing[pool])


def call_namers(draft: Draft, node: Node) -> None:
    """Call those who wait for a node by its name that leaves their pool: they wait for its new one from now on."""
    namers = (
        key
        for key in draft.open_jobs(node.pool, readable=True).line(node.pool)
        if (job := draft.before(Job, key)) is not None and node.id in job.spec.on
    )
    for key in islice(namers, CALLED_AT_ONCE):
        draft.waits[key] = DUE_NOW


def moves_queue(before: Job | None, after: Job | None) -> bool:
    """Whether a job's change may let others of its pool begin."""
    return _standing(before) != _standing(after)


def _standing(job: Job | None) -> object:
    if job is None or not job.open:
        return None
    standing = (turn_of(job), waits(job)) if queues(job) else None
    return standing, job.over_at, grows(job)


def plan_line(draft: Draft, subject: str) -> None:
    """Call those who can begin now, and nobody else: in a long queue a change costs a few plans."""
    draft.waits[subject] = None
    pool = subject.partition(":")[2]
    called = 0
    for verdict in line_of(draft, pool).verdicts:
        if verdict.begins and called < CALLED_AT_ONCE:
            draft.waits[f"job:{verdict.job}"] = DUE_NOW
            called += 1
