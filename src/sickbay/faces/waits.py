"""What something waits for, until when, and what would change that: the stored wait, and what rows say by themselves.

Whoever decided to wait has written why, until when and, where a rule holds it back, what would end that. What else
there is to say follows from the intent under way, which shows itself in one way, and from the nodes of a pool.
"""

from collections.abc import Iterable
from datetime import datetime

from sickbay.brain.incident_input import REMINDED
from sickbay.brain.submission import expects_heartbeats
from sickbay.faces.answers import Waiting
from sickbay.faces.archive import Archive
from sickbay.model.clock import INGEST, WatchedClock
from sickbay.model.cordon import named, others_of
from sickbay.model.fault import RUNGS, Proof
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, Phase, Wait
from sickbay.model.intent import (
    AskToSave,
    Drain,
    Fence,
    Intent,
    IntentState,
    Look,
    Quarantine,
    Release,
    Repair,
    RerunJob,
    StartJob,
    StopJob,
    Verify,
)
from sickbay.model.job import Job, JobState, RankState, Work

MOST_NAMED = 8


def incident_waits(archive: Archive, incident: Incident) -> Waiting | None:
    """None: it is over."""
    if not incident.open:
        return None
    intent = archive.intent(incident.intent)
    under_way = intent is not None and not intent.state.over
    wait = incident.wait or Wait(because="it is about to be decided")
    changed, then = wait.ends, wait.then
    if incident.phase is Phase.HELD:
        people = (f"an operator: confirm, escalate or dismiss {incident.id}", "the node leaves the cluster")
        changed, then = (*changed, *people), REMINDED
    elif not changed and intent is not None and under_way:
        changed, then = (_shows(intent),), "it is given up, and the next step is decided"
    elif not changed and incident.phase is Phase.DRAINING:
        changed, then = _who_leaves(archive, incident), "it is held for a person"
    return Waiting(
        because=wait.because,
        until=archive.estimate(wait.until),
        then=then or "it is judged afresh",
        would=wait.would.removeprefix("would have: "),
        changed_by=changed or ("its own next step",),
        budget=archive.budget(incident.pool),
        notes=_notes(archive, incident.cluster, intent if under_way else None),
    )


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def _who_leaves(archive: Archive, incident: Incident) -> tuple[str, ...]:
    node = archive.node(incident.node)
    jobs = archive.holders(node) if node is not None else []
    left = [f"job {job.id} leaves {incident.node}{_asked(job)}" for job in jobs]
    return (*left, *(["work that Sickbay does not manage leaves"] if node is not None and node.unmanaged else []))


def _asked(job: Job) -> str:
    return f" ({job.wait.because})" if job.save_by is not None and job.wait is not None else ""


_PROOFS = {
    Proof.NEW_BOOT: "it is seen under a new boot",
    Proof.NEW_INSTANCE: "another instance is seen in its seat",
    Proof.RESET_CONFIRMED: "its agent confirms the reset",
    Proof.AGENT_HEARD: "its agent is heard again",
    Proof.NONE: "it is done",
}


def _shows(intent: Intent) -> str:
    """What would be seen if the act under way has taken effect."""
    match intent.act:
        case Quarantine(node=node):
            return f"the cluster shows our cordon on {node}"
        case Release(node=node):
            return f"the cluster shows {node} without our cordon"
        case Drain(node=node):
            return f"nothing runs on {node} any more"
        case Repair(node=node, rung=rung):
            return f"{rung} of {node} is proven: {_PROOFS[RUNGS[rung].proof]}"
        case Verify(nodes=nodes, level=level):
            waiting = [n for n in nodes if n not in intent.verdicts]
            return f"the check of level {level} answers on {_list(waiting)}"
        case Look(nodes=nodes):
            return f"{_list([n for n in nodes if n not in intent.verdicts])} have been looked at"
        case AskToSave(job=job):
            return f"{job} has saved"
        case Fence(node=node):
            return f"{node} is fenced"
        case StopJob():
            return "all its ranks are seen gone"
        case StartJob():
            return "all its ranks are seen"
        case RerunJob():
            return "its controller starts it again"
        case _:
            return "it is seen"


def _notes(archive: Archive, cluster: str, intent: Intent | None) -> tuple[str, ...]:
    notes = []
    for source, clock in archive.clocks.items():
        since = archive.still_since(clock)
        if since is not None and source in {cluster, INGEST}:
            notes.append(f"{_unheard(clock)} since {_clock(since)}: deadlines on it stand still")
    if intent is not None and intent.state is IntentState.UNKNOWN:
        notes.append(f"whether the call took effect is not known ({intent.answer}): it is looked for")
    if intent is not None and intent.state is IntentState.PLANNED and intent.sends:
        notes.append(f"the last call did not go through ({intent.answer}): it is sent again")
    if intent is not None and intent.state is IntentState.PLANNED and intent.not_before is None:
        queue = archive.to_send(intent.lane)
        notes.append(f"no worker was free for {intent.lane} yet: {queue} {'calls wait' if queue > 1 else 'call waits'}")
    return tuple(notes)


def _unheard(clock: WatchedClock) -> str:
    if clock.source == INGEST:
        return "no agent has been heard"
    if (clock.last or 0.0) > (clock.moved or 0.0):
        return f"cluster {clock.source} has answered too slowly ({clock.took:.0f} s)"
    return f"cluster {clock.source} has not answered"


def _list(nodes: Iterable[str]) -> str:
    names = list(nodes)
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


# --- jobs


def job_waits(archive: Archive, job: Job) -> Waiting | None:
    if not job.open:
        return None
    wait, intent = job.wait, archive.intent(job.intent)
    under_way = intent is not None and not intent.state.over
    changed: tuple[str, ...]
    if intent is not None and under_way:
        asked = isinstance(intent.act, AskToSave)
        changed, then = (_shows(intent),), "it is stopped" if asked else "it is given up, and the next step is decided"
    else:
        changed, then = _by_state(archive, job)
    busy = f": {doing(job.work)}" if job.work is not None and job.state is JobState.RUNNING else ""
    return Waiting(
        because=f"{wait.because}{busy}" if wait is not None else "it is about to be decided",
        until=archive.estimate(wait.until) if wait is not None else None,
        then=then,
        changed_by=changed,
        budget=archive.budget(job.pool),
        notes=(*_unwatched(archive, job), *_notes(archive, job.spec.cluster, intent if under_way else None)),
    )


def _hang_limits(archive: Archive, job: Job) -> tuple[str, ...]:
    """What would make it count as hung: nothing is said that is not watched."""
    spec, rule = job.spec, archive.policy.resume if archive.policy is not None else None
    stall, start = (rule.stall_after.total_seconds(), rule.start_within.total_seconds()) if rule else (None, None)
    said: list[str] = []
    if job.stepped_in == job.attempt and job.attempt:
        limit = spec.stall_after if spec.stall_after is not None else stall
        if limit != 0:
            said.append(f"no step after {job.step} comes{_within(limit)}")
    elif expects_heartbeats(job) or job.opened_in == job.attempt:
        limit = spec.start_within if spec.start_within is not None else start
        if limit != 0:
            said.append(f"no first heartbeat comes{_within(limit)} of its start")
    on = (watched.name for watched in spec.log_rules if job.rules_off.get(watched.name) != job.attempt)
    return (*said, *(f"its log rule {name} is broken" for name in on))


def _within(limit: float | None) -> str:
    return f" within {limit:g} s" if limit else " in time"


def _unwatched(archive: Archive, job: Job) -> tuple[str, ...]:
    if job.state is not JobState.RUNNING:
        return ()
    off = sorted(name for name, attempt in job.rules_off.items() if attempt == job.attempt)
    notes = [f"its log rule {name} is switched off: what it would have found is not found" for name in off]
    if not _hang_limits(archive, job):
        notes.append("a hang would not be noticed: it sends no heartbeats, and was submitted without --start-within")
    return tuple(notes)


UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def doing(work: Work) -> str:
    """verifying attempt-1/step-40: 412 of 990 GB."""
    size = min(len(UNITS) - 1, max(0, len(str(work.of)) - 1) // 3)
    digits = 1 if size and work.of < 10 * 1000**size else 0
    return f"{work.what}: {work.done / 1000**size:.{digits}f} of {work.of / 1000**size:.{digits}f} {UNITS[size]}"


def _by_state(archive: Archive, job: Job) -> tuple[tuple[str, ...], str]:
    match job.state:
        case JobState.QUEUED if job.adopted:
            return ("its own controller starts it",), "its controller is asked to"
        case JobState.QUEUED:
            return _wanted_nodes(archive, job), "a person is told that it still waits"
        case JobState.RUNNING:
            return ("it ends", "a fault is found under it", *_hang_limits(archive, job)), ""
        case JobState.STOPPING:
            left = [node for node, state in job.ranks.items() if state is RankState.RUNNING]
            return (f"its ranks on {_list(left)} are proven gone",), "it is tried again"
        case _:
            return ("its own next step",), ""


def _wanted_nodes(archive: Archive, job: Job) -> tuple[str, ...]:
    """Who keeps it waiting: named nodes, or the nodes of its pool that cannot be claimed, each with the reason."""
    nodes = [node for node in archive.nodes(job.pool) if not job.spec.on or node.id in job.spec.on]
    taken = {
        node: other.id for other in archive.open_jobs(job.spec.cluster) if other.id != job.id for node in other.claim
    }
    said: list[str] = []
    for node in nodes:
        if node.id in taken:
            said.append(f"job {taken[node.id]} leaves {node.id}")
        elif not node.claimable:
            said.append(f"{node.id} can be used again ({why_not(archive, node)})")
    if len(said) > MOST_NAMED:
        said = [*said[:MOST_NAMED], f"any of {len(said) - MOST_NAMED} more nodes can be used"]
    return tuple(said) or (f"another node joins pool {job.pool}",)


def why_not(archive: Archive, node: Node) -> str:
    """Why a node cannot be claimed."""
    incident = archive.incident(node.incident) if node.incident else None
    if incident is not None and incident.phase is not Phase.WATCHED:
        return f"{incident.id} {incident.phase}: {incident.fault.code}"
    if node.incarnation is None:
        return "its seat is vacant"
    if node.lost:
        return "it is lost"
    if node.unknown:
        return "its agent is silent"
    if node.cordons:
        return f"cordoned by {', '.join(node.cordons)}"
    return "the cluster does not call it ready" if not node.ready else "nobody speaks for it yet"


# --- nodes


def node_waits(archive: Archive, node: Node) -> Waiting | None:
    """As its incident does; of a node without one, what keeps it from work. None: it is fit for work."""
    incident = archive.incident(node.incident) if node.incident else None
    if incident is not None:
        return incident_waits(archive, incident)
    if node.claimable:
        return None
    changed: tuple[str, ...]
    if node.incarnation is None:
        changed, then = (f"a newcomer of pool {node.pool} fills the seat",), "a person is told"
        until = archive.estimate(node.vacant_until)
    elif node.others_cordon:
        others = [named(owner) for owner in others_of(node.cordons)]
        changed, then, until = (f"{', '.join(others)} takes its cordon back",), "", None
    else:
        changed, then, until = (
            ("its agent is heard", "the cluster calls it ready"),
            "",
            archive.estimate(node.going_down),
        )
    return Waiting(
        because=why_not(archive, node),
        until=until,
        then=then,
        changed_by=changed,
        budget=archive.budget(node.pool),
        notes=_notes(archive, node.cluster, None),
    )
