"""Agents by the dozen in one process: each has a connection that it keeps, and sends when it has its answer.

Standard sockets and as little Python as can be: what is measured is the server. Run as `python -m bench.load`, with
one line of JSON (`Task`) on stdin; it says "ready", waits for another line, and answers with one (`Done`).
"""

import selectors
import socket
import sys
import time
from itertools import count
from urllib.parse import urlsplit

import msgspec

from bench.rig import incarnation, node_id
from sickbay.model.facts import Observed
from sickbay.model.protocol import PROTO, Item, Report

RUN = "bench"  # the run of every agent here: how their items are told apart from others


class Task(msgspec.Struct, frozen=True):
    url: str
    agents: list[int]
    items: int  # in each report; less than none: no report, a request that does nothing
    seconds: float
    stream: str


class Done(msgspec.Struct, frozen=True):
    answered: int
    seconds: float
    latencies: list[float]


def secret(number: int) -> str:
    return f"secret-of-{number}"


def news(number: int, seq: int) -> Observed:
    """Something that an agent says all day and that means nothing."""
    return Observed(
        node=node_id(number), kind="gpu.temperature", fields={"device": seq % 8, "value": 61},
        text="GPU temperature 61 C", incarnation=incarnation(number),
    )  # fmt: skip


class Agent:
    """One connection, and what goes over it next."""

    def __init__(self, number: int, task: Task) -> None:
        address = urlsplit(task.url)
        self._number = number
        self._task = task
        self._seq = count(1)
        self.line = socket.create_connection((address.hostname or "", address.port or 0), timeout=30)
        self.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._head = (
            f"POST /v1/agent/report HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {secret(number)}\r\nContent-Length: "
        )
        self._nothing = f"GET /healthz HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode()
        self._heard = b""
        self.sent_at = 0.0

    def send(self) -> None:
        self.sent_at = time.perf_counter()
        if self._task.items < 0:
            self.line.sendall(self._nothing)
            return
        body = msgspec.json.encode(self._report())
        self.line.sendall(f"{self._head}{len(body)}\r\n\r\n".encode() + body)

    def _report(self) -> Report:
        me, now = incarnation(self._number), time.monotonic()
        seqs = [next(self._seq) for _ in range(self._task.items)]
        return Report(
            proto=PROTO, node=node_id(self._number), uid=me.uid, instance_id=me.instance_id, boot_id=me.boot_id,
            agent_run=RUN, stream=self._task.stream, first_seq=seqs[0] if seqs else 1, mono_now=now,
            wall_now=time.time(), watermark=now,
            items=tuple(Item(seq=seq, mono=now, news=news(self._number, seq)) for seq in seqs),
        )  # fmt: skip

    def hear(self) -> bool:
        """Whether the answer is whole."""
        piece = self.line.recv(65_536)
        if not piece:
            raise RuntimeError("the server has closed the connection")
        self._heard += piece
        head, end, body = self._heard.partition(b"\r\n\r\n")
        if not end:
            return False
        first, *fields = head.lower().split(b"\r\n")
        length = next(int(one.partition(b":")[2]) for one in fields if one.startswith(b"content-length:"))
        if len(body) < length:
            return False
        if b" 200 " not in first + b" ":
            raise RuntimeError(f"refused: {first.decode()} {body.decode()[:200]}")
        self._heard = b""
        return True


def work(agents: list[Agent], seconds: float) -> Done:
    """A closed loop; what is under way at the end is heard, and does not count."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as ready:
        for agent in agents:
            ready.register(agent.line, selectors.EVENT_READ, agent)
        begun = now = time.perf_counter()
        for agent in agents:
            agent.send()
        while now - begun < seconds:
            for key, _ in ready.select(1.0):
                agent = key.data
                if agent.hear():
                    latencies.append(time.perf_counter() - agent.sent_at)
                    agent.send()
            now = time.perf_counter()
        for agent in agents:
            while not agent.hear():
                pass
    return Done(answered=len(latencies), seconds=now - begun, latencies=latencies)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)
    agents = [Agent(number, task) for number in task.agents]
    print("ready", flush=True)
    sys.stdin.readline()
    print(msgspec.json.encode(work(agents, task.seconds)).decode(), flush=True)
    for agent in agents:
        agent.line.close()


if __name__ == "__main__":
    main()
