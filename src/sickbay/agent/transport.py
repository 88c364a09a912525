"""The line to the controller: HTTP/1.1 with one connection that is kept."""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from sickbay.agent.http1 import Connection, Garbled
from sickbay.model.protocol import Reply

REPORT = "/v1/agent/report"
POLL = "/v1/agent/poll"
LONGEST = 4 << 20  # bytes of an answer


class Address(NamedTuple):
    url: str
    token: str
    ca: str = ""


class Away(Exception):  # noqa: N818 - a state, not a mistake
    """The controller cannot be reached, or cannot store anything now: later."""


class Denied(Exception):  # noqa: N818 - a state, not a mistake
    """Our credential is not accepted."""


class Refused(Exception):  # noqa: N818 - a state, not a mistake
    """The controller does not take what we sent."""


class Line:
    """One connection. `address` is asked again whenever there is none: the controller may have moved."""

    def __init__(self, address: Callable[[], Address]) -> None:
        self._address = address
        self._connection: Connection | None = None
        self._token = ""

    def ask(self, path: str, body: bytes, timeout: float) -> Reply:
        """Raises Away, Denied, Refused. What was sent may have arrived all the same."""
        kept = self._connection is not None
        try:
            return self._ask(path, body, timeout)
        except (OSError, Garbled) as error:
            # A server may close a connection that was idle just when it is used again.
            self.close()
            if not kept or isinstance(error, TimeoutError):
                raise Away(str(error) or type(error).__name__) from error
        try:
            return self._ask(path, body, timeout)
        except (OSError, Garbled) as error:
            self.close()
            raise Away(str(error) or type(error).__name__) from error

    def _ask(self, path: str, body: bytes, timeout: float) -> Reply:
        connection = self._connection or self._connect(timeout)
        answer = connection.post(path, body, self._token, timeout, LONGEST)
        if answer.last:
            self.close()
        return _answer(answer.status, answer.body, self)

    def _connect(self, timeout: float) -> Connection:
        address = self._address()
        if not urlsplit(address.url).hostname:
            raise Away(f"there is no controller to report to (its address reads {address.url!r})")
        self._token = address.token
        self._connection = Connection(address.url, timeout, address.ca)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _answer(status: int, data: bytes, line: Line) -> Reply:
    match status:
        case 200:
            try:
                return msgspec.json.decode(data, type=Reply)
            except msgspec.MsgspecError as error:
                line.close()
                raise Away(f"the answer is not a controller's: {error}") from error
        case 401 | 403:
            line.close()  # the token may have been replaced: it is read again
            raise Denied(f"{status}: {_text(data)}")
        case 400 | 413 | 422:
            raise Refused(f"{status}: {_text(data)}")
        case _:
            line.close()
            raise Away(f"{status}: {_text(data)}")


def _text(data: bytes) -> str:
    return data[:300].decode(errors="replace").strip()
