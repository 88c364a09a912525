"""Unwrapping: records of log shippers (JSON, exported tables), terminals and forums → the line as it was printed.

Each wrapping is taken off by its own small rule, from the outside in, the prefixes last, by the table in
`signs.carriers`. A rule that does not know a line leaves it alone: a reader behind may well understand it.
"""

import csv
import html
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from sickbay.model.noun import Noun
from sickbay.signs.carriers import AWS_EVENTS, AWS_TAIL, COMPOSE, CRI, DOCKER, HOST, POD, RANKS, without

DEEPEST = 4  # a container's log inside a shipper's record inside an archive's record


class Bare(Noun):
    """`whole` has its time stamps still, as kernel lines are known by them; `text` has none, nor a rank."""

    whole: str
    text: str


# --- JSON records, one to a line: where each writer keeps the line, most telling first
MESSAGES = ("MESSAGE", "@message", "log", "message", "msg", "textPayload", "line", "body", "event", "Message")
# The same in the heading of a table of records, as CloudWatch, Splunk, Kibana and Datadog export it.
COLUMNS = ("@message", "_raw", "message", "Message", "log_message")
STAMPS = frozenset({"@timestamp", "_time", "time", "timestamp", "date", "datetime"})
SPEAKERS = ("SYSLOG_IDENTIFIER", "_COMM", "ident", "syslog_identifier", "appname", "program", "identifier")
INNER = ("jsonPayload", "fields", "_source", "record", "result")  # one level down
# A record is known by what stands beside its message; {"message": …} alone may be somebody's data.
BESIDE = frozenset(
    {
        "stream", "time", "timestamp", "@timestamp", "ts", "t", "level", "lvl", "log_level", "severity", "kubernetes",
        "docker", "logger", "caller", "host", "hostname", "ingestionTime", "logStreamName", "@logStream", "@ptr",
        "__REALTIME_TIMESTAMP", "_TRANSPORT", "_HOSTNAME", "PRIORITY", "_BOOT_ID", "SYSLOG_IDENTIFIER",
        "container_name", "container_id", "tag", "source", "labels", "insertId", "pod", "namespace", "date", "asctime",
        "name", "filename", "eventId", "ident", "pri", "facility",
    }
)  # fmt: skip


def from_record(record: Mapping[str, Any]) -> str | None:
    """The line inside a shipper's record; None: it is none."""
    key = next((key for key in MESSAGES if key in record), None)
    if key is None:
        inner = next((record[key] for key in INNER if isinstance(record.get(key), dict)), None)
        return from_record({"ts": 0, **inner}) if inner is not None else None
    if not BESIDE & record.keys() and len(record) > 1:
        return None
    said = _as_text(record[key])
    if said is None:
        return None
    if str(record.get("_TRANSPORT", "")) == "kernel":
        return f"kernel: {said}"
    speaker = next((str(record[name]) for name in SPEAKERS if record.get(name)), "")
    if not re.fullmatch(r"[\w./@-]{1,64}", speaker):
        return said
    if speaker == "kernel":
        return f"kernel: {said}"
    # With a number, as syslog has it: a bare word could be a node's name, and that node's kernel would be heard.
    return f"{speaker}[{str(record.get('_PID', '')).strip() or 1}]: {said}"


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    # journald writes a message that is not plain text as an array of its bytes.
    if isinstance(value, list) and value and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return None


# --- what terminals and forums leave
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-?]{0,40}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][\w]|[=>78cDEHMNOZ])"
)
_FENCE = re.compile(r"^\s*(?:```|~~~)[\w+-]{0,20}\s*$")
_QUOTE = re.compile(r"^(?:> ?){1,8}(?=\S|$)")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|nbsp|#\d{1,6}|#x[0-9a-fA-F]{1,5});")


def from_terminal(line: str) -> str:
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    if "\b" in line:
        line = re.sub(r"[^\b]\b", "", line).replace("\b", "")
    if "\x0f" in line or "\x0e" in line:
        line = line.replace("\x0f", "").replace("\x0e", "")
    return line


def from_paste(line: str) -> str | None:
    """None: a fence, which says nothing."""
    if line.startswith(">") and not line.startswith(">>>"):
        line = _QUOTE.sub("", line)
    if "&" in line and not line.lstrip().startswith("<") and _ENTITY.search(line):
        line = html.unescape(line).replace("\xa0", " ")  # XML keeps its own entities
    if ("```" in line or "~~~" in line) and _FENCE.match(line):
        return None
    return line


class Unwrapper:
    """Takes the wrapping off, line by line. It remembers only whether a table of records goes on."""

    def __init__(self) -> None:
        self._column = -1  # of the message, inside a table of records
        self._columns = 0

    @property
    def inside(self) -> bool:
        """A table of records goes on: its lines mean nothing by themselves."""
        return self._column >= 0

    def lines(self, line: str) -> list[Bare]:
        """Mostly one; none for a fence; more where a record holds several lines."""
        if self._column < 0 and _plain(line):
            return [Bare(whole=line, text=line)]
        return [_bare(inner) for inner in self._open(line, 0)]

    def _open(self, line: str, depth: int) -> list[str]:
        line = from_terminal(line)
        if depth == 0 and (row := self._from_table(line)) is not None:
            line = row
        if depth < DEEPEST and (record := as_object(line)) is not None:
            said = from_record(record)
            if said is not None:
                return [part for inner in said.splitlines() or [""] for part in self._open(inner, depth + 1)]
        pasted = from_paste(line)
        return [] if pasted is None else [pasted]

    def _from_table(self, line: str) -> str | None:
        if ("essage" in line or "_raw" in line) and "," in line and not line.lstrip().startswith("{"):
            names = _row(line)
            column = next((name for name in COLUMNS if name in names), "")
            if column == COLUMNS[0] or (column and STAMPS & {name.lower() for name in names}):
                self._column, self._columns = names.index(column), len(names)
                return ""
        if self._column < 0:
            return None
        row = _row(line)
        if len(row) == self._columns:
            return row[self._column]
        if not line.strip():
            self._column = -1
        return line.strip('"')  # a message of several lines goes on


def _plain(line: str) -> bool:
    """Nothing to take off: by far the most common case, so the cheapest test."""
    if not line or line[0] in "[{>( \t" or line[0].isdigit():
        return False
    head = line[:100]
    return not (
        ": " in head or "&" in line or "\x1b" in line or "\b" in line or "``" in line or " | " in head or "\t" in head
        or "@message" in line or "~~~" in line or "\x0f" in line
        or ("," in head and ("essage" in head or "_raw" in head))
    )  # fmt: skip


def as_object(line: str) -> dict[str, Any] | None:
    """A whole JSON object on one line."""
    text = line.strip()
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _row(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _bare(line: str) -> Bare:
    whole = without(line, CRI, POD, COMPOSE)
    if whole.startswith("EVENTS\t") and (event := AWS_EVENTS.match(whole)):
        whole = event["said"]
    whole = without(whole, *RANKS, HOST)
    text = without(whole, AWS_TAIL, DOCKER)
    return Bare(whole=whole, text=without(text, *RANKS, HOST) if text != whole else text)
