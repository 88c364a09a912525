"""What can be wrong with a virtual device, by name, and how the driver would say it.

Lines are in the words of NVIDIA's driver (its open kernel modules, the Xid catalogue; 13, 31 and 43 as recorded on an
H200). `{bus}` is the device's PCI address; `{pid}` and `{name}` are filled in when it shows, by whoever meets it.
"""

from functools import cache

from msgspec.structs import replace

from sickbay.clusters.local.files import VirtualDefect
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy

# Where the eight GPUs of a common board sit; further ones follow in the next domain.
BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)
HIGHEST_XID = 99_999  # more digits than the driver prints are no Xid

_XID = "NVRM: Xid (PCI:{bus}): "
_WHO = "pid={pid}, name={name}, "

# What follows the number.
_TEXTS: dict[int, str] = {
    13: _WHO + "Graphics Exception: channel 0x0000000a, Class 0000cbc0, Offset 00000510, Data 0017e2ac",
    31: _WHO + "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ "
    "0xdead_0000b000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
    43: _WHO + "channel 0x0000000a",
    45: _WHO + "Ch 00000008",
    48: _WHO + "An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at physAddr "
    "0x18f31d80 partition 16, subpartition 3.",
    62: _WHO + "00003e7a 00007c08 00000000 00001ebc 00001ec6 00001eb2 00001ef4 00000000",
    63: _WHO + "Row Remapper: New row (0x0000000018f31d80) marked for remapping, reset gpu to activate.",
    64: _WHO + "Row Remapper: All reserved rows for bank are remapped",
    74: _WHO + "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
    79: _WHO + "GPU has fallen off the bus.",
    94: _WHO + "Contained: SM (0x1). RST: No, D-RST: No",
    95: _WHO + "Uncontained: FBHUB. RST: Yes, D-RST: No",
    109: _WHO + "Ch 00000010, errorString CTX SWITCH TIMEOUT, Info 0x3c046",
    119: _WHO + "Timeout waiting for RPC from GSP0! Expected function 76 (GSP_RM_CONTROL) (0x2080014b 0x5).",
    120: _WHO + "GSP task exception: page fault (cause:0xd) @ pc:0x4c3f7a2, partition:4#0, task:3",
}


def bus(device: int) -> str:
    """The PCI address of a device, as the driver prints it."""
    return f"{device // len(BUSES):04x}:{BUSES[device % len(BUSES)]:02x}:00"


def device_at(address: str) -> int | None:
    """The device at a PCI address as `bus` writes it (a longer domain or a function number do no harm)."""
    domain, _, rest = address.lower().partition(":")
    slot = rest.partition(":")[0]
    try:
        return int(domain, 16) * len(BUSES) + BUSES.index(int(slot, 16))
    except ValueError:
        return None


def _says(number: int) -> str:
    return f"{_XID}{number}, {_TEXTS.get(number, _WHO + 'Ch 00000008')}"


# Name → what it is, and the defect, on any device. A defect without lines is one that the kernel never mentions.
_CATALOGUE: dict[str, tuple[str, VirtualDefect]] = {
    "gpu_off_bus": (
        "the GPU falls off the bus (Xid 79); a reboot brings it back",
        VirtualDefect(name="gpu_off_bus", lines=(_says(79), "NVRM: GPU {bus}.0: GPU has fallen off the bus.")),
    ),
    "gpu_dead": (
        "the GPU falls off the bus and does not come back (Xid 79): only another instance helps",
        VirtualDefect(name="gpu_dead", lines=(_says(79),), cured_by=Remedy.REPLACE),
    ),
    "ecc_uncorrectable": (
        "an uncorrectable memory error, its row waits to be remapped (Xid 48, 63); a reset does that",
        VirtualDefect(name="ecc_uncorrectable", lines=(_says(48), _says(63)), cured_by=Remedy.RESET_GPU),
    ),
    "ecc_no_spare_rows": (
        "a memory row that cannot be remapped any more (Xid 48, 64): only another instance helps",
        VirtualDefect(name="ecc_no_spare_rows", lines=(_says(48), _says(64)), cured_by=Remedy.REPLACE),
    ),
    "ecc_contained": (
        "a memory error that costs one program its life and no more (Xid 94)",
        VirtualDefect(name="ecc_contained", lines=(_says(94),), cured_by=Remedy.RESTART_JOB),
    ),
    "ecc_uncontained": (
        "a memory error that may have spread (Xid 95); a reset ends it",
        VirtualDefect(name="ecc_uncontained", lines=(_says(95),), cured_by=Remedy.RESET_GPU),
    ),
    "nvlink": (
        "a fatal error on an NVLink (Xid 74); a reset brings the link back",
        VirtualDefect(name="nvlink", lines=(_says(74),), cured_by=Remedy.RESET_GPU),
    ),
    "nvlink_cable": (
        "an NVLink that fails again after each reset and reboot (Xid 74): only another instance helps",
        VirtualDefect(name="nvlink_cable", lines=(_says(74),), cured_by=Remedy.REPLACE),
    ),
    "gsp_timeout": (
        "the GPU's own processor does not answer (Xid 119); a reboot helps",
        VirtualDefect(name="gsp_timeout", lines=(_says(119),)),
    ),
    "pmu_halt": (
        "the GPU's power controller halts (Xid 62); a reset helps",
        VirtualDefect(name="pmu_halt", lines=(_says(62),), cured_by=Remedy.RESET_GPU),
    ),
    "illegal_access": (
        "a program reads where it may not (Xid 31): nothing is wrong with the GPU",
        VirtualDefect(name="illegal_access", lines=(_says(31),), cured_by=Remedy.RESTART_JOB),
    ),
    "nvswitch": (
        "a fatal error on a link of the node's switch (SXid 20034): all ranks of the node die; a reboot helps",
        VirtualDefect(
            name="nvswitch", lines=("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",)
        ),
    ),
    "hot_gpu": (
        "a GPU that runs hot and slow: the kernel says nothing, a check of level 2 finds it; a reboot helps",
        VirtualDefect(name="hot_gpu", found_at=2, kills=False),
    ),
    "silent_corruption": (
        "a GPU that computes wrongly and says nothing: only a check of level 3 finds it, only another instance helps",
        VirtualDefect(name="silent_corruption", found_at=3, kills=False, cured_by=Remedy.REPLACE),
    ),
    "haunted": (
        "the GPU falls off the bus in this seat whatever is done (Xid 79): nothing cures it, a person must look",
        VirtualDefect(name="haunted", lines=(_says(79),), cured_by=None),
    ),
}
_OF_THE_NODE = frozenset({"nvswitch"})


def catalogue() -> dict[str, str]:
    """The names of all defects, and what each of them is."""
    return {name: about for name, (about, _) in _CATALOGUE.items()}


def named(name: str, device: int = 0) -> VirtualDefect:
    """The defect of this name, on this device."""
    if name not in _CATALOGUE:
        raise BadInput(f"there is no defect {name!r}: write one of {', '.join(_CATALOGUE)}")
    return _on(_CATALOGUE[name][1], None if name in _OF_THE_NODE else device)


def xid(number: int, device: int = 0) -> VirtualDefect:
    """A defect that shows as this Xid, cured by what the knowledge table advises for it (unlisted: a reboot).

    One that asks for no repair (13, 31, 43 …) shows once and is over.
    """
    if not 0 < number <= HIGHEST_XID:
        raise BadInput(f"there is no Xid {number}: write a number from 1 to {HIGHEST_XID}, for example 79")
    cure = _advised().get(number, Remedy.REBOOT)
    kills = cure.rank >= Remedy.RESTART_JOB.rank
    return _on(VirtualDefect(name=f"xid_{number}", lines=(_says(number),), kills=kills, cured_by=cure), device)


def _on(defect: VirtualDefect, device: int | None) -> VirtualDefect:
    address = bus(device or 0)
    return replace(defect, device=device, lines=tuple(line.replace("{bus}", address) for line in defect.lines))


@cache
def _advised() -> dict[int, Remedy]:
    # Only whoever injects reads it, and of each row two columns: no supervisor pays for it.
    from sickbay.knowledge.csv_table import read_table

    return dict(read_table("xid.csv", ("xid", "remedy"), lambda row: (row.whole("xid"), row.word("remedy", Remedy))))
