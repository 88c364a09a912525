"""Metrics sampling, every few seconds, for charts: one item with all values of a moment."""

from collections.abc import Callable, Mapping, Sequence

from sickbay.agent.outbox import say
from sickbay.model.protocol import Item, Measured

EVERY = 5.0  # seconds
MOST = 1e18  # what is larger, or no number at all, is none that anybody measured; JSON cannot even say infinity
Values = Callable[[], Mapping[str, float]]
Export = Callable[[Mapping[str, float]], None]


class Sampler:
    """`sources` are asked in turn; one that fails leaves a gap and costs the others nothing."""

    def __init__(self, sources: Sequence[Values], exports: Sequence[Export] = ()) -> None:
        self._sources = tuple(sources)
        self._exports = tuple(exports)

    def look(self, now: float) -> list[Item]:
        values: dict[str, float] = {}
        failed: Exception | None = None
        for source in self._sources:
            try:
                values |= {name: round(float(value), 3) for name, value in source().items() if abs(value) < MOST}
            except Exception as error:  # noqa: BLE001 - told below, after the others were asked
                failed = error
        for export in self._exports:
            export(values)
        if failed is not None and not values:
            raise failed
        return [say(Measured(values=values), now)] if values else []
