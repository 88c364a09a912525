"""Discrete-event scheduler (virtual time): a heap of things to do, and the clock that hosts read."""

import heapq
from collections.abc import Callable
from datetime import UTC, datetime

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Ticket:
    """One thing to do at a moment; it can be called off."""

    __slots__ = ("act", "at")

    def __init__(self, at: float, act: Callable[[], object]) -> None:
        self.at = at
        self.act: Callable[[], object] | None = act

    def cancel(self) -> None:
        self.act = None

    @property
    def open(self) -> bool:
        return self.act is not None


class Scheduler:
    """Does things in order of their time; things of one moment in the order in which they were asked for."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._heap: list[tuple[float, int, Ticket]] = []
        self._count = 0

    def at(self, moment: float, act: Callable[[], object]) -> Ticket:
        if moment < self.now:
            raise ValueError(f"{moment} has passed: it is {self.now}; schedule for now or later")
        ticket = Ticket(moment, act)
        self._count += 1
        heapq.heappush(self._heap, (moment, self._count, ticket))
        return ticket

    def after(self, seconds: float, act: Callable[[], object]) -> Ticket:
        return self.at(self.now + seconds, act)

    def every(self, period: float, act: Callable[[], object]) -> Callable[[], None]:
        """Repeats `act` until the returned function is called."""
        stopped = False

        def again() -> None:
            if not stopped:
                self.after(period, again)
                act()

        def stop() -> None:
            nonlocal stopped
            stopped = True

        self.after(period, again)
        return stop

    def next_at(self) -> float | None:
        self._drop_cancelled()
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Does the next thing. False: there is none."""
        self._drop_cancelled()
        if not self._heap:
            return False
        moment, _, ticket = heapq.heappop(self._heap)
        self.now = moment
        act, ticket.act = ticket.act, None
        if act is not None:
            act()
        return True

    def run(self, until: float) -> int:
        """Does everything up to and including `until`; it is `until` afterwards."""
        done = 0
        heap = self._heap
        while heap and heap[0][0] <= until:
            moment, _, ticket = heapq.heappop(heap)
            act, ticket.act = ticket.act, None
            if act is not None:
                self.now = moment
                act()
                done += 1
        self.now = max(self.now, until)
        return done

    def _drop_cancelled(self) -> None:
        while self._heap and not self._heap[0][2].open:
            heapq.heappop(self._heap)


class SimClock:
    """A host's clock over virtual time. Its wall may be jumped; its monotonic side never is."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._epoch = EPOCH.timestamp()
        self.offset = 0.0
        self.behind = 0.0  # while a slow call lasts that ends now

    def wall(self) -> float:
        return self._epoch + self.mono() + self.offset

    def mono(self) -> float:
        return self._scheduler.now - self.behind

    def jump(self, seconds: float) -> None:
        self.offset += seconds


class SkewedClock:
    """A host's own clock: its wall is ahead of, or behind, the one that all others go by."""

    def __init__(self, clock: SimClock, skew: float) -> None:
        self._clock = clock
        self._skew = skew

    def wall(self) -> float:
        return self._clock.wall() + self._skew

    def mono(self) -> float:
        return self._clock.mono()
