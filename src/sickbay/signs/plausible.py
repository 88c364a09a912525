"""Plausibility of a GPU's readings: a value out of its range is not read at all, and that is told like a failed sensor.

NVML, drivers and tools give -1, all ones or not-a-number where nothing answers. None of these is judged or told.
"""

import math
from typing import Any

from msgspec.structs import replace

from sickbay.model.gpu import GpuReading, Link
from sickbay.signs.counting import ALL_ONES, LONGEST, believable

_CELSIUS, _WATTS, _MHZ, _SHARE = (-60.0, 200.0), (0.0, 20_000.0), (0.0, 20_000.0), (0.0, 100.0)
_PAGES, _BYTES = (0, 1_000_000), (0, 1 << 50)
RANGES: dict[str, tuple[float, float]] = {
    "index": (0, 65_535), "temperature": _CELSIUS, "temperature_memory": _CELSIUS, "slowdown_at": _CELSIUS,
    "shutdown_at": _CELSIUS, "memory_limit_at": _CELSIUS, "power": _WATTS, "power_limit": _WATTS,
    "power_limit_default": _WATTS, "sm_clock": _MHZ, "memory_clock": _MHZ, "utilization": _SHARE,
    "memory_utilization": _SHARE, "fan": (0.0, 1_000.0), "memory_used": _BYTES, "memory_total": _BYTES,
    "pcie_generation": (0, 20), "pcie_generation_max": (0, 20), "pcie_width": (0, 64), "pcie_width_max": (0, 64),
    "remaps_corrected": _PAGES, "remaps_uncorrected": _PAGES, "banks_full": _PAGES, "retired_single": _PAGES,
    "retired_double": _PAGES,
}  # fmt: skip
COUNTERS = (
    "corrected", "uncorrected", "uncorrected_sram", "uncorrected_dram", "corrected_aggregate", "uncorrected_aggregate",
    "uncorrected_sram_aggregate", "pcie_replays",
)  # fmt: skip
_CHECKS = (*((name, *limits) for name, limits in RANGES.items()), *((name, 0, LONGEST) for name in COUNTERS))
LINK_COUNTERS = ("replays", "recoveries", "crc_errors", "ecc_errors")


def plausible(name: str, value: float) -> bool:
    """`name`: a field of GpuReading; of one without a range every finite number is."""
    if name in COUNTERS or name in LINK_COUNTERS:
        return believable(int(value))
    low, high = RANGES.get(name, (-math.inf, math.inf))
    return math.isfinite(value) and low <= value <= high


def sane(reading: GpuReading) -> GpuReading:
    """The reading without values that nothing can have; what lacks for that is `unreadable`."""
    wild = tuple(
        name for name, low, high in _CHECKS
        if (value := getattr(reading, name)) is not None and not (low <= value <= high and value not in ALL_ONES)
    )  # fmt: skip
    links = None if reading.links is None else tuple(map(_sane_link, reading.links))
    if not wild and links == reading.links:
        return reading
    return without(reading, *wild, *(("links",) if links != reading.links else ()), links=links)


def without(reading: GpuReading, *names: str, links: tuple[Link, ...] | None = None) -> GpuReading:
    """These fields are not read; `links` stay, with what is left of them."""
    gone: dict[str, Any] = {name: None for name in names if name != "links"}
    unreadable = tuple(dict.fromkeys((*reading.unreadable, *names)))
    return replace(reading, **gone, links=links, unreadable=unreadable)


def _sane_link(link: Link) -> Link:
    wild = [name for name in LINK_COUNTERS if (value := getattr(link, name)) is not None and not believable(value)]
    return replace(link, **dict.fromkeys(wild)) if wild else link
