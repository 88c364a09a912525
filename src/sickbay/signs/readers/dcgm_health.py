"""What DCGM's watches say: `dcgmi health -c` as text and JSON, violations of a policy, and `dcgmi dmon`."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from msgspec.structs import replace

from sickbay.knowledge.dcgm import XID, Field, fields, messages, policies, said, squeezed, systems, told_as
from sickbay.model.gpu import GpuReading
from sickbay.model.sign import Fields, Sign
from sickbay.signs.gpu_state import signs_of
from sickbay.signs.readers import Document, proven
from sickbay.signs.readers.boxes import Entry, TwoColumns, cells, ruler
from sickbay.signs.readers.exporter import put, whole

Entity = tuple[str, int | None]  # what a report speaks of, and its number

TEXT = 500
LINE = 4000
ROWS = 200  # of one message
DEPTH = 12  # of a JSON document
FAILURE, WARNING = "failure", "warning"

_OVERALL = re.compile(r"Overall Health:?(?:\s+(\w+))?", re.ASCII)
_ENTITY = re.compile(
    r"(GPU|Switch|NvSwitch|CPU|ConnectX|GPU_I|GPU_CI)(?: ?ID)?(?::? ?(\d{1,4}))?", re.ASCII | re.IGNORECASE
)
_INLINE = re.compile(r"([A-Za-z][\w -]{0,30}?): (Warning|Failure) - (.*)", re.ASCII)  # as DCGM 1 wrote it
_STAMP = re.compile(r"Timestamp: [A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}|Timestamp: .{0,60}", re.ASCII)
_COLUMNS = re.compile(r"#\s*(?:Entity|GPU)\b.*", re.ASCII)
_MEASURED = re.compile(r"\s*(?:GPU\s+)?(\d{1,3})((?:\s+\S+)+)\s*", re.ASCII)


# nv-hostengine's own log: of what it says there only this is about a GPU, the rest is about itself.
_HOST_ENGINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (?:ERROR|WARN|FATAL|CRITICAL) +\[\d{1,10}:\d{1,10}\] (.*)", re.ASCII
)
_OF_A_GPU = frozenset({"gpu.lost", "gpu.fallen_off_bus", "gpu.reset_required"})


class DcgmHealth(Document):
    """A report names entities, their systems, and an incident each; a healthy one gives nothing."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "Health Monitor Report", "| Overall Health", "Overall Health: ", "Timestamp: ", "#Entity", "# Entity", "# GPU",
        "violated policy manager", "[/builds/dcgm", "/dcgm/dcgm/",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._open = False  # inside the table of a report
        self._entries = TwoColumns()
        self._entity: Entity = ("gpu", None)
        self._stamped = 0  # lines since a violation's time
        self._columns: list[Field | None] | None = None

    def read(self, number: int, line: str) -> Iterable[Sign]:
        if line.lstrip()[:1] in {"|", "+"}:
            self._columns, self._stamped = None, 0
            found = list(self._row(number, line))
            self.owns = self._open
            return found
        closed = list(self._close())
        self.owns = False
        if len(line) > LINE:
            self._columns, self._stamped = None, 0
            return closed
        text = line.strip()
        found = [*closed, *self._violation(number, text), *self._dmon(number, line)]
        if logged := _HOST_ENGINE.fullmatch(text):
            self.owns = True
            of_gpus = [told for told in messages(logged[1]) if told.kind in _OF_A_GPU]
            found += proven(of_gpus, number, text, TEXT)
        return found

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        head = value.get("header") if isinstance(value, dict) else None
        if not (isinstance(head, list) and "Health Monitor Report" in head):
            return []
        return list(_walked(number, value.get("body"), None, 0))

    def end(self) -> Iterable[Sign]:
        self.owns = False
        self._stamped, self._columns = 0, None
        return list(self._close())

    # The table of a report

    def _row(self, number: int, line: str) -> Iterable[Sign]:
        if ruler(line):
            return ()
        row = cells(line)
        if row is None:
            return self._close()
        left, right = row[0].strip(), "|".join(row[1:]).strip()
        if not self._open:
            self._open = left == "Health Monitor Report" or bool(_OVERALL.match(left) or _OVERALL.match(right))
            return ()
        return self._meaning(self._entries.row(number, left, right))

    def _close(self) -> Iterator[Sign]:
        yield from self._meaning(self._entries.over())
        self._open, self._entity = False, ("gpu", None)

    def _meaning(self, entry: Entry | None) -> Iterator[Sign]:
        """An entry names an entity or a watched system; what is wrong with the system stands beside and below it."""
        if entry is None:
            return
        name = entry.left.removeprefix("->").strip()
        self._entity = _entity_in(name, self._entity) or self._entity
        (number, verdict), *below = entry.right
        system, told = name.rstrip(":").lower(), [verdict]
        for line, text in below:
            inline = _INLINE.fullmatch(text)
            if inline and inline[1].lower() in systems():
                yield from self._incident(number, system, told)
                number, system, told = line, inline[1].lower(), [f"{inline[2]} - {inline[3]}"]
            else:
                told.append(text)
        yield from self._incident(number, system, told)

    def _incident(self, number: int, system: str, told: list[str]) -> Iterator[Sign]:
        """`Failure - why`, or the verdict alone and the reason below it."""
        verdict = told[0].lower().split(" ")[0].strip(":-")
        if system in systems() and verdict in {FAILURE, WARNING}:
            text = " ".join([told[0][len(verdict) :].lstrip(" -"), *told[1:ROWS]]).strip()
            yield from incident(number, self._entity, system, verdict, text)

    # What stands in single lines

    def _violation(self, number: int, line: str) -> Iterator[Sign]:
        if line.startswith("Timestamp: ") and _STAMP.fullmatch(line):
            self._stamped, self.owns = 3, True
            return
        if not self._stamped:
            return
        self._stamped -= 1
        text = squeezed(line)
        for known in policies():
            if any(said(words, text) for words in known.words):
                told = told_as(known.code, text)
                if told is not None:
                    yield from proven([told], number, line, TEXT)
                self.owns = True
                return

    def _dmon(self, number: int, line: str) -> Iterator[Sign]:
        if line.lstrip().startswith("#"):
            self._columns = _columns(line.strip())
            self.owns = self.owns or self._columns is not None
            return
        if self._columns is None:
            return
        row = _MEASURED.fullmatch(line)
        if row is None:
            self.owns = line.split()[:1] == ["ID"]
            if line.strip() and not self.owns:
                self._columns = None
            return
        self.owns = True
        yield from _row(number, int(row[1]), row[2].split(), self._columns, line)


def incident(number: int, entity: Entity, system: str, verdict: str, text: str) -> Iterator[Sign]:
    """What one incident of one system means. Its sentence says it; the system's own meaning is the last resort."""
    where: Fields = {}
    if entity[1] is not None and entity[0] in {"gpu", "switch", "nvswitch"}:
        where = {"device" if entity[0] == "gpu" else "switch": entity[1]}
    evidence = f"{entity[0]} {'' if entity[1] is None else entity[1]} {system}: {verdict}: {text}"[:TEXT]
    failure, warning = systems()[system]
    found = messages(text) or [Sign(kind=failure if verdict == FAILURE else warning)]
    once: dict[tuple[str, object], Sign] = {}
    for told in found:
        once.setdefault((told.kind, told.fields.get("number")), told)
    for told in once.values():
        yield replace(told, fields={**told.fields, **where}, text=evidence, line=number)


def _entity_in(name: str, above: Entity | None) -> Entity | None:
    """`GPU ID: 3`, or its number alone under a heading."""
    if found := _ENTITY.fullmatch(name):
        return found[1].lower(), int(found[2]) if found[2] else None
    if above is not None and name.isascii() and name.isdigit() and len(name) < 5:
        return above[0], int(name)
    return None


def _walked(number: int, node: Any, entity: Entity | None, depth: int) -> Iterator[Sign]:
    if not isinstance(node, dict) or depth > DEPTH:
        return
    for key, child in list(node.items())[:1000]:
        name = str(key).strip().rstrip(":")
        if name.lower() in systems() and entity is not None and isinstance(child, dict):
            verdict = str(child.get("value", "")).lower()
            if verdict in {FAILURE, WARNING}:
                yield from incident(number, entity, name.lower(), verdict, " ".join(_strings(child.get("overflow"))))
        else:
            yield from _walked(number, child, _entity_in(name, entity) or entity, depth + 1)


def _strings(value: Any) -> list[str]:
    return [text for text in (value if isinstance(value, list) else [value])[:ROWS] if isinstance(text, str)]


def _row(number: int, gpu: int, values: list[str], columns: list[Field | None], line: str) -> Iterable[Sign]:
    """One line of dmon. Its Xid is the last one there was, whenever that may have been; 0: none."""
    reading, xid = _measured(gpu, values, columns)
    last = [Sign(kind=XID, fields={"number": xid, "device": gpu})] if xid else []
    shown = [replace(sign, text="") for sign in signs_of(reading)]
    return proven([*last, *shown], number, line, TEXT)


def _measured(gpu: int, values: list[str], columns: list[Field | None]) -> tuple[GpuReading, int]:
    known: dict[str, Any] = {"index": gpu}
    xid = 0
    for field, text in zip(columns, values, strict=False):
        if field is not None and field.kind == XID:
            number = whole(text) or 0
            xid = number if 0 < number < 100_000 else 0
        elif field is not None:
            put(known, field, text)
    return GpuReading(**known), xid


def _columns(line: str) -> list[Field | None] | None:
    if not _COLUMNS.fullmatch(line):
        return None
    known = {field.short: field for field in fields()}
    found = [known.get(name) for name in line.lstrip("# ").split()[1:]]
    return found if any(found) else None


def readings_from_dmon(text: str) -> dict[int, tuple[GpuReading, int]]:
    """GPU → what `dcgmi dmon` shows of it, and its last Xid (0: none), in its last line about it."""
    found: dict[int, tuple[GpuReading, int]] = {}
    columns: list[Field | None] | None = None
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            columns = _columns(line.strip()) or columns
        elif columns is not None and len(line) < LINE and (row := _MEASURED.fullmatch(line)):
            found[int(row[1])] = _measured(int(row[1]), row[2].split(), columns)
    return found
