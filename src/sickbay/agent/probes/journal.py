"""journald: the kernel's lines as `journalctl` tells them. Read where the ring itself may not be."""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from sickbay.agent.probes.kernel_log import LogLine
from sickbay.model.facts import Observed
from sickbay.model.noun import Noun
from sickbay.signs.prefixes import Peeled

NAME = "journal"
CHUNK = 1 << 16
CHUNKS = 64  # read in one turn
LONGEST = 1 << 20  # bytes of one entry; the rest of a longer one is skipped
KERN = "0"
FIRST_WORD = 2.0  # seconds
PAUSE = 5.0  # seconds before a journalctl that ended is started again
MUTE = 30.0  # seconds after which a journal without a single line of this boot is one that may not be read


class JournalPlace(Noun):
    boot_id: str
    cursor: str = ""


class JournalEntry(msgspec.Struct):
    """One entry of `journalctl -o json`. A message that is no text comes as a list of bytes."""

    MESSAGE: str | list[int] | None = None
    cursor: str = msgspec.field(name="__CURSOR", default="")
    wall: str = msgspec.field(name="__REALTIME_TIMESTAMP", default="")
    mono: str = msgspec.field(name="__MONOTONIC_TIMESTAMP", default="")
    ring: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")
    boot: str = msgspec.field(name="_BOOT_ID", default="")
    machine: str = msgspec.field(name="_MACHINE_ID", default="")
    transport: str = msgspec.field(name="_TRANSPORT", default="")
    facility: str = msgspec.field(name="SYSLOG_FACILITY", default="")

    def by_kernel(self, boots: Collection[str], machine: str | None = None) -> bool:
        """By the fields that journald writes itself: of the ring, of this boot, by no program that wrote there."""
        # Of what comes from the ring journald sets the facility, too; elsewhere a program may.
        kernel = self.transport == "kernel" and self.facility == KERN
        return kernel and self.boot in boots and self.machine in {"", own_machine() if machine is None else machine}

    @property
    def text(self) -> str:
        if isinstance(self.MESSAGE, list):
            return bytes(byte for byte in self.MESSAGE if 0 <= byte < 256).decode(errors="replace")
        return self.MESSAGE or ""

    @property
    def seq(self) -> tuple[str, int | None]:
        """The journal's own count, which its cursor carries: who counts, and how far."""
        return counted(self.cursor)


def counted(cursor: str) -> tuple[str, int | None]:
    words = dict(part.partition("=")[::2] for part in cursor.split(";"))
    with suppress(ValueError):
        return words.get("s", "")[:8], int(words.get("i", ""), 16)
    return "", None


_DECODE = msgspec.json.Decoder(JournalEntry)


@cache
def own_machine(file: Path = Path("/etc/machine-id")) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def available() -> bool:
    return shutil.which("journalctl") is not None


class JournalFollower:
    """Follows the journal through a `journalctl` of its own; one that ends is started again where it was."""

    name = NAME
    witness = True
    rereading = False  # it has no place until what was told has been read again

    def __init__(
        self,
        place: JournalPlace,
        command: Sequence[str] = ("journalctl",),
        boots: Collection[str] = (),
        told: JournalPlace | None = None,
        *,
        machine: str | None = None,
    ) -> None:
        """`boots`: further names of this boot, where the agent calls it by another than the kernel does.

        `machine`: its id in its journal; None: that of the system we run on, which in a container is not the machine's.
        `place`: where it is read from. `told`: how far an earlier run has told all but what waited for a witness.
        """
        self._boot_id = place.boot_id
        self._boots = frozenset(boot.replace("-", "") for boot in (place.boot_id, *boots))
        told = told or place
        self._told = None if told == place else counted(told.cursor)
        self._cursor = place.cursor
        self._command = tuple(command)
        self._machine = machine
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
                if not self._cursor and now > self._began + MUTE:  # each boot begins with lines of the kernel
                    raise PermissionError(
                        "journalctl shows no line of this boot: run the agent as root or in the group systemd-journal"
                    ) from None
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
            yield line_of(entry, now, self._boots, self._machine)._replace(told=self._was_told(entry))

    def _was_told(self, entry: JournalEntry) -> bool:
        (counter, seq), told = entry.seq, self._told
        before = told is not None and told[0] == counter and seq is not None and seq <= (told[1] or 0)
        if told is not None and (not before or seq == told[1]):
            self._told = None
        return before

    def judged(self, line: LogLine, peeled: Peeled, now: float) -> LogLine:  # noqa: ARG002 - a Source's
        return line

    def place(self) -> JournalPlace | None:
        return None if self._told is not None else JournalPlace(boot_id=self._boot_id, cursor=self._cursor)

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


def decoded(line: bytes) -> JournalEntry | None:
    """None: this is no entry."""
    try:
        return _DECODE.decode(line)
    except (msgspec.MsgspecError, ValueError):
        return None


def line_of(entry: JournalEntry, now: float, boots: Collection[str], machine: str | None = None) -> LogLine:
    counter, seq = entry.seq
    # The moment when journald took it, by the clock that is ours too; the ring's own clock is corrected by nobody.
    at = min(now, int(entry.mono) / 1e6) if entry.mono.isdecimal() else now
    proven = entry.by_kernel(boots, machine)
    source = f"{NAME}+{counter}" if counter else NAME
    return LogLine(entry.text, at, source, seq, proven=proven, bare=proven, by="an entry of the journal")
