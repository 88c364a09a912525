"""What an incident does next: one move, one act or one wait.

Each phase is one function below; `decide` is the table of contents. Whether an act is admitted is not asked here.
"""

from dataclasses import dataclass
from datetime import timedelta

from sickbay.brain.decision import Change, Decision, Do, Move, Stay, Tell
from sickbay.brain.drift import rung_shown
from sickbay.brain.ladder import ladder_for, next_rung, rung_rule, strike
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import AGENT_LOST, NODE_LOST, PARTITION, Remedy, Scope, highest
from sickbay.model.fleet import AgentState, Capability, JobId, Node, PastIncident
from sickbay.model.incident import Incident, IncidentKind, Order, Phase, Wait, proven
from sickbay.model.intent import Drain, Intent, IntentState, Notify, Quarantine, Release, Repair, Verify
from sickbay.model.policy import CouldNotRun, Policy, RungRule, Strikes, Trigger

CORDON_TRIES = 3
OPERATOR_CORDON = "operator.cordon"


@dataclass(frozen=True, slots=True)
class Sight:
    """All that an incident's decision may read."""

    incident: Incident
    node: Node | None
    intent: Intent | None  # the one under way, or the last one if it is over
    scoped: tuple[JobId, ...]  # managed attempts that hold what the fault names
    bystanders: tuple[JobId, ...]  # other managed attempts on the node
    called: frozenset[JobId]  # of those, attempts that this incident has asked to end
    training: frozenset[JobId]  # of those, attempts that run and that it has never asked
    past: tuple[PastIncident, ...]
    readings: dict[str, float]
    can: frozenset[Capability]
    blind: frozenset[str]

    @property
    def retry_at(self) -> Deadline | None:
        return self.intent.seen_by if self.intent is not None else None

    def passed(self, deadline: Deadline | None) -> bool:
        return deadline is not None and deadline.passed(self.readings)

    def uncalled(self, jobs: tuple[JobId, ...]) -> tuple[JobId, ...]:
        return tuple(job for job in jobs if job not in self.called)

    def within(self, clock: str, duration: timedelta) -> Deadline:
        return Deadline(clock=clock, at=self.readings.get(clock, 0.0) + duration.total_seconds())


def decide(s: Sight, policy: Policy) -> Decision:
    incident, node = s.incident, s.node
    if node is None:
        return Move("gone", "the node is not there any more")
    if incident.order is not None:
        return _obey(s, incident.order)
    if incident.closing is not None:
        return _close(s, node, policy)
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
            return _drained(s, node, policy)
        case Phase.REPAIRING:
            return _repairing(s, node)
        case Phase.VERIFYING:
            return _verifying(s, node, policy)
        case Phase.HELD:
            return _held(s, policy)
        case Phase.RELEASED | Phase.DISMISSED | Phase.REPLACED | Phase.GONE:
            return Stay(Wait(because="over"))


def owner_of(incident: Incident) -> str:
    return f"sickbay:{incident.id}"


def reset_domain(incident: Incident, node: Node) -> tuple[int, ...]:
    """The devices that a reset of the sick one touches; () means all."""
    device = incident.fault.device
    if node.linked or device is None or incident.fault.scope is not Scope.DEVICE:
        return ()
    return (device,)


# --- phases


def _suspect(s: Sight, node: Node, policy: Policy) -> Decision:
    incident = s.incident
    if incident.fault.code == NODE_LOST and not node.lost and incident.healed is None:
        return Move("dismiss", "the node is heard again")
    if not incident.remedy.disrupts and incident.kind is IncidentKind.FAULT:
        grace = 2 * policy.silence.agent if incident.fault.code == PARTITION else policy.pace.watch_for
        watch = None if incident.fault.code == AGENT_LOST else s.within(INGEST, grace)
        because = f"{incident.fault.code} asks for {incident.remedy}: the node stays in service"
        return Move("watch", because, {"deadline": watch})
    if incident.fault.code == NODE_LOST and s.uncalled(s.scoped):
        return Change("the node is lost, and with it what runs there", call=s.uncalled(s.scoped))
    return _cordon(s, node, policy, event="quarantine")


def _cordon(s: Sight, node: Node, policy: Policy, event: str = "") -> Do:
    incident = s.incident
    reason = f"sickbay {incident.id} {incident.fault.code}"
    act = Quarantine(node=node.id, owner=owner_of(incident), reason=reason)
    because = f"{incident.fault.code}: {incident.fault.because}"
    patience = policy.pace.cordon_deadline
    also = {"deadline": s.within(incident.cluster, CORDON_TRIES * patience)}
    if not event and incident.deadline is not None and _asked_of(s, node):
        also = {}
    return Do(act, because, patience, incident.cluster, event, also)


def _watched(s: Sight, node: Node, policy: Policy) -> Decision:
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
        return Move("dismiss", f"quiet for {policy.pace.watch_for}")
    return Stay(Wait(because=f"watching {incident.fault.code}: dismissed if it stays quiet", until=incident.deadline))


def _agent_lost(s: Sight, node: Node, policy: Policy) -> Decision:
    incident = s.incident
    if node.agent is AgentState.HEARD:
        return Move("dismiss", "the agent is heard again")
    if s.intent is not None and not s.intent.state.over:
        return Stay(Wait(because="restarting the agent; its job is left alone", until=s.intent.seen_by))
    if _refused_lately(s, node):
        return Stay(Wait(because="the agent could not be restarted; its job is left alone", until=s.retry_at))
    made = sum(1 for t in incident.tries if t.rung is Remedy.RESTART_SERVICE)
    if made < policy.silence.agent_restarts and Capability.RESTART_SERVICE in s.can:
        act = Repair(node=node.id, rung=Remedy.RESTART_SERVICE)
        return Do(act, "the agent is silent, the node is ready", policy.silence.restart_deadline, INGEST)
    text = f"{node.id}: the agent is silent and {made} restarts did not bring it back; work there goes on unwatched"
    return _remind(s, policy, "agent_lost", text, "the agent is silent: the node is not given new work")


def _partitioned(s: Sight, node: Node, policy: Policy) -> Decision:
    if node.ready:
        return Move("dismiss", "the cluster sees the node again")
    text = f"{node.id}: the agent reports, the cluster does not see the node; nothing is repaired"
    return _remind(s, policy, "partition", text, "a human must find out why the cluster does not see the node")


def _remind(s: Sight, policy: Policy, event: str, text: str, because: str) -> Decision:
    """Tell a human now and again at each reminder; in between, wait."""
    incident = s.incident
    if incident.deadline is None or s.passed(incident.deadline):
        also = {"deadline": s.within(INGEST, policy.pace.held_reminder)}
        notice = Notify(event=event, subject=f"incident:{incident.id}", text=text)
        return Change("a human is told", also, Tell(notice, f"{event}:{s.readings.get(INGEST, 0.0):.0f}"))
    return Stay(Wait(because=because, until=incident.deadline))


def _quarantined(s: Sight, node: Node, policy: Policy) -> Decision:
    incident, intent = s.incident, s.intent
    if incident.fault.code != OPERATOR_CORDON and s.uncalled(s.scoped):
        return Change(f"it runs on what {incident.fault.code} is about", call=s.uncalled(s.scoped))
    if owner_of(incident) in node.cordons:
        if incident.cordon_as_of is None:
            return Change("our cordon is seen", {"cordon_as_of": node.as_of})
        if incident.fault.code == OPERATOR_CORDON:
            return Move("hold", incident.fault.because)
        if s.scoped or s.bystanders or node.unmanaged:
            also = {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)}
            return Move("drain", "work runs there", also)
        return Move("empty", "nothing runs there")
    if intent is not None and not intent.state.over:
        return Stay(Wait(because="waiting to see our cordon", until=intent.seen_by))
    answer = intent.answer if intent else "no answer"
    # A machine that is on its way back, perhaps as another, is given the time that a replacement may take.
    grace = policy.pace.vacancy if _away(node) else timedelta(0)
    late = incident.deadline is not None and s.passed(_later(incident.deadline, grace))
    if late and _asked_of(s, node):
        return Move("hold", f"the cluster did not take our cordon: {answer}")
    if _refused_lately(s, node):
        return Stay(Wait(because=f"the cluster refused our cordon, it is asked again: {answer}", until=s.retry_at))
    return _cordon(s, node, policy)


def _later(deadline: Deadline, grace: timedelta) -> Deadline:
    return Deadline(clock=deadline.clock, at=deadline.at + grace.total_seconds())


def _away(node: Node) -> bool:
    return not node.ready or node.going_down is not None


def _asked_of(s: Sight, node: Node) -> bool:
    """Whether the last act was meant for whoever holds the seat now."""
    return s.intent is not None and s.intent.expect == node.incarnation


def _refused_lately(s: Sight, node: Node) -> bool:
    """A refusal is not answered by asking at once again, unless it was for an incarnation that has gone since."""
    refused = s.intent is not None and s.intent.state is IntentState.REJECTED and _asked_of(s, node)
    return refused and s.retry_at is not None and not s.passed(s.retry_at)


def _draining(s: Sight, node: Node, policy: Policy) -> Decision:
    incident, intent = s.incident, s.intent
    rung, _, _ = _choose(s, node, policy)
    must = _must_leave(s, node, rung)
    if incident.deadline is None:  # what was withheld meanwhile ran no deadline
        return Change("it drains", {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)})
    if s.uncalled(s.scoped):
        return Change(f"it runs on what {incident.fault.code} is about", call=s.uncalled(s.scoped))
    if not must and not node.unmanaged:
        return Move("empty", "nothing runs there any more")
    late = s.passed(incident.deadline)
    if s.uncalled(must) and (late or incident.now or policy.pace.bystanders == "stop"):
        also = {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)}
        return Change("the node is to be repaired", also, call=s.uncalled(must))
    if late:
        left = ", ".join(must) or f"{node.unmanaged} pieces of unmanaged work"
        return Move("hold", f"draining did not end in {policy.pace.drain_deadline}: {left} still there")
    if must:
        return Stay(Wait(because=f"waiting for {', '.join(must)} to leave", until=incident.deadline))
    act = Drain(node=node.id, how="force" if incident.now else policy.pace.drain)
    if (intent is None or intent.act != act) and Capability.DRAIN in s.can:
        return Do(act, f"{node.unmanaged} pieces of unmanaged work", policy.pace.drain_deadline, incident.cluster)
    return Stay(Wait(because="waiting for unmanaged work to leave", until=incident.deadline))


def _choose(s: Sight, node: Node, policy: Policy) -> tuple[RungRule | None, str, Remedy]:
    """The next rung, why it is that one, and the remedy that was wanted."""
    incident = s.incident
    ladder = ladder_for(incident, node, policy)
    earned = _earned(s, node, policy)
    first = earned.first if earned and earned.first else incident.remedy
    wanted = highest(incident.remedy, first)
    because = f"{incident.fault.code} asks for {incident.remedy}"
    if earned and earned.first:
        because += f"; {earned.after} incidents of this hardware within {earned.within} ask for {earned.first}"
    if not wanted.disrupts:
        return None, because, wanted
    rung, passed = next_rung(incident, ladder, wanted, s.can, s.blind)
    return rung, because + (f" ({'; '.join(passed)})" if passed else ""), wanted


def _earned(s: Sight, node: Node, policy: Policy) -> Strikes | None:
    if not s.incident.remedy.disrupts or s.incident.kind is not IncidentKind.FAULT:
        return None
    return strike(s.incident, ladder_for(s.incident, node, policy), s.past, s.readings.get(INGEST, 0.0))


def _must_leave(s: Sight, node: Node, rung: RungRule | None) -> tuple[JobId, ...]:
    """Whoever the repair would hurt. A reset of one untied device hurts only its holders."""
    one_device = rung is not None and rung.do is Remedy.RESET_GPU and reset_domain(s.incident, node)
    return s.scoped if one_device else (*s.scoped, *s.bystanders)


def _drained(s: Sight, node: Node, policy: Policy) -> Decision:
    incident = s.incident
    if incident.needs_human:
        return Move("hold", f"a human must decide: {incident.fault.because}", {"needs_human": False})
    earned = _earned(s, node, policy)
    if earned and earned.needs_human and all(stage.phase is not Phase.HELD for stage in incident.stages):
        return Move("hold", f"{earned.after} incidents of this hardware within {earned.within} call for a human")
    rung, because, wanted = _choose(s, node, policy)
    if not wanted.disrupts:
        return Move("verify", "nothing to repair")
    if incident.healed is not None and incident.healed.rank >= wanted.rank:
        return Move("verify", f"{incident.healed} was done by others")
    came_back = incident.fault.code == NODE_LOST and node.agent is AgentState.HEARD and node.ready
    if came_back and all(stage.phase is not Phase.VERIFYING for stage in incident.stages):
        return Move("verify", "the node is heard again by itself")
    if rung is None:
        return Move("hold", f"the ladder's end: {because}")
    if _must_leave(s, node, rung):
        also = {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)}
        return Move("drain", f"{rung.do} needs the node empty", also)
    act = Repair(node=node.id, rung=rung.do, devices=reset_domain(incident, node))
    clock = INGEST if rung.do is Remedy.RESET_GPU else incident.cluster
    return Do(act, because, rung.deadline, clock, "repair", {"proof": None, "healed": None, "relapse": ""})


def _repairing(s: Sight, node: Node) -> Decision:
    incident, intent, rung = s.incident, s.intent, s.incident.rung
    if intent is None or not isinstance(intent.act, Repair):
        return Move("fail", "its intent is gone")
    if intent.state is IntentState.SEEN:
        if node.incarnation is None:
            return Move("replaced", "the old instance is gone; its seat is vacant")
        return Move("repaired", f"{rung} is proven", {"incarnation": node.incarnation})
    if incident.healed is not None and rung is not None and incident.healed.rank >= rung.rank:
        return Move("repaired", f"{incident.healed} was done by others")
    if intent.state is IntentState.REJECTED:
        if rung_shown(intent, node, intent.act.rung):
            return Move("repaired", f"{rung} was refused, others have done it", {"incarnation": node.incarnation})
        stands_at = _refusal_stands(s, node, intent)
        if stands_at is not None:
            return Stay(Wait(because=f"{rung} was refused: {intent.answer}", until=stands_at))
        return Move("fail", f"{rung} was refused: {intent.answer}")
    if intent.state is IntentState.EXPIRED and not intent.sent_at:
        never = incident.tries[:-1]  # what was never carried out was not tried
        return Move("hold", f"{rung} could not be carried out: {intent.answer}", {"tries": never})
    if intent.state is IntentState.EXPIRED:
        return Move("fail", f"{rung} was not seen within its deadline")
    return Stay(Wait(because=f"waiting for proof of {rung}", until=intent.seen_by))


def _refusal_stands(s: Sight, node: Node, intent: Intent) -> Deadline | None:
    """When a refusal counts; None: now. It may be meant for a holder that has gone, which the cluster shows later."""
    if intent.not_before is not None and not s.passed(intent.not_before):
        return intent.not_before
    if _away(node) and not intent.gone and intent.seen_by is not None and not s.passed(intent.seen_by):
        return intent.seen_by
    return None


def _verifying(s: Sight, node: Node, policy: Policy) -> Decision:
    incident, intent = s.incident, s.intent
    rule, level = _proof_wanted(incident, node, policy)
    if incident.needs_human:
        return Move("hold", "a human wants to decide", {"needs_human": False})
    if incident.relapse:
        return Move("fail", f"it is back: {incident.relapse}", {"relapse": "", "proof": None})
    if proven(incident) and incident.incarnation == node.incarnation:
        return Change("proven well", {"closing": Phase.RELEASED})
    if not {Capability.CHECK, Capability.CHECK_CORDONED} <= s.can:
        return Move("hold", "nothing here can check a cordoned node")
    current = intent is not None and isinstance(intent.act, Verify) and intent.expect == node.incarnation
    if intent is None or not current:
        act = Verify(nodes=(node.id,), level=level, profile=incident.fault.component)
        return Do(act, "proof before return", rule.verify_deadline, INGEST, also={"incarnation": node.incarnation})
    if not intent.state.over:
        return Stay(Wait(because=f"check level {level} is running", until=intent.seen_by))
    verdict = intent.verdicts.get(node.id, "could_not_run") if intent.state is IntentState.SEEN else "could_not_run"
    told = "failed" if verdict == "fail" else f"could not run ({intent.answer or intent.state})"
    counts_as_failed = verdict == "fail" or rule.on_could_not_run is CouldNotRun.FAIL
    if counts_as_failed and incident.remedy.disrupts:
        return Move("fail", f"check level {level} {told}", {"proof": None})
    return Move("hold", f"check level {level} {told}")


def _proof_wanted(incident: Incident, node: Node, policy: Policy) -> tuple[RungRule, int]:
    rule = rung_rule(ladder_for(incident, node, policy), incident.rung or incident.healed)
    if incident.kind is IncidentKind.INTAKE and not incident.tries:
        for examine in policy.examine:
            if examine.on is Trigger.JOIN:
                return rule, examine.level
    return rule, rule.verify


def _held(s: Sight, policy: Policy) -> Decision:
    why = s.incident.stages[-1].because if s.incident.stages else s.incident.fault.because
    text = f"{s.incident.node}: {s.incident.fault.code} is held: {why}"
    return _remind(s, policy, "held", text, f"an operator must act: {why}")


# --- orders and ends


def _obey(s: Sight, order: Order) -> Decision:
    incident = s.incident
    because = f"{order.verb} by {order.by}: {order.reason}"
    done: dict[str, object] = {"order": None}
    match order.verb:
        case "dismiss" | "uncordon":
            return Change(because, {**done, "closing": Phase.DISMISSED})
        case "cancel":  # the driver took its own word back, while the node was still in service
            return Move("dismiss", order.reason, done)
        case "uncordoned":  # another removed our cordon on the cluster: there is nothing left to release
            return Move("dismiss", because, done)
        case "hold" if incident.closing is not None:  # our cordon is on its way off: a new one must be asked for
            return Change(f"{because}: too late, it is being closed", done)
        case "hold" if incident.phase.out and incident.phase is not Phase.HELD:
            return Move("hold", because, done)
        case "hold":
            return Change(because, {**done, "needs_human": True})
        case "confirm" if incident.phase is Phase.HELD:
            return Move("verify", because, {**done, "proof": None})
        case "escalate" if incident.phase is Phase.HELD:
            return Move("escalate", because, {**done, "remedy": _one_above(incident)})
        case _:
            return Change(f"{because}: not possible in {incident.phase}", done)


def _one_above(incident: Incident) -> Remedy:
    tried = max((t.rung.rank for t in incident.tries), default=0)
    higher = [r for r in Remedy if r.disrupts and r.rank > tried]
    return highest(incident.remedy, min(higher, key=lambda r: r.rank, default=Remedy.REPLACE))


def _close(s: Sight, node: Node, policy: Policy) -> Decision:
    """Take our cordon back, and end when it is seen gone."""
    incident, intent = s.incident, s.intent
    event = "release" if incident.closing is Phase.RELEASED else "dismiss"
    because = "proven well" if event == "release" else "by an operator"
    if not incident.phase.out:
        return Move(event, because)
    releasing = intent is not None and isinstance(intent.act, Release)
    if intent is not None and releasing and intent.state is IntentState.SEEN:
        return Move(event, because)
    if intent is not None and not intent.state.over:
        if releasing or intent.state is IntentState.SENT or isinstance(intent.act, Quarantine):
            return Stay(Wait(because="waiting to see our cordon gone", until=intent.seen_by))
    elif releasing and incident.deadline is None:
        text = f"{node.id}: the cluster does not take our release: {intent.answer if intent else ''}"
        return _remind(s, policy, "release_failed", text, "trying again to take our cordon back")
    elif releasing and not s.passed(incident.deadline):
        return Stay(Wait(because="trying again later to take our cordon back", until=incident.deadline))
    act = Release(node=node.id, owner=owner_of(incident))
    return Do(act, because, policy.pace.cordon_deadline, incident.cluster, also={"deadline": None})
