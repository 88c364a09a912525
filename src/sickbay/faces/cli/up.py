"""sickbay up: a simulated fleet that breaks and heals while one watches."""

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from sickbay.faces.cli.show import leave, quiet, seed_option, since, story_line

if TYPE_CHECKING:
    from sickbay.faces.story import Told
    from sickbay.sim.simulation import Simulation

FRAME = 0.125  # seconds of real time between two pictures
SPEED = 60.0
WITHOUT_TERMINAL = 60.0
A_FAULT_EVERY = 400.0  # virtual seconds
SMALL = frozenset({"effect", "intent", "joined"})  # events that are too small for a ticker


@click.command("up")
@click.option("--nodes", metavar="N", type=click.IntRange(4, 2000), default=24, show_default="24", help="How many.")
@click.option(
    "--speed", metavar="X", type=click.FloatRange(1, 3600), default=SPEED, show_default="60",
    help="Virtual seconds in each second.",
)  # fmt: skip
@click.option(
    "--for", "seconds", metavar="SECONDS", type=click.FloatRange(min=0.1), help="End by itself after so long."
)
@seed_option
def up(nodes: int, speed: float, seconds: float | None, seed: int) -> None:
    """Watch a simulated fleet break and heal, live; q ends it.

    Three jobs train on most of the nodes. Every few seconds something breaks, with the causes that Meta has published
    for Llama 3, and the real engine does what the default policy says. Off a terminal it prints plain lines instead.
    """
    quiet()
    live = sys.stdout.isatty()
    fleet = Fleet(nodes=nodes, seed=seed, speed=speed)
    end = seconds if seconds is not None else None if live else WITHOUT_TERMINAL
    try:
        (_watch if live else _plain)(fleet, end)
    except KeyboardInterrupt:
        pass
    except AssertionError as error:
        click.echo(f"broken: {' '.join(str(error).split())}; repeat it with: {fleet.repeat}", err=True)
        leave(1)


class Fleet:
    """The simulation behind the picture, and the ticker of what happened in it."""

    def __init__(self, *, nodes: int, seed: int, speed: float) -> None:
        from msgspec.structs import replace

        from sickbay.sim.scenarios import Scenario, fleet_jobs, stage
        from sickbay.sim.weather import drizzle

        jobs = tuple(
            replace(job, checkpoint_every=300, load=timedelta(minutes=1), reports_every=timedelta(seconds=20))
            for job in fleet_jobs(nodes)
        )
        self.sim: Simulation = stage(Scenario(name="up", nodes=nodes, jobs=jobs), seed)
        self.speed, self.seed = speed, seed
        self.repeat = f"sickbay up --nodes {nodes} --seed {seed} --speed {speed:g}"
        self._read: dict[str, int] = {}
        self._over: set[str] = set()
        drizzle(self.sim, seed, every=A_FAULT_EVERY, jobs=[job.name for job in jobs])

    def advance(self, seconds: float) -> None:
        self.sim.run(seconds * self.speed)

    def news(self) -> "list[Told]":
        """What was told since the last time."""
        from sickbay.faces.story import tell, weave

        fresh = {}
        rows = [(f"incident:{i.id}", i.open) for i in self.sim.incidents()]
        rows += [(f"job:{j.id}", j.open) for j in self.sim.jobs()]
        for key, still_open in rows:
            if key in self._over:
                continue
            lines = self.sim.store.story(key, 1000)
            fresh[key] = lines[self._read.get(key, 0) :]
            self._read[key] = len(lines)
            if not still_open:
                self._over.add(key)
        return tell([line for line in weave(fresh) if line.event not in SMALL])


def _pace(fleet: Fleet, end: float | None, stop: Callable[[], bool]) -> Iterator[None]:
    """One frame after the other, by the wall; a machine that is too slow makes the fleet slower, never jumpy."""
    begin = time.monotonic()
    while not stop() and (end is None or time.monotonic() - begin < end):
        frame = time.monotonic()
        fleet.advance(FRAME)
        yield
        time.sleep(max(0.0, FRAME - (time.monotonic() - frame)))


def _plain(fleet: Fleet, end: float | None) -> None:
    from sickbay.sim.schedule import EPOCH

    for _ in _pace(fleet, end, lambda: False):
        for told in fleet.news():
            click.echo(story_line(since(EPOCH, told.at), told))


def _watch(fleet: Fleet, end: float | None) -> None:
    from rich.console import Console
    from rich.live import Live

    from sickbay.faces.cli.picture import picture

    console = Console()
    ticker: list[Told] = []
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        for _ in _pace(fleet, end, lambda: pressed() in {"q", "Q", "\x03"}):
            ticker = [*ticker, *fleet.news()][-200:]
            live.update(picture(fleet.sim, ticker, console.size, fleet.speed), refresh=True)


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """What was typed, without waiting for a line's end; the terminal is put back as it was."""
    if not sys.stdin.isatty():
        yield lambda: ""
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed() -> str:
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
