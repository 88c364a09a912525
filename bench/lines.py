"""From a line in the kernel log to the quarantine of its node, on real processes."""

import http.client
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from tests.support.up_rig import Sickbay

from bench.figure import Figure, Line, Size, in_words, percentile
from bench.local import OPEN, kernel_log, seat, until, up, wall
from bench.rig import busy
from sickbay.clusters.local.defects import bus
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import PROTO, Item, Report

NODES, GPUS = 4, 8
XIDS = (79, 95, 74, 62, 119)  # each asks for a repair by itself
BARE = 5  # bare exchanges after each fault

# Quarantined, then left to a person, whom the bench plays: a node can be used again at once.
POLICY = f"""\
{OPEN}faults:
  - match: {{fault: "xid.*"}}
    needs_human: true
    why: The bench dismisses it.
"""

# Reads a message of a known length, answers one byte: what two processes on this machine need at the least.
ECHO = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        left = int(sys.argv[2])
        while left:
            piece = line.recv(left)
            if not piece:
                sys.exit()
            left -= len(piece)
        line.sendall(b"!")
"""

DISMISSED = (
    "The default policy, but a person decides about the repair (needs_human): the bench dismisses each incident, so"
    " that a node is well again at once. Limits and brakes are open."
)


@dataclass(slots=True)
class Taken:
    """Seconds, one for each fault, or for each bare exchange."""

    decided: list[float] = field(default_factory=list)
    cordoned: list[float] = field(default_factory=list)
    served: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    synced: list[float] = field(default_factory=list)


def measure(rounds: int) -> Taken:
    taken = Taken()
    with up(NODES, POLICY, GPUS) as rig, _Health(rig) as health, _echo() as echo, _commits(rig.state) as commits:
        nodes = [node["id"] for node in rig.nodes()]
        for number in range(rounds):
            node = nodes[number % len(nodes)]
            # A line that repeats within a second is summed up: no two in a row are alike on one node.
            turn = number // len(nodes)
            xid, device = XIDS[turn % len(XIDS)], turn // len(XIDS) % GPUS
            decided, cordoned = _fault(rig, node, xid, device)
            taken.decided.append(decided)
            taken.cordoned.append(cordoned)
            taken.served.extend(health.ask() for _ in range(BARE))
            taken.bare.extend(next(echo) for _ in range(BARE))
            taken.synced.extend(next(commits) for _ in range(BARE))
    return taken


def _fault(rig: Sickbay, node: str, xid: int, device: int) -> tuple[float, float]:
    """Seconds until it was quarantined by the incident's own record, and until the cordon was in the seat's file."""
    text = f"NVRM: Xid (PCI:{bus(device)}): {xid}, pid=475, name=python, channel 0x0000000a\n"
    with kernel_log(rig, node).open("ab", buffering=0) as file:
        begun = time.time()
        file.write(text.encode())
    until(lambda: bool(seat(rig, node).cordons), rig, f"{node} is cordoned")
    cordoned = time.time() - begun
    path = f"/v1/incidents/{rig.node(node)['incident']}"
    rig.until(lambda: rig.get(path)["phase"] == "HELD", 30, f"{node} is left to a person")
    entered = next(stage["entered_at"] for stage in rig.get(path)["stages"] if stage["phase"] == "QUARANTINED")
    rig.post(f"{path}/dismiss", reason="a bench")
    # To its end: a line that comes while its incident is being closed joins it, and opens none.
    rig.until(lambda: rig.get(path)["phase"] == "DISMISSED", 30, f"{node} is back")
    return wall(entered) - begun, cordoned


class _Health:
    """The same server does next to nothing, on a connection that is kept, as an agent's is."""

    def __init__(self, rig: Sickbay) -> None:
        told: dict[str, Any] = msgspec.json.decode((rig.state / "controller.json").read_bytes())
        address = urlsplit(told["url"])
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)

    def __enter__(self) -> Self:
        self.ask()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self) -> float:
        begun = time.perf_counter()
        self._connection.request("GET", "/healthz")
        self._connection.getresponse().read()
        return time.perf_counter() - begun


def report(number: int = 1) -> bytes:
    """What an agent sends for one line."""
    node = NodeId("local/node-0")
    text = f"NVRM: Xid (PCI:{bus(0)}): 79, pid=475, name=python, channel 0x0000000a"
    news = Observed(node=node, kind="xid", fields={"number": 79, "device": 0}, text=text)
    now = time.monotonic()
    said = Report(
        proto=PROTO, node=node, uid="i-0", instance_id="i-0", boot_id="b-0", agent_run="r-0", first_seq=number,
        mono_now=now, wall_now=time.time(), watermark=now, items=(Item(seq=number, mono=now, news=news),),
    )  # fmt: skip
    return msgspec.json.encode(said)


@contextmanager
def _echo() -> Iterator[Iterator[float]]:
    """Seconds of one exchange after the other: the bytes of a report to another process, which answers."""
    body = report()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        port = str(listening.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", ECHO, port, str(len(body))], env=os.environ) as other:
            line, _ = listening.accept()
            with line:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield _exchanges(line, body)
            other.wait(timeout=30)


def _exchanges(line: socket.socket, body: bytes) -> Iterator[float]:
    for _ in count():
        begun = time.perf_counter()
        line.sendall(body)
        if not line.recv(1):
            raise RuntimeError("the other end is gone")
        yield time.perf_counter() - begun


@contextmanager
def _commits(directory: Path) -> Iterator[Iterator[float]]:
    """Seconds of one synced commit of a small row after the other, on the disk of the store."""
    connection = sqlite3.connect(directory / "bare.db", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("CREATE TABLE rows (key INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        yield _inserts(connection)
    finally:
        connection.close()


def _inserts(connection: sqlite3.Connection) -> Iterator[float]:
    for _ in count():
        begun = time.perf_counter()
        connection.execute("INSERT INTO rows (body) VALUES (?)", ("x" * 300,))
        yield time.perf_counter() - begun


def run(size: Size) -> Figure:
    rounds = size.pick(full=300, quick=30, tiny=3)
    then, taken = busy(), measure(rounds)

    def both(values: list[float]) -> str:
        return f"{in_words(percentile(values, 0.5))}, {in_words(percentile(values, 0.99))}"

    p50 = percentile(taken.decided, 0.5)
    return Figure(
        title="Kernel line → quarantined, on real processes",
        about=(
            f"{NODES} nodes of the local cluster, idle and well; a line of the driver (one of {len(XIDS)} Xids) is"
            " appended to the kernel log of one of them. Its agent sees it and reports it over HTTP; the controller"
            " stores it, learns it, decides, and cordons the node. Between two faults, in the same run: a request to"
            " the same server that does nothing (/healthz, a kept connection), and the bytes of such a report to"
            " another process and one byte back over a bare socket, and a synced commit of one small row."
        ),
        lines=(
            Line("line → QUARANTINED in the incident's record: p50, p99", both(taken.decided)),
            Line("line → cordon in force on the cluster: p50, p99", both(taken.cordoned)),
            Line("/healthz on the same server, there and back: p50, p99", both(taken.served)),
            Line("bare socket, there and back: p50, p99", both(taken.bare)),
            Line("one synced commit on the same disk: p50, p99", both(taken.synced)),
            Line("line → QUARANTINED ÷ /healthz, p50", f"{p50 / percentile(taken.served, 0.5):.1f}"),
            Line("line → QUARANTINED ÷ bare socket, p50", f"{p50 / percentile(taken.bare, 0.5):.0f}"),
            Line("line → QUARANTINED ÷ one synced commit, p50", f"{p50 / percentile(taken.synced, 0.5):.1f}"),
        ),
        notes=(
            then,
            f"{rounds} faults, {rounds * BARE} bare exchanges of each kind.",
            "QUARANTINED is dated by the round that decides it; its commit, SENT and the call come before the cordon.",
            DISMISSED,
        ),
    )
