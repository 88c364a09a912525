"""The dashboard on a terminal: nodes as a grid, jobs, open incidents, the budget, and a ticker.

It is drawn from what GET /v1/fleet answers, and from the lines of the story that came since.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sickbay.faces.cli.columns import PAINT
from sickbay.faces.cli.show import COLOURS, STATES, clean, span
from sickbay.faces.cli.stages import OVER, why
from sickbay.faces.story import StoryAnswer, short

Fleet = dict[str, Any]
WIDE = 120
NARROWEST = 80  # where no terminal says how wide it is
FIGURES = 70  # columns of all that stands beside a row's names and its reason
CELL = 6  # columns of one node in the grid
LETTERS = {
    "READY": "■", "UNKNOWN": "?", "SUSPECT": "!", "OUT": "✚", "LOST": "✖", "HELD": "H", "INTAKE": "+",
}  # fmt: skip


def picture(
    fleet: Fleet, ticker: Sequence[StoryAnswer], size: ConsoleDimensions, *, head: str, trouble: str = ""
) -> Layout:
    """As large as the terminal. `head` says whose fleet it is; `trouble`, why this is not the present."""
    grid = _grid(fleet, size.width - 4)
    jobs, incidents = _shown_jobs(fleet), _shown_incidents(fleet)
    wide = size.width >= WIDE
    upper = min(grid.count, max(3, size.height // 3)) + 3
    most = max(3, size.height // 4)
    rows = min(max(1, len(jobs)), most)
    lines = Layout(name="ticker")
    first = Layout(_header(head, trouble), size=1)
    nodes = Layout(_panel("nodes", grid.shown(upper - 3)), size=upper)
    budget = Layout(_budget(fleet), size=1)
    whole = Layout()
    if wide:
        middle = max(rows + 3, 6)
        both = Layout(size=middle)
        both.split_row(
            Layout(_panel("jobs", _jobs(jobs, rows))),
            Layout(_panel("open incidents", _incidents(incidents, middle - 3, headed=True))),
        )
        whole.split_column(first, nodes, budget, both, lines)
        left = size.height - 2 - upper - middle - 2
    else:
        job_panel = Layout(_panel("jobs", _jobs(jobs, rows)), size=rows + 3)
        incident_panel = Layout(_panel("open incidents", _incidents(incidents, 3, headed=False)), size=5)
        whole.split_column(first, nodes, budget, job_panel, incident_panel, lines)
        left = size.height - 2 - upper - rows - 3 - 5 - 2
    lines.update(_panel("what happened", _ticker(ticker, max(1, left))))
    return whole


def plain(fleet: Fleet, width: int, *, head: str, trouble: str = "") -> Group:
    """Everything, one below the other, as long as it is."""
    grid = _grid(fleet, width - 4)
    jobs, incidents = _shown_jobs(fleet), _shown_incidents(fleet)
    return Group(
        _header(head, trouble, keys=False),
        _panel("nodes", grid.shown(grid.count)),
        _budget(fleet),
        _panel("jobs", _jobs(jobs, len(jobs))),
        _panel("open incidents", _incidents(incidents, len(incidents), headed=True)),
    )


def wide_enough(fleet: Fleet) -> int:
    """Columns in which no line of `plain` is cut, for output that is no terminal."""
    jobs = [len(job["id"]) + len(clean(why(job))) + FIGURES for job in fleet["jobs"]]
    incidents = [sum(len(one[key]) for key in ("id", "node", "because")) + FIGURES for one in fleet["incidents"]]
    return max([NARROWEST, len(_budget(fleet)) + 2, len(fleet.get("trouble", "")) + FIGURES, *jobs, *incidents])


def _panel(title: str, inside: RenderableType) -> Panel:
    return Panel(inside, title=title, border_style="dim")


def _header(head: str, trouble: str, *, keys: bool = True) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("sickbay ", style="bold")
    if trouble:
        text.append(clean(trouble), style="bold red")
    else:
        text.append(clean(head), style="cyan")
    return text.append("   q ends it") if keys else text


class _Grid:
    def __init__(self, rows: list[Text], legend: Text) -> None:
        self.count, self._rows, self._legend = len(rows), rows, legend

    def shown(self, room: int) -> RenderableType:
        if len(self._rows) <= room:
            return Group(*self._rows, self._legend)
        more = Text(f"… and {len(self._rows) - room + 1} more rows", style="dim")
        return Group(*self._rows[: room - 1], more, self._legend)


def _grid(fleet: Fleet, width: int) -> _Grid:
    """A cell is the node's number and a sign in the colour of its state; the number of one that works is bright."""
    rows: list[Text] = []
    counts: Counter[str] = Counter()
    each = max(1, width // CELL)
    for place, node in enumerate(fleet["nodes"]):
        state = node["state"]
        counts[state] += 1
        if place % each == 0:
            rows.append(Text(no_wrap=True))
        style = STATES.get(state, "")
        name = node["id"].rpartition("/")[2].rpartition("-")[2][-4:]
        rows[-1].append(f"{name:>4}", style="" if node["job"] else "dim")
        rows[-1].append(LETTERS.get(state, "?"), style=f"bold {style}" if state != "READY" else style)
        rows[-1].append(" ")
    legend = Text(no_wrap=True, overflow="ellipsis")
    for state, sign in LETTERS.items():
        legend.append(sign, style=STATES[state])
        legend.append(
            f" {state.lower()} {counts[state]}  " if counts[state] else f" {state.lower()}  ",
            style="" if counts[state] else "dim",
        )
    return _Grid(rows or [Text("none yet", style="dim")], legend)


def _budget(fleet: Fleet) -> Text:
    """What may be lacking, and whatever keeps the machinery from acting."""
    text = Text(" budget: ", no_wrap=True, overflow="ellipsis")
    budgets = fleet["budgets"]
    for number, budget in enumerate(budgets):
        full = budget["may_be_out"] is not None and budget["out"] >= budget["may_be_out"]
        pool = f"{budget['pool']} " if len(budgets) > 1 else ""
        text.append("; " if number else "")
        text.append(f"{pool}{_of(budget['out'], budget['may_be_out'])} seats out", style="yellow" if full else "")
        text.append(f", {_of(budget['repairing'], budget['may_be_repairing'])} repairs, {budget['held']} held")
    waiting = sum(1 for incident in fleet["incidents"] if incident["phase"] == "SUSPECT")
    if waiting:
        text.append(f", {waiting} waiting for their turn", style="yellow")
    if fleet["brakes"]:
        brakes = [f"{brake['signature']} in {brake['scope']}" for brake in fleet["brakes"]]
        text.append(f", brake on: {', '.join(brakes)}", style="bold red")
    for row in fleet["withheld"]:
        if str(row["id"]).startswith("pause"):
            text.append(f", {clean(row['because'])}", style="bold yellow")
    return text


def _of(value: int, limit: int | None) -> str:
    return f"{value} of {limit}" if limit is not None else str(value)


def _shown_jobs(fleet: Fleet) -> list[dict[str, Any]]:
    """Those that are open first; each kind as the server orders it, the newest first."""
    return sorted(fleet["jobs"], key=lambda job: job["state"] in OVER)


def _jobs(jobs: Sequence[dict[str, Any]], room: int) -> RenderableType:
    if not jobs:
        return Text("none yet: sickbay submit -- CMD …", style="dim")
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("job", no_wrap=True)
    table.add_column("state", no_wrap=True, width=10)
    for name in ("nodes", "attempt", "step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("back after", justify="right", no_wrap=True)
    table.add_column("because", ratio=1, no_wrap=True, overflow="ellipsis")
    fit = jobs if len(jobs) <= room else jobs[: room - 1]
    for job in fit:
        because = clean(why(job) if job["state"] != "RUNNING" else _besides(job))
        table.add_row(
            job["id"],
            Text(job["state"], style=PAINT.get(job["state"], "")),
            str(len(job["nodes"]) or "–"),
            str(job["attempt"]),
            str(job["step"] if job["step"] is not None else "–"),
            _last_back(job),
            Text(because),
        )
    if len(fit) < len(jobs):
        table.add_row("…", f"{len(jobs) - len(fit)} more")
    return table


def _besides(job: dict[str, Any]) -> str:
    """Of one that runs."""
    failed = job.get("save_failed")
    return str(job.get("doing") or (f"not saved: {failed}" if failed else ""))


def _last_back(job: dict[str, Any]) -> str:
    for one in reversed(job["interruptions"]):
        if one["training_again_after"] is not None:
            return span(one["training_again_after"])
    return "–"


def _shown_incidents(fleet: Fleet) -> list[dict[str, Any]]:
    return [i for i in fleet["incidents"] if i["incident_kind"] != "intake" or i["phase"] == "HELD"]


def _incidents(incidents: Sequence[dict[str, Any]], room: int, *, headed: bool) -> RenderableType:
    if not incidents:
        return Text("none", style="dim")
    table = Table(box=None, expand=True, pad_edge=False, show_header=headed, header_style="dim")
    for name in ("id", "node", "fault", "phase"):
        table.add_column(name, no_wrap=True)
    table.add_column("because", ratio=1, no_wrap=True, overflow="ellipsis")
    fit = incidents if len(incidents) <= room else incidents[: room - 1]
    for incident in fit:
        colour = STATES.get(incident["phase"], STATES["OUT"])  # HELD and SUSPECT have their own
        table.add_row(
            incident["id"],
            incident["node"].rpartition("/")[2],
            incident["fault"]["code"],
            Text(incident["phase"], style=colour),
            Text(clean(incident["because"])),
        )
    if len(fit) < len(incidents):
        table.add_row("…", f"{len(incidents) - len(fit)} more")
    return table


def _ticker(ticker: Sequence[StoryAnswer], room: int) -> Text:
    if not ticker:
        return Text("nothing since you look", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    for told in ticker[-room:]:
        text.append(f"{_time(told.at)} ", style="dim")
        text.append(f"{told.what:<8}", style=COLOURS[told.what])
        text.append(f"{short(told.about):<7} {clean(told.text)}\n")
    return text


def _time(at: datetime) -> str:
    return at.strftime("%H:%M:%S")
