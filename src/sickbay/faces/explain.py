"""Why is it as it is: what a node, a job or an incident is, its whole story, and what it waits for.

Reads a store and nothing else: the same answer for a controller's store, a file that was kept, and a simulation.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sickbay.faces.archive import Archive, Budget, Estimate
from sickbay.faces.story import StoryAnswer, tell, weave
from sickbay.faces.waits import Waiting, doing, incident_waits, job_waits, node_waits, why_not
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Interruption, Job, JobState
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.model.rows import Line, kind_of
from sickbay.ports.store import Store

STAGES = ("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")


class Explained(Noun):
    kind: str  # node | job | incident
    subject: dict[str, Any]  # the keys that every face shows for its kind
    story: tuple[StoryAnswer, ...]
    waits: Waiting | None
    as_of: datetime | None  # as far as the store has heard

    def as_json(self) -> dict[str, Any]:
        story = [
            {"at": iso(t.at), "what": t.what.value, "about": t.about, "text": t.text, "event": t.event}
            for t in self.story
        ]
        return {
            "kind": self.kind,
            **self.subject,
            "story": story,
            "waits_for": waiting_json(self.waits),
            "as_of": iso(self.as_of),
        }


def explain(store: Store, name: str, policies: Mapping[str, Policy] | None = None) -> Explained:
    """Raises BadInput for a name that is unknown, or that means more than one thing."""
    archive = Archive(store, policies)
    key = archive.find(name)
    kind, _, ident = key.partition(":")
    node, job, incident = archive.node(ident), archive.job(ident), archive.incident(ident)
    if kind == "node" and node is not None:
        subject, waits = node_json(archive, node), node_waits(archive, node)
        story = _node_story(archive, node)
    elif kind == "job" and job is not None:
        subject, waits = job_json(archive, job), job_waits(archive, job)
        story = _job_story(archive, job)
    elif incident is not None:
        subject, waits = incident_json(archive, incident), incident_waits(archive, incident)
        story = _incident_story(archive, incident)
    else:
        raise LookupError(key)  # `find` has just seen it
    return Explained(kind=kind, subject=subject, story=tuple(tell(story)), waits=waits, as_of=archive.as_of)


# --- stories


def _node_story(archive: Archive, node: Node) -> list[Line]:
    own = archive.story(f"node:{node.id}")
    incidents = dict.fromkeys(s for line in own for s in line.subjects if kind_of(s) == "incident")
    return weave({f"node:{node.id}": own, **{key: archive.story(key) for key in incidents}})


def _incident_story(archive: Archive, incident: Incident) -> list[Line]:
    """With what befell its node and the jobs that it interrupted meanwhile."""
    ends = [archive.job(job) for job in incident.jobs]
    back = [i.stages["first_step"] for job in ends if job for i in job.interruptions if _of(i, incident)]
    until = max([incident.closed_at, *back]) if incident.closed_at is not None else None

    def meanwhile(subject: str) -> list[Line]:
        lines = archive.story(subject)
        return [x for x in lines if x.at >= incident.opened_at and (until is None or x.at <= until)]

    around = {f"node:{incident.node}", *(f"job:{job}" for job in incident.jobs)}
    own = {f"incident:{incident.id}": archive.story(f"incident:{incident.id}")}
    return weave({**own, **{subject: meanwhile(subject) for subject in sorted(around)}})


def _of(interruption: Interruption, incident: Incident) -> bool:
    return incident.id in interruption.incidents and "first_step" in interruption.stages


def _job_story(archive: Archive, job: Job) -> list[Line]:
    incidents = dict.fromkeys(i for interruption in job.interruptions for i in interruption.incidents)
    incidents |= dict.fromkeys(call.incident for call in job.calls if call.incident)
    own = {f"job:{job.id}": archive.story(f"job:{job.id}")}
    return weave({**own, **{f"incident:{i}": archive.story(f"incident:{i}") for i in incidents}})


# --- the words of the command line's JSON


def state_of(node: Node, incident: Incident | None) -> str:
    """READY UNKNOWN SUSPECT OUT LOST HELD INTAKE: the worst that is true of it."""
    phase = incident.phase if incident is not None and incident.open else None
    if phase is Phase.HELD:
        return "HELD"
    if incident is not None and phase is not None and incident.kind is IncidentKind.INTAKE:
        return "INTAKE"
    if phase is not None and phase.out:
        return "OUT"
    if node.incarnation is None or node.lost:
        return "LOST" if node.lost and node.incarnation is not None else "OUT"
    if node.others_cordon:
        return "OUT"
    if phase is Phase.SUSPECT:
        return "SUSPECT"
    return "UNKNOWN" if node.unknown else "READY"


def node_json(archive: Archive, node: Node) -> dict[str, Any]:
    incident = archive.incident(node.incident) if node.incident else None
    jobs = [job.id for job in archive.holders(node)]
    return {
        "id": node.id,
        "pool": node.pool,
        "state": state_of(node, incident),
        "schedulable": node.ready and not node.cordons and node.incarnation is not None,
        "boot_id": node.incarnation.boot_id if node.incarnation else None,
        "instance_id": node.incarnation.instance_id if node.incarnation else None,
        "devices": [{"index": device.index, "serial": device.serial} for device in node.devices],
        "job": jobs[0] if jobs else None,
        "jobs": jobs,
        "incident": node.incident,
        "cordons": list(node.cordons),
        "because": _why_node(archive, node, incident),
    }


def _why_node(archive: Archive, node: Node, incident: Incident | None) -> str:
    if incident is not None and incident.open:
        return f"{incident.phase}: {_why_incident(incident)}"
    return "" if node.claimable else why_not(archive, node)


def _why_incident(incident: Incident) -> str:
    if incident.open and incident.wait is not None:
        return incident.wait.because
    return incident.stages[-1].because if incident.stages else incident.fault.because


def incident_json(archive: Archive, incident: Incident) -> dict[str, Any]:
    fault = incident.fault
    stages = []
    ends = [stage.entered_at for stage in incident.stages[1:]] + [incident.closed_at or archive.as_of]
    for stage, end in zip(incident.stages, ends, strict=True):
        seconds = None if stage.phase.terminal or end is None else _seconds(stage.entered_at, end)
        entry = {"phase": stage.phase.value, "entered_at": iso(stage.entered_at), "seconds": seconds}
        stages.append({**entry, "because": stage.because})
    return {
        "id": incident.id,
        "node": incident.node,
        "incident_kind": incident.kind.value,
        "fault": {
            "code": fault.code,
            "component": fault.component,
            "severity": fault.severity.value,
            "evidence": list(incident.evidence),
        },
        "remedy": incident.remedy.value,
        "phase": incident.phase.value,
        "opened_at": iso(incident.opened_at),
        "closed_at": iso(incident.closed_at),
        "stages": stages,
        "tries": [{"rung": t.rung.value, "result": t.result, "at": iso(t.at)} for t in incident.tries],
        "jobs": list(incident.jobs),
        "because": _why_incident(incident),
    }


def job_json(archive: Archive, job: Job) -> dict[str, Any]:
    del archive
    return {
        "id": job.id,
        "name": job.spec.name,
        "state": job.state.value,
        "attempt": job.attempt,
        "restarts": len(job.restarts),
        "nodes": sorted(job.claim),
        "step": job.step,
        "resumed_from": job.resumed_from,
        "saved": job.saved,
        "saved_at": iso(job.saved_at),
        "save_failed": job.save_failed if job.open else "",
        "doing": _doing(job),
        "diagnosis": job.diagnosis,
        "interruptions": [interruption_json(one) for one in job.interruptions],
        "because": _why_job(job),
    }


def _doing(job: Job) -> str:
    asked = job.wait.because if job.save_by is not None and job.wait is not None else ""
    busy = doing(job.work) if job.work is not None else ""
    return "; ".join(filter(None, (asked, busy))) if job.open else ""


def _why_job(job: Job) -> str:
    """Of a job that is over the reason of its end: an earlier diagnosis is that of an interruption."""
    match job.state:
        case JobState.COMPLETE:
            return ""
        case JobState.STOPPED:
            return job.stop_asked or "cancelled by its owner"
        case JobState.FAILED:
            return job.diagnosis
        case _:
            return job.wait.because if job.wait else ""


def interruption_json(one: Interruption) -> dict[str, Any]:
    first, last = one.stages.get("detected"), one.stages.get("first_step")
    again = _seconds(first, last) if first is not None and last is not None else None
    return {
        "attempt": one.attempt,
        "cause": one.cause,
        "incidents": list(one.incidents),
        "stages": {name: iso(one.stages.get(name)) for name in STAGES},
        "training_again_after": again,
    }


def waiting_json(waits: Waiting | None) -> dict[str, Any] | None:
    if waits is None:
        return None
    return {
        "because": waits.because,
        "until": _estimate_json(waits.until),
        "then": waits.then,
        "would": waits.would,
        "changed_by": list(waits.changed_by),
        "budget": _budget_json(waits.budget),
        "notes": list(waits.notes),
    }


def _estimate_json(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"about": iso(estimate.at), "clock": estimate.clock, "stands_since": iso(estimate.stands_since)}


def _budget_json(budget: Budget | None) -> dict[str, Any] | None:
    return None if budget is None else {field: getattr(budget, field) for field in budget.__struct_fields__}


def iso(at: datetime | None) -> str | None:
    """Milliseconds are enough for people and never end differently."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if at is not None else None


def _seconds(begin: datetime, end: datetime) -> float:
    return round((end - begin).total_seconds(), 3)
