"""Tests of virtual devices: they keep a processor busy for a while, and meet the defects that their level finds."""

import hashlib
import time
from collections.abc import Callable

from sickbay.agent.checks import CouldNotRun, Exercise
from sickbay.clusters.local.devices import Hardware

# name, level, seconds of work: a check of level 1 takes 0.15 s, of level 4 about 5 s
WORK = (("compute", 1, 0.15), ("memory", 2, 0.45), ("stress", 3, 1.4), ("burn_in", 4, 3.0))
BLOCK = bytes(range(256)) * 4096
DIGEST = hashlib.sha256(BLOCK).digest()


def virtual_tests(hardware: Hardware, gpus: int, boot_id: str) -> list[Exercise]:
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
