"""sickbay sim NAME|FILE, sim list, sim soak."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sickbay.faces.cli.columns import field, figures, show_list
from sickbay.faces.cli.show import as_json, heading, leave, print_json, print_story, quiet, seed_option, span

if TYPE_CHECKING:
    from sickbay.faces.story import StoryAnswer
    from sickbay.model.rows import Line
    from sickbay.sim.report import SimReport, Spread
    from sickbay.sim.scenarios import Scenario
    from sickbay.sim.simulation import Simulation

STORY_LINES = 60
SAY_EVERY = 30.0  # seconds between two lines of progress where there is no terminal
IMPORTANT = frozenset(
    {
        "opened", "hold", "release", "dismiss", "replaced", "gone", "deferred", "brake", "repair", "fail", "order",
        "submitted", "adopted", "stop", "ended", "requeue", "first_step", "complete", "stopped", "restarted", "notify",
    }
)  # fmt: skip


class Scenarios(click.Group):
    """`sickbay sim NAME` is `sickbay sim run NAME`: whatever is no command here is a scenario."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands:
            args = ["--help"] if {"-h", "--help"} & set(args) else ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == "run" else name, command, rest  # nobody has to know that it is a command of its own

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "NAME|FILE [OPTIONS]  |  list  |  soak [OPTIONS]")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run_ctx = click.Context(run, info_name="run", parent=ctx)
        run.format_options(run_ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(80)) for name in ("list", "soak")])


@click.group("sim", cls=Scenarios)
def sim() -> None:
    """Run a scenario on the real engine in virtual time.

    NAME is one that 'sickbay sim list' shows; FILE is a scenario in YAML (nodes, jobs, policy and a timeline such as
    'at: 10m, do: strike, job: train, code: xid.79, cured_by: reboot'). Every invariant is checked after every step: a
    run that breaks one says which, and how to repeat it, and exits 1.
    """


@sim.command("run", hidden=True)
@click.argument("name", metavar="NAME|FILE")
@seed_option
@click.option("--nodes", metavar="N", type=click.IntRange(1, 20_000), help="Another number of nodes.")
@click.option("--days", metavar="D", type=click.FloatRange(min=0.001, max=3650), help="Another length, at most.")
@click.option("--policy", metavar="NAME|FILE", help="Another policy.")
@click.option("--cold", is_flag=True, help="A host that forgets everything after each event, as in Lambda.")
@click.option("--engines", metavar="N", type=click.IntRange(1, 5), help="So many engines; one of them leads.")
@click.option("--keep", metavar="FILE", help="Keep the store as a SQLite file, for 'sickbay explain --store FILE'.")
@as_json
def run(
    name: str,
    seed: int,
    nodes: int | None,
    days: float | None,
    policy: str | None,
    cold: bool,
    engines: int | None,
    keep: str | None,
    as_json: bool,
) -> None:
    """Run one scenario and say what it came to."""
    from msgspec.structs import replace

    from sickbay.faces.cli.keep import keep as keep_file
    from sickbay.faces.cli.keep import refuse_existing
    from sickbay.faces.story import tell
    from sickbay.sim.report import report
    from sickbay.sim.scenarios import sized

    quiet()
    refuse_existing(keep)
    scenario = sized(scenario_of(name), nodes=nodes, days=days)
    changes: dict[str, Any] = {"policy": policy, "cold": cold or None, "engines": engines}
    scenario = replace(scenario, **{key: value for key, value in changes.items() if value is not None})
    simulation, broken = _perform(scenario, seed, shown=not as_json)
    again = _command(name, seed, nodes=nodes, days=days, policy=policy, cold=cold, engines=engines)
    came_to = report(simulation, scenario=scenario.name, broken=broken, repeat=again)
    if keep is not None:
        keep_file(simulation.store, keep)
    lines = _lines(simulation)
    if as_json:
        print_json(_json(came_to, lines))
    else:
        _print(scenario, came_to, tell(_important(lines)), keep)
    if broken:
        click.echo(f"broken: {' '.join(broken.split())}; repeat it with: {again}", err=True)
        leave(1)


def scenario_of(name: str) -> "Scenario":
    from sickbay.policy.load import is_file_name
    from sickbay.sim.scenario_file import load_scenario
    from sickbay.sim.scenarios import named

    return load_scenario(Path(name)) if is_file_name(name) else named(name)


def _command(name: str, seed: int, **options: Any) -> str:
    """What gives the same run."""
    said = [f"sickbay sim {name} --seed {seed}"]
    for option, value in options.items():
        if value is True:
            said.append(f"--{option}")
        elif value is not None and value is not False:
            said.append(f"--{option} {value:g}" if isinstance(value, float) else f"--{option} {value}")
    return " ".join(said)


def _perform(scenario: "Scenario", seed: int, *, shown: bool) -> "tuple[Simulation, str]":
    """The run, and what broke it, if anything did."""
    from sickbay.sim.scenarios import perform, stage

    simulation = stage(scenario, seed)
    try:
        with _progress(scenario.name, shown=shown and scenario.weather is not None) as advance:
            perform(simulation, scenario, seed, advance)
    except (AssertionError, RuntimeError) as error:
        return simulation, str(error) or type(error).__name__
    return simulation, ""


@contextmanager
def _progress(what: str, *, shown: bool) -> Iterator[Callable[[float], None] | None]:
    """A bar on a terminal, for what takes seconds."""
    if not shown or not sys.stdout.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), transient=True) as progress:
        task = progress.add_task(what, total=1.0)
        yield lambda done: progress.update(task, completed=done)


# --- what it came to


def _lines(simulation: "Simulation") -> "list[Line]":
    from sickbay.faces.story import weave
    from sickbay.model.rows import AUDIT

    rows = [f"incident:{i.id}" for i in simulation.incidents()] + [f"job:{j.id}" for j in simulation.jobs()]
    brakes = list(simulation.store.keys("brake"))
    return weave({subject: simulation.store.story(subject) for subject in [*rows, *brakes, AUDIT]})


def _important(lines: "list[Line]") -> "list[Line]":
    """Without what is only a detail, and without a reason that is the last one again with another number in it."""
    last: dict[tuple[str, ...], str] = {}
    found = []
    for line in lines:
        gist = re.sub(r"\d+", "#", line.text)
        if line.event in IMPORTANT and last.get(line.subjects) != gist:
            found.append(line)
            last[line.subjects] = gist
    return found


def _json(came_to: "SimReport", story: "list[Line]") -> dict[str, Any]:
    import msgspec

    from sickbay.faces.explain import told_lines

    whole = {field: msgspec.to_builtins(getattr(came_to, field)) for field in came_to.__struct_fields__}
    return {**whole, "broken": came_to.broken or None, "story": msgspec.to_builtins(told_lines(story))}


def _print(scenario: "Scenario", came_to: "SimReport", story: "list[StoryAnswer]", keep: str | None) -> None:
    from sickbay.sim.schedule import EPOCH

    click.echo(f"{scenario.name}: {scenario.about}".rstrip(": "))
    size = f"{came_to.nodes} nodes, policy {came_to.policy}, seed {came_to.seed}"
    click.echo(f"{size}, {span(came_to.seconds)} of virtual time")
    click.echo()
    print_story(story[:STORY_LINES], EPOCH)
    if len(story) > STORY_LINES:
        click.echo(f"… and {len(story) - STORY_LINES} more lines: --json has them all")
    heading("Jobs")
    figures(
        ("job", "state", "attempts", "restarts spent", "effective"),
        [(j.id, j.state, str(j.attempts), str(j.restarts), f"{j.effective:.1%}") for j in came_to.jobs],
    )
    if came_to.effective_training_time is not None:
        click.echo(f"  effective training time {came_to.effective_training_time:.1%}")
    if came_to.lost_by_cause:
        heading("Time lost by cause")
        figures(("cause", "lost"), [(cause, span(lost)) for cause, lost in came_to.lost_by_cause.items()])
    _spreads("From the first symptom to the first new step", came_to.interruption_stages, came_to.training_again)
    _spreads("Incidents, time in each phase", came_to.incident_stages, came_to.incidents)
    heading("Incidents")
    click.echo(f"  {_counts(came_to.incidents_by_phase) or 'none'}")
    if came_to.intakes_by_phase:
        click.echo(f"  intake: {_counts(came_to.intakes_by_phase)}")
    heading("Notifications")
    click.echo(f"  {_counts(came_to.notifications) or 'none'}")
    if keep is not None:
        click.echo(f"\nkept in {keep}: try sickbay explain NODE|JOB|INCIDENT --store {keep}")


def _spreads(title: str, stages: "dict[str, Spread]", whole: "Spread | None") -> None:
    if not stages:
        return
    heading(title)
    rows = [*stages.items(), *([("all together", whole)] if whole is not None else [])]
    figures(
        ("", "times", "median", "p90"),
        [(name, str(spread.count), span(spread.median), span(spread.p90)) for name, spread in rows],
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


# --- list and soak


@sim.command("list")
@as_json
def list_command(as_json: bool) -> None:
    """The scenarios that have a name."""
    from sickbay.sim.scenarios import NAMED

    found = [{"name": one.name, "about": one.about, "nodes": one.nodes} for one in NAMED.values()]
    show_list(found, [field("name"), field("nodes", right=True), field("about")], empty="none", as_json=as_json)


@sim.command("soak", short_help="Many random runs, one for each seed.")
@click.option("--runs", metavar="N", type=click.IntRange(min=1), default=100, show_default=True, help="How many.")
@click.option(
    "--from", "first", metavar="SEED", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed."
)
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="How many at a time. Default: one for each core.")
@as_json
def soak(runs: int, first: int, jobs: int | None, as_json: bool) -> None:
    """Many random runs: faults, operators, outages, clock jumps, crashes, one engine or two, cold and warm.

    Each seed is a run of its own. One that breaks an invariant is printed with the command that repeats it, and the
    others go on; at the end a summary, and exit 1 if there was any. Ctrl-C ends it early, with the summary so far.
    """
    from sickbay.sim.soak import Soaked, soak_all

    quiet()
    done, failed = 0, list[Soaked]()
    try:
        with _soaking(runs, shown=not as_json) as advance:
            for done, run in enumerate(soak_all(first, runs, jobs or cores()), start=1):
                if run.why:
                    failed.append(run)
                    if not as_json:
                        click.echo(f"seed {run.seed}: {run.why}; repeat it with: {run.repeat}")
                advance(done, len(failed))
    except KeyboardInterrupt:
        click.echo(f"interrupted after {done} of {runs} runs", err=True)
    failed.sort()
    if as_json:
        print_json(
            {
                "runs": done,
                "from": first,
                "failed": [{"seed": f.seed, "why": f.why, "repeat": f.repeat} for f in failed],
            }
        )
    else:
        seeds = f": seeds {', '.join(str(f.seed) for f in failed)}" if failed else ""
        click.echo(f"{done} runs from seed {first}: {len(failed) or 'none'} broke an invariant{seeds}")
    if failed or done < runs:
        leave(1)


def cores() -> int:
    """Those that this process may use, where the system can tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _soaking(runs: int, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line on standard error now and then: a soak may take a night."""
    began = last = time.monotonic()

    def say(done: int, failed: int) -> None:
        nonlocal last
        now = time.monotonic()
        if shown and now - last >= SAY_EVERY:
            last = now
            left = span((now - began) / done * (runs - done))
            click.echo(f"{done} of {runs} runs, {failed or 'none'} failed, about {left} left", err=True)

    with _progress(f"{runs} random runs", shown=shown) as advance:
        yield say if advance is None else lambda done, _failed: advance(done / runs)
