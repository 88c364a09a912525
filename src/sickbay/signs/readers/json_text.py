"""JSON that stands over many lines → one value; whatever only looks like it is given back as lines."""

import re
from typing import Any

import msgspec

from sickbay.model.noun import Noun

LARGEST = 16 * 1024 * 1024
OF_A_LINE = 100  # what a line costs beside its text

_BEGINS = re.compile(r"\s*(?:\{\s*(?:\"|$)|\[\s*(?:[{\[]|$))")
# Every line of pretty-printed JSON begins with one of these; C, Python and shell soon have a line that does not.
_GOES_ON = re.compile(r"\s*(?:[\]}\[{,:]|\"|-?\d|true\b|false\b|null\b|NaN\b|-?Infinity\b|$)")
_MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')


class Whole(Noun):
    """A value with the line that it began in."""

    number: int
    value: Any


Line = tuple[int, str, str]  # number, as the kernel's reader wants it, as the others do


class JsonText:
    """Give it each line: it keeps what may be a document, and says when it is one or is none."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._largest = largest
        self._kept: list[Line] = []
        self._size = 0
        self._depth = 0

    @property
    def open(self) -> bool:
        return bool(self._kept)

    def take(self, line: Line) -> tuple[Whole | None, list[Line]]:
        """A value that ended here, and the lines that nobody has read: all of a value's own, or what was none."""
        text = line[2]
        if not self._kept and not _BEGINS.match(text):
            return None, [line]
        fits = self._size + len(text) <= self._largest and (not self._kept or _GOES_ON.match(text) is not None)
        self._kept.append(line)
        self._size += len(text) + OF_A_LINE
        if not fits:
            return None, self.give_back()
        for mark in _MARKS.finditer(text):
            self._depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(mark[0], 0)
        if self._depth > 0:
            return None, []
        kept = self.give_back()
        value = _decoded("\n".join(text for _, _, text in kept))
        return (None if value is None else Whole(number=kept[0][0], value=value)), kept

    def give_back(self) -> list[Line]:
        kept, self._kept, self._size, self._depth = self._kept, [], 0, 0
        return kept


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
