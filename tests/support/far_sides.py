"""Far sides of notifiers: a real HTTP server and a real SMTP server on this machine, that behave as they are told."""

import base64
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from sickbay.testing.notifier_contract import FarMood

HTTP_MOODS = frozenset(FarMood)
SMTP_MOODS = frozenset(FarMood)
DRIP_EVERY = 0.05


class HttpRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class FarServer:
    """Listens on a port of its own; `be` AWAY closes it, anything else opens it again at the same place."""

    def __init__(self, talk: Callable[["FarServer", socket.socket], None]) -> None:
        self.mood = FarMood.TAKES
        self.status = 400  # of a refusal
        self.busy = 503
        self.headers: dict[str, str] = {}
        self.over = threading.Event()
        self._talk = talk
        self._server: socketserver.ThreadingTCPServer | None = None
        self.port = 0
        self._open()

    def _open(self) -> None:
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError, ValueError):
                    outer._talk(outer, self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def be(self, mood: FarMood) -> None:
        self.mood = mood
        if mood is FarMood.AWAY:
            self._close()
        elif self._server is None:
            self._open()

    def _close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self.over.set()
        self._close()

    def drip(self, sock: socket.socket, data: bytes) -> None:
        """Byte by byte, until whoever listens hangs up."""
        for byte in data * 10_000:
            if self.over.wait(DRIP_EVERY):
                return
            sock.sendall(bytes([byte]))


# --- HTTP


class FarHttp(FarServer):
    def __init__(self) -> None:
        self.seen: list[HttpRequest] = []
        self.taken: list[HttpRequest] = []
        self.script: list[FarMood] = []  # of the next connections, before its mood counts
        super().__init__(_http)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _http(far: FarServer, sock: socket.socket) -> None:
    assert isinstance(far, FarHttp)
    mood = far.script.pop(0) if far.script else far.mood
    if mood is FarMood.CUT_BEFORE:
        sock.recv(1)
        return
    request = _request(sock)
    far.seen.append(request)
    match mood:
        case FarMood.HANGS:
            far.over.wait(30)
        case FarMood.DRIPS:
            far.drip(sock, b"HTTP/1.1 200 OK\r\nX-A: b\r\n")
        case FarMood.CUT_AFTER:
            far.taken.append(request)
        case FarMood.FLOODS:
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            while not far.over.is_set():
                sock.sendall(b"x" * 65536)
        case FarMood.REFUSES | FarMood.BUSY:
            status = far.status if mood is FarMood.REFUSES else far.busy
            echo = f"{request.path} {request.headers} {request.body!r} \x1b[31m\r\n".encode()
            more = "".join(f"{name}: {value}\r\n" for name, value in far.headers.items())
            reason = " ".join(request.headers.get("authorization", "no").split())
            sock.sendall(f"HTTP/1.1 {status} {reason}\r\n{more}Content-Length: {len(echo)}\r\n\r\n".encode() + echo)
        case _:
            far.taken.append(request)
            sock.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\nok")


def _request(sock: socket.socket) -> HttpRequest:
    data = b""
    while b"\r\n\r\n" not in data:
        data += (piece := sock.recv(65536))
        if not piece:
            raise ValueError("it hung up")
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += sock.recv(65536)
    return HttpRequest(first.split(" ")[1], headers, body)


# --- SMTP


class Mail(NamedTuple):
    sender: str
    to: tuple[str, ...]
    text: str


class FarSmtp(FarServer):
    def __init__(self) -> None:
        self.taken: list[Mail] = []
        self.refuses: set[str] = set()  # addresses
        super().__init__(_smtp)


def _smtp(far: FarServer, sock: socket.socket) -> None:
    assert isinstance(far, FarSmtp)
    if far.mood is FarMood.CUT_BEFORE:
        return
    if far.mood is FarMood.HANGS:
        far.over.wait(30)
        return
    if far.mood is FarMood.DRIPS:
        far.drip(sock, b"220-hello\r\n")
        return
    reader, heard = sock.makefile("rb"), ""

    def say(code: int, text: str = "ok") -> None:
        sock.sendall(f"{code} {text}\r\n".encode())

    say(220)
    sender, to = "", list[str]()
    while line := reader.readline():
        word = line.decode().strip()
        heard += f" {word}"
        with suppress(ValueError):
            heard += base64.b64decode(word.split()[-1], validate=True).decode(errors="ignore")
        match word.split(" ")[0].split(":")[0].upper():
            case "EHLO":
                sock.sendall(b"250-here\r\n250 AUTH PLAIN\r\n")
            case "AUTH" if far.mood is FarMood.REFUSES:
                say(535, f"no: {heard!r}")
            case "AUTH":
                say(235)
            case "MAIL" if far.mood is FarMood.BUSY:
                say(451, f"later: {heard!r}")
            case "MAIL" if far.mood is FarMood.REFUSES:
                say(550, f"no: {heard!r}")
            case "MAIL":
                sender = word
                say(250)
            case "RCPT":
                refused = any(address in word for address in far.refuses)
                to += [] if refused else [word]
                say(550 if refused else 250)
            case "DATA":
                say(354)
                text = b""
                while (piece := reader.readline()) not in {b".\r\n", b""}:
                    text += piece
                far.taken.append(Mail(sender, tuple(to), text.decode()))
                if far.mood is FarMood.CUT_AFTER:
                    return
                if far.mood is FarMood.FLOODS:
                    while not far.over.is_set():
                        sock.sendall(b"250-" + b"x" * 500 + b"\r\n")
                say(250, "queued")
            case "QUIT":
                say(221)
                return
            case _:
                say(250)


@contextmanager
def serving(far: FarServer) -> Iterator[None]:
    try:
        yield
    finally:
        far.close()
