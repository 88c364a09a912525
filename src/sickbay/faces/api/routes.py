"""The routing table, and what needs no token: whether it lives, what there is, and how it is spoken to."""

from typing import Any

import sickbay
from sickbay.faces import answers
from sickbay.faces.api import (
    checks,
    doctor,
    events,
    fleet,
    held,
    incidents,
    jobs,
    join,
    metrics,
    nodes,
    notices,
    restart,
    safety,
    tokens,
)
from sickbay.faces.api.openapi import document
from sickbay.faces.api.route import ApiRequest, Route


def health(ask: ApiRequest) -> answers.Health:
    """It can be reached, so 200 even in trouble. What the trouble is names files of this machine: not for everybody."""
    leads, trouble = ask.shared.leads, ask.shared.trouble
    status = "in trouble" if trouble is not None and trouble() else "ok"
    return answers.Health(status=status, leads=leads() if leads is not None else None, version=sickbay.__version__)


def index(ask: ApiRequest) -> answers.Index:
    del ask
    return answers.Index(
        name="sickbay",
        version=sickbay.__version__,
        about="Keeps GPU clusters training. Send 'Authorization: Bearer <token>' to all paths below /v1.",
        openapi="/openapi.json",
        routes={f"{route.method} {route.path}": route.summary for route in ROUTES},
    )


def openapi(ask: ApiRequest) -> dict[str, Any]:
    del ask
    return document(ROUTES)


ROUTES = (
    Route(
        "GET", "/", index, "What there is", role="",
        answer_example={
            "name": "sickbay", "version": "0.1", "about": "Keeps GPU clusters training.", "openapi": "/openapi.json",
            "routes": {"GET /v1/nodes": "All nodes, or those of one pool"},
        },
    ),
    Route(
        "GET", "/healthz", health, "Whether it lives, and whether this one leads", role="",
        answer_example={"status": "ok", "leads": True, "version": "0.1"},
    ),
    Route("GET", "/openapi.json", openapi, "This document", role="", answer_example={"openapi": "3.1.0"}),
    *nodes.ROUTES,
    *metrics.ROUTES,
    *jobs.ROUTES,
    *restart.ROUTES,
    *incidents.ROUTES,
    *checks.ROUTES,
    *fleet.ROUTES,
    *doctor.ROUTES,
    *notices.ROUTES,
    *safety.ROUTES,
    *tokens.ROUTES,
    *events.ROUTES,
    *held.ROUTES,
    *join.ROUTES,
)  # fmt: skip
