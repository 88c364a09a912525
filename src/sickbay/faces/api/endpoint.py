"""The endpoint of one path (ASGI): authenticates, reads, decodes, hands over, answers; idempotency keys."""

import hashlib
import logging
import re
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from sickbay.faces.api import decode
from sickbay.faces.api.body import HungUp, Incoming, send_whole
from sickbay.faces.api.credentials import MACHINES, Credentials, admit, secret_of
from sickbay.faces.api.events import EventStream
from sickbay.faces.api.refusal import ApiRefusal, refused
from sickbay.faces.api.route import ApiRequest, AppState, PlainAnswer, Route, on_thread
from sickbay.model.errors import StoreError
from sickbay.model.fleet import Role, Token

log = logging.getLogger("sickbay.api")

KEYS = 2000  # answered Idempotency-Keys that are remembered
HELD_MOST = 64  # streams and held requests of one token
_KEY = re.compile(r"[\x21-\x7e]{1,128}")
TROUBLE_MOST = 300  # characters of a header's line
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
]


class AnsweredKeys:
    """Which Idempotency-Keys were answered lately, and for what. The facts' own ids are what makes a second sending
    harmless; this only lets it be answered like the first, though the state has moved on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked: OrderedDict[str, str] = OrderedDict()

    def seen(self, key: str, what: str) -> bool:
        """Raises ApiRefusal if the key was used for something else."""
        with self._lock:
            before = self._asked.get(key)
        if before is not None and before != what:
            raise ApiRefusal(409, "this Idempotency-Key was used for another request: choose a new one")
        return before is not None

    def note(self, key: str, what: str) -> None:
        with self._lock:
            self._asked[key] = what
            while len(self._asked) > KEYS:
                self._asked.popitem(last=False)


class HeldRequests:
    """Concurrency limit of streams, long polls and reports, by token: one program that opens them without end would
    leave no connections to others, and one that sends them the largest bodies no memory and no time.
    """

    def __init__(self) -> None:
        self._held: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def one(self, who: Token | None, most: int = HELD_MOST) -> Iterator[None]:
        """Raises ApiRefusal(429). Routes with a limit of their own are counted apart."""
        key = (who.hash if who is not None else "", most)
        if self._held[key] >= most:
            raise ApiRefusal(429, f"this token has {most} streams and held requests open: close some first")
        self._held[key] += 1
        try:
            yield
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]


class Endpoint:
    def __init__(
        self,
        shared: AppState,
        routes: Sequence[Route],
        credentials: Credentials,
        answered: AnsweredKeys,
        held: HeldRequests,
    ) -> None:
        self._held = held
        self._room = shared
        self._routes: Mapping[str, Route] = {route.method: route for route in routes}
        self._credentials = credentials
        self._answered = answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as holds:
            await self._serve(scope, receive, send, holds)

    async def _serve(self, scope: Scope, receive: Receive, send: Send, holds: ExitStack) -> None:
        headers = Headers(scope=scope)
        incoming = Incoming(receive, headers.get("content-length", ""))
        if not headers.get("content-length", "0").strip("0") and "transfer-encoding" not in headers:
            incoming.whole = True
        try:
            route = self._route(scope["method"])
            answer = await self._answer(route, scope, headers, incoming, holds)
        except HungUp:
            return
        except Exception as error:  # noqa: BLE001 - the edge: whatever happens, the caller gets one line
            await _refuse(send, error, incoming, scope["path"])
            return
        if isinstance(answer, EventStream):
            await _stream(send, answer, head=scope["method"] == "HEAD")
        elif isinstance(answer, PlainAnswer):
            await send_whole(send, route.status, _headers(answer.media), answer.text.encode(), incoming)
        else:
            headed = [*_headers("application/json"), *self._trouble(route)]
            await send_whole(send, route.status, headed, msgspec.json.encode(answer), incoming)

    def _trouble(self, route: Route) -> list[tuple[bytes, bytes]]:
        """With each answer to a person, and only to one with a token, why nothing goes on here: a list looks well
        while the disk of the state is full and nothing is decided any more.
        """
        trouble = self._room.trouble() if route.role not in {"", *MACHINES} and self._room.trouble is not None else ""
        line = " ".join(trouble.split())[:TROUBLE_MOST].strip().replace("\0", "?")  # a header may not end with a blank
        return [(b"sickbay-trouble", line.encode("ascii", "replace"))] if line else []

    def _route(self, method: str) -> Route:
        route = self._routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*self._routes, *(["HEAD"] if "GET" in self._routes else [])}))
            raise ApiRefusal(405, f"{method} is not for this path: it takes {allowed}", Allow=allowed)
        return route

    async def _answer(self, route: Route, scope: Scope, headers: Headers, incoming: Incoming, holds: ExitStack) -> Any:
        who = await self._who(route, headers, (scope.get("client") or ("",))[0])
        scope.setdefault("state", {})["admitted"] = who is not None  # the server keeps such connections the longest
        query = _query(route, scope)
        if route.held and route.role != Role.JOIN:  # thousands share such a token: that route says itself how many
            # Before the body is read: what a stolen token sends is not to be kept, nor decoded, without end.
            holds.enter_context(self._held.one(who, route.at_once or HELD_MOST))
        raw = await incoming.read(route.limit)
        body = _body(route, headers, raw)
        key, what = _key(route, scope, headers, raw, who)
        given = route.changes and "idempotency-key" in headers
        ask = ApiRequest(
            shared=self._room,
            path=scope["path_params"],
            key=key,
            key_given=given,
            who=who,
            repeated=given and self._answered.seen(key, what),
            last_event=headers.get("last-event-id", ""),
            size=len(raw),
            gone=incoming.gone,
        )
        if route.held:
            return await route.call(ask, query, body)
        answer = await on_thread(route.threads, route.call, ask, query, body)
        if given:
            self._answered.note(key, what)
        return answer

    async def _who(self, route: Route, headers: Headers, address: str) -> Token | None:
        if not route.role:
            return None
        secret = secret_of(headers.get("authorization", ""))
        token = self._credentials.remembered(secret)
        if token is None:
            if route.role == Role.JOIN and not self._credentials.may_try(secret, address):
                raise ApiRefusal(429, "too many join tokens that are not known come from this address: try again later")
            token = await self._credentials.find(secret, route.threads)
        admitted = admit(token, route.role, self._room.backend.now())
        if due := self._credentials.note_use(admitted):
            await on_thread(route.threads, self._tell_uses, due)
        return admitted

    def _tell_uses(self, due: tuple[str, ...]) -> None:
        try:
            self._room.backend.used(due)
        except StoreError as error:  # nobody is kept out because a disk is full
            log.warning("last uses of tokens were not noted: %s", error)


def _query(route: Route, scope: Scope) -> Any:
    try:
        pairs = QueryParams(scope["query_string"]).multi_items()
    except ValueError:
        raise ApiRefusal(400, "the query cannot be read: write name=value&name=value") from None
    decode.no_nul([*scope["path_params"].values(), *(text for pair in pairs for text in pair)])
    return decode.query(pairs, route.query)


def _body(route: Route, headers: Headers, raw: bytes) -> Any:
    if route.body is None:
        if raw.strip() not in {b"", b"{}", b"null"}:
            raise ApiRefusal(400, "this takes no body: leave it out")
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiRefusal(
            400,
            f"the body must be JSON: send it with 'Content-Type: application/json'{f', not {kind}' if kind else ''}",
        )
    body = decode.body(raw, route.body)
    if route.role != "agent":
        decode.no_nul(body)
    return body


def _key(route: Route, scope: Scope, headers: Headers, raw: bytes, who: Token | None) -> tuple[str, str]:
    """The key under which its facts are stored, and what it was used for. Each caller has keys of their own."""
    given = headers.get("idempotency-key")
    if not route.changes:
        return "", ""
    if given is None:
        return secrets.token_hex(16), ""
    if not _KEY.fullmatch(given):
        raise ApiRefusal(400, "the Idempotency-Key must be 1 to 128 visible ASCII characters")
    what = f"{route.method} {scope['path']} {scope['query_string']!r}".encode() + b"\n" + raw
    return f"{who.name if who is not None else ''}/{given}", hashlib.sha256(what).hexdigest()


async def _refuse(send: Send, error: Exception, incoming: Incoming, path: str) -> None:
    refusal = refused(error)
    if refusal is None:
        log.error("request_failed", extra={"path": path}, exc_info=error)
        refusal = ApiRefusal(500, "something went wrong here; the controller's log says what")
    extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers.items()]
    line = " ".join(refusal.line.split())
    await send_whole(
        send, refusal.status, _headers("application/json") + extra, msgspec.json.encode({"error": line}), incoming
    )


def _headers(media: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", media.encode("ascii")), *HEADERS]


async def _stream(send: Send, stream: EventStream, *, head: bool) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-accel-buffering", b"no"), *HEADERS]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        if not head:
            async for piece in stream.pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    except OSError:
        return  # the reader has hung up
    await send({"type": "http.response.body", "body": b""})
