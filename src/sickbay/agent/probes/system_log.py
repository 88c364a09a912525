"""Text files that a log daemon writes (/var/log/messages, syslog, kern.log), with the date that each line carries.

Any program may have such a line written (`logger -t kernel`), and other machines forward theirs: who speaks is not
proven, unless the operator trusts the file, or the line is the drill that this agent has written itself.

Such a line has no boot id and mostly neither year nor zone. The zone is the daemon's own, told by lines that it has
just written. One dated before the last boot does nothing; one that is dated later gets the moment of its date; one that
cannot be dated is told with that word, and never acted upon.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

from sickbay.agent.drill import Drills
from sickbay.agent.probes.kernel_log import LogLine, LogPlace, Watched, lines_of, place_in
from sickbay.agent.probes.log_file import FilePlace, LogFile
from sickbay.agent.probes.log_zone import Zone, boot_mark
from sickbay.agent.settings import on_host
from sickbay.agent.watches import CREATED, DELETED, MODIFIED, MOVED, MOVED_TO
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun
from sickbay.signs.prefixes import Peeled, dated
from sickbay.signs.scanner import lines_of_interest

USUAL = ("/var/log/messages", "/var/log/syslog", "/var/log/kern.log")
TEXT = "text"
AHEAD = 120.0  # seconds that a daemon's clock may be ahead of ours
GRAIN = 1.0  # seconds: a line is dated by the whole second in which it was written
FAR_ZONE = 26 * 3600.0  # seconds between the farthest zones
STEP = 2.0  # seconds by which the wall clock may wander without having been set
READ_AGAIN = 8  # rotations: whoever dies young would read a backlog again and again, and never what is new
FIRST_TIME = 64 << 20  # bytes of a file that are read when it is met for the first time: faults from before the agent


class LineTrust(Noun):
    """How the lines of a text file are taken."""

    trusted: bool = False  # every line counts as the kernel's
    own_zone: bool = False  # the file's dates are surely in this machine's zone
    hosts: tuple[str, ...] = ()  # this machine's names: lines of others are not read; none: every line is ours


class SystemLog:
    """`began`: the boot's begin on our monotonic clock. `wall`: the wall clock, in seconds.

    `place`: where it is read from. `told`: how far an earlier run has told all but what waited for a witness.
    """

    def __init__(
        self,
        path: Path,
        place: LogPlace,
        reading: LineTrust | None = None,
        *,
        began: float = 0.0,
        wall: Callable[[], float] = time.time,
        drills: Drills | None = None,
        told: LogPlace | None = None,
    ) -> None:
        self.name = name_of(path)
        self._path = path
        self._boot_id = place.boot_id
        self._reading = reading or LineTrust()
        self._began = began
        self._wall = wall
        self._drills = drills
        # What counts by itself was told up to here by an earlier run: had other lines counted then, it was not.
        known = told is not None and told != place and told.trusted == self._reading.trusted
        told = told if known else None
        given_up = told is not None and told.generation - place.generation > READ_AGAIN
        if told is not None and given_up:
            place, told = told, None
        self._zone = Zone(path, self._is_ours)
        self._clock_zero: float | None = None  # wall time less monotonic time, when we first looked
        begin = place if place.inode else FilePlace(offset=_near_the_end(path))
        self._file = LogFile(path, begin, told=told, rotated=True, worth=lines_of_interest)
        if given_up:
            why = "this agent was ended again and again before one could speak"
            self._file.lost.append(f"{path}: what waited for a witness {READ_AGAIN} rotations ago is not told: {why}")
        self._generation, self._size = begin.generation, _size(path)  # what is behind them was written since
        self._mark = boot_mark(path, begin.offset, self._size)
        self._forwarded = 0

    @property
    def behind(self) -> bool:
        return self._file.behind

    @property
    def witness(self) -> bool:
        return self._reading.trusted

    def lines(self, now: float) -> Iterator[LogLine | Observed]:
        if self._clock_zero is None:
            self._clock_zero = self._wall() - now
        yield from lines_of(self._file, LogLine("", now, self.name, None, by=str(self._path)))

    def judged(self, line: LogLine, peeled: Peeled, now: float) -> LogLine | Observed | None:
        if self._drills is not None and self._drills.wrote(self._file.inode, line.seq or 0, line.text):
            return line._replace(proven=True)
        if not self._is_ours(peeled.host):
            return self._of_another(peeled.host)
        moment, undated = self._moment(line, peeled, now)
        if moment is None and not undated:
            return None
        trusted = self._reading.trusted and not undated
        return line._replace(mono=now if moment is None else moment, proven=trusted, undated=undated)

    def _is_ours(self, host: str) -> bool:
        return not host or not self._reading.hosts or is_one_of(host, self._reading.hosts)

    def _of_another(self, host: str) -> Observed | None:
        """Told at the first, and when there are ten times as many."""
        self._forwarded += 1
        if self._forwarded != 10 ** (len(str(self._forwarded)) - 1):
            return None
        text = (
            f"{self._path}: lines of other machines are not read ({self._forwarded} so far, the last of {host}); "
            f"this one is {' or '.join(self._reading.hosts)}"
        )
        return Observed(node=NodeId(""), kind="agent.forwarded", text=text[:500])

    # --- when
    def _moment(self, line: LogLine, peeled: Peeled, now: float) -> tuple[float | None, str]:
        """When it happened, or why nobody can tell; neither: before this boot, or it was not said at all."""
        wall = self._wall()
        at = line.seq or 0
        if peeled.wall is None:
            fresh = self._file.generation != self._generation or at >= self._size
            return (now, "") if fresh else (None, "it has no date")
        date = dated(peeled, datetime.fromtimestamp(wall, UTC).astimezone())
        if date is None:
            return None, "its date has no year that fits"
        sure = date.tzinfo is not None or self._reading.own_zone
        if not sure:
            zone = self._zone.learned(now, at)
            sure = zone is not None
            date = zone.applied(date) if zone is not None else date
        ahead = date.timestamp() - wall
        if ahead > AHEAD:
            return None, "its date lies ahead of the clock"
        # The second that it names: its begin tells whether the boot before may have said it, and then it means nothing;
        # its end is when it happened, as a line written just now must not seem older than what it followed.
        begin = now + ahead
        if begin >= self._began:
            return min(begin + (0.0 if date.microsecond else GRAIN), now), ""
        return None, self._why_not_older(begin, at, now, wall, sure=sure)

    def _why_not_older(self, begin: float, at: int, now: float, wall: float, *, sure: bool) -> str:
        """Why a line that is dated before this boot may be of this boot all the same; empty: it may not."""
        before = self._began - begin
        if self._mark is not None and self._file.generation == self._generation and at > self._mark:
            return "it stands behind the begin of this boot and is dated before it: the clock was set since"
        stepped = abs(wall - now - (self._clock_zero or 0.0)) if self._clock_zero is not None else 0.0
        if stepped > STEP and before <= stepped + AHEAD:
            return "the clock was set since"
        if not sure and before <= FAR_ZONE:
            return "nobody can tell the time zone of this log"
        return ""

    def place(self) -> LogPlace:
        return place_in(self._file, self._boot_id, trusted=self._reading.trusted)

    @property
    def rereading(self) -> bool:
        return self._file.rereading

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


def is_one_of(host: str, ours: Collection[str]) -> bool:
    """Names are the same whatever their case, and a short one is that of the long one that begins with it."""
    return any(_same(host.lower().rstrip("."), name.lower().rstrip(".")) for name in ("localhost", *ours))


def _same(one: str, other: str) -> bool:
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]


def own_names(node: str, host: str = "") -> tuple[str, ...]:
    """What this machine is called, in its log or by its cluster."""
    return tuple(dict.fromkeys((host or os.uname().nodename, node.rpartition("/")[2])))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _near_the_end(path: Path) -> int:
    """0, unless the file is very long. Half a line at the beginning is none of the kernel's forms."""
    return max(0, _size(path) - FIRST_TIME)


def usual(root: str = "/") -> list[Path]:
    """Those of the usual files that are there and are no link to another of them."""
    found: dict[Path, Path] = {}
    for name in USUAL:
        path = on_host(root, name)
        if path.is_file():
            found.setdefault(path.resolve(), path)
    return list(found.values())
