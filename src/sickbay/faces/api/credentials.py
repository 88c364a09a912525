"""Authentication and authorization: the token behind a secret, remembered for a moment, and what its role may do."""

import threading
import time

from sickbay.faces.api.refusal import ApiRefusal
from sickbay.hosts.backend import Backend, hash_of
from sickbay.model.fleet import Token

FOR = 2.0  # seconds; a change of any token row ends it at once
MOST = 10_000
RANK = {"viewer": 1, "operator": 2}


class Credentials:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Token, float]] = {}
        self._seen = backend.changes.seq

    def remembered(self, secret: str) -> Token | None:
        """Without asking the store; None: it must be asked."""
        self._drop_changed()
        with self._lock:
            token, until = self._known.get(hash_of(secret), (None, 0.0))
        return token if time.monotonic() < until else None

    def who(self, secret: str) -> Token | None:
        before = self._backend.changes.seq
        token = self._backend.who(secret)
        with self._lock:
            if len(self._known) >= MOST:
                self._known.clear()
            if token is not None and self._seen >= before:  # else a change is on its way that this may not show
                self._known[token.hash] = (token, time.monotonic() + FOR)
        return token

    def _drop_changed(self) -> None:
        now = self._backend.changes.seq
        if now == self._seen:
            return
        changes = self._backend.changes.since(self._seen)
        with self._lock:
            if changes is None or any(change.kind == "token" for change in changes):
                self._known.clear()
            self._seen = changes[-1].seq if changes else now


def secret_of(authorization: str) -> str:
    """From the header. Raises ApiRefusal."""
    scheme, _, secret = authorization.strip().partition(" ")
    if not authorization:
        raise ApiRefusal(401, "a token is needed: send the header 'Authorization: Bearer <token>'", **_CHALLENGE)
    if scheme.lower() != "bearer" or not secret.strip():
        raise ApiRefusal(401, "the header Authorization must be 'Bearer <token>'", **_CHALLENGE)
    return secret.strip()


def admit(token: Token | None, role: str) -> Token:
    """Raises ApiRefusal: 401 for a token that nobody has, 403 for one that may not do this."""
    if token is None:
        raise ApiRefusal(401, "this token is not known: ask an operator for one ('sickbay token create')", **_CHALLENGE)
    if (role == "agent") != (token.role == "agent"):
        may = "only agents report here" if role == "agent" else "an agent's token can only report for its own node"
        raise ApiRefusal(403, f"token {token.name!r} has the role {token.role}: {may}")
    if role != "agent" and RANK.get(token.role, 0) < RANK[role]:
        raise ApiRefusal(403, f"token {token.name!r} has the role {token.role}, and this needs the role {role}")
    return token


_CHALLENGE = {"WWW-Authenticate": "Bearer"}
