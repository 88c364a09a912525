"""File server (TCP) between the ranks of one job: it gives and takes files of checkpoints, where the secret is known.

A thread for each connection, of which there is a bounded number. Strangers, who have proven nothing yet, have places of
their own: when these are taken, the one who has stood there longest leaves, so they cannot keep a rank of the job out.
"""

import errno
import hashlib
import logging
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any

from sickbay.train import disk
from sickbay.train.layout import CheckpointName
from sickbay.train.peer_address import address_of, listen, reachable_host
from sickbay.train.peer_channel import IDLE, Channel, Cut, check
from sickbay.train.peer_shelf import REMOVED, Shelf, size_of

log = logging.getLogger("sickbay.train")
STRANGERS = 32  # connections that have proven nothing yet
SERVED = 64  # connections that have
PACE = 0.002  # seconds from one connection to the next: a flood of them must not take the time of the training
SELDOM = 10.0  # seconds between two lines about what strangers do
SMALL = 64 * 1024  # bytes: files whose sum is told, and so proven, with their size
BUFFER = 1024 * 1024
BUSY_EVERY = 0.2  # seconds between two words that something moves
SECRET = 16  # characters: a listener on the network could guess a shorter one
ENDING = 10.0  # seconds that threads get which are at the disk when all is closed


class Server:
    """Serves what is below `root` until it is closed. It listens at `host`, and at no other address of this machine.

    `reserve`: bytes that stay free on its disk. `idle`: seconds in which something must move on a connection.
    """

    def __init__(
        self, root: Path, secret: str, host: str | None = None, *, reserve: int | None = None, idle: float = IDLE
    ) -> None:
        if len(secret) < SECRET:
            raise ValueError(f"the secret of a job has at least {SECRET} characters: use secrets.token_hex()")
        self._secret, self._idle = secret, idle
        self._shelf = Shelf(root, reserve)
        self._listener = listen(reachable_host() if host is None else host)
        self._listener.setblocking(False)
        self.address = address_of(self._listener)
        self._wake, self._waker = socket.socketpair()
        self._changed = Condition()
        self._strangers: dict[socket.socket, None] = {}  # the oldest first
        self._served: set[socket.socket] = set()
        self._threads: list[Thread] = []
        self._seldom = _Seldom()
        self._closed = False
        self._pid = os.getpid()
        self._accepting = Thread(target=self._accept_all, name="sickbay-peers", daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Hang up on everybody, and wait until they are gone. A forked child leaves its parent's server alone."""
        if os.getpid() != self._pid:
            return
        with self._changed:
            first, self._closed = not self._closed, True
            self._changed.notify_all()
            if first:
                self._waker.send(b"!")
            for connection in (*self._strangers, *self._served):
                _hang_up(connection)
        self._accepting.join()
        until = monotonic() + ENDING
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
        for one in (self._listener, self._wake, self._waker):
            one.close()
        self._shelf.close()

    # --- connections

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            for one in (self._listener, self._wake):
                selector.register(one, selectors.EVENT_READ)
            while not self._closed:
                selector.select()
                pause = PACE
                try:
                    self._accept()
                except (OSError, RuntimeError) as error:  # no file or no thread is left: others will end
                    self._seldom.warn(f"peers: nobody can be served now ({error})")
                    pause = 0.5
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, pause)

    def _accept(self) -> None:
        try:
            connection, where = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # gone again, or nobody: we were woken to end
            return
        with self._changed:
            while len(self._strangers) >= STRANGERS and not self._closed:
                _hang_up(next(iter(self._strangers)))
                self._changed.wait(1.0)
            if self._closed:
                connection.close()
                return
            self._strangers[connection] = None
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = Thread(target=self._meet, args=(connection, where[0]), name="sickbay-peer", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._forget(connection)
            raise
        self._threads.append(thread)

    def _meet(self, connection: socket.socket, where: str) -> None:
        try:
            self._serve(Channel(connection, self._idle), connection, where)
        except Exception as error:  # noqa: BLE001  # one connection's trouble is not the server's
            self._seldom.warn(f"peers: a connection of {where} ended with {type(error).__name__}: {error}")
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._changed:  # so nobody hangs up on a number that is somebody else's by then
            connection.close()
            self._strangers.pop(connection, None)
            self._served.discard(connection)
            self._changed.notify_all()

    def _serve(self, channel: Channel, connection: socket.socket, where: str) -> None:
        try:
            request = channel.admit(self._secret)
        except Cut as why:
            if not self._closed:
                self._seldom.warn(f"peers: somebody at {where} was not served: {why.strerror}")
            return
        with suppress(Cut):  # the other side hears of it at its end
            try:
                self._promote(connection)
                self._answer(channel, request)
            except Cut:
                raise
            except OSError as error:
                log.info("peers: not done for %s: %s", where, error)
                channel.say({"errno": error.errno or errno.EIO, "why": (error.strerror or str(error))[:1000]})
            channel.part()

    def _promote(self, connection: socket.socket) -> None:
        with self._changed:
            if len(self._served) >= SERVED:
                raise OSError(errno.EBUSY, f"it serves {SERVED} others already: try it again in a moment")
            self._strangers.pop(connection, None)
            self._served.add(connection)
            self._changed.notify_all()

    # --- what they want

    def _answer(self, channel: Channel, request: dict[str, Any]) -> None:
        place, name = CheckpointName(request.get("attempt", 0), request.get("step", 0)), request.get("name", "")
        check(place, name)
        match request:
            case {"do": "open"}:
                self._give(channel, place, name)
            case {"do": "put", "size": int(size), "sha256": str(digest)} if 0 <= size < 2**63:
                self._take(channel, place, name, disk.Sum(size, digest))
            case _:
                raise OSError(errno.EPROTO, "it runs a version of sickbay that does not know how to do that")

    def _give(self, channel: Channel, place: CheckpointName, name: str) -> None:
        with self._shelf.open(place, name) as file:
            size = size_of(file)
            if size <= SMALL:
                content = disk.Hashing(file).read(size)
                channel.say({"size": len(content), "sha256": hashlib.sha256(content).hexdigest()})
                channel.send(content)
            else:
                channel.say({"size": size})
                start = 0
                while start < size and (sent := channel.send_block(file, start, size)):
                    start += sent  # if it ends before, so does the stream, and the other side sees that

    def _take(self, channel: Channel, place: CheckpointName, name: str, expected: disk.Sum) -> None:
        told = monotonic()

        def progress(_size: int) -> None:
            nonlocal told
            if monotonic() - told >= BUSY_EVERY:
                told = monotonic()
                channel.say({"busy": True})

        if not self._shelf.holds(place, name, expected, progress):
            self._shelf.check_room(expected.size)
            channel.say({"send": True})
            ours = self._shelf.take(place, name, expected, _arriving(channel, expected.size, progress))
            if not ours and not self._shelf.holds(place, name, expected, progress):
                raise OSError(errno.ESTALE, REMOVED)
        channel.say({"kept": True})


def _arriving(channel: Channel, size: int, progress: Callable[[int], None]) -> Iterator[memoryview]:
    """Contents of so many bytes, in pieces that are used before the next one is asked for.

    `progress` is told of all that comes: the sender of the last byte does not know how much of it is still on the way.
    """
    buffer = memoryview(bytearray(min(BUFFER, size)))
    while size:
        piece, done = buffer[: min(BUFFER, size)], 0
        while done < len(piece):
            some = channel.receive(piece[done:])
            if not some:
                raise Cut(errno.ECONNRESET, "it hung up")
            done += some
            progress(some)
        yield piece
        size -= done


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Seldom:
    """Rate-limited warnings: one in so many seconds, with the number of those that were left out."""

    def __init__(self) -> None:
        self._lock, self._next, self._missed = Lock(), 0.0, 0

    def warn(self, text: str) -> None:
        with self._lock:
            if monotonic() < self._next:
                self._missed += 1
                return
            missed, self._missed, self._next = self._missed, 0, monotonic() + SELDOM
        log.warning("%s%s", text, f" (and {missed} more before)" if missed else "")
