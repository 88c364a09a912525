"""One node of the local cluster: `python -m sickbay.clusters.local.supervisor --root R --seat S --boot B`.

It holds the lock on `alive` as long as it lives, starts the agent and the ranks that it is told to start, and says in
`status.json` what it knows. A supervisor that was killed is a node that was lost: the next one is another boot.
"""

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec
from msgspec.structs import replace

from sickbay.clusters.local import processes
from sickbay.clusters.local.agent_process import AgentProcess
from sickbay.clusters.local.complaints import complain
from sickbay.clusters.local.devices import SYMPTOMS_AFTER, Hardware, blame, hit
from sickbay.clusters.local.files import (
    BEAT,
    AnyAsk,
    Break,
    ClusterFile,
    LocalSeat,
    Paths,
    Rank,
    RestartAgent,
    StartRanks,
    Status,
    StopRanks,
    VirtualDefect,
    read,
    wake,
    write,
)
from sickbay.clusters.local.ranks import NodeRanks
from sickbay.model.job import RankState

GRACE = 5.0  # seconds that ranks have when the node is shut down
KEEP_GONE = 200  # ranks that are gone stay readable: the controller may be away
KEEP_TAILS = 64 * 1024  # characters of their tails altogether; their output files have the rest
KEEP_ORDERS = 10_000  # ids of orders that were carried out

BOOT_ENDED = "the node's boot ended"
SHUT_DOWN = "the node was shut down"


class SeatHardware(Protocol):
    """What a supervisor does with the devices of its seat."""

    def ensure(self, gpus: int) -> object: ...
    def begin_boot(self, boot_id: str) -> None: ...
    def log(self, boot_id: str, lines: Sequence[str]) -> None: ...
    def inject(self, defect: VirtualDefect) -> None: ...
    def defects(self) -> Sequence[VirtualDefect]: ...
    def show(self, defect: VirtualDefect, boot_id: str, *, pid: int = 0, name: str = "") -> None: ...


class SeatAgent(Protocol):
    """The agent's process, as a supervisor starts, watches and ends it."""

    @property
    def pid(self) -> int: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    def start(self) -> None: ...
    def turn(self) -> bool: ...
    def end(self) -> None: ...


class Supervisor:
    """One boot of one node, in one thread: every wait is in the selector."""

    def __init__(
        self,
        paths: Paths,
        seat: LocalSeat,
        *,
        hardware: SeatHardware | None = None,
        agent: SeatAgent | None = None,
    ) -> None:
        self._paths = paths
        self._seat = seat
        self._selector = selectors.DefaultSelector()
        self._hardware = hardware or Hardware(paths, seat.instance_id)
        self._ranks = NodeRanks(paths, seat.instance_id, seat.boot_id, self._selector, told_boot=seat.machine_boot)
        self._agent = agent or AgentProcess(paths, seat)
        self._done: dict[str, None] = {}  # orders carried out; in memory, as those of other boots are dropped anyway
        self._symptoms: list[tuple[float, tuple[Rank, ...]]] = []  # when ranks meet what is wrong with their devices
        self._ready_at = 0.0
        self._ready = False
        self._asked_to_leave = False
        self._leaving = False
        self._woken = True  # there may be orders
        self._changed = True
        self._beat_at = 0.0
        self._seat_seen = 0
        self._complained = ""

    def run(self) -> None:
        processes.adopt_orphans()
        self._listen_to_signals()
        self._begin()
        try:
            while not (self._leaving and not self._ranks.running):
                for key, _ in self._selector.select(self._patience()):
                    act: Callable[[], None] = key.data
                    act()
                self._turn(time.monotonic())
        finally:
            self._end()

    def _listen_to_signals(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._selector.register(reader, selectors.EVENT_READ, lambda: _empty(reader))
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)  # only so that the selector wakes
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_leave)

    def _on_leave(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked_to_leave = True

    def _begin(self) -> None:
        paths, seat = self._paths, self._seat
        cluster = read(paths.root / "cluster.json", ClusterFile)
        self._ready_at = time.monotonic() + (cluster.boot_takes if cluster else 0.0)
        paths.orders.mkdir(parents=True, exist_ok=True)
        if not paths.wake.exists():
            os.mkfifo(paths.wake)
        # Opened for writing too, so that it never ends when the last writer leaves.
        fifo = os.open(paths.wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(fifo, selectors.EVENT_READ, lambda: self._on_wake(fifo))
        self._hardware.ensure(seat.gpus)
        self._hardware.begin_boot(seat.boot_id)
        now = time.time()
        self._ranks.remember(_ended(rank, now) for rank in self._last_words())
        self._say(time.monotonic())

    def _last_words(self) -> tuple[Rank, ...]:
        """What the boot before us said of its ranks."""
        for torn in self._paths.seat.glob(f".{self._paths.status.name}.*"):
            torn.unlink(missing_ok=True)  # it was killed while it wrote; nobody but us writes these
        try:
            before = read(self._paths.status, Status)
        except msgspec.MsgspecError as error:
            # Beats are not forced to disk, so a power cut can tear the file. A node must boot all the same.
            complain(f"what the last boot said is lost: {error}")
            return ()
        return before.ranks if before else ()

    def _on_wake(self, fifo: int) -> None:
        _empty(fifo)
        self._woken = True

    def _patience(self) -> float:
        moments = [self._beat_at + BEAT, *(at for at, _ in self._symptoms)]
        if not self._ready and not self._leaving:
            moments.append(self._ready_at)
        if (due := self._ranks.due()) is not None:
            moments.append(due)
        return max(0.0, min(moments) - time.monotonic())

    def _turn(self, now: float) -> None:
        beat = now >= self._beat_at + BEAT
        self._changed |= self._agent.turn()
        if beat:
            self._check_seat()
        if self._asked_to_leave:
            self._asked_to_leave = False
            self._leave(0.0 if self._leaving else GRACE, SHUT_DOWN)  # asked twice: at once
        if not self._ready and not self._leaving and now >= self._ready_at:
            self._agent.start()
            self._ready = self._changed = self._woken = True
        carried_out = self._obey() if self._ready and (self._woken or beat) else []
        self._show(now)
        self._changed |= self._ranks.turn(now)
        processes.bury_orphans((*self._ranks.pids, *self._agent.pids))
        # An order goes only once its effect is on disk; until then its id keeps it from being carried out again.
        if (self._changed or beat or carried_out) and self._say(now):
            for order in carried_out:
                order.unlink(missing_ok=True)

    def _obey(self) -> list[Path]:
        """Returns the orders that need not stay."""
        self._woken = False
        handled = []
        for path in sorted(self._paths.orders.glob("[!.]*.json")):
            try:
                ask = read(path, AnyAsk) if path.stem not in self._done else None  # type: ignore[arg-type]
                if ask is not None and ask.boot_id == self._seat.boot_id:
                    self._carry_out(ask)
            except msgspec.MsgspecError as error:
                complain(f"the order {path.name} cannot be understood and is dropped: {error}")
            except OSError as error:
                complain(f"the order {path.name} cannot be carried out and is tried again: {error}")
                continue
            self._done[path.stem] = None
            handled.append(path)
        for old in list(self._done)[:-KEEP_ORDERS]:
            del self._done[old]
        return handled

    def _carry_out(self, ask: AnyAsk) -> None:
        self._changed = True
        match ask:
            case StartRanks():
                started = tuple(rank for rank in self._ranks.start(ask) if rank.state is RankState.RUNNING)
                if started:
                    self._symptoms.append((time.monotonic() + SYMPTOMS_AFTER, started))
            case StopRanks():
                self._ranks.stop(ask.job, ask.attempt, ask.grace)
            case RestartAgent():
                self._agent.start()
            case Break():
                self._break(ask)

    def _break(self, ask: Break) -> None:
        self._hardware.log(self._seat.boot_id, ask.lines)
        if ask.defect is not None:
            self._hardware.inject(ask.defect)
            self._strike(ask.defect, hit(ask.defect, self._ranks.running))

    def _show(self, now: float) -> None:
        """Ranks that have just begun to use a broken device make it show itself."""
        due = [batch for at, batch in self._symptoms if at <= now]
        if due:
            self._symptoms = [(at, batch) for at, batch in self._symptoms if at > now]
            for defect in self._hardware.defects():
                if met := hit(defect, (rank for batch in due for rank in batch)):
                    self._strike(defect, met)

    def _strike(self, defect: VirtualDefect, met: Iterable[Rank]) -> None:
        first = next(iter(met), None)
        pid = first.pid if first else 0
        try:
            self._hardware.show(defect, self._seat.boot_id, pid=pid, name=processes.name_of(pid))
        except OSError as error:
            complain(f"the kernel log cannot be written: {error}")
        if defect.kills:
            for rank in hit(defect, self._ranks.running):
                self._ranks.kill(rank, blame(defect))

    def _check_seat(self) -> None:
        """A seat that was given to another boot is no longer ours: two boots must never work for one node."""
        try:
            seen = self._paths.seat_file.stat().st_mtime_ns
        except OSError:
            return
        if seen != self._seat_seen:
            self._seat_seen = seen
            seat = read(self._paths.seat_file, LocalSeat)
            if seat is not None and seat.boot_id != self._seat.boot_id:
                self._leave(0.0, BOOT_ENDED)

    def _leave(self, grace: float, why: str) -> None:
        self._changed |= not self._leaving
        self._leaving, self._ready = True, False
        self._ranks.stop_all(grace, why)

    def _say(self, now: float) -> bool:
        """False: it could not be written; the next beat tries again."""
        if self._changed:
            self._ranks.forget(_worth_keeping(self._ranks.gone))
        status = Status(
            boot_id=self._seat.boot_id,
            instance_id=self._seat.instance_id,
            pid=os.getpid(),
            mono=time.monotonic(),
            ready=self._ready,
            agent_pid=self._agent.pid,
            ranks=self._ranks.nouns,
        )
        self._beat_at = now
        try:
            write(self._paths.status, status, durable=self._changed)
        except OSError as error:
            if str(error) != self._complained:
                self._complained = str(error)
                complain(f"the status cannot be written: {error}")
            return False
        if self._changed:
            self._changed = False
            wake(self._paths.root / "wake")
        return True

    def _end(self) -> None:
        self._ready = False
        self._ranks.end()
        self._agent.end()
        processes.kill(processes.orphans(self._ranks.pids))  # what has thrown its marks away, and so was not found
        self._changed = True
        self._say(time.monotonic())


def _empty(handle: int) -> None:
    try:
        while os.read(handle, 4096):
            pass
    except BlockingIOError:
        pass


def _ended(rank: Rank, now: float) -> Rank:
    if rank.state is RankState.GONE:
        return rank
    return replace(rank, state=RankState.GONE, ended_at=now, exit_code=None, why=BOOT_ENDED)


def _worth_keeping(gone: Iterable[Rank]) -> list[Rank]:
    """The newest, and of their tails again only those of the newest: all of this is written at each beat."""
    newest = sorted(gone, key=lambda rank: rank.ended_at or 0.0)[-KEEP_GONE:]
    room = KEEP_TAILS
    kept = []
    for rank in reversed(newest):
        room -= len(rank.tail)
        kept.append(rank if room >= 0 else replace(rank, tail=""))
    return kept[::-1]


if __name__ == "__main__":
    from sickbay.clusters.local.boot import main

    main()
