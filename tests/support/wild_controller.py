"""A controller that answers whatever a test says, byte for byte, and an agent's two threads that face it."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sickbay.agent.outbox import Outbox, say
from sickbay.agent.reporter import Poller, Reporter
from sickbay.agent.spool import AgentIdentity
from sickbay.agent.transport import Address, ControllerLine
from sickbay.model.facts import Observed
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.model.protocol import Command, Poll

NODE = NodeId("c/n1")
ME = Incarnation(instance_id="i", boot_id="b")

Answer = Callable[[str, dict[str, Any]], bytes | list[bytes]]  # a list: piece by piece, slowly


def http(body: object = None, status: str = "200 OK", head: str = "", raw: bytes | None = None) -> bytes:
    data = raw if raw is not None else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n{head}\r\n".encode() + data


def well(path: str, asked: dict[str, Any]) -> bytes:
    """As a controller answers that stores everything; a poll is held for a moment."""
    if path.endswith("poll"):
        time.sleep(0.2)
        return http({"ack": 0, "poll_for": 0.3})
    return http({"ack": asked["first_seq"] + len(asked["items"]) - 1, "report_every": 0.3, "poll_for": 0.3})


class Wild:
    def __init__(self, answer: Answer = well) -> None:
        self.answer = answer
        self.asked: list[tuple[float, str, dict[str, Any]]] = []
        self.drip = 0.2  # seconds between two pieces
        self._ending = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(OSError, ValueError, IndexError):
            line.settimeout(10)
            while not self._ending.is_set():
                path, asked = _request(line)
                self.asked.append((time.monotonic(), path, asked))
                answer = self.answer(path, asked)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    line.sendall(piece)
                    if not isinstance(answer, bytes):
                        self._ending.wait(self.drip)
                if b"content-length" not in (answer if isinstance(answer, bytes) else answer[0])[:4096].lower():
                    return

    def reports(self) -> list[dict[str, Any]]:
        return [asked for _, path, asked in list(self.asked) if path.endswith("report")]

    def texts(self) -> list[str]:
        return [item["news"].get("text", "") for report in self.reports() for item in report["items"]]

    def end(self) -> None:
        self._ending.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def _request(line: socket.socket) -> tuple[str, dict[str, Any]]:
    held = b""
    while b"\r\n\r\n" not in held:
        piece = line.recv(65536)
        if not piece:
            raise OSError("hung up")
        held += piece
    head, _, body = held.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length:")[2].split()[0])
    while len(body) < size:
        body += line.recv(65536)
    return head.split()[1].decode(), json.loads(body)


class Facing:
    """Reporter and poller of an agent, and what they were told to do."""

    def __init__(self, root: Path, url: str) -> None:
        self.outbox = Outbox(root / "spool", AgentIdentity(node=NODE, incarnation=ME, agent_run="r"))
        self.taken: list[Command] = []
        self.refused: list[tuple[str, str]] = []

        def address() -> Address:
            return Address(url, "t")

        self.lines = [ControllerLine(address), ControllerLine(address)]
        self.reporter = Reporter(self.outbox, self.lines[0], lambda: 0.0, self)
        self.poller = Poller(self._poll, self.lines[1], self.reporter, self)

    def _poll(self) -> Poll:
        return Poll(proto=1, node=NODE, instance_id="i", boot_id="b")

    def take(self, command: Command) -> bool:
        self.taken.append(command)
        return len([one for one in self.taken if one.id == command.id]) == 1

    def refuse(self, name: str, why: str) -> bool:
        self.refused.append((name, why))
        return True

    def say(self, text: str) -> None:
        self.outbox.put([say(Observed(node=NODE, kind="xid", fields={"number": 79}, text=text))])

    def end(self) -> None:
        self.poller.finish()
        self.reporter.finish(0.1)
        for thread in (self.reporter, self.poller):
            if thread.is_alive():
                thread.join(10)
        for line in self.lines:
            line.close()
        self.outbox.close()

    @property
    def lives(self) -> bool:
        return self.reporter.is_alive() and self.poller.is_alive()


@contextmanager
def facing(root: Path, answer: Answer = well, *, url: str = "") -> Iterator[tuple[Wild, Facing]]:
    wild = Wild(answer)
    agent = Facing(root, url or wild.url)
    agent.reporter.start()
    agent.poller.start()
    try:
        yield wild, agent
    finally:
        wild.end()
        agent.end()
