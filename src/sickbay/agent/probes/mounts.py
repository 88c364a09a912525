"""File systems over the network: does each still answer? Whoever asks one that does not hangs, so a thread asks."""

import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sickbay.agent.setting_values import HOST
from sickbay.agent.settings import on_host
from sickbay.model.sign import Sign

REMOTE = (
    b"nfs", b"nfs4", b"lustre", b"ceph", b"gpfs", b"beegfs", b"wekafs", b"cifs", b"smb3", b"9p", b"glusterfs",
)  # fmt: skip
_OCTAL = re.compile(rb"\\([0-7]{3})")  # how the kernel writes what would end a name in its table
OWN = Path("/proc/self/mounts")
HIDDEN = "the agent's container does not show it: mount the host's / with mountPropagation: HostToContainer"
STALLED_AFTER = 30.0  # seconds; a failover of FSx or of an NFS server takes less
MOST = 64


@dataclass(slots=True)
class _Asked:
    thread: threading.Thread
    since: float
    failed: list[str] = field(default_factory=list)


class Mounts:
    """`named` are always asked; others where their kind lives on another machine. One thread each, never two."""

    def __init__(self, named: tuple[str, ...] = (), table: Path | None = None, root: str = HOST) -> None:
        """`root`: below which the machine's own tree is seen from here; its table is then that of its first process."""
        self._named = named
        self._root = root
        self._table = table or (OWN if root == HOST else on_host(root, "/proc/1/mounts"))
        self._asked: dict[str, _Asked] = {}

    def look(self, now: float) -> Iterator[Sign]:
        for place in self._places():
            asked = self._asked.get(place)
            if asked is not None and asked.thread.is_alive():
                if now - asked.since >= STALLED_AFTER:
                    text = f"{place} has not answered for more than {STALLED_AFTER:.0f} s"
                    yield Sign(kind="fs.stalled", fields={"mount": place}, text=text)
                continue
            if asked is not None and asked.failed:
                yield Sign(kind="fs.io_error", fields={"mount": place}, text=f"{place}: {asked.failed[0]}")
            failed: list[str] = []
            if place not in self._named and is_hidden(self._root, place):
                yield Sign(kind="probe.failed", fields={"mount": place}, text=f"{place}: {HIDDEN}")
                continue
            there = str(on_host(self._root, place))
            thread = threading.Thread(target=_ask, args=(there, failed), name=f"asks {place}", daemon=True)
            self._asked[place] = _Asked(thread, now, failed)
            thread.start()

    def _places(self) -> list[str]:
        remote = [place for place, kind in read_mounts(self._table).items() if is_remote(kind)]
        return list(dict.fromkeys((*self._named, *remote)))[:MOST]

    def settle(self, seconds: float) -> None:
        """Wait until those that were asked have answered: for a single look."""
        until = time.monotonic() + seconds
        for asked in self._asked.values():
            asked.thread.join(max(0.0, until - time.monotonic()))


def read_mounts(table: Path) -> dict[str, bytes]:
    """Kinds of file systems by where they are mounted; none where the table cannot be read."""
    try:
        lines = table.read_bytes().split(b"\n")
    except OSError:
        return {}
    return {
        os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), parts[1])): parts[2]
        for line in lines
        if len(parts := line.split(b" ")) > 2
    }


def is_remote(kind: bytes) -> bool:
    """Whether file systems of this kind live on another machine."""
    return kind in REMOTE or kind.startswith(b"fuse.")


def is_hidden(root: str, place: str) -> bool:
    """Whether our container does not show what the machine has mounted there: below it would be another disk's empty
    directory, which answers at once.
    """
    return root != HOST and str(on_host(root, place)) not in read_mounts(OWN)


def _ask(place: str, failed: list[str]) -> None:
    """Not only what a client remembers: the first entry has to be fetched."""
    try:
        os.statvfs(place)
        with os.scandir(place) as entries:
            next(iter(entries), None)
    except PermissionError:
        return  # it answers
    except OSError as error:
        failed.append(error.strerror or str(error))
