"""What the local cluster keeps on disk, and who writes it.

    <root>/cluster.json              the cluster: its seats                                    written by the room
    <root>/wake                      a FIFO; a byte in it says "something changed, read again"  read by the controller
    <root>/attempts/<job>.<n>.json   attempts: their layout, their stop, how they ended        the controller's side
    <root>/as_of.json                a ceiling over every `as_of` given out                    the controller's side
    <root>/checkpoints/<job>/        where a job that names no directory keeps its checkpoints  the job
    <root>/seats/<name>/
        seat.json                    who holds the seat, its cordons                           the controller's side
        alive                        locked (fcntl.lockf) by the supervisor as long as it lives
        seat.lock                    held (flock) by whoever changes seat.json or starts a boot
        supervisor.log               what the supervisor and its agent print
        wake                         a FIFO that wakes the supervisor
        orders/<id>.json             what the supervisor is asked to do, in the order of their names
        status.json                  what the supervisor says of itself and its ranks          the supervisor
        repairs/<id>.json            reboots and replacements: how far each has come           the controller's side
        token                        the agent's credential (mode 0600)
        defects.json                 defects of the seat itself: no repair takes them away
        instances/<instance_id>/
            devices.json             virtual devices with their defects: hardware, so it follows the instance
            agent/                   the agent's spool and its memory of commands
            messages                 a system log with dated lines, as /var/log/messages; it outlives boots
            boots/<boot_id>/kmsg     the kernel log of one boot
            ranks/<job>.<attempt>.<rank>/    one rank, as on any node: agent/ranks/directory.py

Every JSON file is replaced as a whole (written aside, then renamed), so a reader sees the old or the new one. Every
process of a boot carries SICKBAY_BOOT=<boot_id> in its environment, children of ranks included: that is how all of
them are found when the machine is to end, whatever process group they have moved to.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from sickbay.agent.ranks.directory import rank_dir
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Device, Incarnation, JobId, NodeId
from sickbay.model.job import LogRule, RankState
from sickbay.model.noun import Noun
from sickbay.wire.files import replace_file

BOOT_MARK = "SICKBAY_BOOT"  # in the environment of every process of a boot
BEAT = 1.0  # seconds between two beats of a supervisor
STALE = 5.0  # seconds after which a supervisor that holds its lock and does not beat is not ready


class Cordon(Noun):
    owner: str
    reason: str


class SeatPower(StrEnum):
    ON = "on"  # it should run; if it does not, it has died
    OFF = "off"  # the room was switched off: it comes back with the room, under a new boot
    FENCED = "fenced"  # it stays down until somebody reboots or replaces it


class LocalSeat(Noun):
    """`boot_id` is the boot begun last; whether it runs is the lock's word, whether it is ready the status'."""

    name: str
    cluster: str
    pool: str
    gpus: int
    instance_id: str
    boot_id: str
    domain: str = ""
    cordons: tuple[Cordon, ...] = ()
    power: SeatPower = SeatPower.ON
    previous: Incarnation | None = None  # whom the cluster shows until this boot is ready for the first time
    machine_boot: str = ""  # the boot that its agent speaks of, where the seat is a real machine
    done: tuple[str, ...] = ()  # keys of the latest changes of cordons: a second sending of one changes nothing

    @property
    def id(self) -> NodeId:
        return NodeId(f"{self.cluster}/{self.name}")

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(uid=self.instance_id, instance_id=self.instance_id, boot_id=self.boot_id)


class ClusterFile(Noun):
    id: str
    seats: tuple[str, ...]
    controller: str = ""  # the URL that agents report to; read again whenever it cannot be reached
    ca: str = ""  # a file with the certificate to trust there, besides those of the system
    boot_takes: float = 1.0  # seconds from the start of a supervisor to ready: a machine does not boot in no time
    kind: str = "local"  # here: its one seat is this machine itself


class VirtualDefect(Noun):
    """Something wrong with a virtual device (or, with device None, with the node).

    It shows itself when it is put in and whenever the device is used again: a rank starts on it, or a check exercises
    it at level `found_at` or above.
    """

    name: str
    lines: tuple[str, ...] = ()  # kernel lines, as the driver writes them
    device: int | None = None
    found_at: int = 1
    kills: bool = True  # ranks that use the device die
    cured_by: Remedy | None = Remedy.REBOOT  # the mildest remedy that cures it; None: nothing does


class VirtualDevice(Noun):
    index: int
    serial: str
    errors: int = 0  # a counter that its symptoms raise


class Devices(Noun):
    devices: tuple[VirtualDevice, ...]
    defects: tuple[VirtualDefect, ...] = ()

    def as_seen(self) -> tuple[Device, ...]:
        return tuple(Device(index=device.index, serial=device.serial) for device in self.devices)


class Rank(Noun):
    """One process of an attempt on this node, as the supervisor last knew it."""

    job: JobId
    attempt: int
    rank: int
    boot_id: str
    devices: tuple[int, ...] = ()
    state: RankState = RankState.RUNNING
    pid: int = 0
    began_at: float = 0.0  # wall
    ended_at: float | None = None
    exit_code: int | None = None  # negative: the signal that ended it; None while it runs, or nobody knows
    stopped: bool = False  # we asked it to stop: its exit does not count
    why: str = ""  # what ended it, where the supervisor knows: "GPU 0 fell off the bus", "the node's boot ended"
    tail: str = ""  # the end of its output, once it is gone (at most 16 KiB)


class Status(Noun):
    """The supervisor's word. `mono` is time.monotonic() of this machine, the same for all its processes."""

    boot_id: str
    instance_id: str
    pid: int
    mono: float
    ready: bool = False
    agent_pid: int = 0
    ranks: tuple[Rank, ...] = ()  # of this boot, and those of earlier boots that have not been forgotten yet


class SupervisorOrder(Noun, tag_field="ask"):
    """An order to a supervisor. One for another boot than the present is dropped."""

    boot_id: str


class RankPlan(Noun):
    rank: int
    local_rank: int
    devices: tuple[int, ...]


class StartRanks(SupervisorOrder, tag="start"):
    """`env` has everything that all ranks of the attempt share, MASTER_ADDR and WORLD_SIZE included."""

    job: JobId
    attempt: int
    node_rank: int
    ranks: tuple[RankPlan, ...]
    command: tuple[str, ...]
    env: dict[str, str]
    cwd: str = ""
    stall_after: float = 0.0
    start_within: float = 0.0
    expects_heartbeats: bool = False
    env_files: tuple[str, ...] = ()
    log_rules: tuple[LogRule, ...] = ()


class StopRanks(SupervisorOrder, tag="stop"):
    """SIGTERM to each rank's process group, SIGKILL to what is left of it after `grace` seconds."""

    job: JobId
    attempt: int
    grace: float = 10.0


class RestartAgent(SupervisorOrder, tag="restart_agent"):
    pass


class Break(SupervisorOrder, tag="break"):
    """Put a defect in (its symptoms follow at once), or, without one, write these lines into the kernel log."""

    defect: VirtualDefect | None = None
    lines: tuple[str, ...] = ()


AnyAsk = StartRanks | StopRanks | RestartAgent | Break


class Paths:
    """Where everything of one seat is."""

    def __init__(self, root: Path, seat: str) -> None:
        self.root = root
        self.seat = root / "seats" / seat

    @property
    def seat_file(self) -> Path:
        return self.seat / "seat.json"

    @property
    def alive(self) -> Path:
        return self.seat / "alive"

    @property
    def wake(self) -> Path:
        return self.seat / "wake"

    @property
    def orders(self) -> Path:
        return self.seat / "orders"

    @property
    def status(self) -> Path:
        return self.seat / "status.json"

    @property
    def repairs(self) -> Path:
        return self.seat / "repairs"

    @property
    def token(self) -> Path:
        return self.seat / "token"

    @property
    def defects(self) -> Path:
        return self.seat / "defects.json"

    def instance(self, instance_id: str) -> Path:
        return self.seat / "instances" / instance_id

    def devices(self, instance_id: str) -> Path:
        return self.instance(instance_id) / "devices.json"

    def agent(self, instance_id: str) -> Path:
        return self.instance(instance_id) / "agent"

    def messages(self, instance_id: str) -> Path:
        return self.instance(instance_id) / "messages"

    def kmsg(self, instance_id: str, boot_id: str) -> Path:
        return self.instance(instance_id) / "boots" / boot_id / "kmsg"

    def run(self, instance_id: str, job: str, attempt: int, rank: int) -> Path:
        return rank_dir(self.instance(instance_id), job, attempt, rank)


Thing = TypeVar("Thing")


def read(path: Path, kind: type[Thing]) -> Thing | None:
    """None: there is no such file. One that cannot be understood is an error: files are written whole or not at all."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def write(path: Path, thing: object, *, durable: bool = True) -> None:
    """Replace the file as a whole. `durable`: it outlives a power cut, not only the death of a process."""
    replace_file(path, msgspec.json.encode(thing), durable=durable)


def wake(fifo: Path) -> bool:
    """A byte into a FIFO. False: nobody reads it now, which is not an error: the files tell everything."""
    try:
        handle = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(handle, b"!")
    except BlockingIOError:
        pass  # full: whoever reads it will wake anyway
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
