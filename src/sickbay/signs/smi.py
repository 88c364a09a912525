"""What `nvidia-smi` writes about one GPU, in whichever form, gathered into a `GpuReading`.

The long text, the XML and the CSV name the same things by different paths; smi_fields.csv turns paths into fields. A
path is what stands above and before a value, in lower case, with blanks for underscores and a slash between levels (a
dot in CSV).
"""

import math
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from msgspec.structs import replace

from sickbay.knowledge.csv_table import read_table
from sickbay.model.gpu import SLOWDOWNS, GpuProcess, GpuReading, Link, slowdowns
from sickbay.model.sign import Sign
from sickbay.signs.gpu_state import shown_in, signs_by_place
from sickbay.signs.readers import Document

GPUS = 512  # more than any machine has: what a hostile text may fill
PROCESSES = 256
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?", re.IGNORECASE | re.ASCII)

_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,9})?", re.ASCII)
_ABSENT = frozenset({"", "n/a", "not available", "not supported", "none", "not found", "insufficient permissions"})
_YES = frozenset({"yes", "enabled", "active", "true", "1", "on"})
_NO = frozenset({"no", "disabled", "not active", "false", "0", "off"})
# Words in the place of a value: nothing can be read. One such cell passes by itself, many mean that the GPU is gone.
_FAILED = ("err!", "unknown error")
_GONE = ("gpu is lost", "gpu requires reset", "fallen off the bus")
_MANY = 3
_NAMES = frozenset({"pci", "index", "driver", "name", "uuid", "serial"})  # who it is, not how it is
_UNIT = {"count": 1, "add": 1, "bytes": 2**20}  # whole numbers
# Without these there is no talking to a GPU at all.
_VITAL = frozenset({"name", "uuid", "temperature", "memory_total"})


@cache
def fields() -> dict[str, tuple[str, str]]:
    """Path → the field that stands there, and how its value is read."""
    columns = ("field", "how", "path", "source")
    return dict(read_table("smi_fields.csv", columns, lambda row: (row["path"], (row["field"], row["how"]))))


def number(text: str) -> float | None:
    found = _NUMBER.match(text.strip())
    value = float(found[0]) if found else math.nan
    return value if math.isfinite(value) else None


def _read(how: str, text: str) -> Any:
    said = text.strip().strip("[]").lower()
    if how == "word":
        return "" if said in _ABSENT - {"none"} or "deprecated" in said else text.strip()
    if how in {"flag", "any", "reason"}:
        return True if said in _YES else False if said in _NO else None
    if how == "ill":
        return text.strip() if said in {"unhealthy", "degraded", "limited capacity"} else None
    if how == "bits":
        return int(said, 16) if re.fullmatch(r"0x[0-9a-f]{1,16}", said) else None
    if said in _ABSENT or (value := number(said)) is None:
        return None
    return int(value * _UNIT[how]) if how in _UNIT else value


class Sheet:
    """One GPU while it is read. Keeps what the table knows, and the line of it."""

    def __init__(self, line: int = 0, *, pci: str = "", index: int | None = None) -> None:
        self.line = line
        self.lines: dict[str, int] = {}
        self._said: dict[str, Any] = {}
        self._reasons: dict[str, bool] = {}
        self._failed: dict[str, int] = {}
        self._gone = ""
        self._links: dict[int, Link] = {}
        self._held: list[GpuProcess] | None = None
        if pci:
            self._said["pci"] = pci.lower()
        if index is not None:
            self._said["index"] = index

    @property
    def empty(self) -> bool:
        return not (self._said.keys() - _NAMES or self._links or self._gone or self._failed)

    @property
    def blank(self) -> bool:
        """Nothing but its address is known."""
        return self.empty and not self._said.keys() - {"pci", "index", "driver"}

    def put(self, path: str, text: str, line: int) -> bool:
        """A value at its path; False if nobody asks for it."""
        said = text.strip().strip("[]").lower()
        name, how = fields().get(path, ("", ""))
        if how == "process":
            self._process(name, text)
        elif any(word in said for word in _GONE):
            self.gone(text.strip().strip("[]"), line)
        elif any(word in said for word in _FAILED):
            self.fail(name or path.rpartition("/")[2], line)
        elif name:
            self.set(name, _read(how, text), line, how)
        return bool(name)

    def set(self, name: str, value: Any, line: int, how: str = "") -> None:
        if value is None:
            return
        if how == "reason":
            self._reasons[name] = value
        elif how == "add":
            self._said[name] = self._said.get(name, 0) + value
        elif how == "any":
            self._said[name] = bool(self._said.get(name) or value)
        else:
            self._said[name] = value
        # Of values that add up the first that is not nothing proves it.
        if name not in self.lines or (how in {"add", "any"} and value and self._said[name] == value):
            self.lines[name] = line

    def gone(self, words: str, line: int) -> None:
        self._gone = self._gone or words[:200]
        self.lines.setdefault("lost", line)

    def fail(self, name: str, line: int) -> None:
        if len(self._failed) < 100:
            self._failed.setdefault(name, line)

    def link(self, number: int, line: int, **more: Any) -> None:
        if number < 64:
            self._links[number] = replace(self._links.get(number, Link(number=number)), **more)
            self.lines.setdefault(f"link {number}", line)
            self.lines.setdefault("links", line)

    def _process(self, word: str, text: str) -> None:
        """`pid` begins one; `name` and `memory` belong to the last."""
        held = self._held = [] if self._held is None else self._held
        if word == "pid" and (pid := number(text)) is not None and len(held) < PROCESSES:
            held.append(GpuProcess(pid=int(pid)))
        elif word == "name" and held:
            held[-1] = replace(held[-1], name=text.strip()[:200])
        elif word == "memory" and held and (mebi := number(text)) is not None:
            held[-1] = replace(held[-1], memory=int(mebi * 2**20))

    def no_process(self) -> None:
        self._held = [] if self._held is None else self._held

    def reading(self, index: int | None = None) -> GpuReading:
        said = dict(self._said)
        lost = self._gone
        if not lost and (len(self._failed) >= _MANY or self._failed.keys() & _VITAL):
            lost = f"cannot be read: {', '.join(sorted(self._failed))}"[:200]
            self.lines.setdefault("lost", min(self._failed.values()))
        self.lines.setdefault("unreadable", min(self._failed.values(), default=self.line))
        margin, temperature = said.get("margin"), said.get("temperature")
        if margin is not None and temperature is not None:
            # H100 and later say how far it is to a limit, not where the limit lies.
            for limit in ("slowdown", "shutdown"):
                if (beyond := said.get(f"{limit}_margin")) is not None:
                    said.setdefault(f"{limit}_at", temperature + margin - beyond)
        wish = "Reset" if said.get("reset_required") else "Drain and Reset" if said.get("drain_and_reset") else ""
        if wish:
            said.setdefault("recovery_action", wish)
            self.lines.setdefault("recovery_action", self.lines.get("reset_required") or self.lines["drain_and_reset"])
        self._fabric(said)
        known = {name: said[name] for name in GpuReading.__struct_fields__ if name in said}
        known |= {"index": said.get("index", index), "pci": said.get("pci", "").lower(), "lost": lost}
        return GpuReading(
            **known | self._ecc(),
            unreadable=tuple(sorted(self._failed)),
            slowed_by=self._slowed(),
            links=tuple(self._links.values()) or None,
            processes=None if self._held is None else tuple(self._held),
        )

    def proof(self, sign: Sign) -> int:
        """The line that shows a sign, as far as it can be told."""
        names = (f"link {sign.fields['link']}",) if "link" in sign.fields else shown_in(sign.kind)
        return next((self.lines[name] for name in names if name in self.lines), self.line)

    def _fabric(self, said: dict[str, Any]) -> None:
        for name, words in (
            ("fabric_health", ""),
            ("fabric_bandwidth", " bandwidth"),
            ("fabric_route", "Route unhealthy"),
        ):
            if (ill := said.get(name)) and said.get("fabric_status", "").lower() in {"", "success"}:
                said["fabric_status"] = words if ill is True else f"{ill}{words}"
                self.lines["fabric_status"] = self.lines[name]

    def _ecc(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for tail in ("", "_aggregate"):
            parts = [self._said[f"{part}{tail}"] for part in ("sram", "dram") if f"{part}{tail}" in self._said]
            whole = self._said.get(f"all{tail}", sum(parts) if parts else None)
            named = {
                f"uncorrected{tail}": whole,
                f"corrected{tail}": self._said.get(f"corrected{tail}"),
                f"uncorrected_sram{tail}": self._said.get(f"sram{tail}"),
                "uncorrected_dram": self._said.get("dram"),
            }
            counts |= {name: value for name, value in named.items() if value is not None}
            for part in ("dram", "sram", "all"):
                if self._said.get(f"{part}{tail}"):
                    self.lines[f"uncorrected{tail}"] = self.lines[f"{part}{tail}"]
        self.lines.setdefault("uncorrected_sram_aggregate", self.lines.get("sram_aggregate", self.line))
        return counts

    def _slowed(self) -> tuple[str, ...] | None:
        if (bits := self._said.get("active")) is not None:
            self.lines.update(dict.fromkeys(SLOWDOWNS, self.lines["active"]))
            return slowdowns(bits)
        return tuple(name for name, on in self._reasons.items() if on) if self._reasons else None


def readings_of(sheets: Iterable[Sheet], attached: int | None = None) -> list[GpuReading]:
    """Numbered in their order where all GPUs of the machine are there: `-i 3` shows one of eight."""
    known = list(sheets)
    return [sheet.reading(place if len(known) == attached else None) for place, sheet in enumerate(known)]


def judged(sheets: Iterable[Sheet], attached: int | None = None) -> Iterator[Sign]:
    """The signs of what was read, each with the line that proves it."""
    known = list(sheets)
    for place, sign in signs_by_place(readings_of(known, attached)):
        yield replace(sign, line=known[place].proof(sign))


class Gathered(Document):
    """What the long forms of nvidia-smi have in common: a sheet for each GPU, judged when the text is over.

    Only then is it known how many GPUs it shows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.over: tuple[list[Sheet], int | None] | None = None  # the first text that ended
        self._clear()

    def _clear(self) -> None:
        self.sheets: list[Sheet] = []
        self.attached: int | None = None
        self.driver = ""
        self._open = False

    def _begin_gpu(self, line: int, pci: str) -> None:
        if len(self.sheets) < GPUS:
            self.sheets.append(Sheet(line, pci=pci))
        if self.driver:
            self.sheets[-1].set("driver", self.driver, line)

    def _top(self, key: str, value: str) -> None:
        """What stands above the first GPU."""
        if key == "attached gpus" and (count := number(value)) is not None:
            self.attached = int(count)
        elif key == "driver version":
            self.driver = value.strip()[:40]

    def end(self) -> tuple[Sign, ...]:
        sheets, attached = [sheet for sheet in self.sheets if not sheet.blank], self.attached
        self._clear()
        if sheets and self.over is None:
            self.over = (sheets, attached)
        return tuple(judged(sheets, attached))


def readings_in(text: str, reader: Gathered) -> list[GpuReading]:
    """What the text says of each GPU; of several texts the first that has one."""
    for line_number, line in enumerate(text.splitlines(), 1):
        reader.read(line_number, line)
        if reader.over:
            break
    reader.end()
    return readings_of(*reader.over) if reader.over else []
