"""Projection: what people, and a cluster's own tools, are shown of a node or a job; the one judge of a node's state."""

from collections.abc import Sequence

from sickbay.model.cordon import named
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, Node
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Job, JobState
from sickbay.model.rows import Line
from sickbay.model.shown import SHOWN_LINES, SHOWN_NODES, SHOWN_TEXT, JobShown, NodeShown, NodeState, ShownLine


def state_of(node: Node, incident: Incident | None) -> NodeState:
    """READY UNKNOWN SUSPECT OUT LOST HELD INTAKE: the worst that is true of it. READY: a job could be given it now."""
    phase = incident.phase if incident is not None and incident.open else None
    if phase is Phase.HELD:
        return "HELD"
    if incident is not None and phase is not None and incident.kind is IncidentKind.INTAKE:
        return "INTAKE"
    if phase is not None and phase.out:
        return "OUT"
    if node.incarnation is None or node.lost:
        return "LOST" if node.lost and node.incarnation is not None else "OUT"
    if node.cordons:
        return "OUT"
    if phase is Phase.SUSPECT:
        return "SUSPECT"
    # Not called ready, on its way down, not heard under this boot: nobody could be given it now.
    fit = node.ready and node.going_down is None and not node.unknown and (node.claimable or node.checking)
    return "READY" if fit else "UNKNOWN"


def schedulable(node: Node) -> bool:
    """Whether its cluster may put work there, as far as the cluster itself is concerned."""
    return node.ready and not node.cordons and node.incarnation is not None


def why_node(node: Node, incident: Incident | None) -> str:
    """Why it is as it is; empty: it can be claimed."""
    if incident is not None and incident.open:
        return f"{incident.phase}: {why_incident(incident)}"
    return "" if node.claimable and node.going_down is None else why_unclaimable(node, incident)


def why_incident(incident: Incident) -> str:
    if incident.open and incident.wait is not None:
        return incident.wait.because
    return incident.stages[-1].because if incident.stages else incident.fault.because


def why_unclaimable(node: Node, incident: Incident | None) -> str:
    """Why a node cannot be claimed."""
    if incident is not None and incident.phase is not Phase.WATCHED:
        return f"{incident.id} {incident.phase}: {incident.fault.code}"
    if node.incarnation is None:
        return "its seat is vacant"
    if node.lost:
        return "it is lost"
    if node.unknown:
        return "its agent is silent"
    if node.cordons:
        return f"it is cordoned by {', '.join(named(owner) for owner in node.cordons)}"
    if node.going_down is not None:
        return "it has announced that it goes down"
    if not node.ready:
        return f"cluster {node.cluster} does not call it ready"
    if node.checking:
        return f"a check runs there ({node.checking}): a job is given it when that is over"
    return "its agent has not been heard since it booted"


def why_job(job: Job) -> str:
    """Of a job that is over the reason of its end: an earlier diagnosis is that of an interruption."""
    match job.state:
        case JobState.COMPLETE:
            return ""
        case JobState.STOPPED:
            return job.stop_asked or "cancelled by its owner"
        case JobState.FAILED:
            return job.diagnosis
        case _:
            return job.wait.because if job.wait is not None else ""


def node_shown(node: Node, incident: Incident | None, jobs: Sequence[JobId] = ()) -> NodeShown:
    """`incident`: the one that its row names, open or not."""
    ill = incident if incident is not None and incident.open else None
    return NodeShown(
        node=node.id,
        pool=node.pool,
        state=state_of(node, incident),
        since=ill.stages[-1].entered_at if ill is not None and ill.stages else None,
        because=_head(why_node(node, incident)),
        incarnation=node.incarnation,
        schedulable=schedulable(node),
        jobs=tuple(sorted(jobs)),
        incident=ill.id if ill is not None else None,
        kind=ill.kind if ill is not None else None,
        phase=ill.phase if ill is not None else None,
        fault=ill.fault.code if ill is not None else "",
        component=ill.fault.component if ill is not None else "",
        severity=ill.fault.severity if ill is not None else None,
        remedy=ill.remedy if ill is not None else Remedy.NONE,
        rung=ill.rung if ill is not None else None,
    )


def job_shown(job: Job, story: Sequence[Line] = ()) -> JobShown:
    """`story`: its newest lines, oldest first."""
    return JobShown(
        job=job.id,
        name=job.spec.name,
        state=job.state,
        attempt=job.attempt,
        nodes=tuple(sorted(job.claim)[:SHOWN_NODES]),
        size=len(job.claim),
        step=job.step,
        restarts=len(job.restarts),
        because=_head(why_job(job)),
        lines=tuple(ShownLine(at=line.at, text=_head(line.text), event=line.event) for line in story[-SHOWN_LINES:]),
    )


def _head(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT else f"{text[: SHOWN_TEXT - 1]}…"
