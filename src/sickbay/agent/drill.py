"""Fault injection (a fire drill): one line in a watched text log, as the daemon that writes it would have."""

import os
import time
from pathlib import Path
from threading import Lock

import msgspec

from sickbay.agent.commands import Refuse
from sickbay.model.noun import Noun
from sickbay.signs.kernel import parse_line
from sickbay.wire.files import replace_file

LONGEST_LINE = 2000
KEPT = 20  # drills that are known by their place
# Months are written in English whatever the locale says: that is what daemons do by default.
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class DrillLine(Noun):
    """The very line: in which file, where it begins, what it says. Nobody else can have written at that place."""

    inode: int
    at: int
    text: str


class Drills:
    """Which lines of a text log this agent wrote itself: they count, as an operator has asked for them.

    `file` keeps them for the next run of the agent, which may be the one that reads them.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()  # orders are carried out in threads of their own
        self._written: tuple[DrillLine, ...] = ()
        try:
            self._written = msgspec.json.decode(file.read_bytes(), type=tuple[DrillLine, ...])
        except (OSError, msgspec.MsgspecError):
            self._written = ()

    def inject(self, path: Path, line: str, host: str = "") -> str:
        """One line, dated now, as a log daemon would write it. Raises Refuse for what the kernel does not say."""
        text = _worded(line, host)
        data = text.encode() + b"\n"
        with self._lock:  # whoever reads the line waits until it is known
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(handle, data)
                at = os.lseek(handle, 0, os.SEEK_CUR) - len(data)
                self._keep(DrillLine(inode=os.fstat(handle).st_ino, at=at, text=text))
            finally:
                os.close(handle)
        return text

    def wrote(self, inode: int, at: int, text: str) -> bool:
        with self._lock:
            return any((one.inode, one.at, one.text) == (inode, at, text) for one in self._written)

    def _keep(self, one: DrillLine) -> None:
        self._written = (*self._written, one)[-KEPT:]
        try:
            replace_file(self._file, msgspec.json.encode(self._written), durable=False)
        except OSError:
            return  # a full disk: then this run knows it, and the next does not


def _worded(line: str, host: str) -> str:
    body = " ".join(line.split())
    if not body or len(body) > LONGEST_LINE:
        raise Refuse(f"a line of 1 to {LONGEST_LINE} characters can be written")
    if parse_line(body) is None:
        raise Refuse(f"the kernel says no such thing: {body[:100]!r}; write for example "
                     "'NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus.'")  # fmt: skip
    now = time.localtime()
    name = host or os.uname().nodename.partition(".")[0]
    return f"{MONTHS[now.tm_mon - 1]} {now.tm_mday:2d} {time.strftime('%H:%M:%S', now)} {name} kernel: {body}"
