"""Watermark: all that it stands for, kernel log and devices, is read so that what was found is said in order."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from msgspec.structs import replace

from sickbay.agent.outbox import Outbox
from sickbay.agent.probes import Probe
from sickbay.model.facts import Observed
from sickbay.model.protocol import Item


class Watermarks:
    """The witnesses among the probes. Whoever reads one holds its lock until what was found is in the outbox.

    Each has a lock of its own: NVML on a sick GPU answers after seconds, and the kernel log does not wait for it.
    """

    def __init__(self, witnesses: Sequence[Probe], outbox: Outbox) -> None:
        self._witnesses = tuple(witnesses)
        self._outbox = outbox
        self._locks = {probe.name: Lock() for probe in witnesses}
        self._checks = dict.fromkeys(self._locks, "")
        self._read: dict[str, float] = dict.fromkeys(self._locks, 0.0)

    @property
    def watermark(self) -> float:
        """The moment through which all of them have been read."""
        return min(self._read.values(), default=0.0)

    def still(self, name: str) -> Lock:
        """While this is held nobody reads that witness, and all that it read is in the outbox."""
        return self._locks[name]

    def read(self, probe: Probe) -> None:
        with self._locks[probe.name]:
            self._look(probe, whole=False)

    def read_through(self) -> None:
        """All of them, through now. Raises what a probe raises: what could not be read was not looked at."""
        for probe in self._witnesses:
            with self._locks[probe.name]:
                self._look(probe, whole=True)

    @contextmanager
    def provoked_by(self, check: str) -> Iterator[None]:
        """What is found from now on is our own check's doing, as far as anybody can tell: it belongs to its verdict."""
        try:
            for probe in self._witnesses:
                with self._locks[probe.name]:
                    self._look(probe, whole=True)
                    self._checks[probe.name] = check
            yield
            self.read_through()
        finally:
            for probe in self._witnesses:
                with self._locks[probe.name]:
                    self._checks[probe.name] = ""

    def _look(self, probe: Probe, *, whole: bool) -> None:
        now = time.monotonic()
        found = probe.look(now)
        if whole and probe.flush is not None:
            found = [*found, *probe.flush(now)]
        check = self._checks[probe.name]
        places = None if probe.places is None else probe.places()
        self._outbox.put([_marked(item, check) for item in found] if check else found, places)
        self._read[probe.name] = now
        if probe.told is not None and self._outbox.saved:
            probe.told(now)


def _marked(item: Item, check: str) -> Item:
    news = item.news
    if not isinstance(news, Observed):
        return item
    return replace(item, news=replace(news, fields={**news.fields, "check": check}))
