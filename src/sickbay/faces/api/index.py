"""What needs no token: whether it lives, what there is, and how it is spoken to."""

from typing import Any

import sickbay
from sickbay.faces.api import answers
from sickbay.faces.api.route import ApiRequest, Route


def health(ask: ApiRequest) -> dict[str, Any]:
    """It can be reached, so 200 even in trouble. What the trouble is names files of this machine: not for everybody."""
    leads, trouble = ask.room.leads, ask.room.trouble
    status = "in trouble" if trouble is not None and trouble() else "ok"
    return {"status": status, "leads": leads() if leads is not None else None, "version": sickbay.__version__}


def index(ask: ApiRequest) -> dict[str, Any]:
    del ask
    from sickbay.faces.api.routes import ROUTES  # here: that table holds this one

    return {
        "name": "sickbay",
        "version": sickbay.__version__,
        "about": "Keeps GPU clusters training. Send 'Authorization: Bearer <token>' to all paths below /v1.",
        "openapi": "/openapi.json",
        "routes": {f"{route.method} {route.path}": route.summary for route in ROUTES},
    }


def openapi(ask: ApiRequest) -> dict[str, Any]:
    del ask
    from sickbay.faces.api.openapi import document

    return document()


ROUTES = (
    Route(
        "GET", "/", index, "What there is", answers.Index, role="",
        answer_example={
            "name": "sickbay", "version": "0.1", "about": "Keeps GPU clusters training.", "openapi": "/openapi.json",
            "routes": {"GET /v1/nodes": "All nodes, or those of one pool"},
        },
    ),
    Route(
        "GET", "/healthz", health, "Whether it lives, and whether this one leads", answers.Health, role="",
        answer_example={"status": "ok", "leads": True, "version": "0.1"},
    ),
    Route(
        "GET", "/openapi.json", openapi, "This document", dict[str, Any], role="",
        answer_example={"openapi": "3.1.0"},
    ),
)  # fmt: skip
