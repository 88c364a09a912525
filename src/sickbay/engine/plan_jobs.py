"""Planning a job: decide until there is something to wait for."""

from functools import partial

from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, JobChanges, JobDecision, Move, Need, ReadFirst, Stay, Tell
from sickbay.brain.resume import resume
from sickbay.engine.job_reads import input_of, supply
from sickbay.engine.notices import told_of
from sickbay.engine.resting import come_to_rest
from sickbay.engine.seats import take_turns
from sickbay.engine.transitions import stamp, step_job, write_down
from sickbay.engine.view import Draft
from sickbay.model.incident import Wait
from sickbay.model.intent import Fence, StartJob
from sickbay.model.job import Job


def plan_job(draft: Draft, subject: str) -> None:
    come_to_rest(draft, subject, Job, partial(_decide_once, draft))


def _decide_once(draft: Draft, job: Job) -> tuple[Job, Wait | None]:
    s = input_of(draft, job)
    for _ in range(len(Need) + 1):
        decision = resume(s, draft.rules.policy)
        if not isinstance(decision, ReadFirst):
            return _take_job(draft, job, decision)
        s = supply(draft, s, decision)
    raise RuntimeError(f"{job.id} asks again for what it has")  # set aside, as one that does not come to rest


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
                more |= {"started_at": None}
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
    return told_of(draft, job, tell), wait
