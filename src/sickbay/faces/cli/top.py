"""sickbay top: the fleet, live."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.client import Unreachable, connect
from sickbay.faces.cli.columns import width
from sickbay.faces.cli.show import SMALL, span, told_of

if TYPE_CHECKING:
    from sickbay.faces.cli.client import Client, ServerEvent
    from sickbay.faces.story import StoryAnswer

FRAME = 0.25  # seconds between two looks at the keyboard
AT_MOST_EVERY = 0.5  # seconds between two questions to the server
AT_LEAST_EVERY = 5.0
ANSWER_WITHIN = 5.0
TICKER = 200
ENDS = frozenset("qQ\x03\x1b")


@click.command("top")
@click.option("--once", is_flag=True, help="Print one plain picture and exit, as it does off a terminal.")
def top(once: bool) -> None:
    """The fleet, live: nodes, jobs, open incidents, the budget and what happens; q ends it.

    It stays when the controller goes away, says so, and goes on when it is back.

    \b
    sickbay top
    sickbay top --once
    """
    client = connect()
    if once or not sys.stdout.isatty():
        _print(client)
    else:
        _watch(client)


def _print(client: "Client") -> None:
    from rich.console import Console

    from sickbay.faces.cli.picture import plain, wide_enough

    fleet = client.get("/v1/fleet")
    console = Console(width=width() or wide_enough(fleet), highlight=False)
    console.print(plain(fleet, console.width, head=_head(client), trouble=trouble_of(fleet)))


def _head(client: "Client") -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {client.url}"


def trouble_of(fleet: dict[str, Any]) -> str:
    """The controller answers, and decides little or nothing: what is shown may stay as it is."""
    trouble = fleet.get("trouble", "")
    return f"the controller is in trouble: {trouble}" if trouble else ""


class FleetView:
    """What is known of the fleet, and since when it may be old."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.fleet: dict[str, Any] = client.get("/v1/fleet")
        self.ticker: list[StoryAnswer] = []
        self._asked = time.monotonic()
        self._stale = False
        self._away_since: float | None = None

    def hear(self, events: "list[ServerEvent]") -> None:
        for event in events:
            if event.name != "told":
                self._stale = True
            elif event.data and event.data.get("event") not in SMALL:
                self.ticker.append(told_of(event.data))
        del self.ticker[:-TICKER]

    def refresh(self) -> None:
        now = time.monotonic()
        every = AT_MOST_EVERY if self._stale or self._away_since is not None else AT_LEAST_EVERY
        if now - self._asked < every:
            return
        self._asked = now
        try:
            self.fleet = self._client.get("/v1/fleet", timeout=ANSWER_WITHIN)
        except Unreachable:
            self._away_since = self._away_since if self._away_since is not None else now
        else:
            self._stale, self._away_since = False, None

    @property
    def trouble(self) -> str:
        if self._away_since is None:
            return trouble_of(self.fleet)
        away = span(time.monotonic() - self._away_since)
        return f"{self._client.url} does not answer since {away}; this is what was last known"


def _watch(client: "Client") -> None:
    from rich.console import Console
    from rich.live import Live

    from sickbay.faces.cli.picture import picture
    from sickbay.faces.cli.watch import watching

    console = Console()
    view = FleetView(client)
    with (
        keys() as typed,
        watching(client, lambda event: event.name in {"changed", "told"}) as watch,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        while not ENDS & set(typed()):
            live.update(
                picture(view.fleet, view.ticker, console.size, head=_head(client), trouble=view.trouble), refresh=True
            )
            view.hear(watch.wait(FRAME))
            time.sleep(0.05)  # a burst of changes is one picture
            view.refresh()


@contextmanager
def keys() -> Iterator[Callable[[], str]]:
    """What was typed since the last call; the terminal is put back as it was. Nothing, where there is no keyboard."""
    if not sys.stdin.isatty():
        yield lambda: ""
        return
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def typed() -> str:
        ready, _, _ = select.select([keyboard], [], [], 0)
        return os.read(keyboard, 64).decode("utf-8", "replace") if ready else ""

    try:
        tty.setcbreak(keyboard)
        yield typed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
