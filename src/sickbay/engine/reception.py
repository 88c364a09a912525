"""Where agents are received: their reports become facts, and commands that wait for them go back with the reply."""

from sickbay.model.protocol import Poll, Reply, Report
from sickbay.ports.clock import Clock
from sickbay.ports.store import Store


class Reception:
    def __init__(self, store: Store, clock: Clock, report_every: float = 5.0, poll_for: float = 20.0) -> None:
        raise NotImplementedError

    def receive(self, report: Report) -> Reply:
        """Stores what is new and acknowledges it; the reply carries commands. Raises BadInput, StoreError."""
        raise NotImplementedError

    def commands(self, poll: Poll) -> Reply:
        raise NotImplementedError
