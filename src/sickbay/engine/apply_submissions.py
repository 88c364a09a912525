"""Submissions as facts: refused once more or queued, and told to the job that is continued."""

from msgspec.structs import replace

from sickbay.brain.decision import Tell
from sickbay.brain.submission import cannot_continue, continued, going_on, in_use, refusal, unchecked_storage
from sickbay.engine.door import slim
from sickbay.engine.notices import told_of
from sickbay.engine.transitions import due_now, step_job
from sickbay.engine.view import Draft
from sickbay.model.facts import Fact, Submitted
from sickbay.model.intent import Notify
from sickbay.model.job import Job
from sickbay.model.rows import AuditEntry, key_of


def submitted(draft: Draft, fact: Fact, news: Submitted) -> None:
    if draft.job(news.job) is not None:
        return
    can = draft.rules.can.get(news.spec.cluster, ())
    wrong = refusal(news.spec, draft.rules.can) or unchecked_storage(news.spec, can) or _in_use(draft, news)
    job = Job(
        id=news.job, spec=slim(news.spec) if wrong else news.spec, submitted_at=fact.at, owner=news.owner or news.by
    )
    verb = f"restart {of}" if (of := continued(news.spec)) is not None else "submit"
    refused = f"refused: {wrong}" if wrong else ""
    audit = AuditEntry(by=news.by, verb=verb, target=job.id, reason="; ".join(filter(None, (news.reason, refused))))
    text = f"QUEUED: submitted as {job.spec.name}{going_on(job.spec)}"
    draft.tell(text, key_of(job), event="submitted", audit=audit if news.by else None)
    if wrong:
        job = step_job(draft, job, "fail", wrong, {"diagnosis": wrong})
        notice = Notify(event="job_failed", subject=key_of(job), text=f"{job.spec.name}: {wrong}")
        told_of(draft, job, Tell(notice, "job_failed"))
    else:
        due_now(draft, job)
        _continued(draft, news)


def _in_use(draft: Draft, news: Submitted) -> str:
    """Why it must not begin beside what lives by now: those who submitted it may have looked a moment too early."""
    job = Job(id=news.job, spec=news.spec, submitted_at=draft.now)
    before = draft.job(of) if (of := continued(news.spec)) is not None else None
    if before is not None and (wrong := cannot_continue(before, _continuing(draft, before), news.spec)):
        return wrong
    return in_use(job, draft.jobs_in(job.spec.cluster, job.directory))


def _continuing(draft: Draft, before: Job) -> Job | None:
    return draft.job(before.continued_by) if before.continued_by is not None else None


def _continued(draft: Draft, news: Submitted) -> None:
    """The job that it continues says so, in its row and in its story."""
    before = draft.job(of) if (of := continued(news.spec)) is not None else None
    if before is not None:
        draft.put(replace(before, continued_by=news.job))
        why = f": {news.reason}" if news.reason else ""
        draft.tell(f"continued by {news.job}{why}", key_of(before), f"job:{news.job}", event="continued")
