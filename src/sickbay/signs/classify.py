"""Observation → fault. Everything it knows is in the tables; the text of an observation is evidence only."""

from msgspec.structs import replace

from sickbay.model.facts import Observed
from sickbay.model.fault import Fault, Remedy, Severity
from sickbay.model.tables import Meaning, Tables

ADVISER = 154  # no fault of its own: the driver's word on the one before it
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
    row = tables.xid(number)
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
    row = tables.sxid(number)
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


def _fault(row: Meaning, seen: Observed) -> Fault:
    return row.fault(seen.text, _whole(seen, "device"))


def _remedy(seen: Observed, field: str) -> Remedy | None:
    return next((remedy for remedy in Remedy if remedy == seen.fields.get(field)), None)


def _whole(seen: Observed, field: str) -> int | None:
    """A field as a whole number; senders may write it as text. Nonsense is the same as absence."""
    value = str(seen.fields.get(field, ""))
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None
