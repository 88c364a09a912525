"""Notification across threads and event loops: what wakes held requests."""

import asyncio
import threading


class Wakeup:
    """A waiter says how many rings it had heard before it looked, so that none between looking and waiting is lost."""

    def __init__(self) -> None:
        self.rings = 0
        self.closed = False  # nobody is held any more
        self._lock = threading.Lock()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def ring(self) -> None:
        with self._lock:
            self.rings += 1
            waiters = list(self._waiters)
        for loop, event in waiters:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # that loop has just been closed, and its waiters with it
                continue

    def close(self) -> None:
        self.closed = True
        self.ring()

    async def wait(self, heard: int, timeout: float) -> None:  # noqa: ASYNC109 - the time-out is the ordinary case
        """Until it has rung more often than `heard`, or so many seconds have passed."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self.closed or self.rings != heard:
                return
            self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter[1].wait(), timeout)
        except TimeoutError:
            return
        finally:
            with self._lock:
                self._waiters.discard(waiter)
