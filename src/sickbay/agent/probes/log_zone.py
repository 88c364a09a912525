"""The time zone of a text log, learned from its own end: a line that was just written names the moment of the writing.

The agent may run in a container whose zone is not the host's, and a daemon keeps the zone that it began with.
"""

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple

from sickbay.signs.prefixes import dated, peel

QUARTER = 900.0  # seconds: zones differ by quarters of an hour
WITHIN = 60.0  # seconds between a line's date and its writing
FARTHEST = 14 * 3600.0
TAIL = 8192  # bytes at the end of a file in which a dated line is looked for
EVERY = 10.0  # seconds: whoever floods the log does not make us read its end for each line
CHUNK = 1 << 20
MARK = b"Linux version "  # with this a boot begins in a log


class LogZone(NamedTuple):
    offset: float  # seconds east of Greenwich

    def applied(self, date: datetime) -> datetime:
        """Our own rules where they agree now: they know of summer time."""
        here = datetime.now(UTC).astimezone().utcoffset()
        if here is not None and here.total_seconds() == self.offset:
            return date
        return date.replace(tzinfo=timezone(timedelta(seconds=self.offset)))


class Zone:
    """`ours`: whether a line is of this machine, by the host that it names. Others forward theirs as they date them."""

    def __init__(self, path: Path, ours: Callable[[str], bool]) -> None:
        self._path = path
        self._ours = ours
        self._known: LogZone | None = None
        self._after = 0.0
        self._learn(None)

    def learned(self, now: float, judged: int) -> LogZone | None:
        """None: nobody can tell. `judged`: where the line begins that is to be dated, as it cannot vouch for itself."""
        if now >= self._after:
            self._after = now + EVERY
            self._learn(judged)
        return self._known

    def _learn(self, judged: int | None) -> None:
        found = self._last_line()
        if found is None or found[0] == judged:
            return
        _, text, written = found
        peeled = peel(text, pasted=False)
        date = dated(peeled, datetime.fromtimestamp(written, UTC))
        if date is None or date.tzinfo is not None or not self._ours(peeled.host):
            return
        ahead = date.replace(tzinfo=UTC).timestamp() - written
        offset = round(ahead / QUARTER) * QUARTER
        if abs(ahead - offset) <= WITHIN and abs(offset) <= FARTHEST:
            self._known = LogZone(offset)

    def _last_line(self) -> tuple[int, str, float] | None:
        """Where the last whole line begins, what it says, and when the file was written."""
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            about = os.fstat(handle)
            begin = max(0, about.st_size - TAIL)
            data = os.pread(handle, TAIL, begin)
        except OSError:
            return None
        finally:
            os.close(handle)
        if not data.endswith(b"\n"):
            return None
        at = data.rfind(b"\n", 0, len(data) - 1) + 1
        return begin + at, data[at:-1].decode(errors="replace"), about.st_mtime


def boot_mark(path: Path, begin: int, end: int) -> int | None:
    """Where the kernel's first word of the newest boot stands between these places; None: nowhere."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        while end > begin:
            start = max(begin, end - CHUNK)
            data = os.pread(handle, end - start + len(MARK), start)
            at = data.rfind(MARK)
            while at >= 0:
                line = data[data.rfind(b"\n", 0, at) + 1 : at]
                if line.rstrip().endswith((b"kernel:", b"]")):
                    return start + at
                at = data.rfind(MARK, 0, at)
            end = start
    except OSError:
        return None
    finally:
        os.close(handle)
    return None
