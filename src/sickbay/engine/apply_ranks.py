"""What ranks, and the agents beside them, say of a job's attempt: steps, saves, output, hangs."""

from datetime import datetime

from msgspec.structs import replace

from sickbay.brain.decision import Tell
from sickbay.brain.endings import add_heard_end, complete_end
from sickbay.engine.apply_jobs import TAIL, fill_tail, record_end, with_findings
from sickbay.engine.notices import REPEATED_TELLS, told_of
from sickbay.engine.transitions import first_step
from sickbay.engine.view import Draft
from sickbay.model.clock import INGEST
from sickbay.model.facts import Checkpointed, Fact, Hung, Looked, RankEnded, RankWaits, RuleOff, Stepped, Wrote
from sickbay.model.fleet import NodeId
from sickbay.model.intent import Look, Notify
from sickbay.model.job import Call, Job, JobState, RankEnd, Work
from sickbay.model.rows import key_of

STACKS = 20_000  # characters from one node
BY_TURNS = 3  # times an hour that saves which fail and succeed by turns are told of
SKIPPED, SKIPPED_WORDS = 10, 300  # checkpoints that a line names, and characters of each


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
        fill_tail(draft, job, news.text)


def looked(draft: Draft, news: Looked) -> None:
    """What the ranks of a hung job were doing is told in the job's story: after the stop nobody can ask again."""
    intent = draft.intent(news.look)
    act = intent.act if intent is not None else None
    job = act.stacks_of if isinstance(act, Look) and news.node in act.nodes else None
    if job is not None and news.text:
        more = f"\n… {len(news.text) - STACKS} more characters" if len(news.text) > STACKS else ""
        text = f"what its ranks on {news.node} were doing:\n{news.text[:STACKS]}{more}"
        draft.tell(text, f"job:{job}", event="stacks")


def watched(draft: Draft, fact: Fact, news: Hung | RuleOff | RankEnded | RankWaits) -> None:
    """What whoever watches ranks has found, or cannot look for any more."""
    match news:
        case Hung():
            _hung(draft, fact, news)
        case RuleOff():
            _rule_off(draft, news)
        case RankEnded():
            _ended(draft, fact, news)
        case RankWaits():
            job = draft.job(news.job)
            if job is not None and job.open and news.attempt == job.attempt and _runs_there(job, news.node):
                draft.put(replace(job, waits=news.seconds, waits_in=job.attempt))


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


def _ended(draft: Draft, fact: Fact, news: RankEnded) -> None:
    """How a rank ended, where its cluster cannot tell: blame and diagnosis read it like the cluster's own word.

    Only the cluster says that an attempt is over; and whoever was asked to end, or ends after our stop, says nothing.
    """
    job = draft.job(news.job)
    if job is None or news.node is None or news.attempt != job.attempt or not _runs_there(job, news.node):
        return
    if news.stopped or news.exit_code == 0 or job.state in {JobState.COMPLETE, JobState.STOPPED}:
        return
    if job.end is None and job.state not in {JobState.GATING, JobState.RUNNING}:
        return  # it was stopped, and has ended by that
    if job.calls and job.state is not JobState.RUNNING:
        return
    rank = RankEnd(rank=news.rank, node=news.node, exit_code=news.exit_code, why=news.why, at=fact.at)
    before = job.heard if job.heard is not None and job.heard.attempt == job.attempt else None
    heard = add_heard_end(before, job.attempt, rank, news.tail[-TAIL:])
    after = replace(job, heard=heard)
    if job.end is not None:
        end = with_findings(draft, complete_end(job.end, heard, before))
        after = replace(job, heard=replace(heard, tail=""), end=end)
    if after == job:
        return
    draft.put(after)
    if after.end != job.end:
        record_end(draft, after)


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


def _runs_there(job: Job, node: NodeId | None) -> bool:
    """An agent speaks of what runs on its own node, and of nothing else."""
    return node is None or node in job.claim or node in job.ranks
