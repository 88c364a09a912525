"""What the files say of each seat now; decoded only where they changed since the last look."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from sickbay.clusters.local.files import (
    BOOT_MARK,
    STALE,
    ClusterFile,
    Devices,
    LocalSeat,
    Paths,
    Rank,
    Status,
    read,
)
from sickbay.clusters.local.locks import holder
from sickbay.clusters.local.processes import find
from sickbay.model.errors import Rejected
from sickbay.model.fleet import Device, Incarnation, JobId

Thing = TypeVar("Thing")


class Cache(Generic[Thing]):
    """Files of one kind. A file is replaced as a whole, so a new one has another inode or another time."""

    def __init__(self, kind: type[Thing], *, may_be_torn: bool = False) -> None:
        self._kind = kind
        self._may_be_torn = may_be_torn
        self._known: dict[Path, tuple[tuple[int, int, int], Thing]] = {}

    def get(self, path: Path) -> Thing | None:
        try:
            stat = os.stat(path)  # noqa: PTH116 - this is the hot path: 64 seats in a few milliseconds
        except FileNotFoundError:
            self._known.pop(path, None)
            return None
        stamp = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        known = self._known.get(path)
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            thing = read(path, self._kind)  # newer than the stamp at worst: then the next look reads it again
        except msgspec.DecodeError:
            if not self._may_be_torn:
                raise
            return None
        if thing is not None:
            self._known[path] = (stamp, thing)
        return thing

    def keep(self, paths: Iterable[Path]) -> None:
        """Forget all others."""
        wanted = set(paths)
        self._known = {path: known for path, known in self._known.items() if path in wanted}


@dataclass(frozen=True, slots=True)
class SeatState:
    """One seat at one moment."""

    seat: LocalSeat
    pid: int | None  # of the supervisor, by its lock
    status: Status | None
    fresh: bool  # the last beat is not old
    came_up: bool  # this boot has been ready
    devices: tuple[Device, ...] = ()  # of the instance that is shown

    @property
    def begun(self) -> bool:
        """The boot that the seat names has spoken."""
        return self.status is not None and self.status.boot_id == self.seat.boot_id

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def ready(self) -> bool:
        return self.alive and self.begun and self.fresh and self.status is not None and self.status.ready

    @property
    def runs(self) -> bool:
        """Somebody knows which boot it is in: it lives, and it does not stand still."""
        return self.alive and (self.fresh or not self.begun)

    @property
    def shown(self) -> Incarnation:
        """A boot is not shown before it came up: a new boot id is the proof of a reboot."""
        over = self.begun and not self.alive
        return self.seat.incarnation if self.came_up or over else self.seat.previous or self.seat.incarnation

    def must_be(self, expect: Incarnation | None) -> None:
        """Refuse where another is meant. Of a machine that does not run nobody knows the boot: its holder decides."""
        now = self.seat.incarnation
        if expect is None or now.agrees(expect):
            return
        # A supervisor that was started a moment ago has no lock yet, only its mark.
        runs = self.runs or (not self.alive and bool(find(marks=[f"{BOOT_MARK}={now.boot_id}"])))
        if not runs and now.same_holder(expect):
            return
        what = "boot" if now.same_holder(expect) else "instance"
        theirs, ours = (expect.boot_id, now.boot_id) if what == "boot" else (expect.instance_id, now.instance_id)
        raise Rejected(f"node {self.seat.id} is held by {what} {ours}, not by {theirs}")

    def ranks(self, job: JobId, attempt: int, boot_id: str) -> tuple[Rank, ...]:
        everything = self.status.ranks if self.status else ()
        return tuple(rank for rank in everything if (rank.job, rank.attempt, rank.boot_id) == (job, attempt, boot_id))

    @property
    def trouble(self) -> str:
        """Why it is not ready, for people."""
        if not self.alive:
            return "down" if self.begun or self.seat.power != "on" else "not started yet"
        if not self.begun or (self.fresh and not self.came_up):
            return "booting"
        return "not answering" if not self.fresh else "shutting down"


class Looker:
    """Looks at seats. Not for two threads at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._clusters = Cache(ClusterFile)
        self._seats = Cache(LocalSeat)
        # A beat does not wait for the disk. What a power cut has torn is of a supervisor that went with the power.
        self._statuses = Cache(Status, may_be_torn=True)
        self._devices = Cache(Devices)
        # Built once: making paths would cost more than looking at what they name.
        self._files: dict[str, tuple[Path, Path, Path]] = {}
        self._hardware: dict[tuple[str, str], Path] = {}
        self._file = root / "cluster.json"
        self._came_up: dict[str, str] = {}  # seat → the boot that was ready

    def cluster(self) -> ClusterFile | None:
        return self._clusters.get(self._file)

    def look(self, name: str) -> SeatState | None:
        seat_file, alive, status_file = self._files_of(name)
        while True:
            seat = self._seats.get(seat_file)
            if seat is None:
                return None
            # The lock first: a supervisor that ends writes its last status before it lets go.
            pid = holder(alive)
            status = self._statuses.get(status_file)
            if self._seats.get(seat_file) is seat:
                break  # else a reboot went on under our eyes, and these do not belong together
        if status is not None and status.ready and status.boot_id == seat.boot_id:
            self._came_up[name] = seat.boot_id
        sight = SeatState(
            seat=seat,
            pid=pid,
            status=status,
            fresh=status is not None and time.monotonic() - status.mono < STALE,
            came_up=self._came_up.get(name) == seat.boot_id,
        )
        hardware = self._devices.get(self._devices_of(name, sight.shown.instance_id))
        return replace(sight, devices=hardware.as_seen()) if hardware else sight

    def _files_of(self, name: str) -> tuple[Path, Path, Path]:
        if name not in self._files:
            paths = Paths(self._root, name)
            self._files[name] = (paths.seat_file, paths.alive, paths.status)
        return self._files[name]

    def _devices_of(self, name: str, instance_id: str) -> Path:
        if (name, instance_id) not in self._hardware:
            self._hardware[name, instance_id] = Paths(self._root, name).devices(instance_id)
        return self._hardware[name, instance_id]
