"""sickbay up and down: a controller and a small cluster of real processes on this machine."""

import contextlib
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from sickbay.faces.cli.columns import count
from sickbay.faces.cli.show import leave
from sickbay.faces.cli.signals import Signals, who_starts
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.hosts.choices import UpChoices
    from sickbay.hosts.config import ControllerConfig
    from sickbay.hosts.service import Service
    from sickbay.hosts.up import UpOptions
    from sickbay.model.policy import Policy

DEMO_STEPS = 600
UP_LOG = "up.log"  # of a detached controller
UP_LOG_BYTES = 4 << 20  # and as much of an old one
AGENTS_OWN = "spool"  # of what an agent keeps
ACTIVATE = Path(sys.prefix) / "bin" / "activate"  # of a virtual environment, which a new terminal has not
state_option = click.option(
    "--state", metavar="DIR", type=click.Path(path_type=Path, file_okay=False),
    help="Where everything is kept (default: $SICKBAY_STATE, else ~/.local/state/sickbay).",
)  # fmt: skip
GIVEN = ParameterSource.COMMANDLINE
REPEATABLE = frozenset(
    {"detach", "state", "port", "here"}
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
NEXT_HERE = (
    *NEXT[:4],
    ("submit --wait -- {python} -m sickbay.train.sample", "a job of your own, on this machine"),
    ("down", "end everything that was started here"),
)


@click.command("up")
@click.option("--nodes", metavar="N", type=click.IntRange(1, 256), help="How many nodes (default: as before, else 4).")
@click.option("--gpus", metavar="G", type=click.IntRange(0, 16), help="Virtual GPUs of each (default: 2).")
@click.option(
    "--port", metavar="P", type=click.IntRange(0, 65535), help="Default: as before, else 8080. 0: any that is free."
)
@click.option("--host", metavar="ADDRESS", help="Where to listen (default: as before, else 127.0.0.1).")
@click.option(
    "--cert",
    metavar="FILE",
    help="Serve TLS with this certificate (PEM); needed beyond this machine. Default: as before; 'none': without.",
)
@click.option("--key", metavar="FILE", help="Its private key (PEM).")
@state_option
@click.option("--policy", "policy", metavar="NAME|FILE", help="What is done when (default: as before, else 'default').")
@click.option(
    "--knowledge",
    metavar="FILE",
    help="Your own meaning of faults, over the shipped one. Default: as before; 'none': without.",
)
@click.option(
    "--notifiers",
    metavar="FILE|none",
    help="Through whom people are told (YAML). Once given it stays, until another is, or none.",
)
@click.option("--here", is_flag=True, help="This machine itself is the one node, with its real GPUs and kernel log.")
@click.option("--allow-reboot", is_flag=True, help="With --here: a fault that asks for it reboots this machine.")
@click.option("--demo", is_flag=True, help="Run a job, break a GPU under it, and tell the story as it happens.")
@click.option("--detach", is_flag=True, help="Return when it runs; 'sickbay down' ends it.")
def up(
    nodes: int | None,
    gpus: int | None,
    state: Path | None,
    here: bool,
    allow_reboot: bool,
    demo: bool,
    detach: bool,
    **given: Any,
) -> None:
    """Start a controller and a small cluster of real processes on this machine.

    Each node is a process tree with an agent and virtual GPUs that can be broken (sickbay inject). Ctrl-C ends
    everything; a controller that is ended or killed otherwise leaves the nodes and their jobs running, and the next
    'sickbay up' finds them again. So it does with the policy, the address and the certificate: what was chosen once
    stays until another is given.

    \b
    Examples:
      sickbay up --demo              a first look: one fault from symptom to cure
      sickbay up --nodes 8 --detach  in the background
      sickbay up --here              this machine and its GPUs: submit, and let faults be healed
      sickbay up --policy recommend  say what would be done, and touch no node: the first week
      sickbay down                   end it
    """
    from sickbay.hosts.channels import read_notifiers
    from sickbay.hosts.choices import as_before, chosen, policy_of, remembered
    from sickbay.hosts.state import default_state, refuse_open_door, refuse_second, serving
    from sickbay.hosts.up import UpOptions, refuse_other_kind
    from sickbay.knowledge.load import load_tables

    # `given` is what is remembered from one `up` to the next: policy, host, port, cert, key, knowledge, notifiers.
    if given["cert"] == "none" and given["key"] is None:
        given["key"] = "none"
    if (given["cert"] is None) is not (given["key"] is None):
        raise click.UsageError("--cert and --key go together: give both files")
    _refuse_mixed(here=here, allow_reboot=allow_reboot, virtual=nodes is not None or gpus is not None, demo=demo)
    place = (state or default_state()).absolute()
    refuse_agents_state(place)
    refuse_other_kind(place, here=here)
    before = remembered(place)
    choices = chosen(before, **given)
    refuse_open_door(choices.host, secured=bool(choices.cert))
    refuse_lost_notifiers(place, choices, given=given["notifiers"] is not None)
    channels = read_notifiers(Path(choices.notifiers) if choices.notifiers else None, known=given["notifiers"] is None)
    rules = policy_of(place, before, choices, channels.names, given=given["policy"] is not None)
    own = Path(choices.knowledge) if choices.knowledge else None
    load_tables(own)  # what is wrong in it is said now, and nothing is begun
    if pid := serving(place):  # before anything is touched; of two that start at once the lock lets one go on
        if detach and _asks_nothing_new() and _is_at(place, given["port"] or 0):
            return
        refuse_second(place, pid)
    wish = UpOptions(
        state=place,
        nodes=nodes,
        gpus=gpus,
        host=choices.host,
        port=choices.port,
        cert=choices.cert or None,
        key=choices.key or None,
        knowledge=own,
        notifiers=channels,
        here=here,
        allow_reboot=allow_reboot,
    )
    known = as_before(choices, {name for name, value in given.items() if value is not None})
    remarks = [line for line in (known, rules.remark) if line]
    if detach:
        _in_the_background(wish, rules.policy)
        for remark in remarks:
            click.echo(remark)
    else:
        _serve(wish, rules.policy, choices, remarks, demo=demo)


def _asks_nothing_new() -> bool:
    """Whether only what may be repeated stands on the command line."""
    context = click.get_current_context()
    return all(context.get_parameter_source(name) is not GIVEN for name in context.params if name not in REPEATABLE)


def _refuse_mixed(*, here: bool, allow_reboot: bool, virtual: bool, demo: bool) -> None:
    if allow_reboot and not here:
        raise click.UsageError("--allow-reboot goes with --here: virtual nodes are rebooted without it")
    if here and (virtual or demo):
        raise click.UsageError("--here has one node, this machine: leave out --nodes, --gpus and --demo")


def refuse_agents_state(state: Path) -> None:
    """SICKBAY_STATE means this for 'up' and another directory for 'agent': in one shell they would share it."""
    if (state / AGENTS_OWN).exists() and not (state / "sickbay.db").exists():
        raise BadInput(f"{state} is the state of an agent, not of a controller: give another with --state DIR")


def refuse_lost_notifiers(state: Path, choices: "UpChoices", *, given: bool) -> None:
    """Nobody would hear of anything, and nobody would notice."""
    if not given and choices.notifiers and not Path(choices.notifiers).exists():
        raise BadInput(
            f"{choices.notifiers}, the notifiers that {state} was served with, is gone: give --notifiers FILE, or none"
        )


def _is_at(state: Path, port: int) -> bool:
    """Whether what was asked for is there: somebody serves this state, at this port if one was given. Says so."""
    from sickbay.hosts.state import recorded

    url = recorded(state).url
    if not url or (port and urlsplit(url).port != port):
        return False
    click.echo(f"serving on {url} already, in the background; nothing was started, 'sickbay down' ends it")
    _elsewhere(url)
    return True


def service_of(config: "ControllerConfig", policy: "Policy", by: str = "sickbay up") -> "Service":
    """The one place where the two faces meet: the command line starts a host and hands it the API."""
    from sickbay.faces.api.app import app
    from sickbay.hosts.service import Service

    return Service(config, policy, app, by)


def _serve(wish: "UpOptions", policy: "Policy", choices: "UpChoices", remarks: Sequence[str], *, demo: bool) -> None:
    from sickbay.faces.cli.credentials import remember
    from sickbay.faces.cli.showcase import Showcase, Ticker
    from sickbay.hosts.choices import keep, words_of
    from sickbay.hosts.up import config_of
    from sickbay.policy.load import digest

    service = service_of(config_of(wish), policy)
    keep(wish.state, choices, policy)  # before anything is done by it
    ended = Signals()
    service.start(lambda text: click.echo(f"{text}; the state is in {wish.state}"))
    remember(service.url, service.token)
    service.backend.started(f"{who_starts()} with sickbay up", digest(policy), choices.policy, choices.knowledge)
    told = f", told by {', '.join(wish.notifiers.names)}" if wish.notifiers.notifiers else ""
    click.echo(f"serving on {service.url}, {words_of(policy)}{told}")
    for remark in remarks:
        click.echo(remark)
    for promise in service.promises:
        click.echo(f"  {promise}")
    _elsewhere(service.url)
    job = ""
    try:
        if demo:
            showcase = Showcase(service.backend, steps=DEMO_STEPS)
            showcase.run(to_the_end=False)
            job = showcase.job.id if showcase.job is not None else job
        _next_steps(job, service.url, NEXT_HERE if wish.here else NEXT)
        ticker = Ticker(service.backend)
        trouble = ""
        output = BoundedOutput(wish.state / UP_LOG)
        while not ended.wait(0.2):
            output.look()
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


def _next_steps(job: str, url: str, lines: Sequence[tuple[str, str]]) -> None:
    """What to try, as it can be pasted into a new terminal. What is about a job is left out where there is none."""
    before = [f". {shlex.quote(str(ACTIVATE))}"] if ACTIVATE.exists() else []
    before += [f"export SICKBAY_URL={url}"] if _unusual(url) else []
    found = {name: shutil.which(name) for name in ("sickbay", "python")}
    here = Path(sys.executable).parent
    ours = ACTIVATE.exists() or all(Path(path or "/").parent == here for path in found.values())
    sickbay, python = ("sickbay", "python") if ours else (f"{shlex.quote(sys.executable)} -m sickbay", sys.executable)
    known = [
        (f"{sickbay} {line.format(job=job, python=shlex.quote(python))}", what)
        for line, what in lines
        if job or "{job}" not in line
    ]
    width = max(len(line) for line, _ in known if len(line) < 60 or not ours)
    click.echo("\nNow try, in another terminal:")
    for line in before:
        click.echo(f"  {line}")
    for line, what in known:
        click.echo(f"  {line:<{width}}  {click.style('# ' + what, dim=True)}")
    click.echo()


class BoundedOutput:
    """Log rotation of what a detached controller says: its output is a file of ours, which must not fill the disk."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def look(self) -> None:
        """Where standard output is that file and is too long, it becomes the old one, and a new one is begun."""
        with contextlib.suppress(OSError):
            ours, theirs = os.fstat(1), self._file.stat()
            if not os.path.samestat(ours, theirs) or ours.st_size < UP_LOG_BYTES:
                return
            self._file.replace(self._file.with_name(f"{self._file.name}.1"))
            fresh = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for stream in (1, 2):
                os.dup2(fresh, stream)
            os.close(fresh)


def _in_the_background(wish: "UpOptions", policy: "Policy") -> None:
    """The same command again without --detach, in a session of its own; we leave when it answers."""
    import subprocess

    from sickbay.faces.cli.credentials import remember
    from sickbay.hosts.choices import words_of
    from sickbay.hosts.server import refuse_taken, refuse_unusable
    from sickbay.hosts.state import FIRST_TOKEN, make_private, recorded

    refuse_taken(wish.host, wish.port)
    refuse_unusable(wish.cert, wish.key)
    state = wish.state
    ours = [one for one in (state, *state.parents) if not one.exists()]  # made by us: gone again if it is refused
    make_private(state)
    output = state / UP_LOG
    command = [sys.executable, "-m", "sickbay", *(word for word in sys.argv[1:] if word != "--detach")]
    with os.fdopen(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), "wb") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)  # noqa: S603 - our own command line
    before = time.monotonic()
    while (record := recorded(state)).pid != child.pid:
        if child.poll() is not None:
            click.echo(output.read_text().strip().splitlines()[-1] if output.stat().st_size else "it ended", err=True)
            _take_back(output, ours)
            leave(child.returncode or 1)
        if time.monotonic() - before > 60:
            click.echo(f"it has not begun to serve within a minute: see {output}", err=True)
            leave(1)
        time.sleep(0.05)
    remember(record.url, (state / FIRST_TOKEN).read_text().strip())  # it does so a moment later
    click.echo(f"serving on {record.url}, {words_of(policy)}, in the background; 'sickbay down' ends it")
    if wish.here:
        click.echo(f"  what it does on this machine and what not: {output}")
    _elsewhere(record.url)


def _take_back(output: Path, made: Sequence[Path]) -> None:
    """A start that was refused leaves no trace where there was nothing before."""
    if made:
        with contextlib.suppress(OSError):
            output.unlink()
            for directory in made:  # the innermost first; one that is not empty stays
                directory.rmdir()


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
    who = [*(["the controller"] if ended.controller else []), *([count(ended.nodes, "node")] if ended.nodes else [])]
    said = f"down: {' and '.join(who)} ended" if who else "nothing was running"
    click.echo(f"{said}; the next 'sickbay up' goes on from {place}")
