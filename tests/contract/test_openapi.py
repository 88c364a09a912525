"""The OpenAPI document says what the API does: its examples fit, and are answered as promised."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
from tests.support.api_ward import TOKENS, Clinic
from tests.support.cases import one_by_one

from sickbay.faces.api.openapi import document, operation_id
from sickbay.faces.api.route import Route
from sickbay.faces.api.routes import ROUTES

pytestmark = pytest.mark.slow


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


@cache
def described() -> dict[str, Any]:
    return document(ROUTES)


def operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = described()["paths"][route.path][route.method.lower()]
    return found


def validate(schema: dict[str, Any], value: Any) -> None:
    whole = {**schema, "components": described()["components"]}
    jsonschema_rs.validator_for(whole, validate_formats=True).validate(value)


def test_the_document_served_is_the_one_made_from_the_table(calls: Clinic) -> None:
    assert calls.nobody.get("/openapi.json").json() == msgspec.json.decode(msgspec.json.encode(document(ROUTES)))


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation_id(route) for route in ROUTES]
    assert len(set(names)) == len(names)


def test_every_object_is_described_under_a_short_name() -> None:
    """Two nouns of one name would be told apart by their module, which is nobody's business."""
    assert all(re.fullmatch(r"[A-Za-z]+", name) for name in described()["components"]["schemas"])


@one_by_one("route", ROUTES, ids=named)
def test_every_route_has_examples_that_fit_their_schemas(route: Route) -> None:
    told = operation(route)
    assert route.summary
    assert re.findall(r"\{(\w+)\}", route.path) == list(route.path_example)
    answer = told["responses"][str(route.status)]["content"][route.media]
    assert answer["example"] is not None
    validate(answer["schema"], answer["example"])
    if route.body is not None:
        asked = told["requestBody"]["content"]["application/json"]
        validate(asked["schema"], asked["example"])
    for parameter in told["parameters"]:
        if "example" in parameter:
            validate(parameter["schema"], parameter["example"])
    for code, refusal in told["responses"].items():
        if code != str(route.status):
            content = refusal["content"]["application/json"]
            validate(content["schema"], content["example"])


def ours(calls: Clinic) -> dict[str, str]:
    """The examples' names are those of another fleet; here they are these."""
    (incident, *_) = calls.viewer.get("/v1/incidents").json()
    return {"lab/": "sim/", "llama-3f2a1": "qwen", "i12": incident["id"]}


def translated(value: Any, words: dict[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in words.items():
            value = value.replace(old, new)
        return "sim" if value == "lab" else value
    if isinstance(value, dict):
        return {name: translated(inner, words) for name, inner in value.items()}
    return [translated(inner, words) for inner in value] if isinstance(value, list) else value


def _asks(route: Route) -> str:
    """A submitter may touch jobs of its own only, and those of the ward are nobody's."""
    return "operator" if route.role == "submitter" else route.role


@pytest.mark.parametrize("route", [route for route in ROUTES if route.media == "application/json"], ids=named)
def test_every_example_is_accepted_by_its_route_and_answered_as_promised(calls: Clinic, route: Route) -> None:
    if route.role == "join":  # of a real node the agent is heard
        route = replace(route, ask_example={**route.ask_example, "name": "new-7"})
    if route.path == "/v1/agent/poll":
        calls.ward.post("look-1")  # else it would be held
    path, words = route.path, ours(calls)
    for name, value in route.path_example.items():
        path = path.replace(f"{{{name}}}", translated(value, words))
    response = httpx.request(
        route.method,
        calls.url + path,
        params=translated(dict(route.query_example), words),
        json=translated(route.ask_example, words) if route.body is not None else None,
        headers={"Authorization": f"Bearer {TOKENS[_asks(route)]}"} if route.role else {},
        timeout=30.0,
        verify=False,  # nothing is encrypted here, and there are many certificates
    )
    told = operation(route)["responses"]
    assert str(response.status_code) in told, response.text
    assert response.status_code not in {400, 401, 403, 413, 503}, response.text
    validate(told[str(response.status_code)]["content"]["application/json"]["schema"], response.json())
