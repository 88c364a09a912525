"""Two ends and a wire between them that does what a test says."""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from sickbay.train import disk
from sickbay.train.layout import CheckpointName
from sickbay.train.peers import Peer, Server

SECRET = "correct horse battery staple"
PLACE, NAME = CheckpointName(2, 40), "rank-3.shard"
UP, DOWN = "up", "down"  # to the server, and from it
Rule = Callable[[str, int, bytes], bytes]


def as_it_is(_direction: str, _offset: int, chunk: bytes) -> bytes:
    return chunk


class Proxy:
    """A man in the middle. `rule(direction, offset, chunk)` says what goes on; ConnectionError cuts both ways."""

    def __init__(self, target: str, rule: Rule = as_it_is) -> None:
        self._target, self.rule = target, rule
        self.seen = {UP: bytearray(), DOWN: bytearray()}  # of all connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                host, _, port = self._target.rpartition(":")
                try:
                    server = socket.create_connection((host, int(port)))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                for direction, one, other in ((UP, client, server), (DOWN, server, client)):
                    thread = threading.Thread(target=self._pump, args=(direction, one, other))
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, direction: str, one: socket.socket, other: socket.socket) -> None:
        offset = 0
        try:
            while chunk := one.recv(65536):
                self.seen[direction] += chunk[: max(0, 65536 - len(self.seen[direction]))]
                other.sendall(self.rule(direction, offset, chunk))
                offset += len(chunk)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (one, other):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        for one in (self._listener, *self._sockets):
            one.close()


class Gate:
    """A rule that lets so many bytes pass in one direction and then waits until it is opened."""

    def __init__(self, direction: str, after: int) -> None:
        self._direction, self._after = direction, after
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, direction: str, offset: int, chunk: bytes) -> bytes:
        if direction == self._direction and offset + len(chunk) > self._after:
            self.reached.set()
            self.opened.wait(30)
        return chunk


def source_of(directory: Path, size: int, name: str = "source") -> tuple[Path, disk.Sum]:
    """A file of so many random bytes; of more than a megabyte, the same ones again and again."""
    path = directory / name
    pattern = os.urandom(min(size, 1_000_003))
    path.write_bytes((pattern * (size // len(pattern) + 1))[:size] if size else b"")
    return path, disk.measure(path)


def fetch(peer: Peer, place: CheckpointName = PLACE, name: str = NAME, idle: float = 10.0) -> disk.Sum:
    with peer.open(place, name, idle=idle) as file:
        total = disk.Hashing(file).finish()
    assert total.size == file.size
    return total


def put(address: str, source: Path, total: disk.Sum, *, idle: float = 10.0, name: str = NAME) -> None:
    Peer(address, SECRET).put(PLACE, name, source, total, idle=idle)


def visible(root: Path) -> list[str]:
    """Every file below a root but those that somebody is receiving."""
    return sorted(str(path.relative_to(root)) for path in root.glob("attempt-*/**/*") if not path.is_dir())


def arriving(root: Path) -> list[Path]:
    return list((root / ".incoming").glob("*"))


def guests(server: Server) -> int:
    """Connections that it has open."""
    return len(server._strangers) + len(server._served)
