"""Latest-wins worker: a thread that does for the newest of what is offered what no save may wait for.

What is offered while it is busy takes the place of what was offered before. Where saves come faster than the network
carries copies of them, those in between have none.
"""

import logging
from collections.abc import Callable
from threading import Condition, Thread
from typing import Generic, TypeVar

log = logging.getLogger("sickbay.train")
Thing = TypeVar("Thing")


class LatestOnly(Generic[Thing]):
    """`act` returns in words what went wrong: nothing waits for it that could be told by an error."""

    def __init__(self, name: str, act: Callable[[Thing], str | None]) -> None:
        self._act = act
        self._news = Condition()
        self._next: list[Thing] = []  # one, or none
        self._busy = self._over = False
        Thread(target=self._run, name=name, daemon=True).start()

    def offer(self, thing: Thing) -> None:
        with self._news:
            self._next = [thing]
            self._news.notify_all()

    def wait(self, seconds: float) -> bool:
        """Until what was offered last is done. False: the time is over."""
        with self._news:
            return self._news.wait_for(lambda: not (self._busy or self._next), seconds)

    def stop(self) -> None:
        """What is under way ends with the process."""
        with self._news:
            self._over, self._next = True, []
            self._news.notify_all()

    def _run(self) -> None:
        while True:
            with self._news:
                self._busy = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._over or bool(self._next))
                if not self._next:
                    return
                thing, self._next, self._busy = self._next[0], [], True
            try:
                why = self._act(thing)
            except OSError as error:
                why = str(error)
            if why is not None:
                log.warning("%s", why)
