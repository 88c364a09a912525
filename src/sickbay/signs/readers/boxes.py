"""Tables in a box of `+`, `-` and `|`, and those of two columns whose text goes on in the rows below."""

from typing import NamedTuple

ROWS = 400  # of one entry


def cells(line: str) -> list[str] | None:
    """The cells of a row in a box, as they are padded; None if it is no row. A paste may have lost its last border."""
    text = line.strip()
    if len(text) < 3 or text[0] != "|" or "|" not in text[1:-1]:
        return None
    return text[1:].removesuffix("|").split("|")


def ruler(line: str) -> bool:
    text = line.strip()
    return len(text) > 2 and text[0] == "+" and set(text) <= set("+-=")


class Entry(NamedTuple):
    """A row with a left cell, and the right cells of the rows below it that have none, each with its line."""

    left: str
    right: list[tuple[int, str]]


class TwoColumns:
    """Collects rows into entries."""

    def __init__(self) -> None:
        self._entry: Entry | None = None

    def row(self, number: int, left: str, right: str) -> Entry | None:
        """The entry that this row ended."""
        if left:
            ended, self._entry = self._entry, Entry(left, [(number, right)])
            return ended
        if self._entry is not None and len(self._entry.right) < ROWS:
            self._entry.right.append((number, right))
        return None

    def over(self) -> Entry | None:
        ended, self._entry = self._entry, None
        return ended
