"""The fleet at a glance, and what the controller has told, is told and goes by."""

from datetime import timedelta
from typing import Any

from sickbay.faces.api import answers, requests
from sickbay.faces.api.examples import FLEET
from sickbay.faces.api.incidents import failed_intake
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.api.rows import all_of
from sickbay.faces.api.safety import brake_json, tripped, withheld_json, withheld_now
from sickbay.faces.explain import incident_json, iso, job_json, node_json
from sickbay.model.incident import Incident, IncidentKind
from sickbay.model.intent import Intent, Notify
from sickbay.model.job import Job
from sickbay.policy.diff import to_yaml
from sickbay.policy.load import digest

RECENT = timedelta(hours=1)


def fleet(ask: ApiRequest) -> dict[str, Any]:
    archive = ask.archive
    nodes = archive.nodes()
    now = ask.desk.now()
    jobs = [j for j in all_of(ask, Job, "job") if j.open or (j.closed_at is not None and now - j.closed_at <= RECENT)]
    incidents = [i for i in all_of(ask, Incident, "incident") if i.open]
    shown = [i for i in incidents if i.kind is not IncidentKind.INTAKE or failed_intake(i)]
    pools = dict.fromkeys(node.pool for node in nodes)
    budgets = [archive.budget(pool) for pool in pools]
    return {
        "nodes": [node_json(archive, node) for node in nodes],
        "jobs": [job_json(archive, job) for job in sorted(jobs, key=lambda j: (j.submitted_at, j.id), reverse=True)],
        "incidents": [incident_json(archive, i) for i in sorted(shown, key=lambda i: i.opened_at, reverse=True)],
        "budgets": [{field: getattr(budget, field) for field in budget.__struct_fields__} for budget in budgets],
        "brakes": [brake_json(brake) for brake in tripped(archive)],
        "withheld": [withheld_json(row) for row in withheld_now(ask)],
        "as_of": iso(archive.as_of),
    }


def policy(ask: ApiRequest) -> dict[str, Any]:
    in_force = ask.desk.policy
    return {"name": in_force.name, "digest": digest(in_force), "yaml": to_yaml(in_force)}


def notices(ask: ApiRequest) -> list[dict[str, Any]]:
    found = [
        (intent.planned_at, intent.key, intent.act, intent)
        for intent in all_of(ask, Intent, "intent")
        if isinstance(intent.act, Notify)
    ]
    newest = sorted(found, key=lambda one: one[:2], reverse=True)[: ask.query.limit]
    return [
        {
            "at": iso(at),
            "event": act.event,
            "subject": act.subject,
            "text": act.text,
            "to": act.to,
            "state": intent.state.value,
            "answer": intent.answer,
        }
        for at, _, act, intent in newest
    ]


def audit(ask: ApiRequest) -> list[dict[str, Any]]:
    lines = ask.desk.store.story("operator:", ask.query.limit)
    return [
        {"at": iso(line.at), "text": line.text, "about": [key for key in line.subjects if key != "operator:"]}
        for line in reversed(lines)
    ]


ROUTES = (
    Route(
        "GET", "/v1/fleet", fleet, "Everything at a glance: nodes, jobs, open incidents, what withholds",
        answers.FleetAnswer, answer_example=FLEET,
    ),
    Route(
        "GET", "/v1/policy", policy, "The policy in force", answers.PolicyShown,
        answer_example={"name": "default", "digest": "1f2e3d4c5b6a", "yaml": "name: default\n"},
    ),
    Route(
        "GET", "/v1/notices", notices, "What people were told, newest first", list[answers.Notice],
        query=requests.Latest, query_example={"limit": "20"},
        answer_example=[
            {
                "at": "2026-01-01T00:10:00.000Z", "event": "held", "subject": "incident:i12", "to": "log",
                "text": "lab/train-0000 is held: replace failed", "state": "SEEN", "answer": "",
            }
        ],
    ),
    Route(
        "GET", "/v1/audit", audit, "What operators asked for, newest first", list[answers.Audited],
        query=requests.Latest, query_example={"limit": "20"},
        answer_example=[
            {"at": "2026-01-01T00:10:00.000Z", "text": "ann: cordon: its fan is loud", "about": ["node:lab/train-0000"]}
        ],
    ),
)  # fmt: skip
