"""Command handlers of a real machine: check, look, save, reset, reboot, collect, inject."""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sickbay.agent.checks import Exercise
from sickbay.agent.checks.storage import StorageLook, answer_check
from sickbay.agent.commands import CarriedOut, Carry, Refuse
from sickbay.agent.drill import Drills
from sickbay.agent.limits import within
from sickbay.agent.nvml.pci import Address, address
from sickbay.agent.ranks.asking import ask_to_save, stacks_of
from sickbay.agent.settings import RESET, AgentSettings
from sickbay.agent.watermark import Watermarks
from sickbay.model.facts import Looked, Observed, ResetDone
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import (
    AnyOrder,
    ItemNews,
    RunCheck,
    RunCollect,
    RunInject,
    RunLook,
    RunReboot,
    RunReset,
    RunSave,
)
from sickbay.wire.commands import ChildEnd, run_bounded
from sickbay.wire.file_locks import take_lock

RESET_TAKES = 60.0  # seconds; with fewer left it is not begun
REBOOT_TAKES = 60.0  # until whoever reboots machines has taken the order
GOING_DOWN = 600  # seconds that a machine may need to be back; big ones take ten minutes to count their memory
PROC = Path("/proc")
REBOOT = (("systemctl", "reboot"), ("shutdown", "-r", "now"))


def _nobody(why: str) -> AbstractContextManager[None]:  # noqa: ARG001 - the form of Nvml.aside
    return nullcontext()


@dataclass(frozen=True, slots=True)
class NodeTools:
    """What orders touch, so that a test can give others: commands, the tree of processes, the watched text file."""

    settings: AgentSettings
    node: NodeId
    me: Incarnation
    tests: Callable[[], Sequence[Exercise]]
    text_log: Path | None = None
    drills: Drills | None = None
    # While this is held nobody of the agent's own has a GPU open.
    aside: Callable[[str], AbstractContextManager[None]] = _nobody
    proc: Path = PROC
    reset: tuple[str, ...] = RESET
    reboots: tuple[tuple[str, ...], ...] = REBOOT
    ours: Callable[[], Collection[int]] = field(default=lambda: (os.getpid(),))


def tools_of(settings: AgentSettings, **more: Any) -> NodeTools:
    """As the settings have them, which in a container are the machine's and not the container's."""
    proc = settings.on_host("/proc")
    reboots = (settings.reboot_command,) if settings.reboot_command else REBOOT
    own = partial(own_pids, proc)
    return NodeTools(settings=settings, proc=proc, reset=settings.reset_command, reboots=reboots, ours=own, **more)


class NodeOrders:
    def __init__(self, hands: NodeTools, senses: Watermarks) -> None:
        self._hands = hands
        self._senses = senses
        self._storage = StorageLook(hands.settings.host_root)

    @property
    def carry(self) -> dict[type, Carry]:
        return {
            RunLook: self._look,
            RunSave: self._save,
            RunCheck: self._check,
            RunReset: self._reset,
            RunReboot: self._reboot,
            RunCollect: self._collect,
            RunInject: self._inject,
        }

    def _allowed(self, what: str) -> None:
        if what not in self._hands.settings.allow:
            raise Refuse(f"{what} is not allowed on this node: write allow: [{what}] in the agent's settings")

    def _look(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        """What was found goes into the outbox before this returns; whoever reads `Looked` has read it."""
        assert isinstance(order, RunLook)
        settled = time.monotonic() + within("settle", order.settle)
        text = stacks_of(Path(self._hands.settings.ranks), self._hands.me.boot_id, order.stacks_of, until)
        time.sleep(max(0.0, settled - time.monotonic()))
        self._senses.read_through()
        return [Looked(look=order.look, node=self._hands.node, incarnation=self._hands.me, text=text)]

    def _save(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:  # noqa: ARG002 - a Carry
        assert isinstance(order, RunSave)
        ask_to_save(Path(self._hands.settings.ranks), self._hands.me.boot_id, order)
        return []

    def _check(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        assert isinstance(order, RunCheck)
        self._allowed("check")
        with self._senses.provoked_by(order.check):
            return [answer_check(order, self._hands.tests(), until, self._storage, self._hands.node, self._hands.me)]

    # --- reset
    def _reset(self, order: AnyOrder, until: float) -> Sequence[ItemNews]:
        assert isinstance(order, RunReset)
        self._allowed("reset")
        if shutil.which(self._hands.reset[0]) is None:
            raise Refuse(f"there is no {self._hands.reset[0]} here: nothing can reset a GPU")
        lock = Path(self._hands.settings.state, "reset.lock")
        with one_at_a_time(lock, until - RESET_TAKES) as held_lock, self._hands.aside("a GPU is being reset"):
            if not (self._hands.proc / "1").exists():
                # As where the agent's container has processes of its own only: nobody seen is not nobody there.
                raise Refuse(f"{self._hands.proc} does not show this machine's processes: nobody knows who has the GPU")
            held = holders(order.devices, self._hands.proc, self._hands.ours())
            if held:
                raise Refuse(f"held by {', '.join(held[:10])}{' and others' if len(held) > 10 else ''}")
            if time.monotonic() > until - RESET_TAKES:
                raise Refuse("too little of its time is left")
            which = ("-i", ",".join(map(str, order.devices))) if order.devices else ()
            # Without a limit: a reset that is killed in the middle leaves a GPU that nobody knows the state of. One
            # that does not end is answered for by whoever keeps the time.
            said = _run((*self._hands.reset, *which), keeps=(held_lock,))
        if said.code != 0:
            text = said.out.strip()[-400:]
            if re.search(r"in use by|currently being used", text):
                raise Refuse(f"the driver says: {text}")
            raise Refuse(f"{Path(self._hands.reset[0]).name} ended with {said.code}: {text}")
        return [ResetDone(key=order.key, node=self._hands.node, incarnation=self._hands.me)]

    # --- reboot
    def _reboot(self, order: AnyOrder, until: float) -> CarriedOut:  # noqa: ARG002 - a Carry
        assert isinstance(order, RunReboot)
        self._allowed("reboot")
        command = next((words for words in self._hands.reboots if shutil.which(words[0])), None)
        if command is None:
            missing = " nor ".join(words[0] for words in self._hands.reboots)
            raise Refuse(f"there is no {missing} here: write reboot_command: [...] in the agent's settings")
        why = order.reason or "a repair"
        down = Observed(
            node=self._hands.node, kind="node.going_down", fields={"seconds": GOING_DOWN}, text=f"reboot: {why}"[:500]
        )
        stays = replace(down, fields={"seconds": 0}, text="the reboot was refused")

        def reboot() -> None:
            done = _run(command, REBOOT_TAKES)
            if done.code != 0:
                said = done.out.strip()[-300:]
                raise Refuse(f"{' '.join(command)} ended with {done.code}: {said}")

        return CarriedOut(news=[down], text=f"rebooting with {' '.join(command)}", leave=reboot, stays=[stays])

    # --- collect
    def _collect(self, order: AnyOrder, until: float) -> CarriedOut:
        assert isinstance(order, RunCollect)
        from sickbay.agent.bundle import collect  # here: what packs files is not for every day

        found = collect(Path(self._hands.settings.state), self._hands.settings, until)
        text = f"{found.path} ({found.size} bytes)"
        if found.missing:
            text += f"; not there: {', '.join(found.missing)}"
        fields: dict[str, str | int] = {"path": str(found.path), "size": found.size, "key": order.key}
        news = Observed(node=self._hands.node, kind="agent.collected", fields=fields, text=text[:1000])
        return CarriedOut(news=[news], text=text[:500])

    # --- inject
    def _inject(self, order: AnyOrder, until: float) -> CarriedOut:  # noqa: ARG002 - a Carry
        assert isinstance(order, RunInject)
        self._allowed("inject")
        log, drills = self._hands.text_log, self._hands.drills
        if log is None or drills is None:
            raise Refuse("this agent watches no text log: write sources: [auto, /var/log/messages] in its settings")
        return CarriedOut(text=f"written to {log}: {drills.inject(log, order.line)}")


# They let go by themselves when nvidia-smi asks them to; `comm` has 15 characters.
LET_GO = frozenset({"nvidia-persiste"})


def holders(devices: Collection[int], proc: Path = PROC, ours: Collection[int] = ()) -> list[str]:
    """Processes that have these GPUs open, none named: any; as `name (pid 12) has /dev/nvidia0`.

    Where the driver does not say which device file belongs to a GPU, whoever has any of them open counts.

    The kernel's own list of open files, not the driver's: a process that only holds the device open has no context, is
    on no list of NVML's, and keeps a reset from happening all the same.
    """
    known = minors(proc)
    wanted = {f"/dev/nvidia{known[device]}" for device in devices if device in known}
    if len(wanted) < len(set(devices)):
        wanted = set()
    found: list[str] = []
    for entry in sorted((path for path in proc.glob("[0-9]*")), key=lambda path: int(path.name)):
        if int(entry.name) in ours:
            continue
        open_here = _devices_of(entry)
        if open_here and _name(entry) in LET_GO:
            continue
        hit = open_here & wanted if wanted else open_here
        if hit:
            found.append(f"{_name(entry)} (pid {entry.name}) has {', '.join(sorted(hit))}")
    return found


def own_pids(proc: Path = PROC) -> tuple[int, ...]:
    """Our own process, as that tree numbers it: the machine's numbers are not those of a container."""
    try:
        return (int((proc / "self").readlink().name),)
    except (OSError, ValueError):
        return (os.getpid(),)


def minors(proc: Path = PROC) -> Mapping[int, int]:
    """The number in `/dev/nvidiaN` by the GPU's index. Indexes follow the bus, minors the order of being probed."""
    found: list[tuple[Address, int]] = []
    for entry in proc.glob("driver/nvidia/gpus/*/information"):
        where = address(entry.parent.name)
        try:
            minor = re.search(r"^Device Minor:\s*(\d+)\s*$", entry.read_text(errors="replace"), re.MULTILINE)
        except OSError:
            minor = None
        if where is None or minor is None:
            return {}  # the indexes behind it are not known either
        found.append((where, int(minor[1])))
    return {index: minor for index, (_, minor) in enumerate(sorted(found))}


def _devices_of(entry: Path) -> set[str]:
    open_here: set[str] = set()
    with suppress(OSError):  # it has ended, or is not ours to look at
        for link in os.scandir(entry / "fd"):
            with suppress(OSError):
                target = os.readlink(link.path)  # noqa: PTH115 - thousands of them, and a Path for each is not for free
                if re.fullmatch(r"/dev/nvidia\d+", target):
                    open_here.add(target)
    return open_here


def _name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text(errors="replace").strip() or "?"
    except OSError:
        return "?"


@contextmanager
def one_at_a_time(lock: Path, until: float) -> Iterator[int]:
    """Mutual exclusion of resets, also with one that an agent before us has begun and that outlived it.

    What is started inherits the lock, which is free when the last who has it has ended. Raises Refuse.
    """
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refuse(f"{lock} cannot be written ({error.strerror}): nobody could tell that a reset goes on") from error
    try:
        if not take_lock(handle, until, look=0.1):
            raise Refuse("an earlier reset on this machine has not ended")
        yield handle
    finally:
        os.close(handle)


def _run(words: Sequence[str], seconds: float = float("inf"), keeps: Sequence[int] = ()) -> ChildEnd:
    """Raises Refuse where it was not begun; TimeoutError: then nobody knows how far it came."""
    try:
        ended = run_bounded(
            words, seconds, merged=True, spare=True, keeps=keeps
        )  # some `shutdown` leaves its work to a child
    except OSError as error:
        raise Refuse(f"{words[0]} cannot be started: {error.strerror or error}") from error
    if ended.code is None:
        raise TimeoutError(f"{words[0]} did not end in time")
    return ended
