"""What a route is, and what its handler is given."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from sickbay.faces.api.reading import RequestReads
from sickbay.faces.archive import Archive
from sickbay.hosts.backend import Backend
from sickbay.hosts.wakeup import Wakeup
from sickbay.model.fleet import Token
from sickbay.model.noun import Noun
from sickbay.ports.store import Store

KIB = 1024
MIB = 1024 * KIB


class RequestBody(Noun, forbid_unknown_fields=True):
    """What people send: a word that is not known is a mistake, not an extension."""


class Nothing(RequestBody):
    """No body, or no query."""


@dataclass(frozen=True, slots=True)
class AppState:
    """What all requests share."""

    desk: Backend
    mail: Wakeup  # rings when a command was posted for an agent
    news: Wakeup  # rings after each commit
    leads: Callable[[], bool] | None = None
    trouble: Callable[[], str] | None = None  # why nothing goes on; empty while all is well


@dataclass(frozen=True)
class ApiRequest:
    """One request that was let in: who asks, and for what."""

    room: AppState
    path: Mapping[str, str]
    query: Any
    body: Any
    key: str
    key_given: bool = False  # by the caller, in the header Idempotency-Key
    who: Token | None = None
    repeated: bool = False  # the same Idempotency-Key, for the same thing, was answered before
    last_event: str = ""
    gone: Callable[[], Any] | None = None  # awaited: whether the caller has hung up

    @property
    def desk(self) -> Backend:
        return self.room.desk

    @property
    def by(self) -> str:
        return self.who.name if self.who is not None else "nobody"

    @cached_property
    def archive(self) -> Archive:
        """The rows as they are now; each is read once for this answer."""
        return self.fresh()

    def fresh(self) -> Archive:
        return Archive(cast(Store, RequestReads(self.desk.store)), self.desk.policies)


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer that is no JSON."""

    text: str
    media: str


Handler = Callable[[ApiRequest], Any]  # sync: run on a thread; async: held, and never blocks


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    does: Handler
    summary: str
    returns: Any
    role: str = "viewer"  # "": anybody
    query: type[Noun] = Nothing
    body: type[Noun] | None = None
    status: int = 200
    ask_example: Any = None  # of the body
    query_example: Mapping[str, str] = field(default_factory=dict)
    path_example: Mapping[str, str] = field(default_factory=dict)
    answer_example: Any = None
    limit: int = MIB  # bytes of the body
    media: str = "application/json"

    @property
    def held(self) -> bool:
        return inspect.iscoroutinefunction(self.does)

    @property
    def changes(self) -> bool:
        return self.method not in {"GET", "HEAD"} and self.role == "operator"
