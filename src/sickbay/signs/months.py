"""Names of months, as the C libraries' locales write them."""

import csv
from functools import cache

from sickbay.knowledge.shipped import shipped


@cache
def _months() -> dict[str, int]:
    text = shipped("months.csv")
    rows = csv.DictReader(text.splitlines())
    return {name: int(row["month"]) for row in rows for name in row["names"].split()}


def month_of(word: str) -> int:
    """1 to 12; 0 for a word that is no month in any language known here."""
    return _months().get(word.lower().rstrip("."), 0)
