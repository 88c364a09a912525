"""The short forms of `nvidia-smi`: `nvlink -s` and `-e`, `-L`, `topo -m`, `--query-…  --format=csv`, `dmon`.

Each reader takes a line or leaves it; what it took is judged when its text is over.
"""

import re
from collections import Counter

from sickbay.model.gpu import GpuReading
from sickbay.model.sign import Sign
from sickbay.signs.gpu_state import signs_of
from sickbay.signs.smi import GPUS, Sheet, fields, judged, number

COLUMNS = 80

_LISTED = re.compile(r"\s*GPU (\d{1,3}): ([^()]{2,80}) \(UUID: ([\w-]{5,80})\)\s*", re.ASCII)
_LINK = re.compile(r"\s*Links? (\d{1,2}): (.{1,120})", re.ASCII)
_COUNTS = {
    "replay errors": "replays",
    "recovery errors": "recoveries",
    "link recovery failed events": "recoveries",
    "crc errors": "crc_errors",
    "crc flit errors": "crc_errors",
    "ecc errors": "ecc_errors",
}
_ANSI = re.compile(r"\x1b\[[0-9;]{0,8}m")
_TOPO = re.compile(r"\s*GPU0\s+(?:GPU1\s|.{0,400}CPU Affinity)", re.ASCII)
_TOPO_ROW = re.compile(r"\s*(?:GPU|NIC|mlx\w{1,12}_)\d{1,3}\s")
_NAME = re.compile(r"([a-z][\w.]{1,70})(?: \[[\w%/]{1,8}\])?", re.ASCII)
_ASKED = re.compile(r"nvidia-smi\b.{0,80}?--query-gpu[= ][\"']?([\w.,]{3,2000})", re.ASCII)
_DMON_COLUMNS = frozenset({"pwr", "gtemp", "sm", "mclk", "sbecc", "dbecc", "fb", "pviol", "rxpci"})
_DMON = {"gtemp": "temperature", "mtemp": "temperature_memory", "sbecc": "corrected", "dbecc": "all"}


class Links:
    """`nvidia-smi nvlink`: GPUs by name, under each its links. A list of GPUs (`-L`) looks the same, without links."""

    def __init__(self) -> None:
        self._sheets: list[Sheet] = []

    def take(self, line_number: int, line: str) -> bool:
        if found := _LISTED.fullmatch(line):
            if len(self._sheets) < GPUS:
                self._sheets.append(Sheet(line_number, index=int(found[1])))
                self._sheets[-1].set("name", found[2].strip(), line_number)
                self._sheets[-1].set("uuid", found[3], line_number)
            return True
        if not self._sheets:
            return False
        if found := _LINK.fullmatch(line.rstrip()):
            self._link(line_number, int(found[1]), found[2].strip().lower())
            return True
        return not line.strip()

    def _link(self, line_number: int, link: int, said: str) -> None:
        sheet = self._sheets[-1]
        what, _, count = said.partition(": ")
        if re.match(r"\d{1,4}(?:\.\d{1,4})? gb/s", said):
            sheet.link(link, line_number, up=True)
        elif said.strip("<>") in {"inactive", "disabled"}:
            sheet.link(link, line_number, up=False)
        elif what in _COUNTS and (value := number(count)) is not None:
            sheet.link(link, line_number, **{_COUNTS[what]: int(value)})

    def over(self) -> tuple[Sign, ...]:
        sheets, self._sheets = [sheet for sheet in self._sheets if not sheet.empty], []
        return tuple(judged(sheets))


class Topology:
    """`nvidia-smi topo -m`. Where a switch ties all GPUs by equally many links, one that has fewer has lost some."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[int, list[int]]] = {}
        self._open = False

    def take(self, line_number: int, line: str) -> bool:
        plain = _ANSI.sub("", line) if "\x1b" in line else line
        if not self._open:
            self._open = bool(_TOPO.match(plain))
            return self._open
        if not _TOPO_ROW.match(plain):
            return False
        name, *cells = plain.split()[: COLUMNS + 1]
        if name.startswith("GPU") and name[3:].isdecimal() and len(self._rows) < GPUS:
            tied = [int(cell[2:]) for cell in cells if re.fullmatch(r"NV\d{1,2}", cell, re.ASCII)]
            self._rows[int(name[3:])] = (line_number, tied)
        return True

    def over(self) -> tuple[Sign, ...]:
        rows, self._rows, self._open = self._rows, {}, False
        if len(rows) < 3 or any(len(tied) != len(rows) - 1 for _, tied in rows.values()):
            return ()  # not all tied to all: a mesh or a bridge, where counts differ by design
        best = [max(tied) for _, tied in rows.values()]
        usual = Counter(best).most_common(1)[0][0]
        return tuple(
            Sign(kind="nvlink.down", fields={"device": gpu}, line=line,
                 text=f"GPU {gpu}: tied by {max(tied)} NVLinks, others by {usual}")
            for gpu, (line, tied) in rows.items() if max(tied) < usual
        )  # fmt: skip


class Csv:
    """`--query-gpu=… --format=csv` and its sisters: a line of names, then a line for each GPU."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._sheets: dict[str, Sheet] = {}

    def take(self, line_number: int, line: str) -> bool:
        cells = [cell.strip() for cell in line.split(", ", COLUMNS)]
        names = _named(cells)
        if not names and "--query-" in line and (asked := _ASKED.search(line)):
            # `noheader`: the command says what the columns are.
            names = [name.replace("_", " ") for name in asked[1].split(",")]
            names = names if len(names) > 1 and any(name in fields() for name in names) else []
        if names:
            self._names = names
            return True
        if not self._names or len(cells) != len(self._names):
            return False
        row = dict(zip(self._names, cells, strict=True))
        key = next((row[name] for name in ("uuid", "gpu uuid", "pci.bus id", "gpu bus id", "index") if name in row), "")
        if len(self._sheets) < GPUS:
            sheet = self._sheets[key or str(line_number)] = Sheet(line_number)  # of a repeated look the last counts
            for name, cell in row.items():
                sheet.put(name, cell, line_number)
        return True

    def over(self) -> tuple[Sign, ...]:
        sheets, self._names, self._sheets = [*self._sheets.values()], [], {}
        return tuple(judged(sheets))


def _named(cells: list[str]) -> list[str]:
    """The names of the columns, if this is such a line: all look like names, and enough of them are known."""
    found = [_NAME.fullmatch(cell) for cell in cells]
    names = [one[1].replace("_", " ") for one in found if one]
    known = [name for name in names if name in fields()]
    return names if len(names) == len(cells) and (len(known) > 1 or any("." in name for name in known)) else []


class Dmon:
    """`nvidia-smi dmon`: columns under a line that begins with `# gpu`."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._last: dict[int, tuple[int, list[str]]] = {}

    def take(self, line_number: int, line: str) -> bool:
        words = line.split(None, COLUMNS)
        if words[:1] == ["#"] or words[:1] == ["#gpu"]:
            names = [word.lstrip("#").lower() for word in words if word != "#"]
            if "gpu" in names[:3] and _DMON_COLUMNS & {*names}:
                self._names = names
            return bool(self._names)
        if not self._names or len(words) != len(self._names):
            return False
        place = self._names.index("gpu") if "gpu" in self._names else 0
        if words[place].isdecimal() and len(words[place]) < 4 and len(self._last) < GPUS:
            self._last[int(words[place])] = (line_number, words)
            return True
        return False

    def over(self) -> tuple[Sign, ...]:
        names, self._names = self._names, []
        last, self._last = self._last, {}
        sheets = []
        for gpu, (line, words) in last.items():
            sheet = Sheet(line, index=gpu)
            for name, word in zip(names, words, strict=True):
                if name in _DMON and (value := number(word)) is not None:
                    sheet.set(_DMON[name], value if "temp" in name else int(value), line)
            sheets.append(sheet)
        return tuple(judged(sheets))


def mig_signs(gpu: int, instance: int, errors: int, line: int) -> tuple[Sign, ...]:
    """Uncorrected errors that one MIG instance counts."""
    found = signs_of(GpuReading(index=gpu, uncorrected=errors))
    return tuple(
        Sign(kind=one.kind, fields={**one.fields, "mig": instance}, text=one.text, line=line, count=one.count)
        for one in found
    )
