"""The only module that chooses adapters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sickbay.adapters.stores.sql import open_store
from sickbay.engine.execute import Effects, Site
from sickbay.engine.view import Rules
from sickbay.knowledge.load import load_tables
from sickbay.model.policy import Policy
from sickbay.policy.load import digest
from sickbay.ports.breakable import Breakable
from sickbay.ports.machines import Machines
from sickbay.ports.metrics import Metrics
from sickbay.ports.store import Store

__all__ = ["WiredFleet", "local_fleet", "open_store"]


@dataclass(frozen=True, slots=True)
class WiredFleet:
    """What a controller looks after."""

    hands: Effects
    rules: Rules
    pauses: Mapping[str, Callable[[float], object]]  # per cluster: wait so long, or less if something changed there
    breakable: Breakable | None = None
    metrics: Metrics | None = None


def local_fleet(
    root: Path, store: Store, policy: Policy, posted: Callable[[], None], knowledge: Path | None = None
) -> WiredFleet:
    """The local cluster under `root`; `posted` hears when a command waits for an agent; `knowledge`: own rows."""
    # Here, so that whoever only opens a store does not load a cluster.
    from sickbay.adapters.checks.agents import AgentChecks
    from sickbay.adapters.machines.agents import AgentMachines
    from sickbay.adapters.machines.channels import Channels
    from sickbay.adapters.metrics.rings import RingMetrics
    from sickbay.adapters.notifiers.log import LogNotifier
    from sickbay.clusters.local.breakages import LocalBreakages
    from sickbay.clusters.local.cluster import LocalCluster
    from sickbay.clusters.local.machines import LocalMachines

    cluster = LocalCluster(root)
    channels: dict[str, Machines] = {"local": LocalMachines(root), "agent": AgentMachines(store, posted)}
    checks = AgentChecks(store, posted, settle=policy.resume.settle.total_seconds())
    site = Site(cluster=cluster, machines=Channels(channels, policy.channels), checks=checks)
    hands = Effects(sites={cluster.id: site}, notifiers={"log": LogNotifier()})
    rules = Rules(
        policy=policy,
        tables=load_tables(knowledge),
        policy_digest=digest(policy),
        can={cluster.id: site.capabilities},
        blind={cluster.id: site.blind},
    )
    return WiredFleet(
        hands=hands,
        rules=rules,
        pauses={cluster.id: cluster.wait},
        breakable=LocalBreakages(cluster),
        metrics=RingMetrics(root / "metrics"),
    )
