"""`nvidia-smi -q -x`.

Read tag by tag as it comes, not by a parser of XML: a paste may begin and end anywhere, only known values are kept, and
what no part of this text ever has (entities, declarations) has no meaning here and so can do no harm.
"""

import re
from collections.abc import Iterable
from html import unescape
from typing import ClassVar

from sickbay.model.gpu import GpuReading
from sickbay.model.sign import Sign
from sickbay.signs.smi import PCI, Gathered, readings_in

ROOT = "nvidia_smi_log"
DEPTH = 12
VALUE = 400  # no value of this text is longer
BETWEEN = 20  # lines without a tag that may stand between two tags

_TAG = re.compile(r"<(/?)([A-Za-z_][\w.-]{0,79}+)([^<>]*+)>([^<]*+)", re.ASCII)
_BEGINS = (f"<{ROOT}", f"<!DOCTYPE {ROOT}", "<gpu id=")
# Children of `gpu` and of nothing else: whatever was open before them is over, also if its end was not seen.
_PARTS = frozenset(
    {
        "product_name", "gpu_recovery_action", "gpu_reset_status", "pci", "clocks_event_reasons", "utilization",
        "clocks_throttle_reasons", "ecc_mode", "ecc_errors", "retired_pages", "remapped_rows", "temperature",
        "power_readings", "gpu_power_readings", "clocks", "fabric", "processes",
    }
)  # fmt: skip


class SmiXml(Gathered):
    """Values by the path of tags that are open."""

    # Beginnings, and within the text what brings a reader back who skips lines without any of these.
    ANCHORS: ClassVar[tuple[str, ...]] = (*_BEGINS, f"</{ROOT}", "<fb_memory_usage>", *(f"<{name}>" for name in _PARTS))

    def _clear(self) -> None:
        super()._clear()
        self._path: list[str] = []
        self._gpu = False
        self._bare = 0

    def read(self, number: int, line: str) -> Iterable[Sign]:
        if not self._open and not any(anchor in line for anchor in _BEGINS):
            self.owns = False
            return ()
        self._open = self.owns = True
        if "<" not in line:
            self._bare += 1
            if self._bare <= BETWEEN and (not line.strip() or line[:1].isspace()):
                return ()
            self.owns = False
            return self.end()
        self._bare = 0
        return self._tags(number, line)

    def _tags(self, number: int, line: str) -> tuple[Sign, ...]:
        said: tuple[Sign, ...] = ()
        for found in _TAG.finditer(line):
            closing, name, inside, text = found.groups()
            if closing and name == ROOT:
                said += self.end()
                self.owns = True
            elif closing:
                self._leave(name)
            elif not inside.endswith("/"):
                self._open = True
                self._enter(number, name, inside, text)
        return said

    def _enter(self, number: int, name: str, inside: str, text: str) -> None:
        if name == ROOT:
            return
        if name == "gpu" and (pci := PCI.search(inside)):
            self._begin_gpu(number, pci[0])
            self._path, self._gpu = [], True
            return
        if name in _PARTS and self._gpu:
            self._path = []
        if len(self._path) < DEPTH:
            self._path.append(name.replace("_", " "))
        if text.strip():
            self._put(number, unescape(text[:VALUE]).strip())

    def _leave(self, name: str) -> None:
        if name == "gpu":
            self._gpu = False
            self._path = []
        elif self._path and self._path[-1] == name.replace("_", " "):
            self._path.pop()
            if self._gpu and not self._path and name == "processes":
                self.sheets[-1].no_process()

    def _put(self, line: int, text: str) -> None:
        path = "/".join(self._path)
        if self._gpu:
            self.sheets[-1].put(path, text, line)
        else:
            self._top(path, text)


def readings_from_xml(text: str) -> list[GpuReading]:
    return readings_in(text, SmiXml())
