"""What AMD's tools print: `rocm-smi` (tables, `--showrasinfo`, retired pages, JSON), `amd-smi` (text, box, JSON)."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from sickbay.model.sign import Fields, Sign
from sickbay.signs.readers import Document
from sickbay.signs.readers.words import count_names, counted

LINE = 1000
CARDS = 512
DEPTH = 4  # of JSON

_CARD = re.compile(r"(?:GPU|card)\[?(\d{1,3})\]?", re.ASCII)
_OPENING = re.compile(r"\s*GPU: (\d{1,3})\s*", re.ASCII)
_ROCM_CARD = re.compile(r"GPU\[(\d{1,3})\]\s*:\s*(.*)", re.ASCII)
# The second number is what could not be corrected, in every version: some print the headings the wrong way round.
_RAS = re.compile(r"\s*([A-Z][A-Z0-9_]{1,20})\s+[A-Z][A-Z_ ]{1,20}?\s+(\d{1,18})\s+(\d{1,18})\s*", re.ASCII)
_PAGE = re.compile(r"(?:.{0,20}:\s)?\s*0x[0-9a-f]+[\s:]+0x[0-9a-f]+[\s:]+(\w{1,12})\s*", re.IGNORECASE | re.ASCII)
_KEY = re.compile(r"(\s*)([A-Z][A-Z0-9_]{1,60}):\s*(.*)", re.ASCII)
_BOX = re.compile(
    r"\|\s*([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\s[^|]{1,60}\|"
    r"\s*(?:N/A|\d{1,3} ?%)\s+(?:N/A|\d{1,3} ?.C)\s+(\d{1,12})\s",
    re.IGNORECASE | re.ASCII,
)
# A paste may lack the line that ends it: what looks like none of its lines is another text.
_ROCM_LINE = re.compile(r"\s*$|\s{2}|\t|[=_*-]{4}|GPU[ \[]|\d{1,3}\s|Device|Node|\(DID|WARNING|ERROR|Expected integer")
# A card that does not answer: its readings fail with an error, and its row has nothing. One that sleeps has no errors.
_COMPLAINT = re.compile(r"ERROR:\s*(?:\d{1,4}\s+)?GPU\[(\d{1,3})\]", re.ASCII)
_SILENT = re.compile(r"(\d{1,3})\s+N/A\s+N/A\s.{0,80}\bunknown\b", re.ASCII)
_HELD_BY_HEAT = ("prochot", "socket_thermal", "vr_thermal", "hbm_thermal")
# `ue: 3` and the like behind a card's number; where amd-smi writes the same.
_COUNTED = re.compile(r"(ue|ce|XGMI Error count): (\d{1,18})(?!\S)", re.ASCII)
_COUNTS = {"ue": "memory_lost", "ce": "corrected", "XGMI Error count": "xgmi"}
_VALUES = {
    ("ecc", "total_uncorrectable_count"): "whole_lost", ("ecc", "uncorrectable_count"): "whole_lost",
    ("ecc", "total_correctable_count"): "corrected", ("ecc", "correctable_count"): "corrected",
    ("ecc", "total_deferred_count"): "deferred",
}  # fmt: skip
_EVENTS = {
    "vmfault": "amd.page_fault", "thermal_throttle": "amd.throttled", "gpu_pre_reset": "amd.gpu_reset",
    "ring_hang": "amd.ring_timeout",
}  # fmt: skip
_PAGES = {"pending": "pending", "p": "pending", "unreservable": "stuck", "f": "stuck", "un_res": "stuck"}


class RocmGpu:
    """One GPU while it is read."""

    def __init__(self, index: int | None, pci: str = "") -> None:
        self.index, self.pci = index, pci
        self.counts: dict[str, int] = {}
        self.lines: dict[str, int] = {}
        self.events: list[tuple[str, int]] = []

    def add(self, name: str, count: int, line: int) -> None:
        if count > 0:
            self.counts[name] = self.counts.get(name, 0) + count
            self.lines.setdefault(name, line)

    def signs(self) -> Iterator[Sign]:
        counts = dict(self.counts)
        # The total is told beside its parts.
        if whole := counts.get("whole_lost", 0):
            counts["memory_lost"] = counts.get("memory_lost", 0) or max(0, whole - counts.get("unit_lost", 0))
            self.lines.setdefault("memory_lost", self.lines["whole_lost"])
        fields: Fields = {"device": self.index} if self.index is not None else {}
        fields |= {"pci": self.pci.lower()} if self.pci else {}
        who = f"AMD GPU {self.pci if self.index is None else self.index}"
        for name in count_names("amd"):
            yield from counted("amd", name, counts.get(name, 0), who, fields, self.lines.get(name, 0))
        for kind, line in self.events:
            yield Sign(kind=kind, fields=fields, text=f"{who}: told by amd-smi", line=line)


class RocmSmi(Document):
    """Judged when a text is over: a total and its parts must not be told twice."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "ROCm System Management Interface", "ROCm SMI Log", "RAS INFO", "PAGES INFO", "GPU[0]", "GPU: 0",
        "UNCORRECTABLE_COUNT", "VIOLATION_", "AMD-SMI ", "UEC ", "AMD Instinct", "DOUBLE_ECC", '"card0"',
        "total_uncorrectable_count", "No bad pages found",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._clear()

    def _clear(self) -> None:
        self._cards: dict[str, RocmGpu] = {}
        self._now: RocmGpu | None = None
        self._form = ""  # rocm, amd, box, monitor
        self._above: list[tuple[int, str]] = []
        self._columns: dict[str, tuple[int, int]] = {}
        self._blamed: set[int] = set()
        self._asleep = False

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        text = line.rstrip()
        if len(text) > LINE:
            return self.end()
        if self._form and self._takes(number, text):
            self.owns = True
            return ()
        said = self.end()
        self.owns = self._begins(number, text)
        return said

    def end(self) -> tuple[Sign, ...]:
        cards = [*self._cards.values()]
        self._clear()
        return tuple(sign for card in cards for sign in card.signs())

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        """A JSON text of either tool."""
        cards = _json_cards(value)
        for index, card in cards:
            kept = self._card(str(index), index)
            for path, leaf in _leaves(card, ()):
                _keep(kept, path, leaf, number)
        return self.end() if cards else ()

    def _card(self, key: str, index: int | None, pci: str = "") -> RocmGpu:
        card = self._cards.get(key) or RocmGpu(index, pci)
        if len(self._cards) < CARDS:  # of more than any machine has nothing is kept
            self._cards[key] = card
        self._now = card
        return card

    def _begins(self, number: int, text: str) -> bool:
        if "ROCm System Management Interface" in text or "ROCm SMI Log" in text:
            self._form = "" if "End of" in text else "rocm"
            return True
        if text.endswith(("RAS INFO", "PAGES INFO")) and (found := _ROCM_CARD.match(text)):
            self._form = "rocm"
            self._card(found[1], int(found[1]))
            return True
        if found := _OPENING.fullmatch(text):
            self._form = "amd"
            self._card(found[1], int(found[1]))
            return True
        if "DOUBLE_ECC" in text and text.split()[:1] == ["GPU"]:
            self._form = "monitor"
            ends = [(one[0], one.end()) for one in re.finditer(r"\S+", text)]
            self._columns = {name: (ends[place - 1][1] if place else 0, end) for place, (name, end) in enumerate(ends)}
            return True
        if "| AMD-SMI " in text or _BOX.match(text):
            self._form = "box"
            return self._takes(number, text)
        return False

    def _takes(self, number: int, text: str) -> bool:
        return {"rocm": self._rocm, "amd": self._amd, "box": self._box, "monitor": self._monitor}[self._form](
            number, text
        )

    def _rocm(self, number: int, line: str) -> bool:
        if "End of ROCm SMI Log" in line:
            return False
        text = line
        if found := _COMPLAINT.match(text):
            self._blamed.add(int(found[1]))
        elif "low-power state" in text:
            self._asleep = True
        elif (found := _SILENT.match(text)) and int(found[1]) in self._blamed and not self._asleep:
            card = self._card(found[1], int(found[1]))
            card.events.append(("amd.lost", number))
        if found := _ROCM_CARD.match(text):
            text = found[2].strip()
            card = self._card(found[1], int(found[1]))
            if counted := _COUNTED.match(text):
                card.add(_COUNTS[counted[1]], int(counted[2]), number)
        if self._now is not None and (found := _RAS.fullmatch(text)):
            self._now.add("corrected", int(found[2]), number)
            self._now.add("memory_lost" if found[1] == "UMC" else "unit_lost", int(found[3]), number)
        elif self._now is not None and (found := _PAGE.fullmatch(text)):
            self._now.add(_PAGES.get(found[1].lower(), "retired"), 1, number)
        return bool(_ROCM_LINE.match(line))

    def _amd(self, number: int, text: str) -> bool:
        if not text:
            return True
        if found := _OPENING.fullmatch(text):
            self._above = []
            self._card(found[1], int(found[1]))
            return True
        found = _KEY.fullmatch(text)
        if found is None or not found[1] or self._now is None:
            return False
        indent, key, value = len(found[1]), found[2].lower(), found[3].strip()
        while self._above and self._above[-1][0] >= indent:
            self._above.pop()
        path = [*(name for _, name in self._above), key]
        if value:
            _keep(self._now, path, value, number)
        elif len(self._above) < 8:
            self._above.append((indent, key))
        return True

    def _box(self, number: int, text: str) -> bool:
        if found := _BOX.match(text):
            self._card(found[1], None, found[1]).add("memory_lost", int(found[2]), number)
        return text.strip()[:1] in {"|", "+"}

    def _monitor(self, number: int, text: str) -> bool:
        words = text.split()
        if not words or not words[0].isdecimal() or len(words[0]) > 3:
            return False
        card = self._card(words[0], int(words[0]))
        for column, name in (("DOUBLE_ECC", "memory_lost"), ("SINGLE_ECC", "corrected")):
            begin, end = self._columns.get(column, (0, 0))
            card.add(name, _count(text[begin:end]), number)
        return True


def _count(value: Any) -> int:
    said = str(value).strip()
    return int(said) if said.isdecimal() and len(said) < 19 else 0


def _keep(card: RocmGpu, path: Sequence[str], value: Any, line: int) -> None:
    """One value of either tool, in text or JSON: paths are the same."""
    key, part = path[-1], path[0]
    said = str(value).strip().lower()
    if name := _VALUES.get((part, key)):
        card.add(name, _count(said), line)
    elif part == "ecc_blocks" and key == "uncorrectable_count":
        card.add("memory_lost" if path[1] == "umc" else "unit_lost", _count(said), line)
    elif part == "throttle" and key.startswith(_HELD_BY_HEAT) and key.endswith(("_status", "_active")):
        card.add("heat", int(said == "active"), line)
    elif (part in {"pending", "un_res"} and key == "page_address") or (
        key.startswith("retired page ") and said in _PAGES
    ):
        card.add(_PAGES[part if key == "page_address" else said], 1, line)
    elif key.startswith("xgmi error count"):
        card.add("xgmi", _count(said), line)
    elif key == "event" and said in _EVENTS and len(card.events) < CARDS:
        card.events.append((_EVENTS[said], line))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths of names in JSON, and what stands there. A number with its unit is one value."""
    if isinstance(value, Mapping) and not {"value", "unit"} & value.keys() and len(path) < DEPTH:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key).lower()))
    elif isinstance(value, list) and len(path) < DEPTH:
        for inner in value[:1000]:
            yield from _leaves(inner, path)
    elif path:
        yield path, value


def _json_cards(value: Any) -> list[tuple[int, Mapping[str, Any]]]:
    if isinstance(value, Mapping) and isinstance(value.get("gpu_data"), list):
        value = value["gpu_data"]
    if isinstance(value, Mapping):  # rocm-smi
        named = ((_CARD.fullmatch(str(key)), card) for key, card in value.items())
        return [(int(name[1]), card) for name, card in named if name and isinstance(card, Mapping)][:CARDS]
    cards = value if isinstance(value, list) else []
    known = {"ecc", "ecc_blocks", "throttle", "retired", "pending", "un_res", "event"}
    return [
        (card["gpu"], card)
        for card in cards[:CARDS]
        if isinstance(card, Mapping) and isinstance(card.get("gpu"), int) and known & card.keys()
    ]
