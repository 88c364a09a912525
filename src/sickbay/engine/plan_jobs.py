"""Planning a job: decide until there is something to wait for."""

from functools import partial

from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, JobChanges, JobDecision, Move, Stay, Tell
from sickbay.brain.job_input import JobInput
from sickbay.brain.resume import resume
from sickbay.engine.placing import dismissed, fenceable, lost, mute, place, unseen, unusable, well
from sickbay.engine.resting import come_to_rest
from sickbay.engine.seats import take_turns
from sickbay.engine.transitions import notify, stamp, step_job, write_down
from sickbay.engine.view import Draft
from sickbay.model.incident import Wait
from sickbay.model.intent import Fence, StartJob
from sickbay.model.job import Job


def plan_job(draft: Draft, subject: str) -> None:
    come_to_rest(draft, subject, Job, partial(_decide_once, draft))


def _decide_once(draft: Draft, job: Job) -> tuple[Job, Wait | None]:
    sight = JobInput(
        job=job,
        intent=draft.intent(job.intent),
        fences=tuple(fence for key in job.fences if (fence := draft.intent(key)) is not None),
        place=partial(place, draft, job),
        unusable=partial(unusable, draft, job),
        well=partial(well, draft, job),
        mute=partial(mute, draft, job),
        lost=partial(lost, draft, job),
        unseen=partial(unseen, draft, job),
        fenceable=partial(fenceable, draft, job),
        dismissed=partial(dismissed, draft, job),
        readings=draft.readings,
        can=draft.can(job.spec.cluster),
        present=draft.present,
        as_of=clock.as_of if (clock := draft.clocks.get(job.spec.cluster)) is not None else 0.0,
    )
    return _take_job(draft, job, resume(sight, draft.rules.policy))


def _take_job(draft: Draft, job: Job, decision: JobDecision) -> tuple[Job, Wait | None]:
    tell: Tell | None = None
    wait: Wait | None = None
    match decision:
        case Move(event=event, because=because, also=also, tell=tell):
            job = step_job(draft, job, event, because, also)
        case Change(also=also, tell=tell):
            take_turns(draft, job, also.get("claim", job.claim).keys() ^ job.claim.keys())
            job = replace(job, **also)
            draft.put(job)
        case Do(event=event, because=because, also=also):
            intent, number = write_down(draft, job, decision)
            more: JobChanges = {**also, "intent": intent.key, "acts": number, "digest": draft.rules.digest}
            if isinstance(decision.act, Fence):  # beside the stop, which goes on
                more |= {"intent": job.intent, "fences": (*job.fences, intent.key)}
            if isinstance(decision.act, StartJob):
                more |= {"ranks": {}, "ranks_as_of": 0.0, "missing_as_of": None, "end": None, "resumed_from": None}
            if event:
                begun: JobChanges = {"began_at": draft.now, "began": draft.reading(job.spec.cluster)}
                job = step_job(draft, job, event, because, {**begun, **more})
            else:
                job = replace(job, **more)
                if isinstance(decision.act, StartJob):
                    job = stamp(job, "gated", draft.now)  # a start that claims nothing follows a gate
                draft.put(job)
        case Stay(wait=wait, tell=tell):
            pass
    if tell is not None:
        told = notify(draft, job, tell)
        if told != job.told:
            job = replace(job, told=told)
            draft.put(job)
    return job, wait
