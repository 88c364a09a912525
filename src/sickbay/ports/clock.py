"""The Clock port: the host's idea of time, passed in so that a simulation can own it."""

from typing import Protocol


class Clock(Protocol):
    def wall(self) -> float:
        """Seconds since 1970, UTC. May jump; only watched clocks and people read it."""
        ...

    def mono(self) -> float:
        """Seconds that never jump, for the ends of calls and leases in this process."""
        ...
