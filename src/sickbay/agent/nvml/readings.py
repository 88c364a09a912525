"""Everything that NVML can say of one device. Runs in the child only.

What this card or this driver does not support is None; a device that the driver cannot reach is `lost`, with its words.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

from sickbay.agent.nvml.links import links_of
from sickbay.model.gpu import GpuProcess, GpuReading, slowdowns
from sickbay.signs.plausible import plausible
from sickbay.signs.recovery_action import action_of

UNKNOWN = 999  # nvmlReturn_t
GONE = {15: "GPU is lost", 16: "GPU requires reset"}  # of the same, in nvidia-smi's words
VOLATILE, AGGREGATE = 0, 1
CORRECTED, UNCORRECTED = 0, 1
SRAM, DRAM = 7, 2
SM, MEMORY = 1, 2
LIMITS = {"shutdown_at": 0, "slowdown_at": 1, "memory_limit_at": 2}  # nvmlTemperatureThresholds_t
MEMORY_TEMP, RECOVERY_ACTION = 82, 230  # field ids

FABRIC_STATES = ("N/A", "Not Started", "In Progress", "Completed")
# Sensors that may fail on their own, by the call that reads them.
SENSORS = {
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetFanSpeed": "fan",
    "nvmlDeviceGetUtilizationRates": "utilization",
}
VALUES = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}  # nvmlValueType_t


class DeviceLost(Exception):  # noqa: N818 - it says what happened
    """The driver says that it cannot reach the device."""


class NvmlDevice:
    """One device's handle. A call that is not supported gives None."""

    def __init__(self, nvml: Any, index: int) -> None:
        self.nvml = nvml
        self.index = index
        self.puzzled: list[str] = []  # calls that met an unknown error
        self.answered = 0
        self._handle = self._call("nvmlDeviceGetHandleByIndex", index, vital=True)
        if self._handle is None:
            raise DeviceLost("the driver counts it and gives no handle for it")

    def ask(self, name: str, *args: Any) -> Any:
        return self._call(name, self._handle, *args, vital=False)

    def _call(self, name: str, *args: Any, vital: bool) -> Any:
        function = getattr(self.nvml, name, None)
        if function is None:  # an older nvidia-ml-py
            return None
        try:
            value = function(*args)
        except self.nvml.NVMLError as error:
            number = int(getattr(error, "value", UNKNOWN))
            if number in GONE or (vital and number == UNKNOWN):
                raise DeviceLost(GONE.get(number, str(error))) from None
            if number == UNKNOWN:
                self.puzzled.append(name)
            return None
        except ValueError:  # a name that is no text, a number out of its type
            self.puzzled.append(name)
            return None
        self.answered += 1
        return value

    def fill(self, name: str, kind: str) -> Any:
        """For calls that fill a structure of the caller's; `kind` is the structure's class."""
        make = getattr(self.nvml, kind, None)
        if make is None:
            return None
        filled = make()
        return None if self.ask(name, ctypes.byref(filled)) is None else filled

    def fields(self, wanted: Sequence[int | tuple[int, int]]) -> list[int | float | None]:
        """Field values by id, or by (id, scope)."""
        found = self.ask("nvmlDeviceGetFieldValues", list(wanted))
        if found is None:
            return [None] * len(wanted)
        return [getattr(one.value, VALUES[one.valueType]) if one.nvmlReturn == 0 and one.valueType in VALUES else None
                for one in found]  # fmt: skip

    def whole(self, wanted: int | tuple[int, int]) -> int | None:
        """One of these that is a number to count with: not what a driver gives for none."""
        value = self.fields([wanted])[0]
        return None if value is None or not math.isfinite(value) else int(value)


def reading_of(nvml: Any, index: int, driver: str, fixed: dict[str, Any] | None = None) -> GpuReading:
    """A device that is lost is a reading too. `fixed` keeps what never changes in a card and costs a lot to ask."""
    who: dict[str, Any] = {"index": index, "driver": driver}
    try:
        card = NvmlDevice(nvml, index)
        who |= _identity(card)
        before = len(card.puzzled)
        state = {**_heat(card), **_memory(card)}
        limits = _limits(card, who["uuid"], {} if fixed is None else fixed)
        if len(card.puzzled) > before and not any(value is not None for value in state.values()):
            # One call that fails in an unknown way is that call's trouble; when all that ask the device do, it is gone.
            return GpuReading(**who, lost="Unknown Error")
        rest = {**_ecc(card), **_rows(card), **_speed(card), **_rest(card)}
        unreadable = tuple(SENSORS[name] for name in dict.fromkeys(card.puzzled) if name in SENSORS)
        return GpuReading(**who, **state, **limits, **rest, unreadable=unreadable)
    except DeviceLost as lost:
        return GpuReading(**who, lost=str(lost))


def values_of(nvml: Any, index: int) -> dict[str, float]:
    """Few calls: this is asked every few seconds."""
    try:
        card = NvmlDevice(nvml, index)
        use, memory = card.ask("nvmlDeviceGetUtilizationRates"), _memory(card)
        found = {
            "temperature": card.ask("nvmlDeviceGetTemperature", 0),
            "temperature_memory": card.fields([MEMORY_TEMP])[0],
            "power": _watts(card.ask("nvmlDeviceGetPowerUsage")),
            "sm_clock": card.ask("nvmlDeviceGetClockInfo", SM),
            "utilization": use and use.gpu,
            "memory_used": memory["memory_used"],
        }
    except DeviceLost:
        return {}
    return {
        f"gpu.{index}.{name}": float(value)
        for name, value in found.items()
        if value is not None and plausible(name, value)
    }


def pci_of(card: NvmlDevice) -> str:
    info = card.ask("nvmlDeviceGetPciInfo")
    return "" if info is None else _text(info.busId).lower()


def _identity(card: NvmlDevice) -> dict[str, Any]:
    return {
        "pci": pci_of(card),
        "uuid": _text(card.ask("nvmlDeviceGetUUID")),
        "serial": _text(card.ask("nvmlDeviceGetSerial")),
        "name": _text(card.ask("nvmlDeviceGetName")),
    }


def _ecc(card: NvmlDevice) -> dict[str, Any]:
    def total(error: int, counter: int) -> Any:
        return card.ask("nvmlDeviceGetTotalEccErrors", error, counter)

    def located(counter: int, place: int) -> Any:
        return card.ask("nvmlDeviceGetMemoryErrorCounter", UNCORRECTED, counter, place)

    mode = card.ask("nvmlDeviceGetEccMode")
    if mode is None or not mode[0]:  # without ECC its counters are stale or refused
        return {"ecc_enabled": None if mode is None else False}
    sram = card.fill("nvmlDeviceGetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    return {
        "ecc_enabled": True,
        "corrected": total(CORRECTED, VOLATILE),
        "uncorrected": total(UNCORRECTED, VOLATILE),
        "corrected_aggregate": total(CORRECTED, AGGREGATE),
        "uncorrected_aggregate": total(UNCORRECTED, AGGREGATE),
        "uncorrected_dram": located(VOLATILE, DRAM),
        "uncorrected_sram": located(VOLATILE, SRAM)
        if sram is None
        else sram.volatileUncParity + sram.volatileUncSecDed,
        "uncorrected_sram_aggregate": (
            located(AGGREGATE, SRAM) if sram is None else sram.aggregateUncParity + sram.aggregateUncSecDed
        ),
        "sram_threshold": None if sram is None else bool(sram.bThresholdExceeded),
    }


def _rows(card: NvmlDevice) -> dict[str, Any]:
    rows = card.ask("nvmlDeviceGetRemappedRows")
    banks = card.ask("nvmlDeviceGetRowRemapperHistogram")
    corrected, uncorrected, pending, failed = rows or (None, None, None, None)
    single, double = (card.ask("nvmlDeviceGetRetiredPages", cause) for cause in (0, 1))
    waiting = card.ask("nvmlDeviceGetRetiredPagesPendingStatus")
    repairs = card.ask("nvmlDeviceGetRepairStatus")
    return {
        "remaps_corrected": corrected,
        "remaps_uncorrected": uncorrected,
        "remap_pending": _flag(pending),
        "remap_failed": _flag(failed),
        "banks_full": None if banks is None else banks.none,
        "retired_single": None if single is None else len(single),
        "retired_double": None if double is None else len(double),
        "retire_pending": _flag(waiting),
        "repair_pending": None if repairs is None else any(repairs),
    }


def _heat(card: NvmlDevice) -> dict[str, Any]:
    limit = card.ask("nvmlDeviceGetEnforcedPowerLimit")
    return {
        "temperature": card.ask("nvmlDeviceGetTemperature", 0),
        "temperature_memory": card.fields([MEMORY_TEMP])[0],
        "power": _watts(card.ask("nvmlDeviceGetPowerUsage")),
        "power_limit": _watts(card.ask("nvmlDeviceGetPowerManagementLimit") if limit is None else limit),
        "power_limit_default": _watts(card.ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        "fan": card.ask("nvmlDeviceGetFanSpeed"),
    }


def _limits(card: NvmlDevice, uuid: str, fixed: dict[str, Any]) -> dict[str, Any]:
    if uuid not in fixed:
        fixed[uuid] = {name: card.ask("nvmlDeviceGetTemperatureThreshold", number) for name, number in LIMITS.items()}
    return {**fixed[uuid]}


def _memory(card: NvmlDevice) -> dict[str, Any]:
    # Version 2 keeps apart what the driver itself reserves, as nvidia-smi does.
    version = getattr(card.nvml, "nvmlMemory_v2", None)
    memory = card.ask("nvmlDeviceGetMemoryInfo", version) if version else None
    memory = memory if memory is not None else card.ask("nvmlDeviceGetMemoryInfo")
    return {"memory_used": memory and memory.used, "memory_total": memory and memory.total}


def _speed(card: NvmlDevice) -> dict[str, Any]:
    reasons = card.ask("nvmlDeviceGetCurrentClocksEventReasons")
    reasons = reasons if reasons is not None else card.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    use = card.ask("nvmlDeviceGetUtilizationRates")
    return {
        "slowed_by": None if reasons is None else slowdowns(reasons),
        "sm_clock": card.ask("nvmlDeviceGetClockInfo", SM),
        "memory_clock": card.ask("nvmlDeviceGetClockInfo", MEMORY),
        "utilization": use and use.gpu,
        "memory_utilization": use and use.memory,
        "pcie_generation": card.ask("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_generation_max": card.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_width": card.ask("nvmlDeviceGetCurrPcieLinkWidth"),
        "pcie_width_max": card.ask("nvmlDeviceGetMaxPcieLinkWidth"),
        "pcie_replays": card.ask("nvmlDeviceGetPcieReplayCounter"),
    }


def _rest(card: NvmlDevice) -> dict[str, Any]:
    mig = card.ask("nvmlDeviceGetMigMode")
    action = card.whole(RECOVERY_ACTION)
    return {
        "links": links_of(card),
        "persistence": _flag(card.ask("nvmlDeviceGetPersistenceMode")),
        "mig": None if mig is None else bool(mig[0]),
        "recovery_action": "" if action is None else _wish(action),
        **_fabric(card),
        "processes": _processes(card),
    }


def _fabric(card: NvmlDevice) -> dict[str, Any]:
    info = card.fill("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfoV_t")
    info = info or card.fill("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t")
    if info is None:
        return {}
    state = _named(FABRIC_STATES, int(info.state))
    if state == "N/A":
        return {"fabric_state": state, "fabric_status": "N/A"}
    status = "Success" if info.status == 0 else str(card.nvml.NVMLError(info.status))
    # Until it is over, the status says nothing.
    return {"fabric_state": state, "fabric_status": status if state == "Completed" else "N/A"}


def _processes(card: NvmlDevice) -> tuple[GpuProcess, ...] | None:
    found = [card.ask(f"nvmlDeviceGet{sort}RunningProcesses") for sort in ("Compute", "Graphics")]
    if all(each is None for each in found):
        return None
    held = {one.pid: one for each in found for one in each or ()}
    return tuple(
        GpuProcess(pid=pid, name=_program(card, pid), memory=one.usedGpuMemory) for pid, one in sorted(held.items())
    )


def _program(card: NvmlDevice, pid: int) -> str:
    try:
        return _text(card.nvml.nvmlSystemGetProcessName(pid))
    except card.nvml.NVMLError:  # it has just ended, or lives in another namespace
        return ""


def _wish(number: int) -> str:
    """In nvidia-smi's words."""
    action = action_of(number)
    return f"unknown ({number})" if action is None else action.words[0]


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"unknown ({number})"


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _text(value: str | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value or ""
