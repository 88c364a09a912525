"""Checks that a person asks for: begun at once on all idle nodes that are meant, answered node by node."""

from sickbay.faces.api import requests
from sickbay.faces.api.nodes import by_name
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.fleet_answers import CheckBegun, CheckResult, CheckShown, CheckTest, SkippedAnswer
from sickbay.model.checkup import CheckFinding, Checkup, Tested, checkup_id
from sickbay.model.fleet import pool_word
from sickbay.model.intent import Intent, Verify
from sickbay.model.parts import whole

LISTED_WITHIN = 10.0  # seconds that the caller waits until it is known which nodes are checked


def begin(ask: ApiRequest, body: requests.Check) -> CheckBegun:
    target, args = _meant(ask, body)
    ask.order("check", target, body.reason, args={**args, "level": str(body.level)})
    ident = checkup_id(f"order/{ask.key}")
    ask.backend.changes.wait(lambda: _listed(ask, ident), LISTED_WITHIN)
    checkup = _checkup(ask, ident)
    if checkup is None:
        raise ApiRefusal(503, f"{ident} is noted, but the engine has not taken it up yet: look at it in a moment")
    if checkup.target is not None and checkup.skipped and not checkup.nodes:
        raise ApiRefusal(409, f"{checkup.target} cannot be checked now: {checkup.skipped[checkup.target]}")
    skipped = [SkippedAnswer(node=node, because=why) for node, why in sorted(checkup.skipped.items())]
    nodes: list[str] = [node for intent in _intents(ask, checkup) for node in _nodes(intent)]
    return CheckBegun(check=ident, nodes=nodes, skipped=skipped)


def _meant(ask: ApiRequest, asked: requests.Check) -> tuple[str, dict[str, str]]:
    """One node, one pool, or all. Raises ApiRefusal."""
    given = [name for name, value in (("node", asked.node), ("pool", asked.pool), ("all", asked.all)) if value]
    if len(given) != 1:
        raise ApiRefusal(400, f"say what is checked: one of node, pool and all (given: {', '.join(given) or 'none'})")
    if asked.node:
        return by_name(ask.archive, asked.node).id, {}
    nodes = ask.archive.nodes()
    if asked.pool and all(asked.pool not in {node.pool, pool_word(node.pool)} for node in nodes):
        raise missing("pool", asked.pool, (node.pool for node in nodes))
    return "", {"pool": asked.pool} if asked.pool else {"all": "1"}


def _checkup(ask: ApiRequest, ident: str) -> Checkup | None:
    row = ask.backend.store.load([key := f"checkup:{ident}"])[key].row
    return row if isinstance(row, Checkup) else None


def _listed(ask: ApiRequest, ident: str) -> bool:
    checkup = _checkup(ask, ident)
    return checkup is not None and (checkup.listed or not checkup.open)


def _intents(ask: ApiRequest, checkup: Checkup) -> list[Intent]:
    load = ask.backend.store.load
    return [found.row for found in whole(load(checkup.intents), load).values() if isinstance(found.row, Intent)]


def _nodes(intent: Intent) -> list[str]:
    return list(intent.act.nodes) if isinstance(intent.act, Verify) else []


def one(ask: ApiRequest) -> CheckShown:
    checkup = _checkup(ask, ask.path["id"])
    if checkup is None:
        raise missing("check", ask.path["id"], (row.id for row in ask.all_of(Checkup, "checkup")))
    results = [result for intent in _intents(ask, checkup) for result in _results(intent, checkup.level)]
    return CheckShown(check=checkup.id, level=checkup.level, over=not checkup.open, results=results)


def _results(intent: Intent, level: int) -> list[CheckResult]:
    """Of the nodes that have answered, or will not any more."""
    shown = []
    for node in intent.act.nodes if isinstance(intent.act, Verify) else ():
        finding = intent.found.get(node)
        if finding is None and node in intent.verdicts:
            finding = CheckFinding(verdict=intent.verdicts[node])
        if finding is not None:
            tests = [_test(test) for test in finding.tests]
            verdict, because = finding.verdict, finding.because
            shown.append(CheckResult(node=node, level=level, verdict=verdict, tests=tests, because=because))
    return shown


def _test(test: Tested) -> CheckTest:
    return CheckTest(name=test.name, verdict=test.verdict, seconds=test.seconds, because=test.because)


_RESULT = {
    "node": "lab/train-0000",
    "level": 2,
    "verdict": "pass",
    "tests": [{"name": "memory", "verdict": "pass", "seconds": 0.6, "because": ""}],
    "because": "",
}

ROUTES = (
    Route(
        "POST", "/v1/checks", begin, "Check one idle node, all idle nodes of a pool, or all",
        role="operator", status=202, ask_example={"pool": "train", "level": 2},
        answer_example={
            "check": "check-0a1b2c3d4e", "nodes": ["lab/train-0000"],
            "skipped": [{"node": "lab/train-0001", "because": "job llama-3f2a1 has it"}],
        },
    ),
    Route(
        "GET", "/v1/checks/{id}", one, "What a check has found so far",
        path_example={"id": "check-0a1b2c3d4e"},
        answer_example={"check": "check-0a1b2c3d4e", "level": 2, "over": True, "results": [_RESULT]},
    ),
)  # fmt: skip
