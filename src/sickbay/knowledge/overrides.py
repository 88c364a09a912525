"""The operator's word over the shipped tables: a YAML list of what a code means at this site.

    - code: xid.63
      remedy: reset_gpu
      because: our fleet is A100, where pending remaps have bitten us

A number that the tables do not have may be added in the same way, so that a new driver need not wait for a release.
"""

import re

from msgspec import inspect as mi
from msgspec.structs import replace

from sickbay.knowledge.yaml_places import YamlReader, compose, converted
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy, Scope, Severity
from sickbay.model.noun import Noun
from sickbay.model.tables import FaultRow, Meaning, SxidRow, Tables, XidRow


class Override(Noun, forbid_unknown_fields=True):
    """What a code means at this site."""

    code: str
    because: str
    remedy: Remedy | None = None
    severity: Severity | None = None
    scope: Scope | None = None


def apply_overrides(tables: Tables, text: str, *, name: str) -> Tables:
    """Raises BadInput with the place of what cannot be meant."""
    xids, sxids, faults = dict(tables.xids), dict(tables.sxids), dict(tables.faults)
    seen: set[str] = set()
    for where, entry in _entries(text, name):
        if entry.code in seen:
            raise BadInput(f"{where}: {entry.code} is there twice: keep one entry")
        seen.add(entry.code)
        match _changed(_row_of(entry.code, tables, where), entry, where):
            case XidRow() as row:
                xids[row.number] = row
            case SxidRow() as row:
                sxids[row.number] = row
            case FaultRow() as row:
                faults[row.code] = row
    return replace(tables, xids=xids, sxids=sxids, faults=faults)


def _entries(text: str, name: str) -> list[tuple[str, Override]]:
    """Each entry with its place."""
    reader, kind = YamlReader(name), tuple[Override, ...]
    node = compose(text, name)
    if node is None:
        return []
    entries: tuple[Override, ...] = converted(reader.read(node, mi.type_info(kind), ()), kind, reader.places)
    return [(str(reader.places[number, "code"]), entry) for number, entry in enumerate(entries)]


def _row_of(code: str, tables: Tables, where: str) -> Meaning:
    numbered = re.fullmatch(r"(s?xid)\.([1-9][0-9]{0,5})", code)
    if numbered:
        number = int(numbered[2])
        return tables.xid(number) if numbered[1] == "xid" else tables.sxid(number)
    if code in tables.faults:
        return tables.faults[code]
    raise BadInput(f"{where}: code '{code}' is not known; write xid.N, sxid.N or one of {', '.join(tables.faults)}")


def _changed(row: Meaning, entry: Override, where: str) -> Meaning:
    if not entry.because.strip():
        raise BadInput(f"{where}: because is empty: write why {row.code} means something else here")
    given = {"remedy": entry.remedy, "severity": entry.severity, "scope": entry.scope}
    changes = {name: value for name, value in given.items() if value is not None}
    if not changes:
        raise BadInput(f"{where}: {row.code} changes nothing: write a remedy, severity or scope")
    changed = replace(row, because=entry.because, source="operator", overridden=True, **changes)
    return replace(changed, monitor=changed.fault().monitor_class)
