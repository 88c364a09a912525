"""The API under slow, half-open and flooding clients: deadlines, a limit of connections, who is heard all the same."""

import contextlib
import json
import logging
import socket
import ssl
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.support.api_ward import NODE, TOKENS, Caller, Ward, ward
from tests.support.waiting import until

from sickbay.faces.api.app import app
from sickbay.faces.api.examples import REPORT
from sickbay.hosts import connections
from sickbay.hosts.connections import SparingFilter, connections_allowed
from sickbay.hosts.server import served
from sickbay.model.fleet import Role

pytestmark = pytest.mark.slow

HEAD = b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\nX-a: "
MOST = 24


@pytest.fixture(scope="module")
def made() -> Iterator[Ward]:
    with ward(after=30.0) as one:
        yield one


@contextlib.contextmanager
def sockets(url: str, count: int, words: bytes) -> Iterator[list[socket.socket]]:
    """So many connections that say this, and wait. Whoever is pushed out before it has spoken is one of them, too."""
    port = int(url.rpartition(":")[2])
    opened = []
    try:
        for _ in range(count):
            opened.append(one := socket.create_connection(("127.0.0.1", port), timeout=10))
            with contextlib.suppress(OSError):
                one.sendall(words)
        yield opened
    finally:
        for one in opened:
            one.close()


def ended(one: socket.socket) -> bool:
    """The other side has ended it."""
    one.setblocking(False)
    try:
        while one.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.parametrize("words", [b"", b"G", HEAD])
def test_a_head_that_does_not_come_ends_the_connection(
    made: Ward, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_WITHIN", 0.2)
    with served(app(made.desk)) as server, sockets(server.url, 3, words) as slow:
        until(lambda: all(ended(one) for one in slow), 10, "all are ended")


def test_a_head_that_comes_byte_by_byte_has_no_more_time_for_it(made: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_WITHIN", 0.2)

    def drips(one: socket.socket) -> bool:
        with contextlib.suppress(OSError):
            one.send(b"a")
        return ended(one)

    with served(app(made.desk)) as server, sockets(server.url, 1, HEAD) as (slow,):
        until(lambda: drips(slow), 10, "it is ended")


def test_a_body_that_does_not_come_ends_the_connection(made: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_WITHIN", 0.2)
    head = f"POST /v1/agent/report HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['agent']}\r\n"
    words = f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode()
    with served(app(made.desk)) as server, sockets(server.url, 3, words) as slow:
        until(lambda: all(ended(one) for one in slow), 10, "all are ended")


def test_an_answer_that_nobody_reads_ends_the_connection(made: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_WITHIN", 0.2)
    ask = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with served(app(made.desk)) as server:
        port = int(server.url.rpartition(":")[2])
        greedy = socket.socket()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect(("127.0.0.1", port))
        greedy.setblocking(False)

        def asks_on() -> bool:
            try:
                greedy.send(ask * 100)
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        until(asks_on, 20, "it is ended")
        greedy.close()


def test_a_stream_lives_longer_than_every_deadline(made: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEAD_WITHIN", "BODY_WITHIN", "READ_WITHIN"):
        monkeypatch.setattr(connections, name, 0.1)
    words = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['viewer']}\r\n\r\n".encode()
    with served(app(made.desk)) as server, sockets(server.url, 1, words) as (stream,):
        assert b"200 OK" in stream.recv(65_536)
        for _ in range(3):
            with sockets(server.url, 1, HEAD) as (slow,):
                until(partial(ended, slow), 10, "its deadline has passed")
        made.desk.issue("heard", Role.VIEWER, by="setup")
        heard = b""
        while b"token 'heard'" not in heard:
            piece = stream.recv(65_536)
            assert piece, heard
            heard += piece
        made.desk.revoke("heard", by="setup")


def test_an_agent_is_heard_while_more_slow_connections_stand_than_there_is_room_for(made: Ward) -> None:
    with served(app(made.desk), most=MOST) as server:
        agent, viewer = Caller(server.url, TOKENS["agent"]), Caller(server.url, TOKENS["viewer"])
        with sockets(server.url, 4 * MOST, HEAD) as slow:
            assert viewer.get("/v1/nodes").status_code == 200
            assert agent.post("/v1/agent/report", REPORT | {"node": NODE}).status_code == 200
            assert sum(ended(one) for one in slow) >= 2 * MOST
        agent.http.close()
        viewer.http.close()


def test_whoever_has_shown_a_token_is_pushed_out_last(made: Ward) -> None:
    words = f"GET /v1/brakes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['viewer']}\r\n\r\n".encode()
    with served(app(made.desk), most=MOST) as server, sockets(server.url, 2, words) as known:
        for one in known:
            assert b"200 OK" in one.recv(65_536)
        with sockets(server.url, 2 * MOST, HEAD):
            with Caller(server.url).http as other:
                assert other.get("/healthz").status_code == 200
            assert not any(ended(one) for one in known)


def test_where_everybody_is_busy_one_more_is_told_so(made: Ward) -> None:
    words = f"GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['viewer']}\r\n\r\n".encode()
    with served(app(made.desk), most=4) as server, sockets(server.url, 4, words) as streams:
        for one in streams:
            assert b"200 OK" in one.recv(65_536)
        with sockets(server.url, 1, b"") as (late,):
            answer = late.recv(65_536)
            assert b"503 Service Unavailable" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("too many connections")
        assert not any(ended(one) for one in streams)


def test_content_length_together_with_transfer_encoding_is_refused(made: Ward) -> None:
    words = (
        b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    with served(app(made.desk)) as server, sockets(server.url, 1, words) as (one,):
        answer = b""
        while piece := one.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1  # what stands behind it is not read as another request


def test_a_tls_handshake_that_does_not_come_ends_the_connection(
    made: Ward, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_WITHIN", 0.2)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    make += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run(make, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed here")
    with (
        served(app(made.desk), certfile=str(cert), keyfile=str(key), most=MOST) as server,
        sockets(server.url, 2 * MOST, b"") as slow,
    ):
        trust = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{server.url}/healthz", verify=trust).status_code == 200
        until(lambda: all(ended(one) for one in slow), 10, "all are ended")


def test_the_limit_leaves_room_for_the_store_and_the_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, allowed in ((1024, 768), (256, 128), (20, 16), (1_000_000, 16_384)):
        monkeypatch.setattr("resource.getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections_allowed() == allowed


def test_a_log_line_that_strangers_can_cause_is_said_once_a_while() -> None:
    sparing = SparingFilter(every=3600.0)
    records = [logging.LogRecord("x", logging.WARNING, "", 0, "Invalid HTTP request", (), None) for _ in range(1000)]
    assert sum(map(sparing.filter, records)) == 1


def chunked(url: str, secret: str, pieces: list[bytes]) -> bytes:
    """What is answered to a body in these chunks; empty where the connection was cut."""
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
    words = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    words += b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    said = b""
    with sockets(url, 1, words + b"0\r\n\r\n") as (one,), contextlib.suppress(ConnectionError):
        while not said.endswith((b"}", b"received.")) and (piece := one.recv(65_536)):
            said += piece
    return said


@pytest.mark.parametrize("secret", [TOKENS["operator"], "nobody's"])
def test_a_body_in_crumbs_is_not_read_to_its_end(made: Ward, caplog: pytest.LogCaptureFixture, secret: str) -> None:
    """Four connections that sent chunks of one byte kept an agent waiting for twenty seconds."""
    with served(made.app) as server, caplog.at_level(logging.ERROR):
        crumbs = chunked(server.url, secret, [b" "] * 20_000)
        assert b"Invalid HTTP request" in crumbs or not crumbs.endswith(b"}")
        with Caller(server.url, TOKENS["agent"]).http as agent:
            assert agent.post("/v1/agent/report", json=REPORT).status_code in {200, 403}
    assert caplog.records == []


def test_a_body_in_chunks_that_are_no_crumbs_is_read(made: Ward) -> None:
    with served(made.app) as server:
        for pieces in (
            [b" "] * 499 + [b"{}"],
            [b" " * 300] * 3000 + [b"{}"],
            [b" "] * 400 + [b" " * 300] * 3000 + [b"{}"],
        ):
            said = chunked(server.url, TOKENS["operator"], pieces)
            assert b"the field 'name' is missing" in said
