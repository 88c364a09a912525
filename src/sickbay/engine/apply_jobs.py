"""What clusters and ranks say of jobs."""

from datetime import datetime

from msgspec.structs import replace

from sickbay.brain.blame import learned_late
from sickbay.brain.decision import JobChanges, Tell
from sickbay.brain.endings import recorded
from sickbay.brain.submission import cannot_continue, continued, going_on, in_use, refusal
from sickbay.engine.door import slim
from sickbay.engine.errands import make_room
from sickbay.engine.lost_store import WHO
from sickbay.engine.notices import REPEATED_TELLS, told_of
from sickbay.engine.seats import take_turns
from sickbay.engine.transitions import (
    charged,
    due_now,
    first_step,
    interrupted,
    let_go,
    step_job,
)
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST
from sickbay.model.facts import (
    Checkpointed,
    Fact,
    Hung,
    JobSeen,
    JobVanished,
    Looked,
    RuleOff,
    Stepped,
    Submitted,
    Wrote,
)
from sickbay.model.fleet import Capability, Node, NodeId
from sickbay.model.intent import Look, Notify, StartJob
from sickbay.model.job import JOB_LIFE, Call, End, EndReason, Job, JobState, RankState, Work
from sickbay.model.rows import AuditEntry, key_of
from sickbay.signs.training_log import judge

KEEP_RESTARTS = 1000  # a native controller may restart its job every second
HAS_NODES = frozenset({JobState.GATING, JobState.RUNNING, JobState.STOPPING})  # whatever runs of it is its claim
STACKS = 20_000  # characters from one node
TAIL = 16_384  # characters of an attempt's output that come after its end
BY_TURNS = 3  # times an hour that saves which fail and succeed by turns are told of
SKIPPED, SKIPPED_WORDS = 10, 300  # checkpoints that a line names, and characters of each


def submitted(draft: Draft, fact: Fact, news: Submitted) -> None:
    if draft.job(news.job) is not None:
        return
    wrong = refusal(news.spec, draft.rules.can) or _in_use(draft, news)
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
            _fill_tail(draft, job, news.end.tail)
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
        after = replace(after, end=_judged(draft, news.end), cancelled=job.cancelled or cancelled)
    elif news.end is not None and job.end is not None and not job.end.tail:
        after = replace(after, end=_judged(draft, job.end, news.end.tail))
    theirs = job.adopted or Capability.PLACE not in draft.can(job.spec.cluster)
    if theirs and ranks.keys() - job.claim.keys() and job.state in HAS_NODES:
        after = _allocated(draft, fact, after)
    if after.end != job.end:
        _record_end(draft, after)
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
        "end": news.end and _judged(draft, news.end),
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


def _runs_there(job: Job, node: NodeId | None) -> bool:
    """An agent speaks of what runs on its own node, and of nothing else."""
    return node is None or node in job.claim or node in job.ranks


def stepped(draft: Draft, fact: Fact, news: Stepped) -> None:
    job = draft.job(news.job)
    if job is None or news.attempt != job.attempt or not _runs_there(job, news.node):
        return
    job = replace(job, stepped_in=job.attempt)
    if job.state.terminal:  # its last steps may be told after its cluster has told its end
        if news.step > (job.step or 0):
            draft.put(_resumed(draft, replace(job, step=news.step), news))
        return
    after = _resumed(draft, replace(job, step=news.step, fenced=job.fenced or news.fenced), news)
    if job.state is JobState.RUNNING and job.interruptions and not job.interruptions[-1].closed:
        after = first_step(after, fact.at)
        draft.tell(f"training again at step {news.step}", key_of(job), event="first_step")
    draft.put(after)


def _resumed(draft: Draft, job: Job, news: Stepped) -> Job:
    """Where an attempt took up, told once for each, with the checkpoints that could not be used."""
    once = f"resumed:{news.attempt}"
    if news.resumed_from is not None:
        first = bool(news.resumed_from) and once not in job.told
        if first and not _saved_since(job, job.began_at) and news.resumed_from != job.saved:
            job = replace(job, saved=news.resumed_from, saved_at=None)  # what is newer is of no use
        job = replace(job, resumed_from=news.resumed_from, resumed_of=news.resumed_of)
    if once in job.told or not (news.resumed_from or news.skipped):
        return job
    of = f" of job {news.resumed_of}" if news.resumed_of else ""
    where = f"resumes at step {news.resumed_from}{of}" if news.resumed_from is not None else "begins anew"
    skipped = "; ".join(why[:SKIPPED_WORDS] for why in news.skipped[:SKIPPED])
    more = f" and {len(news.skipped) - SKIPPED} more" if len(news.skipped) > SKIPPED else ""
    told = f"; newer checkpoints were skipped: {skipped}{more}" if skipped else ""
    draft.tell(f"attempt {news.attempt} {where}{told}", key_of(job), event="resumed")
    return replace(job, told=(*job.told, once)[-REPEATED_TELLS:])


def _saved_since(job: Job, began: datetime | None) -> bool:
    return job.saved_at is not None and (began is None or job.saved_at >= began)


def checkpointed(draft: Draft, fact: Fact, news: Checkpointed) -> None:
    """What is saved and what is under way; a person hears when saves begin to fail, and when they succeed again."""
    job = draft.job(news.job)
    if job is None or news.attempt != job.attempt or not _runs_there(job, news.node):
        return
    after = job
    if news.saved is not None and (news.saved != job.saved or not _saved_since(job, job.began_at)):
        after = replace(after, saved=news.saved, saved_at=fact.at)
    if news.opened:
        after = replace(after, opened_in=job.attempt)
    if news.directory:
        after = replace(after, checkpoints_in=news.directory)
    if not job.state.terminal:  # else these are its last words
        after = replace(after, work=_work(draft, job, news), listens=news.listens)
        if news.answered and news.answered != job.answered:
            after = replace(after, answered=news.answered)
            draft.tell(f"has saved step {after.saved}, as it was asked to", key_of(job), event="saved")
        after = _save_failing(draft, after, news)
    if after != job:
        draft.put(after)


def _work(draft: Draft, job: Job, news: Checkpointed) -> Work | None:
    if not news.busy:
        return None
    before = job.work
    still = before is not None and before.what == news.busy and before.done >= news.done
    moved = before.moved if before is not None and still else draft.reading(INGEST)
    return Work(what=news.busy[:SKIPPED_WORDS], done=news.done, of=news.of, moved=moved)


def _save_failing(draft: Draft, job: Job, news: Checkpointed) -> Job:
    """A person hears of it when it is not as he was told last; where saves fail by turns not every time.

    An attempt that has saved nothing yet says nothing of what failed in the one before it.
    """
    failed = news.failed[:SKIPPED_WORDS]
    if not failed and news.saved is None:
        return job
    job = replace(job, save_failed=failed)
    last = next((name for name in reversed(job.told) if name.startswith("save_")), "save_mended")
    if last.startswith("save_failed") == bool(failed):
        return job
    kept = "nothing is saved yet" if job.saved is None else f"the newest that is saved is step {job.saved}"
    text = f"not saved: {failed}; the training goes on, {kept}" if failed else f"saves again: step {news.saved}"
    named = f"{job.spec.name}: {text}"
    notice = Notify(event="save_failed" if failed else "save_mended", subject=key_of(job), text=named)
    hour = f"{notice.event}:{draft.reading(INGEST) // 3600:.0f}:"
    often = sum(name.startswith(hour) for name in job.told)
    return job if often >= BY_TURNS else told_of(draft, job, Tell(notice, f"{hour}{often}"))


def wrote(draft: Draft, news: Wrote) -> None:
    job = draft.job(news.job)
    if job is not None and job.attempt == news.attempt and _runs_there(job, news.node):
        _fill_tail(draft, job, news.text)


def _fill_tail(draft: Draft, job: Job, tail: str) -> None:
    """What an attempt wrote last may come later than its end, once; a diagnosis that is still under way uses it."""
    if tail and job.end is not None and not job.end.tail:
        after = replace(job, end=_judged(draft, job.end, tail))
        draft.put(after)
        _record_end(draft, after)


def _record_end(draft: Draft, job: Job) -> None:
    """How it ended may be known only after the step that ended it."""
    known = draft.attempt(job)
    if known is not None:
        draft.put(recorded(known, job, draft.now))


def _judged(draft: Draft, end: End, tail: str = "") -> End:
    """The end with what its log says, which may have come later than it."""
    tail = (tail or end.tail)[-TAIL:]
    return replace(end, tail=tail, findings=judge(tail, draft.rules.tables.diagnosis))


def looked(draft: Draft, news: Looked) -> None:
    """What the ranks of a hung job were doing is told in the job's story: after the stop nobody can ask again."""
    intent = draft.intent(news.look)
    act = intent.act if intent is not None else None
    job = act.stacks_of if isinstance(act, Look) and news.node in act.nodes else None
    if job is not None and news.text:
        more = f"\n… {len(news.text) - STACKS} more characters" if len(news.text) > STACKS else ""
        text = f"what its ranks on {news.node} were doing:\n{news.text[:STACKS]}{more}"
        draft.tell(text, f"job:{job}", event="stacks")


def watched(draft: Draft, fact: Fact, news: Hung | RuleOff) -> None:
    """What whoever looks for hangs has found, or cannot look for any more."""
    if isinstance(news, Hung):
        _hung(draft, fact, news)
    else:
        _rule_off(draft, news)


def _hung(draft: Draft, fact: Fact, news: Hung) -> None:
    job = draft.job(news.job)
    if job is None or job.state is not JobState.RUNNING or news.attempt != job.attempt:
        return
    if not _runs_there(job, news.node):
        return
    if news.unbegun and job.stepped_in == job.attempt:
        return  # another rank tells its steps: perhaps only that one ever does
    if _advances(draft, job):
        return  # others of it wait for that; it is called hung again, if it then still is
    call = Call(because=f"hung: {news.because}", dated=fact.at)
    if all(known.node or known.incident for known in job.calls):  # nobody need say it twice
        draft.put(job.called(call))


def _rule_off(draft: Draft, news: RuleOff) -> None:
    """A log rule does not watch its job any more: whoever relies on it hears of that, once for each rule."""
    job = draft.job(news.job)
    if job is None or not job.open or news.attempt != job.attempt or not _runs_there(job, news.node):
        return
    known = news.rule in {rule.name for rule in job.spec.log_rules}
    if not known or job.rules_off.get(news.rule) == job.attempt:
        return
    job = replace(job, rules_off={**job.rules_off, news.rule: job.attempt})
    draft.put(job)
    where = f" on {news.node}" if news.node else ""
    text = (
        f"log rule {news.rule!r} is switched off{where}: {news.because}; a hang that it would have found is not found"
    )
    draft.tell(text, key_of(job), event="rule_off")
    notice = Notify(event="log_rule_off", subject=key_of(job), text=f"{job.spec.name}: {text}")
    told_of(draft, job, Tell(notice, f"log_rule_off:{news.rule}"))


def _advances(draft: Draft, job: Job) -> bool:
    """Whether rank 0 has told of progress in a long piece of work lately, by the clock of those who tell."""
    limit = job.spec.stall_after or draft.rules.policy.resume.stall_after.total_seconds()
    return job.work is not None and draft.reading(INGEST) - job.work.moved < limit / 2
