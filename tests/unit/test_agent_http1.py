"""The agent's own HTTP client against whatever a server, or what stands before one, may answer."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sickbay.agent.http1 import Answer, BadHttp, Connection
from sickbay.agent.transport import REPORT, Address, Away, ControllerLine
from sickbay.model.protocol import Reply

LONGEST = 1 << 16
OK = b"HTTP/1.1 200 OK\r\n"


class Server:
    """Answers each request with the next of these, byte for byte, and closes after the last."""

    def __init__(self, answers: list[bytes]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._answers = list(answers)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._answers:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with line, suppress(OSError):
                line.settimeout(5)
                while self._answers and (request := _request(line)):
                    self.requests.append(request)
                    answer = self._answers.pop(0)
                    if answer == b"":  # gone, without a word
                        break
                    line.sendall(answer)

    def end(self) -> None:
        self._answers.clear()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)


def _request(line: socket.socket) -> bytes:
    held = b""
    while b"\r\n\r\n" not in held:
        piece = line.recv(65536)
        if not piece:
            return b""
        held += piece
    head, _, body = held.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < size:
        body += line.recv(65536)
    return head + b"\r\n\r\n" + body


@contextmanager
def serving(*answers: bytes) -> Iterator[Server]:
    server = Server(list(answers))
    try:
        yield server
    finally:
        server.end()


@contextmanager
def connected(url: str) -> Iterator[Callable[[], Answer]]:
    connection = Connection(url, 5.0)
    try:
        yield lambda: connection.post("/v1/x", b"body", "secret", 5.0, LONGEST)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OK + b"Content-Length: 2\r\n\r\nhi", Answer(200, b"hi", last=False)),
        (OK + b"content-length:2\r\nConnection: close\r\n\r\nhi", Answer(200, b"hi", last=True)),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", Answer(200, b"hi", last=True)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1;x=y\r\ni\r\n0\r\n\r\n", Answer(200, b"hi", last=False)),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nT: 1\r\n\r\n", Answer(200, b"hi", last=False)),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 2\r\n\r\nhi", Answer(200, b"hi", last=False)),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204, b"", last=False)),
        (b"HTTP/1.1 503\r\nContent-Length: 0\r\n\r\n", Answer(503, b"", last=False)),
    ],
)
def test_every_form_of_answer_is_read_to_its_end(answer: bytes, expected: Answer) -> None:
    with serving(answer) as server, connected(server.url) as post:
        assert post() == expected
        assert server.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nAuthorization: Bearer secret\r\n" in server.requests[0]
        assert server.requests[0].endswith(b"\r\n\r\nbody")


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    with serving(OK + b"\r\nhello") as server, connected(server.url) as post:
        assert post() == Answer(200, b"hello", last=True)


def test_one_connection_serves_many_requests() -> None:
    answers = [OK + b"Content-Length: 1\r\n\r\n" + str(n).encode() for n in range(5)]
    with serving(*answers) as server, connected(server.url) as post:
        assert [post().body for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        assert server.connections == 1


def test_an_answer_that_is_too_long_is_cut_and_its_connection_not_used_again() -> None:
    with serving(OK + b"Content-Length: 70000\r\n\r\n" + b"x" * 70000) as server, connected(server.url) as post:
        assert post() == Answer(200, b"x" * LONGEST, last=True)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: many\r\n\r\n",
        OK + b"Content-Length: 10\r\n\r\nhi",
        OK + b"Content-Length: -1\r\n\r\nhi",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nfffff\r\n",
        OK + b"X: " + b"y" * 200_000,
        b"",
    ],
)
def test_what_is_no_answer_is_told_and_never_taken_for_one(answer: bytes) -> None:
    with serving(answer) as server, connected(server.url) as post, pytest.raises((BadHttp, OSError)):
        post()


def test_a_token_cannot_add_lines_to_the_request() -> None:
    with serving(OK) as server:
        connection = Connection(server.url, 5.0)
        with pytest.raises(BadHttp):
            connection.post("/v1/x", b"", "a\r\nX: y", 5.0, LONGEST)
        connection.close()
        assert server.requests == []


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_bytes_make_it_hang_or_raise_anything_else(answer: bytes) -> None:
    with serving(answer or b"?") as server, connected(server.url) as post, suppress(BadHttp, OSError):
        assert len(post().body) <= LONGEST


def test_a_connection_that_was_closed_while_idle_is_opened_again_without_a_word() -> None:
    said = msgspec.json.encode(Reply(ack=7))
    answer = OK + f"Content-Length: {len(said)}\r\n\r\n".encode() + said
    with serving(answer, b"", answer) as server:
        line = ControllerLine(lambda: Address(server.url, "secret"))
        assert line.ask(REPORT, b"{}", 5.0).ack == 7
        assert line.ask(REPORT, b"{}", 5.0).ack == 7
        assert (server.connections, len(server.requests)) == (2, 3)
        line.close()


def test_a_server_that_only_hangs_up_is_away() -> None:
    with serving(b"") as server:
        line = ControllerLine(lambda: Address(server.url, "secret"))
        with pytest.raises(Away):
            line.ask(REPORT, b"{}", 5.0)
