"""On the wire: what is too large, torn, held, streamed or cut off."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.support.api_ward import NODE, TOKENS, Caller, Clinic, Ward, clinic, ward
from tests.support.waiting import until

from sickbay.faces.api import endpoint
from sickbay.hosts.changes import KEPT
from sickbay.hosts.server import served
from sickbay.model.facts import Ordered
from sickbay.model.fleet import JobId, Role
from sickbay.model.rows import Unit

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def calls() -> Iterator[Clinic]:
    with clinic(after=1800.0) as made:
        yield made


# --- bodies

SENT = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "says"),
    [
        (b"{", SENT, "the body is not JSON"),
        (b"\xff\xfe{}", SENT, "not UTF-8"),
        (b'{"reason": "\xc3("}', SENT, "not UTF-8"),
        (b'{"reason": "\\ud800"}', SENT, "the body"),
        (b'{"reason": NaN}', SENT, "the body is not JSON"),
        (b"[" * 100_000, SENT, "the body"),
        (b'{"reason":' * 50_000, SENT, "reason"),
        (b'{"reason": "x"} trailing', SENT, "the body is not JSON"),
        (b"", SENT, "a reason is missing"),
        (b'{"reason": "x"}', {"Content-Type": "text/plain"}, "Content-Type: application/json"),
        (b"reason=x", {"Content-Type": "application/x-www-form-urlencoded"}, "Content-Type: application/json"),
        (b'{"reason": "x"}', {}, "Content-Type: application/json"),
    ],
)
def test_a_body_that_cannot_be_read_is_400_with_one_line(
    calls: Clinic, content: bytes, headers: dict[str, str], says: str
) -> None:
    response = calls.operator.http.post("/v1/nodes/sim/train-0007/cordon", content=content, headers=headers)
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]
    assert len(response.json()["error"]) < 300


def test_a_report_nested_beyond_all_reason_is_400(calls: Clinic) -> None:
    head = json.dumps(_report())[:-1].encode()
    for deep in (b"[" * 200_000, b"[" * 200_000 + b"]" * 200_000, b'{"a":' * 200_000 + b"1" + b"}" * 200_000):
        content = head + b', "padding": ' + deep + b"}"
        response = calls.agent.http.post("/v1/agent/report", content=content, headers=SENT)
        assert response.status_code == 400


def test_a_body_where_none_is_taken_is_refused(calls: Clinic) -> None:
    response = calls.viewer.http.request("GET", "/v1/nodes", content=b'{"pool": "train"}')
    assert (response.status_code, response.json()["error"]) == (400, "this takes no body: leave it out")


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [2, 100])
def test_a_body_that_is_too_large_is_413_and_the_caller_hears_it(calls: Clinic, size: int, declared: bool) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(size):
            yield b" " * MIB

    body: Any = b" " * (size * MIB) if declared else pieces()
    response = calls.operator.http.post("/v1/jobs", content=body, headers=SENT)
    assert response.status_code == 413
    assert response.json() == {"error": "the body is too large: at most 1 MiB are taken here"}
    assert response.headers["connection"] == "close"
    assert calls.operator.get("/v1/nodes").status_code == 200


def test_a_large_body_of_nobody_is_401(calls: Clinic) -> None:
    response = calls.nobody.http.post("/v1/jobs", content=b" " * (20 * MIB), headers=SENT)
    assert response.status_code == 401


def test_reports_may_be_larger_than_what_people_send(calls: Clinic) -> None:
    report = {**_report(), "padding": "x" * (3 * MIB)}
    assert calls.agent.post("/v1/agent/report", report).status_code == 200
    report["padding"] = "x" * (4 * MIB)
    assert calls.agent.post("/v1/agent/report", report).status_code == 413


def test_every_answer_forbids_sniffing_and_keeping(calls: Clinic) -> None:
    for path in ("/", "/v1/nodes", "/v1/nodes/-/nowhere", "/nowhere", "/healthz"):
        headers = calls.viewer.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


# --- agents


def _report(node: str = NODE, **more: Any) -> dict[str, Any]:
    who = {"proto": 1, "node": node, "uid": "u", "instance_id": "i", "boot_id": "b"}
    times = {"first_seq": 1, "mono_now": 1.0, "wall_now": 1.0, "watermark": 1.0}
    return {**who, **times, "agent_run": "r", **more}


def _poll(node: str = NODE, **more: Any) -> dict[str, Any]:
    return {"proto": 1, "node": node, "uid": "u", "instance_id": "i", "boot_id": "b", **more}


@pytest.mark.parametrize("path", ["/v1/agent/report", "/v1/agent/poll"])
def test_an_agent_speaks_for_its_own_node_only(calls: Clinic, path: str) -> None:
    body = _report("sim/train-0001") if path.endswith("report") else _poll("sim/train-0001")
    response = calls.agent.post(path, body)
    assert response.status_code == 403
    assert (
        response.json()["error"] == "this token is for the agent of sim/train-0000: it cannot speak for sim/train-0001"
    )


def test_a_report_is_stored_before_it_is_acknowledged(calls: Clinic) -> None:
    news = {"news": "observed", "node": NODE, "kind": "test", "text": "hello"}
    items = [{"seq": n, "mono": 0.5, "news": news} for n in (1, 2, 3)]
    response = calls.agent.post("/v1/agent/report", _report(items=items, agent_run="r-acked"))
    assert response.json()["ack"] == 3
    ids = {fact.id for fact in calls.ward.sim.store.facts(after=0, limit=100_000)}
    assert {f"{NODE}/b/r-acked/main/{n}" for n in (1, 2, 3)} <= ids


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"proto": 99}, "proto"),
        ({"proto": "1"}, "proto"),
        ({"items": [{"seq": 3, "mono": 0.0, "news": {"news": "hung", "job": "a", "attempt": 1, "because": ""}}]}, ""),
        ({"items": [{"seq": 1, "mono": 0.0, "news": {"news": "ordered"}}]}, "news"),
    ],
)
def test_a_report_that_breaks_the_protocol_is_400(calls: Clinic, change: dict[str, Any], says: str) -> None:
    response = calls.agent.post("/v1/agent/report", _report(**change))
    assert response.status_code == 400, response.text
    assert says in response.json()["error"]


def test_a_held_poll_is_answered_as_soon_as_a_command_is_posted(calls: Clinic) -> None:
    with ThreadPoolExecutor() as pool:
        held = pool.submit(calls.agent.post, "/v1/agent/poll", _poll())
        assert until(lambda: bool(calls.ward.mail._waiters))
        begun = time.monotonic()
        calls.ward.post("look-1")
        answer = held.result(timeout=5.0)
    assert time.monotonic() - begun < 0.9  # sooner than it would have looked by itself
    assert [command["id"] for command in answer.json()["commands"]] == ["look-1"]
    calls.ward.sim.store.strike(["look-1"])


def test_a_command_that_waits_already_is_given_at_once_unless_the_agent_has_it(calls: Clinic) -> None:
    calls.ward.post("look-2")
    assert len(calls.agent.post("/v1/agent/poll", _poll()).json()["commands"]) == 1
    with ThreadPoolExecutor() as pool:
        held = pool.submit(calls.agent.post, "/v1/agent/poll", _poll(has=["look-2"]))
        assert until(lambda: bool(calls.ward.mail._waiters))
        assert not held.done()
        calls.ward.post("look-3")
        assert [command["id"] for command in held.result(timeout=5.0).json()["commands"]] == ["look-3"]
    calls.ward.sim.store.strike(["look-2", "look-3"])


def test_many_held_polls_leave_people_their_answers(calls: Clinic, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are threads: what is held must not keep one."""
    monkeypatch.setattr(endpoint, "HELD_MOST", 200)  # one agent stands for many
    sockets = [_raw(calls.url, "POST", "/v1/agent/poll", TOKENS["agent"], _poll()) for _ in range(120)]
    try:
        assert until(lambda: len(calls.ward.mail._waiters) >= 120)
        begun = time.monotonic()
        assert calls.viewer.get("/v1/nodes").status_code == 200
        assert calls.agent.post("/v1/agent/report", _report()).status_code == 200
        assert time.monotonic() - begun < 5.0
    finally:
        for one in sockets:
            one.close()
    assert until(lambda: not calls.ward.mail._waiters)  # whoever hung up is not waited for any more


def _raw(url: str, method: str, path: str, secret: str, body: Any = None, length: int = 0) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    payload = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {secret}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {length or len(payload)}\r\n\r\n"
    connection = socket.create_connection((parts.hostname, parts.port), timeout=10.0)
    connection.sendall(head.encode() + payload)
    return connection


def test_a_fifth_report_of_one_token_is_refused_before_its_body_is_taken(calls: Clinic) -> None:
    """One stolen token must neither fill the memory with bodies nor have the event loop decode them for ever."""
    sockets: list[socket.socket] = []

    def full() -> bool:
        sockets.append(_raw(calls.url, "POST", "/v1/agent/report", TOKENS["agent"], length=1000))
        return calls.agent.post("/v1/agent/report", _report()).status_code == 429

    try:
        assert until(full)
        assert calls.agent.post("/v1/agent/report", {"not": "decoded"}).status_code == 429
        assert calls.agent.post("/v1/agent/poll", _poll(proto=0)).status_code == 400  # polls are counted apart
    finally:
        for one in sockets:
            one.close()
    assert until(lambda: calls.agent.post("/v1/agent/report", _report()).status_code == 200)


def test_callers_who_hang_up_in_the_middle_of_a_body_harm_nobody(calls: Clinic) -> None:
    parts = urlsplit(calls.url)
    for _ in range(20):
        with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=5.0) as connection:
            head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['operator']}\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{{".encode())
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=5.0) as connection:
        connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert calls.operator.get("/v1/nodes").status_code == 200


# --- logs


def test_a_log_is_read_in_pieces_and_followed_to_its_end(calls: Clinic) -> None:
    cluster = calls.ward.cluster
    cluster.over = False
    rank = (JobId("llama"), 2, 0)
    cluster.written[rank] = "step 1\nstep 2\n"
    first = calls.operator.get("/v1/jobs/llama/logs", limit=7).json()
    assert first == {"rank": 0, "attempt": 2, "text": "step 1\n", "next": "at 7", "over": False}
    rest = calls.operator.get("/v1/jobs/llama/logs", after=first["next"]).json()
    assert (rest["text"], rest["next"]) == ("step 2\n", "at 14")
    assert calls.operator.get("/v1/jobs/llama/logs", last=7).json()["text"] == "step 2\n"
    with ThreadPoolExecutor() as pool:
        held = pool.submit(calls.operator.get, "/v1/jobs/llama/logs", after=rest["next"], wait=20)
        cluster.written[rank] += "step 3 <b>not HTML</b>\n"
        assert held.result(timeout=5.0).json()["text"] == "step 3 <b>not HTML</b>\n"
    cluster.over = True
    begun = time.monotonic()
    ended = calls.operator.get("/v1/jobs/llama/logs", after="at 37", wait=20).json()
    assert (ended["text"], ended["over"]) == ("", True)
    assert time.monotonic() - begun < 5.0


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ({"attempt": 9}, "llama has no attempt 9: the last one is 2"),
        ({"rank": 2}, "llama has no rank 2: its ranks are 0 to 1"),
        ({"attempt": 1, "rank": 1}, "nothing is kept of rank 1 in attempt 1 of llama"),
    ],
)
def test_a_log_that_is_not_there_is_404(calls: Clinic, query: dict[str, int], says: str) -> None:
    response = calls.operator.get("/v1/jobs/llama/logs", **query)
    assert (response.status_code, response.json()["error"]) == (404, says)


def test_a_rank_that_has_not_begun_has_an_empty_log_that_is_not_over(calls: Clinic) -> None:
    answer = calls.operator.get("/v1/jobs/qwen/logs").json()
    assert answer == {"rank": 0, "attempt": 1, "text": "", "next": "", "over": False}


# --- events


class Listener:
    """Reads a stream on a thread of its own."""

    def __init__(self, url: str, last: str = "", query: str = "") -> None:
        self.lines: list[str] = []
        self.ended = threading.Event()
        headers = {"Authorization": f"Bearer {TOKENS['viewer']}"} | ({"Last-Event-ID": last} if last else {})
        self._client = httpx.Client(timeout=httpx.Timeout(10.0, read=30.0))
        self._open = self._client.stream("GET", f"{url}/v1/events{query}", headers=headers)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            with self._open as response:
                self.type = response.headers["content-type"]
                for line in response.iter_lines():
                    self.lines.append(line)
        except (httpx.HTTPError, OSError):
            pass
        self.ended.set()

    @property
    def events(self) -> list[tuple[str, str, Any]]:
        """(id, name, data) of those that are complete."""
        found, fields = [], {}
        for line in self.lines:
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                found.append((fields["id"], fields["event"], json.loads(fields["data"])))
                fields = {}
        return found

    def names(self) -> list[str]:
        return [name for _, name, _ in self.events]

    def close(self) -> None:
        self._thread.join(timeout=10.0)
        self._client.close()


@pytest.fixture
def streaming() -> Iterator[tuple[Ward, str, list[Listener]]]:
    """Streams end with their server, so each of these tests has its own."""
    listeners: list[Listener] = []
    with ward(after=1800.0) as made:
        with served(made.app) as server:
            yield made, server.url, listeners
        for listener in listeners:
            assert listener.ended.wait(5.0)  # it was told, not left hanging
            listener.close()


def listen(streaming: tuple[Ward, str, list[Listener]], last: str = "", query: str = "") -> Listener:
    listener = Listener(streaming[1], last, query)
    streaming[2].append(listener)
    assert until(lambda: len(listener.lines) > 1)
    return listener


def test_a_stream_begins_with_read_everything_and_then_tells_what_changes(
    streaming: tuple[Ward, str, list[Listener]],
) -> None:
    listener = listen(streaming)
    assert listener.type == "text/event-stream; charset=utf-8"
    assert until(lambda: listener.names() == ["reset"])
    streaming[0].desk.order(
        Ordered(verb="cordon", target="sim/train-0007", by="ann", reason="<script>"), key="an-order"
    )
    assert until(lambda: {"changed", "told"} <= set(listener.names()))
    changed = next(data for _, name, data in listener.events if name == "changed")
    assert set(changed) == {"kind", "id", "gone"}
    told = next(data for _, name, data in listener.events if name == "told")
    assert set(told) == {"at", "what", "about", "text", "event", "subjects"}
    numbers = [int(ident.rpartition("-")[2]) for ident, _, _ in listener.events]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("how", ["header", "query"])
def test_a_reader_who_comes_back_misses_nothing_and_hears_nothing_twice(
    streaming: tuple[Ward, str, list[Listener]], how: str
) -> None:
    made = streaming[0]
    last = f"{made.changes.run}-{made.changes.seq}"
    made.desk.order(Ordered(verb="pause", target="", by="ann", reason="meanwhile"), key="meanwhile")
    expected = made.changes.since(int(last.rpartition("-")[2]))
    assert expected
    listener = listen(streaming, last=last) if how == "header" else listen(streaming, query=f"?last_event_id={last}")
    assert until(lambda: len(listener.events) >= len(expected))
    assert [ident for ident, _, _ in listener.events] == [f"{made.changes.run}-{one.seq}" for one in expected]
    assert "reset" not in listener.names()


@pytest.mark.parametrize(
    "last", ["another-run-5", "nonsense", "-", "{run}-999999999", "{run}-999999999999999999999", "{run}-²"]
)
def test_a_reader_who_comes_back_too_late_or_from_elsewhere_reads_everything_again(
    streaming: tuple[Ward, str, list[Listener]], last: str
) -> None:
    from urllib.parse import quote

    listener = listen(streaming, query=f"?last_event_id={quote(last.format(run=streaming[0].changes.run))}")
    assert until(lambda: listener.names()[:1] == ["reset"])


def test_a_token_never_shows_in_the_stream(streaming: tuple[Ward, str, list[Listener]]) -> None:
    listener = listen(streaming)
    made = streaming[0]
    secret = made.desk.issue("eve", Role.VIEWER, by="setup")
    token = made.desk.who(secret)
    assert token is not None
    assert until(lambda: any("eve" in line for line in listener.lines))
    assert not any(token.hash in line or secret in line for line in listener.lines)


def test_a_reader_who_was_away_for_too_many_changes_reads_everything_again(
    streaming: tuple[Ward, str, list[Listener]],
) -> None:
    changes = streaming[0].changes
    last = f"{changes.run}-{changes.seq}"
    for _ in range(KEPT + 1):
        changes.committed(Unit(writes={"node:sim/train-0001": None}))
    listener = listen(streaming, last=last)
    assert until(lambda: listener.names() == ["reset"])


def test_a_stream_ends_when_its_token_is_revoked(streaming: tuple[Ward, str, list[Listener]]) -> None:
    listener = listen(streaming)
    streaming[0].desk.revoke("agent", by="setup")  # another's
    assert until(lambda: "changed" in listener.names())
    assert not listener.ended.wait(0.2)
    streaming[0].desk.revoke("viewer", by="setup")
    assert listener.ended.wait(5.0)


def test_a_server_that_stops_ends_polls_and_streams_at_once() -> None:
    with ward(after=60.0) as made:
        with served(made.app) as server, ThreadPoolExecutor() as pool:
            agent = Caller(server.url, TOKENS["agent"])
            held = pool.submit(agent.post, "/v1/agent/poll", _poll())
            stream = Listener(server.url)
            assert until(lambda: bool(made.mail._waiters) and len(stream.lines) > 1)
            begun = time.monotonic()
            server.stop()
            assert held.result(timeout=5.0).status_code == 200
            assert stream.ended.wait(5.0)
        assert time.monotonic() - begun < 5.0
        stream.close()
        agent.http.close()
