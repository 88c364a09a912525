"""What an incident does next: one move, one act or one wait.

Each phase is one function, here or in `repair.py`; `decide` is the table of contents. Whether an act is admitted is
not asked here.
"""

from datetime import timedelta

from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, IncidentChanges, IncidentDecision, Move, Stay, Tell
from sickbay.brain.doubt import checking
from sickbay.brain.incident_input import IncidentInput, away, later, remind
from sickbay.brain.job_input import listing
from sickbay.brain.orders import OPERATOR_CORDON, close, obey, planned, why_off, worse
from sickbay.brain.repair import choose, drained, must_leave, repairing, stands, verifying
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.cordon import cordon_of
from sickbay.model.fault import AGENT_LOST, NODE_LOST, PARTITION, Remedy
from sickbay.model.fleet import MANY_SILENCES, AgentState, Capability, DrainHow, JobId, Node
from sickbay.model.incident import IncidentKind, Phase, Wait
from sickbay.model.intent import Drain, IntentState, Notify, Quarantine, Repair
from sickbay.model.policy import Policy

CORDON_TRIES = 3
HEARD_AGAIN = ("its agent is heard again",)


def decide(s: IncidentInput, policy: Policy) -> IncidentDecision:
    incident, node = s.incident, s.node
    if node is None:
        return Move("gone", "the node is not there any more")
    if incident.orders:
        return obey(s, incident.orders[0])
    if incident.closing is not None:
        return close(s, node, policy)
    if incident.bared and incident.phase is not Phase.REPAIRING and (back := _cordon_again(s, node, policy)):
        return back
    match incident.phase:
        case Phase.SUSPECT:
            return _suspect(s, node, policy)
        case Phase.WATCHED:
            return _watched(s, node, policy)
        case Phase.QUARANTINED:
            return _quarantined(s, node, policy)
        case Phase.DRAINING:
            return _draining(s, node, policy)
        case Phase.DRAINED:
            return drained(s, node, policy)
        case Phase.REPAIRING:
            return repairing(s, node)
        case Phase.VERIFYING:
            return verifying(s, node, policy)
        case Phase.HELD:
            return _held(s, node, policy)
        case Phase.RELEASED | Phase.DISMISSED | Phase.REPLACED | Phase.GONE:
            return Stay(Wait(because="over"))


def _suspect(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident = s.incident
    back = incident.fault.code == NODE_LOST and not node.lost and incident.healed is None
    if back and not incident.ordered:  # what a person has asked for meanwhile is done all the same
        heard = "the node is heard again" if node.agent is AgentState.HEARD else "the cluster calls it ready again"
        return Move("dismiss", heard)
    if not incident.remedy.disrupts and incident.kind is IncidentKind.FAULT:
        grace = 2 * policy.silence.agent if incident.fault.code == PARTITION else policy.pace.watch_for
        watch = None if incident.fault.code == AGENT_LOST else s.within(INGEST, grace)
        because = f"{incident.fault.code} asks for {incident.remedy}: the node stays in service"
        return Move("watch", because, {"deadline": watch})
    if incident.fault.code == NODE_LOST and not back and s.unpressed(s.scoped):
        return Change("the node is lost, and with it what runs there", call=s.unpressed(s.scoped))
    if incident.kind is IncidentKind.FAULT and checking(s):  # what the check provokes belongs to its verdict
        return Stay(Wait(because="a check is to confirm or clear it", until=s.retry_at))
    if incident.kind is IncidentKind.INTAKE and (s.scoped or s.bystanders or node.unmanaged):
        return _came_with_work(s, node, policy)
    return _cordon(s, node, policy, event="quarantine")


def _came_with_work(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    """A newcomer that others use already: it is suspected of nothing, so nobody is sent away to look at it."""
    if s.incident.deadline is None:
        return Change("work runs there already", {"deadline": s.within(INGEST, policy.pace.held_reminder)})
    text = f"{node.id}: it is new and has not been checked, since work runs there all the time"
    because = "it is checked when the work that it came with has left"
    return remind(s, policy, "check_could_not_run", text, because, ("the work that it came with leaves",))


def _unwelcome(s: IncidentInput) -> tuple[JobId, ...]:
    """Who must stop because of what the incident is about. What runs on a newcomer may stay until it ends."""
    asked = s.uncalled(s.scoped) if planned(s.incident) else s.unpressed(s.scoped)
    return tuple(job for job in asked if job in s.gating) if s.incident.kind is IncidentKind.INTAKE else asked


def _cordon(s: IncidentInput, node: Node, policy: Policy, event: str = "") -> Do[IncidentChanges]:
    incident = s.incident
    reason = f"sickbay {incident.id} {incident.fault.code}"
    act = Quarantine(node=node.id, owner=cordon_of(incident.id), reason=reason)
    because = f"{incident.fault.code}: {incident.fault.because}"
    patience = policy.pace.cordon_deadline
    also: IncidentChanges = {"deadline": s.within(incident.cluster, CORDON_TRIES * patience)}
    if event:  # what a check said of the suspect proves nothing for its return
        also |= {"doubt": None, "proof": None}
    if not event and incident.deadline is not None and asked_of(s, node):
        also = {}  # asked again of the same holder the deadline stays, or it would never pass; another has its own
    return Do(act, because, patience, incident.cluster, event, also)


def _cordon_again(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision | None:
    """Our cordon went with what it was on. None: the cluster does not take it, and a human knows."""
    intent = s.intent
    if intent is None or not isinstance(intent.act, Quarantine) or intent.state is IntentState.SEEN:
        return _cordon(s, node, policy)
    if not intent.state.over:
        return Stay(Wait(because="putting our cordon back, which went with what it was on", until=intent.seen_by))
    if refused_lately(s, node):
        return Stay(
            Wait(because=f"the cluster refused our cordon, it is asked again: {intent.answer}", until=s.retry_at)
        )
    if not asked_of(s, node) or not s.passed(s.incident.deadline):
        return _cordon(s, node, policy)
    if s.incident.phase is Phase.HELD:
        return None
    return Move("hold", f"the cluster did not take our cordon: {intent.answer or intent.state}")


def _watched(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident = s.incident
    if incident.remedy.disrupts or incident.kind is IncidentKind.OPERATOR:
        return Move("raise", f"{incident.fault.code} now asks for {incident.remedy}")
    if incident.fault.code == AGENT_LOST:
        return _agent_lost(s, node, policy)
    if incident.fault.code == PARTITION:
        return _partitioned(s, node, policy)
    restart = tuple(job for job in s.scoped if job in s.training)
    if incident.remedy is Remedy.RESTART_JOB and restart:
        return Change(f"{incident.fault.code} asks for a restart of the job", call=restart)
    if s.passed(incident.deadline):
        return Move("dismiss", f"it stayed quiet for {policy.pace.watch_for}")
    code = incident.fault.code
    because, ends = (
        f"watching {code}: dismissed if it stays quiet",
        f"{code} shows itself again, or something worse does",
    )
    return Stay(Wait(because=because, until=incident.deadline, ends=(ends,), then="it is dismissed"))


def _agent_lost(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident = s.incident
    if (steady := _steady_at(s, node, policy)) is not None:
        often = f"the agent has fallen silent {MANY_SILENCES} times within {policy.pace.watch_for}"
        text = f"{node.id}: {often}; it is not restarted any more, and its job is left alone"
        told = remind(s, policy, "agent_lost", text, f"{often}: a person must find out why")
        ends = f"its agent does not fall silent for {policy.pace.watch_for}"
        return Stay(replace(told.wait, until=steady, ends=(ends,), then="")) if isinstance(told, Stay) else told
    if node.agent is AgentState.HEARD:
        return Move("dismiss", "the agent is heard again")
    if s.intent is not None and not s.intent.state.over:
        return Stay(Wait(because="restarting the agent; its job is left alone", until=s.intent.seen_by))
    if refused_lately(s, node):
        because = "the agent could not be restarted; its job is left alone"
        return Stay(Wait(because=because, until=s.retry_at, ends=HEARD_AGAIN, then="it is tried again"))
    made = sum(1 for t in incident.tries if t.rung is Remedy.RESTART_SERVICE)
    if made < policy.silence.agent_restarts and Capability.RESTART_SERVICE in s.can:
        act = Repair(node=node.id, rung=Remedy.RESTART_SERVICE)
        return Do(act, "the agent is silent, the node is ready", policy.silence.restart_deadline, INGEST)
    tried = f" and {made} restart{'s' if made > 1 else ''} did not bring it back" if made else ""
    text = f"{node.id}: the agent is silent{tried}; work there goes on unwatched"
    because = "the agent is silent: the node is not given new work"
    return remind(s, policy, "agent_lost", text, because, HEARD_AGAIN)


def _steady_at(s: IncidentInput, node: Node, policy: Policy) -> Deadline | None:
    """When an agent that comes and goes will have been steady for long enough. None: it does not, or has been."""
    if len(node.silences) < MANY_SILENCES:
        return None
    steady = Deadline(clock=INGEST, at=node.silences[-MANY_SILENCES] + policy.pace.watch_for.total_seconds())
    return None if s.passed(steady) else steady


def _partitioned(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    if node.ready:
        return Move("dismiss", "the cluster sees the node again")
    text = f"{node.id}: the agent reports, the cluster does not see the node; nothing is repaired"
    because = "a person must find out why the cluster does not see the node"
    return remind(s, policy, "partition", text, because, ("the cluster sees the node again",))


def _quarantined(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident, intent = s.incident, s.intent
    asked = _unwelcome(s)
    if incident.fault.code == OPERATOR_CORDON:  # what runs may stay; what has not begun does not begin there
        asked = tuple(job for job in asked if job in s.gating)
    if asked:
        return Change(why_off(incident), call=asked, before=planned(incident))
    if cordon_of(incident.id) in node.cordons:
        if incident.cordon_as_of is None:
            return Change("our cordon is seen", {"cordon_as_of": node.as_of})
        if incident.fault.code == OPERATOR_CORDON and not incident.to_verify and not incident.remedy.disrupts:
            return Move("hold", incident.fault.because)
        if s.scoped or s.bystanders or node.unmanaged:
            also: IncidentChanges = {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)}
            return Move("drain", "work runs there", also)
        return Move("empty", "nothing runs there")
    if intent is not None and not intent.state.over:
        return Stay(Wait(because="waiting to see our cordon", until=intent.seen_by))
    answer = intent.answer if intent else "no answer"
    # A machine that is on its way back, perhaps as another, is given the time that a replacement may take.
    grace = policy.pace.vacancy if away(node) else timedelta(0)
    late = incident.deadline is not None and s.passed(later(incident.deadline, grace))
    if late and asked_of(s, node):
        return Move("hold", f"the cluster did not take our cordon: {answer}")
    if refused_lately(s, node):
        return Stay(Wait(because=f"the cluster refused our cordon, it is asked again: {answer}", until=s.retry_at))
    return _cordon(s, node, policy)


def asked_of(s: IncidentInput, node: Node) -> bool:
    """Whether the last act was meant for whoever holds the seat now."""
    meant = s.intent.expect if s.intent is not None else None
    return meant is not None and meant.agrees(node.incarnation)


def refused_lately(s: IncidentInput, node: Node) -> bool:
    """A refusal is not answered by asking at once again, unless it was for an incarnation that has gone since."""
    refused = s.intent is not None and s.intent.state is IntentState.REJECTED and asked_of(s, node)
    return refused and s.retry_at is not None and not s.passed(s.retry_at)


def _draining(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident, intent = s.incident, s.intent
    rung, _, _ = choose(s, node, policy)
    must = (*s.scoped, *s.bystanders) if incident.to_verify else must_leave(s, node, rung)
    anew: IncidentChanges = {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)}
    if incident.deadline is None:  # what was withheld meanwhile ran no deadline
        return Change("its work is moved off", anew)
    if asked := _unwelcome(s):
        return Change(why_off(incident), call=asked, before=planned(incident))
    if not must and not node.unmanaged:
        return Move("empty", "nothing runs there any more")
    late = s.passed(incident.deadline)
    stays = incident.kind is IncidentKind.INTAKE and not incident.now
    leave = s.unpressed(must) if incident.now else s.uncalled(must)
    if leave and not stays and (late or incident.now or policy.pace.bystanders == "stop"):
        before = "" if incident.now else f"{node.id} is repaired"
        return Change("the node is to be repaired", anew, call=leave, before=before)
    sent = intent.act if intent is not None and isinstance(intent.act, Drain) else None
    forced = incident.now or (sent is not None and sent.how is DrainHow.FORCE)
    if late and not must and not forced and policy.pace.drain_then == "force" and Capability.DRAIN in s.can:
        because = f"{node.unmanaged} pieces of unmanaged work did not leave in {policy.pace.drain_deadline}"
        act = Drain(node=node.id, how=DrainHow.FORCE)
        return Do(act, because, policy.pace.drain_every, incident.cluster, also=anew)
    if late and s.asked.intersection(must):  # that has its own limit, which is put off while its stop is withheld
        return Change("what must leave may save before", anew)
    if late:
        left = listing(must) or f"{node.unmanaged} pieces of unmanaged work"
        return Move("hold", f"draining did not end in {policy.pace.drain_deadline}: {left} still there")
    if must:
        return Stay(Wait(because=f"waiting for {listing(must)} to leave", until=incident.deadline))
    return _drain(s, node, policy, DrainHow.FORCE if forced else policy.pace.drain)


def _drain(s: IncidentInput, node: Node, policy: Policy, how: DrainHow) -> IncidentDecision:
    """Work that we do not manage is asked to leave again and again: what keeps it there now may let it go later."""
    incident, intent = s.incident, s.intent
    waiting = Stay(Wait(because="waiting for unmanaged work to leave", until=incident.deadline))
    if Capability.DRAIN not in s.can:
        return waiting
    act = Drain(node=node.id, how=how)
    if intent is not None and intent.act == act:
        if not intent.state.over:
            return waiting
        if intent.state is IntentState.REJECTED and s.retry_at is not None and not s.passed(s.retry_at):
            return Stay(Wait(because=f"the cluster refused to drain it: {intent.answer}", until=s.retry_at))
    patience = policy.pace.drain_deadline if how is DrainHow.WAIT else policy.pace.drain_every
    return Do(act, f"{node.unmanaged} pieces of unmanaged work", patience, incident.cluster)


def _held(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident = s.incident
    cordoned = cordon_of(incident.id) in node.cordons
    if cordoned and incident.cordon_as_of is None:
        return Change("our cordon is seen", {"cordon_as_of": node.as_of})
    sick = incident.remedy.disrupts and not incident.fault.is_wish
    key = worse(incident)
    if sick and not stands(incident, node) and incident.kind is IncidentKind.OPERATOR and key not in incident.told:
        text = f"{node.id} is held for a person and now shows {incident.fault.code}: its repair waits, too"
        notice = Notify(event="held", subject=f"incident:{incident.id}", text=text)
        return Change("a person is told", tell=Tell(notice, key))
    why = incident.stages[-1].because if incident.stages else incident.fault.because
    text = f"{incident.node} is out of service for {incident.fault.code} and is held for a person: {why}"
    told = remind(s, policy, "held", text, f"a person must decide: {why}")
    if (
        isinstance(told, Stay) and sick and s.uncalled(s.scoped)
    ):  # shown since it is held: nothing trains on a sick node
        return Change(why_off(incident), call=s.uncalled(s.scoped))
    if isinstance(told, Stay) and not cordoned and s.intent is None:
        cordon = _cordon(s, node, policy)  # held before it was cordoned: asked for once more, then it is a human's
        return Do(cordon.act, cordon.because, cordon.patience, cordon.clock)
    return told
