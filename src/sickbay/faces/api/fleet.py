"""The dashboard's answer (the fleet at a glance), the policy in force, and the audit log."""

from datetime import timedelta
from itertools import islice

from sickbay.faces.api import requests
from sickbay.faces.api.examples import FLEET
from sickbay.faces.api.incidents import failed_intake
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.api.safety import tripped, withheld_answer, withheld_now
from sickbay.faces.archive import iso
from sickbay.faces.explain import incident_answer, job_answer, node_answer
from sickbay.faces.fleet_answers import Audited, FleetAnswer, PolicyShown
from sickbay.faces.turns import Turns
from sickbay.model.incident import Incident, IncidentKind
from sickbay.model.job import Job
from sickbay.model.rows import AUDIT, AuditEntry, Line
from sickbay.policy.diff import to_yaml
from sickbay.policy.load import digest

RECENT = timedelta(hours=1)
AUDIT_LINES = 20_000  # that are looked through
OLD_ACTS = frozenset({"order"})  # of lines that were written before they said who and why by themselves


def fleet(ask: ApiRequest) -> FleetAnswer:
    archive = ask.archive
    nodes = archive.nodes()
    now = ask.backend.now()
    jobs = [j for j in ask.all_of(Job, "job") if j.open or (j.closed_at is not None and now - j.closed_at <= RECENT)]
    incidents = [i for i in ask.all_of(Incident, "incident") if i.open]
    shown = [i for i in incidents if i.kind is not IncidentKind.INTAKE or failed_intake(i)]
    pools = dict.fromkeys(node.pool for node in nodes)
    turns = Turns(jobs)
    return FleetAnswer(
        nodes=[node_answer(archive, node) for node in nodes],
        jobs=[job_answer(job, turns) for job in sorted(jobs, key=lambda j: (j.submitted_at, j.id), reverse=True)],
        incidents=[incident_answer(archive, i) for i in sorted(shown, key=lambda i: i.opened_at, reverse=True)],
        budgets=[archive.budget(pool) for pool in pools],
        brakes=tripped(archive),
        withheld=[withheld_answer(row) for row in withheld_now(ask)],
        trouble=ask.shared.trouble() if ask.shared.trouble is not None else "",
        as_of=iso(archive.as_of),
    )


def policy(ask: ApiRequest) -> PolicyShown:
    in_force = ask.backend.policy
    return PolicyShown(name=in_force.name, digest=digest(in_force), yaml=to_yaml(in_force))


def audit(ask: ApiRequest, query: requests.AuditAsked) -> list[Audited]:
    """What people did. Beside it the store has what the engine could not do for want of a person."""
    begin = ask.backend.now() - timedelta(seconds=query.since) if query.since is not None else None
    lines = ask.backend.store.story(AUDIT, AUDIT_LINES)
    shown = [
        line
        for line in reversed(lines)
        if (line.audit is not None or line.event in OLD_ACTS) and (begin is None or line.at >= begin)
    ]
    acts = (_audited(line) for line in shown)
    return list(islice((act for act in acts if query.by in {"", act.by} and _is_about(act, query.target)), query.limit))


def _audited(line: Line) -> Audited:
    entry = line.audit or AuditEntry(by="", verb="")
    about = [key for key in line.subjects if key != AUDIT]
    return Audited(
        at=iso(line.at), by=entry.by, verb=entry.verb, target=entry.target, reason=entry.reason, text=line.text,
        about=about,
    )  # fmt: skip


def _is_about(act: Audited, target: str) -> bool:
    """A node with its cluster or without."""
    names = [act.target, *(key.partition(":")[2] for key in act.about)]
    return not target or any(target in {name, name.rpartition("/")[2]} for name in names)


ROUTES = (
    Route(
        "GET", "/v1/fleet", fleet, "Everything at a glance: nodes, jobs, open incidents, what withholds",
        answer_example=FLEET,
    ),
    Route(
        "GET", "/v1/policy", policy, "The policy in force",
        answer_example={"name": "default", "digest": "1f2e3d4c5b6a", "yaml": "name: default\n"},
    ),
    Route(
        "GET", "/v1/audit", audit, "What people did, newest first: who, when, why",
        query_example={"limit": "20", "by": "ann"},
        answer_example=[
            {
                "at": "2026-01-01T00:10:00.000Z", "by": "ann", "verb": "cordon", "target": "lab/train-0000",
                "reason": "its fan is loud", "text": "ann: cordon: its fan is loud", "about": ["node:lab/train-0000"],
            }
        ],
    ),
)  # fmt: skip
