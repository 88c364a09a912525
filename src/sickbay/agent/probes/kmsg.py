"""/dev/kmsg: the kernel's own ring, record by record, from its start after a boot."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sickbay.agent.probes.kernel_log import LogLine
from sickbay.knowledge.prefixes import Peeled
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun

KMSG = Path("/dev/kmsg")
NAME = "devkmsg"
RECORD = 1 << 14  # bytes: the kernel refuses a smaller buffer than its record, and prints none of this size
AT_ONCE = 4000  # records in one turn
LOST_TWICE = 64  # a ring that is overwritten faster than it is read


class KmsgPlace(Noun):
    boot_id: str
    seq: int = -1  # of the last record that was read
    stamp: float = 0.0  # its time by the ring's clock: the journal of an ended boot is read from there on


class Kmsg:
    """`read` reads one record from a handle; a test has no other way to lose records on purpose."""

    name = NAME

    def __init__(
        self, node: NodeId, place: KmsgPlace, path: Path = KMSG, read: Callable[[int, int], bytes] = os.read
    ) -> None:
        self._node = node
        self._boot_id = place.boot_id
        self._path = path
        self._read = read
        self._handle: int | None = None
        self._last = place.seq
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
                self._live, self.behind = True, False
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
                self._live, self.behind = True, False
                return
            yield from self._record(record, now)
        self.behind = True

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
        if seq <= self._last:
            return  # read by an earlier run of this boot
        missing = seq - self._last - 1
        self._last, self._stamp = seq, stamp
        if missing:
            yield self._lost(missing, seq)
        # What follows in lines of their own that begin with a space is the record's dictionary.
        text = rest.partition("\n")[0]
        yield LogLine(_plain(text), self._when(stamp, now), NAME, seq)

    def _when(self, stamp: float, now: float) -> float:
        """A record that arrives while we wait happened now, which also tells how far the ring's clock has strayed."""
        if self._live:
            self._drift = now - stamp
            return now
        return min(now, stamp + self._drift)

    def _lost(self, missing: int, seq: int) -> Observed:
        text = f"{missing} lines of the kernel log were overwritten before they could be read"
        return Observed(node=self._node, kind="agent.lines_lost", fields={"lost": missing, "before": seq}, text=text)

    def moment(self, line: LogLine, peeled: Peeled, now: float) -> float:  # noqa: ARG002 - a Source's
        return line.mono

    def place(self) -> KmsgPlace:
        return KmsgPlace(boot_id=self._boot_id, seq=self._last, stamp=self._stamp)

    @property
    def handle(self) -> int | None:
        return self._handle

    watched = None

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _plain(text: str) -> str:
    r"""The kernel writes what is not printable as \x0a."""
    if "\\x" not in text:
        return text
    parts = text.split("\\x")
    plain = [parts[0]]
    for part in parts[1:]:
        code = part[:2]
        try:
            plain.append(chr(int(code, 16)) + part[2:] if len(code) == 2 else f"\\x{part}")
        except ValueError:
            plain.append(f"\\x{part}")
    return "".join(plain).replace("\n", " ")
