"""Lines that a job's output must show: by when, and how often."""

import re
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sickbay.agent.probes.log_file import LogFile
from sickbay.agent.user_files import check_plain
from sickbay.model.job import LogRule

CHUNKS = 8  # of output in one turn: a rank that writes without end does not keep the agent from everything else
LINES = 100_000  # that are searched in one turn: empty ones cost as much as others
AT_ONCE = 100
TEXT = 4096  # characters of a line that are searched
SEARCH_TAKES = 0.25  # seconds; a pattern that needs longer would keep the agent from everything else


class TooSlow(Exception):  # noqa: N818 - a state, not a mistake
    """A pattern took too long."""


class RuleWatch:
    """One rule over one rank's output."""

    def __init__(self, rule: LogRule, began: float) -> None:
        self.rule = rule
        self._began = began
        self._matched: float | None = None
        self._pattern: re.Pattern[str] | None = None
        self.trouble = ""
        try:
            self._pattern = re.compile(rule.pattern)
        except re.error as error:
            self.trouble = f"its pattern cannot be used: {error}"

    def read(self, lines: Sequence[str], now: float) -> None:
        """Lines that came at one moment; few enough that a pattern which needs long for them takes too long."""
        if self._pattern is None or (self._matched is not None and self.rule.recurs_within is None):
            return
        try:
            with _within(SEARCH_TAKES):
                found = any(map(self._pattern.search, lines))
        except TooSlow:
            self._pattern = None
            self.trouble = "its pattern takes too long"
            return
        if found:
            self._matched = now

    def restart(self, now: float) -> None:
        """We were asleep ourselves: nobody is late for it."""
        self._began = now
        if self._matched is not None:
            self._matched = now

    def late(self, now: float) -> str:
        """Why the job hangs by this rule; empty: it does not."""
        rule = self.rule
        if self._pattern is None:
            return ""
        if self._matched is None:
            if rule.starts_within is not None and now - self._began > rule.starts_within:
                return f"log rule {rule.name!r}: no line matched within {rule.starts_within:g} s of the start"
        elif rule.recurs_within is not None and now - self._matched > rule.recurs_within:
            return f"log rule {rule.name!r}: no line matched for {rule.recurs_within:g} s"
        return ""


class OutputWatch:
    """All rules of one rank."""

    def __init__(self, output: Path, rules: tuple[LogRule, ...], began: float) -> None:
        self._output = output
        self._file = LogFile(output)
        self._fetched: list[str] = []
        self.rules = [RuleWatch(rule, began) for rule in rules]
        self.trouble = ""

    def fetch(self) -> None:
        """Reads what is new: from a file that the rank may have replaced by whatever it likes."""
        try:
            check_plain(self._output)
            for _ in range(CHUNKS):
                if len(self._fetched) >= LINES:
                    break
                self._fetched.extend(text[:TEXT] for _, text in self._file.lines())
                if not self._file.behind:
                    break
        except FileNotFoundError:
            return
        except OSError as error:
            self.trouble = f"log rules: the output cannot be read: {error.strerror or error}"
        else:
            self.trouble = ""

    def read(self, now: float) -> None:
        """Searches what was fetched; a pattern that takes too long is ended in the main thread only."""
        fetched, self._fetched = self._fetched[:LINES], self._fetched[LINES:]
        for begin in range(0, len(fetched), AT_ONCE):
            for watch in self.rules:
                watch.read(fetched[begin : begin + AT_ONCE], now)

    @property
    def behind(self) -> bool:
        return self._file.behind or bool(self._fetched)

    def restart(self, now: float) -> None:
        for watch in self.rules:
            watch.restart(now)

    def late(self, now: float) -> str:
        return (
            "" if self.behind or self.trouble else next((why for watch in self.rules if (why := watch.late(now))), "")
        )

    def close(self) -> None:
        self._file.close()


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Ends a search that takes too long. `re` lets signals in, and only the main thread gets them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
        raise TooSlow

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
