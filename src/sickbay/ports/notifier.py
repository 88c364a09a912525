"""The Notifier port."""

from typing import Protocol

from sickbay.model.intent import Notify


class Notifier(Protocol):
    """Tells people, at least once: `key` is the same in every sending of a notice, so that the far side drops doubles.

    `tell` returns what the far side answered when it has taken it. Raises Transient (it has not taken it: try again),
    Rejected (it refuses this one), Unknown (it may have taken it: sent again, under the same key). It ends within its
    own time-out, whatever the far side does, and no secret is in anything that it raises, returns or logs.
    """

    def tell(self, notice: Notify, *, key: str) -> str: ...
