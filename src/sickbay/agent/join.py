"""Enrolment (joining): gets this node's own token with a join token, keeps it, and gets another when it is refused.

Whoever asks in vain asks again, later each time and never all at once (back-off with jitter): after a store was lost
all agents of a fleet join together.
"""

import errno
import os
import random
import time
from pathlib import Path
from threading import Lock

import msgspec

from sickbay.agent.complaints import complain
from sickbay.agent.http1 import Answer, Connection
from sickbay.agent.settings import AgentSettings
from sickbay.agent.transport import CONNECT_TAKES, NotJoined, own_words
from sickbay.model.noun import Noun
from sickbay.model.protocol import JoinAsked, Joined
from sickbay.wire.files import replace_file

JOIN = "/v1/agent/join"
KEPT = "node.token"  # in the state directory
JOIN_TAKES = 20.0  # seconds: the controller answers when the token is good
LONGEST = 1 << 16  # bytes of an answer
FIRST_PAUSE, LAST_PAUSE = 1.0, 60.0


class KeptToken(Noun):
    """What was got by joining. A state directory that was copied to another machine holds nothing for that."""

    node: str
    instance_id: str
    token: str

    def is_of(self, node: str, instance_id: str) -> bool:
        return (self.node, self.instance_id) == (node, instance_id)


class NodeJoiner:
    """Asked by whoever connects, on any thread."""

    def __init__(self, settings: AgentSettings) -> None:
        cluster, _, name = settings.node.partition("/")
        self._me = JoinAsked(cluster=cluster, name=name, instance_id=settings.instance_id)
        self._node = settings.node
        self._url, self._ca = settings.url, settings.ca
        self._token_file = Path(settings.join_token_file)
        self._state = Path(settings.state)
        self._lock = Lock()
        self._token = ""
        self._refused = ""
        self._again = 0.0  # on the monotonic clock
        self._pause = FIRST_PAUSE
        self._why = ""

    def token(self) -> str:
        """Raises NotJoined; OSError and the like where nobody answers."""
        with self._lock:
            kept = self._token or self._read()
            if kept and kept != self._refused:
                return kept
            left = self._again - time.monotonic()
            if left > 0:
                raise NotJoined(self._why, again=left)
            try:
                self._token = self._join()
            except NotJoined as error:
                pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards nothing
                self._pause = min(LAST_PAUSE, 2 * self._pause)
                self._again, self._why = time.monotonic() + pause, str(error)
                raise NotJoined(self._why, again=pause) from None
            self._pause, self._refused = FIRST_PAUSE, ""
            self._keep(self._token)
            complain(f"joined as {self._node}")
            return self._token

    def refuse(self, token: str) -> None:
        """The controller does not know this token any more: the next one is asked for. It stays on disk until then."""
        with self._lock:
            if token and token == (self._token or self._read()):
                self._refused, self._token = token, ""

    def _read(self) -> str:
        try:
            kept = kept_token(self._state)
        except OSError:
            return ""
        return kept.token if kept is not None and kept.is_of(self._node, self._me.instance_id) else ""

    def _keep(self, token: str) -> None:
        kept = KeptToken(node=self._node, instance_id=self._me.instance_id, token=token)
        file = self._state / KEPT
        try:
            replace_file(file, msgspec.json.encode(kept))
        except OSError as error:  # it is good all the same, until this process ends
            complain(f"{file} cannot be written ({error.strerror}): this agent joins anew when it starts again")

    def _join(self) -> str:
        answer = self._post(msgspec.json.encode(self._me))
        if answer.status != 200:
            raise self._refusal(answer)
        try:
            joined = msgspec.json.decode(answer.body, type=Joined)
        except (msgspec.MsgspecError, RecursionError):
            raise NotJoined(f"{self._url} answers, but it is not a controller: correct url") from None
        if joined.node != self._node or not joined.token.isascii() or not joined.token.isprintable():
            raise NotJoined(f"{self._url} gives a token for {joined.node[:80]!r}: correct url")
        return joined.token

    def _post(self, body: bytes) -> Answer:
        try:
            secret = secret_in(self._token_file)
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise NotJoined(f"join_token_file {self._token_file} cannot be read ({why})") from None
        if not secret:
            raise NotJoined(f"join_token_file {self._token_file} is empty: write the secret of a join token into it")
        connection = Connection(self._url, CONNECT_TAKES, self._ca)
        try:
            return connection.post(JOIN, body, secret, JOIN_TAKES, LONGEST)
        finally:
            connection.close()

    def _refusal(self, answer: Answer) -> Exception:
        said, url = own_words(answer.body), self._url
        match answer.status:
            case 401 if said:
                why = said.partition(":")[0]
                return NotJoined(
                    f"the controller does not accept the join token in {self._token_file} ({why}): an admin "
                    f"makes another with: sickbay token create NAME --role join --cluster {self._me.cluster}"
                )
            case 400 | 403 | 409 if said:
                return NotJoined(f"cannot join as {self._node}: {said}")
            case 429 | 503 if said:
                return NotJoined(f"has not joined yet: {said}")
            case 404 | 405:
                return NotJoined(
                    f"{url} answers {answer.status} to an agent that joins: correct url, or update the controller"
                )
            case status if status >= 500:
                return OSError(f"{url} answers {status}")  # what stands before the controller
            case status:
                return NotJoined(f"{url} answers {status}, and not as a controller does: correct url")


def secret_in(file: Path) -> str:
    """Raises OSError, UnicodeDecodeError. A pipe that nobody feeds would hold up whoever reads it for ever."""
    if file.exists() and not file.is_file():
        raise OSError(errno.EINVAL, "it is not a file")
    return file.read_text(encoding="ascii").strip()


def kept_token(state: Path) -> KeptToken | None:
    """What was got by joining, for whoever only looks. Raises OSError for a file that is there and may not be read."""
    file = state / KEPT
    if not os.path.lexists(file):
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=KeptToken)
    except msgspec.MsgspecError:
        return None
