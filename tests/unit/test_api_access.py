"""Who may do what: every route of the table with every kind of caller."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from tests.support.api_ward import TOKENS, Caller, Clinic, clinic
from tests.support.cases import one_by_one
from tests.support.waiting import until

from sickbay.faces.api import endpoint, events, tokens
from sickbay.faces.api.route import Route
from sickbay.faces.api.routes import ROUTES
from sickbay.hosts.first_tokens import agree_on
from sickbay.model.fleet import NodeId, Role
from sickbay.model.rows import Line, Unit

CLOSED = [route for route in ROUTES if route.role]
OPEN = [route for route in ROUTES if not route.role]
MAY = {
    "viewer": {"viewer"},
    "submitter": {"viewer", "submitter"},
    "operator": {"viewer", "submitter", "operator"},
    "admin": {"viewer", "submitter", "operator", "admin"},
    "agent": {"agent"},
    "join": {"join"},
}


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


@one_by_one("route", CLOSED, ids=named)
@one_by_one("secret", ["wrong", TOKENS["operator"] + "x", "ünknown", "-"])
def test_nobody_gets_in_with_a_token_that_is_not_known(calls: Clinic, route: Route, secret: str) -> None:
    headers = {b"Authorization": f"Bearer {secret}".encode()}
    response = calls.nobody.http.request(route.method, route.path, headers=headers)
    assert response.status_code == 401
    assert secret not in response.text or secret == "-"


@one_by_one("route", CLOSED, ids=named)
@one_by_one("role", sorted(TOKENS))
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
    made = calls.admin.post("/v1/tokens", {"name": "guest", "role": "viewer"})
    assert made.status_code == 201
    guest = Caller(calls.url, made.json()["token"])
    assert guest.get("/v1/nodes").status_code == 200
    gone = calls.admin.http.delete("/v1/tokens/guest")
    assert gone.json() == {"name": "guest", "revoked": True}
    assert guest.get("/v1/nodes").status_code == 401
    guest.http.close()


def test_a_token_that_was_revoked_elsewhere_is_not_remembered(calls: Clinic) -> None:
    secret = calls.ward.desk.issue("visitor", Role.VIEWER, by="setup")
    visitor = Caller(calls.url, secret)
    assert visitor.get("/v1/nodes").status_code == 200
    calls.ward.desk.revoke("visitor", by="setup")
    assert visitor.get("/v1/nodes").status_code == 401
    visitor.http.close()


def test_tokens_are_listed_without_anything_that_opens_a_door(calls: Clinic) -> None:
    shown = calls.admin.get("/v1/tokens")
    assert {"agent", "operator", "viewer"} <= {token["name"] for token in shown.json()}
    keys = {"name", "role", "node", "cluster", "by", "issued_at", "expires_at", "expired", "used_at"}
    assert all(set(token) == keys for token in shown.json())
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
        ({"name": "a", "role": "agent", "node": "train-7001"}, 404, "did you mean"),
        ({"name": "a", "role": "agent", "node": "lab/train-0001"}, 400, "there is no cluster 'lab'"),
        ({"name": "a", "role": "viewer", "seconds": 1}, 400, "seconds"),
        ({"name": "a", "role": "viewer", "node": "sim/train-0001"}, 400, "agents only"),
        ({"role": "viewer"}, 400, "'name' is missing"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_made(calls: Clinic, asked: dict[str, str], status: int, says: str) -> None:
    response = calls.admin.post("/v1/tokens", asked)
    assert response.status_code == status
    assert says in response.json()["error"]


def test_the_last_admin_cannot_lock_everybody_out(calls: Clinic) -> None:
    for_a_day = calls.admin.post("/v1/tokens", {"name": "deputy", "role": "admin", "seconds": 86_400})
    assert for_a_day.status_code == 201  # but not for good
    response = calls.admin.http.delete("/v1/tokens/admin")
    assert response.status_code == 409
    assert calls.admin.get("/v1/tokens").status_code == 200


def test_two_admins_who_revoke_one_another_at_once_leave_one() -> None:
    """Each request was right when it was looked at: the engine, which has them in their order, has the last word."""
    with clinic(after=30.0) as own:
        own.admin.post("/v1/tokens", {"name": "second", "role": "admin"})
        own.ward.desk.revoke("admin", by="second")
        own.ward.desk.revoke("second", by="admin")
        assert own.ward.desk.who(TOKENS["admin"]) is None
        acts = own.viewer.get("/v1/audit").json()[:2]
        assert [(act["verb"], act["target"]) for act in acts] == [("token revoke", "second"), ("token revoke", "admin")]
        told = {line.text for line in own.ward.sim.store.story("operator:")}
        assert "admin: token 'second': not revoked: it is the last admin's" in told


def test_a_token_that_is_not_there_cannot_be_revoked(calls: Clinic) -> None:
    response = calls.admin.http.delete("/v1/tokens/viewre")
    assert response.status_code == 404
    assert "did you mean viewer?" in response.json()["error"]


def test_every_token_that_was_made_or_revoked_is_in_the_audit_log(calls: Clinic) -> None:
    calls.admin.post("/v1/tokens", {"name": "short-lived", "role": "viewer"})
    calls.admin.http.delete("/v1/tokens/short-lived")
    lines = [line["text"] for line in calls.viewer.get("/v1/audit").json()]
    assert lines[0].startswith("admin: token 'short-lived' revoked")
    assert lines[1].startswith("admin: token 'short-lived' for the role viewer")


def test_a_missing_token_is_answered_with_tokens_not_with_nodes(calls: Clinic) -> None:
    response = calls.admin.http.delete("/v1/tokens/bob")
    assert response.status_code == 404
    assert "train-0" not in response.json()["error"]
    assert "admin" in response.json()["error"]


def test_a_token_expires_and_says_so(calls: Clinic) -> None:
    made = calls.admin.post("/v1/tokens", {"name": "passing", "role": "viewer", "seconds": 60}).json()
    assert made["expires_at"] is not None
    guest = Caller(calls.url, made["token"])
    assert guest.get("/v1/nodes").status_code == 200
    calls.ward.pass_time(61.0)
    refused = guest.get("/v1/nodes")
    assert refused.status_code == 401
    assert "token 'passing' has expired" in refused.json()["error"]
    (shown,) = [token for token in calls.admin.get("/v1/tokens").json() if token["name"] == "passing"]
    assert shown["expired"]
    again = calls.admin.post("/v1/tokens", {"name": "passing", "role": "viewer"})
    assert again.status_code == 201  # the name of one that is over is free
    guest.http.close()


def test_a_stream_ends_with_its_token_also_where_something_changes_all_the_time(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at only in silence, and a busy fleet has none."""
    monkeypatch.setattr(events, "COMMENT_EVERY", 1.0)
    made = calls.admin.post("/v1/tokens", {"name": "brief-reader", "role": "viewer", "seconds": 60}).json()
    over, changing = threading.Event(), calls.ward.changes

    def change() -> None:
        while not over.wait(0.05):
            changing.committed(Unit(story=(Line(subjects=("node:x",), at=calls.ward.desk.now(), text="again"),)))

    busy = threading.Thread(target=change)
    busy.start()
    try:
        with Caller(calls.url, made["token"]).http as reader, reader.stream("GET", "/v1/events") as stream:
            assert stream.status_code == 200
            calls.ward.pass_time(120.0)
            lines = stream.iter_lines()
            until(lambda: next(lines, None) is None, 10, "it has ended")
    finally:
        over.set()
        busy.join()


def test_an_expired_token_is_forgotten_in_the_end(calls: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "FORGET_AFTER", timedelta(minutes=1))
    calls.admin.post("/v1/tokens", {"name": "run-1", "role": "viewer", "seconds": 60})
    calls.ward.pass_time(121.0)
    calls.admin.post("/v1/tokens", {"name": "run-2", "role": "viewer"})
    assert "run-1" not in {token["name"] for token in calls.admin.get("/v1/tokens").json()}


def test_an_agents_token_is_made_for_a_node_by_its_name_alone_and_can_be_revoked(calls: Clinic) -> None:
    made = calls.admin.post("/v1/tokens", {"name": "agent-1", "role": "agent", "node": "train-0001"})
    assert made.json()["node"] == "sim/train-0001"
    calls.ward.desk.issue("agent of sim/train-0002", Role.AGENT, by="setup", node=NodeId("sim/train-0002"))
    gone = calls.admin.http.delete("/v1/tokens/agent%20of%20sim%2Ftrain-0002")
    assert gone.json() == {"name": "agent of sim/train-0002", "revoked": True}


def test_a_token_that_was_revoked_can_be_issued_again(calls: Clinic) -> None:
    for _ in range(2):
        assert calls.ward.desk.issue("again", Role.VIEWER, by="setup", secret="the same") == "the same"
        assert calls.ward.desk.who("the same") is not None
        calls.ward.desk.revoke("again", by="setup")
        assert calls.ward.desk.who("the same") is None


def test_the_last_use_of_a_token_is_shown_and_costs_no_commit_for_each_request(calls: Clinic) -> None:
    secret = calls.ward.desk.issue("watcher", Role.VIEWER, by="setup")
    watcher = Caller(calls.url, secret)
    last = calls.ward.sim.store.facts(after=0, limit=100_000)[-1].seq
    for _ in range(50):
        watcher.get("/healthz")
        watcher.get("/v1/brakes")
    assert len(calls.ward.sim.store.facts(after=last)) <= 1
    (shown,) = [token for token in calls.admin.get("/v1/tokens").json() if token["name"] == "watcher"]
    assert shown["used_at"] is not None
    watcher.http.close()


def job_of(caller: Caller, name: str) -> str:
    made = caller.post("/v1/jobs", {"name": name, "nodes": 1, "command": ["train"]})
    assert made.status_code == 201, made.text
    assert made.json()["owner"] in {"submitter", "operator"}
    return str(made.json()["id"])


def test_a_submitter_runs_jobs_of_its_own_and_touches_no_others(calls: Clinic) -> None:
    mine, theirs = job_of(calls.submitter, "mine"), job_of(calls.operator, "theirs")
    assert calls.submitter.get(f"/v1/jobs/{mine}/logs").status_code == 200
    for job in (theirs, "llama"):  # of llama nobody knows whose it is
        assert calls.submitter.get(f"/v1/jobs/{job}").status_code == 200
        for refused in (
            calls.submitter.post(f"/v1/jobs/{job}/stop", {"reason": "I want its nodes"}),
            calls.submitter.get(f"/v1/jobs/{job}/logs"),
        ):
            assert refused.status_code == 403
            assert "only its owner, or an operator" in refused.json()["error"]
    assert calls.viewer.get(f"/v1/jobs/{mine}/logs").status_code == 403
    assert calls.submitter.post(f"/v1/jobs/{mine}/stop", {"reason": "done"}).status_code == 200
    assert calls.operator.post(f"/v1/jobs/{theirs}/stop", {"reason": "done"}).status_code == 200


def test_a_newer_job_of_the_same_name_is_no_way_to_keep_people_from_theirs(calls: Clinic) -> None:
    mine, theirs = job_of(calls.submitter, "twin"), job_of(calls.operator, "twin")
    assert calls.submitter.get("/v1/jobs/twin").json()["id"] == mine
    assert calls.submitter.get("/v1/jobs/twin/logs").status_code == 200
    assert calls.viewer.get("/v1/jobs/twin").json()["id"] == theirs, "of all others the newest"
    assert calls.submitter.post("/v1/jobs/twin/stop", {"reason": "done"}).json()["id"] == mine
    assert calls.operator.post(f"/v1/jobs/{theirs}/stop", {"reason": "done"}).status_code == 200


def test_only_an_operator_puts_a_job_before_those_of_others(calls: Clinic) -> None:
    body = {"name": "first", "nodes": 1, "command": ["train"], "priority": 5}
    refused = calls.submitter.post("/v1/jobs", body)
    assert refused.status_code == 403
    assert "priority" in refused.json()["error"]
    assert calls.submitter.post("/v1/jobs", body | {"priority": -5}).status_code == 201
    assert calls.operator.post("/v1/jobs", body).status_code == 201


def test_who_is_an_operator_no_more_restarts_no_job_before_those_of_others(calls: Clinic) -> None:
    def ann(role: str) -> Caller:
        return Caller(calls.url, calls.admin.post("/v1/tokens", {"name": "ann", "role": role}).json()["token"])

    with ann("operator").http as http:
        body = {"name": "ahead", "nodes": 1, "command": ["train"], "priority": 50}
        job = http.post("/v1/jobs", json=body).json()["id"]
        assert http.post(f"/v1/jobs/{job}/stop", json={"reason": "the power"}).status_code == 200
    until(lambda: calls.viewer.get(f"/v1/jobs/{job}").json()["state"] == "STOPPED", 20, "it has ended")
    calls.admin.http.delete("/v1/tokens/ann")
    with ann("submitter").http as http:
        refused = http.post(f"/v1/jobs/{job}/restart", json={})
        assert refused.status_code == 403
        assert "it has priority 50; have one restart it" in refused.json()["error"]
    again = calls.operator.post(f"/v1/jobs/{job}/restart", {})
    assert again.status_code == 201
    assert again.json()["owner"] == "ann"


def test_a_job_that_an_operator_restarts_stays_its_owners(calls: Clinic) -> None:
    job = job_of(calls.submitter, "kept")
    assert calls.operator.post(f"/v1/jobs/{job}/stop", {"reason": "the power"}).status_code == 200
    until(lambda: calls.viewer.get(f"/v1/jobs/{job}").json()["state"] == "STOPPED", 20, "it has ended")
    again = calls.operator.post(f"/v1/jobs/{job}/restart", {"reason": "the power is back"})
    assert again.status_code == 201, again.text
    assert again.json()["owner"] == "submitter"
    assert calls.submitter.post(f"/v1/jobs/{again.json()['id']}/stop", {"reason": "mine"}).status_code == 200


@pytest.mark.parametrize("who", ["viewer", "operator"])
def test_one_token_holds_so_many_streams_and_no_more(calls: Clinic, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    monkeypatch.setattr(endpoint, "HELD_MOST", 2)
    caller = getattr(calls, who)
    with caller.http.stream("GET", "/v1/events") as first, caller.http.stream("GET", "/v1/events") as second:
        assert (first.status_code, second.status_code) == (200, 200)
        refused = caller.get("/v1/events")
        assert refused.status_code == 429
        assert "2 streams and held requests" in refused.json()["error"]
    until(lambda: opens(caller), 20, "what was closed counts no more")


def opens(caller: Caller) -> bool:
    with caller.http.stream("GET", "/v1/events") as stream:
        return stream.status_code == 200


def test_the_audit_log_says_who_did_what_to_what_and_why(calls: Clinic) -> None:
    job = job_of(calls.submitter, "audited")
    calls.submitter.post(f"/v1/jobs/{job}/stop", {"reason": "a typo"})
    calls.operator.post("/v1/nodes/sim/train-0007/inject", {"xid": 79, "reason": "a lesson"})
    acts = calls.viewer.get("/v1/audit").json()
    assert [(act["by"], act["verb"], act["target"], act["reason"]) for act in acts[:3]] == [
        ("operator", "inject", "sim/train-0007", "a lesson"),
        ("submitter", "stop", job, "a typo"),
        ("submitter", "submit", job, ""),
    ]
    assert {act["by"] for act in calls.viewer.get("/v1/audit", by="submitter").json()} == {"submitter"}
    about = calls.viewer.get("/v1/audit", target="train-0007").json()
    assert [act["verb"] for act in about][:1] == ["inject"]
    assert calls.viewer.get("/v1/audit", target="nothing").json() == []
    calls.ward.pass_time(600.0)
    assert calls.viewer.get("/v1/audit", since=60).json() == []


def test_a_first_token_that_is_damaged_on_disk_is_made_anew_and_one_that_is_good_is_kept(
    calls: Clinic, tmp_path: Path
) -> None:
    file = tmp_path / "operator.token"
    file.write_bytes(b"\xff\xfe")
    made = agree_on(calls.ward.desk, "first", Role.ADMIN, file, by="sickbay controller")
    assert file.read_text() == made
    until(lambda: calls.ward.desk.who(made))
    assert agree_on(calls.ward.desk, "first", Role.ADMIN, file, by="sickbay controller") == made
