"""The OpenAPI document, made from the routing table."""

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect as mi

import sickbay
from sickbay.faces.answers import Error
from sickbay.faces.api.route import Route
from sickbay.model.noun import Noun

REFUSALS = {
    "400": ("what was sent cannot be used", "there is no field 'node': did you mean nodes? It takes name, nodes, on"),
    "401": ("no token, or one that is not known", "a token is needed: send the header 'Authorization: Bearer <token>'"),
    "403": ("the token's role does not suffice", "token 'vera' has the role viewer, and this needs the role operator"),
    "404": ("there is no such thing", "there is no node 'train-00': did you mean train-0000?"),
    "409": ("it does not fit the present state", "i12 is over (RELEASED): there is nothing to hold"),
    "413": ("the body is too large", "the body is too large: at most 1 MiB are taken here"),
    "429": ("too much at once", "this token has 64 streams and held requests open: close some first"),
    "503": ("the store, the engine or a cluster does not answer", "the store is not available: try again in a moment"),
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Sent twice with the same key, it has one effect.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    "example": "7c9e6679-7425-40de-944b-e07fc1f90ae7",
}
PATH_TEXT = {"type": "string", "minLength": 1, "maxLength": 200}


@cache
def document(routes: tuple[Route, ...]) -> dict[str, Any]:
    types = [kind for route in routes for kind in (route.returns, route.body) if kind is not None]
    schemas, components = msgspec.json.schema_components([*types, Error], ref_template="#/components/schemas/{name}")
    known = {_name(kind): schema for kind, schema in zip([*types, Error], schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sickbay",
            "version": sickbay.__version__,
            "description": "Keeps GPU clusters training. Times are ISO 8601 in UTC, durations are seconds.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _name(kind: Any) -> str:
    return str(kind)


def _operation(route: Route, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(route),
        "summary": route.summary,
        "tags": [_tag(route)],
        "parameters": [*_path(route), *_query(route), *([IDEMPOTENCY] if route.changes else [])],
        "responses": {str(route.status): _answer(route, known), **_refusals(route)},
    }
    if route.role:
        operation["description"] = f"Needs the role {route.role}."
    else:
        operation["security"] = []
    if route.body is not None:
        content = {"schema": known[_name(route.body)], "example": route.ask_example}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def operation_id(route: Route) -> str:
    words = re.sub(r"[{}]", "", route.path.removeprefix("/v1")).strip("/").replace(".", "/").split("/")
    return "_".join([route.method.lower(), *(word for word in words if word)])


def _tag(route: Route) -> str:
    parts = route.path.strip("/").split("/")
    return parts[1] if parts[0] == "v1" else "about"


def _path(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": PATH_TEXT, "example": route.path_example[name]}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]


def _query(route: Route) -> list[dict[str, Any]]:
    shown = []
    for field, schema in _fields(route.query):
        one: dict[str, Any] = {"name": field.encode_name, "in": "query", "required": field.required, "schema": schema}
        if "description" in schema:
            one["description"] = schema.pop("description")
        if field.encode_name in route.query_example:
            one["example"] = _typed(route.query_example[field.encode_name], schema)
        shown.append(one)
    return shown


def _fields(kind: type[Noun]) -> list[tuple[mi.Field, dict[str, Any]]]:
    info = mi.type_info(kind)
    assert isinstance(info, mi.StructType)
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return [(field, _in_query(dict(properties[field.encode_name]))) for field in info.fields]


def _in_query(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: what may be left out is left out."""
    some = [one for one in schema.pop("anyOf", []) if one.get("type") != "null"]
    enum = [value for value in schema.get("enum", []) if value is not None]
    schema = {**schema, **(some[0] if some else {}), **({"enum": enum} if enum else {})}
    if schema.get("default", 0) is None:
        del schema["default"]
    return schema


def _typed(text: str, schema: dict[str, Any]) -> Any:
    return int(text) if schema.get("type") == "integer" else text


def _answer(route: Route, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    content = {"schema": known[_name(route.returns)], "example": route.answer_example}
    return {"description": route.summary, "content": {route.media: content}}


def _refusals(route: Route) -> dict[str, Any]:
    codes = ["400", "503"]
    codes += ["401", "403"] if route.role else []
    codes += ["413"] if route.body is not None else []
    named = "{" in route.path or route.body is not None or route.query.__struct_fields__
    codes += ["404"] if named else []
    codes += ["429"] if route.held else []
    codes += ["409"] if route.changes else []
    return {
        code: {
            "description": REFUSALS[code][0],
            "content": {
                "application/json": {
                    "schema": {"$ref": "#/components/schemas/Error"},
                    "example": {"error": REFUSALS[code][1]},
                }
            },
        }
        for code in sorted(codes)
    }
