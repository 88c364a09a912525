"""docs/policy.md names every setting with its default."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as mi
from tests.support.cases import one_by_one

from sickbay.model.durations import format_duration
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.load import default_of, shipped

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
_SECTIONS = {"Policy": "The file", "Match": "`match`"}


def _nouns(kind: mi.Type, title: str, found: dict[type, str]) -> dict[type, str]:
    """Every noun that a policy is made of, and the heading that it is described under."""
    match kind:
        case mi.StructType() if kind.cls not in found:
            title = _SECTIONS.get(kind.cls.__name__, title)
            found[kind.cls] = title
            for field in kind.fields:
                inside = "" if kind.cls is Policy else f"{title.strip('`')}[]."
                _nouns(field.type, f"`{inside}{field.name}`", found)
        case mi.VarTupleType():
            _nouns(kind.item_type, title, found)
        case mi.UnionType():
            for one in kind.types:
                _nouns(one, title, found)
    return found


def _shown(value: Any) -> str:
    match value:
        case msgspec.NODEFAULT:
            return "required"
        case None:
            return "not set"
        case "":
            return "empty"
        case bool():
            return f"`{str(value).lower()}`"
        case timedelta():
            return f"`{format_duration(value)}`"
        case float():
            return f"`{value:g}`"
        case tuple() if value and isinstance(value[0], Noun):
            return "one, defaults below"
        case tuple():
            return "`[" + ", ".join('"*"' if item == "*" else str(item) for item in value) + "]`"
        case Noun():
            return "everything" if type(value).__name__ == "Match" else "defaults below"
        case _:
            return f"`{value}`"


_SETTINGS = [
    (title, field.name, _shown(default_of(field)))
    for noun, title in _nouns(mi.type_info(Policy), "", {}).items()
    for field in msgspec.structs.fields(noun)
]


@one_by_one(("title", "name", "default"), _SETTINGS, ids=[f"{t} {n}" for t, n, _ in _SETTINGS])
def test_every_setting_is_documented_with_its_default(title: str, name: str, default: str) -> None:
    sections = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert title in sections
    row = re.search(rf"^\| `{name}` \| (.*?) \| (.+) \|$", sections[title], re.MULTILINE)
    assert row is not None, f"docs/policy.md, section {title}: no row for `{name}`"
    assert row[1] == default
    assert len(row[2]) > 4


def test_no_setting_is_documented_that_does_not_exist() -> None:
    known = {name for _, name, _ in _SETTINGS} | set(shipped())
    assert set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)) <= known


def test_every_shipped_policy_is_documented() -> None:
    assert all(f"| `{name}` |" in PAGE for name in shipped())
