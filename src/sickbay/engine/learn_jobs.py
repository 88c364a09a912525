"""What clusters and ranks say of jobs."""

from msgspec.structs import replace

from sickbay.engine.steps import due_now, first_step, step_job
from sickbay.engine.view import Draft
from sickbay.model.facts import Fact, Hung, JobSeen, Stepped, Submitted
from sickbay.model.job import JOB_LIFE, Call, EndReason, Interruption, Job, JobState
from sickbay.model.rows import key_of

KEEP_CALLS = 20


def submitted(draft: Draft, fact: Fact, news: Submitted) -> None:
    if draft.job(news.job) is not None:
        return
    job = Job(id=news.job, spec=news.spec, submitted_at=fact.at)
    due_now(draft, job)
    draft.tell(f"QUEUED: submitted as {news.spec.name}", key_of(job), event="submitted")


def seen(draft: Draft, fact: Fact, news: JobSeen) -> None:
    job = draft.job(news.job)
    if job is None:
        if news.spec is not None and news.end is None:
            _adopt(draft, fact, news)
        return
    if job.state.terminal or news.attempt < job.attempt:
        return
    if news.attempt > job.attempt:
        if news.native:
            _restarted_by_others(draft, fact, news, job)
        return
    if news.as_of < job.ranks_as_of:
        return
    # A rank that is known to be gone stays gone: a read that lags must not bring it back.
    ranks = {n: ("gone" if job.ranks.get(n) == "gone" else state) for n, state in news.ranks.items()}
    after = replace(job, ranks={**job.ranks, **ranks}, ranks_as_of=news.as_of)
    if news.end is not None and job.end is None:
        cancelled = news.end.reason is EndReason.CANCELLED_BY_OTHER
        after = replace(after, end=news.end, cancelled=job.cancelled or cancelled)
    if not job.claim and ranks and job.state in {JobState.GATING, JobState.RUNNING}:
        after = replace(after, claim=dict.fromkeys(ranks, ()))  # the allocation, where the cluster chose it
    if after != job:
        draft.put(after)


def _adopt(draft: Draft, fact: Fact, news: JobSeen) -> None:
    """A job that others submitted: its allocation is recorded as it is."""
    if news.spec is None:
        return
    job = Job(
        id=news.job,
        spec=news.spec,
        submitted_at=fact.at,
        adopted=True,
        state=JobState.RUNNING,
        attempt=news.attempt,
        claim=dict.fromkeys(news.ranks, ()),
        began_at=fact.at,
        ranks=dict(news.ranks),
        ranks_as_of=news.as_of,
    )
    due_now(draft, job)
    draft.tell(f"RUNNING: adopted as attempt {news.attempt}", key_of(job), event="adopted")


def _restarted_by_others(draft: Draft, fact: Fact, news: JobSeen, job: Job) -> None:
    """A native restart is recorded as an attempt and counted, not fought."""
    if news.end is not None and not news.ranks:
        return
    event = "restarted" if JOB_LIFE.can(job.state, "restarted") else "appear"
    if not JOB_LIFE.can(job.state, event):
        return
    if job.state is JobState.RUNNING:
        lost = Interruption(
            attempt=job.attempt,
            cause="restarted by its own controller",
            at=draft.reading(job.spec.cluster),
            incidents=tuple(c.incident for c in job.calls if c.incident),
            stages={"detected": job.end.at if job.end else fact.at},
            nodes=tuple(sorted(job.claim)),
        )
        job = replace(job, interruptions=(*job.interruptions, lost))
    also = {
        "attempt": news.attempt,
        "claim": dict.fromkeys(news.ranks, ()),
        "ranks": dict(news.ranks),
        "ranks_as_of": news.as_of,
        "began_at": fact.at,
        "calls": (),
        "end": news.end,
        "deadline": None,
        "restarts": (*job.restarts, draft.reading(job.spec.cluster)),
    }
    step_job(draft, job, event, f"its own controller started attempt {news.attempt}", also)


def stepped(draft: Draft, fact: Fact, news: Stepped) -> None:
    job = draft.job(news.job)
    if job is None or job.state.terminal or news.attempt != job.attempt:
        return
    after = replace(job, step=news.step)
    if news.resumed_from is not None:
        after = replace(after, resumed_from=news.resumed_from)
    if job.state is JobState.RUNNING and job.interruptions and not job.interruptions[-1].closed:
        after = first_step(after, fact.at)
        draft.tell(f"training again at step {news.step}", key_of(job), event="first_step")
    draft.put(after)


def hung(draft: Draft, fact: Fact, news: Hung) -> None:
    job = draft.job(news.job)
    if job is None or job.state is not JobState.RUNNING or news.attempt != job.attempt:
        return
    call = Call(because=f"hung: {news.because}", dated=fact.at)
    draft.put(replace(job, calls=(*job.calls, call)[-KEEP_CALLS:]))
