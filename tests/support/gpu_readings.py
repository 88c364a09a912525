"""Two looks at one GPU, compared."""

from typing import Any

from sickbay.model.gpu import GpuReading

# What moves between two looks, and what only one of the sources gives.
_MOVES = frozenset({
    "power", "temperature", "temperature_memory", "slowdown_at", "shutdown_at", "sm_clock", "memory_clock",
    "utilization", "memory_utilization", "memory_used", "fan", "pcie_generation", "slowed_by", "processes",
    "pcie_replays", "unreadable",
})  # fmt: skip


def differences(one: GpuReading, other: GpuReading) -> dict[str, tuple[Any, Any]]:
    """Where two sources that looked at one GPU at about the same time contradict each other; silence does not."""
    found = {}
    for name in GpuReading.__struct_fields__:
        left, right = getattr(one, name), getattr(other, name)
        silent = left in (None, "") or right in (None, "")
        if name == "pci":  # NVML and older tools write the domain in four digits
            left, right = left[-10:], right[-10:]
        if name == "recovery_action":
            silent = silent or {left.lower(), right.lower()} <= {"none", "n/a"}
        if name not in _MOVES and not silent and left != right:
            found[name] = (left, right)
    return found
