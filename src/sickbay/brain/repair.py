"""An incident from DRAINED to its proof: which rung, whether it was done, whether it helped."""

from msgspec.structs import replace

from sickbay.brain.decision import Change, Do, IncidentChanges, IncidentDecision, Move, Stay
from sickbay.brain.drift import rung_shown
from sickbay.brain.incident_input import IncidentInput, away, on_its_way, reset_domain
from sickbay.brain.ladder import ladder_for, next_rung, rung_rule, strike
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import NODE_LOST, Remedy, highest
from sickbay.model.fleet import AgentState, Capability, JobId, Node
from sickbay.model.incident import Incident, IncidentKind, Phase, Wait, proven
from sickbay.model.intent import Intent, IntentState, Repair, Verify
from sickbay.model.policy import OnCouldNotRun, Policy, RungRule, Strikes, Trigger

CUT_SHORT = 3  # boots under as many checks: by chance one, perhaps two


def drained(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident = s.incident
    if incident.needs_human:
        return Move("hold", _left_to_a_person(incident), {"needs_human": False})
    earned = _earned(s, node, policy)
    if earned and earned.needs_human and all(stage.phase is not Phase.HELD for stage in incident.stages):
        return Move(
            "hold",
            f"{earned.after} incidents of this hardware within {earned.within}: a person decides on the next repair",
        )
    waits = on_its_way(s)
    if waits is not None:
        return waits
    rung, because, wanted = choose(s, node, policy)
    if incident.to_verify:
        return _check(s, node, policy, "its proof is next")
    if not wanted.disrupts:
        return _check(s, node, policy, "nothing to repair")
    if incident.healed is not None and incident.healed.rank >= wanted.rank:
        return _check(s, node, policy, f"{incident.healed} was done by others")
    came_back = incident.fault.code == NODE_LOST and node.agent is AgentState.HEARD and node.ready
    if came_back and not incident.ordered and all(stage.phase is not Phase.VERIFYING for stage in incident.stages):
        return _check(s, node, policy, "the node is heard again by itself")
    if rung is None:
        return Move("hold", f"no repair is left to try: {because}{_last(incident)}; the rest is to be done by hand")
    if must_leave(s, node, rung) or node.unmanaged:
        also: IncidentChanges = {"deadline": s.within(incident.cluster, policy.pace.drain_deadline)}
        return Move("drain", f"{rung.do} needs the node empty", also)
    act = Repair(node=node.id, rung=rung.do, devices=reset_domain(incident, node))
    clock = INGEST if rung.do is Remedy.RESET_GPU else incident.cluster
    fresh: IncidentChanges = {"proof": None, "healed": None, "relapse": "", "to_verify": False, "cut_short": 0}
    told = because if rung.do is incident.remedy else f"{rung.do} now: {because}"
    return Do(act, told, rung.deadline, clock, "repair", fresh)


def _last(incident: Incident) -> str:
    """Why the last repair was not done, or did not help: mostly that is what a person is to change."""
    result = incident.tries[-1].result if incident.tries else ""
    return f"; {result}" if result.startswith("failed") else ""


def _left_to_a_person(incident: Incident) -> str:
    if incident.fault.is_wish:
        return f"a person wants it out of service ({incident.fault.because})"
    whose = "a person has cordoned it and decides on" if incident.kept else "the policy leaves to a person"
    return f"{whose} the repair of {incident.fault.code}: {incident.fault.because}"


def _check(s: IncidentInput, node: Node, policy: Policy, because: str) -> Move[IncidentChanges]:
    """On to the proof; a check disturbs whatever runs there, so the node is emptied first."""
    if occupied(s, node):
        until = s.within(s.incident.cluster, policy.pace.drain_deadline)
        return Move("drain", "a check needs the node empty", {"deadline": until, "to_verify": True})
    return Move("verify", because, {"to_verify": False})


def occupied(s: IncidentInput, node: Node) -> bool:
    """Whether work is there, managed or not."""
    return bool(s.scoped or s.bystanders or node.unmanaged)


def choose(s: IncidentInput, node: Node, policy: Policy) -> tuple[RungRule | None, str, Remedy]:
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


def _earned(s: IncidentInput, node: Node, policy: Policy) -> Strikes | None:
    if not s.incident.remedy.disrupts or s.incident.kind is not IncidentKind.FAULT:
        return None
    return strike(s.incident, ladder_for(s.incident, node, policy), s.past, s.readings.get(INGEST, 0.0))


def must_leave(s: IncidentInput, node: Node, rung: RungRule | None) -> tuple[JobId, ...]:
    """Whoever the repair would hurt. A reset of one untied device hurts only its holders."""
    one_device = rung is not None and rung.do is Remedy.RESET_GPU and reset_domain(s.incident, node)
    return s.scoped if one_device else (*s.scoped, *s.bystanders)


def repairing(s: IncidentInput, node: Node) -> IncidentDecision:
    incident, intent, rung = s.incident, s.intent, s.incident.rung
    if intent is None or not isinstance(intent.act, Repair):
        return Move("fail", "the record of the repair under way is gone")
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
    if intent.state is IntentState.EXPIRED and intent.withheld:
        because = f"{rung} was withheld while an earlier sending was in doubt, and has not happened: {intent.answer}"
        return Move("defer", because, {"tries": incident.tries[:-1]})
    if intent.state is IntentState.EXPIRED:
        return Move("fail", f"{rung} was not seen within its deadline")
    return Stay(Wait(because=f"waiting for proof of {rung}", until=intent.seen_by))


def _refusal_stands(s: IncidentInput, node: Node, intent: Intent) -> Deadline | None:
    """When a refusal counts; None: now. It may be meant for a holder that has gone, which the cluster shows later."""
    if intent.not_before is not None and not s.passed(intent.not_before):
        return intent.not_before
    if away(node) and not intent.gone and intent.seen_by is not None and not s.passed(intent.seen_by):
        return intent.seen_by
    return None


def stands(incident: Incident, node: Node) -> bool:
    """Whether its proof is that of whoever holds the seat now."""
    return incident.proof is not None and proven(incident) and incident.proof.incarnation.agrees(node.incarnation)


def verifying(s: IncidentInput, node: Node, policy: Policy) -> IncidentDecision:
    incident, intent = s.incident, s.intent
    rule = _proof_wanted(incident, node, policy)
    level = rule.verify
    if incident.needs_human:
        return Move("hold", "a person asked to decide before it returns", {"needs_human": False})
    if incident.relapse:
        return Move("fail", f"it is back: {incident.relapse}", {"relapse": "", "proof": None})
    if stands(incident, node) and incident.cordoned:
        return Move("hold", f"proven well; a person has cordoned it, and takes that back: sickbay uncordon {node.id}")
    if stands(incident, node):
        return Change("proven well", {"closing": Phase.RELEASED})
    if not {Capability.CHECK, Capability.CHECK_CORDONED} <= s.can:
        return Move("hold", "no check can run on a cordoned node here, so nothing proves that it is well")
    by_agent = Capability.CHECK_BY_AGENT in s.can and node.agent is AgentState.NONE
    if by_agent and not node.agent_known and incident.kind is not IncidentKind.INTAKE:
        return Move("hold", "no agent has been heard on this node, and only an agent can check it")
    meant = intent.expect if intent is not None and isinstance(intent.act, Verify) else None
    if intent is None or meant is None or not meant.agrees(node.incarnation):
        waits = on_its_way(s)
        if waits is not None:
            return waits
        if _disturbs(s, node):
            return _check(s, node, policy, "")
        cut_short = incident.cut_short + (meant is not None)
        if cut_short >= CUT_SHORT:
            why = f"check level {level} could not run: {cut_short} times the machine booted anew under it"
            fails = incident.remedy.disrupts and rule.on_could_not_run is OnCouldNotRun.FAIL
            return Move("fail" if fails else "hold", why, {"proof": None, "cut_short": 0})
        act = Verify(nodes=(node.id,), level=level, profile=rule.profile or incident.fault.component)
        also: IncidentChanges = {"incarnation": node.incarnation, "cut_short": cut_short}
        return Do(act, "proof before return", rule.verify_deadline, INGEST, also=also)
    if not intent.state.over:
        return Stay(Wait(because=f"check level {level} is running", until=intent.seen_by))
    if intent.state is IntentState.EXPIRED and intent.withheld and node.id not in intent.verdicts:
        return Change(f"check level {level} was withheld and has not run: {intent.answer}", {"intent": ""})
    verdict = (
        intent.verdicts.get(node.id, Verdict.COULD_NOT_RUN)
        if intent.state is IntentState.SEEN
        else Verdict.COULD_NOT_RUN
    )
    told = "failed" if verdict is Verdict.FAIL else f"could not run ({intent.answer or intent.state})"
    counts_as_failed = verdict is Verdict.FAIL or rule.on_could_not_run is OnCouldNotRun.FAIL
    if counts_as_failed and incident.remedy.disrupts:
        return Move("fail", f"check level {level} {told}", {"proof": None})
    return Move("hold", f"check level {level} {told}")


def _disturbs(s: IncidentInput, node: Node) -> bool:
    """Whether a check now would meet work. Whoever a reset of one device has left alone is left alone by its check."""
    one_device = s.incident.rung is Remedy.RESET_GPU and bool(reset_domain(s.incident, node))
    return bool(s.scoped or node.unmanaged) if one_device else occupied(s, node)


def _proof_wanted(incident: Incident, node: Node, policy: Policy) -> RungRule:
    rule = rung_rule(ladder_for(incident, node, policy), incident.rung or incident.healed)
    if incident.kind is IncidentKind.INTAKE and not incident.tries:
        for examine in policy.examine:
            if examine.on is Trigger.JOIN:
                return replace(rule, verify=examine.level, profile=examine.profile, verify_deadline=examine.deadline)
    return rule
