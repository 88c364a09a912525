"""sickbay up and down: a controller and a small cluster of real processes on this machine."""

import contextlib
import os
import select
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from sickbay.faces.cli.show import leave

if TYPE_CHECKING:
    from sickbay.hosts.channels import NotifierFile
    from sickbay.hosts.choices import Choices
    from sickbay.hosts.up import Service, UpOptions
    from sickbay.model.policy import Policy

DEMO_STEPS = 600
ACTIVATE = Path(sys.prefix) / "bin" / "activate"  # of a virtual environment, which a new terminal has not
state_option = click.option(
    "--state", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Where everything is kept (default: $SICKBAY_STATE, else ~/.local/state/sickbay).",
)  # fmt: skip
GIVEN = ParameterSource.COMMANDLINE
REPEATABLE = frozenset(
    {"detach", "state", "port"}
)  # asked for again they change nothing: `up --detach` may be repeated
NEXT = (
    ("top", "the fleet, live"),
    ("nodes", "every node, and why it is as it is"),
    ("explain {job}", "the whole story of the job"),
    ("logs {job} --follow", "what its rank 0 writes"),
    ("inject node-1 --defect ecc_uncorrectable", "break something else; --defect list shows what"),
    ("submit --name mine --nodes 2 --wait -- {python} -m sickbay.train.sample", "a job of your own"),
    ("down", "end everything"),
)


@click.command("up")
@click.option("--nodes", metavar="N", type=click.IntRange(1, 256), help="How many nodes (default: as before, else 4).")
@click.option("--gpus", metavar="G", type=click.IntRange(0, 16), help="Virtual GPUs of each (default: 2).")
@click.option(
    "--port", metavar="P", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any free."
)
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--cert", metavar="FILE", help="Serve TLS with this certificate (PEM); needed beyond this machine.")
@click.option("--key", metavar="FILE", help="Its private key (PEM).")
@state_option
@click.option(
    "--policy", "policy", metavar="NAME|FILE", default="default", show_default=True, help="What is done when."
)
@click.option(
    "--knowledge",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Your own meaning of faults, over the shipped one.",
)
@click.option(
    "--notifiers",
    metavar="FILE|none",
    help="Through whom people are told (YAML). Once given it stays, until another is, or none.",
)
@click.option("--demo", is_flag=True, help="Run a job, break a GPU under it, and tell the story as it happens.")
@click.option("--detach", is_flag=True, help="Return when it runs; 'sickbay down' ends it.")
def up(
    nodes: int | None,
    gpus: int | None,
    port: int,
    host: str,
    cert: str | None,
    key: str | None,
    state: Path | None,
    policy: str,
    knowledge: Path | None,
    notifiers: str | None,
    demo: bool,
    detach: bool,
) -> None:
    """Start a controller and a small cluster of real processes on this machine.

    Each node is a process tree with an agent and virtual GPUs that can be broken (sickbay inject). Ctrl-C ends
    everything; a controller that is ended or killed otherwise leaves the nodes and their jobs running, and the next
    'sickbay up' finds them again.

    \b
    Examples:
      sickbay up --demo              a first look: one fault from symptom to cure
      sickbay up --nodes 8 --detach  in the background
      sickbay down                   end it
    """
    from sickbay.hosts.choices import Choices
    from sickbay.hosts.state import default_state, refuse_open_door, refuse_second, serving
    from sickbay.hosts.up import UpOptions
    from sickbay.knowledge.load import load_tables
    from sickbay.policy.load import load_policy

    if (cert is None) is not (key is None):
        raise click.UsageError("--cert and --key go together: give both files")
    refuse_open_door(host, secured=cert is not None)
    place = (state or default_state()).absolute()
    channels, told_by = _notifiers(place, notifiers)
    rules = load_policy(policy, channels.names)
    load_tables(knowledge)  # what is wrong in it is said now, and nothing is begun
    if pid := serving(place):  # before anything is touched; of two that start at once the lock lets one go on
        context = click.get_current_context()
        plain = all(
            context.get_parameter_source(name) is not GIVEN for name in context.params if name not in REPEATABLE
        )
        if detach and plain and _is_at(place, port if context.get_parameter_source("port") is GIVEN else 0):
            return
        refuse_second(place, pid)
    if detach:
        _in_the_background(place)
        return
    files = [str(Path(file).absolute()) if file is not None else None for file in (cert, key)]
    wish = UpOptions(
        state=place,
        nodes=nodes,
        gpus=gpus,
        host=host,
        port=port,
        cert=files[0],
        key=files[1],
        knowledge=knowledge,
        notifiers=channels,
    )
    _serve(wish, rules, Choices(notifiers=told_by), demo=demo)


def _notifiers(state: Path, given: str | None) -> "tuple[NotifierFile, str]":
    """Those that are given, or else those that this state was served with last; and where they stand."""
    from sickbay.hosts.channels import read_notifiers
    from sickbay.hosts.choices import choices
    from sickbay.model.errors import BadInput

    kept = choices(state).notifiers
    if given == "none" or (given is None and not kept):
        return read_notifiers(None), ""
    path = Path(given).absolute() if given is not None else Path(kept)
    if given is None and not path.exists():
        raise BadInput(f"{path}, the notifiers that {state} was served with, is gone: give --notifiers FILE, or none")
    return read_notifiers(Path(given) if given is not None else path), str(path)


def _is_at(state: Path, port: int) -> bool:
    """Whether what was asked for is there: somebody serves this state, at this port if one was given. Says so."""
    from sickbay.hosts.state import recorded

    url = recorded(state).url
    if not url or (port and urlsplit(url).port != port):
        return False
    click.echo(f"serving on {url} already, in the background; nothing was started, 'sickbay down' ends it")
    _elsewhere(url)
    return True


def service_of(wish: "UpOptions", policy: "Policy") -> "Service":
    """The one place where the two faces meet: the command line starts a host and hands it the API."""
    from sickbay.faces.api.app import app
    from sickbay.hosts.up import Service

    return Service(wish, policy, app)


def _serve(wish: "UpOptions", policy: "Policy", chosen: "Choices", *, demo: bool) -> None:
    from sickbay.faces.cli.credentials import remember
    from sickbay.faces.cli.showcase import Showcase, Ticker
    from sickbay.hosts.choices import keep_choices

    service = service_of(wish, policy)
    ended = Signals()
    service.start(lambda text: click.echo(f"{text}; the state is in {wish.state}"))
    remember(service.url, service.token)
    keep_choices(wish.state, chosen)
    told = f", told by {', '.join(wish.notifiers.names)}" if wish.notifiers.notifiers else ""
    click.echo(f"serving on {service.url}, policy {policy.name}{told}")
    _elsewhere(service.url)
    job = ""
    try:
        if demo:
            showcase = Showcase(service.backend, steps=DEMO_STEPS)
            showcase.run(to_the_end=False)
            job = showcase.job.id if showcase.job is not None else job
        _next_steps(job, service.url)
        ticker = Ticker(service.backend)
        trouble = ""
        while not ended.wait(0.2):
            # Whoever read this has gone, or the disk that takes it is full: that ends no controller.
            with contextlib.suppress(OSError):
                ticker.print()
                if service.trouble != trouble:
                    trouble = service.trouble
                    click.echo(f"in trouble: {trouble}" if trouble else "well again", err=True)
    except KeyboardInterrupt:
        ended.by = signal.SIGINT
    all_of_it = ended.by == signal.SIGINT
    with contextlib.suppress(OSError):
        click.echo("ending the nodes and the controller …" if all_of_it else "the controller ends; the nodes go on")
    service.stop(cluster=all_of_it)
    if all_of_it:
        from sickbay.faces.cli.credentials import forget

        forget(service.url)


def _elsewhere(url: str) -> None:
    """Other commands look at the default address: whoever serves elsewhere must tell them."""
    if _unusual(url) and os.environ.get("SICKBAY_URL", "").rstrip("/") != url:
        click.echo(f"  not the usual address; for other commands:  export SICKBAY_URL={url}")


def _unusual(url: str) -> bool:
    from sickbay.faces.cli.client import DEFAULT_URL

    return url != DEFAULT_URL


def _next_steps(job: str, url: str) -> None:
    """What to try, as it can be pasted into a new terminal. What is about a job is left out where there is none."""
    before = [f". {shlex.quote(str(ACTIVATE))}"] if ACTIVATE.exists() else []
    before += [f"export SICKBAY_URL={url}"] if _unusual(url) else []
    found = {name: shutil.which(name) for name in ("sickbay", "python")}
    here = Path(sys.executable).parent
    ours = ACTIVATE.exists() or all(Path(path or "/").parent == here for path in found.values())
    sickbay, python = ("sickbay", "python") if ours else (f"{shlex.quote(sys.executable)} -m sickbay", sys.executable)
    known = [
        (f"{sickbay} {line.format(job=job, python=shlex.quote(python))}", what)
        for line, what in NEXT
        if job or "{job}" not in line
    ]
    width = max(len(line) for line, _ in known if len(line) < 60 or not ours)
    click.echo("\nNow try, in another terminal:")
    for line in before:
        click.echo(f"  {line}")
    for line, what in known:
        click.echo(f"  {line:<{width}}  {click.style('# ' + what, dim=True)}")
    click.echo()


class Signals:
    """Ctrl-C ends everything; SIGTERM (an upgrade, a stop by the system) ends only the controller.

    Kept by a pipe: two signals at once (a process group and its parent) would lock an event against itself.
    """

    def __init__(self) -> None:
        self.by: int = 0
        self._hears, self._tells = os.pipe()
        os.set_blocking(self._tells, False)
        signal.signal(signal.SIGTERM, self._told)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _told(self, number: int, frame: object) -> None:
        del frame
        self.by = number
        with contextlib.suppress(BlockingIOError):  # full of earlier ones: heard all the same
            os.write(self._tells, b".")

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self._hears], [], [], seconds)[0])


def _in_the_background(state: Path) -> None:
    """The same command again without --detach, in a session of its own; we leave when it answers."""
    import subprocess

    from sickbay.hosts.state import recorded

    state.mkdir(parents=True, exist_ok=True)
    output = state / "up.log"
    command = [sys.executable, "-m", "sickbay", *(word for word in sys.argv[1:] if word != "--detach")]
    with output.open("wb") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)  # noqa: S603 - our own command line
    before = time.monotonic()
    while (record := recorded(state)).pid != child.pid:
        if child.poll() is not None:
            click.echo(output.read_text().strip().splitlines()[-1] if output.stat().st_size else "it ended", err=True)
            leave(child.returncode or 1)
        if time.monotonic() - before > 60:
            click.echo(f"it has not begun to serve within a minute: see {output}", err=True)
            leave(1)
        time.sleep(0.05)
    click.echo(f"serving on {record.url}, in the background; 'sickbay down' ends it")
    _elsewhere(record.url)


@click.command("down")
@state_option
def down(state: Path | None) -> None:
    """End the controller and every node of this state, with all that runs there.

    Nothing is lost: the next 'sickbay up' starts the nodes anew and puts unfinished jobs back to work.
    """
    from sickbay.faces.cli.credentials import forget
    from sickbay.hosts.state import default_state, end_all

    place = (state or default_state()).absolute()
    ended = end_all(place)
    if ended is None:
        click.echo(f"nothing runs here: {place} has no state of a cluster (give another with --state)", err=True)
        leave(1)
    if ended.url:
        forget(ended.url)
    who = [*(["the controller"] if ended.controller else []), *([f"{ended.nodes} nodes"] if ended.nodes else [])]
    said = f"down: {' and '.join(who)} ended" if who else "nothing was running"
    click.echo(f"{said}; the next 'sickbay up' goes on from {place}")
