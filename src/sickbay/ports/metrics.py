"""Where measured series are kept for charts: fine for an hour, coarser for a month, never beyond a bounded size."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun


class Point(Noun):
    """What a series was between `at` and the next point."""

    at: datetime
    mean: float
    highest: float


class Metrics(Protocol):
    """Nothing is decided by what is kept here: a lost value is a gap in a chart. No call raises for a full disk."""

    def record(self, node: NodeId, at: datetime, values: Mapping[str, float]) -> None:
        """Values of one moment, older or newer than others; what is older than a month is dropped."""
        ...

    def series(self, node: NodeId) -> Sequence[str]:
        """Names of what is known of a node, in order."""
        ...

    def read(self, node: NodeId, series: str, since: datetime, until: datetime) -> Sequence[Point]:
        """In order of time, in the finest grain that still reaches back to `since`. Unknown node or series: nothing."""
        ...

    def latest(self) -> Mapping[NodeId, tuple[datetime, Mapping[str, float]]]:
        """The newest values of each node."""
        ...
