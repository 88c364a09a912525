"""What keeps Sickbay from acting: pauses, exclusions, brakes."""

from dataclasses import replace
from typing import Any

from sickbay.faces.api import answers, requests
from sickbay.faces.api.examples import BRAKE, WITHHELD
from sickbay.faces.api.orders import order
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import Archive
from sickbay.faces.explain import iso
from sickbay.model.fleet import Brake, Withhold, pool_word


def withheld_json(row: Withhold) -> dict[str, Any]:
    return {
        "id": row.id,
        "fault": row.fault,
        "pool": row.pool,
        "node": row.node,
        "until": iso(row.until),
        "by": row.by,
        "because": row.because,
    }


def withheld_now(ask: ApiRequest, *, fresh: bool = False) -> list[Withhold]:
    now = ask.desk.now()
    rows = (ask.fresh() if fresh else ask.archive).withholding().rows
    return [row for row in rows if row.until is None or row.until > now]


def pause(ask: ApiRequest) -> dict[str, Any]:
    seconds = ask.body.seconds
    args = {} if seconds is None else {"seconds": f"{seconds:g}"}
    return _made(ask, order(ask, "pause", "", ask.body.reason, args=args))


def unpause(ask: ApiRequest) -> list[dict[str, Any]]:
    if not ask.repeated and not any(row.pauses for row in withheld_now(ask)):
        raise ApiRefusal(409, "nothing is paused: there is nothing to unpause")
    order(ask, "unpause", "", ask.body.reason)
    return [withheld_json(row) for row in withheld_now(ask, fresh=True)]


def _made(ask: ApiRequest, by_order: str) -> dict[str, Any]:
    rows = [row for row in ask.fresh().withholding().rows if row.asked == by_order]  # over already, or not
    if not rows:
        raise ApiRefusal(503, "it is noted, but does not show yet: look again in a moment")
    return withheld_json(rows[-1])


# --- exclusions


def exclusions(ask: ApiRequest) -> list[dict[str, Any]]:
    return [withheld_json(row) for row in withheld_now(ask) if row.excuse]


def exclude(ask: ApiRequest) -> dict[str, Any]:
    asked: requests.Exclude = ask.body
    what = {"fault": asked.fault, "pool": asked.pool, "node": asked.node}
    args = {name: value for name, value in what.items() if value}
    if not args:
        raise ApiRefusal(400, "say what is excluded: fault, pool or node (globs); to withhold everything, pause")
    if asked.seconds is not None:
        args["seconds"] = f"{asked.seconds:g}"
    return _made(ask, order(ask, "exclude", "", asked.reason, args=args))


def include(ask: ApiRequest) -> list[dict[str, Any]]:
    ident = ask.path["id"]
    rows = [row for row in withheld_now(ask) if row.excuse]
    if not ask.repeated and ident not in {row.id for row in rows}:
        raise missing("exclusion", ident, (row.id for row in rows))
    order(ask, "include", ident, ask.query.reason)
    return [withheld_json(row) for row in withheld_now(ask, fresh=True) if row.excuse]


# --- brakes


def tripped(archive: Archive) -> list[Brake]:
    return [brake for brake in archive.brakes() if brake.tripped_at is not None]


def brake_json(brake: Brake) -> dict[str, Any]:
    return {
        "scope": brake.scope,
        "signature": brake.signature,
        "tripped_at": iso(brake.tripped_at),
        "nodes": sorted(brake.seen),
    }


def brakes(ask: ApiRequest) -> list[dict[str, Any]]:
    return [brake_json(brake) for brake in tripped(ask.archive)]


def _scopes(brake: Brake) -> tuple[str, str]:
    """A pool or a domain is written with its cluster or without."""
    kind, _, name = brake.scope.partition(":")
    return brake.scope, f"{kind}:{pool_word(name)}"


def reset(ask: ApiRequest) -> list[dict[str, Any]]:
    """All that are tripped and fit: a storm trips the brakes of its cluster and of its pool."""
    asked: requests.BrakeReset = ask.body
    on = tripped(ask.archive)
    fits = [b for b in on if asked.scope in {"", *_scopes(b)} and asked.signature in {"", b.signature}]
    if not fits and not ask.repeated:
        said = " ".join(word for word in (asked.scope, asked.signature) if word)
        there = ", ".join(f"{b.scope} {b.signature}" for b in on)
        left = f"on are {there}" if there else "there is nothing to reset"
        raise ApiRefusal(409, f"no brake is on{f' for {said}' if said else ''}: {left}")
    for n, brake in enumerate(fits):
        part = replace(ask, key=f"{ask.key}/{n}")  # one of several commands of one request: each has its own key
        order(part, "brake_reset", f"{brake.scope}:{brake.signature}", asked.reason)
    return [brake_json(brake) for brake in tripped(ask.fresh())]


ROUTES = (
    Route(
        "POST", "/v1/pause", pause, "Withhold every disruptive act, for some time or until unpause", answers.Withheld,
        role="operator", body=requests.Pause, ask_example={"reason": "the network is rebuilt", "seconds": 7200},
        answer_example={
            **WITHHELD, "id": "pause-310", "fault": "*", "until": "2026-01-01T02:10:00.000Z",
            "because": "pause by ann: the network is rebuilt",
        },
    ),
    Route(
        "POST", "/v1/unpause", unpause, "Take all pauses back; answers with what is still withheld",
        list[answers.Withheld], role="operator", body=requests.WithReason, ask_example={"reason": "it is done"},
        answer_example=[WITHHELD],
    ),
    Route("GET", "/v1/exclusions", exclusions, "Faults, pools and nodes that are excluded", list[answers.Withheld],
          answer_example=[WITHHELD]),
    Route(
        "POST", "/v1/exclusions", exclude, "Exclude faults, pools or nodes (globs) from all acts", answers.Withheld,
        role="operator", body=requests.Exclude, status=201, answer_example=WITHHELD,
        ask_example={"fault": "xid.63", "reason": "known, harmless"},
    ),
    Route(
        "DELETE", "/v1/exclusions/{id}", include, "Take an exclusion back; answers with those that are left",
        list[answers.Withheld], role="operator", query=requests.Include, path_example={"id": "exclude-311"},
        query_example={"reason": "fixed by the new driver"}, answer_example=[],
    ),
    Route("GET", "/v1/brakes", brakes, "Brakes that are on", list[answers.TrippedBrake], answer_example=[BRAKE]),
    Route(
        "POST", "/v1/brakes/reset", reset, "Reset brakes: one, all of a signature, or all; answers with those still on",
        list[answers.TrippedBrake], role="operator", body=requests.BrakeReset, answer_example=[],
        ask_example={"scope": "pool:train", "signature": "xid.79", "reason": "it was the power"},
    ),
)  # fmt: skip
