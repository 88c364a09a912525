"""Challenge-response and framing: one connection between two ranks of a job, each proven to know the job's secret.

    server → client   MAGIC, 32 random bytes                      its challenge
    client → server   32 random bytes, frame: what it asks for    its challenge; the frame is the client's proof
    server → client   frame: the answer                           the server's proof
                      contents, as they are                       as many bytes as the frames have said

A frame is a length (4 bytes, big endian), JSON, and an HMAC-SHA256 of that JSON, of who speaks and of the frame's
number, under a key made of the secret and both challenges. So without the secret, which is never on the wire, nobody
can write a frame, change one, repeat one of this or another connection, or send one back to where it came from. Nothing
is parsed before its HMAC was found right. Nothing is encrypted.
"""

import errno
import hmac
import json
import os
import re
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any, BinaryIO

from sickbay.train.layout import CheckpointName

IDLE = 30.0  # seconds in which something must move on a connection; no limit to how long all of it takes
GREETING = 10.0  # seconds that a stranger has to prove himself
MAGIC = b"sickbay-peers 1\n"
CHALLENGE, PROOF = 32, 32  # bytes
MOST = 4096  # bytes of a frame's JSON
BLOCK = 8 * 1024 * 1024  # bytes of a file that are sent before somebody looks whether the other side has spoken
LINGER = 1.0  # seconds that the last words have to arrive
NAME = re.compile(r"rank-(0|[1-9][0-9]{0,8})\.(shard|json)\Z")


class Cut(OSError):  # noqa: N818  # it is a state of the connection
    """The connection is of no use any more: nothing can be said on it."""


def check(place: CheckpointName, name: str) -> None:
    """Refuse what is no file of a checkpoint. Without a slash, a NUL or a leading dot no name leaves its directory."""
    numbers = all(type(number) is int and least <= number < 2**63 for number, least in zip(place, (1, 0), strict=True))
    if not numbers or not isinstance(name, str) or not NAME.match(name):
        raise OSError(errno.EINVAL, f"{name!r:.40} of {tuple(place)!r:.60} is no file of a checkpoint")


class Channel:
    """A connected socket: a deadline on every operation, frames that prove who has written them, and contents."""

    def __init__(self, connection: socket.socket, idle: float) -> None:
        self._socket = connection
        self._socket.settimeout(idle)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._idle = idle
        self._key = b""
        self._ours, self._theirs = b"", b""
        self._said = self._heard = 0

    # --- proof

    def admit(self, secret: str) -> dict[str, Any]:
        """The server's side: what is asked for by somebody who knows the secret. Cut: by anybody else."""
        until = monotonic() + min(self._idle, GREETING)  # for all of it: a stranger who sends byte after byte is one
        challenge = os.urandom(CHALLENGE)
        self.send(MAGIC + challenge, until)
        self._agree(secret, challenge, self.exactly(CHALLENGE, until), b"server", b"client")
        return self.hear(until)

    def ask(self, secret: str, request: dict[str, Any]) -> None:
        """The client's side. Only what is heard after it proves the server."""
        until = monotonic() + min(self._idle, GREETING)
        greeting = self.exactly(len(MAGIC) + CHALLENGE, until)
        if not greeting.startswith(MAGIC):
            raise Cut(errno.EPROTO, "what listens there is no server of peers, or one of another version of sickbay")
        challenge = os.urandom(CHALLENGE)
        self._agree(secret, greeting[len(MAGIC) :], challenge, b"client", b"server")
        self.say(request, challenge)

    def _agree(self, secret: str, of_server: bytes, of_client: bytes, ours: bytes, theirs: bytes) -> None:
        self._key = hmac.digest(secret.encode(), MAGIC + of_server + of_client, "sha256")
        self._ours, self._theirs = ours, theirs

    def _proof(self, speaker: bytes, number: int, text: bytes) -> bytes:
        return hmac.digest(self._key, speaker + number.to_bytes(8, "big") + text, "sha256")

    # --- frames

    def say(self, message: dict[str, Any], before: bytes = b"") -> None:
        text = json.dumps(message).encode()
        proof = self._proof(self._ours, self._said, text)
        self._said += 1
        self.send(before + len(text).to_bytes(4, "big") + text + proof, monotonic() + self._idle)

    def hear(self, until: float | None = None) -> dict[str, Any]:
        until = monotonic() + self._idle if until is None else until
        size = int.from_bytes(self.exactly(4, until), "big")
        if size > MOST:
            raise Cut(errno.EMSGSIZE, f"it announced {size} bytes where at most {MOST} are due")
        text, proof = self.exactly(size, until), self.exactly(PROOF, until)
        if not hmac.compare_digest(proof, self._proof(self._theirs, self._heard, text)):
            raise Cut(errno.EBADMSG, "its proof is wrong: it has another secret, or its words were changed on the way")
        self._heard += 1
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise Cut(errno.EPROTO, "it says what this version of sickbay does not understand")
        return message

    @property
    def is_proven(self) -> bool:
        """Whether the other side has shown that it knows the secret."""
        return self._heard > 0

    def has_spoken(self) -> bool:
        """Whether the other side has sent something, or hung up."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    # --- octets

    def receive(self, buffer: memoryview, until: float | None = None) -> int:
        """Some bytes; 0: the other side sends no more."""
        return self._within(until, self._socket.recv_into, buffer)

    def exactly(self, size: int, until: float) -> bytes:
        """So many bytes, for all of which there is that time. Only of what is small."""
        buffer, done = bytearray(size), 0
        while done < size:
            some = self.receive(memoryview(buffer)[done:], until)
            if not some:
                raise Cut(errno.ECONNRESET, "it hung up")
            done += some
        return bytes(buffer)

    def send(self, octets: bytes, until: float | None = None) -> None:
        rest = memoryview(octets)
        while rest:
            rest = rest[self._within(until, self._socket.send, rest) :]

    def send_block(self, file: BinaryIO, start: int, end: int) -> int:
        """Send some bytes of a file; how many. 0: it has none there."""
        return self._within(None, self._socket.sendfile, file, start, min(BLOCK, end - start))

    def part(self) -> None:
        """Close it so that what was said last arrives: unread bytes would make the kernel reset the connection."""
        until, scrap = monotonic() + LINGER, memoryview(bytearray(65536))
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while self.receive(scrap, until):
                pass
        self.close()

    def close(self) -> None:
        self._socket.close()

    def _within(self, until: float | None, call: Callable[..., int], *arguments: object) -> int:
        left = self._idle if until is None else until - monotonic()
        if left > 0:
            try:
                self._socket.settimeout(left)
                return call(*arguments)
            except TimeoutError:
                pass
            except OSError as error:
                raise Cut(error.errno or errno.EIO, error.strerror or str(error)) from error
        raise Cut(errno.ETIMEDOUT, "nothing moved in time: it hangs, or the network between does")
