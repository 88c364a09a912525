"""The fleet's safety has the last word. What withholds an act lives here and nowhere else.

Asked for Quarantine, Drain, Repair and an incident's call that a job stop, when it is decided and again when it is
sent; never for Verify, Release or StartJob. A check that nobody asked for begins only where `spares_one`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from itertools import islice

from msgspec.structs import replace

from sickbay.brain.correlate import rule_for
from sickbay.model.cordon import cordon_of
from sickbay.model.fault import SILENCE, signature
from sickbay.model.fleet import Brake, Ledger, Node, WithheldActs, Withhold, Withholding, pool_fits
from sickbay.model.incident import Incident, IncidentKind, Phase, Room
from sickbay.model.policy import BrakeRule, BrakeScope, Limit, Mode, Policy, Window

WINDOW = "window"  # a row that stands for a closed one
ENDS_NAMED, ENDS_WORDS = 8, 200  # rows that withhold, and characters of each one's reason, that a wait names


class AdmissionStage(StrEnum):
    QUARANTINE = "quarantine"
    CALL = "stop of a job"
    DRAIN = "drain"
    REPAIR = "repair"
    RESTART_SERVICE = "restart of the agent"


@dataclass(frozen=True, slots=True)
class AdmissionInput:
    """All that an admission may read."""

    ledger: Ledger
    brakes: tuple[tuple[BrakeRule, Brake], ...]  # those of the incident's signature and node
    withholding: Withholding
    now: datetime
    reading: float = 0.0  # of ingest


@dataclass(frozen=True, slots=True)
class Confirm:
    """A check must confirm or clear it first, at this pace."""

    scope: str
    signature: str
    every: timedelta
    since: float  # reading of ingest: what is newer needs no check


@dataclass(frozen=True, slots=True)
class Deferred:
    because: str
    until: datetime | None = None
    tell: str = ""  # who must be told, once: the event's name
    withheld: bool = False  # shown as "would have"
    confirm: Confirm | None = None
    doubts: bool = False  # when this ends, a suspect must be confirmed or cleared: it is never replayed
    excused: bool = False  # excluded: the seat may be claimed all the same
    room: Room | None = None  # of the pool's limit: whoever is deferred for want of it stands in a queue
    ends: tuple[str, ...] = ()  # what would end it, for people
    then: str = ""  # what happens when it ends by itself, for people
    off_at: float | None = None  # reading of ingest at which a brake goes off, if it sees nothing more


def admit(
    asked: AdmissionStage, incident: Incident, node: Node, fleet: AdmissionInput, policy: Policy
) -> Deferred | None:
    """None: admitted."""
    rows = [row for row in _rows(incident, node, fleet, policy) if _speaks_of(row.acts, asked)]
    if rows:
        # One exclusion frees the seat, whatever else withholds. When the first of them ends it is judged afresh.
        until = min((row.until for row in rows if row.until is not None), default=None)
        tell = "withheld" if rows[0].tell else ""
        excused = any(row.excuse for row in rows)
        ends = _taken_back(row for row in rows if row in fleet.withholding.rows)
        then = "the window opens, and it goes on" if rows[0].id == WINDOW else ""
        return Deferred(rows[0].because, until, tell, withheld=True, excused=excused, doubts=True, ends=ends, then=then)
    if incident.kind is IncidentKind.FAULT and not incident.ordered and asked is not AdmissionStage.RESTART_SERVICE:
        for rule, brake in fleet.brakes:
            if brake.tripped_at is not None:
                because = f"the brake is on: many nodes of {brake.scope} show {brake.signature}"
                then = "the brake goes off by itself, and a check confirms or clears it"
                off_at, ends = goes_off_at(brake, rule, fleet.reading), _goes_off(brake)
                return Deferred(because, doubts=True, ends=ends, then=then, off_at=off_at)
        needed = confirmation(incident, node, fleet, policy) if asked is AdmissionStage.QUARANTINE else None
        if needed is not None:
            return Deferred("it was held back before: a check must first confirm or clear it", confirm=needed)
    limit = limit_for(node.pool, policy)
    ledger = fleet.ledger
    if asked is AdmissionStage.QUARANTINE and _serves(incident, node):
        most = limit.out(limit.size or ledger.size)
        again = node.out and incident.phase.out  # asked again: the seat is in `ledger.out` already, for this incident
        out, ours = ledger.out - again, ledger.ours - again
        if out >= most and ours >= limit.out_at_least:
            tell = "budget" if ledger.held > node.held else ""  # another seat is held, not this one
            room = None if again else Room.SEAT  # counted already, it waits for others to come back
            because = f"pool {node.pool} may lack {most} of its seats and lacks {out} already"
            ends = (f"a seat of pool {node.pool} comes back into service",)
            return Deferred(because, tell=tell, room=room, ends=ends)
    if asked is AdmissionStage.REPAIR:
        most = limit.repairing(limit.size or ledger.size)
        repairing = ledger.repairing - incident.repairs  # of the others: asked again when it is sent
        if repairing >= most:
            because = f"pool {node.pool} may repair {most} of its seats at once and repairs {repairing} already"
            return Deferred(because, room=Room.REPAIR, ends=(f"a repair in pool {node.pool} ends",))
    return None


def _speaks_of(acts: WithheldActs, asked: AdmissionStage) -> bool:
    match acts:
        case WithheldActs.ALL:
            return True
        case WithheldActs.WORK:
            return asked in {AdmissionStage.CALL, AdmissionStage.DRAIN, AdmissionStage.REPAIR}
        case WithheldActs.REPAIR:
            return asked is AdmissionStage.REPAIR


def _taken_back(rows: Iterable[Withhold]) -> tuple[str, ...]:
    """What ends a pause or an exclusion; without one it is the policy that withholds."""
    some = list(islice(rows, ENDS_NAMED))
    ends = [f"an operator takes back {row.id} ({row.because[:ENDS_WORDS]})" for row in some]
    ends += [f"{row.id} ends at {row.until:%Y-%m-%d %H:%M:%SZ}" for row in some if row.until is not None]
    return tuple(ends) or ("the policy is changed, or its window opens",)


def goes_off_at(brake: Brake, rule: BrakeRule, reading: float) -> float | None:
    """The reading of ingest at which it goes off by itself, if nobody else shows it. None: it is not on."""
    if brake.tripped_at is None:
        return None
    newest, few = sorted(brake.seen.values(), reverse=True), few_enough(brake)
    low = newest[few] + rule.within.total_seconds() if len(newest) > few else reading
    since = brake.below_since if brake.below_since is not None else max(low, reading)
    return since + rule.quiet.total_seconds()


def few_enough(brake: Brake) -> int:
    """So many nodes may still show it when it goes off: fewer than half of those that tripped it."""
    return max(0, (brake.most - 1) // 2)


def _goes_off(brake: Brake) -> tuple[str, ...]:
    return (
        f"an operator resets the brake on {brake.signature} in {brake.scope}",
        "fewer nodes show it for long enough: the brake then goes off by itself",
    )


def room_for(room: Room, ledger: Ledger, limit: Limit) -> int:
    """How many more a pool's limit admits."""
    size = limit.size or ledger.size
    if room is Room.REPAIR:
        return limit.repairing(size) - ledger.repairing
    return max(limit.out(size) - ledger.out, limit.out_at_least - ledger.ours)


def spares_one(ledger: Ledger, limit: Limit, *, checking: int, wanted: bool) -> bool:
    """Whether a pool can do without one more node, for a check that nobody asked for. `wanted`: by a job that waits."""
    return not wanted and ledger.out + checking < limit.out(limit.size or ledger.size)


def confirmation(incident: Incident, node: Node, fleet: AdmissionInput, policy: Policy) -> Confirm | None:
    """Whether a suspect was withheld and its fault has not shown itself since. None: it goes on."""
    if incident.phase.out:
        return None
    for rule, brake in fleet.brakes:
        if brake.reset_at is not None and incident.shown_at <= brake.reset_at:
            return Confirm(brake.scope, brake.signature, rule.confirm_every, brake.reset_at)
    if incident.doubt is None or incident.shown_at > incident.doubt.since:
        return None
    rule, scope = next(brake_scopes(incident, node, policy), (BrakeRule(), f"pool:{node.pool}"))
    return Confirm(scope, signature(incident.fault), rule.confirm_every, incident.doubt.since)


def _serves(incident: Incident, node: Node) -> bool:
    """Whether the cordon would be what takes the seat out of service. A newcomer does not serve before its release."""
    if incident.kind is IncidentKind.INTAKE:
        return False
    if not incident.phase.out:
        return node.counted and not node.out
    # Asked again: a seat that was lost when we began may be back in service; where our cordon is on it already, or
    # others keep it out, the act takes nothing from the pool.
    away = node.incarnation is None or node.lost or node.others_cordon or cordon_of(incident.id) in node.cordons
    return node.counted and not away


def _rows(incident: Incident, node: Node, fleet: AdmissionInput, policy: Policy) -> Iterator[Withhold]:
    """Everything that withholds something of this incident now, whoever wrote it."""
    if incident.kind is IncidentKind.FAULT and not incident.ordered:
        mode = rule_for(incident.fault, node, policy).mode
        if mode is not Mode.ACT:
            because = _only(mode, incident.fault.code)
            yield Withhold(id="mode", because=because, by="policy", tell=mode is Mode.RECOMMEND)
    for row in (*fleet.withholding.rows, *policy.withhold):
        alive = row.until is None or fleet.now < row.until
        # Whoever names the node himself means it: an exclusion is about what is done by itself.
        named = row.excuse and by_person(incident)
        if alive and fits(row, incident, node) and not named:
            yield row
    if policy.windows and not incident.now:
        opens = next_opening(policy.windows, node.pool, fleet.now)
        if opens is not None:
            # A person's wish alone is no illness: the node serves, and is taken out when it may be repaired. One that
            # he has cordoned takes no new work, and what runs there may go on until then.
            serves = _only_wished(incident)
            wish = incident.kind is IncidentKind.OPERATOR and incident.fault.is_wish and incident.remedy.disrupts
            acts = WithheldActs.ALL if serves else WithheldActs.WORK if wish else WithheldActs.REPAIR
            because = f"repairs wait for the maintenance window, which opens at {opens:%Y-%m-%d %H:%M} UTC"
            row = Withhold(id=WINDOW, because=because, by="policy", acts=acts, until=opens, tell=False)
            yield replace(row, excuse=serves)


def by_person(incident: Incident) -> bool:
    """Whether a person has ordered it: that passes observe, recommend, brakes and exclusions, no pause and no limit."""
    return incident.ordered or incident.kind is IncidentKind.OPERATOR


def _only(mode: Mode, code: str) -> str:
    if mode is Mode.RECOMMEND:
        return f"the policy only recommends what to do about {code}: it is done when a person orders it"
    return f"the policy only observes {code}: nothing is done, and nobody is told"


def _only_wished(incident: Incident) -> bool:
    """A repair that a person asked for of a node that has shown nothing and is still in service."""
    wish = incident.kind is IncidentKind.OPERATOR and incident.fault.is_wish
    return wish and incident.remedy.disrupts and incident.phase is Phase.SUSPECT and not incident.cordoned


def fits(row: Withhold, incident: Incident, node: Node) -> bool:
    return (
        fnmatchcase(incident.fault.code, row.fault)
        and pool_fits(node.pool, row.pool)
        and (fnmatchcase(node.id, row.node) or fnmatchcase(node.name, row.node))
    )


def next_opening(windows: tuple[Window, ...], pool: str, now: datetime) -> datetime | None:
    """None if repairs are allowed now (or no window speaks of this pool), else when the next window opens."""
    mine = [window for window in windows if pool_fits(pool, window.pool)]
    if not mine:
        return None
    starts: list[datetime] = []
    for ahead in range(8):
        day = now + timedelta(days=ahead)
        for window in mine:
            if day.weekday() not in window.days:
                continue
            start, end = _moment(day, window.start), _moment(day, window.end)
            if start <= now < end:
                return None
            if start > now:
                starts.append(start)
    return min(starts) if starts else now + timedelta(days=7)


def _moment(day: datetime, clock: str) -> datetime:
    hours, minutes = (int(part) for part in clock.split(":"))
    return datetime.combine(day.date(), time(), tzinfo=day.tzinfo) + timedelta(hours=hours, minutes=minutes)


def limit_for(pool: str, policy: Policy) -> Limit:
    return next((limit for limit in policy.limits if pool_fits(pool, limit.pool)), Limit())


# --- brakes

COUNTED_MOST = 10_000  # distinct nodes that a brake counts: whatever share that is, so many mean a common cause


def brake_scopes(incident: Incident, node: Node, policy: Policy) -> Iterator[tuple[BrakeRule, str]]:
    """The first rule of each kind of scope that speaks of this signature, with the scope's name."""
    spoken: set[BrakeScope] = set()
    for rule in policy.brakes:
        if rule.scope in spoken or not fnmatchcase(signature(incident.fault), rule.signature):
            continue
        spoken.add(rule.scope)
        match rule.scope:
            case BrakeScope.CLUSTER:
                yield rule, f"cluster:{node.cluster}"
            case BrakeScope.POOL:
                yield rule, f"pool:{node.pool}"
            case BrakeScope.DOMAIN:
                if node.domain:
                    yield rule, f"domain:{node.cluster}/{node.domain}"


def threshold(rule: BrakeRule, size: int) -> int:
    """Of a cluster the pool's size is taken: the cautious side. Domains are small: they go by number alone."""
    if rule.scope is BrakeScope.DOMAIN:
        return rule.nodes
    return min(COUNTED_MOST, max(rule.nodes, int(rule.percent * size / 100 + 1e-9)))


def press(brake: Brake, rule: BrakeRule, node: str, reading: float, now: datetime, size: int) -> Brake:
    """The brake after one more sighting: counted, and tripped if that is one too many."""
    since = reading - rule.within.total_seconds()
    most = threshold(rule, size)
    # Silence lasts: whoever is still lost must be known by name, or it ends when the first of them are back.
    room = COUNTED_MOST if brake.signature == SILENCE else most
    seen = _count_one(_since(brake.seen, since), node, reading, room, stale=reading - rule.within.total_seconds() / 4)
    tripped = brake.tripped_at or (now if len(seen) >= most else None)
    return replace(brake, most=most, seen=seen, tripped_at=tripped, below_since=None)


def _count_one(seen: dict[str, float], node: str, reading: float, room: int, stale: float) -> dict[str, float]:
    """One more, where there is room; else in place of one that was seen a while ago.

    So many are enough to know, so a storm of a whole fleet is not written down node by node; nor does it end with its
    first nodes.
    """
    if len(seen) < room or node in seen:
        return {**seen, node: reading}
    oldest = min(seen, key=lambda other: seen[other])
    if seen[oldest] >= stale:
        return seen
    return {**{other: at for other, at in seen.items() if other != oldest}, node: reading}


def _since(seen: dict[str, float], since: float) -> dict[str, float]:
    """What is not too old; the very same value where nothing is."""
    return seen if all(at >= since for at in seen.values()) else {n: at for n, at in seen.items() if at >= since}


def ease(brake: Brake, rule: BrakeRule, reading: float) -> Brake:
    """The brake as time passes: it resets after `quiet` below half of what tripped it."""
    since = reading - rule.within.total_seconds()
    seen = _since(brake.seen, since)
    brake = replace(brake, seen=seen)
    if brake.tripped_at is None:
        return brake
    if len(seen) > few_enough(brake):
        return replace(brake, below_since=None)
    below = reading if brake.below_since is None else brake.below_since
    if reading - below < rule.quiet.total_seconds():
        return replace(brake, below_since=below)
    return released(brake, reading)


def released(brake: Brake, reading: float) -> Brake:
    """Off: what was collected while it was on must be confirmed, it is never replayed."""
    return replace(brake, seen={}, tripped_at=None, below_since=None, reset_at=reading, told=())
