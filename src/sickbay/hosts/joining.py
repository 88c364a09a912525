"""Enrolment of agents (joining): from a request for a node's name to a token, or to a word on why not.

A token is a fact, learned by whoever leads; any replica takes requests. Work is bounded: no fact is stored while those
before it wait to be learned, and what many ask for at once shares its commits.
"""

import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from sickbay.brain.joining import JoinAnswer, JoinInput, JoinVerdict, judge_join, token_name
from sickbay.hosts.backend import Backend, hash_of
from sickbay.model.errors import BadInput
from sickbay.model.facts import EarlyAgent, JoinRefused, TokenIssued, TokenRevoked
from sickbay.model.fleet import Node, NodeId, Role, Token
from sickbay.wire.secret_files import read_secret

CAUGHT_UP = timedelta(seconds=5)  # an engine whose oldest unread fact is older takes nobody in
AT_ONCE = 48  # requests that are under way; one more is asked to come again
SHORTEST = 16  # characters of a join token that people choose
TOLD_AFTER = 60.0  # seconds that a name stays refused to one machine before people hear of it
TOLD_MOST, TOLD_WITHIN = 20, 3600.0  # such notices, and seconds: of more conflicts the log and the audit speak
CONFLICTS = 10_000  # that are remembered
UNUSED = timedelta(days=7)  # a token of a node that nobody knows of is forgotten
LOOKED_AT = 20  # tokens at each join, so that they are forgotten faster than they are made


class JoinWish(NamedTuple):
    """Who asks for which name, and with whose join token."""

    node: NodeId
    instance_id: str
    by: str


class Conflicts:
    """Names that are refused to a machine, and since when: a notice follows once, if that lasts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: OrderedDict[tuple[NodeId, str], float] = OrderedDict()
        self._told: deque[float] = deque(maxlen=TOLD_MOST)

    def due(self, node: NodeId, instance_id: str) -> bool:
        """Whether people should hear of it now."""
        now, key = time.monotonic(), (node, instance_id)
        with self._lock:
            since = self._since.setdefault(key, now)
            while len(self._since) > CONFLICTS:
                self._since.popitem(last=False)
            full = len(self._told) == TOLD_MOST and now - self._told[0] < TOLD_WITHIN
            if now - since < TOLD_AFTER or full:
                return False
            self._since[key] = now + TOLD_WITHIN  # not before that again
            self._told.append(now)
            return True


class Joining:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._conflicts = Conflicts()
        self.room = threading.BoundedSemaphore(AT_ONCE)
        self._looking = threading.Lock()
        self._looked_up_to = ""

    def begin(self, wish: JoinWish) -> str | JoinAnswer:
        """Store what is asked for: a secret that is good as soon as the engine has learned of it. Or why not."""
        answer = self._judged(wish)
        if answer.verdict is JoinVerdict.TAKEN:
            self._tell_conflict(wish, answer)
        if answer.verdict is not JoinVerdict.GRANTED:
            return answer
        if self._backend.lag() > CAUGHT_UP:
            return JoinAnswer(JoinVerdict.ASK_AGAIN, "the engine has not caught up with what is stored: ask again")
        secret = secrets.token_urlsafe(24)
        digest = hash_of(secret)
        news = TokenIssued(
            hash=digest, name=token_name(wish.node), role=Role.AGENT, by=wish.by, node=wish.node, anew=True,
            instance_id=wish.instance_id, reason=f"instance {wish.instance_id}",
        )  # fmt: skip
        self._backend.note(f"token/{digest}", news)
        self._forget_unused()
        return secret

    def outcome(self, wish: JoinWish, secret: str) -> JoinAnswer | None:
        """GRANTED once the secret is good; why it never will be, where another was faster; None: not learned yet."""
        if self._backend.who(secret) is not None:
            return JoinAnswer(JoinVerdict.GRANTED)
        answer = self._judged(wish)
        return None if answer.verdict is JoinVerdict.GRANTED else answer

    def _forget_unused(self) -> None:
        """Retention: made-up names, and machines that went for good, would fill the store. A few at each join."""
        with self._looking:
            store, before = self._backend.store, self._backend.now() - UNUSED
            page = store.keys("token", after=self._looked_up_to, limit=LOOKED_AT)
            self._looked_up_to = page[-1] if len(page) == LOOKED_AT else ""
            rows = [found.row for found in store.load(page).values()]
            tokens = [row for row in rows if isinstance(row, Token) and row.instance_id and row.node is not None]
            old = [token for token in tokens if (token.expires_at or token.used_at or token.issued_at) < before]
            known = store.load([f"{kind}:{token.node}" for token in old for kind in ("node", "voice")])
            for token in old:
                if all(known[f"{kind}:{token.node}"].row is None for kind in ("node", "voice")):
                    reason = f"{token.node} is not known, and it was not used for {UNUSED.days} days"
                    news = TokenRevoked(name=token.name, by="sickbay", reason=reason)
                    step = "ended" if token.expires_at is None else "forgotten"  # each once, however many joins meet it
                    self._backend.note(f"unused/{token.hash}/{step}", news)

    def _judged(self, wish: JoinWish) -> JoinAnswer:
        store = self._backend.store
        seat, voice = f"node:{wish.node}", f"voice:{wish.node}"
        named = store.find(f"token:{token_name(wish.node)}")
        rows = {key: found.row for key, found in store.load([seat, voice, *named]).items()}
        node, early = rows[seat], rows[voice]
        return judge_join(
            JoinInput(
                node=wish.node,
                instance_id=wish.instance_id,
                now=self._backend.now(),
                seat=node if isinstance(node, Node) else None,
                voice=early if isinstance(early, EarlyAgent) else None,
                tokens=[row for key in named if isinstance(row := rows[key], Token)],
            )
        )

    def _tell_conflict(self, wish: JoinWish, answer: JoinAnswer) -> None:
        if not self._conflicts.due(wish.node, wish.instance_id):
            return
        news = JoinRefused(
            node=wish.node, instance_id=wish.instance_id, holder=answer.holder, by=wish.by, because=answer.because
        )
        day = f"{self._backend.now():%Y-%m-%d}"  # the store drops what another replica has told already
        self._backend.note(f"join-refused/{wish.node}/{wish.instance_id}/{day}", news)


def admit_joiners(backend: Backend, files: Mapping[str, str | Path], *, by: str = "sickbay controller") -> None:
    """Make the join tokens of the configuration known: by cluster, a file with the secret. Raises BadInput.

    It is the file's owner who gives it out: one that was revoked counts again when a controller starts with that file.
    """
    for cluster, file in files.items():
        place = f"join.{cluster}.token_file"
        try:
            secret = read_secret(file)
        except OSError as error:
            raise BadInput(f"{place}: {error}") from None
        known = backend.who(secret)
        if known is not None and (known.role, known.cluster) != (Role.JOIN, cluster):
            whose = f"join token of {known.cluster}" if known.role is Role.JOIN else f"{known.role} {known.name!r}"
            raise BadInput(f"{place}: the secret in {file} is that of the {whose}: write one of its own")
        if len(secret) < SHORTEST or not (secret.isascii() and secret.isprintable() and " " not in secret):
            raise BadInput(f"{place}: {file} holds no good secret: write one, such as 'openssl rand -hex 24' makes")
        if known is None or known.over(backend.now()):
            backend.issue(
                f"join-{cluster}", Role.JOIN, by, secret=secret, anew=True, cluster=cluster,
                reason=f"configured: {file}",
            )  # fmt: skip
