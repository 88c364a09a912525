"""The operator's word over the shipped tables: a YAML list of what a code means at this site.

    - code: xid.63
      remedy: reset_gpu
      because: our fleet is A100, where pending remaps have bitten us

A number that the tables do not have may be added in the same way, so that a new driver need not wait for a release.
"""

import re
from enum import StrEnum
from typing import TypeVar

import yaml
from msgspec.structs import replace

from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy, Scope, Severity
from sickbay.model.tables import FaultRow, Meaning, SxidRow, Tables, XidRow

KEYS = ("code", "remedy", "severity", "scope", "because")
EXAMPLE = "- {code: xid.63, remedy: reset_gpu, because: why}"

Word = TypeVar("Word", bound=StrEnum)
Entry = dict[str, tuple[str, int]]  # key → value and its line


def apply_overrides(tables: Tables, text: str, *, name: str) -> Tables:
    xids, sxids, faults = dict(tables.xids), dict(tables.sxids), dict(tables.faults)
    seen: set[str] = set()
    for line, entry in _entries(text, name):
        code, at = _required(entry, "code", line, name)
        if code in seen:
            raise BadInput(f"{name} line {at}: {code} is there twice; keep one entry")
        seen.add(code)
        match _changed(_row_of(code, tables, f"{name} line {at}"), entry, line, name):
            case XidRow() as row:
                xids[row.number] = row
            case SxidRow() as row:
                sxids[row.number] = row
            case FaultRow() as row:
                faults[row.code] = row
    return replace(tables, xids=xids, sxids=sxids, faults=faults)


def _row_of(code: str, tables: Tables, where: str) -> Meaning:
    numbered = re.fullmatch(r"(s?xid)\.([1-9][0-9]{0,5})", code)
    if numbered:
        number = int(numbered[2])
        return tables.xid(number) if numbered[1] == "xid" else tables.sxid(number)
    if code in tables.faults:
        return tables.faults[code]
    raise BadInput(f"{where}: code '{code}' is not known; write xid.N, sxid.N or one of {', '.join(tables.faults)}")


def _changed(row: Meaning, entry: Entry, line: int, name: str) -> Meaning:
    because, _ = _required(entry, "because", line, name)
    if not entry.keys() & {"remedy", "severity", "scope"}:
        raise BadInput(f"{name} line {line}: {row.code} changes nothing; write a remedy, severity or scope")
    changed = replace(
        row,
        remedy=_word(Remedy, entry, "remedy", row.remedy, name),
        severity=_word(Severity, entry, "severity", row.severity, name),
        scope=_word(Scope, entry, "scope", row.scope, name),
        because=because,
        source="operator",
        overridden=True,
    )
    return replace(changed, monitor=changed.fault().monitor_class)


def _word(kind: type[Word], entry: Entry, key: str, default: Word, name: str) -> Word:
    if key not in entry:
        return default
    text, line = entry[key]
    try:
        return kind(text)
    except ValueError:
        raise BadInput(f"{name} line {line}: {key} '{text}' is not known; write one of {', '.join(kind)}") from None


def _required(entry: Entry, key: str, line: int, name: str) -> tuple[str, int]:
    if key not in entry or not entry[key][0].strip():
        raise BadInput(f"{name} line {line}: {key} is missing; write {EXAMPLE}")
    return entry[key]


def _entries(text: str, name: str) -> list[tuple[int, Entry]]:
    """The list with the line of each entry and value: nodes know where they stand, loaded values would not."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadInput(f"{name} line {line}: not YAML ({error.problem})") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{name}: not YAML ({' '.join(str(error).split())})") from error
    if root is None:
        return []
    if not isinstance(root, yaml.SequenceNode):
        raise BadInput(f"{name} line {_line(root)}: write a list, as in {EXAMPLE}")
    return [(_line(node), _entry(node, name)) for node in root.value]


def _entry(node: yaml.Node, name: str) -> Entry:
    if not isinstance(node, yaml.MappingNode):
        raise BadInput(f"{name} line {_line(node)}: write keys and values, as in {EXAMPLE}")
    entry: Entry = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.value not in KEYS:
            shown = key.value if isinstance(key, yaml.ScalarNode) else "…"
            raise BadInput(f"{name} line {_line(key)}: key '{shown}' is not known; write {', '.join(KEYS)}")
        if not isinstance(value, yaml.ScalarNode):
            raise BadInput(f"{name} line {_line(value)}: {key.value} takes one word, no list and no mapping")
        if key.value in entry:
            raise BadInput(f"{name} line {_line(key)}: {key.value} is there twice; keep one")
        entry[key.value] = (value.value, _line(value))
    return entry


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
