"""Authentication and authorization (RBAC): the token behind a secret, remembered for a moment, what its role may do,
and when it was last used.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.route import THREADS, on_thread
from sickbay.hosts.backend import Backend, hash_of
from sickbay.model.fleet import Role, Token

# Roles of machines stand apart from those of people: who has one may do that, and nothing else.
MACHINES: Mapping[str, str] = {
    Role.AGENT: "only agents report here",
    Role.JOIN: "only a join token can ask for a node's token",
}
MACHINES_MAY: Mapping[str, str] = {
    Role.AGENT: "an agent's token can only report for its own node",
    Role.JOIN: "a join token can only ask for the token of a node of its cluster",
}
FOR = 2.0  # seconds; a change of any token row ends it at once
MOST = 50_000  # tokens that are remembered: more than agents report here
LOOK_UP_MOST = 500  # in one read
LookUp = Callable[[Sequence[str]], Sequence[Token | None]]
RANK: Mapping[str, int] = {role: rank for rank, role in enumerate((role for role in Role if role not in MACHINES), 1)}
USED_EVERY = timedelta(hours=1)  # what a row says of a token's last use is at most so old, or a little more
TELL_EVERY = 30.0  # seconds between two facts about uses
TRIES, TRIES_A_SECOND = 40, 5.0  # join tokens of one address that are looked up
TELL_AT_ONCE = 40  # tokens in one fact: each is a row of its unit


class TokenLookups:
    """Batched lookups, on one event loop: secrets that come while the store is asked are asked for together. A fleet
    whose agents report less often than a token is remembered has one looked up for each report.
    """

    def __init__(self, look_up: LookUp, group: str) -> None:
        self._look_up = look_up
        self._group = group  # of threads
        self._asked: dict[str, asyncio.Future[Token | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def find(self, secret: str) -> Token | None:
        """Raises StoreError."""
        key = hash_of(secret)
        if key not in self._asked:
            self._asked[key] = asyncio.get_running_loop().create_future()
        found = self._asked[key]
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="tokens")
        return await asyncio.shield(found)  # others may wait for the same

    async def _ask(self) -> None:
        try:
            while self._asked:
                keys = list(self._asked)[:LOOK_UP_MOST]
                asked = [self._asked.pop(key) for key in keys]
                await self._answer(keys, asked)
        finally:
            self._asking = None

    async def _answer(self, keys: Sequence[str], asked: Sequence["asyncio.Future[Token | None]"]) -> None:
        try:
            found = await on_thread(self._group, self._look_up, keys)
        except Exception as error:  # noqa: BLE001 - whoever asked hears it
            for future in asked:
                future.set_exception(error)
                future.exception()  # whoever asked may have hung up: not a warning of asyncio's
            return
        for future, token in zip(asked, found, strict=True):
            future.set_result(token)


class Credentials:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lookups = {group: TokenLookups(self.look_up, group) for group in THREADS}
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Token, float]] = {}
        self._seen = backend.changes.seq
        self._used: dict[str, datetime] = {}  # by hash: more than the rows say
        self._told: dict[str, datetime] = {}
        self._tell_from = 0.0  # on the monotonic clock
        self._joined: set[str] = set()  # hashes of join tokens that were good
        self._tries: dict[str, tuple[float, float]] = {}  # by address: room, and when that was, on the monotonic clock

    def may_try(self, secret: str, address: str) -> bool:
        """Rate limit (a token bucket for each address) of what a fleet with a wrong join token has us look up. One that
        was good passes, whoever else is behind its address.
        """
        now = time.monotonic()
        with self._lock:
            if hash_of(secret) in self._joined:
                return True
            room, since = self._tries.get(address, (float(TRIES), now))
            if len(self._tries) >= MOST:
                self._tries.clear()
            room = min(TRIES, room + TRIES_A_SECOND * (now - since))
            self._tries[address] = (room - 1 if room >= 1 else room, now)
        return room >= 1

    def remembered(self, secret: str) -> Token | None:
        """Without asking the store; None: it must be asked."""
        self._drop_changed()
        with self._lock:
            token, until = self._known.get(hash_of(secret), (None, 0.0))
        return token if time.monotonic() < until else None

    async def find(self, secret: str, group: str) -> Token | None:
        """`group`: of the threads on which the store is asked. Raises StoreError."""
        return await self._lookups[group].find(secret)

    def look_up(self, hashes: Sequence[str]) -> list[Token | None]:
        """From the store, remembered for a moment."""
        before = self._backend.changes.seq
        tokens = self._backend.tokens(hashes)
        with self._lock:
            if len(self._known) + len(tokens) > MOST:
                self._known.clear()
            self._joined.update(token.hash for token in tokens if token is not None and token.role is Role.JOIN)
            if self._seen >= before:  # else a change is on its way that these may not show
                until = time.monotonic() + FOR
                self._known.update({token.hash: (token, until) for token in tokens if token is not None})
        return tokens

    def note_use(self, token: Token) -> tuple[str, ...]:
        """It was used now. Which uses are to be told, if it is time for that: a request costs no commit."""
        now = self._backend.now()
        with self._lock:
            if len(self._used) >= MOST:
                self._used.clear()
                self._told.clear()
            self._used[token.hash] = now
            told = self._told.setdefault(token.hash, token.used_at or token.issued_at)
            if token.used_at is None:
                told = self._told[token.hash] = min(told, now - USED_EVERY)
            if now - told < USED_EVERY or time.monotonic() < self._tell_from:
                return ()
            self._tell_from = time.monotonic() + TELL_EVERY
            due = [one for one, at in self._told.items() if now - at >= USED_EVERY and self._used[one] > at]
            self._told.update(dict.fromkeys(due[:TELL_AT_ONCE], now))
            return tuple(due[:TELL_AT_ONCE])

    def uses(self) -> Mapping[str, datetime]:
        """When each was used last, as far as this process has seen it."""
        with self._lock:
            return dict(self._used)

    def _drop_changed(self) -> None:
        now = self._backend.changes.seq
        if now == self._seen:
            return
        changes = self._backend.changes.since(self._seen)
        with self._lock:
            if changes is None:
                self._known.clear()
            for change in changes or ():  # only those that have changed: thousands may join while others report
                if change.kind == "token":
                    self._known.pop(change.id, None)
            self._seen = changes[-1].seq if changes else now


def secret_of(authorization: str) -> str:
    """From the header. Raises ApiRefusal."""
    scheme, _, secret = authorization.strip().partition(" ")
    if not authorization:
        raise ApiRefusal(401, "a token is needed: send the header 'Authorization: Bearer <token>'", **_CHALLENGE)
    if scheme.lower() != "bearer" or not secret.strip():
        raise ApiRefusal(401, "the header Authorization must be 'Bearer <token>'", **_CHALLENGE)
    return secret.strip()


def admit(token: Token | None, role: str, now: datetime) -> Token:
    """Raises ApiRefusal: 401 for a token that nobody has, 403 for one that may not do this."""
    if token is None:
        raise ApiRefusal(401, "this token is not known: ask an admin for one ('sickbay token create')", **_CHALLENGE)
    if token.over(now):
        line = f"token {token.name!r} has expired: ask an admin for another ('sickbay token create')"
        raise ApiRefusal(401, line, **_CHALLENGE)
    if role != token.role and (role in MACHINES or token.role in MACHINES):
        may = MACHINES.get(role) or MACHINES_MAY[token.role]
        raise ApiRefusal(403, f"token {token.name!r} has the role {token.role}: {may}")
    if role not in MACHINES and RANK.get(token.role, 0) < RANK[role]:
        raise ApiRefusal(403, f"token {token.name!r} has the role {token.role}, and this needs the role {role}")
    return token


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
