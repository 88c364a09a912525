"""What a fault means beside its neighbours and under the operator's rules."""

from msgspec.structs import replace

from sickbay.brain.causes import CAUSES, GPU, CausalRule, fits
from sickbay.model.fault import Fault, Remedy, Scope, Severity, highest, lowest
from sickbay.model.fleet import SIGHTINGS, Node, Sighting
from sickbay.model.incident import Incident, OperatorRequest, Phase, Verb, enqueue
from sickbay.model.policy import FaultRule, Policy, Repeat

KEEP_SIGHTINGS = SIGHTINGS  # of one code on one device; of more, neighbours in time are counted together
KEEP_KINDS = 32  # codes and devices that a node remembers
KEEP_EVIDENCE = 12
KEEP_DEVICES = 64
BURST = 30.0  # seconds after a cause in which what can only come after it is its consequence, excused with it
KEEP_OTHERS = 8  # faults beside the leading one


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
    fault: Fault, node: Node, policy: Policy, reading: float, job: str = "", count: int = 1
) -> tuple[Fault, tuple[Sighting, ...]]:
    """Repeats on one device within the rule's time raise the remedy. Returns what to remember, too."""
    repeat = rule_for(fault, node, policy).repeat
    sighting = Sighting(code=fault.code, device=fault.device, at=reading, job=job, count=max(1, count))
    kept, same = _remembered(node.recent, sighting, repeat)
    if repeat is None:
        return fault, kept
    jobs = {s.job for s in same}
    times = sum(s.count for s in same)
    if times < repeat.times or len(jobs) < repeat.jobs or fault.remedy.rank >= repeat.floor.rank:
        return fault, kept
    under = f" under {len(jobs)} jobs" if repeat.jobs > 1 else ""
    because = f"{fault.because}; {times} times within {repeat.within}{under}"
    return replace(fault, remedy=repeat.floor, because=because), kept


def _remembered(
    recent: tuple[Sighting, ...], new: Sighting, repeat: Repeat | None
) -> tuple[tuple[Sighting, ...], list[Sighting]]:
    """Sightings with one more, and those of its own kind. Kinds are bounded apart, so that none pushes another out."""
    others = [s for s in recent if s.kind != new.kind]
    same = [new]
    if repeat is not None:  # without a rule it is enough to know the last one
        since = new.at - repeat.within.total_seconds()
        same = [*(s for s in recent if s.kind == new.kind and s.at >= since), new]
    while len(same) > KEEP_SIGHTINGS:
        same = _coarser(same)
    kinds = list(dict.fromkeys(s.kind for s in others))  # those that were seen longest ago come first
    forgotten = set(kinds[: max(0, len(kinds) + 1 - KEEP_KINDS)])
    return (*(s for s in others if s.kind not in forgotten), *same), same


def _coarser(same: list[Sighting]) -> list[Sighting]:
    """Two neighbours under one job counted together, those for which the fewest move the least in time."""
    pairs = [n for n in range(len(same) - 1) if same[n].job == same[n + 1].job] or [0]
    n = min(pairs, key=lambda n: same[n].count * (same[n + 1].at - same[n].at))
    together = replace(same[n + 1], count=same[n].count + same[n + 1].count)
    return [*same[:n], together, *same[n + 2 :]]


def absorb(incident: Incident, fault: Fault, node: Node, policy: Policy, reading: float) -> Incident:
    """An open incident after a further fault: evidence always, a raised remedy perhaps, a failed rung if it is back."""
    line = f"{fault.code}: {fault.evidence or fault.because}"
    evidence = incident.evidence if line in incident.evidence else (*incident.evidence, line)[-KEEP_EVIDENCE:]
    itself = (fault.code, fault.device) == (incident.fault.code, incident.fault.device)
    after = replace(incident, evidence=evidence, seen_at=reading, shown_at=reading if itself else incident.shown_at)
    if incident.fault.code in fault.cancels and incident.phase in {Phase.SUSPECT, Phase.WATCHED}:
        return enqueue(after, OperatorRequest(verb=Verb.CANCEL, by=fault.code, reason=f"{fault.code} takes it back"))
    if fault.follows:
        return after  # a consequence of what is being treated already
    if fault.advice is not None:
        return _advised(after, fault, fault.advice, node, policy)
    if fault.remedy.disrupts and incident.phase in {Phase.REPAIRING, Phase.VERIFYING}:
        return _raised(replace(after, relapse=line), fault)
    if brings(incident.fault, fault):
        # The burst that the root cause brings with it. What was to say nothing more and speaks again later is not gone.
        belated = reading - incident.shown_at > BURST and not brings(incident.fault, fault, late=True)
        return replace(after, others=_others(after, fault)) if belated else after
    return _raised(after, fault)


def brings(cause: Fault, effect: Fault, *, late: bool = False) -> bool:
    """Whether the second is a consequence of the first. `late`: the cause was learned after its consequence."""
    return any(_fits(row, cause, effect) for row in CAUSES if not (late and row.before))


def _fits(row: CausalRule, cause: Fault, effect: Fault) -> bool:
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
    if after.fault is fault:
        after = replace(after, shown_at=incident.seen_at)
    other = incident.fault if after.fault is fault else fault
    if fault.device != incident.fault.device:
        after = replace(after, least=highest(incident.least, other.remedy))
    if (fault.device, fault.scope) != (incident.fault.device, incident.fault.scope):
        after = _also_of(after, other)
    after = replace(after, others=_others(after, other))
    return replace(after, needs_human=incident.needs_human or fault.needs_human)


def _others(incident: Incident, other: Fault) -> tuple[Fault, ...]:
    """Those beside the leading fault that ask for a repair, the newest word of each. A person's wish is no fault."""
    kept = tuple(each for each in incident.others if each.code not in {other.code, incident.fault.code})
    wish = other.is_wish
    if wish or not other.remedy.disrupts or other.code == incident.fault.code:
        return kept
    return (*kept, other)[-KEEP_OTHERS:]


def lead(incident: Incident, fault: Fault, reading: float) -> Incident:
    """The incident led by a fault that joined it, because what led is excused and this one is not.

    A person's wish is kept as the least that is done; what is excluded is left alone.
    """
    others = _others(replace(incident, fault=fault), incident.fault)
    remedy = highest(fault.remedy, incident.least)
    return replace(incident, fault=fault, others=others, remedy=remedy, doubt=None, shown_at=reading)


def _also_of(incident: Incident, other: Fault) -> Incident:
    """What a fault beside the leading one is about: its holders are interrupted, it is repaired with the rest."""
    if not other.remedy.disrupts:
        return incident
    if other.device is None or other.scope is not Scope.DEVICE:
        return replace(incident, wide=True)
    return replace(incident, beside=tuple(dict.fromkeys((*incident.beside, other.device)))[:KEEP_DEVICES])


def _advised(incident: Incident, word: Fault, advice: Remedy, node: Node, policy: Policy) -> Incident:
    """The driver's own word on its device wins over the table, within the operator's bounds, until a repair has begun.

    It lowers nothing but what was asked for that device: neither a person's order nor what another device needs.
    """
    if incident.tries or advice is Remedy.NONE:
        return incident
    if word.device != incident.fault.device:
        return _raised(incident, judge(replace(word, remedy=advice), node, policy))
    remedy = bounded(advice, rule_for(incident.fault, node, policy))
    led = replace(incident.fault, remedy=remedy, because=f"the driver asks for {advice}")
    return replace(incident, remedy=highest(remedy, incident.least), fault=led)
