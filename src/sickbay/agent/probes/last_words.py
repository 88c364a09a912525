"""The last words of a boot that has ended, as a stream from its journal: what the kernel said when nobody listened."""

import os
import re
import select
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from sickbay.agent.probes.journal import decoded, line_of
from sickbay.agent.probes.kernel_log import LogLine
from sickbay.signs.scanner import lines_of_interest

TAKES = 20.0  # seconds
CHUNK = 1 << 18
MOST = 2000  # lines that may mean something, the newest
LONGEST = 1 << 15  # bytes of an entry; the kernel's lines are short

# A message that is no text stands in the stream as a list of numbers, and one with quotes has them escaped: in neither
# are words found.
_UNREADABLE = re.compile(rb'\n[^\n]*(?:"MESSAGE"\s*:\s*\[|\\")[^\n]*')


class LastWords(NamedTuple):
    """Lines of a boot that has ended, dated by its own clock, and the wall time at which that clock was 0."""

    lines: list[LogLine]
    zero: float


def last_words(
    boot_id: str,
    *,
    cursor: str = "",
    stamp: float = 0.0,
    command: Sequence[str] = ("journalctl",),
    within: float = TAKES,
    machine: str | None = None,
) -> LastWords:
    """What the kernel said in that boot after `cursor`, or after `stamp` seconds of the ring's clock.

    A boot may have said millions of lines: of those that may mean something the newest are kept. Raises OSError.
    """
    since = ("--after-cursor", cursor) if cursor else ()
    boot = boot_id.replace("-", "")
    words = [*command, "-k", "-o", "json", "--no-pager", "--quiet", f"--boot={boot}", *since]
    found: deque[LogLine] = deque(maxlen=MOST)
    zero = 0.0
    with _Reader(words, within) as reader:
        for line in reader.entries():
            entry = decoded(line)
            if entry is None or not entry.cursor:
                continue
            if entry.wall.isdecimal() and entry.mono.isdecimal():
                zero = (int(entry.wall) - int(entry.mono)) / 1e6
            if not stamp or (entry.ring.isdecimal() and int(entry.ring) / 1e6 > stamp):
                found.append(line_of(entry, float("inf"), (boot, boot_id), machine))
    return LastWords(list(found), zero)


class _Reader:
    """What a process prints within so many seconds; it is ended with the block."""

    def __init__(self, words: Sequence[str], within: float) -> None:
        self._within = within
        self._until = time.monotonic() + within
        self._process = subprocess.Popen(  # noqa: S603 - journalctl, no shell
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def entries(self) -> Iterator[bytes]:
        """Those that may mean something: to decode each of millions takes minutes."""
        rest, skipping = b"", False
        for data in self._chunks():
            whole, newline, rest = (rest + data).rpartition(b"\n")
            if skipping and newline:
                whole, skipping = whole.partition(b"\n")[2], False
            yield from _of_interest(whole)
            if len(rest) > LONGEST or skipping:
                rest, skipping = b"", True
        yield from _of_interest(rest)

    def _chunks(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while True:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                raise TimeoutError(f"the journal of the last boot could not be read within {self._within:g} s")
            data = os.read(handle, CHUNK)
            if not data:
                return
            yield data


def _of_interest(lines: bytes) -> Iterator[bytes]:
    if not lines:
        return
    spans = set(lines_of_interest(lines))
    unreadable = _UNREADABLE.finditer(b"\n" + lines)
    spans.update((found.start(), found.end() - 1) for found in unreadable)
    for begin, end in sorted(spans):
        if end - begin <= LONGEST:
            yield lines[begin:end]
