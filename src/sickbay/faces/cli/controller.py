"""sickbay controller: serves any number of clusters, as its file says."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sickbay.faces.cli.signals import Signals, who_starts
from sickbay.faces.cli.up import service_of
from sickbay.model.errors import BadInput

if TYPE_CHECKING:
    from sickbay.hosts.config import ControllerConfig
    from sickbay.hosts.service import Service
    from sickbay.model.policy import Policy

DEFAULT = "/etc/sickbay/controller.yaml"
BY = "sickbay controller"


@click.command("controller")
@click.option(
    "--config", "file", metavar="FILE", default=DEFAULT, show_default=True, type=click.Path(path_type=Path),
    help="What it serves (YAML).",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Only read the file, the policy and the knowledge, and say what they are.")
@click.option("--new-token", is_flag=True, help="Make an administrator's token anew, for whoever has lost it.")
def controller(file: Path, *, check: bool, new_token: bool) -> None:
    """Run a controller of any number of clusters.

    What it serves stands in one file: clusters, store, policy, notifiers, machines. SIGHUP makes it read the file again
    and take the policy that it names now; whatever else has changed needs a restart, and is named. SIGTERM ends it and
    leaves every node and job as it is: the next controller goes on from the store.

    \b
    Examples:
      sickbay controller --check                      is the file right?
      sickbay controller --config ./controller.yaml   serve what it says
    """
    from sickbay.hosts.config_file import read_config, read_policy
    from sickbay.hosts.server import refuse_unusable
    from sickbay.hosts.state import refuse_second, serving
    from sickbay.knowledge.load import load_tables

    config = read_config(file)
    policy = read_policy(config)
    load_tables(config.knowledge)
    if check:
        try:
            refuse_unusable(config.listen.cert or None, config.listen.key or None)
        except BadInput as error:
            raise config.wrong(("listen",), error) from None
        click.echo(f"{file}: {_said(config, policy)}")
        return
    if pid := serving(config.state):  # before anything is touched; of two that start at once the lock lets one go on
        try:
            refuse_second(config.state, pid)
        except BadInput as error:
            raise config.wrong(("state",), error) from None
    _serve(file, config, policy, new_token=new_token)


def _serve(file: Path, config: "ControllerConfig", policy: "Policy", *, new_token: bool) -> None:
    from sickbay.agent.watchdog import Watchdog
    from sickbay.hosts.state import FIRST_TOKEN
    from sickbay.policy.load import digest

    ended = Signals(hangups=True)
    service = service_of(config, policy, by=BY)
    try:
        service.start(click.echo, new_token=new_token)
        service.backend.started(f"{who_starts()} with {BY}", digest(policy), config.policy, str(config.knowledge or ""))
        click.echo(f"serving on {service.url}, {_said(config, policy)}")
        token = f"an administrator's token is in {config.state / FIRST_TOKEN}"
        click.echo(token if service.token else "the store has an administrator already; --new-token makes another")
        Watchdog().ready()
        _watch(service, file, ended)
    except KeyboardInterrupt:
        pass
    finally:
        with suppress(OSError):
            click.echo("the controller ends; nodes and jobs go on")
        service.stop()


def _watch(service: "Service", file: Path, ended: Signals) -> None:
    """Until it is told to end. Whoever read what is said has gone, or the disk is full: that ends no controller."""
    from sickbay.hosts.reload import reload

    trouble, leads = "", None
    while not ended.wait(0.2):
        lines: list[str] = []
        if ended.reload:
            ended.reload = False
            lines += reload(service, file)
        if service.leads is not leads:
            leads = service.leads
            lines.append("leads" if leads else "stands by: another controller leads")
        if service.trouble != trouble:
            trouble = service.trouble
            lines.append(f"in trouble: {trouble}" if trouble else "well again")
        for line in lines:
            with suppress(OSError):
                click.echo(line, err=True)


def _said(config: "ControllerConfig", policy: "Policy") -> str:
    from sickbay.hosts.choices import words_of

    clusters = ", ".join(f"{name} ({each.kind})" for name, each in config.clusters.items())
    told = f", told by {', '.join(config.notifiers.names)}" if config.notifiers.notifiers else ""
    return f"{'cluster' if len(config.clusters) == 1 else 'clusters'} {clusters}; {words_of(policy)}{told}"
