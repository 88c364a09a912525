"""journald: the kernel's lines as `journalctl` tells them, and the last words of the boot before.

Read where the ring itself may not be; and, whoever reads the ring, once after a new boot: what the kernel said when
nobody listened any more is in the journal of the boot that ended.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from sickbay.agent.probes.kernel_log import LogLine
from sickbay.knowledge.prefixes import Peeled
from sickbay.model.facts import Observed
from sickbay.model.noun import Noun

NAME = "journal"
CHUNK = 1 << 16
CHUNKS = 64  # read in one turn
LONGEST = 1 << 20  # bytes of one entry; the rest of a longer one is skipped
FIRST_WORD = 2.0  # seconds
PAUSE = 5.0  # seconds before a journalctl that ended is started again
LAST_WORDS_TAKE = 20.0  # seconds
MOST_LAST_WORDS = 200_000  # lines


class JournalPlace(Noun):
    boot_id: str
    cursor: str = ""


class Entry(msgspec.Struct):
    """One entry of `journalctl -o json`. A message that is no text comes as a list of bytes."""

    MESSAGE: str | list[int] | None = None
    cursor: str = msgspec.field(name="__CURSOR", default="")
    wall: str = msgspec.field(name="__REALTIME_TIMESTAMP", default="")
    mono: str = msgspec.field(name="__MONOTONIC_TIMESTAMP", default="")
    ring: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")
    boot: str = msgspec.field(name="_BOOT_ID", default="")

    @property
    def text(self) -> str:
        if isinstance(self.MESSAGE, list):
            return bytes(byte for byte in self.MESSAGE if 0 <= byte < 256).decode(errors="replace")
        return self.MESSAGE or ""

    @property
    def seq(self) -> tuple[str, int | None]:
        """The journal's own count, which its cursor carries: who counts, and how far."""
        words = dict(part.partition("=")[::2] for part in self.cursor.split(";"))
        with suppress(ValueError):
            return words.get("s", "")[:8], int(words.get("i", ""), 16)
        return "", None


_DECODE = msgspec.json.Decoder(Entry)


def available() -> bool:
    return shutil.which("journalctl") is not None


class Journal:
    """Follows the journal through a `journalctl` of its own; one that ends is started again where it was."""

    name = NAME

    def __init__(self, place: JournalPlace, command: Sequence[str] = ("journalctl",)) -> None:
        self._boot_id = place.boot_id
        self._cursor = place.cursor
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._partial = b""
        self._skipping = False
        self._start_after = 0.0
        self._spoken, self._began = False, 0.0
        self.behind = False

    def lines(self, now: float) -> Iterator[LogLine | Observed]:
        if self._process is None:
            if now < self._start_after:
                return
            self._start()
            self._spoken, self._began = False, now
        assert self._process is not None
        assert self._process.stdout is not None
        for _ in range(CHUNKS):
            try:
                data = os.read(self._process.stdout.fileno(), CHUNK)
            except BlockingIOError:
                # A journalctl takes a moment to begin: until then nobody has read through anything.
                self.behind = not self._spoken and now < self._began + FIRST_WORD
                return
            if not data:
                self._ended(now)
            self._spoken = True
            yield from self._entries(data, now)
        self.behind = True

    def _start(self) -> None:
        # Without a place: this boot from its start, so that what came before the agent is seen.
        since = ("--after-cursor", self._cursor) if self._cursor else ("--boot",)
        words = [*self._command, "-k", "-o", "json", "--no-pager", "--quiet", "--follow", "--no-tail", *since]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - journalctl, no shell
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {self._command[0]} here") from None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._partial, self._skipping = b"", False

    def _ended(self, now: float) -> None:
        assert self._process is not None
        self.close()
        self._start_after = now + PAUSE
        raise OSError("journalctl has ended; it is started again")

    def _entries(self, data: bytes, now: float) -> Iterator[LogLine | Observed]:
        *whole, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > LONGEST:
            self._partial, self._skipping = b"", True
        for line in whole:
            if self._skipping:
                self._skipping = False
                continue
            entry = decoded(line)
            if entry is None or not entry.cursor:
                continue
            self._cursor = entry.cursor
            yield _line(entry, now)

    def moment(self, line: LogLine, peeled: Peeled, now: float) -> float:  # noqa: ARG002 - a Source's
        return line.mono

    def place(self) -> JournalPlace:
        return JournalPlace(boot_id=self._boot_id, cursor=self._cursor)

    @property
    def handle(self) -> int | None:
        return None if self._process is None or self._process.stdout is None else self._process.stdout.fileno()

    watched = None

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def decoded(line: bytes) -> Entry | None:
    """None: this is no entry."""
    try:
        return _DECODE.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def _line(entry: Entry, now: float) -> LogLine:
    counter, seq = entry.seq
    # The moment when journald took it, by the clock that is ours too; the ring's own clock is corrected by nobody.
    at = min(now, int(entry.mono) / 1e6) if entry.mono.isdecimal() else now
    return LogLine(entry.text, at, f"{NAME}+{counter}" if counter else NAME, seq)


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
    within: float = LAST_WORDS_TAKE,
) -> LastWords:
    """What the kernel said in that boot after `cursor`, or after `stamp` seconds of the ring's clock.

    Raises OSError.
    """
    since = ("--after-cursor", cursor) if cursor else ()
    words = [*command, "-k", "-o", "json", "--no-pager", "--quiet", f"--boot={boot_id.replace('-', '')}", *since]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=within, check=False)  # noqa: S603 - journalctl, no shell
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"the journal of the last boot could not be read within {within:g} s") from None
    found, zero = LastWords([], 0.0), 0.0
    for line in done.stdout.split(b"\n")[-MOST_LAST_WORDS:]:
        entry = decoded(line) if line else None
        if entry is None or not entry.cursor:
            continue
        if entry.wall.isdecimal() and entry.mono.isdecimal():
            zero = (int(entry.wall) - int(entry.mono)) / 1e6
        if not stamp or (entry.ring.isdecimal() and int(entry.ring) / 1e6 > stamp):
            found.lines.append(_line(entry, float("inf")))
    return found._replace(zero=zero)
