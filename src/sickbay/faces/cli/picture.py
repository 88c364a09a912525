"""The picture of a fleet on a terminal: nodes as a grid, jobs, open incidents, the budget, and a ticker."""

from collections import Counter
from collections.abc import Sequence

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.layout import Layout
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sickbay.faces.archive import Archive
from sickbay.faces.cli.show import COLOURS, STATES, since, span
from sickbay.faces.explain import state_of
from sickbay.faces.story import Told, short
from sickbay.model.fleet import Node
from sickbay.model.incident import Incident, IncidentKind
from sickbay.model.job import Job, JobState
from sickbay.sim.schedule import EPOCH
from sickbay.sim.simulation import POOL, Simulation

WIDE = 120
CELL = 6  # columns of one node in the grid
LETTERS = {
    "READY": "■", "UNKNOWN": "?", "SUSPECT": "!", "OUT": "✚", "LOST": "✖", "HELD": "H", "INTAKE": "+",
}  # fmt: skip


def picture(sim: Simulation, ticker: Sequence[Told], size: ConsoleDimensions, speed: float) -> Layout:
    archive = Archive(sim.store, {sim.rules.policy_digest: sim.policy})
    nodes = archive.nodes()
    incidents: dict[str, Incident] = {i.id: i for i in sim.incidents(intake=True) if i.open}
    jobs = sorted(sim.jobs(), key=lambda job: job.id)
    grid = _grid(nodes, incidents, {n for job in jobs for n in job.claim}, size.width - 4)
    shown = [i for i in incidents.values() if i.kind is not IncidentKind.INTAKE]
    wide = size.width >= WIDE
    upper = min(grid.count, max(3, size.height // 3)) + 3
    middle = max(len(jobs) + 3, 6 if wide else 0)
    lines = Layout(name="ticker")
    head = Layout(_header(sim, speed), size=1)
    fleet = Layout(Panel(grid.shown(upper - 3), title="nodes", border_style="dim"), size=upper)
    budget = Layout(_budget(archive, nodes, incidents), size=1)
    job_panel = Layout(Panel(_jobs(jobs), title="jobs", border_style="dim"))
    room = middle - 3
    incident_panel = Layout(Panel(_incidents(shown, room, wide=wide), title="open incidents", border_style="dim"))
    whole = Layout()
    if wide:
        both = Layout(size=middle)
        both.split_row(job_panel, incident_panel)
        whole.split_column(head, fleet, budget, both, lines)
        left = size.height - 2 - upper - middle - 2
    else:
        job_panel.size = len(jobs) + 3
        incident_panel.size = 5
        whole.split_column(head, fleet, budget, job_panel, incident_panel, lines)
        left = size.height - 2 - upper - job_panel.size - incident_panel.size - 2
        incident_panel.update(Panel(_incidents(shown, 3, wide=wide), title="open incidents", border_style="dim"))
    lines.update(Panel(_ticker(ticker, max(1, left)), title="what happened", border_style="dim"))
    return whole


def _header(sim: Simulation, speed: float) -> Text:
    return Text.assemble(
        ("sickbay ", "bold"), (since(EPOCH, sim.world.ground.stamp(sim.scheduler.now)), "cyan"),
        (f"  simulated at {speed:g}×, seed {sim.seed}, policy {sim.policy.name}", "dim"), "   q ends it",
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip


class _Grid:
    def __init__(self, rows: list[Text], legend: Text) -> None:
        self.count, self._rows, self._legend = len(rows), rows, legend

    def shown(self, room: int) -> RenderableType:
        return Group(*self._rows[:room], self._legend)


def _grid(nodes: list[Node], incidents: dict[str, Incident], busy: set[str], width: int) -> _Grid:
    """A cell is the node's number and a sign in the colour of its state; the number of one that works is bright."""
    rows: list[Text] = []
    counts: Counter[str] = Counter()
    each = max(1, width // CELL)
    for place, node in enumerate(nodes):
        state = state_of(node, incidents.get(node.incident or ""))
        counts[state] += 1
        if place % each == 0:
            rows.append(Text(no_wrap=True))
        style = STATES[state]
        name = node.name.rpartition("-")[2][-4:]
        rows[-1].append(f"{name:>4}", style="" if node.id in busy else "dim")
        rows[-1].append(LETTERS[state], style=f"bold {style}" if state != "READY" else style)
        rows[-1].append(" ")
    legend = Text(no_wrap=True, overflow="ellipsis")
    for state, sign in LETTERS.items():
        legend.append(sign, style=STATES[state])
        legend.append(
            f" {state.lower()} {counts[state]}  " if counts[state] else f" {state.lower()}  ",
            style="" if counts[state] else "dim",
        )
    return _Grid(rows, legend)


def _budget(archive: Archive, nodes: list[Node], incidents: dict[str, Incident]) -> Text:
    budget = archive.budget(nodes[0].pool if nodes else POOL)
    full = budget.may_be_out is not None and budget.out >= budget.may_be_out
    waiting = sum(1 for i in incidents.values() if i.phase == "SUSPECT")
    text = Text(" budget: ", no_wrap=True, overflow="ellipsis")
    text.append(f"{budget.out} of {budget.may_be_out} seats out", style="yellow" if full else "")
    text.append(f", {budget.repairing} of {budget.may_be_repairing} repairs, {budget.held} held")
    if waiting:
        text.append(f", {waiting} waiting for their turn", style="yellow")
    brakes = [f"{b.signature} in {b.scope}" for b in archive.brakes() if b.tripped_at is not None]
    if brakes:
        text.append(f", brake on: {', '.join(brakes)}", style="bold red")
    return text


_JOB_COLOURS = {
    JobState.RUNNING: "green", JobState.COMPLETE: "green", JobState.FAILED: "bold red", JobState.STOPPED: "red",
    JobState.GATING: "cyan", JobState.QUEUED: "yellow", JobState.STOPPING: "yellow", JobState.DIAGNOSING: "yellow",
}  # fmt: skip


def _jobs(jobs: list[Job]) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    table.add_column("job", no_wrap=True)
    table.add_column("state", no_wrap=True, width=10)
    for name in ("nodes", "attempt", "step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("back after", justify="right", no_wrap=True)
    table.add_column("because", ratio=1, no_wrap=True, overflow="ellipsis")
    for job in jobs:
        nodes = len(job.claim) or job.spec.most
        because = job.wait.because if job.wait and job.state is not JobState.RUNNING else job.diagnosis
        table.add_row(
            job.id,
            Text(job.state, style=_JOB_COLOURS[job.state]),
            str(nodes),
            str(job.attempt),
            str(job.step or 0),
            _last_back(job),
            because,
        )
    return table


def _last_back(job: Job) -> str:
    for one in reversed(job.interruptions):
        first, last = one.stages.get("detected"), one.stages.get("first_step")
        if first is not None and last is not None:
            return span((last - first).total_seconds())
    return "–"


def _incidents(incidents: list[Incident], room: int, *, wide: bool) -> RenderableType:
    if not incidents:
        return Text("none", style="dim")
    table = Table(box=None, expand=True, pad_edge=False, show_header=wide, header_style="dim")
    for name in ("id", "node", "fault", "phase"):
        table.add_column(name, no_wrap=True)
    table.add_column("because", ratio=1, no_wrap=True, overflow="ellipsis")
    newest = incidents if len(incidents) <= room else incidents[: room - 1]
    for incident in newest:
        because = incident.wait.because if incident.wait else incident.fault.because
        colour = (
            STATES["HELD"] if incident.phase == "HELD" else STATES["SUSPECT" if incident.phase == "SUSPECT" else "OUT"]
        )
        table.add_row(
            incident.id,
            incident.node.rpartition("/")[2],
            incident.fault.code,
            Text(incident.phase, style=colour),
            because,
        )
    if len(newest) < len(incidents):
        table.add_row("…", f"and {len(incidents) - len(newest)} more", "", "", "")
    return table


def _ticker(ticker: Sequence[Told], room: int) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    for told in ticker[-room:]:
        text.append(f"{since(EPOCH, told.at)} ", style="dim")
        text.append(f"{told.what:<8}", style=COLOURS[told.what])
        text.append(f"{short(told.about):<7} {told.text}\n")
    return text
