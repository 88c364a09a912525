"""Names of months, as the C libraries' locales write them."""

from functools import cache

from sickbay.knowledge.csv_table import read_table


@cache
def _months() -> dict[str, int]:
    rows = read_table("months.csv", ("month", "names"), lambda row: (row.whole("month"), row["names"].split()))
    return {name: month for month, names in rows for name in names}


def month_of(word: str) -> int:
    """1 to 12; 0 for a word that is no month in any language known here."""
    return _months().get(word.lower().rstrip("."), 0)
