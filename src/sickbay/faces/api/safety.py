"""What keeps Sickbay from acting: pauses, exclusions, brakes."""

import re
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

from sickbay.brain.orders import NODE_VERBS
from sickbay.faces.api import requests
from sickbay.faces.api.examples import BRAKE, WITHHELD
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import Archive, iso
from sickbay.faces.fleet_answers import TrippedBrake, Withheld
from sickbay.faces.ways_out import quiet_at
from sickbay.knowledge.load import load_tables
from sickbay.model.fault import WISH
from sickbay.model.fleet import Brake, Withhold, pool_fits, pool_word, read_scope
from sickbay.model.incident import Incident

NUMBERED = re.compile(r"s?xid\.[0-9]{1,5}")  # also such as no table has


def withheld_answer(row: Withhold) -> Withheld:
    return Withheld(
        id=row.id,
        fault=row.fault,
        pool=row.pool,
        node=row.node,
        until=iso(row.until),
        by=row.by,
        because=row.because,
    )


def withheld_now(ask: ApiRequest, *, fresh: bool = False) -> list[Withhold]:
    now = ask.backend.now()
    rows = (ask.fresh() if fresh else ask.archive).withholding().rows
    return [row for row in rows if row.until is None or row.until > now]


def pause(ask: ApiRequest, body: requests.Pause) -> Withheld:
    args = {} if body.seconds is None else {"seconds": f"{body.seconds:g}"}
    return _made(ask, ask.order("pause", "", body.reason, args=args))


def unpause(ask: ApiRequest, body: requests.WithReason) -> list[Withheld]:
    if not ask.repeated and not any(row.pauses for row in withheld_now(ask)):
        raise ApiRefusal(409, "nothing is paused: there is nothing to unpause")
    ask.order("unpause", "", body.reason)
    return [withheld_answer(row) for row in withheld_now(ask, fresh=True)]


def _made(ask: ApiRequest, by_order: str) -> Withheld:
    found = ask.fresh().withholding()
    rows = [row for row in found.rows if found.orders.get(row.id) == by_order]  # over already, or not
    if not rows:
        raise ApiRefusal(503, "it is noted, but does not show yet: look again in a moment")
    return withheld_answer(rows[-1])


# --- exclusions


def exclusions(ask: ApiRequest) -> list[Withheld]:
    return [withheld_answer(row) for row in withheld_now(ask) if row.excuse]


def exclude(ask: ApiRequest, body: requests.Exclude) -> Withheld:
    what = {"fault": body.fault, "pool": body.pool, "node": body.node}
    args = {name: value for name, value in what.items() if value}
    if not args:
        raise ApiRefusal(400, "say what is excluded: fault, pool or node (globs); to withhold everything, pause")
    if not ask.repeated:
        _can_match(ask, body)
    if body.seconds is not None:
        args["seconds"] = f"{body.seconds:g}"
    return _made(ask, ask.order("exclude", "", body.reason, args=args))


def _can_match(ask: ApiRequest, body: requests.Exclude) -> None:
    """An exclusion that nothing can ever match looks like one that is in force. Raises ApiRefusal."""
    nodes = ask.archive.nodes()
    if body.node and not any(fnmatchcase(node.id, body.node) or fnmatchcase(node.name, body.node) for node in nodes):
        raise missing("node", body.node, (node.id for node in nodes))
    if body.pool and not any(pool_fits(node.pool, body.pool) for node in nodes):
        raise missing("pool", body.pool, (node.pool for node in nodes))
    if body.fault:
        _is_a_fault(ask, body.fault)


def _is_a_fault(ask: ApiRequest, fault: str) -> None:
    """Of the tables, of a person's order, seen here before, or any number of the driver's. Raises ApiRefusal."""
    wishes = (f"{WISH}{verb}" for verb in NODE_VERBS)
    known = ask.backend.codes or frozenset(row.code for row in load_tables().meanings())
    codes = known | set(wishes)
    if NUMBERED.fullmatch(fault) or any(fnmatchcase(code, fault) for code in codes):
        return
    if any(fnmatchcase(incident.fault.code, fault) for incident in ask.all_of(Incident, "incident")):
        return
    close = get_close_matches(fault, codes, n=3)
    guess = f"did you mean {' or '.join(close)}?" if close else "'sickbay knowledge' lists all"
    write = f"write xid.{fault}" if fault.isascii() and fault.isdigit() else guess
    raise ApiRefusal(404, f"no fault is called {fault!r}: {write}")


def include(ask: ApiRequest, query: requests.Include) -> list[Withheld]:
    ident = ask.path["id"]
    rows = [row for row in withheld_now(ask) if row.excuse]
    if not ask.repeated and ident not in {row.id for row in rows}:
        raise missing("exclusion", ident, (row.id for row in rows))
    ask.order("include", ident, query.reason)
    return [withheld_answer(row) for row in withheld_now(ask, fresh=True) if row.excuse]


# --- brakes


def tripped(archive: Archive) -> list[TrippedBrake]:
    return [
        TrippedBrake(
            scope=brake.scope,
            signature=brake.signature,
            tripped_at=iso(at),
            nodes=sorted(brake.seen),
            goes_off=_goes_off(archive, brake),
        )
        for brake in archive.brakes()
        if (at := brake.tripped_at) is not None
    ]


def _goes_off(archive: Archive, brake: Brake) -> str | None:
    """By the rule of the policy in force, where that is known here."""
    kind, _ = read_scope(brake.scope)
    rules = archive.policy.brakes if archive.policy is not None else ()
    mine = (rule for rule in rules if rule.scope == kind and fnmatchcase(brake.signature, rule.signature))
    rule = next(mine, None)
    estimate = quiet_at(archive, brake, rule) if rule is not None else None
    return estimate.about if estimate is not None else None


def brakes(ask: ApiRequest) -> list[TrippedBrake]:
    return tripped(ask.archive)


def _scopes(brake: Brake) -> tuple[str, str]:
    """A pool or a domain is written with its cluster or without."""
    kind, name = read_scope(brake.scope)
    return brake.scope, f"{kind}:{pool_word(name)}"


def reset(ask: ApiRequest, body: requests.BrakeReset) -> list[TrippedBrake]:
    """All that are tripped and fit: a storm trips the brakes of its cluster and of its pool."""
    on = [brake for brake in ask.archive.brakes() if brake.tripped_at is not None]
    fits = [b for b in on if body.scope in {"", *_scopes(b)} and body.signature in {"", b.signature}]
    if not fits and not ask.repeated:
        said = " ".join(word for word in (body.scope, body.signature) if word)
        there = ", ".join(f"{b.scope} {b.signature}" for b in on)
        left = f"on are {there}" if there else "there is nothing to reset"
        raise ApiRefusal(409, f"no brake is on{f' for {said}' if said else ''}: {left}")
    for n, brake in enumerate(fits):
        part = replace(ask, key=f"{ask.key}/{n}")  # one of several commands of one request: each has its own key
        part.order("brake_reset", f"{brake.scope}:{brake.signature}", body.reason)
    return tripped(ask.fresh())


ROUTES = (
    Route(
        "POST", "/v1/pause", pause, "Withhold every disruptive act, for some time or until unpause",
        role="operator", ask_example={"reason": "the network is rebuilt", "seconds": 7200},
        answer_example={
            **WITHHELD, "id": "pause-310", "fault": "*", "until": "2026-01-01T02:10:00.000Z",
            "because": "pause by ann: the network is rebuilt",
        },
    ),
    Route(
        "POST", "/v1/unpause", unpause, "Take all pauses back; answers with what is still withheld",
        role="operator", ask_example={"reason": "it is done"},
        answer_example=[WITHHELD],
    ),
    Route("GET", "/v1/exclusions", exclusions, "Faults, pools and nodes that are excluded",
          answer_example=[WITHHELD]),
    Route(
        "POST", "/v1/exclusions", exclude, "Exclude faults, pools or nodes (globs) from all acts",
        role="operator", status=201, answer_example=WITHHELD,
        ask_example={"fault": "xid.63", "reason": "known, harmless"},
    ),
    Route(
        "DELETE", "/v1/exclusions/{id}", include, "Take an exclusion back; answers with those that are left",
        role="operator", path_example={"id": "exclude-311"},
        query_example={"reason": "fixed by the new driver"}, answer_example=[],
    ),
    Route("GET", "/v1/brakes", brakes, "Brakes that are on", answer_example=[BRAKE]),
    Route(
        "POST", "/v1/brakes/reset", reset, "Reset brakes: one, all of a signature, or all; answers with those still on",
        role="operator", answer_example=[],
        ask_example={"scope": "pool:train", "signature": "xid.79", "reason": "it was the power"},
    ),
)  # fmt: skip
