"""The machine room: the seats of a local cluster, and power over the supervisors in them."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace

from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import BOOT_MARK, ClusterFile, LocalSeat, Paths, SeatPower, Status, read, write
from sickbay.clusters.local.locks import held, holder
from sickbay.clusters.local.processes import find, kill
from sickbay.model.errors import BadInput, Gone, Unknown
from sickbay.model.fault import Remedy
from sickbay.wire.files import replace_file

SUPERVISOR = "sickbay.clusters.local.supervisor"
POLITE = 8.0  # seconds: a supervisor gives its ranks five of them
LOG_SIZE = 1 << 20
_LOOK = 0.02  # seconds between two looks at what is ending
_SHOWS_WITHIN = 1.0  # seconds
_KILL_WITHIN = 30.0  # seconds; what does not die of SIGKILL hangs in the kernel
# Of whoever switches the room on: not for the machines in it.
_PRIVATE = ("SICKBAY_TOKEN", "SICKBAY_RANK", "SICKBAY_JOB_ID", "SICKBAY_ATTEMPT", "SICKBAY_HEARTBEAT", BOOT_MARK)

# Supervisors that this process has started: they are its children, whichever Room started them.
_children: dict[int, subprocess.Popen[bytes]] = {}


def new_instance() -> str:
    return f"i-{secrets.token_hex(8)}"


def new_boot() -> str:
    return str(uuid4())


class Rack:
    def __init__(self, root: Path | str, patience: float | None = None) -> None:
        """`patience`: seconds that `held` waits for a seat which another has in hand; None: for ever."""
        self.root = Path(root).absolute()
        self._patience = patience
        self._file = self.root / "cluster.json"

    # --- what there is
    def create(self, cluster_id: str, nodes: int, gpus: int, pool: str, boot_takes: float = 1.0) -> None:
        """Make the seats. Again: more nodes add seats; what contradicts the seats that are there is refused."""
        if nodes < 1 or gpus < 0 or boot_takes < 0:
            raise BadInput(f"a cluster needs at least one node, and no negative number (nodes {nodes}, gpus {gpus})")
        if not cluster_id or "/" in cluster_id:
            raise BadInput(f"{cluster_id!r} cannot name a cluster: write a word without /")
        self.root.mkdir(parents=True, exist_ok=True)
        with held(self.root / "room.lock"):
            there = read(self._file, ClusterFile)
            if there is not None:
                self._agree(there, cluster_id, nodes, gpus, pool)
            fifo(self.root / "wake")
            listed = there.seats if there else ()
            names = (*listed, *(f"node-{number}" for number in range(len(listed), nodes)))
            for name in names[len(listed) :]:
                self._furnish(name, cluster_id, gpus, pool)
            # The list comes last: a seat that is not in it does not exist, whatever lies in its directory.
            controller, ca = (there.controller, there.ca) if there else ("", "")
            whole = ClusterFile(id=cluster_id, seats=names, controller=controller, ca=ca, boot_takes=boot_takes)
            if whole != there:
                write(self._file, whole)

    def _agree(self, there: ClusterFile, cluster_id: str, nodes: int, gpus: int, pool: str) -> None:
        first = self.seat(there.seats[0])
        for what, is_, asked in (
            ("is named", there.id, cluster_id),
            ("has GPUs per node:", first.gpus, gpus),
            ("has its nodes in pool", first.pool, pool),
        ):
            if is_ != asked:
                raise BadInput(
                    f"the cluster in {self.root} {what} {is_}, not {asked}; "
                    "ask for what is there, or start afresh in another directory (--state DIR)"
                )
        if nodes < len(there.seats):
            raise BadInput(
                f"the cluster in {self.root} has {len(there.seats)} nodes and does not shrink to {nodes}: "
                f"write --nodes {len(there.seats)}, or start afresh in another directory (--state DIR)"
            )

    def _furnish(self, name: str, cluster_id: str, gpus: int, pool: str) -> None:
        paths = self.paths(name)
        seat = LocalSeat(
            name=name,
            cluster=cluster_id,
            pool=pool,
            gpus=gpus,
            instance_id=new_instance(),
            boot_id=new_boot(),
            power=SeatPower.OFF,
        )
        for directory in (paths.orders, paths.repairs):
            directory.mkdir(parents=True, exist_ok=True)
        fifo(paths.wake)
        Hardware(paths, seat.instance_id).ensure(gpus)
        write(paths.seat_file, seat)

    def file(self) -> ClusterFile:
        there = read(self._file, ClusterFile)
        if there is None:
            raise BadInput(f"there is no cluster in {self.root}: start one with `sickbay up`")
        return there

    def exists(self) -> bool:
        return self._file.exists()

    def names(self) -> tuple[str, ...]:
        return self.file().seats

    def paths(self, name: str) -> Paths:
        return Paths(self.root, name)

    def seat(self, name: str) -> LocalSeat:
        seat = read(self.paths(name).seat_file, LocalSeat)
        if seat is None:
            raise Gone(f"there is no seat {name}")
        return seat

    @contextmanager
    def held(self, name: str) -> Iterator[LocalSeat]:
        """The seat, while nobody else changes it. Everything that writes seat.json or starts a boot holds it."""
        if name not in self.names():
            raise Gone(f"there is no node {name} in this cluster")
        with held(self.paths(name).seat / "seat.lock", self._patience):
            yield self.seat(name)

    def save(self, seat: LocalSeat) -> None:
        """Only while it is held."""
        write(self.paths(seat.name).seat_file, seat)

    def url(self, url: str, ca: str = "") -> None:
        """Where agents report to, and the certificate that they trust besides those of the system."""
        with held(self.root / "room.lock"):
            there = self.file()
            if (there.controller, there.ca) != (url, ca):
                write(self._file, replace(there, controller=url, ca=ca))

    def token(self, name: str, secret: str) -> None:
        """The credential of the agent on a seat."""
        replace_file(self.paths(name).token, secret.encode())

    # --- power
    def alive(self, name: str) -> bool:
        """Whether a supervisor lives there, by the lock that dies with it."""
        reap()
        return holder(self.paths(name).alive) is not None

    def power_on(self) -> tuple[str, ...]:
        """Boot every seat that was switched off with the room, or whose boot never began. Returns which.

        One that died or was fenced stays down: that is for the engine to see and to repair. Where nothing runs at all,
        this machine itself was off, and that is nobody's illness.
        """
        names = self.names()
        was_off = not any(self.alive(name) for name in names)
        return tuple(name for name in names if self._switch_on(name, was_off=was_off))

    def _switch_on(self, name: str, *, was_off: bool) -> bool:
        with self.held(name) as seat:
            if seat.power is SeatPower.FENCED or holder(self.paths(name).alive) is not None:
                return False
            status = read(self.paths(name).status, Status)
            spent = status is not None and status.boot_id == seat.boot_id
            if spent and seat.power is SeatPower.ON and not was_off:
                return False
            following = replace(seat, power=SeatPower.ON)
            if spent:
                kill_boots({seat.boot_id})
                Hardware(self.paths(name), seat.instance_id).cure(Remedy.REBOOT)  # whoever boots it
                following = replace(following, previous=seat.incarnation, boot_id=new_boot())
            if following != seat:
                self.save(following)
            self.spawn_held(following)
            return True

    def spawn_held(self, seat: LocalSeat) -> None:
        """Start the supervisor of a seat that the caller holds. Twice is once."""
        reap()
        paths = self.paths(seat.name)
        mark = f"{BOOT_MARK}={seat.boot_id}"
        # A supervisor that was started a moment ago has its mark already and not yet its lock.
        if holder(paths.alive) is not None or find(marks=[mark]):
            return
        command = [sys.executable, "-m", SUPERVISOR]
        command += ["--root", str(self.root), "--seat", seat.name, "--boot", seat.boot_id]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
        with _log(paths.seat / "supervisor.log") as log:
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={**environment, BOOT_MARK: seat.boot_id},
                start_new_session=True,
                close_fds=True,
            )
        _children[child.pid] = child
        # The kernel shows a new program's environment a moment after it began: whoever comes next must find the mark.
        _until(lambda: child.pid in find(marks=[mark]) or child.poll() is not None, within=_SHOWS_WITHIN)

    def kill_boot(self, boot_id: str) -> None:
        """End everything that carries this boot's mark, at once. Returns when nothing of it is left."""
        kill_boots({boot_id}, first=self._supervisors())

    def _supervisors(self) -> tuple[int, ...]:
        pids = (holder(self.paths(name).alive) for name in self.names())
        return tuple(pid for pid in pids if pid)

    def down(self, within: float = POLITE) -> None:
        """End every seat: politely first, then for certain. Nothing is left running."""
        names = self.names()
        for name in names:
            with self.held(name) as seat:
                if seat.power is SeatPower.ON:  # first, so that nobody takes what ends now for something that died
                    self.save(replace(seat, power=SeatPower.OFF))
        for pid in self._supervisors():
            kill([pid], signal.SIGTERM)
            kill([pid], signal.SIGCONT)
        _until(lambda: not any(self.alive(name) for name in names), within=within)
        kill_boots({boot for name in names for boot in self._boots(name)}, first=self._supervisors())
        reap()

    def _boots(self, name: str) -> Iterator[str]:
        """Every boot that a seat has had, as far as it is remembered."""
        paths = self.paths(name)
        yield self.seat(name).boot_id
        for boot in (paths.seat / "instances").glob("*/boots/*"):
            yield boot.name


def kill_boots(boots: Iterable[str], first: Iterable[int] = ()) -> None:
    """SIGKILL to everything with one of these marks until two looks in a row find nothing.

    `first`: supervisors, which die before the others, so that they cannot start more.
    """
    marks = [f"{BOOT_MARK}={boot}" for boot in boots]
    leaders = set(first)
    deadline = time.monotonic() + _KILL_WITHIN
    empty = 0
    while empty < 2:
        found = find(marks=marks)
        empty = 0 if found else empty + 1
        kill(sorted(found, key=lambda pid: (pid not in leaders, pid)))
        reap()
        if found and time.monotonic() > deadline:
            raise Unknown(f"processes {sorted(found)} do not die of SIGKILL")
        if empty < 2:
            time.sleep(_LOOK)  # also between two empty looks: a program that just begins shows its mark a moment later


def _until(condition: Callable[[], bool], within: float) -> None:
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        time.sleep(_LOOK)


def reap() -> None:
    """Take leave of our children that have ended: none stays behind as a zombie."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)


def fifo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkfifo(path, 0o600)


@contextmanager
def _log(path: Path) -> Iterator[int]:
    """A log to append to; a long one is put aside first."""
    if path.exists() and path.stat().st_size > LOG_SIZE:
        path.rename(path.with_suffix(".log.1"))
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        yield handle
    finally:
        os.close(handle)
