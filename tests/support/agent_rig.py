"""A node of the local cluster without its supervisor, and a controller's front door, both small enough for tests."""

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec.structs import replace
from tests.support.rank_rig import PlayedRanks

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.agent.places import Places
from sickbay.agent.probes.kernel_log import SOURCE, LogPlace
from sickbay.agent.ranks.directory import RankFile
from sickbay.clusters.local.agent_process import AGENT
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import (
    BOOT_MARK,
    ClusterFile,
    LocalSeat,
    Paths,
    Rank,
    Status,
    write,
)
from sickbay.engine.reception import Reception
from sickbay.model.errors import BadInput, StoreError
from sickbay.model.facts import Fact, Observed
from sickbay.model.protocol import AnyOrder, Command, Poll, Report

TOKEN = "s3cret"
XID_79 = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_63 = "NVRM: Xid (PCI:0000:2a:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping"


class RealClock:
    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()


class FrontDoor:
    """Reports and polls over HTTP into a store. It can be shut, lose answers, and be opened again at the same place."""

    def __init__(self, report_every: float = 0.5, poll_for: float = 2.0) -> None:
        self.store = MemoryStore()
        self.reception = Reception(self.store, RealClock(), report_every=report_every, poll_for=poll_for)
        self.posted = threading.Event()
        self.reports: list[Report] = []
        self.polls = 0
        self.lose_answers = 0  # so many reports are stored, and the line is cut before the answer
        self.status: int | None = None  # answer this instead
        self.refuse: Callable[[Report], str] = lambda _: ""
        self._server: http.server.ThreadingHTTPServer | None = None
        self._sockets: set[socket.socket] = set()
        self._closing = threading.Event()
        self.port = 0

    def open(self) -> None:
        door = self
        self._closing = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                door._sockets.add(self.connection)

            def finish(self) -> None:
                door._sockets.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_POST(self) -> None:
                with contextlib.suppress(OSError):
                    door.answer(self)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            allow_reuse_address = True

            def handle_error(self, *args: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def shut(self) -> None:
        """As abrupt as a kill: connections are cut."""
        self._closing.set()
        self.posted.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        for connection in list(self._sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        closing = self._closing
        body = request.rfile.read(int(request.headers["Content-Length"]))
        status, said = 200, b""
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            status, said = 401, b'{"error": "no such token"}'
        elif self.status is not None:
            status, said = self.status, b'{"error": "not now"}'
        else:
            try:
                said = self._report(body) if request.path == "/v1/agent/report" else self._poll(body, closing)
            except (BadInput, StoreError) as error:
                status = 400 if isinstance(error, BadInput) else 503
                said = msgspec.json.encode({"error": str(error)})
        if said == b"cut" or closing.is_set():
            request.close_connection = True
            with contextlib.suppress(OSError):
                request.connection.shutdown(socket.SHUT_RDWR)
            return
        request.send_response(status)
        request.send_header("Content-Length", str(len(said)))
        request.end_headers()
        request.wfile.write(said)

    def _report(self, body: bytes) -> bytes:
        report = msgspec.json.decode(body, type=Report)
        if why := self.refuse(report):
            raise BadInput(why)
        reply = self.reception.receive(report)
        self.reports.append(report)
        if self.lose_answers > 0 and report.items:
            self.lose_answers -= 1
            return b"cut"
        return msgspec.json.encode(reply)

    def _poll(self, body: bytes, closing: threading.Event) -> bytes:
        poll = msgspec.json.decode(body, type=Poll)
        self.polls += 1
        end = time.monotonic() + 2.0
        while True:
            self.posted.clear()
            reply = self.reception.commands(poll)
            if reply.commands or time.monotonic() > end or closing.is_set():
                return msgspec.json.encode(reply)
            self.posted.wait(0.2)

    # --- what arrived
    def facts(self) -> list[Fact]:
        return list(self.store.facts(after=0, limit=1_000_000))

    def news(self, kind: type) -> list[Any]:
        return [fact.news for fact in self.facts() if isinstance(fact.news, kind)]

    def texts(self) -> list[str]:
        return [news.text for news in self.news(Observed)]

    def command(self, seat: LocalSeat, order: AnyOrder, name: str = "c1", **more: Any) -> None:
        given = {"posted_at": datetime.now(UTC), "expires_after": 30.0, "expect": seat.incarnation, **more}
        self.store.post([Command(id=name, node=seat.id, order=order, **given)])
        self.posted.set()

    def waiting(self, seat: LocalSeat) -> list[str]:
        return [command.id for command in self.store.mail(seat.id)]


class NodeRig:
    """One seat's files, and its agent as a process."""

    def __init__(self, root: Path, door: FrontDoor, gpus: int = 2, name: str = "n1") -> None:
        self.root = root
        self.paths = Paths(root, name)
        self.seat = LocalSeat(name=name, cluster="local", pool="p", gpus=gpus, instance_id="i-1", boot_id="b-1")
        self.door = door
        self._agents: list[subprocess.Popen[bytes]] = []
        write(self.paths.seat_file, self.seat)
        self.point_at(door.port)
        self.paths.token.write_text(TOKEN)
        self.hardware = Hardware(self.paths, self.seat.instance_id)
        self.hardware.ensure(gpus)
        self.played = PlayedRanks(self.paths.instance(self.seat.instance_id))
        self.begin()

    def begin(self) -> None:
        self.hardware.begin_boot(self.seat.boot_id)
        self.ranks()

    def point_at(self, port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        write(self.root / "cluster.json", ClusterFile(id="local", seats=(self.paths.seat.name,), controller=url))

    def reboot(self, boot_id: str) -> None:
        self.seat = replace(self.seat, boot_id=boot_id)
        write(self.paths.seat_file, self.seat)
        self.begin()

    def ranks(self, *ranks: Rank) -> None:
        me = self.seat.incarnation
        status = Status(
            boot_id=me.boot_id, instance_id=me.instance_id, pid=os.getpid(), mono=time.monotonic(), ready=True,
            ranks=ranks,
        )  # fmt: skip
        write(self.paths.status, status, durable=False)

    def run_dir(self, rank: RankFile) -> Path:
        return self.played.make(self.played.run(rank))

    @property
    def kmsg(self) -> Path:
        return self.paths.kmsg(self.seat.instance_id, self.seat.boot_id)

    def log(self, *lines: str) -> None:
        self.hardware.log(self.seat.boot_id, lines)

    @property
    def spool(self) -> list[Path]:
        return sorted((self.paths.agent(self.seat.instance_id) / "spool").glob("*.jsonl"))

    @property
    def has_spooled(self) -> bool:
        """Something from a log: a segment is there before its first item is."""
        return any(b'"source":"kmsg' in path.read_bytes() for path in self.spool)

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", AGENT, "--root", str(self.root), "--seat", self.seat.name]
        environment = {**os.environ, BOOT_MARK: self.seat.boot_id, **environment}
        log = (self.root / "agent.log").open("ab")
        with log:
            agent = subprocess.Popen(command, env=environment, stderr=log)
        self._agents.append(agent)
        return agent

    def kill(self) -> None:
        for agent in self._agents:
            agent.kill()
            agent.wait()
        self._agents.clear()

    def end(self) -> int:
        agent = self._agents.pop()
        agent.send_signal(signal.SIGTERM)
        return agent.wait(10)

    @property
    def complaints(self) -> str:
        return (self.root / "agent.log").read_text()

    def kept_place(self) -> int:
        """How far the agent has noted that it read the kernel log."""
        place = Places(self.paths.agent(self.seat.instance_id)).of(SOURCE, LogPlace)
        return place.offset if place is not None else 0


@contextlib.contextmanager
def node_rig(root: Path, **door: float) -> Iterator[NodeRig]:
    front = FrontDoor(**door)
    front.open()
    rig = NodeRig(root, front)
    try:
        yield rig
    finally:
        rig.kill()
        rig.played.close()
        front.shut()


def left_by(folder: Path) -> list[str]:
    """Processes below this one that run something of a folder: a worker has others of its own, such as a database."""
    lines = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(child.cmdline()))
    return [line for line in lines if str(folder) in line]
