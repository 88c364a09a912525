"""Who may do what: every route of the table with every kind of caller."""

from collections.abc import Iterator

import httpx
import pytest
from tests.support.api_ward import TOKENS, Caller, Clinic, clinic

from sickbay.faces.api.route import Route
from sickbay.faces.api.routes import ROUTES

CLOSED = [route for route in ROUTES if route.role]
OPEN = [route for route in ROUTES if not route.role]
MAY = {"viewer": {"viewer"}, "operator": {"viewer", "operator"}, "agent": {"agent"}}


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic() as made:
        yield made


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def call(caller: Caller, route: Route, body: object = None) -> httpx.Response:
    """With a body that no route takes: whoever is let in is told so, and nothing is done."""
    path = route.path
    for name in route.path_example:
        path = path.replace(f"{{{name}}}", "nowhere")
    with caller.http.stream(route.method, path, params={"nonsense": "1"}, json=body) as response:
        response.read()
    return response


@pytest.mark.parametrize("route", CLOSED, ids=named)
def test_nobody_gets_in_without_a_token(calls: Clinic, route: Route) -> None:
    response = call(calls.nobody, route)
    assert response.status_code == 401
    assert "Authorization: Bearer" in response.json()["error"]
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("route", CLOSED, ids=named)
@pytest.mark.parametrize("secret", ["wrong", TOKENS["operator"] + "x", "ünknown", "-"])
def test_nobody_gets_in_with_a_token_that_is_not_known(calls: Clinic, route: Route, secret: str) -> None:
    headers = {b"Authorization": f"Bearer {secret}".encode()}
    response = calls.nobody.http.request(route.method, route.path, headers=headers)
    assert response.status_code == 401
    assert secret not in response.text or secret == "-"


@pytest.mark.parametrize("route", CLOSED, ids=named)
@pytest.mark.parametrize("role", sorted(TOKENS))
def test_a_role_opens_its_own_routes_and_no_other(calls: Clinic, route: Route, role: str) -> None:
    response = call(getattr(calls, role), route)
    if route.role in MAY[role]:
        assert response.status_code == 400, response.text  # let in: the nonsense in the query is what is refused
        assert "nonsense" in response.json()["error"]
    else:
        assert response.status_code == 403
        assert f"has the role {role}" in response.json()["error"]


@pytest.mark.parametrize("route", OPEN, ids=named)
def test_what_needs_no_token_needs_none(calls: Clinic, route: Route) -> None:
    response = calls.nobody.get(route.path)
    assert response.status_code == 200


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "bearer", "secret-of-otto"])
def test_an_authorization_of_another_kind_is_refused_with_a_line(calls: Clinic, header: str) -> None:
    response = calls.nobody.http.get("/v1/nodes", headers={"Authorization": header})
    assert response.status_code == 401
    assert "Bearer <token>" in response.json()["error"]


def test_the_word_bearer_may_be_written_in_any_case(calls: Clinic) -> None:
    headers = {"Authorization": f"bEARER  {TOKENS['viewer']}"}
    assert calls.nobody.http.get("/v1/nodes", headers=headers).status_code == 200


def test_a_revoked_token_opens_nothing_from_then_on(calls: Clinic) -> None:
    made = calls.operator.post("/v1/tokens", {"name": "guest", "role": "viewer"})
    assert made.status_code == 201
    guest = Caller(calls.url, made.json()["token"])
    assert guest.get("/v1/nodes").status_code == 200
    gone = calls.operator.http.delete("/v1/tokens/guest")
    assert gone.json() == {"name": "guest", "revoked": True}
    assert guest.get("/v1/nodes").status_code == 401
    guest.http.close()


def test_a_token_that_was_revoked_elsewhere_is_not_remembered(calls: Clinic) -> None:
    secret = calls.ward.desk.issue("visitor", "viewer", by="setup")
    visitor = Caller(calls.url, secret)
    assert visitor.get("/v1/nodes").status_code == 200
    calls.ward.desk.revoke("visitor", by="setup")
    assert visitor.get("/v1/nodes").status_code == 401
    visitor.http.close()


def test_tokens_are_listed_without_anything_that_opens_a_door(calls: Clinic) -> None:
    shown = calls.operator.get("/v1/tokens")
    assert {"agent", "operator", "viewer"} <= {token["name"] for token in shown.json()}
    assert all(set(token) == {"name", "role", "node", "by", "issued_at"} for token in shown.json())
    for secret in TOKENS.values():
        assert secret not in shown.text


@pytest.mark.parametrize(
    ("asked", "status", "says"),
    [
        ({"name": "operator", "role": "viewer"}, 409, "already"),
        ({"name": "a", "role": "king"}, 400, "role"),
        ({"name": "a b", "role": "viewer"}, 400, "name"),
        ({"name": "a\n", "role": "viewer"}, 400, "name"),
        ({"name": "a" * 64, "role": "viewer"}, 400, "name"),
        ({"name": "a", "role": "agent"}, 400, "<cluster>/<name>"),
        ({"name": "a", "role": "agent", "node": "train-0001"}, 400, "<cluster>/<name>"),
        ({"name": "a", "role": "viewer", "node": "sim/train-0001"}, 400, "agents only"),
        ({"role": "viewer"}, 400, "'name' is missing"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(calls: Clinic, asked: dict[str, str], status: int, says: str) -> None:
    response = calls.operator.post("/v1/tokens", asked)
    assert response.status_code == status
    assert says in response.json()["error"]


def test_the_last_operator_cannot_lock_everybody_out(calls: Clinic) -> None:
    response = calls.operator.http.delete("/v1/tokens/operator")
    assert response.status_code == 409
    assert calls.operator.get("/v1/tokens").status_code == 200


def test_a_token_that_is_not_there_cannot_be_revoked(calls: Clinic) -> None:
    response = calls.operator.http.delete("/v1/tokens/viewre")
    assert response.status_code == 404
    assert "did you mean viewer?" in response.json()["error"]


def test_every_token_that_was_made_or_revoked_is_in_the_audit_log(calls: Clinic) -> None:
    calls.operator.post("/v1/tokens", {"name": "short-lived", "role": "viewer"})
    calls.operator.http.delete("/v1/tokens/short-lived")
    lines = [line["text"] for line in calls.viewer.get("/v1/audit").json()]
    assert lines[0].startswith("operator: token 'short-lived' revoked")
    assert lines[1].startswith("operator: token 'short-lived' for the role viewer")
