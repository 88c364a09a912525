"""/dev/kmsg: the kernel's own ring, record by record, from its start after a boot."""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sickbay.agent.probes.kernel_log import LogLine
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun
from sickbay.signs.prefixes import Peeled

KMSG = Path("/dev/kmsg")
NAME = "devkmsg"
RECORD = 1 << 14  # bytes: the kernel refuses a smaller buffer than its record, and prints none of this size
KERN = 0  # the facility
AT_ONCE = 4000  # records in one turn
LOST_TWICE = 64  # a ring that is overwritten faster than it is read


class KmsgPlace(Noun):
    boot_id: str
    seq: int = -1  # of the last record that was read
    stamp: float = 0.0  # its time by the ring's clock: the journal of an ended boot is read from there on
    trusted: bool = False  # what programs wrote counted


class Kmsg:
    """`read` reads one record from a handle; a test has no other way to lose records on purpose.

    Programs that may write to /dev/kmsg stand in the ring as well, under a facility that is not the kernel's.
    `trusted`: they count all the same. `heard`: a place with nothing before it that waited for a witness.
    """

    name = NAME
    witness = True
    rereading = False  # it has no place until what was told has been read again

    def __init__(
        self,
        node: NodeId,
        place: KmsgPlace,
        path: Path = KMSG,
        read: Callable[[int, int], bytes] = os.read,
        *,
        trusted: bool = False,
        heard: KmsgPlace | None = None,
    ) -> None:
        self._node = node
        self._boot_id = place.boot_id
        self._path = path
        self._read = read
        self._handle: int | None = None
        self._trusted = trusted
        self._turned = trusted != place.trusted
        self._last = place.seq
        self._told = place.seq  # the last that an earlier run has read: what it told is remembered, not told again
        self._heard = (heard or place).seq  # up to here nothing of what is not the kernel's waited for a witness
        self._stamp = place.stamp
        self._live = False  # everything that was there when we came has been read
        self._drift = 0.0  # of the ring's clock, which nobody corrects, against ours
        self.behind = False

    def lines(self, now: float) -> Iterator[LogLine | Observed]:
        handle = self._open()
        broken = 0
        for _ in range(AT_ONCE):
            try:
                record = self._read(handle, RECORD)
            except BlockingIOError:
                self._caught_up()
                return
            except OSError as error:
                # EPIPE: the record that we wanted was overwritten; the next read goes on with the oldest there is, and
                # the gap in the numbers says how many were lost. EINVAL: one that is longer than any buffer.
                if error.errno in {errno.EPIPE, errno.EINVAL} and broken < LOST_TWICE:
                    broken += 1
                    continue
                self.close()
                raise
            if not record:
                self._caught_up()
                return
            yield from self._record(record, now)
        self.behind = True

    def _caught_up(self) -> None:
        self._live, self.behind, self._told = True, False, -1

    def _open(self) -> int:
        if self._handle is None:
            try:
                self._handle = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except PermissionError as error:
                why = "not permitted: run the agent as root, or give it CAP_SYSLOG"
                raise PermissionError(error.errno, why, str(self._path)) from None
            self._live = False
        return self._handle

    def _record(self, record: bytes, now: float) -> Iterator[LogLine | Observed]:
        head, semicolon, rest = record.decode(errors="replace").partition(";")
        words = head.split(",")
        if not semicolon or len(words) < 3 or not (words[1].isdecimal() and words[2].isdecimal()):
            return
        seq, stamp = int(words[1]), int(words[2]) / 1e6
        # What follows in lines of their own that begin with a space is the record's dictionary.
        line = LogLine(_plain(rest.partition("\n")[0]), stamp, NAME, seq, told=seq <= self._told)
        line = line._replace(**self._speaker(words))
        if self._turned and not line.bare:  # it did not count then: it waited at most
            line = line._replace(told=seq <= self._heard)
        if seq <= self._last:
            if seq <= self._told and (line.proven or seq > self._heard):
                yield line
            return
        self._heard = max(self._heard, self._told)
        missing = seq - self._last - 1
        self._last, self._stamp = seq, stamp
        if missing:
            yield self._lost(missing, seq)
        yield line._replace(mono=self._when(stamp, now))

    def _speaker(self, words: Sequence[str]) -> dict[str, Any]:
        """The kernel itself is told by its facility, which no program can write there.

        The flag of a piece says nothing: NVIDIA's driver prints whole lines as pieces, and no piece of the kernel's
        begins with what a program chose.
        """
        if words[0].isdecimal() and int(words[0]) >> 3 == KERN:
            return {"proven": True, "bare": True}
        return {"proven": self._trusted, "by": "a program that writes to /dev/kmsg"}

    def _when(self, stamp: float, now: float) -> float:
        """A record that arrives while we wait happened now, which also tells how far the ring's clock has strayed."""
        if self._live:
            self._drift = now - stamp
            return now
        return min(now, stamp + self._drift)

    def _lost(self, missing: int, seq: int) -> Observed:
        text = f"{missing} lines of the kernel log were overwritten before they could be read"
        return Observed(node=self._node, kind="agent.lines_lost", fields={"lost": missing, "before": seq}, text=text)

    def judged(self, line: LogLine, peeled: Peeled, now: float) -> LogLine:  # noqa: ARG002 - a Source's
        return line

    def place(self) -> KmsgPlace | None:
        if self._heard < self._told:
            return None
        return KmsgPlace(boot_id=self._boot_id, seq=self._last, stamp=self._stamp, trusted=self._trusted)

    @property
    def handle(self) -> int | None:
        return self._handle

    watched = None

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _plain(text: str) -> str:
    r"""The kernel writes what is not printable, and a backslash, as \x0a: what can end a line stays as it is."""
    return _ESCAPED.sub(_character, text) if "\\x" in text else text


_ESCAPED = re.compile(r"(?:\\x[0-9a-f]{2})+")


def _character(found: re.Match[str]) -> str:
    plain = bytes.fromhex(found[0].replace("\\x", "")).decode(errors="replace")
    return plain if plain.isprintable() else found[0]
