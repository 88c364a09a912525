"""Watched clocks: the only rule of time for deadlines.

A watched clock belongs to one source of facts (`ingest`, or a cluster) and advances only while that source can be
heard. After a two-hour outage, a jump of the wall clock or an API that hangs, nothing has run out.
"""

from msgspec.structs import replace

from sickbay.model.noun import Noun

INGEST = "ingest"
LEADER = "leader"  # it moves while somebody leads, whoever can be heard: for what we do again because it failed
READ_MOST = 300.0  # seconds of one read that may count; one that takes longer is as good as an outage


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
    last: float | None = None  # when the last read that succeeded began, on the wall
    moved: float | None = None  # when the last read that advanced the clock began, on the wall
    took: float = 0.0  # seconds that the last read took
    cursor: str | None = None
    as_of: float = 0.0  # how far the source has told us about itself, on its own time
    facts: int = 0  # the newest fact when the clock moved: whoever has not learned it must not look at this clock yet

    def heard(self, at: float, took: float = 0.0) -> "WatchedClock":
        """The clock after a read that succeeded at wall time `at` and took so long.

        What was read is as old as the beginning of its read, so that is what counts. A gap counts if it is positive
        and at most two periods and the time that the read before took. One that is a little negative comes of two
        writers whose clocks differ, and is waited for: else the clock would count that piece of time twice.
        """
        began = at - took
        gap = 0.0 if self.last is None else began - self.last
        if -2 * self.period <= gap < 0.0:
            return self
        counts = 0.0 < gap <= 2 * self.period + min(self.took, READ_MOST)
        return replace(
            self,
            reading=self.reading + (gap if counts else 0.0),
            last=began,
            moved=began if counts or self.last is None else self.moved,
            took=took,
        )


class Standstill(Noun):
    """A watched clock as it was when we looked last; once it has stood still for long, why, and when to remind."""

    source: str
    reading: float
    because: str = ""  # for people; empty while the clock moves
    remind_at: Deadline | None = None
