"""Spool recovery: what earlier runs left in the spool, told under their names before anything of this run.

A segment that cannot be read now is kept and tried again later; only what is acknowledged is removed.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sickbay.agent.spool import AgentIdentity, Leftover, faults_only, leftovers, read_leftover
from sickbay.model.protocol import Item

SOONEST, LATEST = 1.0, 60.0  # seconds until a segment that could not be read is tried again
ASIDE = ".aside"  # of another node, or of nobody
MOST_ASIDE = 8  # of them; the oldest go

Tell = Callable[..., None]  # kind, text, fields


@dataclass(slots=True)
class _Unread:
    again: float
    pause: float = SOONEST


class Leavings:
    """`safe`: what is marked in them is kept elsewhere, too, so that they may go. `own`: a segment of this run."""

    def __init__(
        self, directory: Path, voice: AgentIdentity, tell: Tell, safe: Callable[[], bool], own: Callable[[Path], bool]
    ) -> None:
        self._directory = directory
        self._voice = voice
        self._tell = tell
        self._safe = safe
        self._own = own
        self._left: deque[Path] = deque()
        self._now: Leftover | None = None
        self._unread: dict[Path, _Unread] = {}
        self._done: list[Path] = []  # that may not go yet
        self._list(time.monotonic())

    @property
    def empty(self) -> bool:
        """There is nothing that could be said now."""
        return not self._left

    def _list(self, now: float) -> None:
        try:
            self._left.extend(path for path in leftovers(self._directory) if not self._own(path))
        except OSError as error:
            self._failed(self._directory, error, now)

    def _failed(self, path: Path, error: OSError, now: float) -> None:
        unread = self._unread.get(path)
        if unread is None:
            text = f"{path.name} in the spool cannot be read, and is tried again: {error.strerror or error}"
            self._tell("agent.spool_unreadable", text)
            self._unread[path] = _Unread(again=now + SOONEST)
        else:
            unread.pause = min(LATEST, 2 * unread.pause)
            unread.again = now + unread.pause

    def next(self) -> Leftover | None:
        """The oldest that can be read; the same again until all of it is acknowledged."""
        now = time.monotonic()
        due = [path for path, unread in self._unread.items() if now >= unread.again]
        if self._directory in due:
            self._list(now)
        self._left.extendleft(path for path in due if path != self._directory and path not in self._left)
        while self._now is None and self._left:
            self._read(self._left[0], now)
        return self._now

    def _read(self, path: Path, now: float) -> None:
        try:
            found = read_leftover(path, self._voice)
        except FileNotFoundError:
            found = Leftover(path=path, voice=self._voice, items=())
        except OSError as error:
            self._left.popleft()
            self._failed(path, error, now)
            return
        self._unread.pop(path, None)
        if found is None:
            self._put_aside(path, "begins with nothing that could be understood")
        elif found.voice.node != self._voice.node:
            self._put_aside(path, f"is the word of {found.voice.node}, for whom this agent cannot speak")
        else:
            if found.damaged:
                text = f"{found.damaged} lines of {path.name} in the spool cannot be understood: what they said is lost"
                self._tell("agent.spool_damaged", text, lines=found.damaged)
            self._now = found
            if not found.items:
                self._remove()

    def _put_aside(self, path: Path, why: str) -> None:
        self._left.popleft()
        self._tell("agent.spool_aside", f"{path.name} in the spool {why}: it was put aside")
        with suppress(OSError):
            path.rename(path.with_suffix(ASIDE))
            for old in sorted(self._directory.glob(f"*{ASIDE}"))[:-MOST_ASIDE]:
                old.unlink(missing_ok=True)

    def acknowledge(self, path: Path, seq: int) -> None:
        found = self._now
        if found is None or found.path != path:
            return
        rest = tuple(item for item in found.items if item.seq > seq)
        if rest:
            self._now = replace(found, items=rest)
        else:
            self._remove()

    def _remove(self) -> None:
        self._now = None
        self._done.append(self._left.popleft())
        self.sweep()

    def sweep(self) -> None:
        """Removes what nobody needs any more."""
        if self._done and self._safe():
            for path in self._done:
                with suppress(OSError):
                    path.unlink(missing_ok=True)
            self._done.clear()

    def trim(self, most_bytes: int) -> None:
        """Earlier runs share the limit: what is no fault goes, oldest first; then, if need be, the oldest segments."""
        sizes = {path: size_of(path) for path in self._left}
        total = sum(sizes.values())
        thinned = dropped = 0
        told: dict[str, int] = {}
        for path in self._left if total > most_bytes and self._safe() else ():
            if total <= most_bytes:
                break
            with suppress(OSError):
                left = faults_only(path, self._voice, told)
                thinned += left < sizes[path]
                total, sizes[path] = total - sizes[path] + left, left
        while self._left and total > most_bytes:
            path = self._left.popleft()
            total -= sizes[path]
            dropped += 1
            self._done.append(path)
        self.sweep()
        if thinned or dropped:
            text = f"{dropped} parts of earlier runs' spools had no room, {thinned} were cut down to their faults"
            self._tell("agent.dropped", text, parts=dropped, thinned=thinned)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def in_a_row(items: Sequence[Item]) -> list[Item]:
    """As many as follow one another without a gap, from the first on."""
    row: list[Item] = []
    for item in items:
        if row and item.seq != row[-1].seq + 1:
            break
        row.append(item)
    return row
