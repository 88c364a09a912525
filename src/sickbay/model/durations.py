"""Durations as people write them: 200ms, 30s, 10m, 2h, 28d, 1h30m."""

import re
from datetime import timedelta

_UNITS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1000}  # in microseconds
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|[dhms])")
LONGEST = timedelta(days=3650)

HOW = "write a number with ms, s, m, h or d, such as 30s, 10m or 1h30m"


def parse_duration(text: str) -> timedelta:
    """Raises ValueError with what is wrong and what to write."""
    if text.startswith("-"):
        raise ValueError(f"{text!r} is negative: {HOW}")
    total, order, at = 0.0, list(_UNITS), 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in order:
            raise ValueError(f"{text!r} is not a duration: {HOW}")
        total += float(part[1]) * _UNITS[part[2]]
        order = order[order.index(part[2]) + 1 :]  # units fall, each once: 30m1h is a slip, not a duration
        at = part.end()
    if not text:
        raise ValueError(f"a duration is missing: {HOW}")
    if total > LONGEST / timedelta(microseconds=1):
        raise ValueError(f"{text!r} is longer than {LONGEST.days}d: write a shorter duration")
    return timedelta(microseconds=round(total))


def format_duration(span: timedelta) -> str:
    """The shortest form that `parse_duration` reads back to the same value."""
    left, said = span // timedelta(microseconds=1), ""
    for unit, size in _UNITS.items():
        count, rest = divmod(left, size)
        if unit == "ms" and rest:
            return f"{said}{left / size:.3f}ms"
        if count:
            said, left = f"{said}{count}{unit}", rest
    return said or "0s"
