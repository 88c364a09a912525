"""What `sickbay up` serves: a controller of one small cluster of real processes on this machine.

The service itself is every controller's (`hosts/service.py`); here is the local cluster's own part of it.
"""

from pathlib import Path
from typing import NamedTuple

from sickbay.clusters.local.settings import POOL, LocalSettings
from sickbay.hosts.channels import NotifierFile
from sickbay.hosts.config import ClusterConfig, ControllerConfig, Listen

CLUSTER = "local"


class UpOptions(NamedTuple):
    """What `sickbay up` was asked for. None: as it was, or the default."""

    state: Path
    nodes: int | None = None
    gpus: int | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    boot_takes: float = 1.0
    cert: str | None = None
    key: str | None = None
    knowledge: Path | None = None  # the operator's own rows over the shipped tables
    notifiers: NotifierFile = NotifierFile()


def config_of(wish: UpOptions) -> ControllerConfig:
    """The built-in config: what a controller's file would say. The policy is kept by `hosts/choices.py`."""
    home = wish.state / CLUSTER
    settings = LocalSettings(nodes=wish.nodes, gpus=wish.gpus, boot_takes=wish.boot_takes)
    return ControllerConfig(
        clusters={CLUSTER: ClusterConfig(kind="local", pool=POOL, settings=settings, home=str(home))},
        state=wish.state,
        listen=Listen(host=wish.host, port=wish.port, cert=wish.cert or "", key=wish.key or ""),
        knowledge=wish.knowledge,
        notifiers=wish.notifiers,
        metrics=home / "metrics",
    )
