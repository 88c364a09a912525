"""The change feed, in order, for everybody who watches: the API's event stream, and whoever waits for an effect."""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import takewhile

from sickbay.model.noun import Noun
from sickbay.model.rows import Line, Unit, kind_of

KEPT = 5000  # events that a watcher may lag behind; then it is told to read everything again
# Rows that nobody looks at by themselves.
SILENT = frozenset({"ages", "attempt", "cursor", "freed", "intent", "order", "record", "standstill", "voice"})


class FeedItem(Noun):
    """Either a row that changed (`kind`, `id`), or a line of the story (`line`)."""

    seq: int
    kind: str = ""
    id: str = ""
    gone: bool = False
    line: Line | None = None


class Changes:
    """A ring of changes. It lives in memory: one that was restarted has new numbers, which `run` tells apart."""

    def __init__(self) -> None:
        self.run = f"{time.time_ns():x}"
        self._ring: deque[FeedItem] = deque(maxlen=KEPT)
        self._seq = 0
        self._more = threading.Condition()
        self._watchers: set[Callable[[], None]] = set()

    def committed(self, unit: Unit) -> None:
        with self._more:
            for key, row in unit.writes.items():
                if (kind := kind_of(key)) not in SILENT:
                    self._add(kind=kind, id=key.partition(":")[2], gone=row is None)
            for line in unit.story:
                self._add(line=line)
            self._more.notify_all()
            watchers = list(self._watchers)
        for wake in watchers:
            wake()

    def _add(self, *, kind: str = "", id: str = "", gone: bool = False, line: Line | None = None) -> None:  # noqa: A002 - the wire's word
        self._seq += 1
        self._ring.append(FeedItem(seq=self._seq, kind=kind, id=id, gone=gone, line=line))

    @property
    def seq(self) -> int:
        return self._seq

    def since(self, seq: int) -> list[FeedItem] | None:
        """All changes after this number; None: some of them are forgotten, or the number is not ours."""
        with self._more:
            first = self._ring[0].seq if self._ring else self._seq + 1
            if seq > self._seq or seq < first - 1:
                return None
            newest = takewhile(lambda change: change.seq > seq, reversed(self._ring))
            return list(newest)[::-1]

    def wait(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Until it holds, looked at after each commit; False: it did not in time."""
        until = time.monotonic() + timeout
        while not condition():
            with self._more:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._more.wait(min(left, 0.5))
        return True

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """`wake` is called from the committing thread after each commit. Returns how to end it."""
        with self._more:
            self._watchers.add(wake)

        def end() -> None:
            with self._more:
                self._watchers.discard(wake)

        return end
