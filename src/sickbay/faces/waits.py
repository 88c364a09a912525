"""What something waits for, until when, and what would change that: the stored wait, and what rows say by themselves.

Whoever decided to wait has written why, until when and, where a rule holds it back, what would end that. What else
there is to say follows from the intent under way, which shows itself in one way, and from the nodes of a pool.
"""

from collections.abc import Iterable
from datetime import datetime

from sickbay.brain.incident_input import REMINDED
from sickbay.brain.showing import why_unclaimable
from sickbay.faces.answers import WaitedOn, Waiting, WayOut
from sickbay.faces.archive import Archive, iso
from sickbay.faces.hangs import hang_limits, unwatched
from sickbay.faces.turns import in_queue
from sickbay.faces.ways_out import MOST_NAMED, brake_ends, by_people, held_back_by, seats_out, way
from sickbay.model.clock import INGEST, WatchedClock
from sickbay.model.cordon import named, others_of
from sickbay.model.fault import RUNGS, Proof
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, Phase, Wait, treatment
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

MOST_BEHIND = 4  # incidents that a waiting job tells of in full


def incident_waits(archive: Archive, incident: Incident) -> Waiting | None:
    """None: it is over."""
    if not incident.open:
        return None
    intent = archive.intent(incident.intent)
    under_way = intent is not None and not intent.state.over
    wait = incident.wait or Wait(because="it is about to be decided")
    then = wait.then or "it is judged afresh"
    ways, until = _written(wait), archive.estimate(wait.until)
    node = archive.node(incident.node)
    if incident.phase is Phase.HELD:
        then = REMINDED
    elif not ways and intent is not None and under_way:
        ways, then = (way(_shows(intent)),), "it is given up, and the next step is decided"
    elif not ways and incident.phase is Phase.DRAINING:
        ways, then = _who_leaves(archive, incident), "it is held for a person"
    elif held_back := held_back_by(archive, incident, node):
        ways = held_back  # what was written with the wait says the same, without the names
        if (off := brake_ends(archive, incident, node)) is not None and (until is None or off.about < until.about):
            until, then = (
                off,
                "the brake goes off by itself if no more nodes show the fault, and each suspect is checked",
            )
    ways = (*ways, *by_people(incident))
    return Waiting(
        because=wait.because,
        since=iso(incident.stages[-1].entered_at if incident.stages else incident.opened_at),
        until=until,
        then=then,
        would=treatment(incident) if wait.would or wait.room is not None else "",
        changed_by=tuple(one.what for one in ways) or ("its own next step",),
        ways_out=ways,
        budget=archive.budget(incident.pool, seats_out(archive, incident.pool)),
        notes=_notes(archive, incident.cluster, intent if under_way else None),
    )


def _written(wait: Wait) -> tuple[WayOut, ...]:
    return tuple(way(end) for end in wait.ends)


def _clock(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%SZ")


def _who_leaves(archive: Archive, incident: Incident) -> tuple[WayOut, ...]:
    node = archive.node(incident.node)
    jobs = archive.holders(node) if node is not None else []
    left = [way(f"job {job.id} leaves {incident.node}{_asked(job)}", f"stop {job.id}") for job in jobs]
    others = way(f"work that Sickbay does not manage leaves {incident.node}")
    return (*left, *([others] if node is not None and node.unmanaged else []))


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
            if not level:
                return f"the storage of the job is looked at on {_list(waiting)}"
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
    ways: tuple[WayOut, ...]
    behind: tuple[WaitedOn, ...] = ()
    if intent is not None and under_way:
        asked = isinstance(intent.act, AskToSave)
        ways, then = (
            (way(_shows(intent)),),
            "it is stopped" if asked else "it is given up, and the next step is decided",
        )
    else:
        ways, then = _by_state(archive, job)
        behind = _behind(archive, job) if job.state is JobState.QUEUED and not job.adopted else ()
    busy = f": {doing(job.work)}" if job.work is not None and job.state is JobState.RUNNING else ""
    return Waiting(
        because=f"{archive.turns(job.spec.cluster).because(job)}{busy}"
        if wait is not None
        else "it is about to be decided",
        since=iso(entered(job)),
        until=archive.estimate(wait.until) if wait is not None else None,
        then=then,
        changed_by=tuple(one.what for one in ways),
        ways_out=ways,
        behind=behind,
        budget=archive.budget(job.pool, seats_out(archive, job.pool)),
        notes=(*unwatched(archive, job), *_notes(archive, job.spec.cluster, intent if under_way else None)),
    )


def entered(job: Job) -> datetime | None:
    """When it came into its present state, as far as its row says."""
    last = job.interruptions[-1].stages if job.interruptions else {}
    match job.state:
        case JobState.QUEUED:
            return max(last.values()) if last else job.submitted_at
        case JobState.RUNNING | JobState.GATING:
            return job.began_at
        case JobState.STOPPING | JobState.DIAGNOSING:
            return max(last.values()) if last else None
        case _:
            return job.closed_at


UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def doing(work: Work) -> str:
    """verifying attempt-1/step-40: 412 of 990 GB."""
    size = min(len(UNITS) - 1, max(0, len(str(work.of)) - 1) // 3)
    digits = 1 if size and work.of < 10 * 1000**size else 0
    return f"{work.what}: {work.done / 1000**size:.{digits}f} of {work.of / 1000**size:.{digits}f} {UNITS[size]}"


def _by_state(archive: Archive, job: Job) -> tuple[tuple[WayOut, ...], str]:
    match job.state:
        case JobState.QUEUED if job.adopted:
            return (way("its own controller starts it"),), "its controller is asked to"
        case JobState.QUEUED if job.storage_trouble is not None and not in_queue(job):
            stop = way("you stop it, since it names the wrong directory", f"stop {job.id}")
            return (way("the mount, or the file server, is mended"), stop), "nodes are tried again"
        case JobState.QUEUED:
            first = archive.turns(job.spec.cluster).first(job)
            then = job.wait.then if job.wait is not None else ""
            ways = _wanted_nodes(archive, job) if first is None else _turn_comes(first)
            return ways, then or "a person is told that it still waits"
        case JobState.RUNNING:
            ends = ("it ends", "a fault is found under it", *hang_limits(archive, job))
            return (*map(way, ends), way("you stop it for good", f"stop {job.id}")), ""
        case JobState.STOPPING:
            left = [node for node, state in job.ranks.items() if state is RankState.RUNNING]
            return (way(f"its ranks on {_list(left)} are proven gone"),), "it is tried again"
        case _:
            return (way("its own next step"),), ""


def _turn_comes(first: Job) -> tuple[WayOut, ...]:
    """What would change a job's waiting that stands behind another: which nodes become free is not its business yet."""
    return (
        way(f"job {first.id}, at the head of the queue, begins"),
        way(f"job {first.id} is stopped", f"stop {first.id}"),
    )


def _wanted_nodes(archive: Archive, job: Job) -> tuple[WayOut, ...]:
    """Who keeps it waiting: named nodes, or the nodes of its pool that cannot be claimed, each with the reason."""
    said: list[WayOut] = []
    for node, holder in _missed(archive, job):
        if holder is not None:
            said.append(way(f"job {holder.id} leaves {node.id}", f"stop {holder.id}"))
        else:
            said.append(way(f"{node.id} can be used again ({why_not(archive, node)})"))
    others = (one for one in archive.open_jobs(job.spec.cluster) if one.id != job.id and one.pool == job.pool)
    kept = (one.id for one in others if one.keeps_place and not one.claim)
    said += [way(f"job {one}, whose place is kept, runs again or gives up", f"stop {one}") for one in kept]
    if len(said) > MOST_NAMED:
        said = [*said[:MOST_NAMED], way(f"any of {len(said) - MOST_NAMED} more nodes can be used")]
    return tuple(said) or (way(f"another node joins pool {job.pool}"),)


def _missed(archive: Archive, job: Job) -> list[tuple[Node, Job | None]]:
    """The nodes that it may use and cannot: those that another job has, with that job."""
    missed: list[tuple[Node, Job | None]] = []
    for node in archive.nodes(job.pool):
        if job.spec.on and node.id not in job.spec.on:
            continue
        other = next((one for one in archive.holders(node) if one.id != job.id), None)
        if other is not None or not node.claimable:
            missed.append((node, other))
    return missed


def _behind(archive: Archive, job: Job) -> tuple[WaitedOn, ...]:
    """What the sick nodes that it lacks wait for themselves: who asks about the job need not ask about them."""
    found: list[WaitedOn] = []
    for node, holder in _missed(archive, job):
        incident = archive.incident(node.incident) if node.incident and holder is None else None
        waiting = incident_waits(archive, incident) if incident is not None else None
        if incident is None or waiting is None:
            continue
        found.append(
            WaitedOn(
                about=incident.id,
                node=node.id,
                state=incident.phase,
                because=waiting.because,
                since=waiting.since,
                until=waiting.until,
                then=waiting.then,
                ways_out=waiting.ways_out,
            )
        )
        if len(found) == MOST_BEHIND:
            break
    return tuple(found)


def why_not(archive: Archive, node: Node) -> str:
    """Why a node cannot be claimed."""
    return why_unclaimable(node, archive.incident(node.incident) if node.incident else None)


# --- nodes


def node_waits(archive: Archive, node: Node) -> Waiting | None:
    """As its incident does; of a node without one, what keeps it from work. None: it is fit for work."""
    incident = archive.incident(node.incident) if node.incident else None
    if incident is not None:
        return incident_waits(archive, incident)
    if node.claimable and node.going_down is None:
        return None
    ways: tuple[WayOut, ...]
    then, until = "", None
    if node.incarnation is None:
        ways, then = (way(f"a newcomer of pool {node.pool} fills the seat"),), "a person is told"
        until = archive.estimate(node.vacant_until)
    elif node.others_cordon:
        others = [named(owner) for owner in others_of(node.cordons)]
        ways = (way(f"{', '.join(others)} takes its cordon back"),)
    else:
        ways = (way("its agent is heard"), way("the cluster calls it ready"))
        until = archive.estimate(node.going_down)
    return Waiting(
        because=why_not(archive, node),
        until=until,
        then=then,
        changed_by=tuple(one.what for one in ways),
        ways_out=ways,
        budget=archive.budget(node.pool, seats_out(archive, node.pool)),
        notes=_notes(archive, node.cluster, None),
    )
