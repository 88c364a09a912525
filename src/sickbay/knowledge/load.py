"""The shipped data files → frozen tables. Every row is checked, because every row can take a node out of service."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sickbay.knowledge.shipped import shipped
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy, Scope, Severity
from sickbay.model.tables import DiagnosisRule, FaultRow, Meaning, SxidRow, Tables, XidRow

Row = dict[str, str]
Word = TypeVar("Word", bound=StrEnum)
Known = TypeVar("Known", bound=Meaning)

MEANING = ("remedy", "severity", "scope", "component", "class", "because", "source")
XID_POSITIONS = ("nvidia_immediate", "nvidia_investigatory", "nvsentinel", "gpud", "eks_nma", "hyperpod_or_other")
SXID_POSITIONS = ("driver_a100_lr10", "driver_h100_ls10", "gpud", "nvsentinel", "imbue", "suggested_action")
# The engine's own, GPUs and what ties them, the rest of the machine, what DCGM says.
FAULTS = ("faults.csv", "faults_gpu.csv", "faults_host.csv", "faults_dcgm.csv")
DIAGNOSIS = ("name", "rank", "pattern", "words", "restart", "because", "source")


def load_tables(overrides: Path | None = None) -> Tables:
    """The shipped tables, with the operator's file laid over them if there is one."""
    if overrides is None:
        return _shipped()
    from sickbay.knowledge.overrides import apply_overrides  # here: an agent has no overrides, and needs no YAML

    try:
        text = overrides.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{overrides}: cannot be read as text ({error}); give the path of a YAML file") from error
    return sealed(apply_overrides(_shipped(), text, name=str(overrides)))


@cache
def _shipped() -> Tables:
    return sealed(
        Tables(
            xids=read_xids(_text("xid.csv")),
            sxids=read_sxids(_text("sxid.csv")),
            faults=_faults(),
            diagnosis=read_diagnosis(_text("diagnosis.csv")),
            digest="",
        )
    )


def _faults() -> dict[str, FaultRow]:
    rows: dict[str, FaultRow] = {}
    for name in FAULTS:
        for code, row in read_faults(_text(name), name).items():
            if code in rows:
                raise BadInput(f"{name}: {code} is in another file already; keep one row")
            rows[code] = row
    return rows


def _text(name: str) -> str:
    return shipped(name)


def sealed(tables: Tables) -> Tables:
    """With the digest of what the rows say, in an order that does not depend on the files."""
    rows = sorted(tables.meanings(), key=lambda row: row.code)
    said = msgspec.json.encode([rows, tables.diagnosis], order="sorted")
    import hashlib  # here: it maps a library of megabytes, and who only reads a log needs none of it

    return msgspec.structs.replace(tables, digest=hashlib.sha256(said).hexdigest()[:12])


def read_xids(text: str, name: str = "xid.csv") -> dict[int, XidRow]:
    def one(row: Row, where: str) -> XidRow:
        number = _number(row, "xid", where)
        return XidRow(
            **_meaning(row, where, f"xid.{number}"),
            number=number,
            mnemonic=row["mnemonic"],
            kind=row["kind"],
            positions={column: row[column] for column in XID_POSITIONS},
            notes=row["notes"],
        )

    columns = ("xid", "mnemonic", "kind", *XID_POSITIONS, "notes", "cancels", *MEANING)
    return {row.number: row for row in _unique(text, name, columns, one)}


def read_sxids(text: str, name: str = "sxid.csv") -> dict[int, SxidRow]:
    def one(row: Row, where: str) -> SxidRow:
        number = _number(row, "sxid", where)
        return SxidRow(
            **_meaning(row, where, f"sxid.{number}"),
            number=number,
            mnemonic=row["mnemonic"],
            positions={column: row[column] for column in SXID_POSITIONS},
            notes=row["notes"],
        )

    columns = ("sxid", "mnemonic", *SXID_POSITIONS, "notes", "cancels", *MEANING)
    return {row.number: row for row in _unique(text, name, columns, one)}


def read_faults(text: str, name: str = "faults.csv") -> dict[str, FaultRow]:
    def one(row: Row, where: str) -> FaultRow:
        return FaultRow(**_meaning(row, where, _given(row, "code", where)))

    return {row.code: row for row in _unique(text, name, ("code", *MEANING), one)}


def read_diagnosis(text: str, name: str = "diagnosis.csv") -> tuple[DiagnosisRule, ...]:
    rules: dict[str, DiagnosisRule] = {}
    for where, row in _rows(text, name, DIAGNOSIS):
        rule = DiagnosisRule(
            name=_given(row, "name", where),
            rank=_number(row, "rank", where),
            pattern=_pattern(row, where),
            words=tuple(word for word in row["words"].split("|") if word),
            restart=_yes(row, "restart", where),
            because=_given(row, "because", where),
            source=_given(row, "source", where),
        )
        if rule.name in rules:
            raise BadInput(f"{where}: {rule.name} is there twice; keep one row")
        rules[rule.name] = rule
    return tuple(rules.values())


def _rows(text: str, name: str, columns: tuple[str, ...]) -> Iterator[tuple[str, Row]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    for column in columns:
        if column not in (reader.fieldnames or ()):
            raise BadInput(f"{name} line 1: column {column} is missing; write {', '.join(columns)}")
    try:
        for row in reader:
            where = f"{name} line {reader.line_num}"
            if None in row or None in row.values():
                raise BadInput(f"{where}: write {len(reader.fieldnames or ())} fields, quoting those with a comma")
            yield where, row
    except csv.Error as error:
        raise BadInput(f"{name} line {reader.line_num}: not CSV ({error})") from error


def _unique(text: str, name: str, columns: tuple[str, ...], one: Callable[[Row, str], Known]) -> list[Known]:
    found: dict[str, Known] = {}
    for where, row in _rows(text, name, columns):
        meaning = one(row, where)
        if meaning.code in found:
            raise BadInput(f"{where}: {meaning.code} is there twice; keep one row")
        # The class is written out so that people can read it; two truths about one row would be worse than none.
        monitor = meaning.fault().monitor_class
        if meaning.monitor != monitor:
            raise BadInput(f"{where}: class {meaning.monitor or 'is empty'}; write {monitor}")
        found[meaning.code] = meaning
    return list(found.values())


def _meaning(row: Row, where: str, code: str) -> dict[str, Any]:
    return {
        "code": code,
        "component": _given(row, "component", where),
        "severity": _word(Severity, row["severity"], "severity", where),
        "scope": _word(Scope, row["scope"], "scope", where),
        "remedy": _word(Remedy, row["remedy"], "remedy", where),
        "because": _given(row, "because", where),
        "source": _given(row, "source", where),
        "monitor": row["class"],
        "cancels": tuple(row.get("cancels", "").split()),
    }


def _word(kind: type[Word], text: str, column: str, where: str) -> Word:
    try:
        return kind(text)
    except ValueError:
        raise BadInput(f"{where}: {column} '{text}' is not known; write one of {', '.join(kind)}") from None


def _given(row: Row, column: str, where: str) -> str:
    if not row[column].strip():
        raise BadInput(f"{where}: {column} is empty; every row says it")
    return row[column]


def _number(row: Row, column: str, where: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", row[column]):
        raise BadInput(f"{where}: {column} '{row[column]}' is no number; write digits")
    return int(row[column])


def _yes(row: Row, column: str, where: str) -> bool:
    if row[column] not in {"yes", "no"}:
        raise BadInput(f"{where}: {column} '{row[column]}'; write yes or no")
    return row[column] == "yes"


def _pattern(row: Row, where: str) -> str:
    try:
        re.compile(_given(row, "pattern", where))
    except re.error as error:
        raise BadInput(f"{where}: pattern is no regular expression ({error})") from error
    return row["pattern"]
