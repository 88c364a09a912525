"""Checkpoints: how far each log was read, for the next run of the agent.

What was found in a log and how far it was read then are one line of the spool (`PlacesMark`), whole or not at all: so
whoever is killed in between neither tells a sum again nor leaves a line out. The newest mark is also kept beside the
spool, as a segment goes when it is acknowledged.
"""

import os
from binascii import crc32
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from sickbay.model.noun import Noun

FILE = "places"
SLOT = 1 << 16  # bytes
MARKED = b'{"n":'  # how a line of the spool begins that has a mark

Kind = TypeVar("Kind", bound=Noun)


class PlacesMark(Noun, omit_defaults=False):
    """The places of all sources at one moment. `n` counts on across runs: the highest is the newest."""

    n: int = 0
    places: dict[str, msgspec.Raw] = {}


class Places:
    """Two slots of one file, overwritten in turn: what is torn leaves the other, and a full disk takes it too."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.reserve = state / "reserve"  # room for the spool when there is none
        self._handle: int | None = None
        slots = _slots(state / FILE)
        self.kept = max(slot.n for slot in slots)  # the newest that does not depend on the spool
        self._next = int(slots[0].n >= slots[1].n)  # never over the newest
        marks = [*slots, *(mark for path in _segments(state) if (mark := last_mark(path)) is not None)]
        self.newest = max(marks, key=lambda mark: mark.n)
        self._last: Mapping[str, Noun | None] = {}

    def of(self, source: str, kind: type[Kind]) -> Kind | None:
        """None: it was never kept, or cannot be understood."""
        raw = self.newest.places.get(source)
        try:
            return msgspec.json.decode(_earlier(self._state, source) if raw is None else raw, type=kind)
        except (OSError, msgspec.MsgspecError):
            return None

    def mark(self, places: Mapping[str, Noun | None]) -> PlacesMark:
        """The newest mark, which is a new one where something has moved. None: this place is not needed any more."""
        if places != self._last:
            self._last = dict(places)
            # What is not read today may be again tomorrow, when somebody has set it so.
            kept = {name: raw for name, raw in self.newest.places.items() if name not in places}
            fresh = {name: place for name, place in places.items() if place is not None}
            raw = {name: msgspec.Raw(msgspec.json.encode(place)) for name, place in fresh.items()}
            self.newest = PlacesMark(n=self.newest.n + 1, places={**kept, **raw})
        return self.newest

    def keep(self) -> None:
        """The newest mark, beside the spool. Raises OSError."""
        if self.kept == self.newest.n:
            return
        data = msgspec.json.encode(self.newest)
        data += b" %08x\n" % crc32(data)
        if len(data) > SLOT:
            raise OSError(f"the places of {len(self.newest.places)} sources are {len(data)} bytes")
        if self._handle is None:
            self._handle = _prepared(self._state / FILE)
        if os.pwrite(self._handle, data, SLOT * self._next) < len(data):
            raise OSError("the disk took half a place")
        self.kept, self._next = self.newest.n, 1 - self._next

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _prepared(path: Path) -> int:
    """With all the room that it will ever take."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(handle).st_size < 2 * SLOT:
            os.posix_fallocate(handle, 0, 2 * SLOT)
    except OSError:
        os.close(handle)
        raise
    return handle


def _slots(path: Path) -> list[PlacesMark]:
    try:
        data = path.read_bytes()
    except OSError:
        return [PlacesMark(), PlacesMark()]
    found = []
    for at in (0, SLOT):
        slot = PlacesMark()
        text, _, check = data[at : at + SLOT].partition(b"\n")[0].rpartition(b" ")
        # Half of one over half of another may well be JSON.
        if check == b"%08x" % crc32(text):
            with suppress(msgspec.MsgspecError):
                slot = msgspec.json.decode(text, type=PlacesMark)
        found.append(slot)
    return found


def _segments(state: Path) -> list[Path]:
    try:
        return list((state / "spool").glob("*.jsonl"))
    except OSError:
        return []


def last_mark(segment: Path) -> PlacesMark | None:
    """The last in a segment that is whole."""
    try:
        data = segment.read_bytes()
    except OSError:
        return None
    end = data.rfind(b"\n") + 1
    while (at := data.rfind(b"\n" + MARKED, 0, end)) >= 0:
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(data[at + 1 : data.index(b"\n", at + 1)], type=PlacesMark)
        end = at + 1
    return None


def _earlier(state: Path, source: str) -> bytes:
    """A file for each source, as agents before this one had it."""
    import re

    return (state / (re.sub(r"[^A-Za-z0-9_.-]+", "-", source) + ".json")).read_bytes()
