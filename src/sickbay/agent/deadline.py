"""Timeout for a call that may hang in the kernel: a worker thread does it, and who asked waits no longer than that.

A file system of a user or over the network may answer never. The thread that asked it is then left alone, and nobody
else goes the same way before it is back.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Work = Callable[[], object]
Done = tuple[int, object, Exception | None]


class BoundedCalls:
    """`what`: who is asked, in words. For one caller."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._seconds = seconds
        self._asks: SimpleQueue[tuple[int, Work]] = SimpleQueue()
        self._answers: SimpleQueue[Done] = SimpleQueue()
        self._asked = self._answered = 0
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], T]) -> T:
        """Raises TimeoutError where it does not come back, or one before it did not; and what it raises itself."""
        if self._asked > self._answered:
            self._take(0.0)
        if self._asked > self._answered:
            raise TimeoutError(f"{self._what} still do not answer")
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"asks {self._what}", daemon=True)
            thread.start()  # where there is none to be had now, the next call asks again
            self._thread = thread
        self._asked += 1
        self._asks.put((self._asked, work))
        done = self._take(self._seconds)
        if done is None:
            raise TimeoutError(f"{self._what} do not answer within {self._seconds:g} s")
        if done[2] is not None:
            raise done[2]
        return done[1]  # type: ignore[return-value]  # of this very work: the number before it was taken

    def _take(self, seconds: float) -> Done | None:
        try:
            done = self._answers.get(timeout=seconds) if seconds else self._answers.get_nowait()
        except Empty:
            return None
        self._answered = done[0]
        return done

    def _run(self) -> None:
        while True:
            number, work = self._asks.get()
            try:
                self._answers.put((number, work(), None))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
                self._answers.put((number, None, error))
