"""Asset inventory: which devices the machine has, told at the agent's start and when that changes."""

from collections.abc import Callable, Sequence

from sickbay.agent.outbox import say
from sickbay.agent.probes import Probe
from sickbay.model.facts import Inventory
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item

PERIOD = 5.0  # seconds: nothing is asked of a device, what others have read is compared
MOST = 64  # devices

Found = Callable[[], Inventory]


class Stock:
    """`found`: what is known of the devices by now; nothing is told while that is nothing."""

    def __init__(self, node: NodeId, found: Found) -> None:
        self._node = node
        self._found = found
        self._told: Inventory | None = None

    def look(self, now: float) -> Sequence[Item]:
        found = self._found()
        if not found.devices or found == self._told:
            return ()
        self._told = found
        short = Inventory(devices=found.devices[:MOST], linked=found.linked, node=self._node)
        return (say(short, now),)


def inventory_probe(node: NodeId, found: Found) -> Probe:
    return Probe("inventory", Stock(node, found).look, period=PERIOD)
