"""Watched clocks: the only rule of time for deadlines.

A watched clock belongs to one source of facts (`ingest`, or a cluster) and advances only while that source can be
heard. After a two-hour outage, a jump of the wall clock or an API that hangs, nothing has run out.
"""

from sickbay.model.noun import Noun

INGEST = "ingest"


class Deadline(Noun):
    """A reading of a watched clock."""

    clock: str
    at: float

    def passed(self, readings: dict[str, float]) -> bool:
        return readings.get(self.clock, 0.0) >= self.at


class WatchedClock(Noun):
    """The stored row of one source: how long we have heard it, and where we are in reading it."""

    source: str
    period: float
    reading: float = 0.0
    last: float | None = None
    cursor: str | None = None
    as_of: float = 0.0  # how far the source has told us about itself, on its own time

    def heard(self, at: float) -> "WatchedClock":
        """The clock after a success at wall time `at`: a gap counts if it is positive and at most two periods."""
        gap = 0.0 if self.last is None else at - self.last
        counted = gap if 0.0 < gap <= 2 * self.period else 0.0
        return WatchedClock(
            source=self.source,
            period=self.period,
            reading=self.reading + counted,
            last=at,
            cursor=self.cursor,
            as_of=self.as_of,
        )
