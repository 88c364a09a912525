"""Connection limits and deadlines against slow, half-open and flooding clients (slowloris).

The server of uvicorn accepts what comes and waits for ever for the rest of a request's head. Here every connection is
counted from its accept on, there are fewer of them than file descriptors, and each that owes us something (a handshake,
a head, a body, the reading of an answer) owes it by a deadline. What is being answered, held or streamed has none.
"""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger("sickbay.server")

HANDSHAKE_WITHIN = 10.0  # seconds
HEAD_WITHIN = 10.0  # from the accept, or the first byte of a later request, to the end of the head
BODY_WITHIN = 60.0  # 4 MiB, the most that anybody sends, at 70 KiB a second
READ_WITHIN = 60.0  # an answer that nobody reads
HEAD_MOST = 65_536  # bytes of a head that is not whole yet
CRUMBS = 500  # chunks of a body, however small; beyond them each has on average
CRUMB = 128  # bytes: one of a byte costs as much of our time as one of a megabyte
MOST, LEAST = 16_384, 16
RESERVED = 256  # descriptors that are left to the store, logs, files of ranks, and calls
AT_ONCE = 64  # accepts, and evictions, in one go: fewer than are reserved
SAY_EVERY = 60.0
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
BUSY = b'{"error":"too many connections: try again in a moment"}'


def connections_allowed() -> int:
    """As many as the limit of file descriptors leaves room for (`ulimit -n`, `LimitNOFILE=`)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST
    return max(LEAST, min(MOST, soft - min(RESERVED, soft // 2)))


class ConnectionStage(StrEnum):
    """What a connection is doing."""

    HANDSHAKE = "handshake"
    HEAD = "head"  # the head of a request is not whole yet, or has not begun
    BODY = "body"
    BUSY = "busy"  # it is answered, held, or streamed to
    IDLE = "idle"  # kept alive between two requests


class ClientConnection:
    """One connection, from its accept to its end."""

    def __init__(self, address: str, abort: Callable[[], None]) -> None:
        self.address = address
        self.abort = abort
        self.since = time.monotonic()
        self.protocol: GuardedHttp | None = None

    @property
    def stage(self) -> ConnectionStage:
        return self.protocol.stage if self.protocol is not None else ConnectionStage.HANDSHAKE

    @property
    def admitted(self) -> bool:
        return self.protocol is not None and self.protocol.admitted

    @property
    def evictable(self) -> bool:
        return self.stage in {ConnectionStage.HANDSHAKE, ConnectionStage.HEAD, ConnectionStage.IDLE} or (
            self.stage is ConnectionStage.BODY and not self.admitted
        )


class ConnectionTable:
    """Admission and eviction: who has not shown a token goes first, of these the address with the most connections
    first, and its oldest first. So a flood pushes out itself: an agent that is known is pushed out last.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.evicted = self.refused = 0
        self._peers: dict[ClientConnection, None] = {}
        self._say_from = 0.0
        self._said = (0, 0)

    def __len__(self) -> int:
        return len(self._peers)

    def take(self, peer: ClientConnection) -> bool:
        """Room for one more, made where there is none. False: everybody is busy."""
        if len(self._peers) >= self.most and not self._evict():
            self.refused += 1
            self._say()
            return False
        self._peers[peer] = None
        return True

    def drop(self, peer: ClientConnection) -> None:
        self._peers.pop(peer, None)

    def _evict(self) -> int:
        """Some at once, so that a flood does not have all of them compared for each of its connections."""
        crowd = Counter(peer.address for peer in self._peers)
        able = [peer for peer in self._peers if peer.evictable]
        able.sort(key=lambda peer: (peer.admitted, -crowd[peer.address], peer.since))
        strangers = sum(not peer.admitted for peer in able)
        # Of those that are known one is enough: they come back at once.
        gone = able[: max(1, min(AT_ONCE, self.most // 32, strangers))]
        for peer in gone:
            self.drop(peer)
            peer.abort()
        self.evicted += len(gone)
        if gone:
            self._say()
        return len(gone)

    def _say(self) -> None:
        if time.monotonic() < self._say_from:
            return
        evicted, refused = self.evicted - self._said[0], self.refused - self._said[1]
        self._said, self._say_from = (self.evicted, self.refused), time.monotonic() + SAY_EVERY
        log.warning(
            "%d connections are open, as many as the limit of file descriptors allows; since this was last said "
            "%d idle or slow ones were ended and %d refused; if these are your agents, raise LimitNOFILE= or ulimit -n",
            len(self._peers), evicted, refused,
        )  # fmt: skip


class Acceptor:
    """Accepts for one listening socket, in the place of asyncio's own server, which counts nothing."""

    def __init__(
        self,
        listening: socket.socket,
        make: Callable[[ClientConnection], "GuardedHttp"],
        tls: ssl.SSLContext | None,
        table: ConnectionTable,
    ) -> None:
        self._listening = listening
        self._make = make
        self._tls = tls
        self._table = table
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        self._loop.remove_reader(self._listening.fileno())
        if self._again is not None:
            self._again.cancel()
        for task in self._beginning:
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._beginning, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            connection.setblocking(False)
            self._admit(connection, str(address[0]))

    def _pause(self, error: OSError) -> None:
        """Something else has used the descriptors up. Asked at once, it would be refused again, a thousand times."""
        if error.errno not in FULL:
            log.warning("a connection could not be accepted: %s", error)
        self._table.refused += 1
        self._loop.remove_reader(self._listening.fileno())
        self._again = self._loop.call_later(1.0, self._loop.add_reader, self._listening.fileno(), self._accept)

    def _admit(self, connection: socket.socket, address: str) -> None:
        peer = ClientConnection(address, lambda: None)
        if not self._table.take(peer):
            if self._tls is None:
                with contextlib.suppress(OSError):
                    connection.send(answer_of(503, BUSY))
            connection.close()
            return
        task = self._loop.create_task(self._begin(connection, peer))

        def begun(_: object) -> None:
            """Also of one that was cancelled before it had begun."""
            self._beginning.discard(task)
            if peer.protocol is None:
                self._table.drop(peer)
                connection.close()

        peer.abort = task.cancel  # type: ignore[assignment]
        self._beginning.add(task)
        task.add_done_callback(begun)

    async def _begin(self, connection: socket.socket, peer: ClientConnection) -> None:
        within = HANDSHAKE_WITHIN if self._tls is not None else None
        with contextlib.suppress(OSError):  # its handshake failed, or took too long
            await self._loop.connect_accepted_socket(
                lambda: self._make(peer), connection, ssl=self._tls, ssl_handshake_timeout=within
            )


class ChunkLimit(h11.Connection):
    """A parser that takes no body in crumbs: four connections that send chunks of one byte would keep everybody else
    waiting for as long as they like.
    """

    chunks = carried = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self.chunks = self.carried = 0
        elif isinstance(event, h11.Data):
            self.chunks += event.chunk_end
            self.carried += len(event.data)
            if self.chunks > CRUMBS + self.carried // CRUMB:
                raise h11.RemoteProtocolError("the body comes in too many chunks")
        return event


class GuardedHttp(H11Protocol):
    """HTTP/1.1 with a deadline for whatever the other side owes. `peer` is told what becomes of the connection."""

    def __init__(self, *given: object, peer: ClientConnection, table: ConnectionTable, **more: object) -> None:
        super().__init__(*given, **more)  # type: ignore[arg-type]
        self.conn = ChunkLimit(h11.SERVER, HEAD_MOST)
        self._peer = peer
        self._table = table
        self._admitted = False
        self._owes = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    # --- what it is doing
    @property
    def admitted(self) -> bool:
        """A token was shown on it that is good: the application says so in the request's state."""
        self._admitted = self._admitted or bool(self.scope and self.scope.get("state", {}).get("admitted"))
        return self._admitted

    @property
    def stage(self) -> ConnectionStage:
        if self.cycle is None:
            return ConnectionStage.HEAD
        if self.conn.their_state is h11.SEND_BODY:
            return ConnectionStage.BODY
        if self.cycle.response_complete:
            return ConnectionStage.HEAD if self._owes == ConnectionStage.HEAD else ConnectionStage.IDLE
        return ConnectionStage.BUSY

    # --- what happens to it
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer.protocol = self
        self._peer.abort = transport.abort
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.drop(self._peer)
        self._expect("")
        self._cancel_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def send_400_response(self, msg: str) -> None:
        """Not where an answer is under way: there would be two. Whoever was to answer hears that nobody listens."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        _ = self.admitted  # of the request that is over
        super().on_response_complete()
        self._look()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cancel_unread()
        self._unread = self.loop.call_later(READ_WITHIN, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_unread()
        super().resume_writing()

    # --- what it owes
    def _look(self) -> None:
        if self.transport.is_closing():
            self._expect("end", HEAD_WITHIN)
        elif self.cycle is None or (self.cycle.response_complete and self.conn.trailing_data[0]):
            self._expect(ConnectionStage.HEAD, HEAD_WITHIN)
        elif self.conn.their_state is h11.SEND_BODY:
            self._expect(ConnectionStage.BODY, BODY_WITHIN)
        else:
            self._expect("")

    def _expect(self, what: str, within: float = 0.0) -> None:
        """A deadline that runs is not put off by a byte more."""
        if what == self._owes:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._owes = what
        self._deadline = self.loop.call_later(within, self._overdue) if what else None

    def _overdue(self) -> None:
        if self._owes == ConnectionStage.BODY and self.flow.read_paused:  # it is we who do not read
            self._deadline = self.loop.call_later(BODY_WITHIN, self._overdue)
        elif self._owes == ConnectionStage.HEAD and self.conn.trailing_data[0]:
            self.transport.write(answer_of(408, b'{"error":"the head of the request did not come in time"}'))
            self.transport.close()
            self._look()
        else:
            self.transport.abort()

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def answer_of(status: int, body: bytes) -> bytes:
    """A whole answer, for whoever is not let in far enough to be answered by the application."""
    words = {400: b"Bad Request", 408: b"Request Timeout", 503: b"Service Unavailable"}[status]
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (status, words, len(body)) + body


class SparingFilter(logging.Filter):
    """Rate limit of a log: one message of a kind within so many seconds, with how many were left out before it."""

    def __init__(self, every: float = SAY_EVERY) -> None:
        super().__init__()
        self._every = every
        self._from: dict[str, float] = {}
        self._left_out: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now = str(record.msg)[:100], time.monotonic()
        if now < self._from.get(kind, 0.0):
            self._left_out[kind] += 1
            return False
        if len(self._from) > 100:
            self._from.clear()
        self._from[kind] = now + self._every
        if missing := self._left_out.pop(kind, 0):
            record.msg = f"{record.msg} (and {missing} times more since this was last said)"
        return True
