"""Bounded thread pool with time-outs: what a daemon makes its calls with."""

import heapq
import logging
from collections import Counter
from collections.abc import Callable
from itertools import count
from threading import Condition, Thread
from time import monotonic

from sickbay.model.facts import CallResult, Outcome

log = logging.getLogger("sickbay.executor")


class _Call:
    """One accepted call, until it has yielded its outcome."""

    __slots__ = ("done", "key", "yielded")

    def __init__(self, key: str, done: Callable[[Outcome], None]) -> None:
        self.key = key
        self.done = done
        self.yielded = False


class ThreadExecutor:
    """A thread for each call, at most `workers_per_lane` in a lane, and one that keeps the time of all of them.

    Nothing queues: a call that would have to wait is not accepted, so that it is made at the moment for which it was
    decided. A call that hangs yields `unknown` at its time-out and keeps its place until it returns: a cluster that
    hangs fills its own lanes and no other. Calls that were not accepted (no room, closed) yield `transient` at once,
    because they certainly had no effect. An outcome made here does not say which sending it answers (`sends` is 0):
    whoever submits knows.
    """

    def __init__(self, *, workers_per_lane: int = 4) -> None:
        if workers_per_lane < 1:
            raise ValueError(f"workers_per_lane is {workers_per_lane}: give each lane at least 1")
        self._workers = workers_per_lane
        self._changed = Condition()
        self._busy: Counter[str] = Counter()  # threads, also those that hang
        self._owed = 0  # outcomes
        self._deadlines: list[tuple[float, int, _Call]] = []
        self._numbers = count()
        self._closed = False
        self._timer: Thread | None = None

    def room(self, lane: str) -> int:
        with self._changed:
            return 0 if self._closed else max(0, self._workers - self._busy[lane])

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None:
        ours = _Call(key, done)
        with self._changed:
            accepted = not self._closed and self._busy[lane] < self._workers
            if accepted:
                self._busy[lane] += 1
                self._owed += 1
                heapq.heappush(self._deadlines, (monotonic() + timeout, next(self._numbers), ours))
                self._keep_time()
                self._changed.notify_all()
        if not accepted:
            _tell(done, Outcome(key=key, result=CallResult.TRANSIENT, sends=0, text=f"no worker is free for {lane}"))
            return
        # A daemon thread: one that hangs for ever must not keep the process from ending.
        Thread(target=self._work, args=(lane, ours, call), name=f"effect {lane}", daemon=True).start()

    def close(self, within: float | None = None) -> None:
        """Take no more calls and return when all have yielded; what has no answer `within` seconds is `unknown`."""
        with self._changed:
            self._closed = True
            if within is not None:
                soon = monotonic() + within
                self._deadlines = [(min(at, soon), number, ours) for at, number, ours in self._deadlines]
                heapq.heapify(self._deadlines)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._owed == 0)

    # --- on the threads

    def _work(self, lane: str, ours: _Call, call: Callable[[], Outcome]) -> None:
        try:
            outcome = call()
        except Exception as error:  # a defect of an adapter: whether it took effect nobody knows
            log.exception("effect_raised", extra={"intent": ours.key})
            outcome = Outcome(key=ours.key, result=CallResult.UNKNOWN, sends=0, text=f"{type(error).__name__}: {error}")
        # The place is given back first: whoever hears of the outcome finds room.
        with self._changed:
            self._busy[lane] -= 1
            self._changed.notify_all()
        self._yield(ours, outcome)

    def _yield(self, ours: _Call, outcome: Outcome) -> None:
        """The first outcome counts, and it alone is told."""
        with self._changed:
            if ours.yielded:
                return
            ours.yielded = True
        try:
            _tell(ours.done, outcome)
        finally:
            with self._changed:
                self._owed -= 1
                self._changed.notify_all()

    def _keep_time(self) -> None:
        if self._timer is None:
            self._timer = Thread(target=self._time, name="effect deadlines", daemon=True)
            self._timer.start()

    def _time(self) -> None:
        while (late := self._next_late()) is not None:
            self._yield(late, Outcome(key=late.key, result=CallResult.UNKNOWN, sends=0, text="no answer in time"))

    def _next_late(self) -> _Call | None:
        """Waits for the next call that runs out of time; None when the executor is closed and owes nothing."""
        with self._changed:
            while True:
                while self._deadlines and self._deadlines[0][2].yielded:
                    heapq.heappop(self._deadlines)
                if self._closed and not self._deadlines:
                    return None
                ahead = self._deadlines[0][0] - monotonic() if self._deadlines else None
                if ahead is not None and ahead <= 0:
                    return heapq.heappop(self._deadlines)[2]
                self._changed.wait(ahead)


def _tell(done: Callable[[Outcome], None], outcome: Outcome) -> None:
    try:
        done(outcome)
    except Exception:  # the thread goes on: a lost outcome is covered by its intent's doubt
        log.exception("outcome_lost", extra={"intent": outcome.key})
