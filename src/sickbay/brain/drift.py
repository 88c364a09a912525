"""What others did, and whether what we asked for is there: both read off the same rows.

`drift` is a table by (our last act, what is seen). `shown` says whether an intent's effect is visible.
"""

from dataclasses import dataclass, field

from sickbay.brain.decision import IncidentChanges
from sickbay.model.cordon import cordon_of, others_of
from sickbay.model.fault import RUNGS, Proof, Remedy
from sickbay.model.fleet import AgentState, Incarnation, Node, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.intent import (
    AskToSave,
    Drain,
    Fence,
    Intent,
    IntentState,
    Look,
    Notify,
    Quarantine,
    Release,
    Repair,
    RerunJob,
    StartJob,
    StopJob,
    Strike,
    Verify,
)
from sickbay.model.job import Job, JobState, RankState


@dataclass(frozen=True, slots=True)
class Drift:
    """What an incident must learn of others' doing."""

    uncordoned: str = ""  # another removed (or took over) our cordon
    bared: bool = False  # our cordon is not there any more, and nobody's will was it: it must be put back
    cordon: IncidentChanges = field(default_factory=IncidentChanges)  # what becomes of our knowledge of it
    healed: Remedy | None = None  # a rung that others did


def drift(incident: Incident, node: Node, horizon: float, intent: Intent | None = None) -> Drift:
    """Compare an open incident with its node as just seen. A read newer than `horizon` shows what is so now.

    `intent`: what it is about now. A repair that was not sent has taken nothing along.
    """
    sent = intent is None or bool(intent.sent_at or intent.doubted)
    late = any(made.rung.rank >= Remedy.REBOOT.rank for made in incident.tries[:-1])  # an earlier one may come still
    repairs = incident.phase is Phase.REPAIRING and (sent or late)
    uncordoned, cordon = _uncordoned(incident, node, horizon, repairs=repairs)
    bared = bool(cordon.get("bared"))
    return Drift(uncordoned=uncordoned, bared=bared, cordon=cordon, healed=_healed(incident, node.incarnation))


def _uncordoned(incident: Incident, node: Node, horizon: float, *, repairs: bool) -> tuple[str, IncidentChanges]:
    """Whether a person took our cordon away. One that goes with its machine, its boot or under our repair says nothing.

    A seat whose object is made anew has no cordon, and some clusters lift one with a reboot. So after a change it must
    have been seen again, by a read that can know of the change, before its absence is a person's word.
    """
    if not incident.phase.out or incident.closing is not None:
        return "", {}
    there = cordon_of(incident.id) in node.cordons
    lost: IncidentChanges = {"cordon_as_of": None, "cordon_from": None, "bared": True}
    changed = node.incarnation is not None and not node.incarnation.same_boot(incident.incarnation)
    if incident.cordon_as_of is None:
        if incident.cordon_from is None or incident.bared:
            return "", {}
        if there and node.as_of > incident.cordon_from:
            return "", {"cordon_as_of": node.as_of, "cordon_from": None}
        return "", {} if there else lost
    gone = not there and node.as_of > incident.cordon_as_of
    if changed or repairs:
        if gone:
            return "", lost
        return "", {"cordon_as_of": None, "cordon_from": horizon} if changed else {}
    if not gone:
        return "", {}
    others = others_of(node.cordons)
    return (f"the cordon is now that of {others[0]}" if others else "our cordon was removed by another"), {}


def _healed(incident: Incident, seen: Incarnation | None) -> Remedy | None:
    was = incident.incarnation
    if was is None or seen is None or seen.same_boot(was) or incident.phase in {Phase.SUSPECT, Phase.WATCHED}:
        return None
    done = Remedy.REBOOT if seen.same_holder(was) else Remedy.REPLACE
    if incident.phase is Phase.REPAIRING and incident.rung is not None and incident.rung.rank >= done.rank:
        return None  # our own repair shows itself in this way
    return done


def horizon_of(reached: float, nodes: dict[NodeId, Node | None], job: Job | None) -> float:
    """How far an effect's subjects have been read: with their whole cluster (`reached`), or each by itself since."""
    own = [node.as_of if node is not None else reached for node in nodes.values()]
    own += [job.ranks_as_of] if job is not None else []
    return max(reached, min(own, default=reached))


def shown(intent: Intent, nodes: dict[NodeId, Node | None], job: Job | None, horizon: float) -> bool:
    """Whether the effect is there. `horizon`: the cluster's own time (`as_of`) up to which it has been read.

    Where the effect is an absence, that counts only in a read from `visible_from` and `doubt_until` on.
    """
    act = intent.act
    match act:
        case Quarantine(node=node, owner=owner):
            seat = nodes[node]
            return seat is not None and owner in seat.cordons
        case Release(node=node, owner=owner):
            seat = nodes[node]
            return seat is None or (owner not in seat.cordons and _new_enough(intent, horizon))
        case Drain(node=node):
            seat = nodes[node]
            return seat is None or (seat.unmanaged == 0 and _new_enough(intent, horizon))
        case Repair(node=node, rung=rung):
            return rung_shown(intent, nodes[node], rung)
        case Verify(nodes=wanted) | Look(nodes=wanted):
            return all(node in intent.verdicts for node in wanted)
        case AskToSave(attempt=attempt):
            return job is None or job.attempt != attempt or _has_saved(intent, act, job)
        case StartJob(attempt=attempt):
            return job is not None and job.attempt == attempt and _all_ranks_seen(job)
        case StopJob(attempt=attempt):
            return job is None or job.attempt != attempt or _all_ranks_gone(intent, job, horizon)
        case Fence(attempt=attempt, node=node):
            return job is None or job.attempt != attempt or job.ranks.get(node) is RankState.GONE
        case RerunJob(attempt=attempt):
            return job is None or job.attempt > attempt
        case Notify() | Strike():
            return False


def _new_enough(intent: Intent, horizon: float) -> bool:
    return bool(intent.sends) and horizon >= max(intent.visible_from, intent.doubt_until)


def rung_shown(intent: Intent, node: Node | None, rung: Remedy) -> bool:
    """Whether the rung's proof is there, whoever did it."""
    was = intent.expect
    if node is None or node.incarnation is None:
        return rung is Remedy.REPLACE
    match RUNGS[rung].proof:
        case Proof.NONE:
            return True
        case Proof.AGENT_HEARD:
            return node.agent is AgentState.HEARD
        case Proof.RESET_CONFIRMED:
            return node.id in intent.verdicts
        case Proof.NEW_BOOT:
            return node.incarnation.new_boot(was)
        case Proof.NEW_INSTANCE:
            return was is not None and not node.incarnation.same_holder(was)


def _has_saved(intent: Intent, act: AskToSave, job: Job) -> bool:
    """Rank 0 says so, or has saved a later step since: another rank may have heard the ask before it did."""
    since = act.sent_at is not None and job.saved_at is not None and job.saved_at > act.sent_at
    later = job.saved is not None and act.step is not None and job.saved > act.step
    return job.answered == intent.key or (since and later)


def _all_ranks_gone(intent: Intent, job: Job, horizon: float) -> bool:
    """No rank is left: the cluster says that the attempt ended, or a read that must show our stop shows none."""
    if any(state is RankState.RUNNING for state in job.ranks.values()):
        return False
    # Only an ACCEPTED stop proves absence: without it a start that is on its way may come after any read.
    taken = intent.state is IntentState.ACCEPTED and horizon >= intent.visible_from
    return (job.end is not None and bool(job.ranks)) or taken


def _all_ranks_seen(job: Job) -> bool:
    if job.end is not None or job.state is JobState.RUNNING:
        return True
    promised = job.claim or job.ranks
    enough = len(promised) >= min(job.spec.least, job.spec.most)
    return enough and all(job.ranks.get(node) is RankState.RUNNING for node in promised)
