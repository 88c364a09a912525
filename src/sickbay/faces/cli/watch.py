"""Server-sent events read in the background, with reconnecting; and the patience of one who waits for a server."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sickbay.faces.cli.client import Client, Opened, ServerEvent, ServerRefused, Unreachable

AWAY = 600.0  # seconds that the controller may be away while one waits; what one waits for goes on
PAUSES = (0.2, 0.5, 1.0, 2.0)  # seconds before the next try, the last one for ever


class Watch:
    """Keep what `wants` asks for, and everything that says "read it again". A refusal ends the reading for good."""

    def __init__(self, client: Client, wants: Callable[[ServerEvent], bool]) -> None:
        self._client, self._wants = client, wants
        self._news: list[ServerEvent] = []
        self._more = threading.Condition()
        self._end = threading.Event()
        self._connections: Opened = []
        self.heard = False  # the stream is open
        self.trouble: Exception | None = None
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> list[ServerEvent]:
        """What came since the last time, as soon as something did; nothing if nothing did within these seconds."""
        with self._more:
            if not self._news:
                self._more.wait(seconds)
            came, self._news = self._news, []
            return came

    def close(self) -> None:
        self._end.set()
        for connection in list(self._connections):
            if connection.sock is not None:
                with contextlib.suppress(OSError):  # it has ended by itself
                    connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5.0)

    # --- in the background
    def _read(self) -> None:
        last, failures = "", 0
        while not self._end.is_set():
            self._connections.clear()
            try:
                with contextlib.closing(self._client.events(last, self._connections)) as events:
                    for event in events:
                        failures = 0
                        last = event.id or last
                        self._keep(event)
                        if self._end.is_set():
                            return
            except Unreachable as error:
                self.trouble = error
            except ServerRefused as error:
                self.trouble = error
                return
            finally:
                self.heard = False
            self._end.wait(PAUSES[min(failures, len(PAUSES) - 1)])
            failures += 1

    def _keep(self, event: ServerEvent) -> None:
        opened = not self.heard
        self.heard = True
        if opened or event.name == "reset" or (event.name and self._wants(event)):
            with self._more:
                self._news.append(event if event.name else ServerEvent("reset", "", {}))
                self._more.notify_all()


@contextmanager
def watching(client: Client, wants: Callable[[ServerEvent], bool]) -> Iterator[Watch]:
    watch = Watch(client, wants)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()


def about(kind: str, ident: str) -> Callable[[ServerEvent], bool]:
    return lambda event: event.name == "changed" and event.data.get("kind") == kind and event.data.get("id") == ident


class ReconnectPatience:
    """How long a server may be away before waiting for it ends; says once that it is, and once that it is back."""

    def __init__(self, say: Callable[[str], None], seconds: float = AWAY) -> None:
        self._seconds, self._say = seconds, say
        self._since: float | None = None

    def ask(self, question: Callable[[], Any], pause: float) -> Any:
        """The answer, however often it must be asked. Raises Unreachable when it has been too long."""
        while True:
            try:
                found = question()
            except Unreachable as error:
                self.away(error)
                time.sleep(pause)
            else:
                self.back()
                return found

    def away(self, error: Unreachable) -> None:
        """Raises what was given when it has been too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._say(f"{error.format_message()} (waiting for it)")
        elif now - self._since > self._seconds:
            raise error

    def back(self) -> None:
        if self._since is not None:
            self._since = None
            self._say("the controller is back")
