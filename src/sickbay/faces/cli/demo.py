"""sickbay demo: one fault on real processes, from its first symptom to the node's return, and nothing left behind."""

import tempfile
from pathlib import Path

import click

from sickbay.faces.cli.show import leave

STEPS = 120


@click.command("demo")
def demo() -> None:
    """One GPU fault on real processes, from its first symptom to its cure.

    Starts four nodes and a job on two of them, breaks a GPU under it, tells the story as it happens, and ends
    everything again. Exits 0 only if the node was repaired, proven and released, and the job completed. Takes about
    half a minute and touches nothing outside a temporary directory.
    """
    from sickbay.faces.cli.showcase import Showcase
    from sickbay.faces.cli.up import service_of
    from sickbay.hosts.up import UpOptions, config_of
    from sickbay.policy.load import load_policy

    with tempfile.TemporaryDirectory(prefix="sickbay-demo-") as state:
        click.echo("starting four nodes, each a real process with an agent and two virtual GPUs …")
        service = service_of(config_of(UpOptions(state=Path(state), port=0)), load_policy("default"))
        try:
            service.start()
            healed = Showcase(service.backend, steps=STEPS).run(to_the_end=True)
        finally:
            service.stop(cluster=True)
    leave(0 if healed else 1)
