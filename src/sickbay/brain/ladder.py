"""Which rung is tried next, and how it is proven."""

from datetime import timedelta

from msgspec.structs import replace

from sickbay.model.fault import RUNGS, Remedy
from sickbay.model.fleet import Capability, Node, PastIncident
from sickbay.model.incident import Incident, IncidentKind
from sickbay.model.policy import Ladder, Policy, RungRule, Strikes


def looks_back(policy: Policy) -> timedelta:
    """How far: no rule asks for anything older."""
    return max((strikes.within for ladder in policy.ladders for strikes in ladder.strikes), default=timedelta())


def ladder_for(incident: Incident, node: Node, policy: Policy) -> Ladder:
    found = (ladder for ladder in policy.ladders if ladder.match.fits(incident.fault, pool=node.pool, node=node.id))
    ladder = next(found, Ladder())
    wish = incident.kind is IncidentKind.OPERATOR and incident.remedy.disrupts
    if not wish or any(rung.do is incident.remedy for rung in ladder.rungs):
        return ladder
    # What a person asks for by name is a rung, whether or not the policy would have thought of it.
    rungs = sorted((*ladder.rungs, RungRule(do=incident.remedy)), key=lambda rung: rung.do.rank)
    return replace(ladder, rungs=tuple(rungs))


def strike(incident: Incident, ladder: Ladder, past: tuple[PastIncident, ...], reading: float) -> Strikes | None:
    """The heaviest rule that this hardware's earlier incidents have earned. Only what was proven is a strike."""
    earned = [rule for rule in ladder.strikes if _counts(rule, incident, past, reading) >= rule.after]
    return max(earned, key=lambda rule: (rule.needs_human, rule.first.rank if rule.first else 0), default=None)


def _counts(rule: Strikes, incident: Incident, past: tuple[PastIncident, ...], reading: float) -> int:
    since = reading - rule.within.total_seconds()
    count = 0
    for old in past:
        if rule.reset_by_release and old.ended == "RELEASED":
            count = 0
            continue
        proven = old.rung != "" and old.ended != "DISMISSED"
        if proven and old.at >= since and (not rule.same_fault or old.code == incident.fault.code):
            count += 1
    return count


def next_rung(
    incident: Incident, ladder: Ladder, wanted: Remedy, can: frozenset[Capability], blind: frozenset[str]
) -> tuple[RungRule | None, tuple[str, ...]]:
    """The rung to try now, and why others were passed over. None: the ladder's end."""
    last = incident.rung
    floor = max(wanted.rank, last.rank if last else 0)
    passed: list[str] = []
    for rung in ladder.rungs:
        if rung.do.rank < floor:
            continue
        made = sum(1 for t in incident.tries[incident.spent :] if t.rung is rung.do)
        allowed = 1 if rung.do in blind else rung.tries
        if made >= allowed:
            passed.append(f"{rung.do} was tried {made} time{'s' if made > 1 else ''}")
            continue
        needs = RUNGS[rung.do].needs
        if needs is not None and needs not in can:
            passed.append(f"the cluster cannot do {rung.do}")
            continue
        return rung, tuple(passed)
    return None, tuple(passed)


def rung_rule(ladder: Ladder, remedy: Remedy | None) -> RungRule:
    """The rule of a rung, for how to verify it; the ladder's first where others did a rung that it does not have."""
    for rung in ladder.rungs:
        if rung.do is remedy:
            return rung
    return ladder.rungs[0] if ladder.rungs else RungRule(do=Remedy.REBOOT)
