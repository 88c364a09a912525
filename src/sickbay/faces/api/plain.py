"""What a decoder says, as people say it."""

import re
from collections.abc import Sequence

from msgspec import inspect as mi

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


def in_words(said: str, leaf: Sequence[mi.Type]) -> str:
    """`leaf`: what is known of the place that it is about."""
    allowed = [
        str(value) for one in leaf if isinstance(one, mi.LiteralType) for value in one.values if value is not None
    ]
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
