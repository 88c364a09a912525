"""The virtual devices: are all there, and what do their counters say?"""

from sickbay.agent.outbox import say
from sickbay.clusters.local.devices import Hardware
from sickbay.model.facts import Inventory, Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item


class VirtualDevices:
    """Tells what has changed since it looked last. `expected`: how many devices the seat has."""

    def __init__(self, hardware: Hardware, node: NodeId, expected: int) -> None:
        self._hardware = hardware
        self._node = node
        self._expected = expected
        self._errors: dict[str, int] = {}
        self._missing: frozenset[int] = frozenset()

    def look(self, now: float) -> list[Item]:
        there = self._hardware.devices().devices
        found: list[Item] = []
        missing = frozenset(range(self._expected)) - {device.index for device in there}
        found.extend(self._item("gpu.missing", index, f"GPU {index} is not there", now)
                     for index in sorted(missing - self._missing))  # fmt: skip
        self._missing = missing
        for device in there:
            before = self._errors.get(device.serial, 0)
            if device.errors > before:
                text = f"GPU {device.index} counts {device.errors} errors"
                found.append(self._item("gpu.errors", device.index, text, now, errors=device.errors))
            self._errors[device.serial] = device.errors
        return found

    def inventory(self) -> Inventory:
        return Inventory(devices=self._hardware.devices().as_seen())

    def _item(self, kind: str, device: int, text: str, now: float, **fields: int) -> Item:
        return say(Observed(node=self._node, kind=kind, fields={"device": device, **fields}, text=text), now)
