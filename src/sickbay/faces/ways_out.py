"""Next actions: what would change a wait, each with the command to paste; and who uses up a pool's budget, by name.

They are made of the rows that hold something back now (pauses, exclusions, brakes, the policy, seats that are out), by
the functions that admit acts. The reason that a wait was written with is for people and is not read.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from sickbay.brain.admit import brake_scopes, by_person, few_enough, fits, goes_off_at, limit_for, next_opening
from sickbay.brain.correlate import rule_for
from sickbay.faces.answers import Estimate, SeatOut, WayOut
from sickbay.faces.archive import Archive, iso
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.cordon import named, others_of
from sickbay.model.durations import format_duration
from sickbay.model.fault import Remedy, signature
from sickbay.model.fleet import Brake, Node, WithheldActs, Withhold
from sickbay.model.incident import REPAIR_WORDS, Incident, IncidentKind, Phase, Room
from sickbay.model.policy import BrakeRule, Mode

MOST_NAMED = 8
ORDERS = {Remedy.RESET_GPU: "reset", Remedy.REBOOT: "reboot", Remedy.REPLACE: "replace"}


def way(what: str, command: str = "") -> WayOut:
    """`command` without its reason: everyone who decides something says why."""
    return WayOut(what=what, command=f'sickbay {command} --reason "WHY"' if command else "")


def held_back_by(archive: Archive, incident: Incident, node: Node | None) -> tuple[WayOut, ...]:
    """What would end each thing that holds an incident back now. Empty: nothing does."""
    wait = incident.wait
    if node is None or wait is None or not (wait.would or wait.room or incident.phase is Phase.SUSPECT):
        return ()
    asked_anew = not any(row.pauses for row in _stored(archive, incident, node))  # a person's order passes no pause
    braked = _braked(archive, incident, node, asked_anew=asked_anew)
    found = (_withheld(archive, incident, node), braked, _for_room(archive, incident))
    return tuple(chain.from_iterable(found))


def by_people(incident: Incident) -> tuple[WayOut, ...]:
    """What a person may decide of it now."""
    ident = incident.id
    if incident.phase is Phase.SUSPECT and incident.fault.is_wish:
        return (way("you take the order back: nothing is done", f"dismiss {ident}"),)
    if incident.phase in {Phase.SUSPECT, Phase.WATCHED}:
        return (way("you vouch for the node: the incident is closed, no check is made", f"dismiss {ident}"),)
    if incident.phase is not Phase.HELD:
        return (way("you stop it here: the node stays out until a person decides", f"hold {ident}"),)
    leaves = way("the node leaves the cluster")
    repaired = way("it is repaired: it is checked, and returns if it passes", f"confirm {ident}")
    if incident.kept:
        return (way("the node may go back: your word is its proof", f"uncordon {incident.node}"), repaired, leaves)
    last = any(one.rung is Remedy.REPLACE for one in incident.tries)
    stronger = way("replace is tried once more" if last else "the next stronger repair is tried", f"escalate {ident}")
    return (repaired, stronger, way("you vouch for it: it returns without a check", f"dismiss {ident}"), leaves)


def _ordered(incident: Incident, *, now: bool = False) -> str:
    verb = ORDERS.get(incident.remedy)
    return f"{verb} {incident.node}{' --now' if now else ''}" if verb else ""


def _stored(archive: Archive, incident: Incident, node: Node) -> list[Withhold]:
    """Pauses and exclusions that hold it back now."""
    now = archive.as_of
    rows = (row for row in archive.withholding().rows if now is None or row.until is None or now < row.until)
    return [row for row in rows if fits(row, incident, node) and not (row.excuse and by_person(incident))]


def _withheld(archive: Archive, incident: Incident, node: Node) -> Iterator[WayOut]:
    """Pauses and exclusions, the policy's mode, a window that is closed."""
    for row in _stored(archive, incident, node)[:MOST_NAMED]:
        yield _taken_back(row)
    now, policy = archive.as_of, archive.policy
    if policy is None or now is None:
        return
    for row in policy.withhold:
        if (row.until is None or now < row.until) and fits(row, incident, node) and _concerns(row, incident):
            yield way(f"the policy is changed: it withholds this ({row.because})")
    fault = incident.kind is IncidentKind.FAULT and not incident.ordered
    mode = rule_for(incident.fault, node, policy).mode if fault else Mode.ACT
    if mode is not Mode.ACT:
        does = REPAIR_WORDS.get(incident.remedy, "treat it")
        what = f"you order it ({does}): the policy only says {mode}, a person's order is carried out"
        yield way(what, _ordered(incident))
    opens = None if incident.now or not incident.remedy.disrupts else next_opening(policy.windows, node.pool, now)
    if opens is not None:
        yield way(f"the maintenance window of {node.pool} opens at {opens:%Y-%m-%d %H:%M} UTC")
        yield way("you order it with --now, which waits for no window", _ordered(incident, now=True))


def _concerns(row: Withhold, incident: Incident) -> bool:
    return row.acts is WithheldActs.ALL or incident.phase.out


def _taken_back(row: Withhold) -> WayOut:
    ends = f", or it ends at {row.until:%Y-%m-%d %H:%M} UTC" if row.until is not None else ""
    if row.pauses:
        return way(f"the pause ends ({row.because}): take it back{ends}", "unpause")
    return way(f"the exclusion {row.id} ends ({row.because}): remove it{ends}", f"exclude remove {row.id}")


# --- brakes


def _brakes_on(archive: Archive, incident: Incident, node: Node) -> Iterator[tuple[Brake, BrakeRule | None]]:
    """Those that hold it back, with the rule of each where the policy in force is known here."""
    if incident.kind is not IncidentKind.FAULT or incident.ordered or incident.phase is not Phase.SUSPECT:
        return
    policy = archive.policy
    rules = {scope: rule for rule, scope in brake_scopes(incident, node, policy)} if policy is not None else {}
    for brake in archive.tripped():
        mine = brake.scope in rules if policy is not None else incident.node in brake.seen
        if mine and brake.signature == signature(incident.fault):
            yield brake, rules.get(brake.scope)


def _braked(archive: Archive, incident: Incident, node: Node, *, asked_anew: bool) -> Iterator[WayOut]:
    for brake, rule in _brakes_on(archive, incident, node):
        what = f"the cause is known: take the brake on {brake.signature} in {brake.scope} off; each suspect is checked"
        yield way(what, f"brake reset {brake.signature} --scope {brake.scope}")
        if rule is not None:
            fewer, quiet = few_enough(brake) + 1, format_duration(rule.quiet)
            few = f"fewer than {fewer} nodes have shown {brake.signature} for {quiet}"
            off = quiet_at(archive, brake, rule)
            about = f" about {off.about[:16].replace('T', ' ')} UTC" if off is not None else ""
            yield way(f"the brake goes off by itself{about} if no more nodes show it (once {few})")
    if asked_anew and any(_brakes_on(archive, incident, node)) and incident.remedy in ORDERS:
        does = REPAIR_WORDS[incident.remedy]
        yield way(f"you order this node's repair ({does}): a person's order passes the brake", _ordered(incident))


def brake_ends(archive: Archive, incident: Incident, node: Node | None) -> Estimate | None:
    """When the last of the brakes that hold it back goes off by itself. None: none does, or nobody can tell."""
    on = list(_brakes_on(archive, incident, node)) if node is not None else []
    ends = [quiet_at(archive, brake, rule) for brake, rule in on if rule is not None]
    known = [end for end in ends if end is not None]
    return max(known, key=lambda end: end.about) if known and len(known) == len(on) else None


def quiet_at(archive: Archive, brake: Brake, rule: BrakeRule) -> Estimate | None:
    """When a brake goes off by itself if nothing more shows, on the wall."""
    clock = archive.clocks.get(INGEST)
    at = goes_off_at(brake, rule, clock.reading if clock is not None else 0.0)
    return archive.estimate(Deadline(clock=INGEST, at=at)) if at is not None else None


# --- the budget


def _for_room(archive: Archive, incident: Incident) -> Iterator[WayOut]:
    room = incident.queues_for
    if room is Room.REPAIR:
        mending = [one for one in archive.open_incidents(incident.pool) if one.repairs and one.id != incident.id]
        for one in mending[:MOST_NAMED]:
            yield way(f"the repair of {one.node} ends ({one.id}, {one.rung or one.remedy})")
    elif room is Room.SEAT:
        for seat in seats_out(archive, incident.pool):
            yield WayOut(what=f"{seat.node} comes back into service: {seat.because}", command=seat.command)
    if room is not None and archive.policy is not None:
        rule = limit_for(incident.pool, archive.policy)
        key = "repairing_at_least" if room is Room.REPAIR else "out_at_least"
        yield way(f"the policy lets pool {incident.pool} lack more: limits, {key} (now {getattr(rule, key)})")


def seats_out(archive: Archive, pool: str) -> list[SeatOut]:
    """Who uses the budget, by name; of many the first few."""
    return [_seat(archive, node) for node in archive.out_of(pool)[:MOST_NAMED]]


def _seat(archive: Archive, node: Node) -> SeatOut:
    incident = archive.incident(node.incident) if node.incident else None
    command, since = "", None
    if incident is not None and incident.open:
        since = incident.stages[-1].entered_at if incident.stages else incident.opened_at
        because = f"{incident.phase} for {incident.fault.code} ({incident.id})"
        if incident.phase is Phase.HELD:
            order = f"uncordon {node.id}" if incident.kept else f"confirm {incident.id}"
            because, command = f"{because}, a person must decide", f'sickbay {order} --reason "WHY"'
    elif node.incarnation is None:
        because = "vacant: no machine has taken the seat"
    elif others := others_of(node.cordons):
        because = f"cordoned by {_and(named(owner) for owner in others)}, not by Sickbay"
    else:
        because = "lost: neither its agent nor its cluster can be heard" if node.lost else "it is on its way back"
    return SeatOut(node=node.id, incident=node.incident, since=iso(since), because=because, command=command)


def _and(names: Iterable[str]) -> str:
    return ", ".join(names)
