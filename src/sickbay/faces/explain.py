"""Why is it as it is: what a node, a job or an incident is now, what it waits for, and the last chapter of its story.

Reads a store and nothing else: the same answer for a controller's store, a file that was kept, and a simulation.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import structs

from sickbay.brain.endings import signal_name
from sickbay.brain.showing import schedulable, state_of, why_incident, why_job, why_node
from sickbay.faces.answers import (
    AttemptAnswer,
    ExplainAnswer,
    ExplainedIncident,
    ExplainedJob,
    ExplainedNode,
    FaultSeen,
    IncidentAnswer,
    InterruptionAnswer,
    JobAnswer,
    NodeAnswer,
    NodeDevice,
    OneJob,
    PhaseEntered,
    RankEndAnswer,
    RungTried,
    Stages,
    ToldLine,
)
from sickbay.faces.archive import Archive, iso
from sickbay.faces.chapters import LAST_CHAPTER, StorySpan, incident_story, job_story, node_story
from sickbay.faces.present import incident_now, job_now, node_now
from sickbay.faces.story import tell
from sickbay.faces.turns import Turns
from sickbay.faces.waits import doing, incident_waits, job_waits, node_waits
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident
from sickbay.model.job import Attempt, Interruption, Job, JobState, RankEnd
from sickbay.model.policy import Policy
from sickbay.model.rows import Line
from sickbay.ports.store import Store


def explain(
    store: Store, name: str, policies: Mapping[str, Policy] | None = None, span: StorySpan = LAST_CHAPTER
) -> ExplainAnswer:
    """Raises BadInput for a name that is unknown, or that means more than one thing."""
    archive = Archive(store, policies)
    key = archive.find(name)
    ident = key.partition(":")[2]
    as_of = iso(archive.as_of)
    if key.startswith("node:") and (node := archive.node(ident)) is not None:
        answer, telling = node_answer(archive, node), node_story(archive, node, span)
        return ExplainedNode(
            **structs.asdict(answer),
            now=node_now(archive, node, answer.state),
            story=told_lines(telling.lines),
            chapter=telling.chapter,
            earlier=telling.earlier,
            waits_for=node_waits(archive, node),
            as_of=as_of,
        )
    if key.startswith("job:") and (job := archive.job(ident)) is not None:
        telling = job_story(archive, job, span)
        return ExplainedJob(
            **structs.asdict(one_job(archive, job)),
            now=job_now(job),
            story=told_lines(telling.lines),
            chapter=telling.chapter,
            earlier=telling.earlier,
            waits_for=job_waits(archive, job),
            as_of=as_of,
        )
    if (incident := archive.incident(ident)) is not None:
        telling = incident_story(archive, incident, span)
        return ExplainedIncident(
            **structs.asdict(incident_answer(archive, incident)),
            now=incident_now(incident),
            story=told_lines(telling.lines),
            chapter=telling.chapter,
            earlier=telling.earlier,
            waits_for=incident_waits(archive, incident),
            as_of=as_of,
        )
    raise LookupError(key)  # `find` has just seen it


def told_lines(lines: Sequence[Line]) -> list[ToldLine]:
    return [
        ToldLine(at=iso(told.at), what=told.what.value, about=told.about, text=told.text, event=told.event)
        for told in tell(lines)
    ]


# --- answers


def node_answer(archive: Archive, node: Node) -> NodeAnswer:
    incident = archive.incident(node.incident) if node.incident else None
    jobs: list[str] = [job.id for job in archive.holders(node)]
    return NodeAnswer(
        id=node.id,
        pool=node.pool,
        state=state_of(node, incident),
        schedulable=schedulable(node),
        boot_id=node.incarnation.boot_id if node.incarnation else None,
        instance_id=node.incarnation.instance_id if node.incarnation else None,
        devices=[NodeDevice(index=device.index, serial=device.serial) for device in node.devices],
        job=jobs[0] if jobs else None,
        jobs=jobs,
        incident=node.incident,
        cordons=list(node.cordons),
        because=why_node(node, incident),
    )


def incident_answer(archive: Archive, incident: Incident) -> IncidentAnswer:
    fault = incident.fault
    return IncidentAnswer(
        id=incident.id,
        node=incident.node,
        incident_kind=incident.kind,
        fault=FaultSeen(
            code=fault.code, component=fault.component, severity=fault.severity, evidence=list(incident.evidence)
        ),
        remedy=incident.remedy,
        phase=incident.phase,
        opened_at=iso(incident.opened_at),
        closed_at=iso(incident.closed_at),
        stages=_phases(incident, archive.as_of),
        tries=[RungTried(rung=one.rung, result=one.result, at=iso(one.at)) for one in incident.tries],
        jobs=list(incident.jobs),
        because=why_incident(incident),
    )


def _phases(incident: Incident, as_of: datetime | None) -> list[PhaseEntered]:
    """Each with the time until the next one; the one that it is in, until now."""
    ends = [*(stage.entered_at for stage in incident.stages[1:]), incident.closed_at or as_of]
    return [
        PhaseEntered(
            phase=stage.phase,
            entered_at=iso(stage.entered_at),
            seconds=None if stage.phase.terminal or end is None else _seconds(stage.entered_at, end),
            because=stage.because,
        )
        for stage, end in zip(incident.stages, ends, strict=True)
    ]


def job_answer(job: Job, turns: Turns) -> JobAnswer:
    return JobAnswer(
        id=job.id,
        name=job.spec.name,
        owner=job.owner,
        state=job.state,
        attempt=job.attempt,
        restarts=len(job.restarts),
        pool=job.pool,
        nodes=sorted(job.claim),
        step=job.step,
        resumed_from=job.resumed_from,
        resumed_of=job.resumed_of or None,
        continues=job.spec.continues.of if job.spec.continues is not None else None,
        continued_by=job.continued_by,
        saved=job.saved,
        saved_at=iso(job.saved_at),
        save_failed=job.save_failed if job.open else "",
        doing=_doing(job),
        checkpoint=job.spec.checkpoint or job.checkpoints_in,
        submitted_at=iso(job.submitted_at),
        ended_at=iso(job.closed_at),
        diagnosis=job.diagnosis if job.state in DIAGNOSED else "",
        interruptions=[_interruption(one) for one in job.interruptions],
        queue=turns.of(job),
        because=_why_job(job, turns),
    )


# A diagnosis is of an end: what an attempt before the one that runs died of is in its own record.
DIAGNOSED = frozenset({JobState.FAILED, JobState.DIAGNOSING, JobState.QUEUED, JobState.GATING})


def one_job(archive: Archive, job: Job) -> OneJob:
    return OneJob(
        **structs.asdict(job_answer(job, archive.turns(job.spec.cluster))),
        command=list(job.spec.command),
        cwd=job.spec.cwd,
        env=sorted(job.spec.env),
        env_files=list(job.spec.env_files),
        storage=list(job.spec.storage),
        image=job.spec.image,
        native=job.spec.native,
        attempts=[_attempt(archive, one) for one in archive.attempts(job)],
    )


def _attempt(archive: Archive, one: Attempt) -> AttemptAnswer:
    return AttemptAnswer(
        number=one.number,
        began_at=iso(one.began_at),
        started_at=iso(one.started_at),
        ended_at=iso(one.ended_at),
        nodes=one.nodes,
        names=list(archive.names_of(one)),
        reason=one.reason,
        first_failed=_rank_end(one.first) if one.first is not None else None,
        exit_codes=one.exit_codes,
        because=one.because,
        last_lines=one.lines.splitlines(),
    )


def _rank_end(first: RankEnd) -> RankEndAnswer:
    return RankEndAnswer(
        rank=first.rank,
        node=first.node,
        exit_code=first.exit_code,
        signal=signal_name(first.exit_code) or None,
        why=first.why,
        at=iso(first.at),
    )


def _doing(job: Job) -> str:
    asked = job.wait.because if job.save_by is not None and job.wait is not None else ""
    busy = doing(job.work) if job.work is not None else ""
    return "; ".join(filter(None, (asked, busy))) if job.open else ""


def _why_job(job: Job, turns: Turns) -> str:
    return turns.because(job) if job.open else why_job(job)


def _interruption(one: Interruption) -> InterruptionAnswer:
    first, last = one.stages.get("detected"), one.stages.get("first_step")
    return InterruptionAnswer(
        attempt=one.attempt,
        cause=one.cause,
        incidents=list(one.incidents),
        stages=Stages(**{name: iso(one.stages.get(name)) for name in Stages.__struct_fields__}),
        training_again_after=_seconds(first, last) if first is not None and last is not None else None,
    )


def _seconds(begin: datetime, end: datetime) -> float:
    return round((end - begin).total_seconds(), 3)
