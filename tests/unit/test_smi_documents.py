"""What nvidia-smi prints, in all its forms. Sick ones are recordings and posted outputs with one thing changed."""

# ruff: noqa: E501 (outputs stand here as they are printed)

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.gpu_readings import differences

from sickbay.knowledge.load import load_tables
from sickbay.model.gpu import GpuReading
from sickbay.model.sign import Sign
from sickbay.signs.readers import Document
from sickbay.signs.readers.smi_query import SmiQuery, readings_from_query
from sickbay.signs.readers.smi_table import SmiTable
from sickbay.signs.readers.smi_xml import SmiXml, readings_from_xml

FIXTURES = Path(__file__).parent.parent / "fixtures" / "smi"
QUERY = (FIXTURES / "h200-580-q.txt").read_text()
XML = (FIXTURES / "h200-580-q.xml").read_text()
READERS: tuple[Callable[[], Document], ...] = (SmiTable, SmiQuery, SmiXml)


def signs(text: str) -> list[Sign]:
    """All that the three readers say; no two of them may own one line."""
    readers = [reader() for reader in READERS]
    found: list[Sign] = []
    for number, line in enumerate(text.splitlines(), 1):
        for reader in readers:
            found += reader.read(number, line)
        assert sum(reader.owns for reader in readers) <= 1, line
    for reader in readers:
        found += reader.end()
    assert all(sign.kind in load_tables().faults for sign in found)
    return found


def kinds(text: str) -> list[str]:
    return sorted(sign.kind for sign in signs(text))


def proofs(text: str) -> dict[str, str]:
    lines = text.splitlines()
    return {sign.kind: lines[sign.line - 1].strip() for sign in signs(text)}


def box(*rows: str, version: str = "570.133.20") -> str:
    """The box of drivers since 525, with its GPUs' rows."""
    rule = "+-----------------------------------------+------------------------+----------------------+"
    head = f"""Thu Nov 12 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI {version}             Driver Version: {version}     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
"""
    tail = """

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A         1775815      C   python3                               55824MiB |
+-----------------------------------------------------------------------------------------+"""
    return head + "".join(f"{row}\n{rule}\n" for row in rows) + tail


HEALTHY_H100 = """|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
| N/A   34C    P0            113W /  700W |   55824MiB /  81559MiB |     87%      Default |
|                                         |                        |             Disabled |"""
SICK_H100 = HEALTHY_H100.replace("|   0  N", "|   5  N").replace(
    "                    0 |", "                   12 |", 1
)
GONE_H100 = """|   6  ERR!                           On  |   00000000:CB:00.0 Off |                 ERR! |
|ERR!   ERR! ERR!           ERR! /  ERR!  |       0MiB /  81559MiB |    ERR!      Default |
|                                         |                        |                 ERR! |"""
RTX = """|   0  NVIDIA GeForce RTX 4090        Off |   00000000:01:00.0  On |                  Off |
| 30%   42C    P8             12W /  450W |     838MiB /  24564MiB |      4%      Default |
|                                         |                        |                  N/A |"""
WSL = """|   0  NVIDIA GeForce RTX 3060 ...    On  |   00000000:01:00.0 Off |                  N/A |
| N/A   45C    P8             N/A /   N/A |       0MiB /   6144MiB |      0%      Default |
|                                         |                        |                  N/A |"""
JETSON = """|   0  Orin (nvgpu)                  N/A  | N/A              N/A |                  N/A |
| N/A   N/A  N/A               N/A /  N/A | Not Supported        |     N/A          N/A |
|                                         |                        |                  N/A |"""
OLD = """+-----------------------------------------------------------------------------+
| NVIDIA-SMI 418.87.00    Driver Version: 418.87.00    CUDA Version: 10.1     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  On   | 00000000:06:00.0 Off |                    0 |
| N/A   29C    P0    42W / 300W |      0MiB / 16160MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
|   1  Tesla V100-PCIE...  On   | 00008ED0:00:00.0 Off |                    0 |
| N/A   29C    P0   ERR! / 250W |    593MiB / 16160MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
|   2  GeForce 840M       WDDM  | 0000:03:00.0     Off |                  N/A |
|ERR!   37C    P8    N/A /  N/A |     52MiB /  2048MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+"""


@pytest.mark.parametrize("rows", [(HEALTHY_H100,), (RTX, RTX.replace("   0  ", "   1  ", 1)), (WSL,), (JETSON,)])
def test_a_healthy_box_says_nothing(rows: tuple[str, ...]) -> None:
    assert signs(box(*rows)) == []


def test_the_box_names_the_sick_ones_and_their_lines() -> None:
    text = box(HEALTHY_H100, SICK_H100, GONE_H100)
    found = {sign.kind: sign for sign in signs(text)}
    assert found.keys() == {"gpu.ecc_uncorrected", "gpu.lost"}
    assert found["gpu.ecc_uncorrected"].fields == {"device": 5, "pci": "00000000:19:00.0"}
    assert found["gpu.ecc_uncorrected"].count == 12
    assert proofs(text)["gpu.ecc_uncorrected"].startswith("|   5  NVIDIA H100")
    assert proofs(text)["gpu.lost"].startswith("|   6  ERR!")


def test_box_after_box_is_judged_one_by_one() -> None:
    text = "\n".join([box(HEALTHY_H100, GONE_H100)] * 3)
    assert [(sign.kind, sign.line) for sign in signs(text)] == [("gpu.lost", 13), ("gpu.lost", 38), ("gpu.lost", 63)]


def test_one_reading_that_fails_is_not_a_lost_card() -> None:
    assert kinds(OLD) == ["gpu.sensor_failed"]  # the power of the V100; a laptop's fan is nothing


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("| N/A   34C", "| N/A   97C", "gpu.hot"),
        ("                    0 |", "                  Off |", "gpu.ecc_disabled"),
        ("P0            113W", "[GPU requires reset]", "gpu.reset_required"),
        ("| N/A   34C    P0 ", "| ERR!  ERR!   P0 ", "gpu.lost"),
    ],
)
def test_cells_of_the_box(old: str, new: str, kind: str) -> None:
    assert old in HEALTHY_H100
    assert kinds(box(HEALTHY_H100.replace(old, new, 1))) == [kind]


def test_mig_instances_count_their_own_errors() -> None:
    text = box(
        HEALTHY_H100.replace("Disabled", " Enabled").replace("                    0 |", "                   On |")
    )
    mig = """
+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    1   0   0  |              11MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |
|  0    2   0   1  |              11MiB / 40448MiB    | 60      2 |  3   0    3    0    3 |
+------------------+----------------------------------+-----------+-----------------------+"""
    (sign,) = signs(text.replace("\n\n+--", mig + "\n\n+--", 1))
    assert (sign.kind, sign.fields, sign.count) == ("gpu.ecc_uncorrected", {"device": 0, "mig": 2}, 2)


@pytest.mark.parametrize(
    ("line", "kind", "pci"),
    [
        ("Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error", "gpu.lost", "0000:c1:00.0"),
        ("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover this GPU",
         "gpu.lost", "0000:02:00.0"),
        ("Unable to determine the device handle for GPU2: 0000:05:00.0: Unknown Error", "gpu.lost", "0000:05:00.0"),
        ("Unable to determine the device handle for GPU 000:BA:80.0: Unknown Error", "gpu.lost", "000:ba:80.0"),
        ("Unable to determine the device handle for GPU0000:1A:00.0: GPU requires reset", "gpu.reset_required",
         "0000:1a:00.0"),
        ("Nov 12 10:00:00 node7 nvidia-smi[812]: Unable to determine the device handle for GPU0000:1A:00.0: Unknown Error",
         "gpu.lost", "0000:1a:00.0"),
        ("WARNING: infoROM is corrupted at gpu 0000:67:00.0", "gpu.inforom_corrupt", "0000:67:00.0"),
        (("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
         "driver is installed and running."), "driver.failed", None),
        ("NVIDIA-SMI has failed because it couldn’t communicate with the NVIDIA driver.", "driver.failed", None),
        ("Failed to initialize NVML: Driver/library version mismatch", "driver.mismatch", None),
        ("Failed to initialize NVML: Unknown Error", "driver.nvml_refused", None),
        ("No devices were found", "gpu.none_found", None),
        ("Unable to determine the device handle for GPU0: GPU is lost", "gpu.lost", None),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", "gpu.lost", None),
        ("3, NVIDIA H100 80GB HBM3, [GPU requires reset], [N/A]", "gpu.reset_required", None),
        ("slurmstepd-node7: error: NVML: Failed to get usage(15): GPU is lost", "gpu.lost", None),
        ("slurmstepd: error: NVML: GPU requires reset", "gpu.reset_required", None),
        ("docker: Error response from daemon: nvidia-container-cli: initialization error: nvml error: driver/library version mismatch: unknown.", "driver.mismatch", None),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", "driver.failed", None),
    ],
)  # fmt: skip
def test_lines_that_stand_for_the_whole_box(line: str, kind: str, pci: str | None) -> None:
    (sign,) = signs(f"$ nvidia-smi\n{line}\n$")
    assert (sign.kind, sign.line, sign.fields.get("pci")) == (kind, 2, pci)


@pytest.mark.parametrize(
    "line",
    [
        'If you see "Failed to initialize NVML: Unknown Error" restart the container',
        "`Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error` means that the card is gone",
        "raise RuntimeError('No devices were found')",
        "# pynvml.NVMLError_GpuIsLost: GPU is lost",
        "raise NVMLError_GpuIsLost: GPU is lost",
        "A GPU reporting [GPU requires reset] has hit a fault the driver cannot clear in place",
        "The GPU requires reset when the Remapped Rows are pending: see the documentation",
        "Unable to determine the device handle for GPU0000:C1:00.0: Insufficient Permissions",
    ],
)
def test_who_speaks_about_it_has_not_got_it(line: str) -> None:
    assert signs(line) == []


def test_a_lost_card_is_told_once_though_then_none_is_found() -> None:
    text = "Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error\nNo devices were found"
    assert kinds(text) == ["gpu.lost"]


NVLINK = "".join(
    f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu}00000-0000)\n"
    + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
    for gpu in range(8)
)


def test_links() -> None:
    assert signs(NVLINK) == []
    one = NVLINK.split("GPU 4")
    broken = one[0] + "GPU 4" + one[1].replace("Link 7: 26.562 GB/s", "Link 7: <inactive>", 1)
    (sign,) = signs(broken)
    assert (sign.kind, sign.fields["device"], sign.fields["link"]) == ("nvlink.down", 4, 7)
    assert broken.splitlines()[sign.line - 1].strip() == "Link 7: <inactive>"
    pcie = re.sub(r"26.562 GB/s", "<inactive>", NVLINK).replace("H100 80GB HBM3", "A100 80GB PCIe")
    assert signs(pcie) == []


def test_link_errors() -> None:
    text = """GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-52610000-0000)
\t Link 0: Replay Errors: 0
\t Link 0: Recovery Errors: 0
\t Link 0: CRC Errors: 3

\t Link 3: Replay Errors: 2353
\t Link 3: Recovery Errors: 1
\t Link 3: CRC Errors: 0
"""
    (sign,) = signs(text)
    assert (sign.kind, sign.fields["link"], sign.line) == ("nvlink.errors", 3, 6)


def test_a_list_of_gpus_is_no_finding() -> None:
    assert signs("GPU 0: Tesla T4 (UUID: GPU-52610000-0000)\nGPU 1: Tesla T4 (UUID: GPU-52610000-0001)\n") == []


def test_topology_shows_lost_links_only_where_a_switch_ties_all_alike() -> None:
    def matrix(*rows: str) -> str:
        head = "\t" + "\t".join(f"GPU{gpu}" for gpu in range(len(rows))) + "\tCPU Affinity\tNUMA Affinity\n"
        return (
            head
            + "".join(f"GPU{gpu}\t{row}\t0-47\t0\n" for gpu, row in enumerate(rows))
            + "\nLegend:\n\n  X    = Self\n"
        )

    assert signs(matrix(" X \tNV18\tNV18", "NV18\t X \tNV18", "NV18\tNV18\t X ")) == []
    assert signs(matrix(" X \tNV1\tNV2", "NV1\t X \tSYS", "NV2\tSYS\t X ")) == []
    (sign,) = signs(
        matrix(" X \tNV18\tNV18\tNV12", "NV18\t X \tNV18\tNV12", "NV18\tNV18\t X \tNV12", "NV12\tNV12\tNV12\t X ")
    )
    assert (sign.kind, sign.fields, sign.line) == ("nvlink.down", {"device": 3}, 5)


CSV = """index, name, ecc.errors.uncorrected.volatile.total, clocks_throttle_reasons.active, temperature.gpu, memory.used [MiB]
0, NVIDIA A100-SXM4-80GB, 0, 0x0000000000000001, 30, 5 MiB
1, NVIDIA A100-SXM4-80GB, 3, 0x00000000000000C8, 30, 5 MiB
2, NVIDIA A100-SXM4-80GB, [GPU requires reset], [GPU requires reset], [N/A], [N/A]
3, NVIDIA A100-SXM4-80GB, [Unknown Error], [Unknown Error], [Unknown Error], [Unknown Error]
4, NVIDIA A100-SXM4-80GB, [N/A], 0x0000000000000004, 30, [Not Supported]
"""


def test_csv_with_its_header() -> None:
    assert [(sign.fields["device"], sign.kind, sign.line) for sign in signs(CSV)] == [
        (1, "gpu.ecc_uncorrected", 3), (1, "gpu.thermal_slowdown", 3), (1, "gpu.power_brake", 3),
        (2, "gpu.reset_required", 4), (3, "gpu.lost", 5),
    ]  # fmt: skip


def test_csv_of_remapped_rows() -> None:
    text = """gpu_uuid, gpu_bus_id, gpu_name, remapped_rows.correctable, remapped_rows.uncorrectable, remapped_rows.pending, \
remapped_rows.failure
GPU-1, 00000000:07:00.0, NVIDIA A100-SXM4-40GB, 0, 1, 1, 0
GPU-2, 00000000:0F:00.0, NVIDIA A100-SXM4-40GB, 0, 8, No, Yes
GPU-3, 00000000:47:00.0, NVIDIA A100-SXM4-40GB, 0, 0, 0, 0"""
    assert kinds(text) == ["gpu.remap_failed", "gpu.remap_pending"]


def test_other_csv_is_none_of_ours() -> None:
    assert signs("name, age, temperature\nAnna, 97, 98\nname,index\nERR!,1") == []


def test_dmon() -> None:
    assert signs("# gpu of mine\n 1 2 3\n# the gpu\n1 99 99\n") == []
    text = "# gpu    pwr  gtemp  sbecc  dbecc\n# Idx      W      C   errs   errs\n    0     40     30      0      0\n    1     40     30      0      2"
    (sign,) = signs(text)
    assert (sign.kind, sign.fields, sign.line) == ("gpu.ecc_uncorrected", {"device": 1}, 4)


# --- the long text and the XML say the same

CHANGES: list[tuple[str, str, str, str, str]] = [
    # text: line and its value; XML: element; the new value; the sign
    ("        Pending    : No", "Remapped Rows", "<remapped_row_pending>No<", "Yes", "gpu.remap_pending"),
    ("        Remapping Failure Occurred    : No", "", "<remapped_row_failure>No<", "Yes", "gpu.remap_failed"),
    ("            DRAM Uncorrectable    : 0", "Volatile", "<dram_uncorrectable>0<", "3", "gpu.ecc_uncorrected"),
    ("            SRAM Uncorrectable SEC-DED    : 0", "Volatile", "<sram_uncorrectable_secded>0<", "1",
     "gpu.ecc_uncorrected"),
    ("            SRAM Threshold Exceeded    : No", "", "<sram_threshold_exceeded>No<", "Yes", "gpu.sram_threshold"),
    ("        Unrepairable Memory    : No", "", "<unrepairable_memory>No<", "Yes", "gpu.memory_unrepairable"),
    ("        Channel Repair Pending    : No", "", "<channel_repair_pending>No<", "Yes", "gpu.repair_pending"),
    ("            None    : 0 bank(s)", "Histogram", "<row_remapper_histogram_none>0 bank(s)<", "4 bank(s)", "gpu.banks_full"),
    ("    GPU Recovery Action    : None", "", "<gpu_recovery_action>None<", "Reset", "gpu.reset_required"),
    ("            HW Thermal Slowdown    : Not Active", "", "<clocks_event_reason_hw_thermal_slowdown>Not Active<", "Active",
     "gpu.thermal_slowdown"),
    ("            HW Power Brake Slowdown    : Not Active", "", "<clocks_event_reason_hw_power_brake_slowdown>Not Active<",
     "Active", "gpu.power_brake"),
    ("        Current    : Enabled", "ECC Mode", "<current_ecc>Enabled<", "Disabled", "gpu.ecc_disabled"),
    ("                Current    : 16x", "", "<current_link_width>16x<", "8x", "gpu.pcie_width"),
    ("        Current Power Limit    : 700.00 W", "GPU Power Readings", "<current_power_limit>700.00 W<", "200.00 W",
     "gpu.power_limited"),
    ("        GPU T.Limit Temp    : 50 C", "", "<gpu_temp_tlimit>50 C<", "-3 C", "gpu.hot"),
    ("        State    : N/A", "Fabric", "<state>N/A<", "In Progress", "gpu.fabric_waiting"),
    ("        Status    : N/A", "Fabric", "<status>N/A<", "Failure", "gpu.fabric_failed"),
    ("            Summary    : N/A", "", "<summary>N/A<", "Unhealthy", "gpu.fabric_failed"),
    ("    GPU UUID    : GPU-00000000-0000-0000-0000-000000000001", "",
     "<uuid>GPU-00000000-0000-0000-0000-000000000001<", "GPU is lost", "gpu.lost"),
    ("        GPU Current Temp    : 37 C", "", "<gpu_temp>37 C<", "Unknown Error", "gpu.lost"),
    ("    GPU Recovery Action    : None", "", "<gpu_recovery_action>None<", "[GPU requires reset]", "gpu.reset_required"),
]  # fmt: skip


def in_text(line: str, after: str, new: str, text: str = QUERY) -> str:
    key, _, value = line.partition("    : ")
    start = text.index(after) if after else 0
    pattern = re.compile(rf"^({re.escape(key)} +: ){re.escape(value)}$", re.MULTILINE)
    changed, count = pattern.subn(lambda found: found[1] + new, text[start:], count=1)
    assert count == 1, line
    return text[:start] + changed


@pytest.mark.parametrize(("line", "after", "element", "new", "kind"), CHANGES)
def test_text_and_xml_name_it_alike_and_show_the_line(line: str, after: str, element: str, new: str, kind: str) -> None:
    sick = in_text(line, after, new)
    assert kinds(sick) == [kind]
    shown = new if kind != "gpu.hot" else "37 C"  # the margin changed, the temperature proves it
    assert shown in proofs(sick)[kind]
    tag, _, old = element.rstrip("<").partition(">")
    assert element in XML
    sick_xml = XML.replace(f"{tag}>{old}<", f"{tag}>{new}<", 1)
    assert kinds(sick_xml) == [kind]
    assert shown in proofs(sick_xml)[kind]
    flat = "\n".join(part.strip() for part in sick.splitlines())
    assert kinds(flat) == [kind]


def test_healthy_recordings_say_nothing_and_agree() -> None:
    assert signs(QUERY) == []
    assert signs(XML) == []
    (one,), (other,) = readings_from_query(QUERY), readings_from_xml(XML)
    assert differences(one, other) == {}
    assert (one.index, one.name, one.slowdown_at, one.memory_total) == (0, "NVIDIA H200", 89, 143771 * 2**20)
    assert differences(one, replace(other, remap_pending=True)) == {"remap_pending": (False, True)}


RECORDED = Path(__file__).parent.parent / "fixtures" / "h200"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("nvidia-smi*")), ids=lambda path: path.name)
def test_a_healthy_h200_says_nothing_in_any_form(path: Path) -> None:
    assert signs(path.read_text()) == []


def test_nvml_and_the_xml_agree() -> None:
    (nvml,) = msgspec.json.decode((RECORDED / "nvml-reading.json").read_bytes(), type=list[GpuReading])
    (xml,) = readings_from_xml((RECORDED / "nvidia-smi-q.xml").read_text())
    assert differences(nvml, xml) == {}


def test_volta_of_older_drivers() -> None:
    text = """==============NVSMI LOG==============

Timestamp                           : Tue Mar 19 10:00:00 2019
Driver Version                      : 418.39
Attached GPUs                       : 2
GPU 00000000:06:00.0
    Product Name                    : Tesla V100-SXM2-16GB
    Ecc Mode
        Current                     : Enabled
        Pending                     : Enabled
    ECC Errors
        Volatile
            Single Bit
                Device Memory       : 2
                Register File       : 0
                Total               : 2
            Double Bit
                Device Memory       : 1
                Register File       : 0
                Total               : 1
        Aggregate
            Single Bit
                Total               : 9000
            Double Bit
                Device Memory       : 4
                Total               : 4
    Retired Pages
        Single Bit ECC              : 1
        Double Bit ECC              : 2
        Pending                     : Yes
    Clocks Throttle Reasons
        Idle                        : Not Active
        HW Slowdown                 : Active
            HW Thermal Slowdown     : Not Active
            HW Power Brake Slowdown : Active
    Temperature
        GPU Current Temp            : 40 C
        GPU Shutdown Temp           : 90 C
        GPU Slowdown Temp           : 87 C

GPU 00000000:07:00.0
    Product Name                    : Tesla V100-SXM2-16GB
"""
    assert kinds(text) == ["gpu.ecc_uncorrected", "gpu.power_brake", "gpu.retire_pending"]
    first, *_ = readings_from_query(text)
    assert (first.index, first.corrected, first.uncorrected, first.uncorrected_aggregate, first.driver) == (
        0,
        2,
        1,
        4,
        "418.39",
    )
    assert proofs(text)["gpu.retire_pending"].split() == ["Pending", ":", "Yes"]


def test_xml_of_older_drivers_and_an_instance_in_mig_mode() -> None:
    text = """<nvidia_smi_log>
  <driver_version>470.57.02</driver_version><attached_gpus>2</attached_gpus>
  <gpu id="00000000:06:00.0"><product_name>Tesla V100-SXM2-16GB</product_name>
    <ecc_errors><volatile><single_bit><total>3</total></single_bit><double_bit><device_memory>1</device_memory>
      <total>1</total></double_bit></volatile></ecc_errors>
    <retired_pages><pending_blacklist>Yes</pending_blacklist><pending_retirement>Yes</pending_retirement></retired_pages>
    <remapped_rows>N/A</remapped_rows>
    <clocks_throttle_reasons><clocks_throttle_reason_hw_slowdown>Active</clocks_throttle_reason_hw_slowdown></clocks_throttle_reasons>
    <temperature><gpu_temp>88 C</gpu_temp><gpu_temp_max_threshold>90 C</gpu_temp_max_threshold><gpu_temp_slow_threshold>87 C</gpu_temp_slow_threshold></temperature>
    <gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>
  </gpu>
  <gpu id="00000000:07:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices><mig_device><index>0</index><ecc_error_count><volatile_count><sram_uncorrectable>2</sram_uncorrectable></volatile_count></ecc_error_count>
      <fb_memory_usage><total>4864 MiB</total></fb_memory_usage></mig_device></mig_devices>
    <fb_memory_usage><total>40536 MiB</total></fb_memory_usage>
  </gpu>
</nvidia_smi_log>"""
    found = [(sign.fields["device"], sign.kind) for sign in signs(text)]
    assert found == [
        (0, "gpu.reset_required"), (0, "gpu.ecc_uncorrected"), (0, "gpu.retire_pending"), (0, "gpu.hw_slowdown"), (0, "gpu.hot"),
        (1, "gpu.ecc_uncorrected"),
    ]  # fmt: skip
    assert readings_from_xml(text)[1].memory_total == 40536 * 2**20


def test_a_part_that_is_pasted_alone() -> None:
    text = """so what does this mean?
    Remapped Rows
        Correctable Error                 : 0
        Uncorrectable Error               : 4
        Pending                           : Yes
        Remapping Failure Occurred        : No
thanks"""
    assert [(sign.kind, sign.line) for sign in signs(text)] == [("gpu.remap_pending", 5)]
    flat = "ECC Errors\nVolatile\nSRAM Correctable : 0\nDRAM Uncorrectable : 2\nRemapped Rows\nPending : Yes\n"
    assert kinds(flat) == ["gpu.ecc_uncorrected", "gpu.remap_pending"]
    reader = SmiQuery()
    for number, line in enumerate(("Remapped Rows", "are what a driver keeps", "and more prose"), 1):
        reader.read(number, line)
    assert not reader.owns
    assert signs("Remapped Rows\nPending is what I see in the table: Yes\n") == []


def test_the_older_words_for_a_wanted_reset() -> None:
    text = QUERY.replace("    GPU Recovery Action                                : None\n",
                         "    GPU Reset Status\n        Reset Required               : Yes\n")  # fmt: skip
    assert kinds(text) == ["gpu.reset_required"]
    assert (
        kinds(text.replace(": Yes\n", ": Requested functionality has been deprecated\n")) == ["gpu.remap_pending"] * 0
    )


@pytest.mark.parametrize("host", ["node7: ", "gpu-07.cluster.local: ", "    ", "7: ", "[2026-11-12 10:00:00] "])
def test_what_many_hosts_said_has_their_names_before_it(host: str) -> None:
    sick = in_text(*CHANGES[0][:2], "Yes")
    assert kinds("\n".join(host + line for line in sick.splitlines())) == ["gpu.remap_pending"]
    assert kinds(f"{host}Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error") == ["gpu.lost"]
    assert kinds("\n".join(host + line for line in box(HEALTHY_H100, GONE_H100).splitlines())) == ["gpu.lost"]


def test_a_comment_in_a_program_is_no_output() -> None:
    for text in (in_text(*CHANGES[0][:2], "Yes"), box(GONE_H100)):
        assert kinds("\n".join("# " + line for line in text.splitlines())) == []


def test_what_follows_the_text_is_not_owned() -> None:
    reader = SmiQuery()
    for number, line in enumerate(
        (QUERY + "\n[ 12.3] NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus.").splitlines()
    ):
        reader.read(number + 1, line)
    assert not reader.owns


def test_many_gpus_are_numbered_only_if_all_are_shown() -> None:
    gpu = QUERY[QUERY.index("GPU 00000000") :]
    text = QUERY.replace("Attached GPUs                                          : 1",
                         "Attached GPUs                                          : 2") + gpu.replace(":06.0", ":07.0")  # fmt: skip
    assert [(one.index, one.pci) for one in readings_from_query(text)] == [
        (0, "00000000:00:06.0"),
        (1, "00000000:00:07.0"),
    ]
    assert [one.index for one in readings_from_query(text.replace("GPUs                                          : 2",
                                                                  "GPUs                                          : 8"))] == [None, None]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [QUERY, XML, box(HEALTHY_H100, RTX), CSV.replace("3, 0x00000000000000C8", "0, 0x1"), NVLINK]
)
def test_half_a_paste_is_no_finding(text: str) -> None:
    """Cut anywhere, before or behind: what is missing is not sick."""
    healthy = text.split("2, NVIDIA A100-SXM4", maxsplit=1)[0]
    for at in range(0, len(healthy), max(1, len(healthy) // 150)):
        assert kinds(healthy[:at]) == []
        assert kinds(healthy[at:]) == []


def test_hostile_xml_does_no_harm() -> None:
    bomb = '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY a "' + "x" * 1000 + '"><!ENTITY b "&a;&a;&a;">]>\n'
    (one,) = readings_from_xml(
        bomb + "<nvidia_smi_log><gpu id='0000:01:00.0'><uuid>&b;&b;</uuid></gpu></nvidia_smi_log>"
    )
    assert one.uuid == "&b;&b;"
    deep = "<nvidia_smi_log>" + "<gpu id='0000:01:00.0'>" + "<a>" * 100_000
    assert readings_from_xml(deep) == []
    assert len(readings_from_xml("<nvidia_smi_log>" + "<gpu id='0000:01:00.0'><product_name>A</product_name><serial>1</serial>"
                                 "<persistence_mode>Enabled</persistence_mode></gpu>" * 2000)) <= 512  # fmt: skip
    assert readings_from_xml("<nvidia_smi_log><gpu id=" + "x" * 500_000) == []


def test_xml_in_one_line_reads_the_same() -> None:
    assert readings_from_xml(XML.replace("\n", "")) == readings_from_xml(XML)


WORDS = [*QUERY.splitlines()[::7], *XML.splitlines()[::40], *box(HEALTHY_H100, GONE_H100).splitlines(), *CSV.splitlines(),
         *NVLINK.splitlines()[:4], "Remapped Rows", "# gpu sbecc dbecc", "\tGPU0\tGPU1\tX", "|" * 50, "", "GPU 0000:00:00.0"]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=80), max_size=60), st.data())
def test_no_text_makes_a_reader_fail(lines: list[str], data: Any) -> None:
    readers = [reader() for reader in READERS]
    for number, line in enumerate(lines, 1):
        cut = data.draw(st.integers(0, 200))
        for reader in readers:
            assert all(0 <= sign.line <= number for sign in reader.read(number, line[:cut]))
            assert not tuple(reader.value(number, {"a": [1]}))
    for reader in readers:
        list(reader.end())


@pytest.mark.parametrize("unit", ["<a", "| ", "|x", "a,", "GPU0\t", "Link 1: ", " : ", "Name  ", "<<", "0x1 ", "\t"])
def test_no_line_stalls_a_reader(unit: str) -> None:
    long = unit * (200_000 // len(unit))
    for start in (
        "",
        "==NVSMI LOG==\nGPU 00000000:00:06.0\n",
        "<nvidia_smi_log><gpu id='0000:00:06.0'>\n",
        "| NVIDIA-SMI 570.1\n",
    ):
        signs(start + long)


def test_all_of_it_through_one_stream_of_long_and_short_texts() -> None:
    text = "\n".join((box(HEALTHY_H100, GONE_H100), in_text(*CHANGES[0][:2], "Yes"), XML, CSV))
    assert set(kinds(text)) == {
        "gpu.lost", "gpu.remap_pending", "gpu.ecc_uncorrected", "gpu.thermal_slowdown", "gpu.power_brake",
        "gpu.reset_required",
    }  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        "**Unable to determine the device handle for GPU0000:65:00.0: Unknown Error**",
        '"Unable to determine the device handle for GPU 0000:BA:00.0: GPU is lost.  Reboot the system"',
        "Unable to detect the device handle for GPU0000:B1:00.0: Unknown Error",
        "Error: nvmlDeviceGetHandleByIndex(): Unknown Error\nFAILED to get details on GPU (0x1): Unknown Error",
        "FAILED to get details on GPU (0x1): Unknown Error",
        "1, NVIDIA H100 80GB HBM3, [GPU is lost], [GPU is lost]",
    ],
)
def test_a_gpu_that_does_not_answer_is_lost_once_however_it_was_pasted(line: str) -> None:
    assert kinds(line) == ["gpu.lost"]


def test_never_is_advice_in_bold_without_an_address_a_fault() -> None:
    assert not kinds("**Unable to determine the device handle for GPU: what does it mean?**")


def test_columns_without_a_header_are_those_that_the_command_names() -> None:
    asked = "$ nvidia-smi --query-gpu=index,temperature.gpu,ecc.errors.uncorrected.volatile.total --format=csv,noheader"
    found = signs(f"{asked}\n0, 33, 0\n1, 35, 12\n")
    assert [(sign.kind, sign.line) for sign in found] == [("gpu.ecc_uncorrected", 3)]


def test_a_row_of_unknown_errors_without_any_header_is_a_sensor_that_failed() -> None:
    found = signs("1, NVIDIA A100-SXM4-40GB, [Unknown Error], [Unknown Error]")
    assert [(sign.kind, sign.fields) for sign in found] == [("gpu.sensor_failed", {"device": 1})]
