"""All that is watched of the machine besides its log and its GPUs, as probes."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sickbay.agent.probes import Probe
from sickbay.agent.probes.counters import Counters
from sickbay.agent.probes.gauges import Gauges
from sickbay.agent.probes.machine import Machine
from sickbay.agent.probes.mounts import Mounts
from sickbay.agent.probes.standing import Standing
from sickbay.agent.probes.sums import Sums
from sickbay.agent.settings import AgentSettings
from sickbay.model.fleet import NodeId

LOCAL = ("/", "/tmp", "/var", "/dev/shm")  # noqa: S108 - looked at, not written to


class Host:
    def __init__(
        self, settings: AgentSettings, node: NodeId, sys: Path = Path("/sys"), proc: Path = Path("/proc")
    ) -> None:
        places = tuple(place for place in dict.fromkeys((*LOCAL, settings.state)) if Path(place).is_dir())
        machine = Machine(sys, proc, _apart(places))
        self._mounts = Mounts(settings.mounts)
        self._gauges = Gauges(sys, proc, _apart(places))
        counters = Counters(node, sys)
        quick = (machine.ports, machine.carriers, machine.memory, machine.space, machine.clock, self._mounts.look)
        self.probes = (
            Probe("counters", counters.look, period=10.0),
            Probe("machine", Standing(node, quick).look, period=10.0),
            # Walking through all processes, or asking a service, costs a little: once in a while is enough.
            Probe("tasks", Standing(node, (machine.hung, machine.lanes)).look, period=60.0),
            Probe("services", Standing(node, (machine.fabric_manager,)).look, period=60.0, may_hang=True),
        )

    @property
    def values(self) -> Callable[[], Mapping[str, float]]:
        return self._gauges.values


def _apart(places: tuple[str, ...]) -> tuple[str, ...]:
    """One place of each file system."""
    found: dict[int, str] = {}
    for place in places:
        found.setdefault(Path(place).stat().st_dev, place)
    return tuple(found.values())


def host_for(settings: AgentSettings, node: NodeId, sums: Sums) -> Host:  # noqa: ARG001 - what every maker is given
    return Host(settings, node)
