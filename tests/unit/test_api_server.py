"""Serving: a free port, a port in use, certificates, an end that is quick."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.api_ward import Ward, ward

from sickbay.faces.api.app import app
from sickbay.hosts.server import Served, serve, served
from sickbay.model.errors import BadInput


@pytest.fixture(scope="module")
def made() -> Iterator[Ward]:
    with ward(after=30.0) as one:
        yield one


def test_port_0_takes_a_free_port_and_says_which(made: Ward) -> None:
    with served(app(made.desk)) as first, served(app(made.desk)) as second:
        assert first.url != second.url
        assert httpx.get(f"{first.url}/healthz").json()["status"] == "ok"
        assert httpx.get(f"{second.url}/healthz").json()["status"] == "ok"


def test_a_port_in_use_is_one_clear_line(made: Ward) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BadInput, match=rf"^port {port} is in use: choose another with --port$"):
            serve(app(made.desk), "127.0.0.1", port, lambda _: None)


@pytest.mark.parametrize(
    ("host", "port", "says"),
    [
        ("127.0.0.1", 70_000, "port 70000 cannot be"),
        ("127.0.0.1", -1, "port -1 cannot be"),
        ("no.such.host.invalid", 0, "is not known here"),
        ("192.0.2.1", 0, "cannot listen on 192.0.2.1"),  # an address of the documentation, RFC 5737
    ],
)
def test_an_address_that_cannot_be_is_one_clear_line(made: Ward, host: str, port: int, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        serve(app(made.desk), host, port, lambda _: None)


def test_serve_tells_when_it_can_be_reached_and_returns_when_it_is_stopped(made: Ward) -> None:
    reached: list[str] = []
    handles: list[Served] = []

    def ready(url: str) -> None:
        def look() -> None:
            reached.append(httpx.get(f"{url}/healthz").text)
            handles[0].stop()

        threading.Thread(target=look).start()

    serve(app(made.desk), "127.0.0.1", 0, ready, running=handles.append)
    assert '"status":"ok"' in reached[0]


def test_a_port_is_free_again_at_once(made: Ward) -> None:
    with served(app(made.desk)) as first:
        port = int(first.url.rpartition(":")[2])
        httpx.get(f"{first.url}/healthz")
    with served(app(made.desk), port=port) as again:
        assert again.url == first.url


def test_loopback_of_the_other_family_works_too(made: Ward) -> None:
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with served(app(made.desk), host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_with_a_certificate_it_speaks_tls(made: Ward, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    try:
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed here")
    with served(app(made.desk), certfile=str(cert), keyfile=str(key)) as server:
        assert server.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{server.url}/healthz", verify=trust).status_code == 200


@pytest.mark.parametrize("there", [True, False])
def test_a_certificate_that_cannot_be_used_is_one_clear_line(made: Ward, tmp_path: Path, there: bool) -> None:
    file = tmp_path / "cert.pem"
    if there:
        file.write_text("this is no certificate")
    with pytest.raises(BadInput, match=r"cert\.pem"), served(app(made.desk), certfile=str(file)):
        pass
