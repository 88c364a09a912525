"""The virtual devices as an agent meets them: a probe of what is there and what it counts, and the tests of a check."""

import hashlib
import time
from collections.abc import Callable

from sickbay.agent.checks import CouldNotRun, Exercise
from sickbay.agent.outbox import say
from sickbay.clusters.local.devices import Hardware
from sickbay.model.facts import Inventory, Observed
from sickbay.model.fleet import NodeId
from sickbay.model.protocol import Item

# name, level, seconds of work: a check of level 1 takes 0.15 s, of level 4 about 5 s
WORK = (("compute", 1, 0.15), ("memory", 2, 0.45), ("stress", 3, 1.4), ("burn_in", 4, 3.0))
BLOCK = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(BLOCK).digest()


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


def virtual_tests(hardware: Hardware, gpus: int, boot_id: str) -> list[Exercise]:
    """They keep a processor busy for a while, and meet the defects that their level finds."""
    return [
        Exercise("devices", 1, lambda _: _all_there(hardware, gpus)),
        *(Exercise(name, level, _working(hardware, level, seconds, boot_id)) for name, level, seconds in WORK),
    ]


def _all_there(hardware: Hardware, gpus: int) -> str:
    there = {device.index for device in hardware.devices().devices}
    missing = [index for index in range(gpus) if index not in there]
    return f"GPU {', '.join(map(str, missing))} not there" if missing else ""


def _working(hardware: Hardware, level: int, seconds: float, boot_id: str) -> Callable[[float], str]:
    def run(until: float) -> str:
        done = time.monotonic() + seconds
        while (now := time.monotonic()) < done:
            if now >= until:
                raise CouldNotRun("it took too long")
            if hashlib.sha256(BLOCK).digest() != DIGEST:
                return "the same data gave another checksum"
        met = [defect for defect in hardware.defects() if min(max(defect.found_at, 1), len(WORK)) == level]
        for defect in met:
            hardware.show(defect, boot_id)
        return ", ".join(
            defect.name if defect.device is None else f"{defect.name} on GPU {defect.device}" for defect in met
        )

    return run
