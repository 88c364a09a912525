"""`nvidia-smi` as it comes: the box of all driver generations, the lines that it prints instead, and its lists."""

import re
from collections.abc import Iterable
from typing import ClassVar

from msgspec.structs import replace

from sickbay.model.gpu import GpuReading
from sickbay.model.sign import Fields, Sign
from sickbay.signs.gpu_state import signs_of
from sickbay.signs.readers import Document, proven
from sickbay.signs.readers.smi_lists import Csv, Dmon, Links, Topology, mig_signs
from sickbay.signs.readers.words import wordings
from sickbay.signs.smi import GPUS, Sheet, judged, number

LINE = 8000  # no line of these texts is longer; a query for all columns is the longest

_HEAD = re.compile(r"\|\s*NVIDIA-SMI\s+[\d.]{3,20}", re.ASCII)
_BEFORE = re.compile(
    r"(?:\[[\d :.,TZ+-]{8,35}\]|[\w.-]{1,60}+:)\s{1,9}(?=[|+])", re.ASCII
)  # a date, the name of a host
_WHO = re.compile(r"\s*(\d{1,3})\s+(\S.{0,60}?)\s{1,40}(On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*", re.ASCII)
_BUS = re.compile(r"\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+(?:On|Off|N/A|ERR!)\s*", re.ASCII)
_STATE = re.compile(r"\s*(ERR!|N/A|\d{1,3}\s?%)\s+(ERR!|N/A|-?\d{1,3}C)\s+(\S{2,4})\s+(\S{1,9})\s*/\s*(\S{1,9})\s*")
_MIG = re.compile(r"\s*(\d{1,3})\s+(\d{1,3})\s+\d{1,3}\s+\d{1,3}\s*", re.ASCII)

# Lines that stand where the box should be, what other programs say when the management library answers them with an
# error (pynvml, Slurm, container runtimes), and cells of CSV that mean the same under every column.
WORDS = "smi_words.csv"
REFUSED = "Failed to initialize NVML: "
NONE_FOUND = "gpu.none_found"
KEPT = 200
_HANDLE = re.compile(
    r"Unable to (?:determine|detect) the device handle for gpu\s?(?:(\d{1,3}): )?"
    r"([0-9a-f]{3,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])?:?\s?(.{0,200})",
    re.IGNORECASE | re.ASCII,
)
# People set what they paste in bold or in quotes; with an address in it, it was printed by a machine.
_DRESSED = re.compile(
    r"(?:\*\*|__|[\"'`*_])(Unable to .{0,80}[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7].{0,200}?)(?:\*\*|__|[\"'`*_])[.,]?",
    re.ASCII,
)
# `nvdebugdump -l`: the call that failed, then the GPU.
_CALL = re.compile(r"Error: nvml(\w{1,60})\(\): (.{3,80})", re.ASCII)
_DETAILS = re.compile(r"FAILED to get details on GPU \((0x[0-9a-f]{1,3})\): (.{3,80})", re.ASCII)
# Most lines of most texts are none of ours: what could begin one of these texts, by its first word or by any.
_MAYBE = re.compile(r"[\s>]*+(?:\||GPU|#|\x1b|[a-z][\w.]{1,60}+(?: \[[^\]]{1,8}\])?(?:, |$))", re.ASCII)
_ANYWHERE = (
    "nvml", "nvidia-smi", "device handle", "inforom", "no devices were", "requires reset", "gpu is lost]",
    "unknown error]", "failed to get details",
)  # fmt: skip
_COMMENT = ("#", "//", "*", "raise ", "except ", "- ", "assert")
# A program's name before it, as a journal has it. A quotation mark or a backtick there: somebody speaks about it.
_SAID_BY = re.compile(
    r"[^\"'`]{0,100}(?:\]|\bnvidia-smi|\bstderr|\bstdout): |[\w.-]{1,60}+: |\[[\d :.,TZ-]{8,30}\] ", re.ASCII
)


class Box:
    """The table of GPUs, the one of MIG devices and the one of processes under it."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._sheets: list[Sheet] = []
        self._signs: list[Sign] = []
        self._open = False
        self._part = "gpus"  # then mig, processes
        self._row = 0  # of a GPU's three lines

    def take(self, line_number: int, line: str) -> bool:
        text = line.strip().lstrip("> ")
        if before := _BEFORE.match(text):
            text = text[before.end() :]
        if _HEAD.match(text):
            if self._sheets:
                return False  # the next box: `nvidia-smi -l`
            self._open, self._part = True, "gpus"
            return True
        cells = text.strip("|").split("|") if text.startswith("|") else []
        if len(cells) == 3 and self._part == "gpus" and self._gpu(line_number, cells):
            self._open = True
            return True
        if not self._open:
            return False
        if not cells:
            return not text or text.startswith("+-")
        if "MIG devices:" in text or "Processes:" in text:
            self._part = "mig" if "MIG" in text else "processes"
        elif self._part == "mig":
            self._instance(line_number, cells)
        elif self._part == "gpus" and self._row:
            self._state(line_number, cells)
        return True

    def _gpu(self, line_number: int, cells: list[str]) -> bool:
        """The first of a GPU's three lines."""
        who, bus = _WHO.fullmatch(cells[0]), _BUS.fullmatch(cells[1])
        if bus is None or not cells[0].strip()[:1].isdigit():
            return False
        if len(self._sheets) < GPUS:
            self._sheets.append(Sheet(line_number, pci=bus[1], index=int(who[1]) if who else None))
        sheet, self._row = self._sheets[-1], 1
        if who and who[2].strip() == "ERR!":
            sheet.fail("name", line_number)
        elif who:
            sheet.set("name", who[2].strip(), line_number)
            sheet.put("persistence mode", who[3], line_number)
        ecc = cells[2].strip()
        if "ERR!" in ecc:
            sheet.fail("ecc", line_number)
        elif ecc in {"Off", "On"}:
            sheet.put("ecc mode/current", ecc, line_number)
        elif ecc.isdecimal() and len(ecc) < 19:
            sheet.set("all", int(ecc), line_number)
        return True

    def _state(self, line_number: int, cells: list[str]) -> None:
        """The second line has the state, the third the MIG mode."""
        sheet, self._row = self._sheets[-1], self._row + 1
        whole = "|".join(cells)
        for words in ("GPU requires reset", "GPU is lost", "fallen off the bus"):
            if words.lower() in whole.lower():
                sheet.gone(words, line_number)
        if self._row == 2:
            state = _STATE.fullmatch(cells[0])
            paths = ("fan speed", "temperature.gpu", "", "power.draw", "power.limit")
            for path, cell in zip(paths, state.groups() if state else (), strict=False):
                sheet.put(path or "perf", cell, line_number)
            used, _, total = (cells[1] if len(cells) > 1 else "").partition("/")
            sheet.put("memory.used", used, line_number)
            sheet.put("memory.total", total, line_number)
            sheet.put("utilization.gpu", (cells[2].split() or [""])[0] if len(cells) > 2 else "", line_number)
        elif self._row == 3 and len(cells) > 2:
            sheet.put("mig.mode.current", cells[2], line_number)
        else:
            self._row = 0

    def _instance(self, line_number: int, cells: list[str]) -> None:
        found = _MIG.fullmatch(cells[0])
        counts = cells[2].split() if found and len(cells) > 2 else []
        if found and len(counts) == 2 and (errors := number(counts[1])) and len(self._signs) < GPUS:
            self._signs += mig_signs(int(found[1]), int(found[2]), int(errors), line_number)

    def over(self) -> tuple[Sign, ...]:
        sheets, signs = self._sheets, self._signs
        self._clear()
        return (*judged(sheets), *signs)


class SmiTable(Document):
    """All that `nvidia-smi` prints but the long text and the XML."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "NVIDIA-SMI", "Uncorr. ECC", "MiB / ", "MIG devices:", "Unable to determine the device handle",
        "Failed to initialize NVML", "No devices were found", "infoROM is corrupted", "(UUID: GPU-",
        "Replay Errors: ", "Recovery Errors: ", "CRC Errors: ", "Link 0: ", "<inactive>", "GPU0\t", "\tGPU1",
        "GPU0 ", "# gpu ", "sbecc", "ecc.errors.", "ecc.mode.", "memory.used", "memory.total", "utilization.gpu",
        "temperature.gpu", "power.draw", "remapped_rows.", "retired_pages.", "clocks_throttle_reasons.",
        "clocks_event_reasons.", "reset_status.", "gpu_bus_id", "pci.bus_id", "pcie.link.", "GPU requires reset",
        "GPU is lost", "[Unknown Error]", "nvml error: ", "NVMLError_", "Unable to detect the device handle",
        "FAILED to get details on GPU", "Error: nvml", "--query-gpu",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._parts = (Box(), Links(), Topology(), Csv(), Dmon())
        self._reading: Box | Links | Topology | Csv | Dmon | None = None
        self._lost_at = -9

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        if len(line) > LINE:
            return self.end()
        now = self._reading
        if now is None and not _MAYBE.match(line):
            low = line.lower()
            if not any(word in low for word in _ANYWHERE):
                return ()
        if now is not None and now.take(number, line):
            self.owns = True
            return ()
        said = self.end()
        if not line or line.isspace():
            return said
        alone = self._alone(number, line)
        if alone is not None:
            self.owns = True
            return (*said, *proven(alone, number, line))
        self._reading = next((part for part in self._parts if part is not now and part.take(number, line)), None)
        if self._reading is None and now is not None and now.take(number, line):
            self._reading = now  # the next of its kind
        self.owns = self._reading is not None
        return said

    def end(self) -> tuple[Sign, ...]:
        now, self._reading = self._reading, None
        return now.over() if now is not None else ()

    def _alone(self, number: int, line: str) -> Iterable[Sign] | None:
        """A line that stands for itself; None if it is none of them."""
        text = line.strip().lstrip("> ").replace("’", "'")
        if dressed := _DRESSED.fullmatch(text):
            text = dressed[1]
        if not text.startswith(("Unable", "WARNING: info", "NVIDIA-SMI", "Failed to init", "No devices")):
            by = _SAID_BY.match(text)
            text = text[by.end() :] if by else ""
        if found := _HANDLE.match(text):
            self._lost_at = number
            return _handle(text, found[1], found[2], found[3])
        for pattern, kind in wordings(WORDS, "line"):
            if found := pattern.match(text):
                if kind == NONE_FOUND and (text.strip(". ") != found[0] or number - self._lost_at < 3):
                    return ()  # told already by the line above
                fields: Fields = {name: value.lower() for name, value in found.groupdict().items()}
                return (Sign(kind=kind, fields=fields, text=text[:KEPT]),)
        return _row(line) or self._dump(number, line.strip()) or _by_program(line.strip())

    def _dump(self, number: int, text: str) -> Iterable[Sign]:
        if call := _CALL.fullmatch(text):
            said = f"{REFUSED}{call[2]}"
            kind, words = next(
                (kind, found[0]) for pattern, kind in wordings(WORDS, "line") if (found := pattern.match(said))
            )
            if words != REFUSED:
                return (Sign(kind=kind, text=text),)
            if not call[1].startswith("DeviceGetHandle"):
                return ()
            self._lost_at = number
            return _handle(text, None, None, call[2])
        if (details := _DETAILS.fullmatch(text)) and number - self._lost_at > 2:
            return _handle(text, str(int(details[1], 16)), None, details[2])
        return ()


def _row(text: str) -> Iterable[Sign]:
    """A row of CSV without its header: it does not say which column, but it says this."""
    cells = [cell.strip() for cell in text.split(", ", 80)] if "]" in text else []
    kinds = (kind for pattern, kind in wordings(WORDS, "cell") if any(map(pattern.fullmatch, cells)))
    kind = next(kinds, "") if len(cells) > 1 else ""
    fields: Fields = {"device": int(cells[0])} if kind and re.fullmatch(r"\d{1,3}", cells[0], re.ASCII) else {}
    return (Sign(kind=kind, fields=fields, text=text.strip()[:KEPT]),) if kind else ()


def _by_program(text: str) -> Iterable[Sign] | None:
    if "nvml" not in text.lower() or "`" in text or text.startswith(_COMMENT):
        return None
    kind = next((kind for pattern, kind in wordings(WORDS, "program") if pattern.search(text)), "")
    return (Sign(kind=kind, text=text[:KEPT]),) if kind else None


def _handle(text: str, index: str | None, pci: str | None, why: str) -> Iterable[Sign]:
    if "permission" in why.lower():
        return ()  # says something about who asked
    one = GpuReading(index=int(index) if index else None, pci=(pci or "").lower(), lost=why or "no handle")
    return [replace(sign, text=text[:KEPT]) for sign in signs_of(one)]
