"""Joining, over the API: an agent gets the token of its node, and what a stolen join token is good for."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from tests.support.api_ward import QUIET, TOKENS, Caller, Clinic, clinic
from tests.support.waiting import until

from sickbay.faces.api import credentials, join, tokens
from sickbay.hosts import joining
from sickbay.model.errors import BadInput
from sickbay.model.facts import TokenIssued
from sickbay.model.fleet import Node, NodeId, Role, Token
from sickbay.model.protocol import PROTO

JOIN = "/v1/agent/join"
SECRET = "secret-of-the-join-token"


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic(QUIET) as made:
        made.ward.desk.issue("fleet", Role.JOIN, by="ada", secret=SECRET, cluster="sim")
        yield made


def ask(calls: Clinic, name: str, instance: str = "i-new", secret: str = SECRET, **more: Any) -> httpx.Response:
    body = {"cluster": "sim", "name": name, "instance_id": instance, **more}
    with httpx.Client(base_url=calls.url, headers={"Authorization": f"Bearer {secret}"}, timeout=30.0) as client:
        return client.post(JOIN, json=body)


def tokens_of(calls: Clinic, name: str) -> list[dict[str, Any]]:
    return [token for token in calls.admin.get("/v1/tokens").json() if token["name"] == f"agent of sim/{name}"]


def report(calls: Clinic, token: str, name: str, instance: str) -> httpx.Response:
    body = {
        "proto": PROTO, "node": f"sim/{name}", "instance_id": instance, "boot_id": "b1", "agent_run": "r",
        "first_seq": 1, "mono_now": 1.0, "wall_now": 1.0, "watermark": 0.0, "items": [],
    }  # fmt: skip
    return httpx.post(f"{calls.url}/v1/agent/report", json=body, headers={"Authorization": f"Bearer {token}"})


def heard(calls: Clinic, name: str) -> bool:
    key = f"voice:sim/{name}"
    return calls.ward.sim.store.load([key])[key].row is not None


def test_an_agent_joins_and_reports_with_its_own_token(calls: Clinic) -> None:
    answer = ask(calls, "new-1")
    assert (answer.status_code, answer.json()["node"]) == (200, "sim/new-1")
    assert report(calls, answer.json()["token"], "new-1", "i-new").status_code == 200
    (shown,) = tokens_of(calls, "new-1")
    assert (shown["role"], shown["node"], shown["by"]) == ("agent", "sim/new-1", "fleet")
    (entry,) = [e for e in calls.admin.get("/v1/audit").json() if e["verb"] == "join" and e["target"] == "sim/new-1"]
    assert (entry["by"], entry["reason"]) == ("fleet", "instance i-new")


def test_its_token_speaks_for_that_node_and_that_machine_only(calls: Clinic) -> None:
    token = ask(calls, "new-2").json()["token"]
    assert "cannot speak for" in report(calls, token, "new-1", "i-new").json()["error"]
    assert "join anew" in report(calls, token, "new-2", "i-copied-disk").json()["error"]


def test_of_an_answer_that_was_lost_no_token_lives_on(calls: Clinic) -> None:
    first, second = (ask(calls, "lost").json()["token"] for _ in range(2))
    assert first != second
    assert len(tokens_of(calls, "lost")) == 1
    assert report(calls, first, "lost", "i-new").status_code == 401
    assert report(calls, second, "lost", "i-new").status_code == 200


@pytest.mark.slow
def test_of_machines_that_ask_at_once_one_gets_the_name(calls: Clinic) -> None:
    """All of them before the engine has learned of any."""
    answers: dict[str, httpx.Response] = {}

    def stored() -> list[str]:
        issued = (fact.news for fact in calls.ward.sim.store.facts(0, limit=100_000))
        return [one.instance_id for one in issued if isinstance(one, TokenIssued) and one.node == "sim/twins"]

    def go(instance: str) -> None:
        answers[instance] = ask(calls, "twins", instance)

    threads = [threading.Thread(target=go, args=(f"i-{n}",)) for n in range(4)]
    calls.ward.asleep = True
    for thread in threads:
        thread.start()
    until(lambda: len(stored()) == len(threads))
    calls.ward.asleep = False
    for thread in threads:
        thread.join()
    won = [instance for instance, answer in answers.items() if answer.status_code == 200]
    assert won == stored()[:1]
    assert sorted(answer.status_code for answer in answers.values()) == [200, 409, 409, 409]
    assert all(f"taken by {won[0]}" in a.json()["error"] for a in answers.values() if a.status_code == 409)
    assert report(calls, answers[won[0]].json()["token"], "twins", won[0]).status_code == 200
    assert len(tokens_of(calls, "twins")) == 1


def test_a_stolen_join_token_takes_no_name_from_an_agent_that_lives(calls: Clinic) -> None:
    node = calls.ward.sim.store.load(["node:sim/train-0003"])["node:sim/train-0003"].row
    assert isinstance(node, Node)
    assert node.incarnation is not None
    other = ask(calls, "train-0003", "i-thief")
    assert other.status_code == 409
    assert f"taken by {node.incarnation.instance_id}, whose agent is heard" in other.json()["error"]
    same = ask(calls, "train-0003", node.incarnation.instance_id)  # a thief who knows what the machine is called
    assert same.status_code == 503
    assert "may join when that is silent" in same.json()["error"]
    assert tokens_of(calls, "train-0003") == []


def test_a_revoked_agent_that_is_heard_still_joins_anew_at_once(calls: Clinic) -> None:
    token = ask(calls, "back").json()["token"]
    report(calls, token, "back", "i-new")
    calls.ward.pass_time(5.0)
    until(lambda: heard(calls, "back"))
    assert ask(calls, "back").status_code == 503
    gone = calls.admin.http.delete("/v1/tokens/agent%20of%20sim%2Fback")
    assert gone.json() == {"name": "agent of sim/back", "revoked": True}
    assert report(calls, token, "back", "i-new").status_code == 401
    again = ask(calls, "back")
    assert again.status_code == 200
    assert report(calls, token, "back", "i-new").status_code == 401
    assert report(calls, again.json()["token"], "back", "i-new").status_code == 200


def test_a_token_got_by_joining_that_ended_long_ago_is_forgotten_when_others_are_made(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "FORGET_AFTER", timedelta(minutes=6))  # instead of a month
    assert ask(calls, "gone").status_code == 200
    revoke = "/v1/tokens/agent%20of%20sim%2Fgone"
    assert calls.admin.http.delete(revoke).status_code == 200
    assert [token["expired"] for token in tokens_of(calls, "gone")] == [True]  # that it ended lets its agent join anew
    calls.ward.pass_time(400.0)
    calls.admin.post("/v1/tokens", {"name": "another", "role": "viewer"})
    assert tokens_of(calls, "gone") == []


def test_a_name_that_nobody_knows_loses_its_token_and_one_whose_agent_is_known_keeps_it(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "UNUSED", timedelta(minutes=6))  # instead of a week
    monkeypatch.setattr(joining, "LOOKED_AT", 1000)
    ask(calls, "made-up")
    real = ask(calls, "real").json()["token"]
    for _ in range(2):  # it ends, and is forgotten so long after that
        assert tokens_of(calls, "made-up") != []
        calls.ward.pass_time(400.0)
        assert report(calls, real, "real", "i-new").status_code == 200
        calls.ward.pass_time(5.0)
        assert heard(calls, "real")
        ask(calls, "whoever-comes")
        calls.ward.pass_time(1.0)
    assert tokens_of(calls, "made-up") == []
    assert [token["expired"] for token in tokens_of(calls, "real")] == [False]


@pytest.mark.parametrize(
    ("wrong", "status", "says"),
    [
        ({"name": "a/b"}, 400, "node 'a/b' cannot be used"),
        ({"name": "../train-0001"}, 400, "cannot be used"),
        ({"name": "a\n"}, 400, "cannot be used"),
        ({"name": ""}, 400, "cannot be used"),
        ({"name": "a\x00"}, 400, "NUL"),
        ({"name": "x" * 64}, 400, "at most 63"),
        ({"name": "n", "cluster": "lab"}, 403, "is for the cluster sim: it lets nobody into lab"),
        ({"name": "n", "cluster": "sim/x"}, 400, "cluster 'sim/x' cannot be used"),
        ({"name": "n", "instance": ""}, 400, "instance_id"),
        ({"name": "n", "instance": "a\nb"}, 400, "instance_id"),
        ({"name": "n", "instance": "x" * 201}, 400, "instance_id"),
        ({"name": "n", "secret": TOKENS["admin"]}, 403, "only a join token can ask for a node's token"),
        ({"name": "n", "secret": TOKENS["agent"]}, 403, "only a join token"),
        ({"name": "n", "secret": "nobody's"}, 401, "not known"),
    ],
)
def test_a_request_that_makes_no_sense_makes_no_token(
    calls: Clinic, wrong: dict[str, str], status: int, says: str
) -> None:
    before = len(calls.admin.get("/v1/tokens").json())
    answer = ask(calls, **wrong)
    assert answer.status_code == status
    assert says in answer.json()["error"]
    assert len(calls.admin.get("/v1/tokens").json()) == before


@pytest.mark.parametrize("path", ["/v1/nodes", "/v1/tokens", "/v1/audit", "/metrics"])
def test_a_join_token_can_do_nothing_else(calls: Clinic, path: str) -> None:
    with Caller(calls.url, SECRET).http as client:
        answer = client.get(path)
    assert answer.status_code == 403
    assert "can only ask for the token of a node of its cluster" in answer.json()["error"]
    assert report(calls, SECRET, "new-1", "i-new").status_code == 403


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"name": "j", "role": "join"}, "a join token is for one cluster: say which (sim)"),
        ({"name": "j", "role": "join", "cluster": "sum"}, "there is no cluster 'sum': did you mean sim?"),
        ({"name": "j", "role": "viewer", "cluster": "sim"}, "cluster is for join tokens only"),
        ({"name": "j", "role": "king", "cluster": "sim"}, "write admin, agent, join,"),
    ],
)
def test_a_join_token_that_makes_no_sense_is_not_made(calls: Clinic, body: dict[str, str], says: str) -> None:
    answer = calls.admin.post("/v1/tokens", body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]


def test_a_join_token_ends_when_it_was_said_to_and_what_it_gave_lives_on(calls: Clinic) -> None:
    made = calls.admin.post("/v1/tokens", {"name": "short", "role": "join", "cluster": "sim", "seconds": 60}).json()
    assert made["cluster"] == "sim"
    token = ask(calls, "early", secret=made["token"]).json()["token"]
    calls.ward.pass_time(120.0)
    late = ask(calls, "late", secret=made["token"])
    assert (late.status_code, "has expired" in late.json()["error"]) == (401, True)
    assert report(calls, token, "early", "i-new").status_code == 200


def test_people_hear_once_of_a_name_that_is_asked_for_again_and_again(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(calls, "train-0004", "i-same-name")  # at first a controller that was away may not know yet who has gone
    monkeypatch.setattr(joining, "TOLD_AFTER", 0.0)
    for _ in range(4):
        assert ask(calls, "train-0004", "i-same-name").status_code == 409

    def told() -> list[dict[str, Any]]:
        calls.ward.pass_time(1.0)
        return [n for n in calls.viewer.get("/v1/notices").json() if n["event"] == "join_refused"]

    (notice,) = until(told)
    assert notice["subject"] == "node:sim/train-0004"
    assert "i-same-name asks to join under this name, with join token 'fleet'" in notice["text"]


def test_nobody_is_taken_in_while_the_engine_is_away_and_nothing_piles_up(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "LEARNED_WITHIN", 0.2)
    calls.ward.asleep = True
    try:
        first = ask(calls, "patient")
        assert (first.status_code, "has not taken it up yet" in first.json()["error"]) == (503, True)
        monkeypatch.setattr(joining, "CAUGHT_UP", timedelta(seconds=-1))
        newest = len(calls.ward.sim.store.facts(0, limit=100_000))
        assert "has not caught up" in ask(calls, "patient").json()["error"]
        assert len(calls.ward.sim.store.facts(0, limit=100_000)) == newest
    finally:
        calls.ward.asleep = False
    monkeypatch.undo()
    assert until(lambda: ask(calls, "patient").status_code == 200)
    assert len(tokens_of(calls, "patient")) == 1


def test_more_than_can_be_taken_in_at_once_are_asked_to_come_again(calls: Clinic) -> None:
    room = calls.ward.app.state.shared.joining.room
    taken = [room.acquire(blocking=False) for _ in range(joining.AT_ONCE)]
    assert all(taken)
    try:
        answer = ask(calls, "crowd")
        assert (answer.status_code, "many agents join" in answer.json()["error"]) == (503, True)
    finally:
        for _ in taken:
            room.release()
    assert ask(calls, "crowd").status_code == 200


def test_the_join_tokens_of_a_configuration_are_known_after_it_and_no_other_way_in_is_opened(
    calls: Clinic, tmp_path: Any
) -> None:
    file = tmp_path / "train"
    file.write_text("a-secret-that-an-admin-chose\n")
    file.chmod(0o600)
    desk = calls.ward.desk
    for _ in range(2):
        joining.admit_joiners(desk, {"sim": file})
    assert ask(calls, "by-file", secret="a-secret-that-an-admin-chose").status_code == 200
    assert [t["cluster"] for t in calls.admin.get("/v1/tokens").json() if t["name"] == "join-sim"] == ["sim"]
    for text, mode, says in (
        ("short", 0o600, "holds no good secret"),
        ("a-secret-that-an-admin-chose", 0o644, "can be read by others"),
        (TOKENS["admin"], 0o600, "is that of the admin 'admin'"),
        ("", 0o600, "is empty"),
    ):
        file.write_text(text)
        file.chmod(mode)
        with pytest.raises(BadInput, match=says):
            joining.admit_joiners(desk, {"sim": file})
    file.write_text("a-secret-that-an-admin-chose")
    file.chmod(0o600)
    with pytest.raises(BadInput, match="is that of the join token of sim"):
        joining.admit_joiners(desk, {"other": file})


def test_only_the_hash_of_what_was_given_is_kept(calls: Clinic) -> None:
    token = ask(calls, "hashed").json()["token"]
    store = calls.ward.desk.store
    rows = store.load(store.keys("token")).values()
    held = [r.row for r in rows if isinstance(r.row, Token) and r.row.node == NodeId("sim/hashed")]
    assert [token in repr(row) for row in held] == [False]


@pytest.mark.slow
def test_a_fleet_with_a_wrong_join_token_is_looked_up_rarely_and_shuts_nobody_out(
    calls: Clinic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "TRIES_A_SECOND", 0.0)
    monkeypatch.setattr(credentials, "FOR", 0.0)  # nothing is remembered but that it was good
    assert ask(calls, "good-1").status_code == 200
    wrong = [ask(calls, "n", secret=f"wrong-{n}").status_code for n in range(60)]
    assert set(wrong) == {401, 429}
    assert wrong.count(401) <= credentials.TRIES
    assert ask(calls, "good-2").status_code == 200
