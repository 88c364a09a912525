"""One request after the other over one connection: as much of HTTP/1.1 as talking to the controller takes.

The standard library's client brings the e-mail package and TLS along, a tenth of all the memory that an agent may
have, and sends head and body apart. TLS is loaded where the address asks for it.
"""

import os
import socket
import time
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

LONGEST_HEAD = 1 << 16  # bytes
PIECE = 1 << 16
BODILESS = frozenset({204, 304})


class BadHttp(Exception):  # noqa: N818 - a state, not a mistake
    """What came back is no HTTP, or was cut off."""


class Answer(NamedTuple):
    status: int
    body: bytes
    last: bool  # the server closes the connection


class Connection:
    """Raises OSError where there is none to be had. `ca`: a file with the certificate to trust; empty: the system's."""

    def __init__(self, url: str, timeout: float, ca: str = "") -> None:
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        name = f"[{host}]" if ":" in host else host
        self._host = name if parts.port is None else f"{name}:{port}"
        self._prefix = parts.path.rstrip("/")
        self._rest = b""
        self._until_when = 0.0
        line = socket.create_connection((host, port), timeout)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._line = _trusted(ca, _written(ca)).wrap_socket(line, server_hostname=host) if secure else line
        except BaseException:
            line.close()
            raise

    def post(self, path: str, body: bytes, token: str, timeout: float, longest: int) -> Answer:
        """Raises OSError, Garbled, UnicodeEncodeError for a token that is no text. `longest`: bytes of an answer.

        `timeout`: seconds for all of it, however slowly the answer drips.
        """
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nAuthorization: Bearer {_one_line(token)}\r\n\r\n"
        )
        self._until_when = time.monotonic() + timeout
        self._line.settimeout(timeout)
        self._line.sendall(head.encode("latin-1") + body)
        self._rest = b""
        while True:
            version, status, fields = self._head()
            if status >= 200:  # those below only announce the answer
                break
        last = "close" in fields.get("connection", "keep-alive" if version == "HTTP/1.1" else "close").lower()
        if status in BODILESS:
            return Answer(status, b"", last)
        if "chunked" in fields.get("transfer-encoding", "").lower():
            return Answer(status, self._chunked(longest), last)
        if "content-length" not in fields:
            return Answer(status, self._until_closed(longest), last=True)
        size = _number(fields["content-length"], 10)
        # More than anybody needs: the rest of it stays where it is, and the connection is of no use any more.
        return Answer(status, self._take(min(size, longest)), last or size > longest)

    def _head(self) -> tuple[str, int, dict[str, str]]:
        text = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = text.split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
            raise BadHttp(f"the answer begins with {first[:60]!r}")
        pairs = (line.partition(":") for line in lines)
        return version, int(rest[:3]), {name.strip().lower(): value.strip() for name, _, value in pairs}

    def _chunked(self, longest: int) -> bytes:
        parts: list[bytes] = []
        while size := _number(self._until(b"\r\n").partition(b";")[0].decode("latin-1"), 16):
            longest -= size
            if longest < 0:
                raise BadHttp("the answer is too long")
            parts.append(self._take(size))
            self._until(b"\r\n")
        while self._until(b"\r\n"):
            pass
        return b"".join(parts)

    def _until_closed(self, longest: int) -> bytes:
        while len(self._rest) < longest and (piece := self._received()):
            self._rest += piece
        return self._rest[:longest]

    def _until(self, end: bytes) -> bytes:
        while end not in self._rest:
            if len(self._rest) > LONGEST_HEAD:
                raise BadHttp("the answer has no end to its head")
            self._more()
        found, _, self._rest = self._rest.partition(end)
        return found

    def _take(self, size: int) -> bytes:
        if len(self._rest) < size:
            parts, have = [self._rest], len(self._rest)
            while have < size:
                self._rest = b""
                self._more()
                parts.append(self._rest)
                have += len(self._rest)
            self._rest = b"".join(parts)
        found, self._rest = self._rest[:size], self._rest[size:]
        return found

    def _received(self) -> bytes:
        left = self._until_when - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        self._line.settimeout(left)
        return self._line.recv(PIECE)

    def _more(self) -> None:
        piece = self._received()
        if not piece:
            raise BadHttp("the connection was closed before the answer was complete")
        self._rest += piece

    def close(self) -> None:
        self._line.close()


def _one_line(token: str) -> str:
    if "\r" in token or "\n" in token:
        raise BadHttp("the token has a line's end in it")
    return token


def _number(text: str, radix: int) -> int:
    digits = text.strip()
    if not digits.isalnum() or not digits.isascii() or len(digits) > 16:  # no sign, no underscore
        raise BadHttp(f"{text[:40]!r} is no length")
    try:
        return int(digits, radix)
    except ValueError:
        raise BadHttp(f"{text[:40]!r} is no length") from None


def _written(ca: str) -> int:
    return os.stat(ca).st_mtime_ns if ca else 0  # noqa: PTH116 - a text, and no more than its time


@lru_cache(maxsize=1)
def _trusted(ca: str, written: int) -> "ssl.SSLContext":  # noqa: ARG001 - a new file is another one to trust
    """One for all connections: the system's certificates take megabytes."""
    import ssl

    trusted = ssl.create_default_context()
    if ca:
        trusted.load_verify_locations(ca)
    return trusted
