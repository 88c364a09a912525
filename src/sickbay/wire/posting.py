"""HTTP POST to a URL that a site has configured: bounded in time and size, TLS verified, redirects not followed."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from sickbay.model.errors import Rejected, Transient, Unknown

MOST = 64 << 10  # bytes of an answer that are read
PORTS = {"http": 80, "https": 443}
_PRINTABLE = "".join(map(chr, range(33, 127)))


class Posted(NamedTuple):
    """What the far side answered, whatever it was."""

    status: int
    reason: str
    said: str
    retry_after: float = 0.0


def wrong_url(url: str) -> str:
    """Why a URL cannot be posted to; empty: it can. Never repeats the URL: it may be a secret."""
    if not url.isascii() or any(not one.isprintable() or one.isspace() for one in url):
        return "is not a URL: it has a blank, or a character that must be written as %XX"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is not a URL: write https://host/path"
    if parts.scheme not in PORTS:
        return "must begin with https:// (or http:// within your own network)"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password in it: put secrets into a file of their own (secret_file, token_file)"
    if not parts.hostname or port == 0:
        return "names no host: write https://host/path"
    return "has a fragment (#…), which is never sent: remove it" if parts.fragment else ""


@contextmanager
def bounded(sock: Callable[[], socket.socket | None], until: float) -> Iterator[None]:
    """Cuts a connection off at a moment of the monotonic clock: a peer that sends a byte now and then ends nothing."""

    def cut() -> None:
        with contextlib.suppress(OSError, AttributeError):
            found = sock()
            if found is not None:
                found.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def post(url: str, body: bytes, headers: Mapping[str, str], *, within: float, ca_file: str = "") -> Posted:
    """One POST, one answer. Raises Transient if it was surely not taken, Unknown if that is not known.

    `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` are heeded. Raises Rejected for a header that cannot be sent.
    """
    for name, value in headers.items():
        if not fits_a_header(value):  # said here: the library would repeat it, and it may be a secret
            raise Rejected(f"the header {name} cannot be sent: what it is to say is more than one line of ASCII")
    parts, until = urlsplit(url), time.monotonic() + within
    connection, target = _connection(parts, within)
    with bounded(lambda: connection.sock, until):
        try:
            try:
                connection.connect()
                if parts.scheme == "https":
                    _secure(connection, parts, ca_file)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise Transient(f"{parts.hostname} cannot be reached: {why(error)}") from None
            try:
                connection.request("POST", target, body, dict(headers))
                answer = connection.getresponse()
                said = answer.read(MOST).decode(errors="replace")
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise Unknown(f"{parts.hostname} has not answered: {why(error)}") from None
            return Posted(answer.status, answer.reason, said, _retry_after(answer.getheader("Retry-After", "")))
        finally:
            connection.close()


def fits_a_header(value: str) -> bool:
    return value.isascii() and value.isprintable()


def header_text(value: str) -> str:
    """The same where it fits into a header; else with what does not as %XX: a key stays one, and stays the same."""
    return value if fits_a_header(value) else quote(value, safe=_PRINTABLE)


def why(error: Exception) -> str:
    """A failed connection in a few words, without what it was about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed ({error.reason or 'no reason given'})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it hung up" if isinstance(error, http.client.RemoteDisconnected) else type(error).__name__


def _connection(parts: SplitResult, within: float) -> tuple[http.client.HTTPConnection, str]:
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    proxy = _proxy(parts.scheme, host)
    if proxy is None:
        connection = http.client.HTTPConnection(host, port, timeout=within)
    else:
        connection = http.client.HTTPConnection(proxy.hostname or "", proxy.port or PORTS["http"], timeout=within)
        if parts.scheme == "https":
            connection.set_tunnel(host, port)
        else:
            target = f"http://{parts.netloc}{target}"
    connection.default_port = PORTS[parts.scheme]
    return connection, target


def _proxy(scheme: str, host: str) -> SplitResult | None:
    found = urllib.request.getproxies().get(scheme, "")
    if not found or urllib.request.proxy_bypass(host):
        return None
    return urlsplit(found if "://" in found else f"http://{found}")


def _secure(connection: http.client.HTTPConnection, parts: SplitResult, ca_file: str) -> None:
    context = ssl.create_default_context(cafile=ca_file or None)
    # The handshake comes after the wrapping, so that it can be cut off, too.
    wrapped = context.wrap_socket(connection.sock, server_hostname=parts.hostname, do_handshake_on_connect=False)
    connection.sock = wrapped
    wrapped.do_handshake()


def _retry_after(text: str) -> float:
    """Seconds, or a date; what cannot be read asks for nothing."""
    if text.isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    return 0.0


def busy(status: int) -> bool:
    """Whether the same may be taken later."""
    return status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_EARLY,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
