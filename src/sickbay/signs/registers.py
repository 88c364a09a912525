"""Register decoding: what the registers in an Xid's line say, by NVIDIA's decode tables.

The number alone of an NVLink Xid says little; the catalogue asks for its registers to be read (see data/SOURCES.md).
Xid 74 has seven registers whose bits are listed for Hopper; 144 to 150 name a unit, and carry an interrupt word in one
of two layouts (before and from driver branch 575) and an error status. Which branch printed a line is not in the line:
both are tried, and the unit's name decides.
"""

import re
from collections.abc import Iterable
from functools import cache

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.fault import Remedy, highest
from sickbay.model.noun import Noun
from sickbay.model.sign import Fields

NVLINK5 = range(144, 151)
COLUMNS = ("xid", "unit", "field", "pattern", "condition", "error_status", "action_or_class", "severity_hwsw", "notes")
ACTIONS = ("IGNORE", "RESET_GPU", "XID_154_EVAL")
# What each class of bit of Xid 74 asks for. The bits are Hopper's, and a line does not name its generation: what is
# harmless there is watched, never dismissed. Where NVIDIA's table only says when to report a bit (if it repeats, if
# nothing else explains it), the line still tells of a fatal error, and a link that had one does not come back alone.
CLASSES: dict[str, Remedy] = {
    "ignore": Remedy.WATCH,
    "secondary": Remedy.RESET_GPU,
    "repeat_only": Remedy.RESET_GPU,
    "ecc_threshold": Remedy.WATCH,
    "hardware_ecc_parity": Remedy.RESET_GPU,
    "possible_hardware": Remedy.RESET_GPU,
    "signal_integrity": Remedy.RESET_GPU,
    "secondary_fabric_reset": Remedy.RESET_GPU,
    "unexpected": Remedy.RESET_GPU,
}
OTHER_BIT = "unlisted"


class BitRow(Noun):
    """Bits of one register of Xid 74."""

    register: int
    bits: frozenset[int]
    named: str


class UnitRow(Noun):
    """One meaning of the interrupt word and the error status of an NVLink 5 Xid."""

    xid: int
    units: tuple[str, ...]
    old: int  # the lowest ten bits before branch 575
    new: int  # the lowest seven bits since
    reason: int
    statuses: frozenset[int]  # none: any
    action: str
    next_step: str
    severity: str
    promotable: bool


_OLD = re.compile(r"v1\[9:0\]=([01]{10}) \(<R575\) v2\[6:0\]=([01]{7}) \(>=R575\)")
_REASON = re.compile(r"reason\[25:20\]=([01]{6})")
_STATUS = re.compile(r"0x[0-9a-fA-F]{1,8}(?:/0x[0-9a-fA-F]{1,8})*")
_BITS = re.compile(r"bits (\d{1,2}(?:,\d{1,2})*)")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_REGISTERS = re.compile(r"[(\[]\s*(0x[0-9a-fA-F]{1,16}(?:[\s,]{1,4}0x[0-9a-fA-F]{1,16}){0,11})\s*[)\]]?")
_UNIT = re.compile(
    r"(?P<unit>[A-Z][A-Za-z0-9_]{2,30}(?: [Dd]egraded)?)\s+(?P<word>Fatal|Non-?fatal|FATAL|NON_?FATAL)\b"
)


class Decode(Noun):
    bits: tuple[BitRow, ...]
    units: tuple[UnitRow, ...]


@cache
def _shipped() -> Decode:
    return read_decode()


def read_decode(text: str | None = None, name: str = "xid_decode.csv") -> Decode:
    """The rows that a machine can apply: bits of 74 and the units of 144 to 150. The others are for people."""
    rows = read_table(name, COLUMNS, _decode_row, text)
    return Decode(
        bits=tuple(row for row in rows if isinstance(row, BitRow)),
        units=tuple(row for row in rows if isinstance(row, UnitRow)),
    )


def _decode_row(row: TableRow) -> BitRow | UnitRow | None:
    xid = row.whole("xid")
    if row["field"].startswith("reg"):
        return _bit_row(row)
    return _unit_row(row, xid) if row["field"] == "intrInfo" else None


def _bit_row(row: TableRow) -> BitRow:
    found = _BITS.fullmatch(row["pattern"])
    if not found or row["field"][3:] not in "1234567" or row["action_or_class"] not in CLASSES:
        raise row.wrong(f"write reg1 to reg7, 'bits 1,2' and one of {', '.join(CLASSES)}")
    listed = frozenset(int(bit) for bit in found[1].split(","))
    return BitRow(register=int(row["field"][3:]), bits=listed, named=row["action_or_class"])


def _unit_row(row: TableRow, xid: int) -> UnitRow:
    layouts, reason = _OLD.fullmatch(row["pattern"]), _REASON.fullmatch(row["condition"])
    if not layouts or not reason or (row["error_status"] and not _STATUS.fullmatch(row["error_status"])):
        raise row.wrong("write 'v1[9:0]=… (<R575) v2[6:0]=… (>=R575)', 'reason[25:20]=…' and a hex status or none")
    if row["action_or_class"] not in ACTIONS:
        raise row.wrong(f"action '{row['action_or_class']}' is not known; write one of {', '.join(ACTIONS)}")
    return UnitRow(
        xid=xid, units=tuple(_plain(unit) for unit in row["unit"].split("/")), old=int(layouts[1], 2),
        new=int(layouts[2], 2), reason=int(reason[1], 2),
        statuses=frozenset(int(word, 16) for word in row["error_status"].split("/") if word),
        action=row["action_or_class"], next_step=row["nvidia_investigatory"], severity=row["severity_hwsw"],
        promotable="promoted" in row["notes"],
    )  # fmt: skip


def decode(number: int, text: str) -> Fields:
    """`resolution`, `unit`, `why` as far as the line's own registers tell; nothing where they tell nothing."""
    if number == 74:
        return _bits(text)
    if number in NVLINK5:
        return _unit(number, text)
    return {}


def registers(text: str) -> tuple[int, ...]:
    """The words in the line's last brackets."""
    found = list(_REGISTERS.finditer(text))
    return tuple(int(word, 16) for word in _HEX.findall(found[-1][1])) if found else ()


def _bits(text: str) -> Fields:
    words = registers(text)
    named: dict[str, str] = {}
    for index, word in enumerate(words[:7], 1):
        rows = [row for row in _shipped().bits if row.register == index]
        for bit in range(32):
            if rows and word >> bit & 1:
                name = next((row.named for row in rows if bit in row.bits), OTHER_BIT)
                named.setdefault(name, f"bit {bit} of register {index}")
    if not named:
        return {}
    gravest = max(named, key=lambda name: CLASSES.get(name, Remedy.RESET_GPU).rank)
    told = f"{named[gravest]} is {gravest.replace('_', ' ')} by NVIDIA's table for Hopper"
    return {"resolution": CLASSES.get(gravest, Remedy.RESET_GPU).value, "why": told}


def _unit(number: int, text: str) -> Fields:
    found = _UNIT.search(text)
    unit, word = (_plain(found["unit"]), found["word"]) if found else ("", "")
    fields: Fields = {"unit": found["unit"]} if found else {}
    if word:
        fields["severity"] = "fatal" if word.lower() == "fatal" else "nonfatal"
    words = registers(text)
    if not words:
        return fields
    info, status = words[0], words[1] if len(words) > 1 else 0
    rows = [row for row in _shipped().units if row.xid == number and _speaks_of(row, unit)]
    for low, wanted in ((info & 0x3FF, "old"), (info & 0x7F, "new")):
        laid = [row for row in rows if getattr(row, wanted) == low and row.reason == info >> 20 & 0x3F]
        if meant := _by_status(laid, status):
            return fields | _resolved(meant, word, status)
    return fields


def _speaks_of(row: UnitRow, unit: str) -> bool:
    return not unit or unit in row.units or all(unit != known for other in _shipped().units for known in other.units)


def _by_status(rows: list[UnitRow], status: int) -> list[UnitRow]:
    exact = [row for row in rows if not row.statuses or status in row.statuses]
    if exact:
        return exact[:1]
    # Most units set one bit per error, and several may be set at once.
    if all(word & (word - 1) == 0 for row in rows for word in row.statuses):
        return [row for row in rows if any(word & status for word in row.statuses)]
    return []


def _resolved(rows: Iterable[UnitRow], word: str, status: int) -> Fields:
    gravest = max(rows, key=lambda row: _remedy(row, word).rank)
    remedy = _remedy(gravest, word)
    unit = gravest.units[-1].upper()
    why = f"{unit} with status 0x{status:08x} is {gravest.severity} and {gravest.action} by NVIDIA's table"
    if gravest.action == "XID_154_EVAL":
        why += "; Xid 154 says what to do"
    elif remedy is Remedy.RESET_GPU and gravest.action == "IGNORE":
        why += "; raised, as the driver calls it fatal"
    elif bool(word) and (word.lower() == "fatal") != ("non-fatal" not in gravest.severity.lower()):
        why += f"; the driver itself calls it {word.lower()}"
    if gravest.next_step not in {"", "IGNORE"}:
        why += f"; then {gravest.next_step.lower().replace('_', ' ')}"
    return {"resolution": remedy.value, "why": why}


def _remedy(row: UnitRow, word: str) -> Remedy:
    if row.action == "RESET_GPU":
        return Remedy.RESET_GPU
    if row.promotable and word.lower() == "fatal":
        return Remedy.RESET_GPU
    harmless = row.action == "IGNORE" and row.next_step == "IGNORE"
    return highest(Remedy.NONE if harmless else Remedy.WATCH)


def _plain(unit: str) -> str:
    return unit.strip().lower().replace(" ", "_")
