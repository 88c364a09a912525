"""Incidents: what they are, and what a person may say to one."""

from datetime import datetime, timedelta
from functools import partial

from msgspec import structs

from sickbay.brain.orders import only_held
from sickbay.faces.answers import ExplainAnswer, IncidentAnswer, OrderAnswer, OrderedIncident
from sickbay.faces.api import requests
from sickbay.faces.api.examples import EXPLAINED, INCIDENT, ORDER
from sickbay.faces.api.refusal import ApiRefusal, missing
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.archive import Archive
from sickbay.faces.chapters import span_of
from sickbay.faces.explain import explain, incident_answer
from sickbay.faces.orders import order_answer
from sickbay.model.errors import BadInput, NoSuchSubject
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.order import OrderRecord

RECENT = timedelta(days=1)
VERBS = {
    "confirm": "Of a held incident: the node is well, check it and put it back",
    "hold": "Touch nothing more until a person says so",
    "dismiss": "It is nothing: close it and put the node back",
    "escalate": "Of a held incident: try the next higher repair",
}


def listed(ask: ApiRequest, query: requests.Which) -> list[IncidentAnswer]:
    begin = _age(found(ask.archive, query.after, ask)) if query.after else None
    incidents = sorted(ask.all_of(Incident, "incident"), key=_age, reverse=True)
    shown = [one for one in incidents if _shown(ask, one, query.which) and (begin is None or _age(one) < begin)]
    return [incident_answer(ask.archive, one) for one in shown[: query.limit]]


def _age(incident: Incident) -> tuple[datetime, str]:
    """The order of the list, newest first; pages are cut by it, so that one that closes meanwhile shifts nobody."""
    return incident.opened_at, incident.id


def _shown(ask: ApiRequest, incident: Incident, which: str) -> bool:
    if which == "all":
        return True
    if incident.kind is IncidentKind.INTAKE and not failed_intake(incident):
        return False
    if incident.open:
        return True
    recent = incident.closed_at is not None and ask.backend.now() - incident.closed_at <= RECENT
    return which == "recent" and recent


def failed_intake(incident: Incident) -> bool:
    """A newcomer that is only being looked at is no illness."""
    return incident.phase is Phase.HELD or bool(incident.tries) or bool(incident.relapse)


def found(archive: Archive, ident: str, ask: ApiRequest) -> Incident:
    incident = archive.incident(ident)
    if incident is None:
        raise missing("incident", ident, (one.id for one in ask.all_of(Incident, "incident")))
    return incident


def one(ask: ApiRequest) -> IncidentAnswer:
    return incident_answer(ask.archive, found(ask.archive, ask.path["id"], ask))


def act(ask: ApiRequest, body: requests.WithReason, verb: str) -> OrderedIncident:
    incident = found(ask.archive, ask.path["id"], ask)
    if not ask.repeated:
        _fits(incident, verb)
    fate = ask.fate(ask.order(verb, incident.id, body.reason))
    archive = ask.fresh()
    answer = incident_answer(archive, archive.incident(incident.id) or incident)
    return OrderedIncident(**structs.asdict(answer), order=fate)


def order(ask: ApiRequest) -> OrderAnswer:
    record = ask.archive.order(ask.path["id"])
    if record is None:
        raise missing("order", ask.path["id"], (one.id for one in ask.all_of(OrderRecord, "order")))
    return order_answer(ask.archive, record)


def _fits(incident: Incident, verb: str) -> None:
    if not incident.open:
        raise ApiRefusal(409, f"{incident.id} is over ({incident.phase}): there is nothing to {verb}")
    if verb in {"confirm", "escalate"} and incident.phase is not Phase.HELD:
        raise ApiRefusal(409, f"{incident.id}: {only_held(incident)}")
    if verb == "hold" and incident.closing is not None:
        raise ApiRefusal(
            409, f"{incident.id} is being closed: it is too late to hold it; cordon {incident.node} instead"
        )


def explained(ask: ApiRequest, query: requests.Explained) -> ExplainAnswer:
    try:
        span = span_of(query.since, ask.backend.now(), everything=query.all)
        return explain(ask.reads(), query.name, ask.backend.policies, span)
    except BadInput as error:
        raise ApiRefusal(404 if isinstance(error, NoSuchSubject) else 400, str(error)) from None


ROUTES = (
    Route(
        "GET", "/v1/incidents", listed,
        "Incidents, newest first: open ones and those closed within a day, or only open ones, or all",
        query_example={"which": "open"}, answer_example=[INCIDENT],
    ),
    Route(
        "GET", "/v1/incidents/{id}", one, "One incident",
        path_example={"id": "i12"}, answer_example=INCIDENT,
    ),
    *(
        Route(
            "POST", f"/v1/incidents/{{id}}/{verb}", partial(act, verb=verb), about,
            role="operator", path_example={"id": "i12"},
            answer_example={**INCIDENT, "order": {**ORDER, "verb": verb, "target": "i12"}},
            ask_example={"reason": "seen by the technician"},
        )
        for verb, about in VERBS.items()
    ),
    Route(
        "GET", "/v1/orders/{id}", order, "What has become of an order of a person",
        path_example={"id": "order-5f2a1c9d3e"}, answer_example=ORDER,
    ),
    Route(
        "GET", "/v1/explain", explained, "Why a node, a job or an incident is as it is, what it waits for, its story",
        query_example={"name": "train-0000", "since": "2h"}, answer_example=EXPLAINED,
    ),
)  # fmt: skip
