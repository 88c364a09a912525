"""Dates of log lines: ISO 8601, and those that syslog, dmesg and `date` write in the words of a locale."""

import re
from datetime import UTC, datetime, timedelta, timezone
from functools import cache

from sickbay.knowledge.csv_table import read_table

NO_YEAR = 2000  # a leap year, so that 29 February is a date
CLOCK = r"\d{1,2}:\d{2}:\d{2}(?:[.,]\d{1,9})?"
ISO = rf"(?P<date>\d{{4}}-\d{{2}}-\d{{2}})(?P<gap>[T ])(?P<clock>{CLOCK})\s?(?P<zone>Z|UTC|GMT|[+-]\d{{2}}:?\d{{2}})?"
WORD = r"[^\W\d_]{2,14}\.?|\d{1,2}[月월]"
DATE = (
    rf"(?:(?:{WORD}|[^\W\d_])[,]?\s+)?"  # day of the week
    rf"(?:(?P<y0>\d{{4}})\s+)?"
    rf"(?:(?P<m1>{WORD})\s*(?P<d1>\d{{1,2}})[.,일日]?|(?P<d2>\d{{1,2}})[.]?\s*(?P<m2>{WORD}))\s+"
    rf"(?:(?P<y1>\d{{4}}),?\s+)?(?P<clock>{CLOCK})(?:\s+[A-Z]{{3,5}}(?=\s+\d{{4}}\b))?(?:\s+(?P<y2>\d{{4}})\b)?"
)
ISO_ALONE = re.compile(rf"(?:[^\W\d_]{{2,4}}\.?\s+)?{ISO}")
DATE_ALONE = re.compile(DATE)
HUMAN = re.compile(rf"(?P<m1>{WORD})\s*(?P<d1>\d{{1,2}}) (?P<hm>\d{{2}}:\d{{2}})")


def from_iso(found: re.Match[str]) -> datetime | None:
    """A match of ISO as a date; without a zone where it has none."""
    clock = found["clock"].replace(",", ".")
    whole, _, fraction = clock.partition(".")
    try:
        wall = datetime.strptime(f"{found['date']} {whole}", "%Y-%m-%d %H:%M:%S")  # noqa: DTZ007 - the zone follows
    except ValueError:
        return None
    wall = wall.replace(microsecond=int((fraction + "000000")[:6]) if fraction else 0)
    zone = found["zone"]
    if not zone:
        return wall
    if zone[0] not in "+-":
        return wall.replace(tzinfo=UTC)
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 14 or minutes > 59:
        return wall
    offset = timedelta(hours=hours, minutes=minutes)
    return wall.replace(tzinfo=timezone(-offset if zone[0] == "-" else offset))


def from_words(found: re.Match[str]) -> tuple[datetime | None, bool]:
    """A match of DATE as a date without a zone, and whether it has no year, so that NO_YEAR stands there."""
    month = month_of(found["m1"] or found["m2"])
    year = found["y0"] or found["y1"] or found["y2"]
    hours, minutes, rest = found["clock"].replace(",", ".").split(":")
    seconds, _, fraction = rest.partition(".")
    try:
        wall = datetime(  # noqa: DTZ001 - this form has no zone
            int(year or NO_YEAR), month, int(found["d1"] or found["d2"]), int(hours), int(minutes), int(seconds),
            int((fraction + "000000")[:6]) if fraction else 0,
        )  # fmt: skip
    except ValueError:  # a month in a language that is not known, a leap second: still a stamp
        wall = None
    return wall, year is None


@cache
def _months() -> dict[str, int]:
    rows = read_table("months.csv", ("month", "names"), lambda row: (row.whole("month"), row["names"].split()))
    return {name: month for month, names in rows for name in names}


def month_of(word: str) -> int:
    """1 to 12; 0 for a word that is no month in any language known here."""
    return _months().get(word.lower().rstrip("."), 0)
