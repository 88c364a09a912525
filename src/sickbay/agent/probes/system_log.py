"""Text files that a log daemon writes (/var/log/messages, syslog, kern.log), with the date that each line carries.

Such a line has no boot id and mostly neither year nor zone. One dated before the last boot does nothing; one that is
dated later gets the moment of its date; one whose date cannot be read, or lies a little ahead, has happened now.
"""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from sickbay.agent.probes.kernel_log import LogLine, Place, Watched, lines_of, place_in
from sickbay.agent.probes.log_file import FilePlace, LogFile
from sickbay.agent.watches import CREATED, DELETED, MODIFIED, MOVED, MOVED_TO
from sickbay.knowledge.prefixes import Peeled, dated
from sickbay.knowledge.scanner import lines_of_interest
from sickbay.model.facts import Observed

USUAL = ("/var/log/messages", "/var/log/syslog", "/var/log/kern.log")
TEXT = "text"
A_DAY = 86_400.0
GRAIN = 1.0  # seconds: a line is dated by the whole second in which it was written
FIRST_TIME = 64 << 20  # bytes of a file that are read when it is met for the first time: faults from before the agent


class SystemLog:
    """`began`: the boot's begin on our monotonic clock. `wall`: the wall clock, in seconds."""

    def __init__(self, path: Path, place: Place, *, began: float = 0.0, wall: Callable[[], float] = time.time) -> None:
        self.name = name_of(path)
        self._path = path
        self._boot_id = place.boot_id
        self._began = began
        self._wall = wall
        begin = place if place.inode else FilePlace(offset=_near_the_end(path))
        self._file = LogFile(path, begin, rotated=True, worth=lines_of_interest)

    @property
    def behind(self) -> bool:
        return self._file.behind

    def lines(self, now: float) -> Iterator[LogLine | Observed]:
        return lines_of(self._file, self.name, now)

    def moment(self, line: LogLine, peeled: Peeled, now: float) -> float | None:  # noqa: ARG002 - a Source's
        wall = self._wall()
        # The daemon writes this machine's own zone where it writes none.
        today = datetime.fromtimestamp(wall, UTC).astimezone()
        date = dated(peeled, today)
        if date is None:
            # A date that can be read and has no year that fits is none of this boot; no date at all is now.
            return None if peeled.wall is not None else now
        ahead = date.timestamp() - wall
        if ahead > A_DAY:
            return None  # no clock strays so far
        # The second that it names: its begin tells whether the boot before may have said it, and then it means nothing;
        # its end is when it happened, as a line written just now must not seem older than what it followed.
        begin = now + ahead
        return None if begin < self._began else min(begin + (0.0 if date.microsecond else GRAIN), now)

    def place(self) -> Place:
        return place_in(self._file, self._boot_id)

    handle = None

    @property
    def watched(self) -> Watched:
        """The file, not its directory: others write there all day long."""
        if self._path.exists():
            return self._path, MODIFIED | MOVED | DELETED
        return self._path.parent, CREATED | MOVED_TO

    def close(self) -> None:
        self._file.close()


def name_of(path: Path) -> str:
    return f"{TEXT}:{path}"


def _near_the_end(path: Path) -> int:
    """0, unless the file is very long. Half a line at the beginning is none of the kernel's forms."""
    try:
        return max(0, path.stat().st_size - FIRST_TIME)
    except OSError:
        return 0


def usual() -> list[Path]:
    """Those of the usual files that are there and are no link to another of them."""
    found: dict[Path, Path] = {}
    for name in USUAL:
        path = Path(name)
        if path.is_file():
            found.setdefault(path.resolve(), path)
    return list(found.values())
