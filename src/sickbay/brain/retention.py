"""Retention: how old is old, by the watched clock. A wall clock that jumps ahead makes nothing old."""

from datetime import UTC, datetime, timedelta

from sickbay.model.fleet import Ages

DAY = 86_400.0


def aged(ages: Ages, reading: float, wall: float, keep: timedelta) -> Ages:
    """With a mark for today, a day of the watched clock after the last one; what no age needs any more is dropped."""
    marks = ages.marks
    if not marks or reading - marks[-1][0] >= DAY:
        marks = (*marks, (reading, wall))
    needed = [n for n, (at, _) in enumerate(marks) if at <= reading - keep.total_seconds()]
    return Ages(marks=marks[needed[-1] :] if needed else marks)


def cutoff(ages: Ages, reading: float, wall: float, keep: timedelta) -> datetime | None:
    """The moment before which everything is older than `keep`; None: we have not been here so long.

    Each mark says which moment on the wall that reading was, if the wall was right then: the earliest of them is safe,
    whichever of them was dated by a clock that had jumped ahead.
    """
    cut = reading - keep.total_seconds()
    if not any(at <= cut for at, _ in ages.marks):
        return None
    moments = [then - (at - cut) for at, then in (*ages.marks, (reading, wall))]
    return datetime.fromtimestamp(min(moments), UTC)
