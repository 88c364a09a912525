"""What AWS's Neuron tools print: `neuron-ls` (table, JSON), `neuron-monitor` (JSON, its metrics page), counters."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

from sickbay.knowledge.csv_table import read_table
from sickbay.model.sign import Sign
from sickbay.signs.readers import Document
from sickbay.signs.readers.words import count_names, counted

LINE = 4000
DEVICES = 512

MOST = 0.25  # a container sees a half or less of a machine; a machine that lost devices sees nearly all

_HEAD = re.compile(r"\|\s*NEURON\s*\|\s*NEURON\s*\|", re.ASCII)
_ROW = re.compile(r"\|\s*(\d{1,3})\s*\|", re.ASCII)
_TYPE = re.compile(r"instance-type: ([a-z0-9]{3,8}\.\w{4,12})\b", re.ASCII)
_LINE = re.compile(
    r"\s*(?:\S{0,200}/neuron(\d{1,3})/\S{0,200}/|[\w./-]{0,80}?)"
    r"((?:mem|sram)_ecc_(?:repairable_)?uncorrected)(?:/total)?\s*[:= ]\s*(\d{1,18})\s*",
    re.ASCII,
)
_METRIC = re.compile(r"(?:neuron_)?hardware_ecc_events_total\{([^{}]{0,2000})\} (\d{1,18})(?:\.0)?", re.ASCII)
_LABEL = re.compile(r'(event_type|neuron_device_index)="([^"]{0,60})"', re.ASCII)
_NONE = ("No neuron devices found", "No neuron device found", "No Neuron devices found", "No Neuron device found")


class NeuronTools(Document):
    """A table is judged when it is over, everything else where it stands."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "instance-type: ", "| NEURON ", "_ecc_uncorrected", "_ecc_repairable_uncorrected", "hardware_ecc_events_total",
        "neuron_hw_counters", "neuron_runtime_data", '"neuron_device"', "No Neuron device",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._instance = ""
        self._devices: dict[int, int] = {}
        self._began = 0

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        text = line.strip()
        if self._began and text[:1] in {"|", "+"} and len(text) <= LINE:
            self.owns = True
            if (found := _ROW.match(text)) and len(self._devices) < DEVICES:
                self._devices[int(found[1])] = number
            return ()
        said = self.end()
        if not text or len(text) > LINE:
            return said
        return (*said, *self._other(number, text))

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        if isinstance(value, list):
            return _missing(_listed(value, number), "", number)
        if not isinstance(value, Mapping):
            return ()
        if isinstance(devices := value.get("neuron_devices"), list):  # neuron-ls of later releases
            return _missing(_listed(devices, number), str(value.get("instance_type", "")), number)
        return tuple(_monitored(value, number))

    def end(self) -> tuple[Sign, ...]:
        devices, began, instance = self._devices, self._began, self._instance
        self._devices, self._began = {}, 0
        if began:
            self._instance = ""
        return _missing(devices, instance, began) if began and devices else ()

    def _other(self, number: int, text: str) -> tuple[Sign, ...]:
        if found := _TYPE.search(text):
            self._instance, self.owns = found[1], True
        elif _HEAD.match(text):
            self._began, self.owns = number, True
        elif found := _LINE.fullmatch(text):
            self.owns = True
            return tuple(_counted(found[2], int(found[3]), int(found[1]) if found[1] else None, number))
        elif found := _METRIC.fullmatch(text):
            self.owns = True
            labels = dict(_LABEL.findall(found[1]))
            index = labels.get("neuron_device_index", "")
            device = int(index) if index.isdecimal() and len(index) < 4 else None
            return tuple(_counted(labels.get("event_type", ""), int(found[2]), device, number))
        elif text.removeprefix("neuron-ls: ").startswith(_NONE):
            self.owns = True
            return (Sign(kind="neuron.none_found", text=text[:200], line=number),)
        return ()


@cache
def _built() -> dict[str, int]:
    """How many devices an instance has."""
    columns = ("instance", "devices", "source")
    return dict(read_table("neuron_instances.csv", columns, lambda row: (row.given("instance"), row.whole("devices"))))


def _counted(name: str, count: int, device: int | None, line: int) -> Iterator[Sign]:
    """Hardware counters, as the driver's sysfs, neuron-monitor and its exporter name them."""
    who = "a Neuron device" if device is None else f"Neuron device {device}"
    return counted("neuron", name, count, who, {} if device is None else {"device": device}, line)


def _listed(devices: list[Any], line: int) -> dict[int, int]:
    """Devices of `neuron-ls --json-output`; none if it is another list."""
    numbers = [one.get("neuron_device") for one in devices[:DEVICES] if isinstance(one, Mapping)]
    return {one: line for one in numbers if isinstance(one, int)}


def _missing(devices: Mapping[int, int], instance: str, line: int) -> tuple[Sign, ...]:
    """Devices that are not in a list of nearly all."""
    if not devices:
        return ()
    built = _built().get(instance, max(devices, default=-1) + 1)
    gone = [number for number in range(min(built, DEVICES)) if number not in devices]
    if not gone or len(gone) > built * MOST:
        return ()
    text = f"{built - len(gone)} of {built} Neuron devices are listed; missing: {', '.join(map(str, gone))}"
    return (Sign(kind="neuron.count", fields={"seen": built - len(gone), "expected": built}, text=text, line=line),)


def _monitored(report: Mapping[str, Any], line: int) -> Iterator[Sign]:
    """One report of neuron-monitor."""
    hardware = _inner(report, "system_data", "neuron_hw_counters").get("neuron_devices")
    for one in hardware[:DEVICES] if isinstance(hardware, list) else ():
        if isinstance(one, Mapping):
            device = one.get("neuron_device_index")
            for name in count_names("neuron"):
                count = one.get(name)
                if isinstance(count, int):
                    yield from _counted(name, count, device if isinstance(device, int) else None, line)
    runtimes = report.get("neuron_runtime_data")
    for runtime in runtimes[:DEVICES] if isinstance(runtimes, list) else ():
        if isinstance(runtime, Mapping):
            failed = _inner(runtime, "report", "execution_stats", "error_summary").get("hardware")
            if isinstance(failed, int) and failed > 0:
                text = f"{failed} executions failed by the hardware"
                yield Sign(kind="neuron.hw_error", text=text, line=line, count=failed)


def _inner(value: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        deeper = value.get(name)
        value = deeper if isinstance(deeper, Mapping) else {}
    return value
