"""The shipped data files → frozen tables. Every row is checked, because every row can take a node out of service."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy, Scope, Severity
from sickbay.model.tables import DiagnosisRule, FaultRow, Meaning, SxidRow, Tables, XidRow

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
    return sealed(Tables(xids=read_xids(), sxids=read_sxids(), faults=_faults(), diagnosis=read_diagnosis(), digest=""))


def _faults() -> dict[str, FaultRow]:
    rows: dict[str, FaultRow] = {}
    for name in FAULTS:
        for code, row in read_faults(name=name).items():
            if code in rows:
                raise BadInput(f"{name}: {code} is in another file already; keep one row")
            rows[code] = row
    return rows


def sealed(tables: Tables) -> Tables:
    """With the digest of what the rows say, in an order that does not depend on the files."""
    rows = sorted(tables.meanings(), key=lambda row: row.code)
    said = msgspec.json.encode([rows, tables.diagnosis], order="sorted")
    import hashlib  # here: it maps a library of megabytes, and who only reads a log needs none of it

    return msgspec.structs.replace(tables, digest=hashlib.sha256(said).hexdigest()[:12])


def read_xids(text: str | None = None) -> dict[int, XidRow]:
    def xid(row: TableRow) -> XidRow:
        number = row.whole("xid")
        return XidRow(
            **_meaning(row, f"xid.{number}"),
            number=number,
            mnemonic=row["mnemonic"],
            kind=row["kind"],
            positions={column: row[column] for column in XID_POSITIONS},
            notes=row["notes"],
        )

    columns = ("xid", "mnemonic", "kind", *XID_POSITIONS, "notes", "cancels", *MEANING)
    return {row.number: row for row in _unique("xid.csv", columns, xid, text)}


def read_sxids(text: str | None = None) -> dict[int, SxidRow]:
    def sxid(row: TableRow) -> SxidRow:
        number = row.whole("sxid")
        return SxidRow(
            **_meaning(row, f"sxid.{number}"),
            number=number,
            mnemonic=row["mnemonic"],
            positions={column: row[column] for column in SXID_POSITIONS},
            notes=row["notes"],
        )

    columns = ("sxid", "mnemonic", *SXID_POSITIONS, "notes", "cancels", *MEANING)
    return {row.number: row for row in _unique("sxid.csv", columns, sxid, text)}


def read_faults(text: str | None = None, name: str = "faults.csv") -> dict[str, FaultRow]:
    def fault(row: TableRow) -> FaultRow:
        return FaultRow(**_meaning(row, row.given("code")))

    return {row.code: row for row in _unique(name, ("code", *MEANING), fault, text)}


def read_diagnosis(text: str | None = None) -> tuple[DiagnosisRule, ...]:
    rules: dict[str, DiagnosisRule] = {}

    def rule(row: TableRow) -> None:
        row.pattern("pattern")
        name = row.given("name")
        if name in rules:
            raise row.wrong(f"{name} is there twice; keep one row")
        rules[name] = DiagnosisRule(
            name=name,
            rank=row.whole("rank"),
            pattern=row["pattern"],
            words=tuple(word for word in row["words"].split("|") if word),
            restart=row.yes("restart"),
            fault=row.cells.get("fault", ""),
            because=row.given("because"),
            source=row.given("source"),
        )

    read_table("diagnosis.csv", DIAGNOSIS, rule, text)
    return tuple(rules.values())


def _unique(name: str, columns: tuple[str, ...], one: Callable[[TableRow], Known], text: str | None) -> list[Known]:
    found: dict[str, Known] = {}

    def checked(row: TableRow) -> Known:
        meaning = one(row)
        if meaning.code in found:
            raise row.wrong(f"{meaning.code} is there twice; keep one row")
        # The class is written out so that people can read it; two truths about one row would be worse than none.
        monitor = meaning.fault().monitor_class
        if meaning.monitor != monitor:
            raise row.wrong(f"class {meaning.monitor or 'is empty'}; write {monitor}")
        found[meaning.code] = meaning
        return meaning

    return read_table(name, columns, checked, text)


def _meaning(row: TableRow, code: str) -> dict[str, Any]:
    return {
        "code": code,
        "component": row.given("component"),
        "severity": row.word("severity", Severity),
        "scope": row.word("scope", Scope),
        "remedy": row.word("remedy", Remedy),
        "because": row.given("because"),
        "source": row.given("source"),
        "monitor": row["class"],
        "cancels": tuple(row.cells.get("cancels", "").split()),
    }
