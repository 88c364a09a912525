"""The controller's HTTP API as the command line uses it, with the standard library alone: a command starts quickly.

What goes wrong ends as one line with its exit code: `Unreachable` is 3 (nobody answers, or it is not Sickbay), a
refusal is `BadInput`, 2, in the server's own words.
"""

import http.client
import json
import os
import ssl
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import click

from sickbay import __version__
from sickbay.faces.cli.credentials import lookup
from sickbay.faces.cli.show import clean
from sickbay.model.errors import BadInput

DEFAULT_URL = "http://127.0.0.1:8080"
PAGE = 2000  # rows that are asked for at once
TIMEOUT = 30.0  # seconds; the server answers an act within 10, a held request within 20
STREAM_TIMEOUT = 40.0  # the server sends a comment every 15 s: two were missed
CUT = (ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected, http.client.IncompleteRead)


class Unreachable(click.ClickException):
    """Nobody answers, or not as Sickbay does."""

    exit_code = 3


class ServerRefused(BadInput):
    """The server's own line says why."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class NotThere(ServerRefused):
    """There is no such thing."""


class ServerEvent(NamedTuple):
    """One server-sent event. A comment, which only shows that the server lives, has the name ''."""

    name: str
    id: str
    data: dict[str, Any]


def connect(timeout: float = TIMEOUT) -> "Client":
    """The server and the credential of this environment. Raises BadInput for a URL or token that cannot be one."""
    url = os.environ.get("SICKBAY_URL", "").strip() or DEFAULT_URL
    token = os.environ.get("SICKBAY_TOKEN", "").strip()
    return Client(url, token or lookup(url) or "", timeout=timeout)


class Client:
    def __init__(self, url: str, token: str = "", *, timeout: float = TIMEOUT) -> None:
        self.url = url.rstrip("/")
        self._secure, self._host, self._port, self._prefix = _parts(url)
        if not token.isprintable() or not token.isascii():
            raise BadInput("SICKBAY_TOKEN has characters that no token has: copy it again")
        self._token = token
        self._timeout = timeout
        self.trouble = ""  # of the controller, as its last answer said

    # --- requests
    def get(self, path: str, *, timeout: float | None = None, **query: str | float | None) -> Any:
        return self._ask("GET", path, query, timeout=timeout)

    def pages(self, path: str, **query: str | None) -> list[Any]:
        """The whole of a list, a page after the other: no answer grows with the fleet or with its history."""
        found: list[Any] = []
        after: str | None = None
        while True:
            page = self._ask("GET", path, {**query, "limit": PAGE, "after": after})
            if page and page[-1]["id"] == after:  # who answers does not know of pages: this is all again
                return found
            found += page
            if len(page) < PAGE:
                return found
            after = page[-1]["id"]

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._ask("POST", path, {}, body)

    def delete(self, path: str, **query: str | float | None) -> Any:
        return self._ask("DELETE", path, query)

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | float | None],
        body: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Any:
        said = {name: str(value) for name, value in query.items() if value is not None}
        target = f"{self._prefix}{path}" + (f"?{urlencode(said, errors='replace')}" if said else "")
        headers = {"Accept": "application/json", "Connection": "close"}
        payload = None
        if method != "GET":
            headers["Idempotency-Key"] = str(uuid.uuid4())  # what is sent twice happens once
        if body is not None:
            payload = json.dumps({name: value for name, value in body.items() if value is not None}).encode()
            headers["Content-Type"] = "application/json"
        try:
            status, answer = self._send(method, target, payload, headers, timeout)
        except CUT:
            with self._reaching():
                status, answer = self._send(method, target, payload, headers, timeout)
        return self._judge(status, answer)

    def _send(
        self, method: str, target: str, payload: bytes | None, headers: dict[str, str], timeout: float | None
    ) -> tuple[int, bytes]:
        with self._reaching(cut_too=False):
            connection = self._connection(timeout or self._timeout)
            try:
                connection.request(method, target, payload, {**headers, **self._credential()})
                response = connection.getresponse()
                self._warn(response.headers.get("Sickbay-Trouble", ""))
                return response.status, response.read()
            finally:
                connection.close()

    def _warn(self, trouble: str) -> None:
        """Once, beside the answer: what is shown may be old, and what is asked for may wait."""
        if trouble and not self.trouble:
            click.echo(f"warning: the controller is in trouble: {clean(trouble)}", err=True)
        self.trouble = trouble

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _credential(self) -> dict[str, str]:
        agent = {"User-Agent": f"sickbay/{__version__}"}
        return {**agent, "Authorization": f"Bearer {self._token}"} if self._token else agent

    @contextmanager
    def _reaching(self, *, cut_too: bool = True) -> Iterator[None]:
        """Whatever keeps us from an answer, in one line. A connection that was cut may be tried once more first."""
        try:
            yield
        except CUT as error:
            if not cut_too:
                raise
            raise Unreachable(f"{self.url} ends the connection ({_words(error)}): try again") from None
        except ssl.SSLCertVerificationError as error:
            said = error.verify_message or "not verified"
            raise Unreachable(
                f"the certificate of {self.url} is not trusted ({said}): set SSL_CERT_FILE to its authority"
            ) from None
        except TimeoutError:
            raise Unreachable(
                f"{self.url} does not answer in time: look at what it did with 'sickbay jobs', then try again"
            ) from None
        except (OSError, UnicodeError) as error:  # a host name that cannot be one is a UnicodeError
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                raise Unreachable(f"{self.url} does not speak TLS: write http:// in SICKBAY_URL") from None
            why = "" if isinstance(error, ConnectionRefusedError) else f" ({_words(error)})"
            raise Unreachable(
                f"cannot reach {self.url}{why}: is it running? start it with 'sickbay up', or set SICKBAY_URL"
            ) from None
        except (http.client.HTTPException, ValueError):
            raise self._stranger() from None

    def _stranger(self) -> Unreachable:
        return Unreachable(f"{self.url} answers, but it is not Sickbay: set SICKBAY_URL")

    def _judge(self, status: int, answer: bytes) -> Any:
        try:
            found = json.loads(answer) if answer or status >= 300 else None
        except ValueError:
            raise self._stranger() from None
        if 200 <= status < 300:
            return found
        error = found.get("error") if isinstance(found, dict) else None
        if not isinstance(error, str):
            raise self._stranger()
        match status:
            case 401:
                raise ServerRefused(
                    f"no valid token for {self.url}: set SICKBAY_TOKEN to one that "
                    f"'sickbay token create' gave, or to what operator.token in the controller's state says ({error})",
                    status,
                )
            case 403:
                raise ServerRefused(f"not allowed with this token: {error}", status)
            case 404:
                raise NotThere(error, status)
            case _ if status >= 500:
                raise Unreachable(f"{self.url} cannot do it now: {error}")
            case _:
                raise ServerRefused(error, status)

    # --- what changes
    def events(self, last: str = "", opened: "Opened | None" = None) -> Generator[ServerEvent]:
        """Server-sent events from now on, or after `last`. Ends with the server; raises Unreachable, ServerRefused.

        `opened` is given the connection, so that another thread can end the reading.
        """
        headers = {"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}
        with self._reaching():
            connection = self._connection(STREAM_TIMEOUT)
            if opened is not None:
                opened.append(connection)
            try:
                connection.request("GET", f"{self._prefix}/v1/events", headers={**headers, **self._credential()})
                response = connection.getresponse()
                with response:
                    if response.status != 200:
                        self._judge(response.status, response.read())
                        raise self._stranger()
                    yield from _events(response)
            finally:
                connection.close()


Opened = list[http.client.HTTPConnection]


def _events(lines: http.client.HTTPResponse) -> Iterator[ServerEvent]:
    name, last = "message", ""
    data: list[str] = []
    yield ServerEvent("", "", {})  # the stream is open: what changes from here on will be told
    while raw := lines.readline():
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield ServerEvent(name, last, _object("\n".join(data)))
            name, data = "message", []
        elif not field:
            yield ServerEvent("", last, {})
        elif field == "event":
            name = value
        elif field == "id":
            last = value
        elif field == "data":
            data.append(value)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _parts(url: str) -> tuple[bool, str, int | None, str]:
    """(secure, host, port, prefix)."""
    how = f"write SICKBAY_URL such as {DEFAULT_URL}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadInput(f"{url!r} is not a URL ({error}): {how}") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise BadInput(f"{url!r} is not a URL of a server: {how}")
    if parts.username is not None or parts.query or parts.fragment:  # not shown: there may be a secret in it
        raise BadInput(f"the URL has more than a host, a port and a path: {how}; a token goes into SICKBAY_TOKEN")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise BadInput(f"{url!r} has characters that no URL has: {how}")
    return parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/")


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


# --- paths


def segment(name: str) -> str:
    """A name as one part of a path, whatever it has in it."""
    if not name.strip():
        raise BadInput("a name is missing: 'sickbay nodes', 'jobs' and 'incidents' show them")
    return quote(name, safe="", errors="replace")


def node_path(node: str) -> str:
    """With its cluster, or without where the name is unambiguous."""
    cluster, slash, name = node.partition("/")
    return f"/v1/nodes/{segment(cluster)}/{segment(name)}" if slash else f"/v1/nodes/-/{segment(node)}"
