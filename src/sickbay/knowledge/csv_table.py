"""The CSV reader of all tables: every row is checked, and every mistake is told with its file, line and column."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from importlib import import_module
from typing import Any, TypeVar

from sickbay.model.errors import BadInput

Made = TypeVar("Made")
Word = TypeVar("Word", bound=StrEnum)
NO_SHORTHANDS: Mapping[str, str] = {}


class TableRow:
    """The cells of one row by their columns. What it is asked for is there and well formed, or it raises BadInput."""

    __slots__ = ("cells", "where")

    def __init__(self, cells: Mapping[str, str], where: str) -> None:
        self.cells = cells
        self.where = where

    def __getitem__(self, column: str) -> str:
        return self.cells[column]

    def wrong(self, what: str) -> BadInput:
        return BadInput(f"{self.where}: {what}")

    def given(self, column: str) -> str:
        if not self.cells[column].strip():
            raise self.wrong(f"{column} is empty; every row says it")
        return self.cells[column]

    def whole(self, column: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", self.cells[column]):
            raise self.wrong(f"{column} '{self.cells[column]}' is no number; write digits")
        return int(self.cells[column])

    def number(self, column: str) -> float:
        if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", self.cells[column]):
            raise self.wrong(f"{column} '{self.cells[column]}' is no number; write digits")
        return float(self.cells[column])

    def yes(self, column: str) -> bool:
        if self.cells[column] not in {"yes", "no"}:
            raise self.wrong(f"{column} '{self.cells[column]}'; write yes or no")
        return self.cells[column] == "yes"

    def word(self, column: str, kind: type[Word]) -> Word:
        try:
            return kind(self.cells[column])
        except ValueError:
            known = ", ".join(kind)
            raise self.wrong(f"{column} '{self.cells[column]}' is not known; write one of {known}") from None

    def expanded(self, column: str, shorthands: Mapping[str, str]) -> str:
        """The cell with what its shorthands stand for, such as %pci%."""
        text = self.given(column)
        for short, meaning in shorthands.items():
            text = text.replace(short, meaning)
        return text

    def pattern(self, column: str, flags: int = 0, shorthands: Mapping[str, str] = NO_SHORTHANDS) -> re.Pattern[str]:
        try:
            return re.compile(self.expanded(column, shorthands), flags)
        except re.error as error:
            raise self.wrong(f"{column} is no regular expression ({error})") from error


def read_table(
    name: str, columns: Sequence[str], row: Callable[[TableRow], Made], text: str | None = None
) -> list[Made]:
    """What `row` makes of each row of a table, the shipped one of that name unless there is a text. Raises BadInput."""
    reader = csv.DictReader(io.StringIO(shipped(name) if text is None else text, newline=""), strict=True)
    made = []
    try:
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise BadInput(f"{name} line 1: column {missing[0]} is missing; write {', '.join(columns)}")
        for cells in reader:
            where = f"{name} line {reader.line_num}"
            if None in cells or None in cells.values():
                raise BadInput(f"{where}: write {len(reader.fieldnames or ())} fields, quoting those with a comma")
            made.append(row(TableRow(cells, where)))
    except csv.Error as error:
        raise BadInput(f"{name} line {reader.reader.line_num}: not CSV ({error})") from error
    return made


def shipped(name: str, package: str = "sickbay.knowledge", folder: str = "data/") -> str:
    """The text of a data file, by its package's own loader.

    `importlib.resources` or `pkgutil` would bring archives and finders into every agent's memory.
    """
    module: Any = import_module(package)
    text: bytes = module.__loader__.get_data(f"{module.__path__[0]}/{folder}{name}")
    return text.decode("utf-8")
