"""The virtual hardware of one instance: its devices, what is wrong with them, and how that shows.

Supervisor, agent and room all change it, so every change is made under a lock of its own. Defects that some remedy
cures belong to the instance and leave with it; those that nothing cures belong to the seat (`defects.json`).
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from sickbay.clusters.local.defects import bus, catalogue, device_at, named, xid
from sickbay.clusters.local.files import Devices, Paths, Rank, VirtualDefect, VirtualDevice, read, write
from sickbay.model.fault import Remedy
from sickbay.model.job import RankState

__all__ = [
    "SYMPTOMS_AFTER",
    "Hardware",
    "blame",
    "bus",
    "catalogue",
    "create",
    "device_at",
    "hit",
    "holders",
    "named",
    "passing",
    "xid",
]

SYMPTOMS_AFTER = 0.3  # seconds from the start of a rank on a broken device until it shows

_STAMPED = re.compile(r"\[\s*\d+\.\d+\]\s?")


def create(gpus: int) -> Devices:
    """New hardware. Serial numbers are never used twice, so that a lemon's history follows the hardware."""
    board = secrets.token_hex(5)
    return Devices(devices=tuple(VirtualDevice(index=i, serial=f"{board}-{i:02d}") for i in range(gpus)))


def passing(defect: VirtualDefect) -> bool:
    """It shows once and is over, as an application's own error: there is nothing to repair."""
    return defect.cured_by is not None and defect.cured_by.rank <= Remedy.RESTART_JOB.rank


def holders(ranks: Iterable[Rank], devices: Iterable[int] = ()) -> tuple[Rank, ...]:
    """The running ranks that hold any of these devices; none named: all running ranks."""
    wanted = frozenset(devices)
    return tuple(
        rank for rank in ranks if rank.state is RankState.RUNNING and (not wanted or wanted.intersection(rank.devices))
    )


def hit(defect: VirtualDefect, ranks: Iterable[Rank]) -> tuple[Rank, ...]:
    """The running ranks that meet this defect: those on its device, or, where it is the node's, all."""
    return holders(ranks, () if defect.device is None else (defect.device,))


def blame(defect: VirtualDefect) -> str:
    """What a rank died of, for people."""
    where = "the node" if defect.device is None else f"GPU {defect.device}"
    return f"{where} is broken: {defect.name.replace('_', ' ')}"


class Hardware:
    """The hardware of one instance on a seat. Every method may be called from any process at any time."""

    def __init__(self, paths: Paths, instance_id: str) -> None:
        self._file = paths.devices(instance_id)
        self._seat_file = paths.defects
        self._lock_file = paths.seat / "hardware.lock"
        self._paths = paths
        self._instance_id = instance_id

    def ensure(self, gpus: int) -> Devices:
        """The devices; new ones where there are none yet."""
        with self._locked():
            for torn in self._file.parent.glob(f".{self._file.name}.*"):
                torn.unlink(missing_ok=True)  # left by somebody who was killed while writing, as we hold the lock now
            there = read(self._file, Devices)
            if there is None:
                there = create(gpus)
                write(self._file, there)
            return there

    def devices(self) -> Devices:
        return read(self._file, Devices) or Devices(devices=())

    def defects(self) -> tuple[VirtualDefect, ...]:
        """All that is wrong here now, the seat's own defects included."""
        return self.devices().defects + self._of_seat()

    def inject(self, defect: VirtualDefect) -> None:
        """Put it in. The same defect on the same device twice is one. It does not show before `show`."""
        if passing(defect):
            return
        with self._locked():
            if defect.cured_by is None:
                write(self._seat_file, _with(self._of_seat(), defect))
            else:
                now = self.devices()
                write(self._file, replace(now, defects=_with(now.defects, defect)))

    def show(self, defect: VirtualDefect, boot_id: str, *, pid: int = 0, name: str = "") -> None:
        """Its symptoms, once: kernel lines and counters. Whether ranks die of it is the supervisor's part.

        `pid` and `name` are those of the process that met it.
        """
        self.log(boot_id, defect.lines, pid=pid, name=name)
        with self._locked():
            now = self.devices()
            shaken = tuple(
                replace(device, errors=device.errors + 1) if device.index == defect.device else device
                for device in now.devices
            )
            if shaken != now.devices:
                write(self._file, replace(now, devices=shaken))

    def cure(self, remedy: Remedy, devices: Iterable[int] = ()) -> tuple[VirtualDefect, ...]:
        """What this remedy takes away: all of it, or, where devices are named, theirs only. Returns what it cured."""
        only = frozenset(devices)
        with self._locked():
            now = self.devices()
            cured = tuple(
                defect
                for defect in now.defects
                if defect.cured_by is not None
                and defect.cured_by.rank <= remedy.rank
                and (not only or defect.device in only)
            )
            fresh = tuple(
                replace(device, errors=0) if not only or device.index in only else device for device in now.devices
            )
            left = tuple(defect for defect in now.defects if defect not in cured)
            after = replace(now, devices=fresh, defects=left)
            if after != now:
                write(self._file, after)
            return cured

    def begin_boot(self, boot_id: str) -> None:
        """A fresh kernel log. What an earlier start of the same boot wrote stays."""
        kmsg = self._paths.kmsg(self._instance_id, boot_id)
        kmsg.parent.mkdir(parents=True, exist_ok=True)
        began = kmsg.with_name("began")
        if not began.exists():
            write(began, time.monotonic())
        if not kmsg.exists():
            self.log(boot_id, ("Linux version 6.8.0 (virtual node) #1 SMP PREEMPT_DYNAMIC",))

    def log(self, boot_id: str, lines: Iterable[str], *, pid: int = 0, name: str = "") -> None:
        """Write lines into the kernel log, stamped with the seconds since boot. One write: lines never interleave."""
        kmsg = self._paths.kmsg(self._instance_id, boot_id)
        since = time.monotonic() - (read(kmsg.with_name("began"), float) or 0.0)
        words = (("{pid}", str(pid or "'<unknown>'")), ("{name}", name or "<unknown>"))
        text = ""
        for line in (part for given in lines for part in given.splitlines() if part.strip()):
            bare = _STAMPED.sub("", line, count=1) if _STAMPED.match(line) else line
            for word, meaning in words:
                bare = bare.replace(word, meaning)
            text += f"[{since:12.6f}] {bare}\n"
        if text:
            kmsg.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(kmsg, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, text.encode())
            finally:
                os.close(handle)

    def _of_seat(self) -> tuple[VirtualDefect, ...]:
        return read(self._seat_file, tuple[VirtualDefect, ...]) or ()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._lock_file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # flock, not lockf: it belongs to the open file, so two threads of one process exclude one another too.
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            with suppress(OSError):
                os.close(handle)


def _with(defects: tuple[VirtualDefect, ...], new: VirtualDefect) -> tuple[VirtualDefect, ...]:
    others = tuple(defect for defect in defects if (defect.name, defect.device) != (new.name, new.device))
    return (*others, new)
