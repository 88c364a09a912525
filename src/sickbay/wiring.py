"""Wiring (composition root): the only module that chooses adapters and clusters.

Each is imported where it is chosen, so that whoever only opens a store loads no cluster, and the other way round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sickbay.engine.execute import Effects, Site
from sickbay.engine.view import Rules
from sickbay.knowledge.load import load_tables
from sickbay.model.notice import LOG, ChannelTraits
from sickbay.model.policy import Policy
from sickbay.policy.load import digest
from sickbay.ports.breakable import Breakable
from sickbay.ports.machines import Machines
from sickbay.ports.metrics import Metrics
from sickbay.ports.mirror import Mirror
from sickbay.ports.notifier import Notifier
from sickbay.ports.store import Store

if TYPE_CHECKING:
    from sickbay.adapters.notifiers.message import NoticeLinks
    from sickbay.adapters.notifiers.settings import NotifierSettings


@dataclass(frozen=True, slots=True)
class WiredFleet:
    """What a controller looks after."""

    hands: Effects
    rules: Rules
    pauses: Mapping[str, Callable[[float], object]]  # per cluster: wait so long, or less if something changed there
    breakable: Breakable | None = None
    metrics: Metrics | None = None
    mirrors: Mapping[str, Mirror] = field(default_factory=dict)  # by cluster, where one has any


def open_store(url: str, *, readonly: bool = False) -> Store:
    """The store that a URL names. `readonly` is for a look from another process: it takes no lock."""
    from sickbay.adapters.stores import sql

    return sql.open_store(url, readonly=readonly)


def back_up(source: Path, target: Path) -> datetime:
    """A checked copy of a SQLite store that may be in use; when it was made."""
    from sickbay.adapters.stores import copies

    return copies.back_up(source, target)


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


def local_fleet(
    root: Path,
    store: Store,
    policy: Policy,
    posted: Callable[[], None],
    knowledge: Path | None = None,
    notifiers: Mapping[str, Notifier] | None = None,
    traits: Mapping[str, ChannelTraits] | None = None,
) -> WiredFleet:
    """The local cluster under `root`; `posted` hears when a command waits for an agent; `knowledge`: own rows.

    `notifiers`: by their names, with what each may take in `traits`; None: the log alone.
    """
    from sickbay.adapters.checks.agents import AgentChecks
    from sickbay.adapters.machines.agents import AgentMachines
    from sickbay.adapters.machines.channels import Channels
    from sickbay.adapters.metrics.rings import RingMetrics
    from sickbay.adapters.notifiers.message import NoticeLinks
    from sickbay.clusters.local.breakages import LocalBreakages
    from sickbay.clusters.local.cluster import LocalCluster
    from sickbay.clusters.local.machines import LocalMachines
    from sickbay.clusters.local.mirror import LocalMirror

    cluster = LocalCluster(root)
    channels: dict[str, Machines] = {"local": LocalMachines(root), "agent": AgentMachines(store, posted)}
    checks = AgentChecks(store, posted, settle=policy.resume.settle.total_seconds())
    site = Site(cluster=cluster, machines=Channels(channels, policy.channels), checks=checks)
    hands = Effects(sites={cluster.id: site}, notifiers=notifiers or notifiers_of({}, NoticeLinks()))
    rules = Rules(
        policy=policy,
        tables=load_tables(knowledge),
        policy_digest=digest(policy),
        can={cluster.id: site.capabilities},
        blind={cluster.id: site.blind},
        channels=traits or {},
    )
    return WiredFleet(
        hands=hands,
        rules=rules,
        pauses={cluster.id: cluster.wait},
        breakable=LocalBreakages(cluster),
        metrics=RingMetrics(root / "metrics"),
        mirrors={cluster.id: LocalMirror(root, cluster.id)},
    )
