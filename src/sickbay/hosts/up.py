"""What `sickbay up` serves: a controller of one small cluster of real processes on this machine.

The service itself is every controller's (`hosts/service.py`); here is the local cluster's own part of it.
"""

from pathlib import Path
from typing import NamedTuple

from sickbay.clusters.local.here.settings import KIND as HERE
from sickbay.clusters.local.here.settings import HereSettings
from sickbay.clusters.local.settings import POOL, LocalSettings
from sickbay.hosts.channels import NotifierFile
from sickbay.hosts.config import ClusterConfig, ControllerConfig, Listen
from sickbay.hosts.state import CLUSTERS
from sickbay.model.errors import BadInput

CLUSTER = "local"
AGENT_SETTINGS = "agent.yaml"  # below the state: of this machine's own agent, read where it is there


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
    here: bool = False  # this machine is the one node
    allow_reboot: bool = False


def refuse_other_kind(state: Path, *, here: bool) -> None:
    """A state has virtual nodes or this machine: of the other kind's jobs and repairs nobody would know any more."""
    other, words = (CLUSTER, "virtual nodes") if here else (f"{CLUSTERS}/{HERE}", "this machine as its node")
    if (state / other / "cluster.json").exists():
        again = "sickbay up" if here else "sickbay up --here"
        raise BadInput(f"{state} has {words}: go on with '{again}', or give another directory with --state DIR")


def config_of(wish: UpOptions) -> ControllerConfig:
    """The built-in config: what a controller's file would say. The policy is kept by `hosts/choices.py`."""
    refuse_other_kind(wish.state, here=wish.here)
    home = wish.state / (f"{CLUSTERS}/{HERE}" if wish.here else CLUSTER)
    return ControllerConfig(
        clusters=_this_machine(wish) if wish.here else _virtual_nodes(wish),
        state=wish.state,
        listen=Listen(host=wish.host, port=wish.port, cert=wish.cert or "", key=wish.key or ""),
        knowledge=wish.knowledge,
        notifiers=wish.notifiers,
        metrics=home / "metrics",
    )


def _virtual_nodes(wish: UpOptions) -> dict[str, ClusterConfig]:
    settings = LocalSettings(nodes=wish.nodes, gpus=wish.gpus, boot_takes=wish.boot_takes)
    return {CLUSTER: ClusterConfig(kind="local", pool=POOL, settings=settings, home=str(wish.state / CLUSTER))}


def _this_machine(wish: UpOptions) -> dict[str, ClusterConfig]:
    settings = HereSettings(allow_reboot=wish.allow_reboot, agent=str(wish.state / AGENT_SETTINGS))
    return {HERE: ClusterConfig(kind=HERE, pool=POOL, settings=settings)}
