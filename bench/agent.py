"""What an agent costs on a node where nothing happens, and how soon a line of its log is where it belongs."""

import http.client
import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from bench.figure import Figure, Line, Size, in_words, percentile
from bench.rig import busy
from sickbay.agent.settings import AgentSettings
from sickbay.model.protocol import Reply, Report

MIB = 1024  # KiB, as smaps has it
MOST_MEMORY = 30 * MIB
MOST_SHARE = 0.001
SOONEST = 0.010  # seconds
XIDS = (79, 95, 74, 62, 119, 48, 64, 92, 94, 140)
GPUS = 32
PAUSE = 0.05  # seconds between two lines: the agent has gone to sleep again
PATIENCE = 30.0
BARE = "/bare"
TAILED = "/tailed"

# What a person would write who has an afternoon: no parsing, no disk, no retry. A connection that is kept, as ours.
FOLLOWER = """
import http.client, subprocess, sys
line = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
with subprocess.Popen(["tail", "-n", "+1", "-F", sys.argv[2]], stdout=subprocess.PIPE) as tail:
    try:
        for text in tail.stdout:
            line.request("POST", sys.argv[3], text)
            line.getresponse().read()
    finally:
        tail.kill()
"""


class Receiver:
    """Takes reports as a controller does and stores nothing. It knows when each one was read to its end."""

    def __init__(self, poll_for: float = 20.0) -> None:
        self.items = 0
        self._poll_for = poll_for
        self._news = threading.Condition()
        self._bodies: dict[str, list[tuple[float, bytes]]] = {}
        self._ending = threading.Event()
        self._server = _server(self.answer)
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.5,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> bytes:
        now = time.perf_counter()
        if path.endswith("/poll"):
            self._ending.wait(self._poll_for)
            return msgspec.json.encode(Reply(poll_for=self._poll_for))
        acknowledged = 0
        if path.endswith("/report"):
            report = msgspec.json.decode(body, type=Report)
            acknowledged = report.first_seq + len(report.items) - 1
        with self._news:
            self._bodies.setdefault(path, []).append((now, body))
            self._news.notify_all()
        return msgspec.json.encode(Reply(ack=acknowledged, poll_for=self._poll_for))

    def heard(self, path: str, text: bytes) -> float:
        """When these words were there; waits for them. What came before them is forgotten."""
        until = time.monotonic() + PATIENCE
        with self._news:
            while True:
                for at, body in self._bodies.get(path, ()):
                    if text in body:
                        self._bodies.clear()
                        return at
                if not self._news.wait(until - time.monotonic()) and time.monotonic() > until:
                    raise RuntimeError(f"{text.decode()} has not come to {path} within {PATIENCE:.0f} s")


def _server(answer: Callable[[str, bytes], bytes]) -> http.server.ThreadingHTTPServer:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            said = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(said)
                self.wfile.flush()

        def log_message(self, *args: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *args: Any) -> None:
            pass

    return Server(("127.0.0.1", 0), Handler)


@contextmanager
def agent(directory: Path, port: int, log: Path) -> Iterator["Process"]:
    """As `sickbay agent` leaves it: settings behind a descriptor, the usual probes, a text file as its log."""
    settings = AgentSettings(
        url=f"http://127.0.0.1:{port}", node="bench/node-0", instance_id="i-0", token="bench", sources=(str(log),),
        state=str(directory / "state"), ranks=str(directory / "ranks"),
    )  # fmt: skip
    handle = os.memfd_create("settings", 0)
    with (directory / "agent.log").open("wb") as complaints:
        os.write(handle, msgspec.json.encode(settings))
        os.lseek(handle, 0, os.SEEK_SET)
        process = subprocess.Popen(
            [sys.executable, "-m", "sickbay.agent", "--settings", str(handle)], pass_fds=[handle],
            env={**os.environ, "MALLOC_ARENA_MAX": "1"}, stderr=complaints,
        )  # fmt: skip
        os.close(handle)
    with _ended(process):
        yield Process(process.pid)
        if process.poll() is not None:
            raise RuntimeError(f"the agent has ended: {(directory / 'agent.log').read_text()}")


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Memory:
    """KiB."""

    resident: int
    proportional: int
    own: int


@dataclass(frozen=True, slots=True)
class Process:
    pid: int

    def memory(self) -> Memory:
        table: dict[str, int] = {}
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
            name, _, rest = line.partition(":")
            table[name] = int(rest.split()[0])
        return Memory(table["Rss"], table["Pss"], table["Private_Clean"] + table["Private_Dirty"])

    def worked(self) -> float:
        """Seconds that its threads have run, those that have ended included, to the nanosecond."""
        return time.clock_gettime(((~self.pid) << 3) | 2)

    def switches(self) -> int:
        """How often its threads have gone to sleep."""
        found = 0
        for path in Path(f"/proc/{self.pid}/task").glob("*/status"):
            with suppress(OSError):
                text = path.read_text(encoding="ascii")
                found += int(text.partition("\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])
        return found

    def children(self) -> list["Process"]:
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        return [Process(int(pid)) for pid in found.split()]


@dataclass(slots=True)
class Taken:
    memory: Memory = Memory(0, 0, 0)
    bare: Memory = Memory(0, 0, 0)  # an interpreter that only sleeps
    children: list[Memory] = field(default_factory=list)
    share: float = 0.0
    wakes: float = 0.0
    after: Memory = Memory(0, 0, 0)
    sent: list[float] = field(default_factory=list)
    tailed: list[float] = field(default_factory=list)
    posted: list[float] = field(default_factory=list)


def measure(lines: int, settle: float, idle: float) -> Taken:
    taken = Taken()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sickbay-bench-")))
        receiver = stack.enter_context(Receiver())
        ours, theirs = directory / "messages", directory / "tailed"
        theirs.touch()
        ours.write_text(_line(0, "before"))
        process = stack.enter_context(agent(directory, receiver.port, ours))
        receiver.heard(REPORT, b"before")
        taken.bare = _interpreter()
        time.sleep(settle)
        begun, worked, slept = time.monotonic(), process.worked(), process.switches()
        time.sleep(idle)
        taken.share = (process.worked() - worked) / (time.monotonic() - begun)
        taken.wakes = (process.switches() - slept) / (time.monotonic() - begun)
        taken.memory = process.memory()
        taken.children = [child.memory() for child in process.children()]
        stack.enter_context(_follower(receiver.port, theirs))
        _append(theirs, _line(0, "ready"))
        receiver.heard(TAILED, b"ready")
        poster = stack.enter_context(_poster(receiver.port))
        for number in range(1, lines + 1):
            taken.sent.append(_timed(receiver, ours, REPORT, number))
            time.sleep(PAUSE)
            taken.tailed.append(_timed(receiver, theirs, TAILED, number))
            taken.posted.append(next(poster))
            time.sleep(PAUSE)
        taken.after = process.memory()
    return taken


REPORT = "/v1/agent/report"


def _line(number: int, name: str) -> str:
    """No two in a row are of one event: those are summed up."""
    xid, gpu = XIDS[number % len(XIDS)], number // len(XIDS) % GPUS
    return (
        f"{time.strftime('%b %e %H:%M:%S')} node-0 kernel: NVRM: Xid (PCI:0000:{gpu + 16:02x}:00): {xid}, pid={number},"
        f" name={name}, channel 0x0000000a\n"
    )


def _append(path: Path, text: str) -> float:
    """When the writing began."""
    with path.open("ab", buffering=0) as file:
        begun = time.perf_counter()
        file.write(text.encode())
    return begun


def _timed(receiver: Receiver, path: Path, to: str, number: int) -> float:
    name = f"mark{number:06d}"
    begun = _append(path, _line(number, name))
    return receiver.heard(to, name.encode()) - begun


def _interpreter() -> Memory:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = Process(process.pid).memory()
        process.kill()
    return found


@contextmanager
def _follower(port: int, path: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", FOLLOWER, str(port), str(path), TAILED])
    try:
        yield
    finally:
        for child in Process(process.pid).children():
            with suppress(ProcessLookupError):
                os.kill(child.pid, 15)  # its end ends the other
        process.wait(PATIENCE)


@contextmanager
def _poster(port: int) -> Iterator[Iterator[float]]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        yield _posts(connection)
    finally:
        connection.close()


def _posts(connection: http.client.HTTPConnection) -> Iterator[float]:
    """There and back, with the body of about one report."""
    for _ in count():
        begun = time.perf_counter()
        connection.request("POST", BARE, b"x" * 700)
        connection.getresponse().read()
        yield time.perf_counter() - begun


def _mib(memory: int) -> str:
    return f"{memory / MIB:.1f} MiB"


def both(values: Sequence[float]) -> str:
    return f"{in_words(percentile(values, 0.5))}, {in_words(percentile(values, 0.99))}"


def run(size: Size) -> Figure:
    then = busy()
    lines, idle = size.pick(full=400, quick=200, tiny=3), size.pick(full=60, quick=20, tiny=1)
    taken = measure(lines, size.pick(full=15, quick=10, tiny=0), idle)
    p50, p99 = percentile(taken.sent, 0.5), percentile(taken.sent, 0.99)
    resident = taken.memory.resident
    return Figure(
        title="The agent on a machine, idle and when a line comes",
        about=(
            "The agent's own process as `sickbay agent` starts it, with a text file as its log, the probes of the"
            " machine and charts every 5 s; it reports to a process that answers like a controller and stores nothing."
            " At first nothing happens. Then a line of the driver is appended to the log, and timed until the report"
            " with it has been read at the other end. In turns with it, in the same run: the same line through"
            " `tail -F` and a program that posts each line, and a bare POST there and back."
        ),
        lines=(
            Line("idle: resident", _mib(resident), "≤ 30 MiB", met=resident <= MOST_MEMORY),
            Line(
                "idle: its share of what is shared (PSS), and its own",
                f"{_mib(taken.memory.proportional)}, {_mib(taken.memory.own)}",
            ),
            Line("a bare interpreter that sleeps: resident", _mib(taken.bare.resident)),
            Line("idle ÷ a bare interpreter, resident", f"{resident / taken.bare.resident:.1f}"),
            Line(f"after {lines} faults: resident", _mib(taken.after.resident)),
            Line("idle: of one core", f"{100 * taken.share:.3f} %", "≤ 0.1 %", met=taken.share <= MOST_SHARE),
            Line("idle: it wakes, a second", f"{taken.wakes:.1f}"),
            Line("line → at the receiver: p50, p99", both(taken.sent), "≤ 10 ms, p99", met=p99 <= SOONEST),
            Line("the same through tail -F and a POST of each line: p50, p99", both(taken.tailed)),
            Line("a bare POST, there and back: p50, p99", both(taken.posted)),
            Line("line → at the receiver ÷ tail -F, p50", f"{p50 / percentile(taken.tailed, 0.5):.1f}"),
            Line("line → at the receiver ÷ a bare POST, p50", f"{p50 / percentile(taken.posted, 0.5):.1f}"),
        ),
        notes=(
            then,
            f"{idle} s idle, {lines} lines of each kind.",
            (
                "Resident counts pages of libraries that other processes share. The agent writes each item to its spool"
                " before it sends it; tail and bare POST keep nothing."
            ),
            *(
                [f"NVML's child, resident: {', '.join(_mib(c.resident) for c in taken.children)}."]
                if taken.children
                else []
            ),
        ),
    )
