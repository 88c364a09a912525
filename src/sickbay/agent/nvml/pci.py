"""PCI addresses in all the ways that drivers, tools and logs write them, and which GPUs the bus has."""

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
    try:
        devices = sorted((sysfs / "bus/pci/devices").iterdir())
    except OSError:
        return ()
    for device in devices:
        if _word(device / "vendor") != NVIDIA or not _word(device / "class").startswith(GPU_CLASSES):
            continue
        if (device / "driver").resolve().name == GIVEN_AWAY:
            continue
        found.append(device.name)
    return tuple(found)


def _word(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip().lower()
    except OSError:
        return ""
