"""Observation → fault. Everything it knows is in the tables; the text of an observation is evidence only."""

from msgspec.structs import replace

from sickbay.model.facts import Observed
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.tables import Meaning, SxidRow, Tables, XidRow

ADVISER = 154  # no fault of its own: the driver's word on the one before it
UNLISTED = "not in the table"
FATAL_WORD, NONFATAL_WORD = "fatal", "nonfatal"


def classify(seen: Observed, tables: Tables) -> Fault | None:
    """What the observation means; None if its kind is no fault (a step, an announced end)."""
    match seen.kind:
        case "xid":
            return _xid(seen, tables)
        case "sxid":
            return _sxid(seen, tables)
        case code:
            row = tables.faults.get(code)  # node.lost, check.failed …
            return None if row is None else _fault(row, seen)


def _xid(seen: Observed, tables: Tables) -> Fault:
    number = _whole(seen, "number")
    row = (tables.xids.get(number) if number is not None else None) or unlisted_xid(number)
    fault = _fault(row, seen)
    follows = _whole(seen, "follows")
    fault = replace(fault, follows="" if follows is None else f"xid.{follows}")
    if number == ADVISER:
        return _advised(fault, seen)
    return fault if row.overridden else _resolved(fault, seen)


def _resolved(fault: Fault, seen: Observed) -> Fault:
    """What the registers of this very line ask for outranks the row, which knows the number only."""
    remedy = _remedy(seen, "resolution")
    if remedy is None:
        return fault
    because = f"{fault.because}; here {seen.fields.get('why', 'its registers say so')}"
    if remedy is fault.remedy:
        return replace(fault, because=because)
    severity = fault.severity
    if not remedy.disrupts:
        severity = Severity.INFO if remedy is Remedy.NONE else Severity.WARNING
    elif severity not in {Severity.ERROR, Severity.FATAL}:
        severity = Severity.ERROR
    return replace(fault, remedy=remedy, severity=severity, because=because)


def _advised(fault: Fault, seen: Observed) -> Fault:
    advice = _remedy(seen, "advice")
    if advice is not None:
        return replace(fault, advice=advice)
    # The driver wants something, in words that we do not know: that is not the same as wanting nothing.
    return replace(
        fault, remedy=Remedy.WATCH, severity=Severity.WARNING, because="the driver's advice is in words not known here"
    )


def _sxid(seen: Observed, tables: Tables) -> Fault:
    number = _whole(seen, "number")
    row = (tables.sxids.get(number) if number is not None else None) or unlisted_sxid(number)
    fault = _fault(row, seen)
    word = seen.fields.get("severity")
    if row.overridden:
        return fault
    # What the driver says of this very event outranks the table, which knows the number only: several SXids are
    # fatal on one switch generation, or only when contained, and numbers moved between driver branches.
    if word == FATAL_WORD and not fault.remedy.disrupts:
        why = f"{row.because}; but the driver calls this one fatal"
        return replace(fault, remedy=Remedy.RESET_GPU, severity=Severity.FATAL, because=why)
    if word == NONFATAL_WORD and fault.remedy.disrupts:
        why = f"{row.because}; but the driver calls this one non-fatal"
        return replace(fault, remedy=Remedy.WATCH, severity=Severity.WARNING, because=why)
    return fault


def _fault(row: Meaning, seen: Observed | None = None) -> Fault:
    return Fault(
        code=row.code, component=row.component, severity=row.severity, scope=row.scope, remedy=row.remedy,
        because=row.because, cancels=row.cancels,
        evidence=seen.text if seen else "", device=_whole(seen, "device") if seen else None,
    )  # fmt: skip


def _remedy(seen: Observed, field: str) -> Remedy | None:
    return next((remedy for remedy in Remedy if remedy == seen.fields.get(field)), None)


def _whole(seen: Observed, field: str) -> int | None:
    """A field as a whole number; senders may write it as text. Nonsense is the same as absence."""
    value = str(seen.fields.get(field, ""))
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def unlisted_xid(number: int | None) -> XidRow:
    return XidRow(
        code=f"xid.{'unknown' if number is None else number}", number=number or 0, component="gpu",
        severity=Severity.WARNING, scope=Scope.DEVICE, remedy=Remedy.WATCH, because=UNLISTED, source="ours",
        monitor=f"XID_WARNING_{number or 0}",
    )  # fmt: skip


def unlisted_sxid(number: int | None) -> SxidRow:
    return SxidRow(
        code=f"sxid.{'unknown' if number is None else number}", number=number or 0, component="nvswitch",
        severity=Severity.WARNING, scope=Scope.FABRIC, remedy=Remedy.WATCH, because=UNLISTED, source="ours",
        monitor="GPU_HEALTH_WARNING",
    )  # fmt: skip


def monitor_class(fault: Fault) -> str:
    """The fault in the EKS monitor's words. Total: every fault, also one of a code that no table has.

    - nothing to worry about → HEALTHY
    - component `memory` → ECC_ERROR, whatever its severity: that monitor has one word for all memory errors,
      so a recorded row remap (63) and an uncontained error (95) share it
    - other Xids → XID_CRITICAL_n from severity error on, else XID_WARNING_n; 154 by what the driver advises
    - everything else → GPU_HEALTH_ERROR from severity error on, else GPU_HEALTH_WARNING
    """
    advised = fault.advice or Remedy.NONE
    grave = fault.severity in {Severity.ERROR, Severity.FATAL} or advised.disrupts
    if fault.severity is Severity.INFO and advised is Remedy.NONE:
        return "HEALTHY"
    if fault.component == "memory":
        return "ECC_ERROR"
    if fault.code.startswith("xid."):
        number = fault.code.removeprefix("xid.")
        return f"XID_{'CRITICAL' if grave else 'WARNING'}_{number if number.isdigit() else 0}"
    return "GPU_HEALTH_ERROR" if grave else "GPU_HEALTH_WARNING"


def monitor_class_of(row: Meaning) -> str:
    """The class of a row before any observation of it."""
    return monitor_class(_fault(row))
