"""Asynchronous replication: what a rank has saved on its node is copied to a second one, in a thread of its own.

Latest wins: where saves come faster than the network carries them, those in between have no copy. No save waits.
"""

import logging
from collections.abc import Callable
from threading import Condition, Thread

from sickbay.train.layout import Part, Place

log = logging.getLogger("sickbay.train")


class Copying:
    """`copy_out`: brings one part to another node, or says in words why it did not."""

    def __init__(self, copy_out: Callable[[Place, Part], str | None]) -> None:
        self._copy_out = copy_out
        self._news = Condition()
        self._next: tuple[Place, Part] | None = None
        self._busy = self._over = False
        Thread(target=self._run, name="sickbay-copies", daemon=True).start()

    def offer(self, place: Place, part: Part) -> None:
        with self._news:
            self._next = place, part
            self._news.notify_all()

    def wait(self, seconds: float) -> bool:
        """Until what was offered last is copied, or cannot be. False: the time is over."""
        with self._news:
            return self._news.wait_for(lambda: not (self._busy or self._next), seconds)

    def stop(self) -> None:
        """What is under way ends with the process."""
        with self._news:
            self._over, self._next = True, None
            self._news.notify_all()

    def _run(self) -> None:
        while True:
            with self._news:
                self._busy = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._over or self._next)
                if self._next is None:
                    return
                (place, part), self._next, self._busy = self._next, None, True
            if (why := self._copy_out(place, part)) is not None:
                log.warning("%s", why)
