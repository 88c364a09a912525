"""Wiring (composition root): the only module that chooses adapters and clusters.

Each is imported where it is chosen, so that whoever only opens a store loads no cluster, and the other way round.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sickbay.engine.execute import Effects, Site
from sickbay.engine.view import PoolAbilities, Rules
from sickbay.knowledge.load import load_tables
from sickbay.knowledge.yaml_places import unknown
from sickbay.model.errors import BadInput
from sickbay.model.finding import Finding
from sickbay.model.notice import LOG, ChannelTraits
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.load import digest
from sickbay.ports.breakable import Breakable
from sickbay.ports.checks import Checks
from sickbay.ports.cluster import Cluster
from sickbay.ports.machines import Machines
from sickbay.ports.metrics import Metrics
from sickbay.ports.mirror import Mirror
from sickbay.ports.notifier import Notifier
from sickbay.ports.own_nodes import OwnNodes
from sickbay.ports.store import Store

if TYPE_CHECKING:
    from sickbay.adapters.machines.channels import SentThrough
    from sickbay.adapters.notifiers.message import NoticeLinks
    from sickbay.adapters.notifiers.settings import NotifierSettings

AGENT = "agent"  # the channel that every cluster has
CLUSTER_KINDS = "sickbay.clusters"  # the group of entry points under which other packages register kinds


class ClusterGround(NamedTuple):
    """What a kind builds a cluster from. `posted` is called when a command waits for an agent."""

    id: str
    state: Path  # a directory of this cluster's own
    store: Store
    policy: Policy
    posted: Callable[[], None]
    settings: Any  # of the kind's own type
    select: Mapping[str, Any] = {}  # which nodes are ours, in the kind's own words; empty: all
    pool: str = ""  # where a node's pool is read from, or a fixed name; empty: the kind's own way
    adopt: str = "none"  # which jobs of others are managed: none | comment | requeue | all


class WiredCluster(NamedTuple):
    """One cluster, and what comes with it."""

    cluster: Cluster
    machines: Mapping[str, Machines]  # channels of this kind, by name; "agent" exists for every kind
    wait: Callable[[float], object]  # wait so long, or less if something changed there
    breakable: Breakable | None = None
    checks: Checks | None = None  # None: its agents do them
    own_nodes: OwnNodes | None = None  # nodes that are switched on and off here
    mirror: Mirror | None = None
    # For `sickbay doctor`: what is missing or follows, such as a permission. It reads, and changes nothing.
    findings: Callable[[], Iterable[Finding]] = tuple


class ClusterKind(NamedTuple):
    settings: type[Noun]
    # Raises BadInput for what cannot be. It changes nothing outside of its own directory: `sickbay doctor` builds, too.
    build: Callable[[ClusterGround], WiredCluster]
    channels: tuple[str, ...] = ()  # the names of the machines that come with it


class FleetGround(NamedTuple):
    """What all clusters of one controller share."""

    store: Store
    policy: Policy
    posted: Callable[[], None]
    metrics: Path  # a directory
    knowledge: Path | None = None  # own rows over the shipped tables
    notifiers: Mapping[str, Notifier] | None = None  # None: the log alone
    traits: Mapping[str, ChannelTraits] = {}  # what each notifier may take
    machines: Mapping[str, Machines] = {}  # channels that every cluster may name
    sent: "SentThrough | None" = None  # what another policy must not send through another channel


class FleetCluster(NamedTuple):
    """One cluster of a fleet. `machines`: channels in order, by a glob of pools; empty: the kind's own, then agent."""

    wired: WiredCluster
    machines: Mapping[str, tuple[str, ...]] = {}
    checks_first: bool = False  # nodes that were there before us are checked once


@dataclass(frozen=True, slots=True)
class WiredFleet:
    """What a controller looks after."""

    hands: Effects
    rules: Rules
    pauses: Mapping[str, Callable[[float], object]]  # per cluster: wait so long, or less if something changed there
    breakable: Breakable | None = None
    metrics: Metrics | None = None
    mirrors: Mapping[str, Mirror] = field(default_factory=dict)  # by cluster, where one has any


def open_store(url: str, *, readonly: bool = False, password: str = "") -> Store:
    """The store that a URL names. `readonly` is for a look from another process: it takes no lock."""
    from sqlalchemy.engine import make_url

    from sickbay.adapters.stores import sql

    if password:
        url = make_url(url).set(password=password).render_as_string(hide_password=False)
    return sql.open_store(url, readonly=readonly)


def back_up(source: Path, target: Path) -> datetime:
    """A checked copy of a SQLite store that may be in use; when it was made."""
    from sickbay.adapters.stores import copies

    return copies.back_up(source, target)


class MachineGround(NamedTuple):
    """What channels of a site's own are built from."""

    store: Store
    posted: Callable[[], None]


class MachineKind(NamedTuple):
    settings: Any  # a noun with `mistakes()`
    build: Callable[[Any, MachineGround], Machines]


def machine_kinds() -> dict[str, MachineKind]:
    """What a site may write below 'machines', besides what comes with its clusters."""
    from sickbay.adapters.machines import agents, command
    from sickbay.adapters.machines.pools import holder_in

    return {
        "command": MachineKind(
            command.CommandMachineSettings,
            lambda settings, ground: command.CommandMachines(settings, holder_in(ground.store)),
        ),
        "agent": MachineKind(
            agents.AgentMachineSettings,
            lambda settings, ground: agents.AgentMachines(ground.store, ground.posted, reboots=settings.reboots),
        ),
    }


def machines_of(settings: Mapping[str, Any], ground: MachineGround) -> dict[str, Machines]:
    kinds = machine_kinds()
    return {name: kinds[one.kind].build(one, ground) for name, one in settings.items()}


def local_defects() -> dict[str, str]:
    """What can be broken in the local cluster: names, and what each of them is."""
    from sickbay.clusters.local.defects import catalogue

    return catalogue()


class NotifierKind(NamedTuple):
    settings: "type[NotifierSettings]"
    build: "Callable[[Any, NoticeLinks], Notifier]"


def notifier_kinds() -> "dict[str, NotifierKind]":
    """What a notifier can be, besides the log."""
    from sickbay.adapters.notifiers import command, mail, pagerduty, slack, webhook

    return {
        "webhook": NotifierKind(webhook.WebhookSettings, webhook.WebhookNotifier),
        "slack": NotifierKind(slack.SlackSettings, slack.SlackNotifier),
        "mail": NotifierKind(mail.MailSettings, mail.MailNotifier),
        "pagerduty": NotifierKind(pagerduty.PagerDutySettings, pagerduty.PagerDutyNotifier),
        "command": NotifierKind(command.CommandSettings, command.CommandNotifier),
    }


def notifiers_of(settings: "Mapping[str, NotifierSettings]", links: "NoticeLinks") -> dict[str, Notifier]:
    """One of each that is configured, and the log, which always is."""
    from sickbay.adapters.notifiers.log import LogNotifier

    kinds = notifier_kinds()
    return {LOG: LogNotifier()} | {name: kinds[one.kind].build(one, links) for name, one in settings.items()}


def cluster_kind(name: str) -> ClusterKind:
    """Raises BadInput: there is no such kind, or the package that brings it cannot be used."""
    if name in OWN_KINDS:
        return OWN_KINDS[name]()
    entry = _registered().get(name)
    if entry is None:
        raise BadInput(unknown("kind", name, cluster_kinds()))
    try:
        kind = entry.load()
    except Exception as error:  # noqa: BLE001 - another's code, which may fail in any way while it is imported
        why = f"{type(error).__name__}: {error}"
        raise BadInput(f"kind {name!r} ({entry.value}) cannot be loaded ({why}): install it anew") from None
    if not isinstance(kind, ClusterKind) or not _is_noun(kind.settings) or not callable(kind.build):
        raise BadInput(f"kind {name!r} ({entry.value}) is no sickbay.wiring.ClusterKind: its package must name one")
    return kind


def _is_noun(said: object) -> bool:
    return isinstance(said, type) and issubclass(said, Noun)


def cluster_kinds() -> tuple[str, ...]:
    """The names of all kinds, ours first. One of ours is never another's."""
    return tuple(dict.fromkeys((*OWN_KINDS, *sorted(_registered()))))


@cache
def _registered() -> Mapping[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=CLUSTER_KINDS)}


def _local() -> ClusterKind:
    from sickbay.clusters.local.settings import LocalSettings

    return ClusterKind(LocalSettings, _build_local, channels=("local",))


def _build_local(ground: ClusterGround) -> WiredCluster:
    from sickbay.clusters.local.breakages import LocalBreakages
    from sickbay.clusters.local.cluster import LocalCluster
    from sickbay.clusters.local.machines import LocalMachines
    from sickbay.clusters.local.mirror import LocalMirror
    from sickbay.clusters.local.own_nodes import LocalNodes
    from sickbay.clusters.local.settings import furnish

    if ground.select or ground.adopt != "none":
        raise BadInput("a local cluster has its own nodes and jobs only: leave out 'select' and 'adopt'")
    rack = furnish(ground.state, ground.id, ground.pool, ground.settings)
    cluster = LocalCluster(rack.root)
    return WiredCluster(
        cluster=cluster,
        machines={"local": LocalMachines(rack.root)},
        wait=cluster.wait,
        breakable=LocalBreakages(cluster),
        own_nodes=LocalNodes(rack),
        mirror=LocalMirror(rack.root, cluster.id),
    )


def _here() -> ClusterKind:
    from sickbay.clusters.local.here.settings import HereSettings

    return ClusterKind(HereSettings, _build_here, channels=("here",))


def _build_here(ground: ClusterGround) -> WiredCluster:
    from sickbay.adapters.machines.agents import AgentMachines
    from sickbay.clusters.local.here.cluster import HereCluster, HereMachines, HereNodes
    from sickbay.clusters.local.here.settings import furnish, machine_of
    from sickbay.clusters.local.mirror import LocalMirror

    if ground.select or ground.adopt != "none":
        raise BadInput("this machine has its own jobs only: leave out 'select' and 'adopt'")
    machine = machine_of(ground.state, ground.settings)
    rack = furnish(ground.state, ground.id, ground.pool, machine)
    cluster = HereCluster(rack.root, machine)
    reboots = ground.settings.allow_reboot
    return WiredCluster(
        cluster=cluster,
        machines={
            "here": HereMachines(rack.root, machine),
            AGENT: AgentMachines(ground.store, ground.posted, reboots=reboots),
        },
        wait=cluster.wait,
        mirror=LocalMirror(rack.root, cluster.id),
        own_nodes=HereNodes(rack, machine),
    )


OWN_KINDS: Mapping[str, Callable[[], ClusterKind]] = {"local": _local, "here": _here}


def fleet_of(clusters: Mapping[str, FleetCluster], ground: FleetGround) -> WiredFleet:
    """Any number of clusters as one fleet. Raises BadInput: a channel is named that is not there."""
    from sickbay.adapters.breakables import BreakableFleet
    from sickbay.adapters.metrics.rings import RingMetrics
    from sickbay.adapters.notifiers.message import NoticeLinks

    sites = {name: _site(each, ground) for name, each in clusters.items()}
    breakables = {name: each.wired.breakable for name, each in clusters.items() if each.wired.breakable is not None}
    rules = Rules(
        policy=ground.policy,
        tables=load_tables(ground.knowledge),
        policy_digest=digest(ground.policy),
        can={name: site.capabilities for name, site in sites.items()},
        blind={name: site.blind for name, site in sites.items()},
        checks_first=frozenset(name for name, each in clusters.items() if each.checks_first),
        channels=ground.traits,
        pools={name: _abilities(site, _machines(clusters[name], ground)) for name, site in sites.items()},
    )
    return WiredFleet(
        hands=Effects(sites=sites, notifiers=ground.notifiers or notifiers_of({}, NoticeLinks())),
        rules=rules,
        pauses={name: each.wired.wait for name, each in clusters.items()},
        breakable=BreakableFleet(breakables) if breakables else None,
        metrics=RingMetrics(ground.metrics),
        mirrors={name: each.wired.mirror for name, each in clusters.items() if each.wired.mirror is not None},
    )


def _site(each: FleetCluster, ground: FleetGround) -> Site:
    from sickbay.adapters.checks.agents import AgentChecks
    from sickbay.adapters.machines.pools import PooledMachines, pool_in

    pools = _machines(each, ground)
    machines = pools["*"] if pools.keys() == {"*"} else PooledMachines(pools, pool_in(ground.store))
    settle = ground.policy.resume.settle.total_seconds()
    checks = each.wired.checks or AgentChecks(ground.store, ground.posted, settle=settle)
    return Site(cluster=each.wired.cluster, machines=machines, checks=checks)


def _machines(each: FleetCluster, ground: FleetGround) -> dict[str, Machines]:
    """By a glob of pools, the last one for all that no other fits. Raises BadInput."""
    from sickbay.adapters.machines.agents import AgentMachines
    from sickbay.adapters.machines.channels import Channels

    agent = AgentMachines(ground.store, ground.posted)
    channels: dict[str, Machines] = {AGENT: agent, **ground.machines, **each.wired.machines}
    named = each.machines or {"*": tuple(dict.fromkeys((*each.wired.machines, AGENT)))}
    chosen = ground.policy.channels
    _refuse_missing(each.wired.cluster.id, named, channels, ground.policy)
    return {
        glob: Channels(
            {name: channels[name] for name in names},
            {what: one for what, one in chosen.items() if one in names},
            ground.sent,
        )
        for glob, names in {**named, "*": named.get("*", ())}.items()
    }


def _abilities(site: Site, pools: Mapping[str, Machines]) -> dict[str, PoolAbilities]:
    """Of each pool; empty: all are alike."""
    cluster, checks = site.cluster, site.checks
    return {
        glob: PoolAbilities(
            cluster.capabilities | machines.capabilities | checks.capabilities, cluster.blind | machines.blind
        )
        for glob, machines in pools.items()
        if len(pools) > 1
    }


def _refuse_missing(
    cluster: str, named: Mapping[str, tuple[str, ...]], channels: Mapping[str, Machines], policy: Policy
) -> None:
    used = tuple(dict.fromkeys(one for names in named.values() for one in names))
    for name in used:
        if name not in channels:
            raise BadInput(f"clusters.{cluster}.machines: {unknown('channel', name, channels)}")
    for remedy, name in policy.channels.items():
        if name not in used:
            known = ", ".join(used)
            raise BadInput(
                f"policy {policy.name}: channels: {remedy} is to go to {name!r}, which cluster {cluster} does not "
                f"have; it has {known}"
            )
