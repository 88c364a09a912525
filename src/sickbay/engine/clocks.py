"""Time as the engine may see it: watched clocks that are never ahead of the rows, and one wall clock for all replicas.

A clock moves in the store together with the facts of the read that moved it. Whoever looked at it before those facts
are learned would take a cluster to have been read further than its rows show, and call absent what is only unread.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sickbay.model.clock import WatchedClock
from sickbay.model.errors import StoreError
from sickbay.model.fleet import Cursor
from sickbay.ports.clock import Clock
from sickbay.ports.store import Store

MEASURE_EVERY = 30.0  # seconds: two machines drift apart by less than a millisecond meanwhile
JUMP = 0.5  # seconds by which wall and monotonic time may part before we measure again


@dataclass(slots=True)
class Clocks:
    """`learned`: what has passed is judged by these. `newest`: what is set from now on, a deadline, is set from these.

    A deadline that was set from a clock that lags would pass the moment it catches up.
    """

    newest: Mapping[str, WatchedClock] = field(default_factory=dict)
    learned: dict[str, WatchedClock] = field(default_factory=dict)
    ahead: dict[str, WatchedClock] = field(default_factory=dict)  # to be learned when their facts are

    def recall(self, cursor: Cursor) -> None:
        """A host that keeps nothing in memory goes on with what was stored beside the cursor."""
        if cursor.learned or cursor.ahead:
            self.learned = {**cursor.learned, **self.learned}
            self.ahead = {**cursor.ahead, **self.ahead}
        self.advance(cursor.at)

    def advance(self, at: int) -> None:
        """Facts up to this number are learned."""
        if not self.ahead and all(clock.facts <= at for clock in self.newest.values()):  # no backlog
            self.learned = {**self.learned, **self.newest}
            return
        learned, ahead = dict(self.learned), dict(self.ahead)
        for source, newest in self.newest.items():
            for clock in (ahead.get(source), newest):
                if clock is not None and clock.facts <= at:
                    learned[source] = clock
                    ahead.pop(source, None)
            if newest.facts > at:
                ahead.setdefault(source, newest)
        self.learned, self.ahead = learned, ahead  # new ones: a worker may be reading the old

    def kept(self, at: int) -> Cursor:
        """The cursor at this number, with the clocks while there is a backlog."""
        if not self.ahead:
            return Cursor(at=at)
        return Cursor(at=at, learned=dict(self.learned), ahead=dict(self.ahead))


class SharedClock:
    """The wall clock of the store, where it has one (clock synchronisation): replicas then date facts alike.

    Their own clocks may differ by seconds, and a fault right after a person's word would seem to be older than it.
    """

    def __init__(self, store: Store, own: Clock) -> None:
        self._store = store
        self._own = own
        self._offset = 0.0
        self._parted = 0.0  # of wall and monotonic time, when the offset was measured
        self._measured: float | None = None

    def mono(self) -> float:
        return self._own.mono()

    def wall(self) -> float:
        wall, mono = self._own.wall(), self._own.mono()
        if self._measured is None or mono - self._measured > MEASURE_EVERY or abs(wall - mono - self._parted) > JUMP:
            self._measure()
            wall = self._own.wall()
        return wall + self._offset

    def _measure(self) -> None:
        asked = self._own.wall()
        try:
            there = self._store.time()
        except StoreError:
            there = asked + self._offset  # what we knew must do until it answers
        answered, self._measured = self._own.wall(), self._own.mono()
        self._offset = 0.0 if there is None else there - (asked + answered) / 2
        self._parted = answered - self._measured
