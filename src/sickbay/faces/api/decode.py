"""Validation: from bytes to nouns, strictly; what does not fit gives one line that says what to write instead."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as mi

from sickbay.faces.api.refusal import ApiRefusal
from sickbay.model.noun import Noun

Thing = TypeVar("Thing", bound=Noun)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>.*?)`(?: - at `(?P<at>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<field>.*?)`(?: - at `(?P<at>.*)`)?$", re.DOTALL)
_OTHER = re.compile(r"(?P<what>.*?)(?: - at (?P<key>key in )?`(?P<at>.*)`)?$", re.DOTALL)


def body(raw: bytes, kind: type[Thing]) -> Thing:
    """Raises ApiRefusal(400)."""
    if not raw.strip():
        raw = b"{}"  # fields that must be given are then named
    try:
        raw.decode()
        found = msgspec.json.decode(raw, type=kind)
    except UnicodeDecodeError as error:
        raise ApiRefusal(400, f"the body is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ApiRefusal(400, "the body is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise ApiRefusal(400, _line(str(error), kind)) from None
    except msgspec.DecodeError as error:
        raise ApiRefusal(400, f"the body is not JSON: {_one_line(str(error))}") from None
    return found


def query(pairs: Sequence[tuple[str, str]], kind: type[Thing]) -> Thing:
    """Raises ApiRefusal(400)."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiRefusal(400, f"{twice} is given twice: give it once")
    try:
        return msgspec.convert(dict(pairs), kind, strict=False)
    except msgspec.ValidationError as error:
        raise ApiRefusal(400, _line(str(error), kind, "parameter")) from None


def no_nul(thing: Any) -> None:
    """A NUL fits into no file name, no argument and not into every store."""
    if any("\x00" in text for text in _texts(thing)):
        raise ApiRefusal(400, "text may not contain the character NUL")


def _texts(thing: Any) -> Iterator[str]:
    match thing:
        case str():
            yield thing
        case Noun():
            yield from _texts([getattr(thing, name) for name in thing.__struct_fields__])
        case dict():
            yield from _texts([*thing.keys(), *thing.values()])
        case list() | tuple():
            for one in thing:
                yield from _texts(one)


def _line(said: str, kind: type[Noun], what: str = "field") -> str:
    if found := _UNKNOWN.match(said):
        known = _fields_at(kind, found["at"] or "$")
        name = found["field"]
        if not known:
            return f"there is no {what} {name!r}{_place(found['at'])}: this takes none"
        close = get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]}? It" if close else "it"
        return f"there is no {what} {name!r}{_place(found['at'])}: {hint} takes {', '.join(known)}"
    if found := _MISSING.match(said):
        return _missing(found["field"], _place(found["at"]), what)
    found = _OTHER.match(said)
    assert found is not None
    at = found["at"] or "$"
    leaf = [] if found["key"] else _types_at(kind, at)
    return f"{_path(at) or 'the body'}: {_in_words(_one_line(found['what']), leaf)}"


def _missing(name: str, place: str, what: str) -> str:
    if name == "reason":
        return "a reason is missing: say why, it goes into the audit log"
    return f"the {what} {name!r} is missing{place}"


def _fields_at(kind: type[Noun], at: str) -> list[str]:
    """The names that the object at this path may have; none where it cannot be told."""
    return [f.encode_name for one in _types_at(kind, at) if isinstance(one, mi.StructType) for f in one.fields]


def _types_at(kind: type[Noun], at: str) -> list[mi.Type]:
    here: list[mi.Type] = [mi.type_info(kind)]
    for step in re.findall(r"\.([\w-]+)|\[(?:\.\.\.|\d+)\]", at.removeprefix("$")):
        here = [inner for one in here for inner in _inside(one, step)]
    return [inner for one in here for inner in _plain(one)]


def _plain(kind: mi.Type) -> list[mi.Type]:
    match kind:
        case mi.UnionType():
            return [inner for one in kind.types for inner in _plain(one)]
        case mi.Metadata():
            return _plain(kind.type)
        case _:
            return [kind]


def _inside(kind: mi.Type, step: str) -> list[mi.Type]:
    match kind:
        case mi.UnionType():
            return [inner for one in kind.types for inner in _inside(one, step)]
        case mi.Metadata():
            return _inside(kind.type, step)
        case mi.StructType():
            return [f.type for f in kind.fields if f.encode_name == step]
        case mi.VarTupleType() | mi.ListType():
            return [kind.item_type]
        case _:
            return []


def _place(at: str | None) -> str:
    path = _path(at or "$")
    return f" in {path}" if path else ""


def _path(at: str) -> str:
    return at.removeprefix("$").removeprefix(".")


def _one_line(text: str) -> str:
    return " ".join(text.split())


# --- what the decoder says, as people say it

_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object {…}",
    "array": "a list […]",
    "null": "null",
}
_LENGTH = re.compile(
    r"Expected `(?P<kind>str|array|object)` of (?:at (?:least|most) )?length (?P<sign><=|>=) (?P<n>\d+)"
)
_RANGE = re.compile(r"Expected `(?P<kind>int|float)[^`]*` (?P<sign><=|>=|<|>) (?P<n>[-+.\de]+)")
_KIND = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`")
_SIGNS = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}
_UNITS = {"str": "characters", "array": "entries", "object": "entries"}


def _in_words(said: str, leaf: Sequence[mi.Type]) -> str:
    """`leaf`: what is known of the place that it is about."""
    choices: list[object] = [value for one in leaf if isinstance(one, mi.LiteralType) for value in one.values]
    choices += [value for one in leaf if isinstance(one, mi.EnumType) for value in one.cls]
    allowed = [str(value) for value in choices if value is not None]
    if allowed and "got" not in said:
        value = re.search(r"'(.*)'", said)
        return f"{value[0] if value else 'that'} is not known: write {_or(sorted(allowed))}"
    if found := _LENGTH.search(said):
        if (found["sign"], found["n"]) == (">=", "1"):
            return "it may not be empty"
        return f"it must have {_SIGNS[found['sign']]} {found['n']} {_UNITS[found['kind']]}"
    if found := _RANGE.search(said):
        return f"it must be {_KINDS[found['kind']]}, {_SIGNS[found['sign']]} {found['n']}"
    if "matching regex" in said:
        return "it must have letters, digits, _ . - only, a letter or a digit first, at most 63"
    if found := _KIND.search(said):
        wanted = [_KINDS.get(word, word) for word in found["wanted"].split(" | ") if word != "null"]
        return f"it must be {_or(wanted)}, not {_KINDS.get(found['got'], found['got'])}"
    return said


def _or(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
