"""The table printer, and cards: columns that line up within the terminal's width, one object as a few short lines.

Nothing is cut where nobody has a width: what goes into a pipe or a file is whole.
"""

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple

import click

from sickbay.faces.cli.show import STATES, clean, print_json, span

LEAST = 12  # a column that is cut keeps so many characters
NARROW = 60

PAINT = {
    **STATES,
    "RUNNING": "green", "COMPLETE": "green", "RELEASED": "green", "FAILED": "bright_red", "STOPPED": "red",
    "GATING": "cyan", "VERIFYING": "cyan", "QUEUED": "yellow", "STOPPING": "yellow", "DIAGNOSING": "yellow",
    "QUARANTINED": "blue", "DRAINING": "blue", "DRAINED": "blue", "REPAIRING": "blue", "WATCHED": "yellow",
    "pass": "green", "fail": "bright_red", "could_not_run": "magenta",
}  # fmt: skip


class Column(NamedTuple):
    """`of`: its cell. `right`: figures. `cut`: the one that gives way when the line is too long."""

    name: str
    of: Callable[[Any], object]
    right: bool = False
    cut: bool = False


def field(name: str, *, right: bool = False, cut: bool = False) -> Column:
    """The column that shows the field of its name."""
    return Column(name, lambda row: row[name] if row[name] is not None else "", right, cut)


def width() -> int | None:
    """Of the terminal; None: the output is none, and is as wide as what is in it."""
    return max(NARROW, shutil.get_terminal_size((80, 24)).columns) if sys.stdout.isatty() else None


def columns(head: Sequence[Column], rows: Iterable[Any], indent: str = "") -> None:
    """One line for each. Names are never cut, because people copy them."""
    whole = [tuple("–" if (cell := column.of(row)) is None else clean(str(cell)) for column in head) for row in rows]
    sizes = [max([len(column.name), *(len(row[n]) for row in whole)]) for n, column in enumerate(head)]
    wide = width()
    for n, column in enumerate(head):
        if column.cut and wide is not None:
            rest = sum(sizes) - sizes[n] + 2 * (len(head) - 1) + len(indent)
            sizes[n] = max(LEAST, min(sizes[n], wide - rest))
    click.echo(indent + click.style(_line(head, sizes, [column.name for column in head]), dim=True))
    for row in whole:
        click.echo(indent + _line(head, sizes, row))


def figures(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """The first column is text, the others are figures; nothing at all where there are no rows."""
    if rows:
        columns([Column(name, itemgetter(n), right=n > 0) for n, name in enumerate(head)], rows, indent="  ")


def show_list(
    found: Sequence[Any], head: Sequence[Column], *, empty: str, as_json: bool, then: Callable[[], str] = str
) -> None:
    """What a list command prints: JSON, or a table, or why there is nothing in it; `then` hints at what to do next."""
    if as_json:
        print_json(found)
    elif not found:
        say(empty)
    else:
        columns(head, found)
        if more := then():
            hint(more)


def show_one(found: Any, show: Callable[[Any], None], *, as_json: bool) -> None:
    """What a command about one object prints: JSON, or what `show` makes of it."""
    if as_json:
        print_json(found)
    else:
        show(found)


def _line(head: Sequence[Column], sizes: Sequence[int], row: Sequence[str]) -> str:
    cells = []
    for column, size, cell in zip(head, sizes, row, strict=True):
        fits = cut(cell, size) if column.cut else cell
        padded = fits.rjust(size) if column.right else fits.ljust(size)
        cells.append(padded.replace(cell, click.style(cell, fg=PAINT[cell]), 1) if cell in PAINT else padded)
    return "  ".join(cells).rstrip()


def cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1].rstrip()}…"


def card(title: str, state: str, lines: Iterable[tuple[str, object]]) -> None:
    """What it is, then what is known of it; what is empty is left out."""
    click.echo(f"{click.style(clean(title), bold=True)}  {click.style(clean(state), fg=PAINT.get(state), bold=True)}")
    known = [(name, value) for name, value in lines if value not in {None, "", ()}]
    size = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        click.echo(f"  {click.style(name.ljust(size), dim=True)}  {clean(str(value))}")


# --- words


def ago(at: str | None, now: datetime | None = None) -> str | None:
    """3 m 05 s ago: how people read a moment. The server's own time decides where it is known."""
    if at is None:
        return None
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(at)).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 1 else "now"


def clock(at: str | None) -> str | None:
    return None if at is None else f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} UTC"


def took(begin: str | None, end: str | None) -> str | None:
    if begin is None or end is None:
        return None
    return span((datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())


def short_node(node: str) -> str:
    return node.rpartition("/")[2]


def some(names: Sequence[str], most: int = 3) -> str:
    """n0, n1, n2 and 5 more."""
    shown = ", ".join(short_node(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def say(text: str) -> None:
    """Beside the output: progress, hints, what to do next."""
    click.echo(clean(text), err=True)


def hint(*lines: str) -> None:
    """What to try next; only for people, so only on a terminal."""
    if sys.stdout.isatty():
        for line in lines:
            click.echo(click.style(line, dim=True), err=True)
