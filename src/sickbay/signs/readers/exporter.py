"""A page of dcgm-exporter: what Prometheus scrapes from a node, or somebody pastes.

`DCGM_FI_DEV_XID_ERRORS` is the number of the last Xid, not how many there were, and stays there until DCGM starts
again; `DCGM_EXP_XID_ERRORS_COUNT` counts those of the last minutes by their number.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple

from msgspec.structs import replace

from sickbay.knowledge.dcgm import LINK, XID, Field, fields
from sickbay.model.gpu import GpuReading, Link, slowdowns
from sickbay.model.sign import Fields, Sign
from sickbay.signs.gpu_state import shown_in, signs_of
from sickbay.signs.readers import Document

TEXT = 500
GPUS = 4096  # of one page: more are no page of one cluster
XIDS = 1000
XIDS_MOST = 1_000_000  # of one kind in the window of an exporter, which is minutes
LONGEST = 8192
BLANK = 0x7FFFFFFFFFFFFFF0  # from here on DCGM says why it has no value
BLANK_FLOAT = 140737488355328.0
MIB = 1 << 20
ALL_LINKS = -1  # the sum of a GPU's links

_SAMPLE = re.compile(r"(DCGM_(?:FI|EXP)_[A-Z0-9_]{1,80})(?:\{(.*)\})?\s+([-+.\w]{1,40})(?:\s+-?\d{1,20})?", re.ASCII)
_PAIR = re.compile(r'\s*([A-Za-z_]\w{0,80})="((?:[^"\\]|\\.){0,1000})"\s*(?:,|$)', re.ASCII)
_LINK = re.compile(r"(DCGM_FI_DEV_NVLINK_[A-Z_]+?_COUNT)_(?:L(\d{1,2})|TOTAL)", re.ASCII)


class Seen(NamedTuple):
    """An Xid on a page. `latched`: the last one there was, whenever; else one of the last minutes."""

    gpu: str
    mig: str
    number: int
    latched: bool


class ExporterPage:
    """The samples of one page, put in as they come."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Any]] = {}
        self._links: dict[str, dict[int, dict[str, int]]] = {}
        self._lines: dict[tuple[str, str], tuple[int, str]] = {}
        self.xids: dict[Seen, tuple[int, Fields, int, str]] = {}  # how many, where, line and its text

    def feed(self, number: int, line: str) -> bool:
        """True if the line is a sample of DCGM's."""
        if not line.startswith("DCGM_") or len(line) > LONGEST:
            return False
        sample = _SAMPLE.fullmatch(line.strip())
        if sample is None:
            return False
        name, labels, text = sample[1], dict(_PAIR.findall(sample[2] or "")), sample[3]
        gpu = labels.get("UUID") or labels.get("uuid") or labels.get("gpu") or labels.get("device") or ""
        gpu = f"{labels.get('Hostname', '')}/{gpu}"
        if gpu not in self._known:
            if len(self._known) >= GPUS:
                return True
            self._known[gpu] = _identity(labels)
        link = _LINK.fullmatch(name)
        field = _named().get(link[1] if link else name)
        if name == "DCGM_EXP_XID_ERRORS_COUNT" or (field is not None and field.kind == XID):
            self._xid(gpu, labels, text, number, line)
        elif link and field is not None:
            self._link(gpu, field.reading, ALL_LINKS if link[2] is None else int(link[2]), text, (number, line))
        elif field is not None and field.kind != LINK and put(self._known[gpu], field, text):
            self._lines[gpu, field.reading] = (number, line)
        return True

    def _xid(self, gpu: str, labels: dict[str, str], text: str, number: int, line: str) -> None:
        latched = "xid" not in labels
        value = whole(text)
        if value is None or not 0 < value <= XIDS_MOST:
            return
        code = value if latched else whole(labels["xid"])
        if code is None or not 0 < code < 100_000 or (latched and "DCGM_EXP" in line[:8]):
            return
        seen = Seen(gpu, labels.get("GPU_I_ID", ""), code, latched)
        if len(self.xids) < XIDS:
            self.xids[seen] = (1 if latched else value, _where(self._known[gpu], seen.mig), number, line)

    def _link(self, gpu: str, counter: str, link: int, text: str, where: tuple[int, str]) -> None:
        value = whole(text)
        if value is None or not 0 <= value < BLANK:
            return
        counters = self._links.setdefault(gpu, {}).setdefault(link, {})
        counters[counter] = counters.get(counter, 0) + value
        if value:
            self._lines[gpu, "links"] = where

    @property
    def readings(self) -> dict[str, GpuReading]:
        found = {}
        for gpu, known in self._known.items():
            links = self._links.get(gpu)
            single = {number: counters for number, counters in (links or {}).items() if number != ALL_LINKS}
            taken = sorted((single or links or {}).items())
            made = tuple(replace(Link(number=number), **counters) for number, counters in taken)
            found[gpu] = GpuReading(**known, links=made or None)
        return found

    def line_of(self, gpu: str, kind: str) -> tuple[int, str]:
        """Where on the page the field stands that proves a sign."""
        names = (*shown_in(kind), "slowed_by") if kind.endswith(("slowdown", "brake")) else shown_in(kind)
        return next((self._lines[gpu, name] for name in names if (gpu, name) in self._lines), (0, ""))


class Exporter(Document):
    """Reads a page wherever it stands; it ends with the first line that is neither a sample nor a comment."""

    ANCHORS: ClassVar[tuple[str, ...]] = ("DCGM_FI_", "DCGM_EXP_", "# HELP DCGM_", "# TYPE DCGM_")

    def __init__(self) -> None:
        super().__init__()
        self._page: ExporterPage | None = None

    def read(self, number: int, line: str) -> Iterable[Sign]:
        text = line.strip()
        if text.startswith("DCGM_"):
            page = self._page or ExporterPage()
            self.owns = page.feed(number, text)
            if self.owns:
                self._page = page
            return ()
        self.owns = text.startswith(("# HELP DCGM_", "# TYPE DCGM_"))
        if self.owns or self._page is None or not text or text.startswith("#"):
            return ()
        return self.end()

    def end(self) -> Iterable[Sign]:
        page, self._page, self.owns = self._page, None, False
        return () if page is None else list(_signs(page))


def _signs(page: ExporterPage) -> Iterator[Sign]:
    fresh = {(seen.gpu, seen.number) for seen in page.xids if not seen.latched}
    for seen, (count, where, line, text) in page.xids.items():
        if not seen.latched or (seen.gpu, seen.number) not in fresh:
            yield Sign(kind=XID, fields={"number": seen.number, **where}, text=text[:TEXT], line=line, count=count)
    for gpu, reading in page.readings.items():
        for sign in signs_of(reading):
            line, text = page.line_of(gpu, sign.kind)
            yield replace(together(sign), line=line, text=(text or sign.text)[:TEXT])


def together(sign: Sign) -> Sign:
    """The exporter may give the sum of a GPU's links only: then no link is named."""
    if sign.fields.get("link") != ALL_LINKS:
        return sign
    without = {name: value for name, value in sign.fields.items() if name != "link"}
    return replace(sign, fields=without, text=sign.text.replace(f"NVLink {ALL_LINKS}:", "all NVLinks together:"))


def page_of(text: str) -> ExporterPage:
    page = ExporterPage()
    for number, line in enumerate(text.splitlines(), 1):
        page.feed(number, line.strip())
    return page


def readings_from_page(text: str) -> tuple[GpuReading, ...]:
    """One for each GPU on the page."""
    return tuple(page_of(text).readings.values())


def put(known: dict[str, Any], field: Field, text: str) -> bool:
    """A value as DCGM writes it into what is known of a GPU. One in slices comes several times: the worst counts."""
    value = _value(field.kind, text)
    if value is None:
        return False
    before = known.get(field.reading)
    if before is not None and not isinstance(value, tuple):
        value = max(before, value)
    known[field.reading] = value
    return True


def _value(kind: str, text: str) -> Any:
    number = _number(text)
    if number is None or number < 0:
        return None
    match kind:
        case "int":
            return int(number)
        case "bool":
            return number != 0
        case "mebibytes":
            return int(number) * MIB
        case "reasons":
            return slowdowns(int(number))
        case _:
            return number


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    blank = number != number or number >= BLANK or BLANK_FLOAT <= number < BLANK_FLOAT + 100  # noqa: PLR0124 - not a number
    return None if blank else number


def whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _identity(labels: dict[str, str]) -> dict[str, Any]:
    index = labels.get("gpu", "")
    if not index.isdigit():
        index = labels.get("device", "").removeprefix("nvidia")
    known: dict[str, Any] = {
        "uuid": labels.get("UUID") or labels.get("uuid") or "",
        "pci": labels.get("pci_bus_id", "").lower(),
        "name": labels.get("modelName", ""),
        "driver": labels.get("DCGM_FI_DRIVER_VERSION", ""),
    }
    if index.isascii() and index.isdigit() and len(index) < 5:
        known["index"] = int(index)
    if labels.get("GPU_I_ID"):
        known["mig"] = True
    return known


def _where(known: dict[str, Any], mig: str) -> Fields:
    where: Fields = {"device": known["index"]} if "index" in known else {}
    where.update({name: known[name] for name in ("uuid", "pci") if known[name]})
    if mig.isascii() and mig.isdigit() and len(mig) < 4:
        where["mig"] = int(mig)
    return where


@cache
def _named() -> dict[str, Field]:
    return {field.name: field for field in fields()}
