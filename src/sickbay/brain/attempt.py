"""A job whose attempt runs, or must end: RUNNING until something ends it, STOPPING until every rank is surely gone."""

from sickbay.brain.decision import Change, Do, JobChanges, JobDecision, Move, Need, ReadFirst, Stay, Tell
from sickbay.brain.endings import ending_of
from sickbay.brain.gate import over_time
from sickbay.brain.job_input import JobInput, listing
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fleet import Capability, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase, Wait
from sickbay.model.intent import AskToSave, Fence, Intent, IntentState, Look, Notify, StopJob
from sickbay.model.job import Call, EndReason, Job, RankState
from sickbay.model.policy import Policy

FENCES_AT_ONCE = 6  # each is written down in the job's own unit
FENCES_KEPT = 20  # with those that failed: each is a row that the job's decision reads


def running(s: JobInput, policy: Policy) -> JobDecision:
    job = s.job
    if job.end is not None:
        own: JobChanges = {"calls": job.pressing}
        match job.end.reason:
            case EndReason.COMPLETED:
                return Move("complete", "every rank ended with 0", {"claim": {}})
            case EndReason.CANCELLED_BY_OTHER:
                return Move("stopped", "cancelled by its owner", {"claim": {}})
            case _ if any(state is RankState.RUNNING for state in job.ranks.values()):
                return Move("stop", ending_of(job.end), own)
            case _:
                return Move("ended", ending_of(job.end), own)
    if job.cancelled and not any(state is RankState.RUNNING for state in job.ranks.values()):
        return Move("stopped", "cancelled by its owner", {"claim": {}})
    over = Deadline(clock=s.cluster, at=job.over_at) if job.over_at is not None else None
    if s.passed(over) and not job.stop_asked:
        return Change(over_time(job), {"stop_asked": over_time(job), "diagnosis": over_time(job)})
    if (job.stop_asked or job.calls) and (decision := _saves_first(s, policy)) is not None:
        return decision
    saved = _saved(s, policy)
    if job.stop_asked:
        return Move("stop", f"{job.stop_asked}{saved}")
    if calls := job.pressing or job.calls:
        return _stacks(s, policy, calls) or Move("stop", f"{calls[0].because}{saved}")
    if job.ranks and all(state is RankState.GONE for state in job.ranks.values()):
        return _without_end(s, policy)
    if (grown := _grow(s, policy, over)) is not None:
        return grown
    then = "it has run as long as it may" if over is not None else ""
    because = "training" if job.ranks else "its controller has not placed it yet"
    return Stay(Wait(because=because, until=over, then=then))


def _grow(s: JobInput, policy: Policy, over: Deadline | None) -> JobDecision | None:
    """One that runs on fewer nodes than it asked for, and says so, is restarted on all once there are enough."""
    job, most = s.job, s.job.spec.most
    if not job.spec.grow or Capability.PLACE not in s.can or len(job.claim) >= most or not job.ranks:
        return None
    why = f"training on {len(job.claim)} of {most} nodes"
    rested = Deadline(clock=s.cluster, at=job.began + policy.resume.grow_after.total_seconds())
    if not s.passed(rested):
        first = over if over is not None and over.at < rested.at else rested
        return Stay(Wait(because=why, until=first, then="it grows as soon as there are enough nodes"))
    if s.room is None:
        return ReadFirst(Need.ROOM)
    if not s.room.begins:
        return Stay(Wait(because=f"{why}, and grows as soon as there are enough", until=over))
    call = Call(because=f"it grows to {most} nodes", before=f"it grows to {most} nodes", wished=True)
    place = s.within(s.cluster, policy.resume.keep_place)
    return Change(f"there are {most} nodes for it", {"calls": (call,), "place_until": place})


def _saves_first(s: JobInput, policy: Policy) -> JobDecision | None:
    """What is to stop for something that can wait is asked to save, once, and is given its time for that.

    None: it is stopped now. It has saved, it cannot be asked, its time is over, or its end cannot wait.
    """
    job, intent, within = s.job, s.intent, policy.resume.save_within
    asked = intent is not None and isinstance(intent.act, AskToSave)
    whole = bool(job.ranks) and all(state is RankState.RUNNING for state in job.ranks.values())
    if job.called_at_once or s.passed(job.save_by) or not (whole or job.save_by):
        return None
    if not job.stop_asked and s.dismissed is None:
        return ReadFirst(Need.DISMISSED)
    if not job.stop_asked and s.dismissed:
        return Change("what called for its end was dismissed", {"calls": (), "save_by": None, "intent": ""})
    if job.save_by is None:
        if not (job.listens and within and Capability.ASK_TO_SAVE in s.can):
            return None
        nodes = tuple(sorted(job.ranks))
        act = AskToSave(job=job.id, attempt=job.attempt, nodes=nodes)
        return Do(act, _why_saved(job), within, s.cluster, also={"save_by": s.within(s.cluster, within)})
    if not whole:  # nobody can save any more, and what ended it is told soon or never
        soon = s.within(s.cluster, policy.resume.stop_deadline)
        if soon.at < job.save_by.at:
            return Change("some of its ranks have ended", {"save_by": soon})
        return Stay(Wait(because="some of its ranks have ended: how it ends is awaited", until=job.save_by))
    if intent is None or not asked or intent.state.over:
        return None
    held = f": {intent.answer}" if intent.state is IntentState.PLANNED and intent.answer else ""
    return Stay(Wait(because=f"asked to save {_why_saved(job)}{held}", until=job.save_by))


def _saved(s: JobInput, policy: Policy) -> str:
    """What has come of the ask, in words; empty where none was made, or it was given up for what cannot wait."""
    if s.intent is None or not isinstance(s.intent.act, AskToSave):
        return ""
    if s.intent.state is IntentState.SEEN and s.job.saved is not None:
        return f"; step {s.job.saved} is saved"
    late = s.passed(s.job.save_by) and all(state is RankState.RUNNING for state in s.job.ranks.values())
    return f"; it has not saved within {policy.resume.save_within}" if late else ""


def _why_saved(job: Job) -> str:
    before = "it is stopped" if job.stop_asked else job.calls[0].before
    step = f", step {job.step}" if job.step is not None else ""
    return f"before {before} (attempt {job.attempt}{step})"


def _without_end(s: JobInput, policy: Policy) -> JobDecision:
    """Nothing of it is left and nobody has said how it ended: the word is awaited, and a human is told of it."""
    job = s.job
    why = "all its ranks are gone, and its cluster has not said how it ended"
    if job.remind is None:  # mostly it is said a little later
        return Change(why, {"remind": s.within(s.cluster, policy.resume.start_deadline)})
    if not s.passed(job.remind):
        return Stay(Wait(because=why, until=job.remind))
    notice = Notify(event="job_stuck", subject=f"job:{job.id}", text=f"{job.spec.name}: {why}")
    tell = Tell(notice, f"job_unended:{job.attempt}:{s.readings.get(s.cluster, 0.0):.0f}")
    return Change(why, {"remind": s.within(s.cluster, policy.pace.held_reminder)}, tell)


def _stacks(s: JobInput, policy: Policy, calls: tuple[Call, ...]) -> JobDecision | None:
    """What a hung job was doing can be asked only while it still does it. None: nothing more to ask."""
    job, intent = s.job, s.intent
    if any(call.node or call.wished for call in calls) or Capability.LOOK not in s.can:
        return None
    if intent is None or not isinstance(intent.act, Look):
        nodes = tuple(sorted(node for node, state in job.ranks.items() if state is RankState.RUNNING))
        look = Look(nodes=nodes, stacks_of=job.id)
        also: JobChanges = {"deadline": s.within(s.cluster, policy.resume.stop_deadline)}
        return Do(look, "it hangs: its stacks are collected first", policy.resume.look_deadline, INGEST, also=also)
    if not intent.state.over and not s.passed(job.deadline):  # where nobody can be asked it ends without them
        return Stay(Wait(because="collecting its stacks", until=intent.seen_by or job.deadline))
    return None


def stopping(s: JobInput, policy: Policy) -> JobDecision:
    job, intent = s.job, s.intent
    left = tuple(sorted(node for node, state in job.ranks.items() if state is RankState.RUNNING))
    if intent is None:
        if not left and job.end is None and job.deadline is not None and not s.passed(job.deadline):
            return Stay(Wait(because="its start may still be on its way", until=job.deadline))
        return _stop(s, policy)
    proven = bool(job.ranks) and not left and job.claim.keys() <= job.ranks.keys()
    if proven or intent.state is IntentState.SEEN:
        return _off(s, policy, "all its ranks are gone")
    if s.away is None:
        return ReadFirst(Need.AWAY)
    # What nobody can reach is fenced at once; what only the cluster cannot reach, when its time to stop is over.
    away = frozenset(s.away.fenceable if intent.state.over else s.away.lost)
    lost = tuple(node for node in left if node in away)
    unreached = frozenset(s.away.unseen)
    unseen = tuple(node for node in left if node in unreached)
    nothing = isinstance(intent.act, StopJob) and (intent.gone or (intent.state.over and job.vanished))
    if nothing and (not left or unseen != left):
        return _nothing_left(s, policy, unseen)
    sent = intent.state not in {IntentState.PLANNED, IntentState.SENT}
    if sent and left and lost == left and (decision := _without_reach(s, policy, left)) is not None:
        return decision
    if intent.state is IntentState.PLANNED and intent.answer:
        return _unsent(s, policy, intent)
    if not intent.state.over:
        return Stay(Wait(because="stopping its ranks", until=intent.seen_by))
    return _stuck(s, policy, left or tuple(sorted(job.claim)))


def _stop(s: JobInput, policy: Policy) -> Do[JobChanges]:
    act = StopJob(job=s.job.id, attempt=s.job.attempt, final=bool(s.job.stop_asked))
    because = "every rank must be gone before the next starts"
    return Do(act, because, policy.resume.stop_deadline, s.cluster, also={"deadline": None})


def _without_reach(s: JobInput, policy: Policy, left: tuple[NodeId, ...]) -> JobDecision | None:
    """Only ranks on nodes out of reach are left: fence them, or go on where the job itself keeps them from writing.

    None: neither can be done. Each node is fenced by an intent of its own, some at a time: one may take minutes.
    """
    job = s.job
    done = {fence.act.node for fence in s.fences if isinstance(fence.act, Fence) and _fenced(fence)}
    if done:
        ranks = {node: RankState.GONE if node in done else state for node, state in job.ranks.items()}
        kept = tuple(fence.key for fence in s.fences if not _fenced(fence))
        return Change(f"fenced: {listing(sorted(done))}", {"ranks": ranks, "fences": kept})
    under_way = [fence for fence in s.fences if not fence.state.over]
    if Capability.FENCE in s.can:
        asked = {fence.act.node for fence in s.fences if isinstance(fence.act, Fence)}
        following = next((node for node in left if node not in asked), None)
        room = len(under_way) < FENCES_AT_ONCE and len(s.fences) < FENCES_KEPT
        if following is not None and room:
            act = Fence(node=following, job=job.id, attempt=job.attempt)
            because = f"ranks on {following} cannot be reached"
            return Do(act, because, policy.resume.stop_deadline, s.cluster, also={"deadline": None})
    if under_way:
        names = listing(sorted(f.act.node for f in under_way if isinstance(f.act, Fence)))
        return Stay(Wait(because=f"fencing {names}", until=under_way[0].seen_by))
    if job.fenced:
        why = "its own checkpoints are fenced: what may still run there can commit nothing"
        return _off(s, policy, f"goes on without {listing(left)}, which nobody can reach; {why}")
    return None


def _fenced(fence: Intent) -> bool:
    """Done, or the machine is there no more."""
    return fence.state is IntentState.SEEN or fence.gone


def _unsent(s: JobInput, policy: Policy, intent: Intent) -> JobDecision:
    """Its stop is withheld, or does not go through: what withholds it may last for ever, so a human is told."""
    job = s.job
    why = f"stopping its ranks: {intent.answer}"
    if job.remind is None:  # mostly it goes through a little later
        return Change(why, {"remind": s.within(s.cluster, policy.resume.stop_deadline)})
    if not s.passed(job.remind):
        return Stay(Wait(because=why, until=job.remind))
    text = f"{job.spec.name}: attempt {job.attempt} is to end and its stop is not sent: {intent.answer}"
    notice = Notify(event="job_stuck", subject=f"job:{job.id}", text=text)
    tell = Tell(notice, f"job_unsent:{job.attempt}:{s.readings.get(s.cluster, 0.0):.0f}")
    return Change(why, {"remind": s.within(s.cluster, policy.pace.held_reminder)}, tell)


def _stuck(s: JobInput, policy: Policy, left: tuple[NodeId, ...]) -> JobDecision:
    """Neither stopped nor fenced: a human is told, now and again, and both are tried again. Nothing starts meanwhile.

    Nodes that its ranks have left are free for others: one node out of reach must not hold up all of a large job's.
    """
    job = s.job
    why = f"cannot prove that the ranks on {listing(left)} are gone ({_why_not(s)}); a second copy would ruin the run"
    if job.deadline is None:
        held = {node: devices for node, devices in job.claim.items() if job.ranks.get(node) is not RankState.GONE}
        # Nobody knows how long it lasts: it gives up the place that was kept for it, too.
        also: JobChanges = {
            "claim": held,
            "place_until": None,
            "deadline": s.within(s.cluster, policy.resume.stop_deadline),
        }
        tell = None
        if job.remind is None or not stuck(job) or s.passed(job.remind):
            notice = Notify(event="job_stuck", subject=f"job:{job.id}", text=f"{job.spec.name}: {why}")
            again = f":{s.readings.get(s.cluster, 0.0):.0f}" if stuck(job) else ""
            tell = Tell(notice, f"{_stuck_name(job)}{again}")
            also["remind"] = s.within(s.cluster, policy.pace.held_reminder)
        return Change(why, also, tell)
    if s.passed(job.deadline):
        return Change("trying again", {"intent": "", "fences": (), "deadline": None})
    return Stay(Wait(because=why, until=job.deadline))


def _why_not(s: JobInput) -> str:
    """What was tried, and why it did not do."""
    tried = [f"fence: {fence.answer or fence.state}" for fence in s.fences[:1]]
    if Capability.FENCE not in s.can:
        tried.append("nothing here can fence a node, and the job reports no fence of its own")
    if s.intent is not None:
        tried.insert(0, f"stop: {s.intent.answer or s.intent.state}")
    return "; ".join(tried)


def _stuck_name(job: Job) -> str:
    return f"job_stuck:{job.attempt}"


def stuck(job: Job) -> bool:
    """Whether a human knows already that it can neither be stopped nor fenced: each further try is no news."""
    return _stuck_name(job) in job.told


def _nothing_left(s: JobInput, policy: Policy, unseen: tuple[NodeId, ...]) -> JobDecision:
    """There was nothing to stop: it ended by itself, perhaps well. The read that tells how is awaited, not for ever.

    Without such a read the cluster's word is about nodes that it reaches, and it takes a while to miss one that it does
    not, whose ranks go on: as long as a stop may take.
    """
    job = s.job
    told = job.end is not None and job.end.reason is not EndReason.UNKNOWN
    if told or not job.ranks or s.passed(job.deadline):
        if not unseen:
            return _off(s, policy, "all its ranks are gone")
        ranks = {node: state if node in unseen else RankState.GONE for node, state in job.ranks.items()}
        return Change("all its ranks are gone where its cluster reaches", {"ranks": ranks, "deadline": None})
    if job.deadline is None:
        until = s.within(s.cluster, policy.resume.stop_deadline)
        return Change("the cluster has nothing left to stop", {"deadline": until})
    return Stay(Wait(because="how it ended has not been read yet", until=job.deadline))


def _off(s: JobInput, policy: Policy, because: str) -> JobDecision:
    """All ranks are gone, or can do no harm. What that means depends on why they had to go."""
    job, intent = s.job, s.intent
    gone: JobChanges = {"ranks": dict.fromkeys(job.ranks, RankState.GONE), "claim": {}, "remind": None}
    if job.end is not None and job.end.reason is EndReason.COMPLETED:
        return Move("complete", "it completed before it was stopped", gone)
    if job.cancelled:
        return Move("stopped", job.stop_asked or "cancelled by its owner", gone)
    stop = intent if intent is not None and isinstance(intent.act, StopJob) else None
    final = stop is not None and isinstance(stop.act, StopJob) and stop.act.final
    if job.stop_asked:
        if s.native and not final:  # the first stop meant to run it again: its controller must know better
            return _stop(s, policy)
        if s.native and stop is not None and not stop.state.over:
            return Stay(Wait(because="its controller is told not to run it again", until=stop.seen_by))
        if s.native and stop is not None and (unread := s.unread(stop)) is not None:
            return Stay(Wait(because="there was nothing to stop: whether it runs again is read next", until=unread))
        return Move("stopped", job.stop_asked, gone)
    taken = stop is not None and not stop.gone and stop.state in {IntentState.ACCEPTED, IntentState.SEEN}
    return Move("ended", because, {**gone, "held": Capability.HOLDS in s.can and taken and not final})


# --- what its nodes and its incidents are to it


def out_of_reach(node: Node | None) -> bool:
    """Whether nobody can reach what runs there."""
    return node is None or node.incarnation is None or node.lost


def unseen(node: Node | None) -> bool:
    """Whether its cluster cannot reach it: its word that a rank is gone proves nothing."""
    return node is None or node.incarnation is None or not node.ready


def may_be_fenced(node: Node | None, *, shared: bool) -> bool:
    """`shared`: another attempt runs there, which is in touch with somebody as long as the node is not lost."""
    return node is None or node.lost or (unseen(node) and not shared)


def was_dismissed(incident: Incident) -> bool:
    """A person vouches for the node, or wants it no longer.

    A fault that asks only for a restart of the job ends by itself, and was right.
    """
    over = Phase.DISMISSED in {incident.phase, incident.closing}
    return over and (incident.kind is IncidentKind.OPERATOR or incident.remedy.disrupts)
