"""Round-robin time series: one file per node, of a size that is known beforehand.

A file is three rings of rows: one row for each 5 seconds of the last hour, each 5 minutes of the last day and each hour
of the last month. A row is one write and holds all series of its node, so a sample costs three small writes however
many series there are, and a row that was torn by a power cut is one gap in a chart. Nothing is ever synced.
"""

import math
import os
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from urllib.parse import quote

import msgspec

from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun
from sickbay.ports.metrics import Point
from sickbay.wire.files import replacing

TIERS = ((5, 720), (300, 288), (3600, 744))  # seconds of a row, rows
MONTH = 31 * 86400
HEADER = 1 << 16
CAPACITY = 64  # series in a new file; it grows by doubling
MOST_SERIES = 1024
LONGEST_NAME = 60
_SLOT = struct.Struct("<I")
_CELL = struct.Struct("<Iff")  # how many values, their mean, their highest
ROWS = sum(rows for _, rows in TIERS)


class Head(Noun):
    version: int
    capacity: int
    names: tuple[str, ...]


class RingMetrics:
    """`directory` is this controller's alone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._heads: dict[NodeId, Head] = {}
        self._latest: dict[NodeId, tuple[datetime, dict[str, float]]] = {}
        self._lock = Lock()
        self.trouble = ""  # why the last values could not be kept
        _forget_old(directory)

    def record(self, node: NodeId, at: datetime, values: Mapping[str, float]) -> None:
        fit = {
            name: float(value)
            for name, value in values.items()
            if math.isfinite(value) and 0 < len(name) <= LONGEST_NAME
        }
        with self._lock:
            newest = self._latest.get(node)
            if newest is None or at >= newest[0]:
                self._latest[node] = (at, fit)
            try:
                self._write(node, at.timestamp(), fit)
                self.trouble = ""
            except (OSError, msgspec.MsgspecError, struct.error) as error:
                self.trouble = str(error)

    def series(self, node: NodeId) -> Sequence[str]:
        with self._lock:
            head = self._head(node)
        return sorted(head.names) if head is not None else []

    def read(self, node: NodeId, series: str, since: datetime, until: datetime) -> Sequence[Point]:
        with self._lock:
            head = self._head(node)
            if head is None or series not in head.names:
                return []
            place = head.names.index(series)
            age = time.time() - since.timestamp()
            # A little over its reach is within it: whoever asks for an hour wants the hour, not what it took to ask.
            tier = next((n for n, (step, rows) in enumerate(TIERS) if age <= step * rows * 1.01), len(TIERS) - 1)
            try:
                return sorted(
                    self._column(node, head, tier, place, (since.timestamp(), until.timestamp())), key=lambda p: p.at
                )
            except OSError as error:
                self.trouble = str(error)
                return []

    def latest(self) -> Mapping[NodeId, tuple[datetime, Mapping[str, float]]]:
        hour_ago = datetime.now(UTC) - timedelta(hours=1)
        with self._lock:
            self._latest = {node: found for node, found in self._latest.items() if found[0] >= hour_ago}
            return dict(self._latest)

    # --- one node's file
    def _path(self, node: NodeId) -> Path:
        return self._directory / f"{quote(node, safe='')}.ring"

    def _head(self, node: NodeId) -> Head | None:
        known = self._heads.get(node)
        if known is None:
            known = _read_head(self._path(node))
            if known is not None:
                self._heads[node] = known
        return known

    def _write(self, node: NodeId, at: float, values: Mapping[str, float]) -> None:
        if not values or at < time.time() - MONTH:
            return
        head = self._with_room(node, values)
        places = {name: place for place, name in enumerate(head.names)}
        handle = os.open(self._path(node), os.O_RDWR | os.O_CLOEXEC)
        try:
            for tier, (step, _) in enumerate(TIERS):
                where, number = _row(head.capacity, tier, int(at // step))
                row = bytearray(os.pread(handle, _row_size(head.capacity), where))
                if len(row) < _row_size(head.capacity) or _SLOT.unpack_from(row)[0] != number:
                    if len(row) >= _SLOT.size and _SLOT.unpack_from(row)[0] > number:
                        continue  # the ring has gone past it
                    row = bytearray(_row_size(head.capacity))
                    _SLOT.pack_into(row, 0, number)
                for name, value in values.items():
                    if name in places:
                        _add(row, _SLOT.size + places[name] * _CELL.size, value)
                os.pwrite(handle, row, where)
        finally:
            os.close(handle)

    def _with_room(self, node: NodeId, values: Mapping[str, float]) -> Head:
        head = self._head(node)
        names = head.names if head is not None else ()
        new = [name for name in values if name not in names][: MOST_SERIES - len(names)]
        if head is not None and not new:
            return head
        capacity = head.capacity if head is not None else CAPACITY
        while capacity < len(names) + len(new):
            capacity *= 2
        after = Head(version=1, capacity=capacity, names=(*names, *new))
        path = self._path(node)
        path.parent.mkdir(parents=True, exist_ok=True)
        if head is None or capacity != head.capacity:
            _rebuild(path, head, after)
        else:
            _write_head(path, after)
        self._heads[node] = after
        return after

    def _column(self, node: NodeId, head: Head, tier: int, place: int, between: tuple[float, float]) -> Iterator[Point]:
        step, rows = TIERS[tier]
        size = _row_size(head.capacity)
        start, _ = _row(head.capacity, tier, 0)
        with self._path(node).open("rb") as file:
            data = os.pread(file.fileno(), rows * size, start)
        for at in range(0, len(data) - size + 1, size):
            moment = _SLOT.unpack_from(data, at)[0] * step
            count, mean, highest = _CELL.unpack_from(data, at + _SLOT.size + place * _CELL.size)
            if count and between[0] - step < moment <= between[1]:
                yield Point(at=datetime.fromtimestamp(moment, UTC), mean=round(mean, 4), highest=round(highest, 4))


def _row_size(capacity: int) -> int:
    return _SLOT.size + capacity * _CELL.size


def _row(capacity: int, tier: int, number: int) -> tuple[int, int]:
    """Where the row of a moment stands, and its number."""
    before = sum(rows for _, rows in TIERS[:tier])
    return HEADER + (before + number % TIERS[tier][1]) * _row_size(capacity), number


def _add(row: bytearray, at: int, value: float) -> None:
    count, mean, highest = _CELL.unpack_from(row, at)
    after = mean + (value - mean) / (count + 1)
    _CELL.pack_into(row, at, min(count + 1, 0xFFFFFFFF), after, max(highest, value) if count else value)


def _read_head(path: Path) -> Head | None:
    """None: there is no file, or none that can be used; the next value begins it anew."""
    try:
        with path.open("rb") as file:
            head = msgspec.json.decode(file.read(HEADER).rstrip(b"\0"), type=Head)
            size = os.fstat(file.fileno()).st_size
    except (OSError, msgspec.MsgspecError):
        return None
    fits = head.version == 1 and len(head.names) <= head.capacity and size == HEADER + ROWS * _row_size(head.capacity)
    return head if fits else None


def _write_head(path: Path, head: Head) -> None:
    with path.open("r+b") as file:
        file.write(_padded(head))


def _padded(head: Head) -> bytes:
    data = msgspec.json.encode(head)
    if len(data) > HEADER:
        raise OSError("the names of the series have no room")
    return data.ljust(HEADER, b"\0")


def _rebuild(path: Path, before: Head | None, after: Head) -> None:
    """A larger file with the same rows, which takes the old one's place as a whole."""
    size = _row_size(after.capacity)
    with replacing(path, durable=False) as new:
        new.write(_padded(after))
        if before is not None:
            with path.open("rb") as old:
                old.seek(HEADER)
                for _ in range(ROWS):
                    new.write(old.read(_row_size(before.capacity)).ljust(size, b"\0"))
        new.truncate(HEADER + ROWS * size)


def _forget_old(directory: Path) -> None:
    """Nodes that were not heard of for a month."""
    for path in directory.glob("*.ring") if directory.is_dir() else ():
        if time.time() - path.stat().st_mtime > MONTH:
            path.unlink(missing_ok=True)
