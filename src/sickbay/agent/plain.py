"""Sanitizing text: what machines and users wrote goes into stories and onto terminals without its control characters.

Escape sequences would move a reader's cursor, line ends would make a second line of a story that nobody wrote, marks of
direction would turn one around, and half a surrogate cannot be sent at all. They are shown as Python writes them.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from sickbay.model.facts import Checked, Looked, RankEnded
from sickbay.model.protocol import ItemNews

_SPACES = "\t\xa0\u202f\u3000"


def plain(text: str, keep: str = "") -> str:
    """The same text where there is nothing to take out, which is nearly always."""
    return text if text.isprintable() else "".join(_shown(char, keep) for char in text)


def cleaned(news: ItemNews) -> ItemNews:
    """All of its texts plain. Those of several lines: our own checks' words, and what a rank wrote last."""
    clean: ItemNews = _cleaned(news, "\n" if isinstance(news, Checked | Looked | RankEnded) else "")
    return clean


def _shown(char: str, keep: str) -> str:
    if char.isprintable() or char in keep:
        return char
    return " " if char in _SPACES else char.encode("unicode_escape").decode("ascii")


def _cleaned(value: Any, keep: str) -> Any:
    """The value itself where nothing in it changes."""
    if isinstance(value, str):
        return plain(value, keep)
    if isinstance(value, tuple):
        clean = tuple(_cleaned(one, keep) for one in value)
        return value if all(new is old for new, old in zip(clean, value, strict=True)) else clean
    if isinstance(value, dict):
        table = {name: _cleaned(one, keep) for name, one in value.items()}
        return value if all(table[name] is one for name, one in value.items()) else table
    if isinstance(value, msgspec.Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in fields.items() if (new := _cleaned(old, keep)) is not old}
        return replace(value, **changed) if changed else value
    return value
