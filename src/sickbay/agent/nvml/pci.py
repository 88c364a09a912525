"""PCI addresses in all the ways that drivers, tools and logs write them, and which GPUs the bus has."""

import os
import re
from pathlib import Path

NVIDIA = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")  # display and 3D controllers; bridges and audio devices carry the same vendor
GIVEN_AWAY = "vfio-pci"  # a GPU that a virtual machine has: it is not this system's

Address = tuple[int, int, int]  # domain, bus, device

_ADDRESS = re.compile(
    r"(?:(?:PCI:)?(?P<domain>[0-9a-f]{4,8}):)?(?:PCI:)?(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})(?:\.[0-7])?",
    re.IGNORECASE | re.ASCII,
)


def address(text: str) -> Address | None:
    """`0000:18:00`, `00000000:18:00.0`, `PCI:0000:18:00.0`, `18:00.0` are one; None: it is no such address."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return None
    return int(found["domain"] or "0", 16), int(found["bus"], 16), int(found["device"], 16)


def nvidia_gpus(sysfs: Path = Path("/sys")) -> tuple[str, ...]:
    """Addresses of the NVIDIA GPUs on the bus, in order, whether or not a driver answers for them."""
    found: list[str] = []
    bus = f"{sysfs}/bus/pci/devices"
    try:
        names = sorted(os.listdir(bus))  # noqa: PTH208 - hundreds, looked at every few seconds: texts are enough
    except OSError:
        return ()
    for name in names:
        device = f"{bus}/{name}"
        if _word(f"{device}/vendor") != NVIDIA or not _word(f"{device}/class").startswith(GPU_CLASSES):
            continue
        if Path(device, "driver").resolve().name == GIVEN_AWAY:
            continue
        found.append(name)
    return tuple(found)


def _word(path: str) -> str:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(handle, 64).decode("ascii", "replace").strip().lower()
        finally:
            os.close(handle)
    except OSError:
        return ""
