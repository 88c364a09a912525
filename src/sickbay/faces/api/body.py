"""A request's body, with a size limit, and an answer that reaches a caller who is still sending."""

import asyncio

from starlette.types import Message, Receive, Send

from sickbay.faces.api.refusal import ApiRefusal

DRAIN_BYTES = 256 * 1024 * 1024
DRAIN_SECONDS = 10.0


class HungUp(Exception):  # noqa: N818 - it happened
    """The caller went away before all was said: nobody is left to answer."""


class Incoming:
    """One request's body. After an early refusal the rest is read and dropped, for a while: a connection that is cut
    while the caller still sends would take the answer with it.
    """

    def __init__(self, receive: Receive, declared: str) -> None:
        self._receive = receive
        self._declared = declared
        self.whole = False

    async def read(self, limit: int) -> bytes:
        """Raises ApiRefusal(413 or 400), HungUp."""
        if self._declared.isascii() and self._declared.isdigit() and int(self._declared[:18]) > limit:
            raise _too_large(limit)
        parts: list[bytes] = []
        size = 0
        while not self.whole:
            part = await self._next()
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
        return b"".join(parts)

    async def _next(self) -> bytes:
        message: Message = await self._receive()
        if message["type"] == "http.disconnect":
            raise HungUp
        self.whole = not message.get("more_body", False)
        part: bytes = message.get("body", b"")
        return part

    async def drain(self) -> None:
        dropped = 0
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self.whole and dropped < DRAIN_BYTES:
                    dropped += len(await self._next())
        except (TimeoutError, HungUp):
            return

    async def gone(self) -> bool:
        """Whether the caller has hung up, without waiting. Only after the whole body was read."""
        try:
            async with asyncio.timeout(0):
                message = await self._receive()
        except TimeoutError:
            return False
        return bool(message["type"] == "http.disconnect")


async def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes, rest: Incoming) -> None:
    if rest.whole:
        length = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers + length})
        await send({"type": "http.response.body", "body": body})
        return
    closing = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers + closing})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await rest.drain()
    await send({"type": "http.response.body", "body": b""})


def _too_large(limit: int) -> ApiRefusal:
    return ApiRefusal(413, f"the body is too large: at most {limit // 1024 // 1024} MiB are taken here")
