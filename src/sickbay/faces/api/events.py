"""The stream of everything that changes, as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from sickbay.faces.api import requests
from sickbay.faces.api.route import ApiRequest, Route
from sickbay.faces.api.threads import PEOPLE, on_thread
from sickbay.faces.explain import iso
from sickbay.faces.story import tell
from sickbay.hosts.changes import Changes, FeedItem

COMMENT_EVERY = 15.0  # seconds: shows both sides that the other is there
LOOK = 1.0


class EventStream:
    """What a handler returns instead of an object: pieces of text, sent as they come."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self.pieces = pieces


async def events(ask: ApiRequest) -> EventStream:
    return EventStream(_pieces(ask))


async def _pieces(ask: ApiRequest) -> AsyncIterator[bytes]:
    changes, bell = ask.desk.changes, ask.room.news
    loop = asyncio.get_running_loop()
    at = _begin(changes, ask.last_event or ask.query.last_event_id)
    said = loop.time()
    if at is None:
        at = changes.seq
        yield _event(changes, at, "reset", {})
    else:
        yield b": welcome back\n\n"
    while not bell.closed and not await _gone(ask):
        heard = bell.rings
        fresh = changes.since(at)
        if fresh is None:  # it was too slow, and some are forgotten
            at = changes.seq
            yield _event(changes, at, "reset", {})
        elif fresh:
            at = fresh[-1].seq
            yield b"".join(_shown(changes, change) for change in fresh)
            if any(change.kind == "token" for change in fresh) and not await on_thread(PEOPLE, _still, ask):
                return  # this reader's token was revoked
        elif loop.time() - said >= COMMENT_EVERY:
            if not await on_thread(PEOPLE, _still, ask):
                return
            yield b": still here\n\n"
        else:
            await bell.wait(heard, LOOK)
            continue
        said = loop.time()


async def _gone(ask: ApiRequest) -> bool:
    return ask.gone is not None and bool(await ask.gone())


def _still(ask: ApiRequest) -> bool:
    key = f"token:{ask.who.hash}" if ask.who is not None else ""
    return ask.desk.store.load([key])[key].row is not None


def _begin(changes: Changes, last: str) -> int | None:
    """The number that the reader has seen; None: it must read everything first."""
    run, _, number = last.rpartition("-")
    if run != changes.run or not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return int(number) if changes.since(int(number)) is not None else None


def _shown(changes: Changes, change: FeedItem) -> bytes:
    if change.line is None:
        ident = "" if change.kind == "token" else change.id  # not even the hash of a secret leaves the house
        return _event(changes, change.seq, "changed", {"kind": change.kind, "id": ident, "gone": change.gone})
    (told,) = tell([change.line])
    data = {
        "at": iso(told.at),
        "what": told.what.value,
        "about": told.about,
        "text": told.text,
        "event": told.event,
        "subjects": list(change.line.subjects),
    }
    return _event(changes, change.seq, "told", data)


def _event(changes: Changes, seq: int, name: str, data: dict[str, Any]) -> bytes:
    return b"id: %s-%d\nevent: %s\ndata: %s\n\n" % (
        changes.run.encode(),
        seq,
        name.encode(),
        msgspec.json.encode(data),  # one line: JSON has no bare line ends
    )


ROUTES = (
    Route(
        "GET", "/v1/events", events,
        "Server-sent events: `changed` (a row), `told` (a line of the story), `reset` (read everything again)",
        str, query=requests.EventCursor, media="text/event-stream",
        answer_example='id: 18f-7\nevent: changed\ndata: {"kind":"node","id":"lab/train-0000","gone":false}\n\n',
    ),
)  # fmt: skip
