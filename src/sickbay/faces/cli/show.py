"""Terminal output: JSON, stories, durations; and the text that a terminal must not obey."""

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import click

from sickbay.faces.story import StoryAnswer, What, short

SMALL = frozenset({"effect", "intent", "joined"})  # events that are too small for a ticker
COLOURS = {What.HAPPENED: "magenta", What.SEEN: "cyan", What.DECIDED: "yellow", What.DONE: "green"}
STATES = {
    "READY": "green", "UNKNOWN": "magenta", "SUSPECT": "yellow", "OUT": "blue", "LOST": "red", "HELD": "bright_red",
    "INTAKE": "cyan",
}  # fmt: skip

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, alone on standard output.")
seed_option = click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default="0",
    help="The same seed gives the same run.",
)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


_CONTROL = dict.fromkeys([*range(32), 127, *range(128, 160), *range(8234, 8239), *range(8294, 8298)], "�")
_CONTROL |= {ord("\t"): " ", ord("\n"): " ", ord("\r"): " "}


def clean(text: str) -> str:
    """On one line, and without what a terminal would obey: kernel lines and reasons come from anywhere."""
    return text.translate(_CONTROL)


def leave(code: int) -> NoReturn:
    raise click.exceptions.Exit(code)


def quiet() -> None:
    """The engine's own log is for controllers; here the story is shown instead."""
    logging.getLogger("sickbay").addHandler(logging.NullHandler())
    logging.getLogger("sickbay").propagate = False


def span(seconds: float | None) -> str:
    """A duration as people read it: 4.2 s, 2 m 45 s, 3 h 05 m, 2 d 04 h."""
    if seconds is None:
        return "–"
    if seconds < 100:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, less, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // less:02d} {small}"
    return f"{whole} s"


def since(begin: datetime, at: datetime) -> str:
    """A moment by the run's own time: 00:10:05, or 3d 04:12:10."""
    seconds = max(0, int((at - begin).total_seconds()))
    days, rest = divmod(seconds, 86_400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}d {clock}" if days else clock


def story_line(time: str, told: StoryAnswer, width: int = 12) -> str:
    """What has several lines, such as stacks, keeps them, below one another."""
    what = click.style(f"{told.what:<8}", fg=COLOURS.get(told.what))
    first, *more = told.text.splitlines() or [""]
    below = " " * (len(time) + 2 + 8 + 1)
    head = f"{click.style(time, dim=True)}  {what} {short(told.about):<{width}} {clean(first)}"
    return "\n".join([head, *(f"{below}{clean(line)}" for line in more)])


def print_story(story: Sequence[StoryAnswer], begin: datetime | None = None) -> None:
    """With `begin` in the run's own time; without, by the wall, the date where it changes."""
    width = max((len(short(told.about)) for told in story), default=0)
    times = max((len(since(begin, told.at)) for told in story), default=0) if begin is not None else 0
    day = ""
    for told in story:
        if begin is None and (today := told.at.strftime("%Y-%m-%d")) != day:
            day = today
            click.echo(click.style(f"{day} (UTC)", dim=True))
        time = since(begin, told.at) if begin is not None else told.at.strftime("%H:%M:%S")
        click.echo(story_line(time.rjust(times), told, width))


def heading(text: str) -> None:
    click.echo()
    click.echo(click.style(text, bold=True))


def told_of(line: dict[str, Any]) -> StoryAnswer:
    """A line of the story as it comes over the wire."""
    what = line["what"] if line["what"] in set(What) else What.SEEN
    at = datetime.fromisoformat(line["at"])
    return StoryAnswer(at=at, what=What(what), about=line["about"], text=line["text"], event=line.get("event", ""))


def budget_words(budget: dict[str, Any]) -> str:
    def of(value: int, limit: int | None) -> str:
        return f"{value} of {limit}" if limit is not None else str(value)

    held = f", {budget['held']} held for a person" if budget["held"] else ""
    return (
        f"pool {budget['pool']} has {budget['size']} seats; {of(budget['out'], budget['may_be_out'])} out of service, "
        f"{of(budget['repairing'], budget['may_be_repairing'])} in repair{held}"
    )
