"""The OwnNodes port of this machine as its one node: the machine room's, with words for whoever starts it."""

from sickbay.clusters.local.here.machine import ThisMachine, promises
from sickbay.clusters.local.own_nodes import LocalNodes
from sickbay.clusters.local.rack import Rack


class HereNodes(LocalNodes):
    def __init__(self, rack: Rack, machine: ThisMachine) -> None:
        super().__init__(rack)
        self._machine = machine

    def promises(self) -> tuple[str, ...]:
        (node,) = self.agents()
        return promises(self._machine, node)
