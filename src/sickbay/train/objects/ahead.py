"""Read-ahead and the thread pool below it: many ranges of one object are on their way at once, and arrive in order."""

import io
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

CHUNK = 8 * 1024 * 1024  # bytes of one range
AHEAD = 128 * 1024 * 1024  # bytes that all readers together hold beyond the one chunk that each needs
IDLE = 30.0  # seconds after which a thread without work ends
Thing = TypeVar("Thing")

Fetch = Callable[[int, int, threading.Event], Any]  # start, size, whether nobody wants it any more → that many bytes


class Threads:
    """A thread pool that works until the very end of a process.

    Those of concurrent.futures take no work once the interpreter has begun to end, and that is when the last
    checkpoint may still be on its way. Where no thread can be started the work is done at once, by the caller.
    """

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._tasks = 0  # waiting or at work
        self._pid = os.getpid()

    def submit(self, work: Callable[[], Thing]) -> "Future[Thing]":
        """Work must not wait for other work of the same pool."""
        future: Future[Thing] = Future()
        with self._lock:
            if self._pid != os.getpid():  # a fork has taken the queue along, but none of the threads
                self._work, self._threads, self._tasks, self._pid = SimpleQueue(), 0, 0, os.getpid()
            self._tasks += 1
            if self._tasks > self._threads < self.most:
                self._start()
            alone = self._threads == 0
            if not alone:
                self._work.put((future, work))
        if alone:
            self._do(future, work)
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=self.name, daemon=True).start()
        except RuntimeError:  # the interpreter is ending
            return
        self._threads += 1

    def _run(self) -> None:
        while True:
            try:
                future, work = self._work.get(timeout=IDLE)
            except Empty:
                with self._lock:
                    if not self._work.empty():
                        continue
                    self._threads -= 1
                    return
            self._do(future, work)
            del future, work  # what they hold is not kept until the next ones come

    def _do(self, future: "Future[Any]", work: Callable[[], Any]) -> None:
        try:
            if future.set_running_or_notify_cancel():
                future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the reader that waits for it gets it
            future.set_exception(error)
        finally:
            with self._lock:
                self._tasks -= 1


class Quota:
    """Bytes that may be held in advance."""

    def __init__(self, size: int) -> None:
        self._left, self._lock = size, threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class _Range(NamedTuple):
    future: "Future[Any]"
    held: int  # of the quota


class ReadAhead(io.RawIOBase):
    """An object from its beginning to its end. `finish` is asked once, at the end, whether it is still the same."""

    def __init__(
        self,
        size: int,
        fetch: Fetch,
        threads: Threads,
        quota: Quota,
        *,
        width: int,
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._size, self._fetch, self._threads, self._quota, self._width = size, fetch, threads, quota, width
        self._finish = finish
        self._next = 0
        self._ranges: deque[_Range] = deque()
        self._chunk, self._held = memoryview(b""), 0
        self._error: BaseException | None = None
        self._unwanted = threading.Event()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.closed:
            raise ValueError("read of a closed object")
        if self._error is not None:  # what comes after a gap must not look like what was in it
            raise self._error
        if not self._chunk:
            try:
                self._chunk = self._take()
            except BaseException as error:
                self._error = error
                raise
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._chunk))
        target[:size] = self._chunk[:size]
        self._chunk = self._chunk[size:]
        return size

    def _take(self) -> memoryview:
        """The next chunk; empty at the end."""
        self._quota.give_back(self._held)
        self._held = 0
        if not self._ranges and self._next < self._size:
            self._ask(0)
        if not self._ranges:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()
            return memoryview(b"")
        asked = self._ranges.popleft()
        self._held = asked.held
        while self._next < self._size and len(self._ranges) < self._width and self._quota.take(CHUNK):
            self._ask(CHUNK)
        return memoryview(asked.future.result())

    def _ask(self, held: int) -> None:
        start, size = self._next, min(CHUNK, self._size - self._next)
        self._next += size
        fetch, unwanted = self._fetch, self._unwanted
        self._ranges.append(_Range(self._threads.submit(lambda: fetch(start, size, unwanted)), held))

    def close(self) -> None:
        if not self.closed:
            self._unwanted.set()
            while self._ranges:
                asked = self._ranges.popleft()
                asked.future.cancel()
                self._quota.give_back(asked.held)
            self._quota.give_back(self._held)
            self._held, self._chunk = 0, memoryview(b"")
        super().close()
