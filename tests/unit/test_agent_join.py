"""Joining, the agent's side: it gets its token, keeps it, gets another when that is refused, and says why it cannot."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.api_ward import QUIET, Clinic, clinic
from tests.support.canned import Answer, Canned, serving
from tests.support.waiting import until

from sickbay.agent import join
from sickbay.agent.join import KEPT, NodeJoiner
from sickbay.agent.settings import AgentSettings, load
from sickbay.agent.transport import REPORT, Address, ControllerLine, Denied, NotJoined
from sickbay.model.errors import BadInput
from sickbay.model.fleet import Role

SECRET = "secret-of-the-join-token"
ROUTE = f"POST {join.JOIN}"


def settings(tmp_path: Path, url: str, node: str = "sim/new-1", **more: Any) -> AgentSettings:
    file = tmp_path / "join.token"
    if not file.exists():
        file.write_text(f"{SECRET}\n")
    given = {"instance_id": "i-new", "state": str(tmp_path / "state"), "join_token_file": str(file), **more}
    return AgentSettings(url=url, node=node, **given)


@pytest.fixture
def server() -> Iterator[Canned]:
    with serving() as made:
        made.says(ROUTE, *({"node": "sim/new-1", "token": f"token-{n}"} for n in range(1, 9)))
        yield made


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic(QUIET) as made:
        made.ward.desk.issue("fleet", Role.JOIN, by="ada", secret=SECRET, cluster="sim")
        yield made


def test_it_joins_once_and_keeps_its_token_for_the_next_run(server: Canned, tmp_path: Path) -> None:
    mine = settings(tmp_path, server.url)
    joiner = NodeJoiner(mine)
    assert [joiner.token(), joiner.token(), NodeJoiner(mine).token()] == ["token-1"] * 3
    (asked,) = server.of("POST", join.JOIN)
    assert asked.body == {"cluster": "sim", "name": "new-1", "instance_id": "i-new"}
    assert asked.headers["authorization"] == f"Bearer {SECRET}"
    file = tmp_path / "state" / KEPT
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_refused_token_is_replaced_and_one_that_is_good_is_not(server: Canned, tmp_path: Path) -> None:
    joiner = NodeJoiner(settings(tmp_path, server.url))
    first = joiner.token()
    joiner.refuse("another's")
    assert joiner.token() == first
    joiner.refuse(first)
    assert joiner.token() == "token-2"
    joiner.refuse(first)  # said late, by the other thread: it is not that one any more
    assert joiner.token() == "token-2"
    assert json.loads((tmp_path / "state" / KEPT).read_text())["token"] == "token-2"


def test_many_threads_join_once(server: Canned, tmp_path: Path) -> None:
    joiner = NodeJoiner(settings(tmp_path, server.url))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(joiner.token())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["token-1"] * 8
    assert len(server.of("POST", join.JOIN)) == 1


@pytest.mark.parametrize("changed", [{"node": "sim/other"}, {"instance_id": "i-copied-disk"}])
def test_a_state_directory_of_another_machine_holds_no_token_for_this_one(
    server: Canned, tmp_path: Path, changed: dict[str, str]
) -> None:
    NodeJoiner(settings(tmp_path, server.url)).token()
    if "node" in changed:
        server.says(ROUTE, {"node": "sim/other", "token": "token-2"})
    assert NodeJoiner(settings(tmp_path, server.url, **changed)).token() == "token-2"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"node": "sim/new-1"}', "\x00" * 40])
def test_a_kept_file_that_is_broken_is_as_good_as_none(server: Canned, tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / KEPT).write_text(text)
    assert NodeJoiner(settings(tmp_path, server.url)).token() == "token-1"


def test_the_line_tells_of_a_token_that_the_controller_refuses_but_not_of_a_proxys_page(
    server: Canned, tmp_path: Path
) -> None:
    joiner = NodeJoiner(settings(tmp_path, server.url))
    line = ControllerLine(lambda: Address(server.url, joiner.token()), joiner.refuse)
    server.says(f"POST {REPORT}", Answer("<html>log in first</html>", 401, "text/html"))
    for _ in range(2):
        with pytest.raises(Denied):
            line.ask(REPORT, b"{}", 5.0)
    assert len(server.of("POST", join.JOIN)) == 1
    server.refuses(f"POST {REPORT}", 401, "this token is not known")
    for _ in range(2):
        with pytest.raises(Denied):
            line.ask(REPORT, b"{}", 5.0)
    assert [one.headers["authorization"] for one in server.of("POST", REPORT)][-2:] == [
        "Bearer token-1",
        "Bearer token-2",
    ]
    line.close()


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (401, "this token is not known", "does not accept the join token in"),
        (401, "this token is not known", "sickbay token create NAME --role join --cluster sim"),
        (403, "it is for train", "cannot join as sim/new-1: it is for train"),
        (409, "the name is taken by i-0", "cannot join as sim/new-1: the name is taken by i-0"),
        (503, "ask again", "has not joined yet: ask again"),
        (404, "there is nothing at", "answers 404 to an agent that joins: correct url, or update the controller"),
    ],
)
def test_each_refusal_has_its_own_words(server: Canned, tmp_path: Path, status: int, error: str, says: str) -> None:
    server.refuses(ROUTE, status, error)
    with pytest.raises(NotJoined, match=says.replace("(", r"\(")):
        NodeJoiner(settings(tmp_path, server.url)).token()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"hello": "world"}, "it is not a controller: correct url"),
        ({"node": "sim/somebody", "token": "x"}, "gives a token for 'sim/somebody'"),
        ({"node": "sim/new-1", "token": "a\nb"}, "gives a token for"),
        (Answer("<html></html>", 200, "text/html"), "it is not a controller"),
        (Answer("", 302, "text/html"), "answers 302, and not as a controller does"),
    ],
)
def test_a_stranger_gives_no_token(server: Canned, tmp_path: Path, answer: Any, says: str) -> None:
    server.says(ROUTE, answer)
    with pytest.raises(NotJoined, match=says):
        NodeJoiner(settings(tmp_path, server.url)).token()
    assert not (tmp_path / "state" / KEPT).exists()


def test_refused_it_asks_less_and_less_often(server: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.refuses(ROUTE, 503, "many agents join at once")
    joiner = NodeJoiner(settings(tmp_path, server.url))
    for _ in range(5):
        with pytest.raises(NotJoined, match="many agents") as refused:
            joiner.token()
        assert 0 < refused.value.again <= join.LAST_PAUSE
    assert len(server.of("POST", join.JOIN)) == 1
    assert joiner._pause == 2 * join.FIRST_PAUSE
    monkeypatch.setattr(join, "LAST_PAUSE", 0.0)  # the pause is over at once
    joiner._again = 0.0
    server.says(ROUTE, {"node": "sim/new-1", "token": "at-last"})
    assert joiner.token() == "at-last"


def test_a_disk_that_takes_nothing_keeps_no_agent_out(server: Canned, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")
    joiner = NodeJoiner(settings(tmp_path, server.url))
    assert [joiner.token(), joiner.token()] == ["token-1", "token-1"]
    joiner.refuse("an older one")  # said late: no file would bring back the one that is good
    assert joiner.token() == "token-1"


def test_a_proxys_error_page_is_no_answer_to_a_join(server: Canned, tmp_path: Path) -> None:
    server.says(ROUTE, Answer("<html>bad gateway</html>", 502, "text/html"))
    with pytest.raises(OSError, match="answers 502"):
        NodeJoiner(settings(tmp_path, server.url)).token()


def test_a_join_token_in_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    mine = settings(tmp_path, "http://127.0.0.1:1", join_token_file=str(pipe))
    with pytest.raises(NotJoined, match=r"cannot be read \(it is not a file"):
        NodeJoiner(mine).token()


def test_a_join_token_file_that_cannot_be_used_is_said_by_its_name(tmp_path: Path) -> None:
    mine = settings(tmp_path, "http://127.0.0.1:1", join_token_file="/nonexistent/join")
    with pytest.raises(NotJoined, match=r"join_token_file /nonexistent/join cannot be read \(No such file"):
        NodeJoiner(mine).token()
    (tmp_path / "join.token").write_text(" \n")
    with pytest.raises(NotJoined, match=r"is empty: write the secret"):
        NodeJoiner(settings(tmp_path, "http://127.0.0.1:1")).token()


def test_two_credentials_are_a_mistake() -> None:
    environment = {"SICKBAY_URL": "http://c:1", "SICKBAY_TOKEN": "x", "SICKBAY_INSTANCE_ID": "i"}
    with pytest.raises(BadInput, match="leave one of the two out"):
        load(None, {**environment, "SICKBAY_JOIN_TOKEN_FILE": "/etc/sickbay/join"}, {})


def test_a_real_controller_takes_it_in_revokes_it_and_takes_it_in_again(calls: Clinic, tmp_path: Path) -> None:
    joiner = NodeJoiner(settings(tmp_path, calls.url, node="sim/real-1"))
    line = ControllerLine(lambda: Address(calls.url, joiner.token()), joiner.refuse)
    body = {
        "proto": 1, "node": "sim/real-1", "instance_id": "i-new", "boot_id": "b1", "agent_run": "r", "first_seq": 1,
        "mono_now": 1.0, "wall_now": 1.0, "watermark": 0.0, "items": [],
    }  # fmt: skip
    assert line.ask(REPORT, json.dumps(body).encode(), 5.0).report_every > 0
    first = joiner.token()
    calls.ward.desk.revoke("agent of sim/real-1", by="ada")
    with pytest.raises(Denied):
        line.ask(REPORT, json.dumps(body).encode(), 5.0)
    assert until(lambda: line.ask(REPORT, json.dumps(body).encode(), 5.0)).report_every > 0
    assert joiner.token() != first
    line.close()


def test_a_real_controller_refuses_a_wrong_join_token_and_a_taken_name(calls: Clinic, tmp_path: Path) -> None:
    with pytest.raises(NotJoined, match=r"the name sim/train-0002 is taken by \S+, whose agent is heard"):
        NodeJoiner(settings(tmp_path, calls.url, node="sim/train-0002")).token()
    (tmp_path / "join.token").write_text("wrong")
    with pytest.raises(NotJoined, match="does not accept the join token"):
        NodeJoiner(settings(tmp_path, calls.url)).token()
