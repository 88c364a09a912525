"""Peer replication (client side): files of checkpoints that lie on, or go to, the disk of another rank's node.

    server = Server(near_root, secret)                   on every rank; server.address and the secret make it a Peer
    Peer(address, secret).put(place, "rank-3.shard", path, total)
    with Peer(address, secret).open(place, "rank-3.shard") as file: …

Whatever goes wrong is an OSError that names the peer; a stream that ends early never looks like a short file. What is
put is whole, verified and on the far side's disk when `put` returns. What is opened is hashed by its reader;
files of up to 64 KB, such as the sealed sums of a rank, are proven before their first byte is handed out.
"""

import errno
import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Self

from sickbay.train import disk
from sickbay.train.layout import CheckpointName
from sickbay.train.peer_address import connect, reachable_host
from sickbay.train.peer_channel import GREETING, IDLE, Channel, Cut, check
from sickbay.train.peer_server import SMALL, Server

__all__ = ["Peer", "RemoteFile", "Server", "reachable_host"]


class RemoteFile:
    """A file of a peer, read once from its first byte to its last. That it ends before `size` bytes is an error."""

    def __init__(self, size: int, receive: Callable[[memoryview], int], close: Callable[[], None], label: str) -> None:
        self.size = size
        self._receive, self._close, self._label = receive, close, label
        self._done = 0

    def read(self, size: int = -1, /) -> bytes:
        """As many bytes as were asked for, or as there are left."""
        left = self.size - self._done
        octets = bytearray(left if size < 0 else min(size, left))
        self.readinto(octets)
        return bytes(octets)

    def readinto(self, buffer: bytearray | memoryview, /) -> int:
        """Fills the buffer, unless the whole file has been read before."""
        rest = memoryview(buffer).cast("B")[: self.size - self._done]
        wanted = len(rest)
        with _naming(self._label):
            while rest:
                some = self._receive(rest)
                if not some:
                    raise Cut(errno.ECONNRESET, f"it hung up after {self._done} of {self.size} bytes")
                rest, self._done = rest[some:], self._done + some
        return wanted

    def close(self) -> None:
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Peer(NamedTuple):
    """Where another rank's server listens, and what proves us to it and it to us."""

    address: str
    secret: str

    def open(self, place: CheckpointName, name: str, *, idle: float = IDLE) -> RemoteFile:
        """A file that it has. FileNotFoundError: it has none of that name."""
        check(place, name)
        label = f"peer {self.address}: {place}/{name}"
        with _naming(label):
            channel, answer = self._ask(place, name, idle, do="open")
            try:
                return _opened(channel, answer, label, idle)
            except BaseException:
                channel.close()
                raise

    def put(self, place: CheckpointName, name: str, source: Path, expected: disk.Sum, *, idle: float = IDLE) -> None:
        """Have it write a file, which is whole on its disk when this returns. FileExistsError: it has another one."""
        check(place, name)
        with source.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != expected.size:
                raise OSError(errno.EINVAL, f"{source} has {size} bytes, not {expected.size}: nothing was sent")
            with _naming(f"peer {self.address}: {place}/{name}"):
                channel, answer = self._ask(place, name, idle, do="put", **expected._asdict())
                with closing(channel):
                    if "kept" not in answer and "kept" not in _sent(channel, file, size):
                        raise Cut(errno.EPROTO, "it did not say that it has kept it")

    def _ask(self, place: CheckpointName, name: str, idle: float, **more: Any) -> tuple[Channel, dict[str, Any]]:
        channel = Channel(connect(self.address, min(idle, GREETING)), idle)
        try:
            channel.ask(self.secret, {"attempt": place.attempt, "step": place.step, "name": name, **more})
            try:
                return channel, _answer(channel)
            except Cut as cut:
                if cut.errno in {errno.ECONNRESET, errno.EPIPE} and not channel.is_proven:
                    raise Cut(cut.errno, "it hung up on us; does it belong to this job (the same secret)?") from cut
                raise
        except BaseException:
            channel.close()
            raise


def _answer(channel: Channel) -> dict[str, Any]:
    """What it says in the end. As long as it says that it is busy, it works: it reads what it has."""
    while (answer := _word(channel)) is None:
        pass
    return answer


def _word(channel: Channel) -> dict[str, Any] | None:
    """What it says. None: that it is busy."""
    match answer := channel.hear():
        case {"busy": _}:
            return None
        case {"errno": int(number), "why": str(why)}:
            raise OSError(number, why)
    return answer


def _opened(channel: Channel, answer: dict[str, Any], label: str, idle: float) -> RemoteFile:
    match answer:
        case {"size": int(size), "sha256": str(digest)} if 0 <= size <= SMALL:
            with closing(channel):
                content = channel.exactly(size, monotonic() + idle)
            if hashlib.sha256(content).hexdigest() != digest:
                raise Cut(errno.EBADMSG, "it was changed on the way")
            held = io.BytesIO(content)
            return RemoteFile(size, held.readinto, held.close, label)
        case {"size": int(size)} if size > SMALL:
            return RemoteFile(size, channel.receive, channel.close, label)
    raise Cut(errno.EPROTO, "it says what this version of sickbay does not understand")


def _sent(channel: Channel, file: io.FileIO, size: int) -> dict[str, Any]:
    """The answer to a file's contents. It may come before the last of them: a disk is full, or has failed."""
    done = 0
    while done < size:
        if channel.has_spoken():
            if (answer := _word(channel)) is not None:
                return answer
            continue
        try:
            sent = channel.send_block(file, done, size)
        except Cut as cut:
            if cut.errno != errno.ETIMEDOUT:
                _reason(channel)
            raise
        if not sent:
            raise OSError(errno.ESTALE, f"{file.name!r} became shorter while it was sent")
        done += sent
    return _answer(channel)


def _reason(channel: Channel) -> None:
    """Raises why it hung up, if it has said so."""
    try:
        _answer(channel)
    except Cut:
        return


@contextmanager
def _naming(label: str) -> Iterator[None]:
    """Errors that say whose they are, of the class that their number has."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno or errno.EIO, f"{label}: {error.strerror or error}") from error
