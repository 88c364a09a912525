"""How the command line reaches a server: the URL, the credential, and everything that can be in the way."""

import json
import multiprocessing
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.support.canned import CUT, Answer, Canned, node, order, serving

from sickbay.faces.cli.client import Client, connect, node_path, segment
from sickbay.faces.cli.credentials import file, forget, lookup, remember
from sickbay.faces.cli.main import main
from sickbay.model.errors import BadInput


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("SICKBAY_URL", raising=False)
    monkeypatch.delenv("SICKBAY_TOKEN", raising=False)
    return tmp_path


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Canned]:
    with serving() as canned:
        monkeypatch.setenv("SICKBAY_URL", canned.url)
        yield canned


def sickbay(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def fails(code: int, *args: str) -> str:
    """One line on standard error, nothing on standard output."""
    result = sickbay(*args)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# --- credentials


def test_a_token_is_remembered_for_its_server_only_and_can_be_forgotten() -> None:
    assert lookup("http://127.0.0.1:8080") is None
    remember("http://127.0.0.1:8080", "one")
    remember("http://127.0.0.1:9090/", "two")
    assert lookup("http://127.0.0.1:8080/") == "one"
    assert lookup("http://127.0.0.1:9090") == "two"
    forget("http://127.0.0.1:8080")
    forget("http://127.0.0.1:8080")
    assert lookup("http://127.0.0.1:8080") is None
    assert lookup("http://127.0.0.1:9090") == "two"


def test_nobody_else_can_read_the_tokens() -> None:
    remember("http://127.0.0.1:8080", "one")
    assert file().stat().st_mode & 0o777 == 0o600
    assert file().parent.stat().st_mode & 0o777 == 0o700
    assert sorted(one.name for one in file().parent.iterdir()) == ["credentials.json", "credentials.lock"]


def test_the_home_directory_is_used_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert file() == Path("/home/somebody/.config/sickbay/credentials.json")


@pytest.mark.parametrize("broken", ["{", "[]", '{"x": 1}', ""])
def test_a_broken_file_is_said_and_a_new_token_takes_its_place(broken: str) -> None:
    file().parent.mkdir(parents=True)
    file().write_text(broken)
    with pytest.raises(BadInput, match="remove it, or set SICKBAY_TOKEN"):
        lookup("http://127.0.0.1:8080")
    remember("http://127.0.0.1:8080", "one")
    assert lookup("http://127.0.0.1:8080") == "one"


def _remember_some(first: int) -> None:
    for number in range(first, first + 20):
        remember(f"http://127.0.0.1:{number}", str(number))


def test_two_that_remember_at_once_lose_nothing() -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_remember_some, args=(first,)) for first in (1000, 2000)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(json.loads(file().read_text())) == 40


# --- what is sent


def test_the_token_of_the_environment_wins_over_the_one_that_was_remembered(
    server: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.says("GET /v1/nodes", [])
    connect().get("/v1/nodes")
    remember(server.url, "kept")
    connect().get("/v1/nodes")
    monkeypatch.setenv("SICKBAY_TOKEN", "mine")
    connect().get("/v1/nodes")
    assert [one.headers.get("authorization") for one in server.asked] == [None, "Bearer kept", "Bearer mine"]


def test_a_path_in_front_of_the_api_is_kept(server: Canned) -> None:
    server.says("GET /gpu/v1/nodes", [])
    assert Client(f"{server.url}/gpu/").get("/v1/nodes") == []


def test_names_cannot_leave_their_place_in_a_path() -> None:
    assert node_path("n0") == "/v1/nodes/-/n0"
    assert node_path("local/n0") == "/v1/nodes/local/n0"
    assert node_path("local/../../v1/tokens?x#y") == "/v1/nodes/local/..%2F..%2Fv1%2Ftokens%3Fx%23y"
    assert segment("a b\udcff") == "a%20b%3F"
    with pytest.raises(BadInput, match="a name is missing"):
        node_path("")


def test_an_act_whose_connection_was_cut_is_sent_once_more_with_the_same_key(server: Canned) -> None:
    server.says("POST /v1/nodes/-/n0/cordon", CUT, node(state="HELD", order=order("cordon", "local/n0")))
    assert sickbay("cordon", "n0", "--reason", "x").exit_code == 0
    first, second = server.of("POST", "/v1/nodes/-/n0/cordon")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] != ""
    assert first.body == second.body == {"reason": "x"}


def test_a_server_that_always_cuts_is_given_up_after_the_second_time(server: Canned) -> None:
    server.says("GET /v1/nodes", CUT)
    assert "ends the connection" in fails(3, "nodes")
    assert len(server.asked) == 2


# --- what comes back


def test_a_server_that_is_not_there_is_exit_3_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else can take it
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("SICKBAY_URL", url)
        assert fails(3, "nodes") == (
            f"cannot reach {url}: is it running? start it with 'sickbay up', or set SICKBAY_URL\n"
        )


def test_https_where_plain_http_is_spoken_says_so(server: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    url = server.url.replace("http://", "https://")
    monkeypatch.setenv("SICKBAY_URL", url)
    assert fails(3, "nodes") == f"{url} does not speak TLS: write http:// in SICKBAY_URL\n"


@pytest.mark.parametrize("url", ["http://no-such-host.invalid", "http://a..b", "http://[::1]:1"])
def test_a_host_that_does_not_exist_is_exit_3(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_URL", url)
    assert fails(3, "nodes").startswith(f"cannot reach {url}")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:8080", "write SICKBAY_URL such as http://127.0.0.1:8080"),
        ("ftp://x", "is not a URL of a server"),
        ("http://", "is not a URL of a server"),
        ("http://x:99999", "is not a URL"),
        ("http://x:port", "is not a URL"),
        ("http://x/?a=b", "more than a host"),
        ("http://hö.example", "characters that no URL has"),
    ],
)
def test_a_bad_url_is_one_line(url: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_URL", url)
    assert says in fails(2, "nodes")


def test_a_secret_in_the_url_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_URL", "http://me:hunter2@127.0.0.1:8080")
    said = fails(2, "nodes")
    assert "SICKBAY_TOKEN" in said
    assert "hunter2" not in said


def test_a_token_that_cannot_be_one_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SICKBAY_TOKEN", "a\nb")
    assert "copy it again" in fails(2, "nodes")


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (400, 2, "the server's line"),
        (401, 2, "no valid token for http://127.0.0.1"),
        (401, 2, "set SICKBAY_TOKEN"),
        (403, 2, "not allowed with this token: the server's line"),
        (404, 2, "the server's line"),
        (409, 1, "the server's line"),
        (413, 2, "the server's line"),
        (500, 3, "cannot do it now: the server's line"),
        (503, 3, "cannot do it now: the server's line"),
    ],
)
def test_each_refusal_has_its_exit_code_and_the_servers_own_line(
    server: Canned, status: int, code: int, says: str
) -> None:
    server.refuses("GET /v1/nodes", status, "the server's line")
    assert says in fails(code, "nodes")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<html>Welcome</html>", media="text/html"),
        Answer(b"<html>Not here</html>", 404, "text/html"),
        Answer({"detail": "x"}, 404),
        Answer(b"", 302),
        Answer(b"\xff\xfe"),
    ],
)
def test_another_server_on_that_port_is_told_from_ours(server: Canned, answer: Answer) -> None:
    server.says("GET /v1/nodes", answer)
    assert "it is not Sickbay: set SICKBAY_URL" in fails(3, "nodes")


def test_a_server_that_speaks_no_http_is_told_from_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("SICKBAY_URL", f"http://127.0.0.1:{listening.getsockname()[1]}")

        def greet() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        assert "it is not Sickbay" in fails(3, "nodes")
        thread.join()


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = Client(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.2)
        with pytest.raises(Exception, match="does not answer in time"):
            client.get("/v1/nodes")


def test_events_are_read_as_they_are_written(server: Canned) -> None:
    stream = (
        b": welcome\n\n"
        b'id: r-1\nevent: changed\ndata: {"kind":"node","id":"local/n0","gone":false}\n\n'
        b'retry: 5\nid: r-2\nevent: told\ndata: {\ndata:  "text": 1}\r\n\r\n'
        b"event: reset\ndata: nonsense\n\n"
        b'event: changed\ndata: {"never": "finished"}\n'
    )
    server.says("GET /v1/events", Answer(stream, media="text/event-stream"))
    found = [event for event in connect().events("r-0") if event.name]
    assert [(event.name, event.id, event.data) for event in found] == [
        ("changed", "r-1", {"kind": "node", "id": "local/n0", "gone": False}),
        ("told", "r-2", {"text": 1}),
        ("reset", "r-2", {}),
    ]
    assert server.asked[0].headers["last-event-id"] == "r-0"
