"""An agent on a node of the local cluster: what it reads, and whom it reports to.

A real node differs in this module only: other probes (the kernel's own log, NVML), other tests, another address.
"""

import fcntl
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from sickbay.adapters.clusters.local.devices import Hardware, device_at
from sickbay.adapters.clusters.local.files import BOOT_MARK, ClusterFile, Paths, Seat, read, write
from sickbay.agent.checks.virtual import virtual_tests
from sickbay.agent.commands import Commands, Journal
from sickbay.agent.loop import Loop
from sickbay.agent.orders import LocalOrders
from sickbay.agent.outbox import Outbox
from sickbay.agent.probes import Probe
from sickbay.agent.probes.kernel_log import KernelLog, Place
from sickbay.agent.probes.ranks import RankWatch
from sickbay.agent.probes.virtual_devices import VirtualDevices
from sickbay.agent.reporter import Poller, Reporter
from sickbay.agent.senses import Senses
from sickbay.agent.spool import Voice
from sickbay.agent.transport import Address, Away, Line
from sickbay.agent.watches import CLOSED, CREATED, MODIFIED, MOVED_TO, Watches
from sickbay.model.errors import BadInput
from sickbay.model.protocol import PROTO, Poll

ALONE_WITHIN = 5.0  # seconds that an agent waits for the one before it to end
LAST_WORDS = 1.0  # seconds for the last report


def run(root: Path, seat_name: str) -> None:
    """Until SIGTERM. Raises BadInput where there is no such seat."""
    paths = Paths(root, seat_name)
    seat = read(paths.seat_file, Seat)
    if seat is None:
        raise BadInput(f"there is no seat {seat_name!r} under {root}: write one of those in {root / 'cluster.json'}")
    boot = os.environ.get(BOOT_MARK, seat.boot_id)
    if boot != seat.boot_id:
        raise BadInput(f"boot {boot} of {seat_name} has ended: an agent lives no longer than its boot")
    state = paths.agent(seat.instance_id)
    with _alone(state):
        LocalAgent(paths, seat, state).run()


class LocalAgent:
    def __init__(self, paths: Paths, seat: Seat, state: Path) -> None:
        self._paths = paths
        self._seat = seat
        self._state = state
        me, hardware = seat.incarnation, Hardware(paths, seat.instance_id)
        voice = Voice(
            node=seat.id,
            incarnation=me,
            agent_run=secrets.token_hex(6),
            machine_boot=_machine_boot(),
            zero=time.time() - time.monotonic(),
        )
        self._outbox = Outbox(state / "spool", voice)
        self._kmsg = paths.kmsg(seat.instance_id, seat.boot_id)
        self._log = KernelLog(self._kmsg, seat.id, self._place(), device_at)
        self._kept = self._log.place
        self._ranks = RankWatch(paths, seat.id, me)
        devices = VirtualDevices(hardware, seat.id, seat.gpus)
        witnesses = [
            Probe("kernel_log", self._log.look, period=1.0, gap=0.002, witness=True, flush=self._log.flush),
            Probe("devices", devices.look, period=5.0, gap=0.1, witness=True),
        ]
        self._senses = Senses(witnesses, self._outbox)
        self._watches = Watches()
        probes = [
            *witnesses,
            Probe("ranks", self._ranks.look, period=1.0, gap=0.05, restless=lambda: self._ranks.restless),
        ]
        self._loop = Loop(
            probes, self._senses, self._outbox, self._watches, wanted=self._wanted, asleep=self._ranks.restart
        )
        tests = virtual_tests(hardware, seat.gpus, seat.boot_id)
        orders = LocalOrders(paths, seat, hardware, self._senses, tests)
        self._commands = Commands(Journal(state / "commands.jsonl"), self._outbox, me, orders.carry)
        take = self._commands.take
        self._reporter = Reporter(self._outbox, Line(self._address), lambda: self._senses.watermark, take)
        self._poller = Poller(self._poll, Line(self._address), self._reporter, take)

    def run(self) -> None:
        self._commands.recover()
        signal.set_wakeup_fd(self._watches.ringer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        self._senses_first()
        self._reporter.start()
        self._poller.start()
        try:
            self._loop.run(self._commands, self._each_second)
        finally:
            self._poller.finish()
            self._reporter.finish(LAST_WORDS)
            self._keep_place()
            self._outbox.close()
            signal.set_wakeup_fd(-1)

    def _senses_first(self) -> None:
        """The first report says something of the node, not only that somebody is there."""
        try:
            self._senses.read_through()
        except Exception as error:  # noqa: BLE001 - whatever it is: the loop meets it again, and says so
            print(f"agent: {error}", file=sys.stderr, flush=True)

    def _told_to_end(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        self._loop.ending = True

    def _wanted(self) -> dict[Path, tuple[str, int]]:
        wanted = dict.fromkeys(self._ranks.directories, ("ranks", MOVED_TO | CLOSED))
        wanted[self._kmsg.parent] = ("kernel_log", MODIFIED | CREATED | MOVED_TO)
        wanted[self._paths.seat] = ("ranks", MOVED_TO)
        wanted[self._paths.instance(self._seat.instance_id)] = ("devices", MOVED_TO)
        return wanted

    # --- how far the log was read
    def _place(self) -> Place:
        kept = read(self._state / "kmsg.json", Place)
        here = kept is not None and kept.boot_id == self._seat.boot_id
        return kept if kept is not None and here else Place(boot_id=self._seat.boot_id)

    def _each_second(self, now: float) -> None:  # noqa: ARG002 - what the loop gives
        self._keep_place()

    def _keep_place(self) -> None:
        # Under the lock: a place ahead of what is in the outbox would lose lines.
        with self._senses.still():
            place = self._log.place
        if place != self._kept:
            try:
                write(self._state / "kmsg.json", place, durable=False)
            except OSError:
                return  # a full disk: then the next run reads more of the log again
            self._kept = place

    # --- the controller
    def _address(self) -> Address:
        cluster = read(self._paths.root / "cluster.json", ClusterFile)
        if cluster is None or not cluster.controller:
            raise Away("no controller has been there yet")
        try:
            token = self._paths.token.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            token = ""
        return Address(url=cluster.controller, token=token, ca=cluster.ca)

    def _poll(self) -> Poll:
        me = self._seat.incarnation
        return Poll(
            proto=PROTO, node=self._seat.id, uid=me.uid, instance_id=me.instance_id, boot_id=me.boot_id,
            has=self._commands.has(),
        )  # fmt: skip


def _machine_boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Two agents would speak for one node and carry everything out twice."""
    state.mkdir(parents=True, exist_ok=True)
    handle = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + ALONE_WITHIN
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise BadInput("another agent of this node is running: end it first") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)
