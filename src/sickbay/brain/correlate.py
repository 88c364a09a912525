"""What a fault means beside its neighbours and under the operator's rules."""

from msgspec.structs import replace

from sickbay.brain.causes import CAUSES, GPU, Cause, fits
from sickbay.model.fault import Fault, Remedy, Severity, highest, lowest
from sickbay.model.fleet import Node, Sighting
from sickbay.model.incident import Incident, Order, Phase, enqueue
from sickbay.model.policy import FaultRule, Policy

KEEP_SIGHTINGS = 16
KEEP_EVIDENCE = 12


def rule_for(fault: Fault, node: Node, policy: Policy) -> FaultRule:
    for rule in policy.faults:
        if rule.match.fits(fault, pool=node.pool, node=node.id):
            return rule
    return FaultRule()


def bounded(remedy: Remedy, rule: FaultRule) -> Remedy:
    raised = highest(remedy, rule.floor) if rule.floor else remedy
    return lowest(raised, rule.cap) if rule.cap else raised


def judge(fault: Fault, node: Node, policy: Policy) -> Fault:
    """The fault as the operator's first matching rule wants it."""
    rule = rule_for(fault, node, policy)
    return replace(
        fault,
        remedy=bounded(fault.remedy, rule),
        scope=rule.scope or fault.scope,
        needs_human=fault.needs_human or rule.needs_human,
    )


def correlate(
    fault: Fault, node: Node, policy: Policy, reading: float, job: str = ""
) -> tuple[Fault, tuple[Sighting, ...]]:
    """Repeats on one device within the rule's time raise the remedy. Returns what to remember, too."""
    repeat = rule_for(fault, node, policy).repeat
    kept = (*node.recent, Sighting(code=fault.code, device=fault.device, at=reading, job=job))[-KEEP_SIGHTINGS:]
    if repeat is None:
        return fault, kept
    since = reading - repeat.within.total_seconds()
    same = [s for s in kept if (s.code, s.device) == (fault.code, fault.device) and s.at >= since]
    jobs = {s.job for s in same}
    if len(same) < repeat.times or len(jobs) < repeat.jobs or fault.remedy.rank >= repeat.floor.rank:
        return fault, kept
    under = f" under {len(jobs)} jobs" if repeat.jobs > 1 else ""
    because = f"{fault.because}; {len(same)} times within {repeat.within}{under}"
    return replace(fault, remedy=repeat.floor, because=because), kept


def absorb(incident: Incident, fault: Fault, node: Node, policy: Policy, reading: float) -> Incident:
    """An open incident after a further fault: evidence always, a raised remedy perhaps, a failed rung if it is back."""
    line = f"{fault.code}: {fault.evidence or fault.because}"
    evidence = incident.evidence if line in incident.evidence else (*incident.evidence, line)[-KEEP_EVIDENCE:]
    after = replace(incident, evidence=evidence, seen_at=reading)
    if incident.fault.code in fault.cancels and incident.phase in {Phase.SUSPECT, Phase.WATCHED}:
        return enqueue(after, Order(verb="cancel", by=fault.code, reason=f"{fault.code} takes it back"))
    if fault.follows:
        return after  # a consequence of what is being treated already
    if fault.advice is not None:
        return _advised(after, fault.advice, node, policy)
    if fault.remedy.disrupts and incident.phase in {Phase.REPAIRING, Phase.VERIFYING}:
        return _raised(replace(after, relapse=line), fault)
    if brings(incident.fault, fault):
        return after  # the burst that the root cause brings with it
    return _raised(after, fault)


def brings(cause: Fault, effect: Fault, *, late: bool = False) -> bool:
    """Whether the second is a consequence of the first. `late`: the cause was learned after its consequence."""
    return any(_fits(row, cause, effect) for row in CAUSES if not (late and row.before))


def _fits(row: Cause, cause: Fault, effect: Fault) -> bool:
    if row.same == GPU and None not in {cause.device, effect.device} and cause.device != effect.device:
        return False
    grave = cause.severity in {Severity.ERROR, Severity.FATAL}
    other = cause.code != effect.code
    return other and (grave or not row.grave) and fits(cause.code, row.codes) and fits(effect.code, row.brings)


def _raised(incident: Incident, fault: Fault) -> Incident:
    """The root cause leads, whenever it is learned; the remedy is the strongest that anything asks for."""
    roots = not incident.tries and fault.remedy.disrupts and brings(fault, incident.fault, late=True)
    after = incident
    if fault.remedy.rank > incident.remedy.rank:
        leads = fault if roots or not incident.remedy.disrupts else incident.fault
        after = replace(incident, remedy=fault.remedy, fault=leads)
    elif roots:
        after = replace(incident, fault=fault)
    return replace(after, needs_human=incident.needs_human or fault.needs_human)


def _advised(incident: Incident, advice: Remedy, node: Node, policy: Policy) -> Incident:
    """The driver's own word wins over the table, within the operator's bounds, until a repair has begun."""
    if incident.tries or advice is Remedy.NONE:
        return incident
    remedy = bounded(advice, rule_for(incident.fault, node, policy))
    because = f"the driver asks for {advice}"
    return replace(incident, remedy=remedy, fault=replace(incident.fault, remedy=remedy, because=because))
