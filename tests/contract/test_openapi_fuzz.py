"""Whatever the OpenAPI document allows, and what it does not, gets no server error (fuzzing by schema)."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.support.api_ward import TOKENS, Clinic

from sickbay.faces.api.openapi import document
from sickbay.faces.api.routes import ROUTES

pytestmark = pytest.mark.slow
pytest_plugins = ("schemathesis.pytest.plugin",)  # no other file needs it, so it is not loaded for all (pyproject.toml)

SCHEMA = schemathesis.openapi.from_dict(document(ROUTES)).exclude(path="/v1/events")  # a stream has no end


@SCHEMA.parametrize()
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_nothing_that_is_sent_makes_a_server_error(case: schemathesis.Case[Any], calls: Clinic) -> None:
    role = next(r.role for r in ROUTES if r.path == case.operation.path and r.method == case.operation.method.upper())
    headers = {"Authorization": f"Bearer {TOKENS[role]}"} if role else {}
    response = case.call(base_url=calls.url, headers=headers)
    case.validate_response(
        response,
        checks=[not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance],
    )
