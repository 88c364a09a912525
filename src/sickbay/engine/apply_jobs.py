"""What clusters say of jobs: seen, ended, restarted by others, gone."""

from msgspec.structs import replace

from sickbay.brain.blame import learned_late
from sickbay.brain.decision import JobChanges, Tell
from sickbay.brain.endings import complete_end, recorded
from sickbay.engine.errands import make_room
from sickbay.engine.lost_store import WHO
from sickbay.engine.notices import told_of
from sickbay.engine.seats import take_turns
from sickbay.engine.transitions import charged, due_now, interrupted, let_go, step_job
from sickbay.engine.view import Draft
from sickbay.model.facts import Fact, JobSeen, JobVanished
from sickbay.model.fleet import Capability, Node
from sickbay.model.intent import Notify, StartJob
from sickbay.model.job import JOB_LIFE, Call, End, EndReason, Job, JobState, RankState
from sickbay.model.rows import key_of
from sickbay.signs.training_log import judge

KEEP_RESTARTS = 1000  # a native controller may restart its job every second
HAS_NODES = frozenset({JobState.GATING, JobState.RUNNING, JobState.STOPPING})  # whatever runs of it is its claim
TAIL = 16_384  # characters of an attempt's output that come after its end


def seen(draft: Draft, fact: Fact, news: JobSeen) -> None:
    job = draft.job(news.job)
    if job is None:
        if news.spec is not None and news.end is None and news.ranks:
            _adopt(draft, fact, news)
        return
    if _of_another(draft, job, news):
        return
    if job.state.terminal:
        if news.end is not None and news.attempt == job.attempt:
            fill_tail(draft, job, news.end.tail)
        if news.native and news.end is None and news.ranks and _anew(job, news):
            _adopt(draft, fact, news, job)  # we had given it up, or stopped it; its own controller thinks otherwise
        return
    if news.attempt < job.attempt:
        return
    if news.attempt > job.attempt:
        # One of ours that we know nothing of was begun under a store that was lost since: it goes on, too.
        _restarted_by_others(draft, fact, news, job, by="its own controller" if news.native else WHO)
        return
    if news.as_of < job.ranks_as_of:
        return
    # A rank that is known to be gone stays gone: a read that lags must not bring it back.
    ranks = {n: (RankState.GONE if job.ranks.get(n) is RankState.GONE else state) for n, state in news.ranks.items()}
    after = replace(job, ranks={**job.ranks, **ranks}, ranks_as_of=news.as_of, missing_as_of=None, made=True)
    if news.end is not None and job.end is None:
        cancelled = news.end.reason is EndReason.CANCELLED_BY_OTHER
        end = with_findings(draft, _completed(job, news.end))
        heard = replace(job.heard, tail="") if job.heard is not None else None  # its words are in the end by now
        after = replace(after, end=end, heard=heard, cancelled=job.cancelled or cancelled)
    elif news.end is not None and job.end is not None and not job.end.tail:
        after = replace(after, end=with_findings(draft, job.end, news.end.tail))
    theirs = job.adopted or Capability.PLACE not in draft.can(job.spec.cluster)
    if theirs and ranks.keys() - job.claim.keys() and job.state in HAS_NODES:
        after = _allocated(draft, fact, after)
    if after.end != job.end:
        record_end(draft, after)
    if after != job:
        draft.put(after)


def _of_another(draft: Draft, job: Job, news: JobSeen | JobVanished) -> bool:
    """Whether another cluster says this, of a job of its own that has the same id. A person is told once."""
    if not news.cluster or news.cluster == job.spec.cluster:
        return False
    only = f"only that of {job.spec.cluster} is seen, and nodes are treated as if the other were not there"
    text = f"{news.cluster} has a job {job.id}, too: {only}"
    notice = Notify(event="set_aside", subject=key_of(job), text=text)
    told_of(draft, job, Tell(notice, f"namesake:{news.cluster}"))
    return True


def _anew(job: Job, news: JobSeen) -> bool:
    """Whether what is seen of a job that is over is a further attempt, or another job under its name.

    The latter counts from one again; it shows by what runs in a read newer than its cluster's word that it was over.
    """
    if news.attempt > job.attempt or not job.adopted:
        return news.attempt > job.attempt
    over = job.end is not None or job.missing_as_of is not None
    newer = news.as_of > max(job.ranks_as_of, job.missing_as_of or 0.0)
    return over and newer and any(state is RankState.RUNNING for state in news.ranks.values())


def _allocated(draft: Draft, fact: Fact, job: Job) -> Job:
    """The claim, where the cluster chose the nodes. One of them that must not be used fails the attempt of ours."""
    new = sorted(job.ranks.keys() - job.claim.keys())
    take_turns(draft, job, new)
    make_room(draft, job, new, fact.at)
    deadline = job.deadline if job.claim else None  # the wait for nodes is over
    claimed = replace(job, claim={**job.claim, **dict.fromkeys(new, ())}, deadline=deadline)
    if job.adopted or job.state is not JobState.GATING:
        return claimed
    seats = [draft.peek(Node, f"node:{node}") for node in new]  # not expected one by one: a gang may have hundreds
    bad = [seat.id for seat in seats if seat is not None and not seat.claimable]
    calls = tuple(Call(because=f"{node} was allocated but cannot be used", node=node, dated=fact.at) for node in bad)
    return claimed.called(*calls)


def _adopt(draft: Draft, fact: Fact, news: JobSeen, before: Job | None = None) -> None:
    """A job that others submitted: its allocation is recorded as it is. `before`: what we knew until it was over."""
    spec = news.spec or (before.spec if before is not None else None)  # one of ours has the spec that it was made with
    if spec is None:
        return
    kept = (
        {name: getattr(before, name) for name in ("owner", "interruptions", "restarts", "acts", "told")}
        if before
        else {}
    )
    job = Job(
        id=news.job,
        spec=spec,
        submitted_at=before.submitted_at if before else fact.at,
        adopted=True,
        state=JobState.RUNNING,
        attempt=news.attempt,
        claim=dict.fromkeys(news.ranks, ()),
        began_at=fact.at,
        began=draft.reading(spec.cluster),
        started_at=fact.at,
        ranks=dict(news.ranks),
        ranks_as_of=news.as_of,
        **kept,
    )
    take_turns(draft, job, job.claim)
    make_room(draft, job, job.claim, fact.at)
    due_now(draft, job)
    draft.tell(f"RUNNING: adopted as attempt {news.attempt}", key_of(job), event="adopted")


def _restarted_by_others(draft: Draft, fact: Fact, news: JobSeen, job: Job, by: str) -> None:
    """A native restart is recorded as an attempt and counted, not fought.

    One without nodes has not begun: it waits for its turn, or is held, perhaps by our own stop.
    """
    if not news.ranks:
        if news.end is not None and news.end.reason is EndReason.CANCELLED_BY_OTHER and not job.cancelled:
            draft.put(replace(job, cancelled=True))
        return
    event = "restarted" if JOB_LIFE.can(job.state, "restarted") else "appear"
    if not JOB_LIFE.can(job.state, event):
        return
    restarts, begun = job.restarts, job.state is not JobState.QUEUED
    if job.state is JobState.RUNNING and job.intent:
        job = let_go(draft, job, job.intent)
    if job.state is JobState.GATING:
        intent = draft.intent(job.intent)
        begun = intent is not None and isinstance(intent.act, StartJob)
        job = let_go(draft, job, job.intent) if job.intent else job
    if job.state is JobState.RUNNING:
        job = replace(job, calls=job.pressing)
        job = replace(job, interruptions=interrupted(draft, job, f"restarted by {by}"))
    if begun and not any(call.node for call in job.calls) and not learned_late(job):
        restarts = _spent(draft, job)  # in QUEUED it was judged, and spent if need be, before its controller came
        job = charged(job, replace(job, restarts=restarts))
    also: JobChanges = {
        "attempt": news.attempt,
        "claim": dict.fromkeys(news.ranks, ()),
        "ranks": dict(news.ranks),
        "ranks_as_of": news.as_of,
        "missing_as_of": None,
        "began_at": fact.at,
        "began": draft.reading(job.spec.cluster),
        "calls": (),
        "end": news.end and with_findings(draft, news.end),
        "resumed_from": None,
        "work": None,
        "listens": False,
        "deadline": None,
        "held": False,
        "restarts": restarts,
    }
    make_room(draft, job, news.ranks, fact.at)
    step_job(draft, job, event, f"{by} started attempt {news.attempt}", also)


def vanished(draft: Draft, fact: Fact, news: JobVanished) -> None:
    """Its cluster has it no more. Nobody can say how it ended; that a list lacked it once may be that list's fault."""
    job = draft.job(news.job)
    if job is None or _of_another(draft, job, news):
        return
    known = max(job.ranks_as_of, job.missing_as_of or 0.0)
    # One read may have its last word and its deletion, in this order. A list lacks what it does not show.
    if news.as_of < known or (news.as_of == known and not news.sure):
        return
    if not job.open:
        if news.sure and job.adopted:
            draft.put(replace(job, missing_as_of=news.as_of))
        return
    if not news.sure and job.missing_as_of is None:
        draft.put(replace(job, missing_as_of=news.as_of))
        return
    if job.adopted:
        step_job(draft, job, "stopped", "its cluster has it no more", {"claim": {}, "missing_as_of": news.as_of})
        return
    if job.state is JobState.QUEUED and job.made and news.sure:  # what waits need not be in a list, but this is a word
        draft.tell("its cluster has it no more: it is made anew", key_of(job), event="vanished")
        due_now(draft, replace(job, made=False, intent="", deadline=None, missing_as_of=None))
        return
    if job.vanished or job.state not in {JobState.GATING, JobState.RUNNING, JobState.STOPPING}:
        return
    draft.tell("its cluster has it no more: how it ended is not known", key_of(job), event="vanished")
    # Its ranks are not called gone: its cluster may not know yet that it does not reach one of their nodes.
    end = job.end or End(reason=EndReason.UNKNOWN, at=fact.at)
    draft.put(replace(job, end=end, made=False, missing_as_of=None))


def _spent(draft: Draft, job: Job) -> tuple[float, ...]:
    """One more restart, and those of the window."""
    reading = draft.reading(job.spec.cluster)
    since = reading - draft.rules.policy.resume.window.total_seconds()
    return (*(at for at in job.restarts if at > since), reading)[-KEEP_RESTARTS:]


def _completed(job: Job, end: End) -> End:
    """With what agents have told before its cluster did."""
    return complete_end(end, job.heard if job.heard is not None and job.heard.attempt == job.attempt else None)


def fill_tail(draft: Draft, job: Job, tail: str) -> None:
    """What an attempt wrote last may come later than its end, once; a diagnosis that is still under way uses it."""
    if tail and job.end is not None and not job.end.tail:
        after = replace(job, end=with_findings(draft, job.end, tail))
        draft.put(after)
        record_end(draft, after)


def record_end(draft: Draft, job: Job) -> None:
    """How it ended may be known only after the step that ended it."""
    known = draft.attempt(job)
    if known is not None:
        draft.put(recorded(known, job, draft.now))


def with_findings(draft: Draft, end: End, tail: str = "") -> End:
    """The end with what its log says, which may have come later than it."""
    tail = (tail or end.tail)[-TAIL:]
    return replace(end, tail=tail, findings=judge(tail, draft.rules.tables.diagnosis))
