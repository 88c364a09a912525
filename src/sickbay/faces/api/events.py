"""The stream of everything that changes, as server-sent events."""

import asyncio
import math
from collections.abc import AsyncIterator

import msgspec
from msgspec import structs

from sickbay.faces.answers import ChangedRow, ToldEvent
from sickbay.faces.api import requests
from sickbay.faces.api.route import PEOPLE, ApiRequest, Route, on_thread
from sickbay.faces.explain import told_lines
from sickbay.hosts.changes import Changes, FeedItem
from sickbay.model.fleet import Token
from sickbay.model.noun import Noun

COMMENT_EVERY = 15.0  # seconds: shows both sides that the other is there
LOOK = 1.0


class EventStream:
    """What a handler returns instead of an object: pieces of text, sent as they come."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self.pieces = pieces


async def events(ask: ApiRequest, query: requests.EventCursor) -> EventStream:
    return EventStream(_pieces(ask, ask.last_event or query.last_event_id))


async def _pieces(ask: ApiRequest, last: str) -> AsyncIterator[bytes]:
    changes, news = ask.backend.changes, ask.shared.news
    loop = asyncio.get_running_loop()
    at = _begin(changes, last)
    said = known = loop.time()
    if at is None:
        at = changes.seq
        yield _event(changes, at, "reset")
    else:
        yield b": welcome back\n\n"
    while not news.closed and not await ask.hung_up():
        if loop.time() - known >= COMMENT_EVERY:  # also where so much changes that nothing else is ever said
            if not await on_thread(PEOPLE, _still, ask):
                return
            known = loop.time()
        heard = news.rings
        fresh = changes.since(at)
        if fresh is None:  # it was too slow, and some are forgotten
            at = changes.seq
            yield _event(changes, at, "reset")
        elif fresh:
            at = fresh[-1].seq
            yield b"".join(_shown(changes, change) for change in fresh)
            if any(change.kind == "token" for change in fresh):
                known = -math.inf  # it may have been this reader's that was revoked
        elif loop.time() - said >= COMMENT_EVERY:
            yield b": still here\n\n"
        else:
            await news.wait(heard, LOOK)
            continue
        said = loop.time()


def _still(ask: ApiRequest) -> bool:
    key = f"token:{ask.who.hash}" if ask.who is not None else ""
    row = ask.backend.store.load([key])[key].row
    return isinstance(row, Token) and not row.over(ask.backend.now())


def _begin(changes: Changes, last: str) -> int | None:
    """The number that the reader has seen; None: it must read everything first."""
    run, _, number = last.rpartition("-")
    if run != changes.run or not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return int(number) if changes.since(int(number)) is not None else None


def _shown(changes: Changes, change: FeedItem) -> bytes:
    if change.line is None:
        ident = "" if change.kind == "token" else change.id  # not even the hash of a secret leaves the house
        return _event(changes, change.seq, "changed", ChangedRow(kind=change.kind, id=ident, gone=change.gone))
    (told,) = told_lines([change.line])
    event = ToldEvent(**structs.asdict(told), subjects=list(change.line.subjects))
    return _event(changes, change.seq, "told", event)


def _event(changes: Changes, seq: int, name: str, data: Noun | None = None) -> bytes:
    return b"id: %s-%d\nevent: %s\ndata: %s\n\n" % (
        changes.run.encode(),
        seq,
        name.encode(),
        msgspec.json.encode(data if data is not None else {}),  # one line: JSON has no bare line ends
    )


ROUTES = (
    Route(
        "GET", "/v1/events", events,
        "Server-sent events: `changed` (a row), `told` (a line of the story), `reset` (read everything again)",
        media="text/event-stream",
        answer_example='id: 18f-7\nevent: changed\ndata: {"kind":"node","id":"lab/train-0000","gone":false}\n\n',
    ),
)  # fmt: skip
