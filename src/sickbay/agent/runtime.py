"""The life of an agent, from its first look to its last report: what every place shares.

A place (`local.py`, `node.py`) says what there is to read, who carries orders out and whom to report to.
"""

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

import msgspec

from sickbay.agent.command_journal import CommandJournal
from sickbay.agent.commands import Carry, Commands
from sickbay.agent.complaints import complain
from sickbay.agent.loop import Loop
from sickbay.agent.outbox import Outbox
from sickbay.agent.probes import Probe
from sickbay.agent.probes.kernel_log import KernelLog
from sickbay.agent.reporter import Poller, Reporter
from sickbay.agent.transport import Address, ControllerLine, nobody
from sickbay.agent.watches import Watches
from sickbay.agent.watermark import Watermarks
from sickbay.model.errors import BadInput
from sickbay.model.noun import Noun
from sickbay.model.protocol import PROTO, Poll
from sickbay.wire.file_locks import take_lock
from sickbay.wire.files import replace_file

ALONE_WITHIN = 5.0  # seconds that an agent waits for the one before it to end
LAST_WORDS = 1.0  # seconds for the last report
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Kept = TypeVar("Kept", bound=Noun)


def _nothing(now: float) -> None:
    pass


@dataclass(frozen=True, slots=True)
class NodeKit:
    """What a place gives. `orders` gets what it needs to carry orders out once that exists."""

    outbox: Outbox
    state: Path
    log: KernelLog
    address: Callable[[], Address]
    orders: Callable[[Watermarks], Mapping[type, Carry]]
    refused: Callable[[str], None] = nobody  # hears of a token that the controller does not accept
    witnesses: Sequence[Probe] = ()  # besides the kernel log
    probes: Sequence[Probe] = ()  # that the watermark does not wait for
    wanted: Callable[[], dict[Path, tuple[str, int]]] = dict
    asleep: Callable[[float], None] = _nothing
    each_second: Callable[[float], None] = _nothing
    ready: Callable[[], None] = lambda: None
    ending: Callable[[], None] = lambda: None


class AgentRuntime:
    def __init__(self, parts: NodeKit) -> None:
        self._parts = parts
        self._outbox = parts.outbox
        log = parts.log
        # It is called when there is something new; the period is for what was held back, and for the watermark.
        first = Probe("kernel_log", log.look, period=2.0, gap=0.002, witness=True, flush=log.flush,
                      places=lambda: log.places, restless=lambda: log.behind)  # fmt: skip
        witnesses = [first, *parts.witnesses]
        self.senses = Watermarks(witnesses, self._outbox)
        self._watches = Watches()
        self._loop = Loop(
            [*witnesses, *parts.probes], self.senses, self._outbox, self._watches,
            wanted=self._wanted, asleep=parts.asleep, handles=lambda: dict.fromkeys(log.handles, first.name),
        )  # fmt: skip
        me = self._outbox.voice.incarnation
        self._commands = Commands(
            CommandJournal(parts.state / "commands.jsonl"), self._outbox, me, parts.orders(self.senses)
        )
        line, commands = ControllerLine(parts.address, parts.refused), self._commands
        self.reporter = Reporter(self._outbox, line, lambda: self.senses.watermark, commands)
        self._poller = Poller(self._poll, ControllerLine(parts.address, parts.refused), self.reporter, commands)

    def run(self) -> None:
        """Until SIGTERM."""
        self._commands.recover()
        signal.set_wakeup_fd(self._watches.ringer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_end)
        self._look_first()
        # All that is loaded now stays: nobody has to look through it for rubbish again and again.
        gc.collect()
        gc.freeze()
        self.reporter.start()
        self._poller.start()
        self._parts.ready()
        try:
            self._loop.run(self._commands, self._each_second)
        finally:
            self._commands.finish()
            self._parts.ending()
            self._poller.finish()
            self.reporter.finish(LAST_WORDS)
            self._keep_places()
            self._parts.log.close()
            self._outbox.close()
            signal.set_wakeup_fd(-1)

    def _look_first(self) -> None:
        """The first report says something of the node, not only that somebody is there."""
        try:
            self.senses.read_through()
        except Exception as error:  # noqa: BLE001 - whatever it is: the loop meets it again, and says so
            complain(str(error))

    def well(self, now: float) -> bool:
        """Whether a watchdog may be told that all is well: what reports and what polls is alive."""
        return self.reporter.well(now) and self._poller.is_alive()

    def _told_to_end(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a signal handler
        self._loop.ending = True

    def _wanted(self) -> dict[Path, tuple[str, int]]:
        wanted = self._parts.wanted()
        for path, mask in self._parts.log.watched.items():
            wanted.setdefault(path, ("kernel_log", mask))
        return wanted

    def _each_second(self, now: float) -> None:
        self._keep_places()
        self._parts.each_second(now)

    def _keep_places(self) -> None:
        """How far the logs were read, also where they said nothing."""
        # Under the lock: a place ahead of what is in the outbox would lose lines.
        with self.senses.still("kernel_log"):
            self._outbox.keep(self._parts.log.places)

    def _poll(self) -> Poll:
        me = self._outbox.voice.incarnation
        return Poll(
            proto=PROTO, node=self._outbox.voice.node, instance_id=me.instance_id, boot_id=me.boot_id,
            has=self._commands.has(),
        )  # fmt: skip


def keep(path: Path, thing: object) -> None:
    """Replaced as a whole; not synced, as a place that is lost only means that more is read again. Raises OSError."""
    replace_file(path, msgspec.json.encode(thing), durable=False)


def kept(path: Path, kind: type[Kept]) -> Kept | None:
    """None: there is none, or it cannot be understood."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def machine_boot(file: Path = BOOT_ID) -> str:
    """The kernel's name for this boot; empty where it says none."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def clock_zero() -> float:
    """The wall time at which the monotonic clock was 0."""
    return time.time() - time.monotonic()


def _lockable(state: Path) -> int:
    """A disk that takes nothing any more is to be reported, so it keeps nobody from starting."""
    try:
        return os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        why = "may not be written by this user: run the agent as root, or name another"
        raise BadInput(f"state: {state} {why}") from None
    except OSError:
        return os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Two agents would speak for one node and carry everything out twice."""
    state.mkdir(parents=True, exist_ok=True)
    handle = _lockable(state)
    try:
        if not take_lock(handle, time.monotonic() + ALONE_WITHIN, look=0.02):
            raise BadInput("another agent of this node is running: end it first")
        yield
    finally:
        os.close(handle)
