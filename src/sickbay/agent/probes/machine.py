"""The machine around the GPUs, from /sys and /proc: ports, lanes, memory, space, clock, tasks that hang."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from sickbay.model.sign import Sign
from sickbay.wire.commands import run_bounded

NARROW = ("0x0200", "0x0207", "0x0108")  # PCI classes whose lanes are compared: Ethernet, InfiniBand, NVMe
NVSWITCH = "0x0680"
NVIDIA = "0x10de"
LEAST_FREE = 0.03  # of a file system
LEAST_FREE_BYTES = 10 << 30  # a large disk may be nearly full and have plenty
LEAST_MEMORY = 0.02
LOW_FOR = 60.0  # seconds
UNSYNCHRONISED_FOR = 600.0
IDLE_LOAD = 0.8  # who waits in the kernel counts as load: after two minutes for 0.86
HUNG_FOR = 120.0  # as the kernel's own hung_task_timeout_secs
ASKS = 5.0  # seconds that systemctl is given
LONGEST = 1 << 16  # bytes of a file
LONG_NUMBER = 20  # digits of the largest number of 64 bits
MOST_LOAD = 1e6
# For a child begun by vfork, in the freezer of a control group, for the server of a file system in user space, for who
# handles a page fault there; and where the kernel does not say.
OWN_WAITS = frozenset({
    "", "0", "wait_for_vfork_done", "kernel_clone", "_do_fork", "do_fork", "__refrigerator", "refrigerator",
    "do_freezer_trap", "request_wait_answer", "fuse_request_wait_answer", "__fuse_request_send",
    "__fuse_simple_request", "handle_userfault",
})  # fmt: skip
_UNSYNC = 0x40


class Machine:
    """`sys` and `proc` are /sys and /proc, or recordings of them."""

    def __init__(
        self,
        sys: Path = Path("/sys"),
        proc: Path = Path("/proc"),
        places: tuple[str, ...] = ("/",),
        root: str = "/",
    ) -> None:
        self._sys = sys
        self._proc = proc
        self._places = places
        self._root = root
        self._active: set[tuple[str, str]] = set()
        self._carried: set[str] = set()
        self._low_since: float | None = None
        self._unsynchronised_since: float | None = None
        self._synchronised = False
        self._waiting: dict[tuple[int, str], tuple[float, str]] = {}

    # --- network
    def ports(self, now: float) -> Iterator[Sign]:  # noqa: ARG002 - a Look
        """An InfiniBand or EFA port that was active and is not. One that never was has no cable: no fault."""
        for device in names(f"{self._sys}/class/infiniband"):
            for port in names(f"{self._sys}/class/infiniband/{device}/ports"):
                state = word(f"{self._sys}/class/infiniband/{device}/ports/{port}/state")
                if state.startswith("4"):
                    self._active.add((device, port))
                elif (device, port) in self._active and state:
                    text = f"port {port} of {device} was active and is {state.partition(':')[2].strip() or state}"
                    yield Sign(kind="ib.link_down", fields={"interface": device, "port": port}, text=text)

    def carriers(self, now: float) -> Iterator[Sign]:  # noqa: ARG002 - a Look
        """A network card that had a carrier and has none. One that somebody switched off cannot be asked."""
        for name in names(f"{self._sys}/class/net"):
            card = f"{self._sys}/class/net/{name}"
            if not os.path.exists(f"{card}/device"):  # noqa: PTH110 - bridges, tunnels, the loopback; many of them
                continue
            if (carrier := word(f"{card}/carrier")) == "1":
                self._carried.add(name)
            elif carrier == "0" and name in self._carried:
                yield Sign(kind="net.link_down", fields={"interface": name}, text=f"{name} had a carrier and has none")

    # --- PCIe
    def lanes(self, now: float) -> Iterator[Sign]:  # noqa: ARG002 - a Look
        for path in self._sys.glob("bus/pci/devices/*/current_link_width"):
            device = path.parent
            if not word(device / "class").startswith(NARROW):
                continue
            has, could = digits(word(path)), digits(word(device / "max_link_width"))
            if has is not None and could is not None and 0 < has < could < 255:
                text = f"{device.name} runs on {has} of {could} PCIe lanes"
                yield Sign(kind="pcie.link_narrow", fields={"pci": device.name}, text=text)

    def fabric_manager(self, now: float) -> Iterator[Sign]:  # noqa: ARG002 - a Look
        """Only where there is an NVSwitch to manage."""
        switches = [
            path.parent for path in self._sys.glob("bus/pci/devices/*/vendor")
            if word(path) == NVIDIA and word(path.parent / "class").startswith(NVSWITCH)
        ]  # fmt: skip
        if not switches:
            return
        state = service_state("nvidia-fabricmanager")
        if state in {"inactive", "failed"}:
            text = f"nvidia-fabricmanager is {state}, and there are {len(switches)} NVSwitches"
            yield Sign(kind="fabric_manager.down", text=text)

    # --- memory, space, time
    def memory(self, now: float) -> Iterator[Sign]:
        table = meminfo(self._proc)
        total, left = table.get("MemTotal", 0), table.get("MemAvailable")
        if not total or left is None or left / total >= LEAST_MEMORY:
            self._low_since = None
            return
        self._low_since = now if self._low_since is None else self._low_since
        if now - self._low_since >= LOW_FOR:
            text = f"{left >> 10} MiB of {total >> 10} MiB are available"
            yield Sign(kind="os.low_memory", text=text)

    def space(self, now: float) -> Iterator[Sign]:  # noqa: ARG002 - a Look
        """Local file systems only: one over the network may hang, and has its own probe."""
        for place in self._places:
            with suppress(OSError):
                found = os.statvfs(place)
                place = name_on_host(place, self._root)  # noqa: PLW2901 - people know it by that
                free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
                if size and free < LEAST_FREE_BYTES and free / size < LEAST_FREE:
                    text = f"{place} has {free >> 20} MiB of {size >> 20} MiB left"
                    yield Sign(kind="fs.full", fields={"mount": place}, text=text)
                elif found.f_files and found.f_favail / found.f_files < LEAST_FREE / 3:
                    yield Sign(kind="fs.full", fields={"mount": place}, text=f"{place} can hold no more files")

    def clock(self, now: float, unsynchronised: Callable[[], bool | None] | None = None) -> Iterator[Sign]:
        """The kernel's clock was disciplined and is not any more. One that never was is a matter of taste."""
        state = (unsynchronised or clock_unsynchronised)()
        if not state:
            self._synchronised = self._synchronised or state is False
            self._unsynchronised_since = None
            return
        since = self._unsynchronised_since = now if self._unsynchronised_since is None else self._unsynchronised_since
        if self._synchronised and now - since >= UNSYNCHRONISED_FOR:
            yield Sign(kind="os.clock_unsynchronised", text="the clock was synchronised and is not any more")

    # --- tasks
    def hung(self, now: float) -> Iterator[Sign]:
        """Processes that have waited in the kernel for longer than any device takes.

        Not those that wait for what another process does, as any user can have one do for as long as he likes. Where
        the kernel does not say what for, its own word is waited for: it tells the two apart (`blocked for more than`).
        """
        if (load(self._proc) or IDLE_LOAD) < IDLE_LOAD:  # not one of perhaps thousands has to be looked at
            self._waiting = {}
            return
        waiting: dict[tuple[int, str], tuple[float, str]] = {}
        for pid in map(int, filter(str.isdecimal, names(self._proc))):
            found = stat_of(f"{self._proc}/{pid}/stat")
            if found is None or found[1] != "D":
                continue
            name, _, started = found
            if word(f"{self._proc}/{pid}/wchan") in OWN_WAITS:
                continue
            waiting[pid, started] = self._waiting.get((pid, started), (now, name))
        self._waiting = waiting
        for (pid, _), (since, name) in waiting.items():
            if now - since >= HUNG_FOR:
                text = f"{name} (pid {pid}) has waited in the kernel for more than {HUNG_FOR:.0f} s"
                yield Sign(kind="os.hung_task", fields={"pid": pid, "name": name}, text=text)


def word(path: Path | str) -> str:
    """What a small file says. Without Python's layers of files: hundreds of these are read every minute."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(handle, LONGEST).decode("ascii", "replace").strip()
        finally:
            os.close(handle)
    except OSError:  # a card that is switched off answers with an error
        return ""


def meminfo(proc: Path) -> dict[str, int]:
    """KiB by name."""
    found = {}
    for line in word(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if (number := digits(rest.partition("kB")[0].strip())) is not None:
            found[name] = number
    return found


def digits(text: str) -> int | None:
    """A number as the kernel writes it, which has 64 bits at most: Python refuses those of thousands of digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= LONG_NUMBER else None


def load(proc: Path) -> float | None:
    """How many run or wait, on the average of a minute."""
    try:
        average = float(word(proc / "loadavg").split()[0])
    except (ValueError, IndexError):
        return None
    return average if 0.0 <= average < MOST_LOAD else None


def names(directory: Path | str) -> list[str]:
    """What is in it, in order; nothing where it is not there."""
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208 - names, thousands of them, and no paths
    except OSError:
        return []


def stat_of(path: Path | str) -> tuple[str, str, str] | None:
    """A process: its name, its state's letter, and when it was started."""
    text = word(path)
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return head.partition("(")[2], fields[0], fields[19]


def name_on_host(place: str, root: str) -> str:
    """What a place is called on the machine itself."""
    return place if root == "/" or not f"{place}/".startswith(f"{root}/") else place.removeprefix(root) or "/"


def service_state(name: str) -> str:
    """As systemctl says it; empty where it cannot be asked."""
    try:
        return run_bounded(["systemctl", "is-active", name], ASKS).out.strip()
    except OSError:
        return ""


class _Timex(ctypes.Structure):
    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("room", ctypes.c_byte * 256),
    )


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def clock_unsynchronised() -> bool | None:
    """What the kernel itself says of its clock; None where it cannot be asked."""
    try:
        state = _Timex()
        answer = _libc().adjtimex(ctypes.byref(state))
    except (AttributeError, OSError):
        return None
    return None if answer < 0 else bool(state.status & _UNSYNC)
