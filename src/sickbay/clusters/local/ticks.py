"""Monotonic clock of the local cluster that survives restarts: what `as_of` and `visible_from` are readings of."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from sickbay.clusters.local.files import read, write

AHEAD = 5.0  # seconds that the ceiling on disk lies ahead: so often, at most, it is written
_STEP = 1e-6  # two readings differ by at least this, so that a read before an act is never as new as the act

_all: dict[Path, "Ticks"] = {}
_all_lock = threading.Lock()


class Ticks:
    """Goes forward at the true rate and never back: not when the wall clock jumps, not over restarts.

    A ceiling lies on disk ahead of every reading given out; a new run begins there, or at the wall clock if that is
    further.
    """

    def __init__(
        self, file: Path, wall: Callable[[], float] = time.time, mono: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = file
        self._mono = mono
        self._lock = threading.Lock()
        self._ceiling = read(file, float) or 0.0
        self._last = max(wall(), self._ceiling)
        self._offset = self._last - mono()

    @classmethod
    def of(cls, root: Path) -> "Ticks":
        """All adapters of one room in one process share one: their readings are compared with one another."""
        file = root.absolute() / "as_of.json"
        with _all_lock:
            if file not in _all:
                _all[file] = cls(file)
            return _all[file]

    def now(self) -> float:
        """A reading, later than every reading before."""
        with self._lock:
            reading = max(self._offset + self._mono(), self._last + _STEP)
            if reading >= self._ceiling:
                write(self._file, reading + AHEAD)
                self._ceiling = reading + AHEAD
            self._last = reading
            return reading
