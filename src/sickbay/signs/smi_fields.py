"""Where `nvidia-smi` writes what: paths in the long text, the XML and the CSV → fields of a reading.

A path is what stands above and before a value, in lower case, with blanks for underscores and a slash between levels
(a dot in CSV). Names moved between driver branches (418 … 590), so a field has many. Seen in recordings of an H200
under 580 and in outputs that people posted with drivers 384 to 575; NVIDIA promises no stability of them.
"""

from collections.abc import Iterator

REASONS = {
    "idle": "gpu_idle",
    "gpu idle": "gpu_idle",
    "sw power cap": "sw_power_cap",
    "hw slowdown": "hw_slowdown",
    "hw thermal slowdown": "hw_thermal_slowdown",
    "hw power brake slowdown": "hw_power_brake",
    "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown",
    "applications clocks setting": "applications_clocks",
    "display clock setting": "display_clocks",
    "display clocks setting": "display_clocks",
}
BITS = (
    "gpu_idle", "applications_clocks", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown",
    "hw_thermal_slowdown", "hw_power_brake", "display_clocks",
)  # fmt: skip

# field, how to read the value, its paths: long text, XML, CSV
_TABLE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("name", "word", ("product name", "name", "gpu name")),
    ("uuid", "word", ("gpu uuid", "uuid")),
    ("serial", "word", ("serial number", "serial", "gpu serial")),
    ("pci", "word", ("pci/bus id", "pci/pci bus id", "pci.bus id", "gpu bus id")),
    ("index", "count", ("index", "gpu")),
    ("driver", "word", ("driver version",)),
    ("persistence", "flag", ("persistence mode",)),
    ("mig", "flag", ("mig mode/current", "mig mode/current mig", "mig.mode.current")),
    ("recovery_action", "word", ("gpu recovery action",)),
    ("reset_required", "flag", ("gpu reset status/reset required", "reset status.reset required")),
    (
        "drain_and_reset",
        "flag",
        ("gpu reset status/drain and reset recommended", "reset status.drain and reset recommended"),
    ),
    (
        "pcie_generation",
        "count",
        (
            "pci/gpu link info/pcie generation/current",
            "pci/pci gpu link info/pcie gen/current link gen",
            "pcie.link.gen.current",
            "pcie.link.gen.gpucurrent",
        ),
    ),
    (
        "pcie_generation_max",
        "count",
        ("pci/gpu link info/pcie generation/max", "pci/pci gpu link info/pcie gen/max link gen", "pcie.link.gen.max"),
    ),
    (
        "pcie_width",
        "count",
        (
            "pci/gpu link info/link width/current",
            "pci/pci gpu link info/link widths/current link width",
            "pcie.link.width.current",
        ),
    ),
    (
        "pcie_width_max",
        "count",
        ("pci/gpu link info/link width/max", "pci/pci gpu link info/link widths/max link width", "pcie.link.width.max"),
    ),
    ("pcie_replays", "count", ("pci/replays since reset", "pci/replay counter", "pcie.replay counter")),
    ("fan", "number", ("fan speed", "fan.speed")),
    ("memory_total", "bytes", ("fb memory usage/total", "memory.total")),
    ("memory_used", "bytes", ("fb memory usage/used", "memory.used")),
    ("utilization", "number", ("utilization/gpu", "utilization/gpu util", "utilization.gpu")),
    ("memory_utilization", "number", ("utilization/memory", "utilization/memory util", "utilization.memory")),
    ("ecc_enabled", "flag", ("ecc mode/current", "ecc mode/current ecc", "ecc.mode.current")),
    ("sram_threshold", "flag", ("ecc errors/aggregate/sram threshold exceeded",)),
    ("repair_pending", "any", ("ecc errors/channel repair pending", "ecc errors/tpc repair pending")),
    ("unrepairable", "flag", ("ecc errors/unrepairable memory",)),
    (
        "retired_single",
        "count",
        (
            "retired pages/single bit ecc",
            "retired pages.single bit ecc.count",
            "retired pages.sbe",
            "retired pages/multiple single bit retirement/retired count",
        ),
    ),
    (
        "retired_double",
        "count",
        (
            "retired pages/double bit ecc",
            "retired pages.double bit.count",
            "retired pages.dbe",
            "retired pages/double bit retirement/retired count",
        ),
    ),
    (
        "retire_pending",
        "any",
        (
            "retired pages/pending page blacklist",
            "retired pages/pending",
            "retired pages.pending",
            "retired pages/pending blacklist",
            "retired pages/pending retirement",
        ),
    ),
    (
        "remaps_corrected",
        "count",
        ("remapped rows/correctable error", "remapped rows/remapped row corr", "remapped rows.correctable"),
    ),
    (
        "remaps_uncorrected",
        "count",
        ("remapped rows/uncorrectable error", "remapped rows/remapped row unc", "remapped rows.uncorrectable"),
    ),
    ("remap_pending", "flag", ("remapped rows/pending", "remapped rows/remapped row pending", "remapped rows.pending")),
    (
        "remap_failed",
        "flag",
        ("remapped rows/remapping failure occurred", "remapped rows/remapped row failure", "remapped rows.failure"),
    ),
    (
        "banks_full",
        "count",
        (
            "remapped rows/bank remap availability histogram/none",
            "remapped rows/row remapper histogram/row remapper histogram none",
            "remapped rows.histogram.none",
        ),
    ),
    ("temperature", "number", ("temperature/gpu current temp", "temperature/gpu temp", "temperature.gpu")),
    (
        "temperature_memory",
        "number",
        ("temperature/memory current temp", "temperature/memory temp", "temperature.memory"),
    ),
    ("slowdown_at", "number", ("temperature/gpu slowdown temp", "temperature/gpu temp slow threshold")),
    ("shutdown_at", "number", ("temperature/gpu shutdown temp", "temperature/gpu temp max threshold")),
    ("memory_limit_at", "number", ("temperature/memory max operating temp", "temperature/gpu temp max mem threshold")),
    ("margin", "number", ("temperature/gpu t.limit temp", "temperature/gpu temp tlimit")),
    (
        "slowdown_margin",
        "number",
        ("temperature/gpu slowdown t.limit temp", "temperature/gpu temp slow tlimit threshold"),
    ),
    (
        "shutdown_margin",
        "number",
        ("temperature/gpu shutdown t.limit temp", "temperature/gpu temp max tlimit threshold"),
    ),
    (
        "power",
        "number",
        (
            "power readings/power draw",
            "gpu power readings/power draw",
            "power.draw",
            "power.draw.instant",
            "gpu power readings/average power draw",
            "gpu power readings/instantaneous power draw",
            "gpu power readings/instant power draw",
        ),
    ),
    (
        "power_limit",
        "number",
        (
            "power readings/power limit",
            "gpu power readings/current power limit",
            "power.limit",
            "gpu power readings/power limit",
        ),
    ),
    (
        "power_limit_default",
        "number",
        ("power readings/default power limit", "gpu power readings/default power limit", "power.default limit"),
    ),
    ("sm_clock", "number", ("clocks/sm", "clocks/sm clock", "clocks.sm", "clocks.current.sm")),
    ("memory_clock", "number", ("clocks/memory", "clocks/mem clock", "clocks.mem", "clocks.current.memory")),
    ("fabric_state", "word", ("fabric/state", "fabric.state")),
    ("fabric_status", "word", ("fabric/status", "fabric.status")),
    ("fabric_health", "ill", ("fabric/health/summary",)),
    ("fabric_bandwidth", "ill", ("fabric/health/bandwidth",)),
    ("fabric_route", "any", ("fabric/health/route unhealthy",)),
    ("active", "bits", ("clocks throttle reasons.active", "clocks event reasons.active")),
)


def _counters() -> Iterator[tuple[str, tuple[str, str]]]:
    """ECC counters: the same names for both spans of time, in three generations of names, which add up."""
    for span, tail in (("volatile", ""), ("aggregate", "_aggregate")):
        for path, kept in (
            ("sram correctable", "corrected"), ("dram correctable", "corrected"), ("sram uncorrectable", "sram"),
            ("sram uncorrectable parity", "sram"), ("sram uncorrectable sec-ded", "sram"),
            ("sram uncorrectable secded", "sram"), ("dram uncorrectable", "dram"), ("single bit/total", "corrected"),
            ("double bit/device memory", "dram"), ("double bit/total", "all"),
        ):  # fmt: skip
            yield f"ecc errors/{span}/{path}", (f"{kept}{tail}", "add")
        for word, kept in (("corrected", "corrected"), ("uncorrected", "all")):
            yield f"ecc.errors.{word}.{span}.total", (f"{kept}{tail}", "add")
        for place, kept in (("sram", "sram"), ("dram", "dram"), ("device memory", "dram")):
            yield f"ecc.errors.uncorrected.{span}.{place}", (f"{kept}{tail}", "add")


FIELDS: dict[str, tuple[str, str]] = {path: (name, how) for name, how, paths in _TABLE for path in paths}
FIELDS |= dict(_counters())
# A GPU in MIG mode counts these per instance and not for itself.
FIELDS["mig device/ecc errors/volatile/sram uncorrectable"] = ("sram", "add")
FIELDS["mig devices/mig device/ecc error count/volatile count/sram uncorrectable"] = ("sram", "add")
for _word in ("throttle", "event"):
    for _said, _reason in REASONS.items():
        FIELDS[f"clocks {_word} reasons/{_said}"] = (_reason, "reason")
        FIELDS[f"clocks {_word} reasons/clocks {_word} reason {_said}"] = (_reason, "reason")
        FIELDS[f"clocks {_word} reasons.{_said}"] = (_reason, "reason")
