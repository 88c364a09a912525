"""Structural diff of policies: as plain data and as YAML, and what differs between two of them, path by path."""

from datetime import datetime, timedelta
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import msgspec
import yaml

from sickbay.model.durations import format_duration
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy

# What makes two items of a list "the same rule, changed" rather than two rules.
_NAMED_BY = {
    "faults": ("match",),
    "ladders": ("match",),
    "rungs": ("do",),
    "strikes": ("first", "needs_human"),
    "examine": ("on",),
    "limits": ("pool",),
    "brakes": ("scope", "signature"),
    "windows": ("pool",),
    "withhold": ("id",),
    "notify": ("events", "severity", "pool"),
}
_WORDS = frozenset({"name", "about", "why"})


class PolicyChange(NamedTuple):
    path: str
    change: str  # changed | added | removed
    a: Any = None
    b: Any = None


def effective(policy: Policy, *, seconds: bool = False) -> dict[str, Any]:
    """Every setting, those that were left out too. Durations as people write them, or as seconds."""
    plain: dict[str, Any] = _plain(policy, seconds=seconds)
    return plain


def to_yaml(policy: Policy) -> str:
    """YAML that `parse_policy` reads back to an equal policy."""
    return yaml.safe_dump(effective(policy), sort_keys=False, allow_unicode=True, width=110)


def _plain(value: Any, *, seconds: bool) -> Any:
    if isinstance(value, Noun):
        fields = msgspec.structs.fields(value)
        return {field.name: _plain(getattr(value, field.name), seconds=seconds) for field in fields}
    if isinstance(value, dict):
        return {str(key): _plain(item, seconds=seconds) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item, seconds=seconds) for item in value]
    if isinstance(value, timedelta):
        return value.total_seconds() if seconds else format_duration(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, str) else value


def diff(a: Policy, b: Policy, *, seconds: bool = False) -> list[PolicyChange]:
    """What a reader of `a` must change to get `b`. Names and reasons are not what a policy does: left out."""
    left, right = effective(a, seconds=seconds), effective(b, seconds=seconds)
    return [change for key in left if key not in _WORDS for change in _compare(key, left[key], right[key])]


def _compare(path: str, a: Any, b: Any) -> list[PolicyChange]:
    if a == b:
        return []
    if isinstance(a, dict) and isinstance(b, dict):
        changes = []
        for key in [*a, *(key for key in b if key not in a)]:
            at = f"{path}.{key}"
            if key in _WORDS:
                continue
            if key not in b:
                changes.append(PolicyChange(at, "removed", a=a[key]))
            elif key not in a:
                changes.append(PolicyChange(at, "added", b=b[key]))
            else:
                changes += _compare(at, a[key], b[key])
        return changes
    name = path.rsplit(".", 1)[-1]
    if isinstance(a, list) and isinstance(b, list) and name in _NAMED_BY:
        return _compare_rules(path, _NAMED_BY[name], a, b)
    return [PolicyChange(path, "changed", a, b)]


def _compare_rules(path: str, named_by: tuple[str, ...], a: list[Any], b: list[Any]) -> list[PolicyChange]:
    names = [[_name(item, named_by) for item in side] for side in (a, b)]
    changes: list[PolicyChange] = []
    for what, a1, a2, b1, b2 in SequenceMatcher(None, names[0], names[1], autojunk=False).get_opcodes():
        if what == "equal":
            for n, (old, new) in enumerate(zip(a[a1:a2], b[b1:b2], strict=True)):
                changes += _compare(f"{path}[{names[0][a1 + n]}]", old, new)
            continue
        changes += [PolicyChange(f"{path}[{names[0][n]}]", "removed", a=a[n]) for n in range(a1, a2)]
        changes += [PolicyChange(f"{path}[{names[1][n]}]", "added", b=b[n]) for n in range(b1, b2)]
    return changes


def _name(item: dict[str, Any], named_by: tuple[str, ...]) -> str:
    said = []
    for key in named_by:
        value = item[key]
        if key == "match":
            told = [_words(part) for name, part in value.items() if part not in ("*", [])]
            said.append(" ".join(told) or "everything")
        elif value not in (None, False):
            said.append(key if value is True else _words(value))
    return " ".join(said)


def _words(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def in_words(change: PolicyChange, a: str, b: str) -> str:
    """One line for people; `a` and `b` are what the two policies are called."""
    match change.change:
        case "added":
            return f"{change.path}: only in {b}: {_brief(change.b)}"
        case "removed":
            return f"{change.path}: only in {a}: {_brief(change.a)}"
        case _:
            return f"{change.path}: {_brief(change.a)} in {a}, {_brief(change.b)} in {b}"


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        told = [
            f"{k} {_brief(v)}"
            for k, v in value.items()
            if k not in {"match", "why"} and v not in (None, [], False, "*")
        ]
        return ", ".join(told) or "no settings"
    if isinstance(value, list):
        return "[" + ("; " if any(isinstance(v, dict) for v in value) else ", ").join(_brief(v) for v in value) + "]"
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if value != "" else "''"
