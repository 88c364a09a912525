"""Incidents: what they are, and what a person may say to one."""

from datetime import timedelta
from functools import partial
from typing import Any

from sickbay.faces.api import answers, requests
from sickbay.faces.api.examples import EXPLAINED, INCIDENT
from sickbay.faces.api.orders import order
from sickbay.faces.api.reading import RequestReads
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.api.rows import all_of
from sickbay.faces.archive import Archive
from sickbay.faces.explain import explain, incident_json
from sickbay.model.errors import BadInput, NoSuchSubject
from sickbay.model.incident import Incident, IncidentKind, Phase

RECENT = timedelta(days=1)
VERBS = {
    "confirm": "Of a held incident: the node is well, check it and put it back",
    "hold": "Touch nothing more until a person says so",
    "dismiss": "It is nothing: close it and put the node back",
    "escalate": "Of a held incident: try the next higher repair",
}


def listed(ask: ApiRequest) -> list[dict[str, Any]]:
    incidents = sorted(all_of(ask, Incident, "incident"), key=lambda i: (i.opened_at, i.id), reverse=True)
    shown = [one for one in incidents if _shown(ask, one)]
    return [incident_json(ask.archive, one) for one in shown[: ask.query.limit]]


def _shown(ask: ApiRequest, incident: Incident) -> bool:
    if ask.query.which == "all":
        return True
    if incident.kind is IncidentKind.INTAKE and not failed_intake(incident):
        return False
    if incident.open:
        return True
    recent = incident.closed_at is not None and ask.desk.now() - incident.closed_at <= RECENT
    return ask.query.which == "recent" and recent


def failed_intake(incident: Incident) -> bool:
    """A newcomer that is only being looked at is no illness."""
    return incident.phase is Phase.HELD or bool(incident.tries) or bool(incident.relapse)


def found(archive: Archive, ident: str, ask: ApiRequest) -> Incident:
    incident = archive.incident(ident)
    if incident is None:
        raise missing("incident", ident, (one.id for one in all_of(ask, Incident, "incident")))
    return incident


def one(ask: ApiRequest) -> dict[str, Any]:
    return incident_json(ask.archive, found(ask.archive, ask.path["id"], ask))


def act(ask: ApiRequest, verb: str) -> dict[str, Any]:
    incident = found(ask.archive, ask.path["id"], ask)
    if not ask.repeated:
        _fits(incident, verb)
    order(ask, verb, incident.id, ask.body.reason)
    archive = ask.fresh()
    return incident_json(archive, archive.incident(incident.id) or incident)


def _fits(incident: Incident, verb: str) -> None:
    if not incident.open:
        raise ApiRefusal(409, f"{incident.id} is over ({incident.phase}): there is nothing to {verb}")
    if verb in {"confirm", "escalate"} and incident.phase is not Phase.HELD:
        raise ApiRefusal(409, f"{incident.id} is {incident.phase}: {verb} is for incidents that are HELD")
    if verb == "hold" and incident.closing is not None:
        raise ApiRefusal(
            409, f"{incident.id} is being closed: it is too late to hold it; cordon {incident.node} instead"
        )


def explained(ask: ApiRequest) -> dict[str, Any]:
    store: Any = RequestReads(ask.desk.store)
    try:
        return explain(store, ask.query.name, ask.desk.policies).as_json()
    except BadInput as error:
        raise ApiRefusal(404 if isinstance(error, NoSuchSubject) else 400, str(error)) from None


ROUTES = (
    Route(
        "GET", "/v1/incidents", listed,
        "Incidents, newest first: open ones and those closed within a day, or only open ones, or all",
        list[answers.IncidentAnswer], query=requests.Which, query_example={"which": "open"}, answer_example=[INCIDENT],
    ),
    Route(
        "GET", "/v1/incidents/{id}", one, "One incident", answers.IncidentAnswer,
        path_example={"id": "i12"}, answer_example=INCIDENT,
    ),
    *(
        Route(
            "POST", f"/v1/incidents/{{id}}/{verb}", partial(act, verb=verb), about, answers.IncidentAnswer,
            role="operator", body=requests.WithReason, path_example={"id": "i12"}, answer_example=INCIDENT,
            ask_example={"reason": "seen by the technician"},
        )
        for verb, about in VERBS.items()
    ),
    Route(
        "GET", "/v1/explain", explained, "Why a node, a job or an incident is as it is, its story, what it waits for",
        answers.ExplainAnswer, query=requests.NameGiven, query_example={"name": "train-0000"}, answer_example=EXPLAINED,
    ),
)  # fmt: skip
