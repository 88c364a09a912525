"""GPU health from one reading: one judge for every source of readings (NVML, `nvidia-smi` in all its forms, DCGM).

`signs_of` judges a state as it was found, `signs_among` a state in which several GPUs of one machine can be compared,
`held` a row of looks; `sickbay.signs.gpu_changes` what is new since the look before. What a source does not say is
never judged, nor what no card can have.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.gpu import GpuReading
from sickbay.model.noun import Noun
from sickbay.model.sign import Fields, Sign
from sickbay.signs.plausible import sane
from sickbay.signs.recovery_action import sign_of_wish


class Threshold(Noun):
    """A number from which on something counts as sick, and who says so."""

    at: float
    because: str


def _limit(row: TableRow) -> tuple[str, Threshold]:
    return row.given("name"), Threshold(at=row.number("at"), because=row.given("because"))


LIMITS = dict(read_table("gpu_limits.csv", ("name", "at", "because", "source"), _limit))

# Cards of data centres: what is a sign there is daily life on a desk (shared lanes, caps, a fan that cannot be read).
_DATA_CENTRE = re.compile(
    r"\bTesla\b|\b(?:K40|K80|M40|M60|P4|P40|P100|T4|V100|A2|A10G?|A16|A30|A40|A100X?|A800|L2|L4|L20|L40S?"
    r"|H20|H100|H200|H800|B100|B200|B300|GH200|GB200|GB300)\b|Server Edition"
)
# With memory in the package, where error correction is built in and costs nothing.
_STACKED = re.compile(r"\b(?:V100|A100|A800|A30|H100|H800|H200|H20|GH200|GB[23]00|B[123]00)\b")
# Cards that sit on a board of NVLinks; others have them only behind a bridge that may not be there.
_ON_BOARD = re.compile(r"\bSXM|\bHBM3e?\b|\b(?:H200(?! NVL)|H20|B[123]00|GB[23]00)\b")
_VIRTUAL = re.compile(r"^GRID\b|^NVIDIA [\w-]+-\d{1,2}[QCBAV]$")

# What a link counts: the field, in words, and from how many on it is worn.
LINK_ERRORS = (
    ("replays", "replays", "link_replays"),
    ("recoveries", "recoveries", "link_recoveries"),
    ("crc_errors", "checksum errors", "link_crc"),
    ("ecc_errors", "ECC errors", "link_ecc"),
)

BRAKES = {
    "hw_thermal_slowdown": ("gpu.thermal_slowdown", "the hardware slows it down for heat"),
    "hw_power_brake": ("gpu.power_brake", "the power brake is pulled"),
    "hw_slowdown": ("gpu.hw_slowdown", "the hardware slows it down"),
}

# Which fields of a reading show a sign, the best first, where it is not the one of the same name (`remap_pending`).
SHOWN_IN: dict[str, tuple[str, ...]] = {
    "gpu.fallen_off_bus": ("lost",),
    "gpu.init_failed": ("lost",),
    "gpu.sensor_failed": ("unreadable",),
    "gpu.reset_required": ("recovery_action", "lost"),
    "gpu.reboot_required": ("recovery_action",),
    "gpu.drain_required": ("recovery_action",),
    "gpu.imex_required": ("recovery_action",),
    "gpu.recovery_unknown": ("recovery_action",),
    "gpu.ecc_uncorrected": ("uncorrected", "uncorrected_dram", "uncorrected_sram"),
    "gpu.ecc_corrected": ("corrected",),
    "gpu.ecc_disabled": ("ecc_enabled",),
    "gpu.sram_threshold": ("sram_threshold", "uncorrected_sram_aggregate"),
    "gpu.memory_unrepairable": ("unrepairable",),
    "gpu.retired_many": ("retired_double", "retired_single"),
    "gpu.thermal_slowdown": ("hw_thermal_slowdown",),
    "gpu.power_brake": ("hw_power_brake",),
    "gpu.hot": ("temperature", "temperature_memory"),
    "gpu.power_limited": ("power_limit",),
    "gpu.fabric_failed": ("fabric_status", "fabric_state"),
    "gpu.fabric_waiting": ("fabric_state",),
    "nvlink.down": ("links",),
    "nvlink.errors": ("links",),
}


def shown_in(kind: str) -> tuple[str, ...]:
    """The fields of a reading that prove a sign: whoever read a text finds its line by them."""
    return SHOWN_IN.get(kind, (kind.partition(".")[2],))


def data_centre(name: str) -> bool:
    """A card that is sold for data centres, by its name."""
    return bool(_DATA_CENTRE.search(name))


def signs_of(reading: GpuReading) -> tuple[Sign, ...]:
    """All that is wrong with this GPU in the state in which it was found."""
    return judge(sane(reading))


def judge(reading: GpuReading) -> tuple[Sign, ...]:
    """As `signs_of`, of a reading that is known to be sane."""
    if reading.lost:
        return (_lost(reading),)  # whatever else is written about it is stale
    return tuple(sign for rule in _RULES for sign in rule(reading))


def signs_among(readings: Sequence[GpuReading]) -> tuple[Sign, ...]:
    """As `signs_of` of each, where the GPUs of one machine say about each other which links it is built with."""
    return tuple(sign for _, sign in signs_by_place(readings))


def signs_by_place(readings: Sequence[GpuReading]) -> Iterator[tuple[int, Sign]]:
    """As `signs_among`, each sign with the place of its reading."""
    readings = [sane(one) for one in readings]
    told = [one for one in readings if any(link.up is not None for link in one.links or ())]
    built = max(map(_up, told)) if len(told) > 1 else None
    for place, one in enumerate(readings):
        # Every card alike has as many links up: so is the machine wired, or this part of it lent.
        alike = built is not None and _up(one) >= built
        yield from ((place, sign) for sign in judge(one) if not (alike and sign.kind == "nvlink.down"))
        # A card without a bridge beside two with one is nothing; on a board all are tied.
        if built and one in told and not _up(one) and _ON_BOARD.search(one.name) and not (one.mig or one.lost):
            yield place, sign_about("nvlink.down", one, f"no NVLink is up, others have {built}")


def _up(one: GpuReading) -> int:
    return sum(link.up is True for link in one.links or ())


def held(looks: Sequence[GpuReading]) -> Sign | None:
    """The hardware's brake was on in every one of these looks while the card worked: a sick machine, no hot minute."""
    busy = [one for one in looks if (one.utilization or 0) >= LIMITS["busy"].at and _brakes(one)]
    if len(looks) < 2 or len(busy) < len(looks):
        return None
    last = looks[-1]
    return sign_about(
        "gpu.throttled", last, f"clocks held down by {', '.join(_brakes(last))} in {len(looks)} looks under load"
    )


def missing(readings: Sequence[GpuReading], expected: int) -> Sign | None:
    """Fewer GPUs answer than the node must have. None expected, none missed."""
    seen = sum(not one.lost for one in readings)
    if seen >= expected:
        return None
    return Sign(kind="gpu.count", text=f"{seen} of {expected} GPUs answer", fields={"seen": seen, "expected": expected})


# --- the rules, each for what it can see ---


def _lost(one: GpuReading) -> Sign:
    said = one.lost.lower()
    for words, kind in (
        ("requires reset", "gpu.reset_required"),
        ("fallen off", "gpu.fallen_off_bus"),
        ("external power", "gpu.init_failed"),
    ):
        if words in said:
            return sign_about(kind, one, one.lost)
    return sign_about("gpu.lost", one, one.lost)


def _wishes(one: GpuReading) -> Iterator[Sign]:
    if kind := sign_of_wish(one.recovery_action):
        yield sign_about(kind, one, f"the driver asks for {one.recovery_action}")


def _memory(one: GpuReading) -> Iterator[Sign]:
    if one.uncorrected:
        text = f"{one.uncorrected} uncorrected memory errors since the driver was loaded"
        yield replace(sign_about("gpu.ecc_uncorrected", one, text), count=one.uncorrected)
    if (one.corrected or 0) >= LIMITS["corrected"].at:
        yield sign_about(
            "gpu.ecc_corrected", one, f"{one.corrected} corrected memory errors since the driver was loaded"
        )
    if one.ecc_enabled is False and _STACKED.search(one.name) and not _VIRTUAL.search(one.name):
        yield sign_about("gpu.ecc_disabled", one, "error correction is off")
    life = one.uncorrected_sram_aggregate or 0
    # Where the driver judges by itself, its word counts: it knows how many of them are one and the same cell.
    if one.sram_threshold or (one.sram_threshold is None and life >= LIMITS["sram_aggregate"].at):
        yield sign_about("gpu.sram_threshold", one, f"too many uncorrectable SRAM errors ({life or 'by the driver'})")


def _spares(one: GpuReading) -> Iterator[Sign]:
    flags = (
        (one.remap_failed, "gpu.remap_failed", "a row remap failed"),
        (one.remap_pending, "gpu.remap_pending", "row remap pending"),
        (one.unrepairable, "gpu.memory_unrepairable", "unrepairable memory"),
        (one.repair_pending, "gpu.repair_pending", "a repair is pending"),
        (one.retire_pending, "gpu.retire_pending", "pages wait to be retired"),
        (one.banks_full, "gpu.banks_full", f"{one.banks_full} banks of memory without a spare row"),
    )
    yield from (sign_about(kind, one, text) for flag, kind, text in flags if flag)
    retired = (one.retired_single or 0) + (one.retired_double or 0)
    if retired >= LIMITS["retired"].at:
        yield sign_about("gpu.retired_many", one, f"{retired} retired pages")


def _brakes(one: GpuReading) -> list[str]:
    """The hardware's reasons, without the general one where a special one is given."""
    on = [name for name in BRAKES if name in (one.slowed_by or ())]
    return [name for name in on if name != "hw_slowdown" or len(on) == 1]


def _pace(one: GpuReading) -> Iterator[Sign]:
    busy = (one.utilization or 0) >= LIMITS["busy"].at
    # An idle laptop on battery has its brakes on all day. Who shows this part alone asks about it.
    if busy or not one.name or data_centre(one.name):
        yield from (sign_about(BRAKES[name][0], one, BRAKES[name][1]) for name in _brakes(one))
    yield from _heat(one)
    far = one.power_limit and one.power_limit_default and one.power_limit < LIMITS["power"].at * one.power_limit_default
    if far and data_centre(one.name):
        text = f"power limit {one.power_limit:g} W of {one.power_limit_default:g} W by default"
        yield sign_about("gpu.power_limited", one, text)


def _heat(one: GpuReading) -> Iterator[Sign]:
    limit = one.slowdown_at or LIMITS["hot"].at  # none at all where a card says 0
    if one.temperature is not None and one.temperature >= limit:
        yield sign_about("gpu.hot", one, f"{one.temperature:g} °C, limit {limit:g} °C")
    elif one.memory_limit_at and one.temperature_memory is not None and one.temperature_memory >= one.memory_limit_at:
        yield sign_about("gpu.hot", one, f"memory {one.temperature_memory:g} °C, limit {one.memory_limit_at:g} °C")


def _bus(one: GpuReading) -> Iterator[Sign]:
    if not data_centre(one.name) or _VIRTUAL.search(one.name):
        return
    if one.pcie_width and one.pcie_width_max and one.pcie_width < one.pcie_width_max:
        yield sign_about("gpu.pcie_width", one, f"PCIe x{one.pcie_width} of x{one.pcie_width_max}")
    busy = (one.utilization or 0) >= LIMITS["busy"].at  # the generation sinks by itself when the card idles
    if busy and one.pcie_generation and one.pcie_generation_max and one.pcie_generation < one.pcie_generation_max:
        text = f"PCIe generation {one.pcie_generation} of {one.pcie_generation_max} under load"
        yield sign_about("gpu.pcie_generation", one, text)
    if (one.pcie_replays or 0) >= LIMITS["replays"].at:
        yield sign_about("gpu.pcie_replays", one, f"{one.pcie_replays} PCIe replays since the reset")


def _links(one: GpuReading) -> Iterator[Sign]:
    links = one.links or ()
    down = [link.number for link in links if link.up is False]
    # All down is no fault to be seen from here: a card without a bridge, one lent alone, or a fabric not yet set up.
    if down and any(link.up for link in links) and _ON_BOARD.search(one.name) and not one.mig:
        for number in down:
            yield sign_about("nvlink.down", one, f"NVLink {number} is down", link=number)
    for link in links:
        counts = [(getattr(link, name) or 0, words, limit) for name, words, limit in LINK_ERRORS]
        if worn := [f"{count} {words}" for count, words, limit in counts if count >= LIMITS[limit].at]:
            yield sign_about("nvlink.errors", one, f"NVLink {link.number}: {', '.join(worn)}", link=link.number)


def _fabric(one: GpuReading) -> Iterator[Sign]:
    state, status = one.fabric_state.strip().lower(), one.fabric_status.strip().lower()
    if status not in {"", "success", "n/a", "not supported", "healthy"} and state in {"", "completed"}:
        yield sign_about("gpu.fabric_failed", one, f"fabric {one.fabric_state} {one.fabric_status}")
    elif state in {"in progress", "not started"} and _ON_BOARD.search(one.name):
        yield sign_about("gpu.fabric_waiting", one, f"fabric {one.fabric_state}")


def _sensors(one: GpuReading) -> Iterator[Sign]:
    if one.unreadable and data_centre(one.name):
        yield sign_about("gpu.sensor_failed", one, f"cannot be read: {', '.join(one.unreadable)}")


_RULES: tuple[Callable[[GpuReading], Iterable[Sign]], ...] = (
    _wishes, _memory, _spares, _pace, _bus, _links, _fabric, _sensors,
)  # fmt: skip


def sign_about(kind: str, one: GpuReading, text: str, **more: int) -> Sign:
    fields: Fields = {
        name: value
        for name, value in (("device", one.index), ("pci", one.pci), ("uuid", one.uuid), ("serial", one.serial))
        if value not in (None, "")
    }
    who = f"GPU {one.index}" if one.index is not None else one.pci or one.uuid or "the GPU"
    return Sign(kind=kind, fields={**fields, **more}, text=f"{who}: {text}")
