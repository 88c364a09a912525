"""Fan-out in slices: what one fact means for many jobs, as many in a unit as it has room for, the rest in the next.

Two hundred jobs of one GPU each may run on one node. An errand is a row for what is left to do; each step is
idempotent, so it goes on until a slice is not full.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import islice

from msgspec.structs import replace

from sickbay.engine.seats import turn_pools
from sickbay.engine.transitions import KEEP_LINKED, cause_of
from sickbay.engine.view import Draft
from sickbay.model.fault import Fault, Scope
from sickbay.model.fleet import Errand, Node, NodeId
from sickbay.model.incident import Incident
from sickbay.model.job import Call, Interruption, Job, JobState, RankState
from sickbay.model.rows import DUE_NOW, key_of

AT_ONCE = 10  # jobs
HARDLY = timedelta(minutes=1)


def end_ranks(draft: Draft, node: Node, because: str, *, lost: bool = False, since: datetime | None = None) -> None:
    """What ran on a node that has restarted is gone: every job there is called.

    `lost`: nobody has the node any more. Its jobs are called, too, but an object that is deleted ends no machine: what
    ran there counts as running until its cluster, or a fence, says otherwise.
    `since`: when its present boot began. An attempt that is younger may run in it: that is for its cluster to say.
    """
    reading = draft.reading(node.cluster)
    errand = Errand(
        id=f"end/{node.id}", node=node, because=because, lost=lost, at=draft.now, reading=reading, since=since
    )
    _run(draft, errand, _ended(draft, errand, node))


def link_fault(draft: Draft, incident: Incident, fault: Fault, at: datetime) -> None:
    """A fault dated inside an ended attempt joins its interruption, however late it is learned."""
    node = draft.peek(Node, f"node:{incident.node}")
    device = fault.device if fault.scope is Scope.DEVICE else None
    if node is not None:
        name = f"link/{incident.id}/{'all' if device is None else device}"
        if draft.version(f"incident:{incident.id}") == 0:
            draft.assume_new(f"errand:{name}")
        because = cause_of(fault, incident.node)
        errand = Errand(id=name, node=node, because=because, incident=incident.id, device=device, at=at)
        _run(draft, errand, _linked(draft, errand, node))


def make_room(draft: Draft, job: Job, nodes: Iterable[NodeId], at: datetime) -> None:
    """Others run where an attempt of ours was about to start: what has not begun gives way."""
    errand = Errand(id=f"room/{job.id}", job=job.id, because=f"was taken by {job.id} meanwhile", at=at)
    _run(draft, errand, _crossed(draft, errand, set(nodes)))


def plan_errand(draft: Draft, subject: str) -> None:
    draft.waits[subject] = None
    errand = draft.read(Errand, subject)
    if errand is not None and errand.pools:
        turn_pools(draft, errand)
    elif errand is not None:
        _run(draft, errand, _changes(draft, errand))


def _changes(draft: Draft, errand: Errand) -> Iterator[Job]:
    """Jobs as they are after it, those that it is not done for yet."""
    if errand.job is not None:
        job = draft.peek(Job, f"job:{errand.job}")
        return _crossed(draft, errand, set(job.claim) if job is not None else set())
    if errand.node is None:
        return iter(())
    return _ended(draft, errand, errand.node) if errand.incident is None else _linked(draft, errand, errand.node)


def _run(draft: Draft, errand: Errand, changes: Iterator[Job]) -> None:
    some = list(islice(changes, AT_ONCE + 1))
    for job in some[:AT_ONCE]:
        draft.put(job)
    key = key_of(errand)
    if len(some) > AT_ONCE:
        draft.put(errand)
        draft.waits[key] = DUE_NOW
    elif draft.before(Errand, key) is not None:
        draft.drop(key)
        draft.waits[key] = None


def _crossed(draft: Draft, errand: Errand, taken: set[NodeId]) -> Iterator[Job]:
    seats = (draft.peek(Node, f"node:{node}") for node in sorted(taken))
    others = {other.id: other for seat in seats if seat is not None for other in draft.holders(seat, readable=True)}
    for other in others.values():
        crossed = sorted(taken & other.claim.keys())
        if other.id == errand.job or other.state is not JobState.GATING or not crossed:
            continue
        if other.called_enough or any(call.node in taken for call in other.calls):  # it gives way already
            continue
        call = Call(because=f"{crossed[0]} {errand.because}", node=crossed[0], dated=errand.at)
        yield other.called(call)


def _ended(draft: Draft, errand: Errand, seat: Node) -> Iterator[Job]:
    node = seat.id
    for job in draft.holders(seat, readable=True):
        runs = job.ranks.get(node) is RankState.RUNNING and not _younger(job, errand.since)
        enough = job.called_enough and job.called_at_once
        called = enough or any(each.node == node and not each.before for each in job.calls)
        gated = job.state is JobState.GATING and not called  # what it was checked for is not what it would start on
        if not (runs or gated) or job.began > errand.reading:
            continue
        call = Call(because=errand.because, node=node, lost=errand.lost, booted=not errand.lost, dated=errand.at)
        if not errand.lost:
            ended = replace(job, ranks={**job.ranks, node: RankState.GONE}) if runs else job
            yield ended if called else ended.pressed(call)
        elif not enough and not any(each.node == node and each.incident is None for each in job.calls):
            yield job.pressed(call)  # an incident's call alone may be dismissed


def _younger(job: Job, boot: datetime | None) -> bool:
    """Whether the attempt may have begun after the boot did. What the agent's clock says is good to a minute."""
    return boot is not None and job.began_at is not None and job.began_at > boot - HARDLY


def _linked(draft: Draft, errand: Errand, seat: Node) -> Iterator[Job]:
    for job in draft.interrupted_on(seat):
        linked = job
        for n, lost in enumerate(job.interruptions):
            known = errand.incident in lost.incidents or len(lost.incidents) >= KEEP_LINKED
            if not known and _had(draft, job, lost, errand, seat) and _inside(draft, job, n, errand.at):
                linked = _caused(draft, linked, n, errand)
        if linked is not job:
            yield linked


def _had(draft: Draft, job: Job, lost: Interruption, errand: Errand, seat: Node) -> bool:
    """Whether the attempt had what the fault is about."""
    if seat.id not in draft.roster(job, lost):
        return False
    held = draft.shared(job, lost).get(seat.id)
    return errand.device is None or not held or errand.device in held


def _caused(draft: Draft, job: Job, n: int, errand: Errand) -> Job:
    """The job with the incident on one of its interruptions.

    The first is its cause, after all, where that is still open, or the program was blamed and paid with a restart.
    """
    lost = job.interruptions[n]
    incidents = lost.incidents if errand.incident is None else (*lost.incidents, errand.incident)
    linked = replace(lost, incidents=incidents)
    if not lost.incidents and (lost.spent is not None or not lost.closed):
        record = draft.attempt(job, lost.attempt)
        if record is not None:
            draft.put(replace(record, because=errand.because))
        linked = replace(linked, cause=errand.because, spent=None)
        if lost.spent is not None:  # it was judged already, without knowing
            job = replace(job, diagnosis=errand.because) if n + 1 == len(job.interruptions) else job
            told = f"attempt {lost.attempt} ended by {errand.because}, as is known by now"
            if not draft.rules.policy.resume.faults_count:
                job = replace(job, restarts=tuple(at for at in job.restarts if at != lost.spent))
                told += ": its restart is given back"
            draft.tell(told, key_of(job), event="linked")
    return replace(job, interruptions=(*job.interruptions[:n], linked, *job.interruptions[n + 1 :]))


def _inside(draft: Draft, job: Job, n: int, at: datetime) -> bool:
    """Whether a moment is between the claim of an attempt, which ended the interruption before, and its end."""
    before = job.interruptions[n - 1].stages if n else {}
    began = before.get("placed") or before.get("detected") or job.submitted_at
    ended = job.interruptions[n].stages.get("stopped") or draft.now
    return began <= at <= ended + draft.rules.policy.resume.settle
