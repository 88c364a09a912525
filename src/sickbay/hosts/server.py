"""The HTTP server (uvicorn), on this thread or on one of its own."""

import asyncio
import contextlib
import http.client
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from sickbay.hosts.connections import (
    Acceptor,
    ClientConnection,
    ConnectionTable,
    GuardedHttp,
    SparingFilter,
    connections_allowed,
)
from sickbay.model.errors import BadInput

STOP_WITHIN = 5  # seconds for what is being answered when it ends
BACKLOG = 512
AMBIGUOUS = b'{"error":"Content-Length and Transfer-Encoding contradict each other: send one of them"}'


class Served:
    """A server that runs; `stop` may be called from any thread and from a signal handler."""

    def __init__(self, server: "_Server") -> None:
        self._server = server

    @property
    def url(self) -> str:
        return self._server.url

    def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, app: Starlette, url: str, ready: Callable[[], None], most: int | None = None
    ) -> None:
        super().__init__(config)
        self.url = url
        self._app = app
        self._ready = ready
        self._table = ConnectionTable(most or connections_allowed())

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the caller's business."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Without uvicorn's own servers: these would accept without end."""
        self.servers = [Acceptor(one, self._protocol, self.config.ssl, self._table) for one in sockets or []]  # type: ignore[misc]
        self.started = True
        self._ready()

    def _protocol(self, peer: ClientConnection) -> GuardedHttp:
        return GuardedHttp(self.config, self.server_state, {}, peer=peer, table=self._table)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.state.close()
        await super().shutdown(sockets)


def serve(
    app: Starlette,
    host: str,
    port: int,
    ready: Callable[[str], None],
    certfile: str | None = None,
    keyfile: str | None = None,
    *,
    running: Callable[[Served], None] | None = None,
) -> None:
    """Serves on this thread until it is stopped; `ready` is told the URL once it can be reached.

    `running` is given what stops it, before `ready`. Port 0 takes a free one. Raises BadInput.
    """
    with _listen(host, port) as listening:
        server = _make(app, listening, host, lambda: ready(server.url), certfile, keyfile)
        if running is not None:
            running(Served(server))
        asyncio.run(server.serve(sockets=[listening]))


@contextlib.contextmanager
def served(
    app: Starlette,
    host: str = "127.0.0.1",
    port: int = 0,
    certfile: str | None = None,
    keyfile: str | None = None,
    *,
    most: int | None = None,
) -> Iterator[Served]:
    """Serves on a thread of its own while the block runs. `most` connections, else what the system allows.

    Raises BadInput.
    """
    up = threading.Event()
    with _listen(host, port) as listening:
        server = _make(app, listening, host, up.set, certfile, keyfile, most)
        thread = threading.Thread(
            target=lambda: asyncio.run(server.serve(sockets=[listening])), name="sickbay api", daemon=True
        )
        thread.start()
        try:
            while not up.wait(0.05):
                if not thread.is_alive():
                    raise BadInput(f"cannot serve on {server.url}: the log says why")
            yield Served(server)
        finally:
            server.should_exit = True
            thread.join()


def refuse_taken(host: str, port: int, setting: str = "--{}") -> None:
    """Raises BadInput for a place where nobody could serve now, before anything else is done.

    `setting`: how a person writes what is wrong with it.
    """
    _listen(host, port, setting).close()


def refuse_unusable(certfile: str | None, keyfile: str | None) -> None:
    """Raises BadInput for a certificate that nobody could serve with, before anything else is done."""
    for file in (certfile, keyfile):
        if file and not Path(file).is_file():
            raise BadInput(f"there is no file {file}: give the certificate and its key in PEM form")
    if certfile:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=_no_pass_phrase)
        except (ssl.SSLError, OSError) as error:
            raise BadInput(f"the certificate {certfile} cannot be used: {error}") from None


def _no_pass_phrase() -> str:
    """Else OpenSSL asks for it on the terminal, and waits; where there is none a controller would not start."""
    raise BadInput("the key of the certificate has a pass phrase: give one without (openssl pkey -in KEY -out NEW)")


def answers_at(url: str) -> bool:
    """The way of a report, through the network and the server (canary)."""
    address = urlsplit(url)
    host = address.hostname or "127.0.0.1"
    if address.scheme == "https":  # ourselves: whoever answers on our own port need not prove who it is
        trusting = ssl._create_unverified_context()  # noqa: S323, SLF001 - said above
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, address.port, timeout=5.0, context=trusting
        )
    else:
        connection = http.client.HTTPConnection(host, address.port, timeout=5.0)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


def _make(
    app: Starlette,
    listening: socket.socket,
    host: str,
    ready: Callable[[], None],
    certfile: str | None,
    keyfile: str | None,
    most: int | None = None,
) -> _Server:
    config = uvicorn.Config(
        unambiguous(app),
        http="h11",  # the strict one, whatever else is installed: our deadlines are kept by it
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=75,  # longer than agents and people pause between two requests
        timeout_graceful_shutdown=STOP_WITHIN,
        backlog=BACKLOG,
        ssl_certfile=certfile,
        ssl_keyfile=keyfile,
    )
    _load(config, certfile, keyfile)
    for name in ("uvicorn.error", "asyncio"):  # strangers decide how often these speak
        logger = logging.getLogger(name)
        if not any(isinstance(one, SparingFilter) for one in logger.filters):
            logger.addFilter(SparingFilter())
    shown = f"[{host}]" if ":" in host else host
    url = f"{'https' if certfile else 'http'}://{shown}:{listening.getsockname()[1]}"
    return _Server(config, app, url, ready, most)


def unambiguous(app: ASGIApp) -> ASGIApp:
    """Request smuggling: what a proxy and we could read as two different requests is refused."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if not {b"content-length", b"transfer-encoding"} <= names:
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": AMBIGUOUS})

    return checked


def _load(config: uvicorn.Config, certfile: str | None, keyfile: str | None) -> None:
    refuse_unusable(certfile, keyfile)
    try:
        config.load()
    except (ssl.SSLError, OSError) as error:
        raise BadInput(f"the certificate {certfile} cannot be used: {error}") from None


def _listen(host: str, port: int, setting: str = "--{}") -> socket.socket:
    if not 0 <= port <= 65_535:
        raise BadInput(f"port {port} cannot be: write 1 to 65535, or 0 for any that is free")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadInput(
            f"host {host!r} is not known here ({error.strerror}): write an address of this machine"
        ) from None
    family, kind, proto, _, address = found[0]
    listening = socket.socket(family, kind, proto)
    try:
        # So that a controller that was just killed can come back; a port that somebody listens on stays refused.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except PermissionError:
        listening.close()
        where = setting.format("port")
        raise BadInput(f"port {port} may not be used by this user: choose one above 1023 with {where}") from None
    except OSError as error:
        listening.close()
        if error.errno == 98:
            raise BadInput(f"port {port} is in use: choose another with {setting.format('port')}") from None
        where = setting.format("host")
        raise BadInput(f"cannot listen on {host}:{port} ({error.strerror}): choose another with {where}") from None
    listening.setblocking(False)
    return listening
