"""Status summary: what a node, a job or an incident is now, in one sentence with its subject in front."""

from sickbay.faces.archive import Archive
from sickbay.faces.waits import doing, why_not
from sickbay.model.fault import Fault, Remedy
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Job, JobState

_SERVES = "it serves on and takes new work, while {why} waits"
_PHASES = {
    Phase.SUSPECT: "{node} gets no new work because of {why}, and has not been taken out of service",
    Phase.WATCHED: "{node} stays in service and is watched for {why}",
    Phase.QUARANTINED: "{node} is being taken out of service for {why}",
    Phase.DRAINING: "{node} is out of service for {why}, and its work is moved off",
    Phase.DRAINED: "{node} is out of service for {why}, is empty, and waits for its repair",
    Phase.REPAIRING: "{node} is out of service for {why}, and {rung}",
    Phase.VERIFYING: "{node} is out of service for {why}, and is checked before it may return",
    Phase.HELD: "{node} is out of service for {why}, and waits for a person",
    Phase.RELEASED: "{node} passed its check and went back to work",
    Phase.DISMISSED: "the incident on {node} was closed without a repair",
    Phase.REPLACED: "the machine of {node} was replaced",
    Phase.GONE: "{node} left the cluster",
}
_RUNGS = {
    Remedy.RESTART_SERVICE: "its agent is restarted",
    Remedy.RESET_GPU: "its GPUs are reset",
    Remedy.REBOOT: "it is rebooted",
    Remedy.REPLACE: "its machine is replaced",
}


def incident_now(incident: Incident) -> str:
    said = _said(incident, incident.node)
    last = incident.stages[-1].because if incident.stages else ""
    if incident.open:
        return f"{incident.id} is {incident.phase}: {said}."
    return f"{incident.id} is over ({incident.phase}): {said}{f', because {last}' if last else ''}."


def _said(incident: Incident, node: str) -> str:
    rung = _RUNGS.get(incident.rung or incident.remedy, "it is repaired")
    return _PHASES[incident.phase].format(node=node, why=_why(incident), rung=rung)


def _why(incident: Incident) -> str:
    if incident.kind is IncidentKind.INTAKE:
        return "its intake (it is new and not proven yet)"
    fault = incident.fault
    if fault.is_wish:
        return f"a person's order ({fault.because})" if fault.because else "a person's order"
    return _fault(fault)


def _fault(fault: Fault) -> str:
    device = f" on GPU {fault.device}" if fault.device is not None else ""
    return f"{fault.code}{device}{f' ({fault.because})' if fault.because else ''}"


def _serves(incident: Incident, node: Node) -> bool:
    """Whether jobs are placed there though it is a suspect: it is excluded, or an order for it waits for a window."""
    return incident.phase is Phase.SUSPECT and node.excused and node.claimable


def node_now(archive: Archive, node: Node, state: str) -> str:
    incident = archive.incident(node.incident) if node.incident else None
    jobs = ", ".join(job.id for job in archive.holders(node))
    works = f"works for {jobs}" if jobs else "is idle"
    if incident is not None and incident.open:
        still = f" Job {jobs} still runs there." if jobs and not incident.phase.out else ""
        said = _SERVES.format(why=_why(incident)) if _serves(incident, node) else _said(incident, "it")
        return f"{node.id} is {state} ({incident.id} {incident.phase}): {said}.{still}"
    if state == "READY":
        fit = "it is fit for work and" if node.claimable else "it"
        return f"{node.id} is READY: {fit} {works}."
    still = f"; it {works}" if jobs else ""
    return f"{node.id} is {state}: it gets no new work, because {why_not(archive, node)}{still}."


def job_now(job: Job) -> str:
    on = f" on {_nodes(job)}" if job.claim else ""
    attempt = f", attempt {job.attempt}" if job.attempt else ""
    step = f" at step {job.step}" if job.step is not None else ""
    match job.state:
        case JobState.QUEUED:
            said = "it waits for its nodes" if job.attempt == 0 else "it was interrupted and waits for its nodes"
        case JobState.GATING:
            said = f"its nodes are checked and its ranks started{on}{attempt}"
        case JobState.RUNNING:
            before = job.step is not None and job.stepped_in != job.attempt  # its step is one of the attempt before
            said = (
                f"its ranks run{on}{attempt}; no step yet after {job.step}"
                if before
                else f"it trains{step}{on}{attempt}"
            )
            said += f"; {doing(job.work)}" if job.work is not None else ""
        case JobState.STOPPING:
            said = f"its ranks are being stopped{on}{attempt}"
        case JobState.DIAGNOSING:
            said = f"attempt {job.attempt} has ended, and the reason is looked for"
        case JobState.COMPLETE:
            said = f"it is done{step}{_after(job)}"
        case JobState.FAILED:
            said = f"it was given up{step}{_after(job)}: {job.diagnosis or 'no reason is known'}"
        case JobState.STOPPED:
            said = f"it was stopped{step}{_after(job)}: {job.stop_asked or 'cancelled by its owner'}"
    return f"{job.id} is {job.state}: {said}."


def _after(job: Job) -> str:
    lost = len(job.interruptions)
    return f" after {lost} interruption{'' if lost == 1 else 's'}" if lost else ""


def _nodes(job: Job) -> str:
    names = sorted(node.rpartition("/")[2] for node in job.claim)
    more = len(names) - 4
    return ", ".join(names[:4]) + (f" and {more} more" if more > 0 else "")
