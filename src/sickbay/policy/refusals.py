"""Validation: policies that must not be turned on, and why. Pure: the loader adds the file and the line."""

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from sickbay.knowledge.yaml_places import KeyPath, unknown
from sickbay.model.fault import Remedy, Severity
from sickbay.model.fleet import SIGHTINGS
from sickbay.model.notice import LOG, NoticeSeverity, kind_of_notice
from sickbay.model.noun import Noun
from sickbay.model.policy import (
    BrakeRule,
    FaultRule,
    Ladder,
    Limit,
    Match,
    Mode,
    NotifyRule,
    Policy,
    RungRule,
    Strikes,
    Trigger,
    Window,
)

HELD = "held"  # the event that says: this waits for a person
ANYTHING = Match()
MOST_INTERRUPTIONS = 200
SHORTEST_HISTORY = timedelta(days=1)
MOST_LOG = 10_000  # MiB
MOST_CHANNELS = 8  # of a rule: each is a row of its own in the unit that tells
# Pauses of nothing are allowed: they mean "do not wait".
_MAY_BE_ZERO = frozenset({"settle", "native_grace", "stall_after", "start_within", "save_within", "keep_place"})
_CLOCK = re.compile(r"^(?:[01]\d|2[0-3]):[0-5]\d$|^24:00$")


class Refusal(NamedTuple):
    path: KeyPath
    text: str  # {other} stands for the place of `other`
    other: KeyPath | None = None


def refusals(policy: Policy) -> Iterator[Refusal]:
    for n, rule in enumerate(policy.faults):
        yield from _fault_rule(rule, ("faults", n))
    for n, ladder in enumerate(policy.ladders):
        yield from _ladder(ladder, ("ladders", n))
    yield from _examine(policy)
    yield from _resume(policy)
    for n, limit in enumerate(policy.limits):
        yield from _limit(limit, ("limits", n))
    for n, brake in enumerate(policy.brakes):
        yield from _brake(brake, ("brakes", n))
    for n, window in enumerate(policy.windows):
        yield from _window(window, ("windows", n))
    yield from _retention(policy)
    yield from _tellings(policy)
    yield from _spans(policy, ())
    yield from _shadows(policy)
    yield from _uncovered(policy)
    yield from _untold(policy)


def fits_all(wide: Match, narrow: Match) -> bool:
    """Whatever `narrow` fits, `wide` fits."""
    severities = set(wide.severity or Severity)
    return (
        covers(_globs(wide.fault), _globs(narrow.fault))
        and covers((wide.component,), (narrow.component,))
        and set(narrow.severity or Severity) <= severities
        and covers((wide.pool,), (narrow.pool,))
        and covers((wide.node,), (narrow.node,))
    )


def acts(rule: FaultRule) -> bool:
    """Whether a fault under this rule can take a node out of service and have it repaired."""
    return rule.mode is Mode.ACT and (rule.cap is None or rule.cap.disrupts)


def tells(policy: Policy, event: str) -> bool:
    severity = kind_of_notice(event).severity
    return any(rule.to and rule.fits(event, severity, rule.pool) for rule in policy.notify)


def unconfigured(policy: Policy, known: Collection[str]) -> Iterator[Refusal]:
    """Channels that nobody could deliver to: `known` are the notifiers that there are. The log always is."""
    there = sorted({LOG, *known})
    for n, rule in enumerate(policy.notify):
        for key in ("to", "next"):
            for m, name in enumerate(getattr(rule, key)):
                if name not in there:
                    how = "write it into the file of notifiers (sickbay up --notifiers FILE)"
                    yield Refusal(("notify", n, key, m), f"{unknown('notifier', name, there)}; {how}, or name another")


_ANY = "\ufffe"  # stands for whatever a wildcard matches; nobody writes it in a policy
_CLASS = re.compile(r"\[!?.[^\]]*\]")


def covers(wide: Iterable[str], narrow: Iterable[str]) -> bool:
    """Each of `narrow` matches only what one of `wide` does. False where a class ([0-9]) makes it hard to tell."""
    return all(any(_covers(one, other) for one in wide) for other in narrow)


def _covers(wide: str, narrow: str) -> bool:
    if wide in {"*", narrow}:
        return True
    if not set(narrow) & set("*?["):
        return fnmatchcase(narrow, wide)
    if "[" in wide:
        return False
    # Only a star takes a text of any length: the shortest that `narrow` matches, and one that `wide` cannot spell out.
    shortest = _CLASS.sub(_ANY, narrow).replace("?", _ANY)
    return all(fnmatchcase(shortest.replace("*", run), wide) for run in ("", _ANY * (len(wide) + 1)))


def _globs(fault: str | tuple[str, ...]) -> tuple[str, ...]:
    return (fault,) if isinstance(fault, str) else fault


def _fault_rule(rule: FaultRule, at: KeyPath) -> Iterator[Refusal]:
    if rule.match.fault == ():
        yield Refusal((*at, "match", "fault"), "an empty list matches no fault: name one, or leave 'fault' out for all")
    if rule.floor and rule.cap and rule.floor.rank > rule.cap.rank:
        yield Refusal((*at, "floor"), f"floor {rule.floor} is above cap {rule.cap}: lower the floor or raise the cap")
    if rule.repeat is None:
        return
    if rule.repeat.times < 2:
        yield Refusal((*at, "repeat", "times"), "must be 2 or more; for the first sighting write 'floor' in the rule")
    if not 1 <= rule.repeat.jobs <= rule.repeat.times:
        yield Refusal(
            (*at, "repeat", "jobs"), f"must be from 1 to 'times' ({rule.repeat.times}): each sighting is of one job"
        )
    if rule.repeat.jobs > SIGHTINGS:
        yield Refusal((*at, "repeat", "jobs"), f"must be {SIGHTINGS} or less: no more are told apart")
    if rule.cap and rule.repeat.floor.rank > rule.cap.rank:
        text = f"floor {rule.repeat.floor} is above the rule's cap {rule.cap}: lower it or raise the cap"
        yield Refusal((*at, "repeat", "floor"), text)


def _ladder(ladder: Ladder, at: KeyPath) -> Iterator[Refusal]:
    if ladder.match.fault == ():
        yield Refusal((*at, "match", "fault"), "an empty list matches no fault: name one, or leave 'fault' out for all")
    below: Remedy | None = None
    for n, rung in enumerate(ladder.rungs):
        yield from _rung(rung, below, (*at, "rungs", n))
        below = rung.do
    for n, strikes in enumerate(ladder.strikes):
        yield from _strikes(strikes, below, (*at, "strikes", n))


def _rung(rung: RungRule, below: Remedy | None, at: KeyPath) -> Iterator[Refusal]:
    if not rung.do.disrupts and rung.do is not Remedy.RESTART_SERVICE:
        able = ", ".join(remedy for remedy in Remedy if remedy.disrupts or remedy is Remedy.RESTART_SERVICE)
        yield Refusal((*at, "do"), f"{rung.do} repairs nothing: write one of {able}")
    if below and rung.do.rank <= below.rank:
        text = f"{rung.do} comes after {below}: rungs go from the mildest to the strongest, each once (see 'tries')"
        yield Refusal((*at, "do"), text)
    if rung.tries < 1:
        yield Refusal((*at, "tries"), f"must be 1 or more, not {rung.tries}; to leave the rung out, remove it")
    if not 1 <= rung.verify <= 4:
        text = f"a check has level 1 to 4, not {rung.verify}: no node goes back without one"
        yield Refusal((*at, "verify"), text)


def _strikes(strikes: Strikes, top: Remedy | None, at: KeyPath) -> Iterator[Refusal]:
    if strikes.after < 1:
        yield Refusal((*at, "after"), f"must be 1 or more, not {strikes.after}; for every incident change the rungs")
    if strikes.first is None and not strikes.needs_human:
        yield Refusal(at, "says nothing to do: add 'first: replace' or 'needs_human: true'")
    if strikes.first is not None and strikes.needs_human:
        yield Refusal((*at, "first"), "a node that is held for a person is not repaired: keep 'first' or 'needs_human'")
    if strikes.first is not None and (top is None or strikes.first.rank > top.rank):
        text = f"this ladder has no rung {strikes.first} or stronger: add one, or write 'needs_human: true' instead"
        yield Refusal((*at, "first"), text)


def _examine(policy: Policy) -> Iterator[Refusal]:
    first: dict[Trigger, int] = {}
    for n, rule in enumerate(policy.examine):
        at: KeyPath = ("examine", n)
        if not 1 <= rule.level <= 4:
            text = f"a check has level 1 to 4, not {rule.level}; for no check remove this entry"
            yield Refusal((*at, "level"), text)
        if rule.on is Trigger.SCHEDULE and rule.every is None:
            yield Refusal(at, "a schedule needs 'every', such as every: 7d")
        if rule.on is not Trigger.SCHEDULE and rule.every is not None:
            yield Refusal((*at, "every"), f"only 'on: schedule' repeats, not 'on: {rule.on}': remove it")
        if rule.on in first:
            text = f"'on: {rule.on}' is never reached, the first match wins ({{other}}): keep one of them"
            yield Refusal((*at, "on"), text, ("examine", first[rule.on]))
        first.setdefault(rule.on, n)


def _resume(policy: Policy) -> Iterator[Refusal]:
    rule = policy.resume
    for n, code in enumerate(rule.exit_codes):
        if not 0 <= code <= 255:
            yield Refusal(("resume", "exit_codes", n), f"an exit code is 0 to 255, not {code}")
    if not rule.place or len(set(rule.place)) < len(rule.place):
        yield Refusal(("resume", "place"), "name each of spare, same, fewer at most once, and at least one of them")
    for name in ("max_restarts", "max_interruptions"):
        if getattr(rule, name) < 0:
            yield Refusal(("resume", name), "must be 0 or more")
    if rule.max_interruptions > MOST_INTERRUPTIONS:
        yield Refusal(("resume", "max_interruptions"), f"at most {MOST_INTERRUPTIONS}: a job keeps the record of each")
    if rule.max_gates < 1:
        yield Refusal(("resume", "max_gates"), "must be 1 or more: a job without a gate sets its precheck to none")
    if rule.look_deadline <= rule.settle:
        yield Refusal(("resume", "look_deadline"), "must be longer than 'settle', or every look runs out of time")
    if policy.silence.agent_restarts < 0:
        yield Refusal(("silence", "agent_restarts"), "must be 0 or more")


def _limit(limit: Limit, at: KeyPath) -> Iterator[Refusal]:
    if limit.size is not None and limit.size < 1:
        yield Refusal((*at, "size"), "must be 1 or more; leave it out to use the seats that are there")
    for kind in ("out", "repairing"):
        percent, absolute, at_least = (getattr(limit, f"{kind}_{part}") for part in ("percent", "absolute", "at_least"))
        yield from _percent(percent, (*at, f"{kind}_percent"))
        for name, value in (("absolute", absolute), ("at_least", at_least)):
            if value is not None and value < 0:
                yield Refusal((*at, f"{kind}_{name}"), "must be 0 or more")
        if absolute is not None and at_least > absolute:
            text = f"at_least {at_least} is above absolute {absolute}: lower one or raise the other"
            yield Refusal((*at, f"{kind}_at_least"), text)
        if at_least == 0 and (percent == 0 or absolute == 0):
            done = "taken out of service" if kind == "out" else "repaired"
            text = f"no node could ever be {done}: write 1 or more, or pause it"
            yield Refusal((*at, f"{kind}_at_least"), text)


def _brake(brake: BrakeRule, at: KeyPath) -> Iterator[Refusal]:
    if brake.nodes < 1:
        yield Refusal((*at, "nodes"), f"must be 1 or more, not {brake.nodes}; to have no brake remove it")
    if not brake.signature:
        yield Refusal((*at, "signature"), "is empty: write a fault code, silence, or '*'")
    yield from _percent(brake.percent, (*at, "percent"))


def _percent(value: float, at: KeyPath) -> Iterator[Refusal]:
    if not 0 <= value <= 100:
        yield Refusal(at, f"a percentage is 0 to 100, not {value:g}")


def _retention(policy: Policy) -> Iterator[Refusal]:
    if timedelta() < policy.retention.history < SHORTEST_HISTORY:
        text = "shorter than a day: what happened last night could not be explained in the morning; write 1d or more"
        yield Refusal(("retention", "history"), text)
    if not 1 <= policy.retention.log_mib <= MOST_LOG:
        yield Refusal(("retention", "log_mib"), f"{policy.retention.log_mib} is not from 1 to {MOST_LOG:,} MiB")


def _window(window: Window, at: KeyPath) -> Iterator[Refusal]:
    for name in ("start", "end"):
        if not _CLOCK.match(getattr(window, name)):
            yield Refusal((*at, name), f"{getattr(window, name)!r} is not a time of day: write 00:00 to 24:00 (UTC)")
    if window.start >= window.end:
        text = f"start {window.start} is not before end {window.end}: write two windows to go over midnight"
        yield Refusal((*at, "start"), text)
    if not window.days or not set(window.days) <= set(range(7)):
        yield Refusal((*at, "days"), "days are 0 (Monday) to 6 (Sunday): write [0, 1, 2, 3, 4] for weekdays")


def _tellings(policy: Policy) -> Iterator[Refusal]:
    for remedy, adapter in policy.channels.items():
        if not remedy.disrupts and remedy is not Remedy.RESTART_SERVICE:
            yield Refusal(("channels", remedy), f"no machine does {remedy}: only repairs have a channel")
        if not adapter:
            yield Refusal(("channels", remedy), "names no adapter: write its name, or remove the line")
    for n, rule in enumerate(policy.notify):
        for name, names in (("events", rule.events), ("to", rule.to)):
            if not names or not all(names):
                yield Refusal(("notify", n, name), "is empty: name at least one, or remove the rule")
        if len(rule.to) + len(rule.next) > MOST_CHANNELS:
            yield Refusal(
                ("notify", n, "to"), f"names more than {MOST_CHANNELS} channels: one list or room reaches many"
            )
        if not all(rule.next) or set(rule.next) & set(rule.to):
            yield Refusal(
                ("notify", n, "next"), "names channels that are not in 'to', each told if the one before is not"
            )
        if not rule.next and rule.next_after != NotifyRule().next_after and rule.to == (LOG,):
            yield Refusal(("notify", n, "next_after"), "after the log comes nobody: remove it, or name other channels")
    seen: dict[str, int] = {}
    for n, row in enumerate(policy.withhold):
        if row.id in seen:
            text = f"the id {row.id!r} is taken ({{other}}): give each row its own"
            yield Refusal(("withhold", n, "id"), text, ("withhold", seen[row.id]))
        if row.until is not None and row.until.tzinfo is None:
            yield Refusal(("withhold", n, "until"), "has no time zone: write it as 2030-01-31T12:00:00Z")
        seen.setdefault(row.id, n)


def _spans(value: object, at: KeyPath) -> Iterator[Refusal]:
    """Every duration of every noun: one of nothing has always run out."""
    if isinstance(value, Noun):
        for field in msgspec.structs.fields(value):
            yield from _spans(getattr(value, field.name), (*at, field.name))
    elif isinstance(value, tuple):
        for n, item in enumerate(value):
            yield from _spans(item, (*at, n))
    elif isinstance(value, timedelta) and (value < timedelta(0) or (not value and at[-1] not in _MAY_BE_ZERO)):
        yield Refusal(at, "must be longer than nothing, such as 10m")


def _shadows(policy: Policy) -> Iterator[Refusal]:
    matches: Iterable[tuple[str, list[Match]]] = (
        ("faults", [rule.match for rule in policy.faults]),
        ("ladders", [ladder.match for ladder in policy.ladders]),
        ("limits", [Match(pool=limit.pool) for limit in policy.limits]),
        # The first brake of each scope counts; the scope takes the place of a component here.
        ("brakes", [Match(fault=brake.signature, component=brake.scope) for brake in policy.brakes]),
    )
    for key, rules in matches:
        for n, later in enumerate(rules):
            for m in range(n):
                if fits_all(rules[m], later):
                    text = f"can never match: {key}[{m}] ({{other}}) matches all of it first; move it up or remove it"
                    yield Refusal((key, n), text, (key, m))
                    break
    for n, rule in enumerate(policy.notify):
        for m, first in enumerate(policy.notify[:n]):
            if _tells_all(first, rule):
                text = f"can never match: notify[{m}] ({{other}}) matches all of it first; move it up or remove it"
                yield Refusal(("notify", n), text, ("notify", m))
                break


def _tells_all(wide: NotifyRule, narrow: NotifyRule) -> bool:
    severities = set(wide.severity or NoticeSeverity)
    return (
        covers(wide.events, narrow.events)
        and set(narrow.severity or NoticeSeverity) <= severities
        and covers((wide.pool,), (narrow.pool,))
    )


def _uncovered(policy: Policy) -> Iterator[Refusal]:
    if not any(fits_all(Match(pool=limit.pool), ANYTHING) for limit in policy.limits):
        yield Refusal(("limits",), "some pools have no limit: end the list with one for pool '*'")
    if any(fits_all(ladder.match, ANYTHING) for ladder in policy.ladders):
        return
    how = "end 'ladders' with one without 'match', or begin the file with 'extends: default'"
    if not any(fits_all(rule.match, ANYTHING) for rule in policy.faults):
        yield Refusal(("ladders",), f"faults that no ladder matches could never be repaired: {how}")
    for n, rule in enumerate(policy.faults):
        if acts(rule) and not rule.needs_human and not any(fits_all(one.match, rule.match) for one in policy.ladders):
            yield Refusal(("faults", n), f"no ladder says how to repair what this rule matches: {how}")


def _untold(policy: Policy) -> Iterator[Refusal]:
    """A node that is held and nobody is told of is cordoned for ever."""
    if tells(policy, HELD):
        return
    how = "add a notify rule for the event 'held'"
    for n, rule in enumerate(policy.faults):
        if rule.needs_human and rule.mode is Mode.ACT:
            yield Refusal(("faults", n), f"needs a person, but nobody is told when a node is held: {how}")
    for n, ladder in enumerate(policy.ladders):
        end = "ends" if ladder.rungs else "has no rungs"
        yield Refusal(("ladders", n), f"a node would stay cordoned for ever when this ladder {end}: {how}")
