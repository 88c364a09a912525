"""What AMD's and AWS's tools print about accelerators."""

# ruff: noqa: E501 (outputs stand here as they are printed)

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sickbay.knowledge.load import load_tables
from sickbay.model.sign import Sign
from sickbay.signs.readers import Document
from sickbay.signs.readers.neuron_tools import NeuronTools
from sickbay.signs.readers.rocm_smi import RocmSmi


def signs(text: str) -> list[Sign]:
    """A text that is JSON as a whole comes as a value, as the stream gives it."""
    readers: list[Document] = [RocmSmi(), NeuronTools()]
    found: list[Sign] = []
    for one in readers:
        if text.lstrip()[:1] in {"{", "["}:
            found += one.value(1, json.loads(text))
        else:
            for number, line in enumerate(text.splitlines(), 1):
                found += one.read(number, line)
        found += one.end()
    assert all(sign.kind in load_tables().faults for sign in found)
    return found


def told(text: str) -> list[tuple[str, Any, int]]:
    return [(sign.kind, sign.fields.get("device"), sign.line) for sign in signs(text)]


RAS = """
============================ ROCm System Management Interface ============================
======================================== RAS Info ========================================

GPU[0]: \tRAS INFO
         Block     Status    Correctable Error  Uncorrectable Error
           UMC    ENABLED                    0                    0
          SDMA    ENABLED                    0                    0
           GFX    ENABLED                    3                    0
__________________________________________________________________________________________

GPU[1]: \tRAS INFO
         Block     Status    Correctable Error  Uncorrectable Error
           UMC    ENABLED                    0                    0
          SDMA    ENABLED                    0                    0
           GFX    ENABLED                    0                    0
__________________________________________________________________________________________
==================================== End of ROCm SMI Log =================================
"""
CONCISE = """
======================= ROCm System Management Interface =======================
================================= Concise Info =================================
GPU  Temp (DieEdge)  AvgPwr  SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%
0    36.0c           95.0W   800Mhz  1600Mhz  0%   auto  560.0W    0%   0%
1    35.0c           89.0W   800Mhz  1600Mhz  0%   auto  560.0W    0%   0%
================================================================================
============================= End of ROCm SMI Log ==============================
"""
LOST = """======================= ROCm System Management Interface =======================
================================= Concise Info =================================
ERROR: 15 GPU[0]: power: Data (usually from reading a file) was not of the type that was expected\t
GPU  Temp  AvgPwr  SCLK  MCLK  Fan   Perf     PwrCap       VRAM%  GPU%
0    N/A   N/A     None  None  0.0%  unknown  Unsupported    0%   0%
================================================================================
============================= End of ROCm SMI Log ==============================
"""
METRIC = """GPU: 0
    ECC:
        TOTAL_CORRECTABLE_COUNT: 12
        TOTAL_UNCORRECTABLE_COUNT: 0
        TOTAL_DEFERRED_COUNT: 0
        CACHE_CORRECTABLE_COUNT: N/A
    ECC_BLOCKS:
        UMC:
            CORRECTABLE_COUNT: 12
            UNCORRECTABLE_COUNT: 0
            DEFERRED_COUNT: 0
        GFX:
            UNCORRECTABLE_COUNT: 0
    THROTTLE:
        ACCUMULATION_COUNTER: 1226415116
        PPT_ACCUMULATED: 12
        PPT_VIOLATION_STATUS: ACTIVE
        SOCKET_THERMAL_VIOLATION_STATUS: NOT ACTIVE
        HBM_THERMAL_VIOLATION_STATUS: N/A

"""
PAGES = """GPU: 0
    RETIRED: No bad pages found.
    PENDING: No bad pages found.
    UN_RES: No bad pages found.

"""
BOX = """+------------------------------------------------------------------------------+
| AMD-SMI 26.0.0+37d158ab      amdgpu version: 6.14.14  ROCm version: 7.0.0    |
| Platform: Linux Baremetal                                                    |
|-------------------------------------+----------------------------------------|
| BDF                        GPU-Name | Mem-Uti   Temp   UEC       Power-Usage |
| GPU  HIP-ID  OAM-ID  Partition-Mode | GFX-Uti    Fan               Mem-Usage |
|=====================================+========================================|
| 0000:05:00.0    AMD Instinct MI300X | 0 %      40 °C   0           135/750 W |
|   0       0       7        SPX/NPS1 | 0 %        N/A           283/196592 MB |
+-------------------------------------+----------------------------------------+
"""
MONITOR = """GPU  POWER  GPU_TEMP  MEM_TEMP  SINGLE_ECC  DOUBLE_ECC  PCIE_REPLAY
  0  199 W    103 °C     84 °C           0           0            0
  1  188 W     99 °C     80 °C           4           2            0
"""


@pytest.mark.parametrize("text", [RAS, CONCISE, METRIC, PAGES, BOX, MONITOR.replace(" 2 ", " 0 ")])
def test_healthy_amd_cards_say_nothing(text: str) -> None:
    assert signs(text) == []


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (RAS, "           UMC    ENABLED                    0                    0\n          SDMA    ENABLED                    0                    0\n           GFX    ENABLED                    0",
         "           UMC    ENABLED                    0                    2\n          SDMA    ENABLED                    0                    0\n           GFX    ENABLED                    0",
         [("amd.ecc_uncorrected", 1, 14)]),
        (RAS, "GFX    ENABLED                    3                    0", "GFX    ENABLED                    3                    1", [("amd.ras_uncorrected", 0, 9)]),
        (METRIC, "TOTAL_UNCORRECTABLE_COUNT: 0", "TOTAL_UNCORRECTABLE_COUNT: 3", [("amd.ecc_uncorrected", 0, 4)]),
        (METRIC, "TOTAL_DEFERRED_COUNT: 0", "TOTAL_DEFERRED_COUNT: 1", [("amd.ecc_deferred", 0, 5)]),
        (METRIC, "SOCKET_THERMAL_VIOLATION_STATUS: NOT ACTIVE", "SOCKET_THERMAL_VIOLATION_STATUS: ACTIVE", [("amd.throttled", 0, 18)]),
        (PAGES, "PENDING: No bad pages found.", "PENDING:\n        PAGE_ADDRESS: 0x1000\n        PAGE_SIZE: 4096\n        STATUS: PENDING",
         [("amd.bad_pages_pending", 0, 4)]),
        (BOX, "40 °C   0  ", "40 °C   7  ", [("amd.ecc_uncorrected", None, 8)]),
        (MONITOR, "", "", [("amd.ecc_uncorrected", 1, 3)]),
        (LOST, "", "", [("amd.lost", 0, 5)]),
        (CONCISE, "====\nGPU ", "====\nGPU[1]\t\t: XGMI Error count: 2 (Multiple errors detected since last read)\nGPU ",
         [("amd.xgmi_error", 1, 4)]),
    ],
)  # fmt: skip
def test_sick_amd_cards(text: str, old: str, new: str, expected: list[tuple[str, Any, int]]) -> None:
    assert old in text
    assert told(text.replace(old, new, 1) if old else text) == expected


def test_a_total_and_its_parts_are_told_once() -> None:
    text = METRIC.replace("TOTAL_UNCORRECTABLE_COUNT: 0", "TOTAL_UNCORRECTABLE_COUNT: 3")
    text = text.replace("            UNCORRECTABLE_COUNT: 0", "            UNCORRECTABLE_COUNT: 3", 1)
    assert [(sign.kind, sign.count) for sign in signs(text)] == [("amd.ecc_uncorrected", 3)]


def test_a_card_that_sleeps_is_not_lost() -> None:
    asleep = LOST.replace(
        "ERROR: 15 GPU[0]: power",
        "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\nERROR: 15 GPU[0]: power",
    )
    assert signs(asleep) == []


def test_amd_json() -> None:
    healthy = [{"gpu": 0, "ecc": {"total_correctable_count": 0, "total_uncorrectable_count": 0}, "throttle": {"hbm_thermal_violation_status": "NOT ACTIVE"}},
               {"gpu": 1, "retired": "No bad pages found.", "pending": "No bad pages found."}]  # fmt: skip
    assert told(json.dumps(healthy)) == []
    sick = [{"gpu": 0, "ecc": {"total_uncorrectable_count": 2}, "ecc_blocks": {"UMC": {"uncorrectable_count": 2}}},
            {"gpu": 1, "pending": [{"page_address": "0x1", "status": "PENDING"}]}]  # fmt: skip
    expected = [("amd.ecc_uncorrected", 0, 1), ("amd.bad_pages_pending", 1, 1)]
    assert told(json.dumps(sick)) == expected
    assert told(json.dumps({"gpu_data": sick})) == expected
    assert told(json.dumps({"card3": {"XGMI Error count": "1", "Card series": "x"}, "system": {}})) == [
        ("amd.xgmi_error", 3, 1)
    ]


LS = """instance-type: trn1.32xlarge
instance-id: i-00000000000000000
+--------+--------+--------+---------------+---------+
| NEURON | NEURON | NEURON |   CONNECTED   |   PCI   |
| DEVICE | CORES  | MEMORY |    DEVICES    |   BDF   |
+--------+--------+--------+---------------+---------+
""" + "".join(f"| {device:<6} | 2      | 32 GB  | 12, 3, 4, 1   | 10:1c.0 |\n" for device in range(16)) + "+--------+\n"  # fmt: skip


def test_all_neuron_devices_are_there() -> None:
    assert signs(LS) == []


def test_missing_neuron_devices_are_named() -> None:
    (sign,) = signs("\n".join(line for line in LS.splitlines() if not line.startswith("| 7 ")))
    assert (sign.kind, sign.fields, sign.line) == ("neuron.count", {"seen": 15, "expected": 16}, 4)
    assert sign.text.endswith("missing: 7")


def test_a_container_that_was_given_some_devices_misses_none() -> None:
    few = [
        line for line in LS.splitlines() if not line.startswith("| ") or line.startswith(("| N", "| D", "| 4 ", "| 5 "))
    ]
    assert signs("\n".join(few)) == []


def test_neuron_ls_json() -> None:
    devices = [{"neuron_device": number, "nc_count": 2} for number in range(12)]
    assert told(json.dumps(devices)) == []
    assert told(json.dumps(devices[:5] + devices[6:])) == [("neuron.count", None, 1)]
    assert told(json.dumps({"instance_type": "inf2.48xlarge", "neuron_devices": devices[:11]})) == [
        ("neuron.count", None, 1)
    ]


def report(**counters: int) -> str:
    devices = [
        {"neuron_device_index": 4, "mem_ecc_corrected": 9, "mem_ecc_uncorrected": 0, "sram_ecc_uncorrected": 0}
        | counters
    ]
    return json.dumps(
        {"neuron_runtime_data": [], "system_data": {"neuron_hw_counters": {"neuron_devices": devices, "error": ""}}}
    )


@pytest.mark.parametrize(
    ("counters", "kind"),
    [
        ({}, None),
        ({"mem_ecc_uncorrected": 2}, "neuron.hbm_uncorrected"),
        ({"sram_ecc_uncorrected": 1}, "neuron.sram_uncorrected"),
        ({"mem_ecc_repairable_uncorrected": 1}, "neuron.hbm_repairable"),
    ],
)
def test_neuron_monitor(counters: dict[str, int], kind: str | None) -> None:
    assert told(report(**counters)) == ([(kind, 4, 1)] if kind else [])


def test_executions_that_the_hardware_failed() -> None:
    summary = {"generic": 5, "numerical": 1, "hardware": 3}
    text = json.dumps({"neuron_runtime_data": [{"pid": 1, "report": {"execution_stats": {"error_summary": summary}}}]})
    assert told(text) == [("neuron.hw_error", None, 1)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "/sys/devices/virtual/neuron_device/neuron3/stats/hardware/sram_ecc_uncorrected:1",
            ("neuron.sram_uncorrected", 3),
        ),
        ("mem_ecc_uncorrected: 4", ("neuron.hbm_uncorrected", None)),
        ("mem_ecc_uncorrected: 0", None),
        (
            'hardware_ecc_events_total{event_type="mem_ecc_uncorrected",neuron_device_index="2",region="x"} 3.0',
            ("neuron.hbm_uncorrected", 2),
        ),
        ('hardware_ecc_events_total{event_type="mem_ecc_corrected",neuron_device_index="2",region="x"} 3.0', None),
        ("neuron-ls: No neuron devices found", ("neuron.none_found", None)),
        ("the counter mem_ecc_uncorrected: 4 in the documentation", None),
    ],
)
def test_neuron_counters_in_a_line(line: str, expected: tuple[str, int | None] | None) -> None:
    assert [one[:2] for one in told(line)] == ([expected] if expected else [])


WORDS = [line for text in (RAS, CONCISE, LOST, METRIC, BOX, MONITOR, LS) for line in text.splitlines()]
JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=8) | st.sampled_from(["gpu", "ecc", "N/A", "Pending"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["gpu", "ecc", "ecc_blocks", "pending", "throttle", "card0", "gpu_data", "neuron_devices",
                                       "system_data", "neuron_hw_counters", "neuron_runtime_data", "report", "UMC"]), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=80), max_size=60), JSON)
def test_no_text_and_no_json_makes_a_reader_fail(lines: list[str], value: Any) -> None:
    for reader in (RocmSmi(), NeuronTools()):
        for number, line in enumerate(lines, 1):
            assert all(0 <= sign.line <= number for sign in reader.read(number, line))
        list(reader.value(1, value))
        list(reader.end())


@pytest.mark.parametrize("unit", ["GPU[0]: ", "| 0 ", "0x1 ", "A ", "mem_ecc_", "_", "{", "GPU: 0 "])
def test_no_line_stalls_a_reader(unit: str) -> None:
    long = unit * (200_000 // len(unit))
    for start in ("", "ROCm System Management Interface\n", "GPU: 0\n", "| NEURON | NEURON |\n"):
        for reader in (RocmSmi(), NeuronTools()):
            for number, line in enumerate(f"{start}{long}".splitlines(), 1):
                list(reader.read(number, line))


@pytest.mark.parametrize("text", [RAS, METRIC, BOX, LS])
def test_half_a_paste_is_no_finding(text: str) -> None:
    for at in range(0, len(text), 17):
        assert [sign for sign in signs("paste:\n" + text[at:]) if sign.kind != "neuron.count"] == []


def test_a_paste_without_its_end_does_not_swallow_what_follows() -> None:
    reader = RocmSmi()
    text = RAS.split("=====", maxsplit=1)[0] + RAS.split("RAS Info")[1].split("____", maxsplit=1)[0]
    for number, line in enumerate((text + "\n[ 12.3] amdgpu 0000:03:00.0: ring gfx timeout").splitlines(), 1):
        reader.read(number, line)
    assert not reader.owns


def test_a_part_that_is_pasted_alone() -> None:
    text = "GPU[3]: \tRAS INFO\n   Block  Status  a  b\n     UMC    ENABLED       0      2\n"
    assert told(text) == [("amd.ecc_uncorrected", 3, 3)]
