"""The real agent on this machine, a front door that it reports to, and what the tests do to the machine around it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tests.gpu.record import anonymous
from tests.support.agent_rig import TOKEN, FrontDoor
from tests.support.waiting import until

from sickbay.agent.runtime import machine_boot
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Answered, AnyOrder, Command, Poll, Report

NODE = NodeId("gpu/here")
BAD = Path(__file__).with_name("bad_kernels.py")
RING = Path("/dev/kmsg")
SICKBAY = (sys.executable, "-m", "sickbay")
RECORD = "SICKBAY_RECORD"  # a directory to keep recordings in
# The same kernel on many cores at once.
CROWD = """
import sys
from tests.gpu.bad_kernels import KERNELS, Cuda

class Crowd(Cuda):
    def call(self, name, *args):
        super().call(name, *((args[0], int(sys.argv[2]), *args[2:]) if name == "cuLaunchKernel" else args))

cuda = Crowd()
cuda.launch(KERNELS[sys.argv[1]])
cuda.call("cuCtxSynchronize")
"""
FOREIGN = "ffff:{bus:02x}:1f"  # addresses that no machine has


class Door(FrontDoor):
    """Knows when each text came first, and every answer to a command."""

    def __init__(self) -> None:
        super().__init__(report_every=5.0, poll_for=20.0)  # as a controller has it
        self.came: dict[str, float] = {}  # monotonic
        self.answers: dict[str, Answered] = {}

    def _report(self, body: bytes) -> bytes:
        now = time.monotonic()
        reply = super()._report(body)
        for item in msgspec.json.decode(body, type=Report).items:
            if isinstance(item.news, Observed):
                self.came.setdefault(said(item.news), now)
            elif isinstance(item.news, Answered):
                self.answers.setdefault(item.news.command, item.news)
        return reply

    def _poll(self, body: bytes, closing: threading.Event) -> bytes:
        poll, end = msgspec.json.decode(body, type=Poll), time.monotonic() + 20.0
        while True:
            self.posted.clear()
            reply = self.reception.commands(poll)
            if reply.commands or time.monotonic() > end or closing.is_set():
                return msgspec.json.encode(reply)
            self.posted.wait(0.5)


class Machine:
    """`trust_logs`: what root writes to /dev/kmsg counts as what the driver prints."""

    def __init__(self, root: Path, *, trust_logs: bool = True) -> None:
        self.root = root
        self._trust_logs = trust_logs
        self.door = Door()
        self.door.open()
        self.state = root / "state"
        self.token = root / "token"
        self.token.write_text(TOKEN)
        self.agent: subprocess.Popen[bytes] | None = None

    # --- the agent
    def settings(self, *more: str) -> list[str]:
        return [
            "agent", "--url", f"http://127.0.0.1:{self.door.port}", "--node", NODE, "--token-file", str(self.token),
            "--state", str(self.state), "--set", "instance_id=i-here",
            *(("--set", "trust_logs=true") if self._trust_logs else ()), *more,
        ]  # fmt: skip

    def start(self) -> None:
        """As `sickbay agent` does it; returns once it has looked at everything and said so."""
        with (self.root / "agent.err").open("ab") as errors:
            self.agent = subprocess.Popen([*SICKBAY, *self.settings()], stderr=errors)
        before = len(self.door.reports)
        until(lambda: len(self.door.reports) > before and self.child, 60, self.complaints)

    def end(self) -> int:
        agent, self.agent = self.agent, None
        assert agent is not None
        agent.send_signal(signal.SIGTERM)
        return agent.wait(20)

    def close(self) -> None:
        if self.agent is not None:
            self.agent.kill()
            self.agent.wait()
        self.door.shut()

    @property
    def pid(self) -> int:
        assert self.agent is not None
        return self.agent.pid

    @property
    def child(self) -> int | None:
        """The process that asks NVML."""
        return next((pid for pid in children(self.pid) if "sickbay.agent.nvml" in command_line(pid)), None)

    @property
    def complaints(self) -> str:
        return (self.root / "agent.err").read_text()

    # --- what it said
    def observed(self) -> list[Observed]:
        return self.door.news(Observed)

    def texts(self) -> set[str]:
        return {said(news) for news in self.observed()}

    def arrival(self, line: str) -> float:
        """The moment in which it came; waits for it."""
        came: float = until(lambda: self.door.came.get(line), 10, line)
        return came

    def since(self, mark: int) -> list[Observed]:
        return self.observed()[mark:]

    def mark(self) -> int:
        return len(self.observed())

    def ask(self, order: AnyOrder, name: str, within: float = 60.0) -> Answered:
        me = Incarnation(instance_id="i-here", boot_id=machine_boot())
        now = datetime.now(UTC)
        command = Command(id=name, node=NODE, order=order, posted_at=now, expires_after=60.0, expect=me)
        self.door.store.post([command])
        self.door.posted.set()
        answer: Answered = until(lambda: self.door.answers.get(name), within, f"no answer; {self.complaints}")
        return answer


class Ring:
    """The kernel's log from now on, raw, read all the while: a burst of a thousand lines is more than it holds."""

    def __init__(self) -> None:
        self._handle = os.open(RING, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(self._handle, 0, os.SEEK_END)
        self._over = threading.Event()
        self.records: list[str] = []
        self.torn = False  # records were overwritten before they could be read
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.records.append(os.read(self._handle, 1 << 14).decode("utf-8", "replace"))
            except BlockingIOError:
                if self._over.wait(0.005):
                    return
            except BrokenPipeError:
                self.torn = True

    def close(self) -> None:
        """With all that is there read."""
        self._over.set()
        self._reader.join(10)
        os.close(self._handle)


def whole_ring() -> list[str]:
    """The words of every record since the machine started, as far as the kernel still has them."""
    handle = os.open(RING, os.O_RDONLY | os.O_NONBLOCK)
    found: list[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 1 << 14).decode("utf-8", "replace")
            except BlockingIOError:
                return found
            except BrokenPipeError:
                continue  # overwritten while we read; it goes on with the oldest that is left
            found.append(record.partition(";")[2].partition("\n")[0])
    finally:
        os.close(handle)


def write(line: str) -> float:
    """Into the kernel's log; the moment before. Opened anew: the kernel takes ten lines in 5 s from one descriptor."""
    began = time.monotonic()
    with RING.open("wb", buffering=0) as ring:
        ring.write(f"{line}\n".encode())
    return began


def xid(number: int, pci: str, text: str = "") -> str:
    return f"NVRM: Xid (PCI:{pci}): {number}, pid='<unknown>', name=<unknown>, {text or 'written by a test'}"


def said(news: Observed) -> str:
    """The driver's words, without what a log puts before them."""
    return news.text[max(0, news.text.find("NVRM:")) :]


def own_address() -> str:
    """Of the first GPU, as the kernel writes it: `0000:18:00`."""
    said = smi("--query-gpu=pci.bus_id", "--format=csv,noheader").splitlines()[0].strip().lower()
    return said[-12:].rpartition(".")[0]


def smi(*words: str) -> str:
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=120, check=False).stdout


def bad_kernel(kind: str, blocks: int = 1) -> None:
    words = [str(BAD), kind] if blocks == 1 else ["-c", CROWD, kind, str(blocks)]
    subprocess.run([sys.executable, *words], cwd=BAD.parents[2], capture_output=True, timeout=120, check=False)


@contextlib.contextmanager
def holding() -> Iterator[int]:
    """A process that has a context on the GPU."""
    with subprocess.Popen([sys.executable, str(BAD), "hold"], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "holding\n"
            yield holder.pid
        finally:
            holder.kill()


def sickbay(*words: str, text: str | None = None, seconds: float = 120.0) -> tuple[int, Any]:
    """A command with --json: its exit code, and what it printed."""
    done = subprocess.run(
        [*SICKBAY, *words, "--json"], input=text, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


# --- processes
def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.extend(map(int, task.read_text(encoding="ascii").split()))
    return found


def command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def memory(pid: int) -> dict[str, int]:
    """KiB; `own`: what no other process shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    sums = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    own = sums["Private_Clean"] + sums["Private_Dirty"]
    return {"rss": sums["Rss"], "pss": sums["Pss"], "own": own, "anonymous": sums["Anonymous"]}


def ticks(pid: int) -> float:
    """Seconds of a processor that all its threads have used."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def cpu_time(pid: int) -> float:
    """The scheduler's own account, in nanoseconds, of all threads; ticks where it keeps none."""
    try:
        spent = [int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except OSError:
        return ticks(pid)
    return sum(spent) / 1e9 if any(spent) else ticks(pid)


def recorded(name: str, what: Any) -> None:
    """Kept for the ordinary suite, made anonymous."""
    if where := os.environ.get(RECORD):
        text = anonymous(json.dumps(what, indent=1, sort_keys=True)).replace(machine_boot(), "boot-1") + "\n"
        Path(where, name).write_text(text, encoding="utf-8")


def share(values: list[float], part: float) -> float:
    """The value below which this part of them lies."""
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


def steady(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it holds all the while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not condition():
            return False
        time.sleep(0.05)
    return True
