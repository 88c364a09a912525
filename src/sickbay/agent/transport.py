"""The line to the controller: HTTP/1.1 with one connection that is kept."""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from sickbay.agent.http1 import BadHttp, Connection
from sickbay.agent.limits import Nonsense, UsableReply, read_reply

REPORT = "/v1/agent/report"
POLL = "/v1/agent/poll"
LONGEST = 4 << 20  # bytes of an answer
CONNECT_TAKES = 5.0  # seconds, for each address that the controller's name has


class Address(NamedTuple):
    url: str
    token: str
    ca: str = ""


class Away(Exception):  # noqa: N818 - a state, not a mistake
    """The controller cannot be reached, or cannot store anything now: later."""


class Denied(Exception):  # noqa: N818 - a state, not a mistake
    """Our credential is not accepted."""


class NotJoined(Denied):
    """We have no token yet, or none any more, and were given none. `again`: seconds until it is asked for once more."""

    def __init__(self, text: str, *, again: float = 0.0) -> None:
        super().__init__(text)
        self.again = again


class ReportRefused(Exception):  # noqa: N818 - a state, not a mistake
    """What we sent is not taken. `own`: the controller says so itself, and not a proxy before it."""

    def __init__(self, text: str, *, own: bool) -> None:
        super().__init__(text)
        self.own = own


# ValueError: an address with an impossible port, a token that is no text.
TROUBLE = (OSError, BadHttp, ValueError)


def nobody(token: str) -> None:
    pass


class ControllerLine:
    """One connection. `address` is asked again whenever there is none: the controller may have moved.

    `refused` hears of a token that the controller itself does not accept.
    """

    def __init__(self, address: Callable[[], Address], refused: Callable[[str], None] = nobody) -> None:
        self._address = address
        self._refused = refused
        self._connection: Connection | None = None
        self._token = ""

    def ask(self, path: str, body: bytes, timeout: float) -> UsableReply:
        """Raises Away, Denied, ReportRefused. What was sent may have arrived all the same."""
        kept = self._connection is not None
        try:
            return self._ask(path, body, timeout)
        except TROUBLE as error:
            # A server may close a connection that was idle just when it is used again.
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise Away(str(error) or type(error).__name__) from error
        try:
            return self._ask(path, body, timeout)
        except TROUBLE as error:
            self.close()
            raise Away(str(error) or type(error).__name__) from error

    def _ask(self, path: str, body: bytes, timeout: float) -> UsableReply:
        connection = self._connection or self._connect(timeout)
        answer = connection.post(path, body, self._token, timeout, LONGEST)
        if answer.last:
            self.close()
        if answer.status in {401, 403} and own_words(answer.body):
            self._refused(self._token)
        return _answer(answer.status, answer.body, self)

    def _connect(self, timeout: float) -> Connection:
        address = self._address()
        if not urlsplit(address.url).hostname:
            raise Away(f"there is no controller to report to (its address reads {address.url!r})")
        self._token = address.token
        self._connection = Connection(address.url, min(timeout, CONNECT_TAKES), address.ca)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(status: int, data: bytes, line: ControllerLine) -> UsableReply:
    match status:
        case 200:
            try:
                return read_reply(data)
            except Nonsense as error:
                line.close()
                raise Away(f"the answer is not a controller's: {error}") from error
        case 401 | 403:
            line.close()  # the token may have been replaced: it is read again
            raise Denied(f"{status}: {_text(data)}")
        case 400 | 413 | 422:
            raise ReportRefused(f"{status}: {_text(data)}", own=bool(own_words(data)))
        case _:
            # Whatever it asks for (Retry-After): the back-off is ours, as nobody may tell an agent to be silent.
            line.close()
            raise Away(f"{status}: {_text(data)}")


def own_words(data: bytes) -> str:
    """The line of a controller's refusal, which is JSON with one line; empty of what stands before it: pages."""
    try:
        said = msgspec.json.decode(data, type=dict[str, str]).get("error", "")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return " ".join(said.split())[:500]


def _text(data: bytes) -> str:
    return " ".join(data[:300].decode(errors="replace").split())
