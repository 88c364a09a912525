"""The Executor port: where calls that change the world are made."""

from collections.abc import Callable
from typing import Protocol

from sickbay.model.facts import Outcome


class Executor(Protocol):
    """Runs a call and hands its outcome back as a fact.

    Contract: each accepted call yields exactly one outcome, within `timeout` (a call that takes longer yields
    `unknown`), unless the process dies. A lane that hangs takes no room from other lanes.
    """

    def room(self, lane: str) -> int:
        """How many calls `submit` would take for this lane now."""
        ...

    def submit(
        self, lane: str, call: Callable[[], Outcome], timeout: float, done: Callable[[Outcome], None], key: str
    ) -> None: ...
