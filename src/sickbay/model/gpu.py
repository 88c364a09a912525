"""What one look at one GPU shows, whoever looked: NVML, `nvidia-smi` in any of its forms, DCGM's exporter.

None means that the source does not say: absence is not health, and not sickness either.
"""

from sickbay.model.noun import Noun

# Why a GPU runs below its clocks, in the order of NVML's bits (nvmlClocksEventReasons), in NVML's names.
SLOWDOWNS = (
    "gpu_idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake", "display_clocks",
)  # fmt: skip


def slowdowns(bits: int) -> tuple[str, ...]:
    return tuple(name for place, name in enumerate(SLOWDOWNS) if bits >> place & 1)


class Link(Noun):
    """One NVLink of a GPU. Counters are totals since the driver was loaded."""

    number: int
    up: bool | None = None
    replays: int | None = None
    recoveries: int | None = None
    crc_errors: int | None = None  # flits and data
    ecc_errors: int | None = None


class GpuProcess(Noun):
    """A process that uses the GPU."""

    pid: int
    name: str = ""
    memory: int | None = None  # bytes


class GpuReading(Noun):
    """Counts are numbers, sizes bytes, temperatures °C, power watts, clocks MHz, shares per cent."""

    index: int | None = None
    uuid: str = ""
    serial: str = ""
    pci: str = ""  # in lower case, as the source writes it
    name: str = ""
    lost: str = ""  # why nothing can be read from it ("GPU is lost"); empty: it answers
    driver: str = ""
    unreadable: tuple[str, ...] = ()  # readings that fail while the others work: "power", "fan"

    ecc_enabled: bool | None = None
    corrected: int | None = None  # volatile: since the driver was loaded
    uncorrected: int | None = None
    uncorrected_sram: int | None = None
    uncorrected_dram: int | None = None
    corrected_aggregate: int | None = None  # over its life
    uncorrected_aggregate: int | None = None
    uncorrected_sram_aggregate: int | None = None
    sram_threshold: bool | None = None  # the driver's own flag: too many in SRAM

    remaps_corrected: int | None = None
    remaps_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    banks_full: int | None = None  # memory banks without a spare row
    retired_single: int | None = None
    retired_double: int | None = None
    retire_pending: bool | None = None
    repair_pending: bool | None = None  # of a memory channel or a TPC
    unrepairable: bool | None = None  # the driver's own word on its memory

    # Why it runs below its clocks, now: SLOWDOWNS. None: the source does not say; empty: none is active.
    slowed_by: tuple[str, ...] | None = None
    temperature: float | None = None
    temperature_memory: float | None = None
    slowdown_at: float | None = None
    shutdown_at: float | None = None
    memory_limit_at: float | None = None
    power: float | None = None
    power_limit: float | None = None
    power_limit_default: float | None = None
    sm_clock: float | None = None
    memory_clock: float | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used: int | None = None
    memory_total: int | None = None
    fan: float | None = None

    pcie_generation: int | None = None  # of the link now: it sinks when the GPU idles
    pcie_generation_max: int | None = None  # of GPU and slot together
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None

    links: tuple[Link, ...] | None = None  # None: the source does not say; empty: the card has none
    persistence: bool | None = None
    mig: bool | None = None
    recovery_action: str = ""  # the driver's own wish: "None", "Reset", "Reboot", "Drain P2P", "Drain and Reset"
    fabric_state: str = ""  # "Completed", "In Progress", "Not Started", "N/A"
    fabric_status: str = ""  # "Success" or an error
    processes: tuple[GpuProcess, ...] | None = None
