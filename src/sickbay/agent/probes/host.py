"""All that is watched of the machine besides its log and its GPUs, as probes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from sickbay.agent.outbox import say
from sickbay.agent.probes import Probe
from sickbay.agent.probes.counters import Counters
from sickbay.agent.probes.dedup import Deduplicator
from sickbay.agent.probes.gauges import Gauges
from sickbay.agent.probes.machine import Machine
from sickbay.agent.probes.mounts import Mounts
from sickbay.agent.probes.remembered import Remembered, boot_in
from sickbay.agent.settings import AgentSettings, on_host
from sickbay.knowledge.counters import CounterRule, counter_rules
from sickbay.model.facts import Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item
from sickbay.model.sign import Sign

LOCAL = ("/", "/tmp", "/var", "/dev/shm")  # noqa: S108 - looked at, not written to


Look = Callable[[float], Iterable[Sign]]


class EdgeTriggered:
    """What is wrong as long as it lasts: told when it begins, and again only after it was well in between.

    `looks` say what is wrong now. One that raises keeps what it said before: not to see is not to be well.
    """

    def __init__(self, node: NodeId, looks: Iterable[Look]) -> None:
        self._node = node
        self._looks = tuple(looks)
        self._wrong: dict[int, set[tuple[object, ...]]] = {}

    def look(self, now: float) -> list[Item]:
        found: list[Item] = []
        failed: Exception | None = None
        for number, look in enumerate(self._looks):
            try:
                signs = list(look(now))
            except Exception as error:  # noqa: BLE001 - told below, after the others have looked
                failed = error
                continue
            before = self._wrong.get(number, set())
            self._wrong[number] = {_key(sign) for sign in signs}
            found.extend(self._item(sign, now) for sign in signs if _key(sign) not in before)
        if failed is not None and not found:
            raise failed
        return found

    def _item(self, sign: Sign, now: float) -> Item:
        news = Observed(node=self._node, kind=sign.kind, fields=dict(sign.fields), text=sign.text, count=sign.count)
        return say(news, now)


def _key(sign: Sign) -> tuple[object, ...]:
    return (sign.kind, *sorted(sign.fields.items()))


class HostGauges:
    def __init__(self, settings: AgentSettings, node: NodeId, sys: Path | None = None) -> None:
        sys, proc, root = sys or settings.on_host("/sys"), settings.on_host("/proc"), settings.host_root
        local = (*(str(on_host(root, place)) for place in LOCAL), settings.state)
        places = _apart(tuple(place for place in dict.fromkeys(local) if Path(place).is_dir()))
        machine = Machine(sys, proc, places, root)
        self._mounts = Mounts(settings.mounts, root=root)
        self._gauges = Gauges(sys, proc, places, root)
        quick, slow = (machine.memory, machine.clock, self._mounts.look), (machine.lanes, machine.fabric_manager)
        self.probes = (
            *_counters(settings, node, sys),
            Probe("machine", EdgeTriggered(node, quick).look, period=10.0),
            # Whoever reads a file of a dead card waits as long as its driver does: a minute, or for ever.
            Probe("ports", EdgeTriggered(node, (machine.ports, machine.carriers)).look, period=10.0, may_hang=True),
            Probe("space", EdgeTriggered(node, (machine.space,)).look, period=10.0, may_hang=True),
            # Walking through all processes, or asking a service, costs a little: once in a while is enough.
            Probe("tasks", EdgeTriggered(node, (machine.hung,)).look, period=60.0),
            Probe("services", EdgeTriggered(node, slow).look, period=60.0, may_hang=True),
        )

    @property
    def values(self) -> Callable[[], Mapping[str, float]]:
        return self._gauges.values


def _counters(settings: AgentSettings, node: NodeId, sys: Path) -> Iterator[Probe]:
    """One probe for each kind of device, beside the loop: a card that hangs does not hide the counters of others."""
    boot = boot_in(settings.boot_id_file)
    kinds: dict[str, list[CounterRule]] = {}
    for rule in counter_rules():
        kinds.setdefault("-".join(rule.under.split("/")[:2]), []).append(rule)
    for kind, rules in kinds.items():
        remembered = Remembered(Path(settings.state) / f"counters-{kind.replace('*', '')}.json", boot)
        counters = Counters(node, sys, rules, remembered)
        yield Probe(f"counters {kind}", counters.look, period=10.0, told=counters.told, may_hang=True)


def _apart(places: tuple[str, ...]) -> tuple[str, ...]:
    """One place of each file system."""
    found: dict[int, str] = {}
    for place in places:
        found.setdefault(Path(place).stat().st_dev, place)
    return tuple(found.values())


def host_for(settings: AgentSettings, node: NodeId, sums: Deduplicator) -> HostGauges:  # noqa: ARG001 - what every maker is given
    return HostGauges(settings, node)
