"""The Notifier port."""

from typing import Protocol

from sickbay.model.intent import Notify


class Notifier(Protocol):
    """Tells people. At least once; `key` lets the far side drop doubles. Raises Transient or Rejected."""

    def tell(self, notice: Notify, *, key: str) -> None: ...
