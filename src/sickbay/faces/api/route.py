"""Routing: what a route is, the request context that its handler is given, and the thread pools that handlers run on.

A handler's signature is the contract of its route: what `query` and `body` are annotated with is decoded and checked
before it is called, what it returns is the response schema. The OpenAPI document is made of the same annotations.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial
from typing import Any, TypeVar, TypeVarTuple, cast, get_type_hints
from weakref import WeakKeyDictionary

from anyio import CapacityLimiter, to_thread

from sickbay.faces.answers import OrderAnswer
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.faces.api.requests import Nothing, reasoned
from sickbay.faces.archive import Archive
from sickbay.faces.orders import is_settled, order_answer
from sickbay.hosts.backend import Backend
from sickbay.hosts.joining import Joining
from sickbay.hosts.wakeup import Wakeup
from sickbay.model.facts import Ordered
from sickbay.model.fleet import Cursor, Role, Token
from sickbay.model.job import Job
from sickbay.model.noun import Noun
from sickbay.model.order import order_id
from sickbay.model.parts import whole
from sickbay.model.protocol import Reply, Report
from sickbay.model.rows import CURSOR, AnyRow, Line, Rows, Versioned
from sickbay.ports.store import STORY, Store

KIB = 1024
MIB = 1024 * KIB
PLANNED_WITHIN, DONE_WITHIN = 5.0, 2.0  # seconds that a person waits for the answer to an order
UNREAD = 500  # facts that are looked through: an engine that is further behind has not read this one

Kind = TypeVar("Kind", bound=AnyRow)
Args = TypeVarTuple("Args")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AppState:
    """What all requests share."""

    backend: Backend
    mail: Wakeup  # rings when a command was posted for an agent
    news: Wakeup  # rings after each commit
    joining: Joining
    store_report: Callable[[Report, int], Awaitable[Reply]]  # with the bytes of its body
    leads: Callable[[], bool] | None = None
    trouble: Callable[[], str] | None = None  # why nothing goes on; empty while all is well
    uses: Callable[[], Mapping[str, datetime]] = dict  # when each token was last used, by its hash


class RequestReads:
    """A read-through cache for one answer: a list of nodes asks for the same jobs again and again.

    It has the reading half of a store only, which is all that an Archive uses; the rows of a page are read together.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, Versioned] = {}
        self._found: dict[tuple[str, int | None], Sequence[str]] = {}

    def load(self, keys: Iterable[str]) -> Rows:
        wanted = list(keys)
        unread = [key for key in wanted if key not in self._rows]
        if unread:
            self._rows.update(self._store.load(unread))
        return {key: self._rows[key] for key in wanted}

    def find(self, tag: str, limit: int | None = None) -> Sequence[str]:
        if (tag, limit) not in self._found:
            self._found[tag, limit] = self._store.find(tag, limit)
            self.load(self._found[tag, limit])
        return self._found[tag, limit]

    def keys(self, kind: str, after: str = "", limit: int = 1000) -> Sequence[str]:
        page = self._store.keys(kind, after=after, limit=limit)
        self.load(page)
        return page

    def story(self, subject: str, limit: int = STORY) -> Sequence[Line]:
        return self._store.story(subject, limit)


@dataclass(frozen=True)
class ApiRequest:
    """One request that was let in: who asks, and what the rows say now."""

    shared: AppState
    path: Mapping[str, str]
    key: str
    key_given: bool = False  # by the caller, in the header Idempotency-Key
    who: Token | None = None
    repeated: bool = False  # the same Idempotency-Key, for the same thing, was answered before
    last_event: str = ""
    size: int = 0  # bytes of the body
    gone: Callable[[], Any] | None = None  # awaited: whether the caller has hung up

    @property
    def backend(self) -> Backend:
        return self.shared.backend

    @property
    def by(self) -> str:
        return self.who.name if self.who is not None else "nobody"

    def may_touch(self, job: Job, verb: str) -> None:
        """A submitter's own jobs, and no others; operators may touch all. Raises ApiRefusal(403)."""
        if self.who is not None and self.who.role in {Role.VIEWER, Role.SUBMITTER} and job.owner != self.who.name:
            whose = f"belongs to {job.owner}" if job.owner else "has no owner that is known"
            raise ApiRefusal(403, f"{job.id} {whose}: only its owner, or an operator, may {verb}")

    @cached_property
    def archive(self) -> Archive:
        """The rows as they are now; each is read once for this answer."""
        return self.fresh()

    def fresh(self) -> Archive:
        return Archive(self.reads(), self.backend.policies)

    def reads(self) -> Store:
        return cast(Store, RequestReads(self.backend.store))

    def all_of(self, kind: type[Kind], name: str) -> list[Kind]:
        """All rows of one kind."""
        reads = self.reads()
        found: list[Kind] = []
        after = ""
        while page := reads.keys(name, after=after):
            found += [v.row for v in whole(reads.load(page), reads.load).values() if isinstance(v.row, kind)]
            after = page[-1]
        return found

    def order(
        self, verb: str, target: str, reason: str, *, now: bool = False, args: dict[str, str] | None = None
    ) -> str:
        """An operator's command: what was asked becomes a fact, and the answer waits until the engine knows of it.

        The id of the fact. Raises ApiRefusal(503) if it is stored, but the engine is away: it is done all the same.
        """
        news = Ordered(verb=verb, target=target, by=self.by, reason=reasoned(reason), now=now, args=args or {})
        ident = self.backend.order(news, key=self.key)
        row = self.backend.store.load([CURSOR])[CURSOR].row
        unread = self.backend.store.facts(after=row.at if isinstance(row, Cursor) else 0, limit=UNREAD)
        if len(unread) == UNREAD or any(fact.id == ident for fact in unread):
            raise ApiRefusal(
                503, f"{verb} is noted, but the engine has not taken it up yet: it will as soon as it is back"
            )
        return ident

    def fate(self, fact: str) -> OrderAnswer:
        """What has become of an order, once the engine has planned it: bounded, then as it stands."""
        ident = order_id(fact)
        wait = self.backend.changes.wait
        if wait(lambda: is_settled(self.fresh(), ident, linger=False), PLANNED_WITHIN):
            wait(lambda: is_settled(self.fresh(), ident, linger=True), DONE_WITHIN)
        archive = self.fresh()
        record = archive.order(ident)
        if record is None:
            raise ApiRefusal(503, "it is noted, but the engine has not taken it up yet: it will as soon as it is back")
        return order_answer(archive, record)

    async def hung_up(self) -> bool:
        return self.gone is not None and bool(await self.gone())


@dataclass(frozen=True, slots=True)
class PlainAnswer:
    """An answer that is no JSON."""

    text: str
    media: str


Handler = Callable[..., Any]  # (ask, query=…, body=…); sync: run on a thread; async: held, and never blocks


@dataclass(frozen=True, eq=False)
class Route:
    method: str
    path: str
    does: Handler
    summary: str
    role: str = "viewer"  # "": anybody
    status: int = 200
    ask_example: Any = None  # of the body
    query_example: Mapping[str, str] = field(default_factory=dict)
    path_example: Mapping[str, str] = field(default_factory=dict)
    answer_example: Any = None
    limit: int = MIB  # bytes of the body
    at_once: int = 0  # requests of one token, where it is held; 0: as many as of all such routes together
    media: str = "application/json"
    slashes: str = ""  # the parameter of the path, its last one, that may have slashes in it

    @cached_property
    def _annotated(self) -> dict[str, Any]:
        return get_type_hints(self.does.func if isinstance(self.does, partial) else self.does)

    @property
    def returns(self) -> Any:
        return self._annotated["return"] if self.media == "application/json" else str

    @property
    def query(self) -> type[Noun]:
        return cast(type[Noun], self._annotated.get("query", Nothing))

    @property
    def body(self) -> type[Noun] | None:
        return self._annotated.get("body")

    def call(self, ask: ApiRequest, query: Noun, body: Noun | None) -> Any:
        given = {"query": query, "body": body}
        return self.does(ask, **{name: value for name, value in given.items() if name in self._annotated})

    @property
    def held(self) -> bool:
        return inspect.iscoroutinefunction(self.does)

    @property
    def changes(self) -> bool:
        return self.method not in {"GET", "HEAD"} and self.role not in {"", Role.AGENT, Role.JOIN}

    @property
    def threads(self) -> str:
        """The pool of threads on which it is answered."""
        return THREADS_OF.get(self.role, PEOPLE)

    @property
    def mount(self) -> str:
        """The path as it is routed: what the caller says may have slashes where the route says so."""
        return self.path.replace(f"{{{self.slashes}}}", f"{{{self.slashes}:path}}") if self.slashes else self.path


# --- thread pools: agents and people have threads of their own, so that neither waits for the other

AGENTS = "agents"
JOINERS = "joiners"  # all agents at once, after a store was lost: those that have their tokens report on
PEOPLE = "people"
REPORTS = "reports"  # one: it takes all that wait
THREADS_OF: Mapping[str, str] = {Role.AGENT: AGENTS, Role.JOIN: JOINERS}
THREADS = {AGENTS: 16, JOINERS: 8, PEOPLE: 32, REPORTS: 1}

_limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, CapacityLimiter]] = WeakKeyDictionary()


async def on_thread(group: str, call: Callable[[*Args], Result], *args: *Args) -> Result:
    mine = _limiters.setdefault(asyncio.get_running_loop(), {})
    if group not in mine:
        mine[group] = CapacityLimiter(THREADS[group])
    return await to_thread.run_sync(call, *args, limiter=mine[group])
