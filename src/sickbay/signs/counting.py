"""Error counters: growth between two looks, whatever happened to the counter between them (reset, wrap, gap, nonsense).

| read now                                | growth                                           | remembered    |
|-----------------------------------------|--------------------------------------------------|---------------|
| nothing (unreadable, lost)              | none yet: the next number that is read has it    | as before     |
| a number, seen for the first time       | all of it where it counts from the boot or the   | the number    |
|                                         | driver's start (`fresh`), else none              |               |
| as much or more                         | the difference, however long nobody could look   | the number    |
| less                                    | all of it: the counter was set back, and is young| the number    |
| negative, all ones, a leap beyond MOST  | none, and that it cannot be believed             | as before     |

Who knows that a counter was set back, though its number does not show it, remembers 0 for it.
"""

from typing import NamedTuple

MOST = (
    10**9
)  # errors: nothing counts as many between two looks, and what reads so is a register that nobody answers for
LONGEST = 2**60  # no counter of errors gets there in the life of a machine
ALL_ONES = frozenset({2**31 - 1, 2**32 - 1})  # what a bus or a driver gives where nothing answers; 64 bits are too long


class Growth(NamedTuple):
    remembered: int | None  # for the next look
    by: int
    absurd: bool = False


def believable(value: int) -> bool:
    return 0 <= value <= LONGEST and value not in ALL_ONES


def growth(before: int | None, now: int | None, *, fresh: bool) -> Growth:
    """`before`: what is remembered; None: never seen. `fresh`: what is there at first sight is news."""
    if now is None:
        return Growth(before, 0)
    if not believable(now):
        return Growth(before, 0, absurd=True)
    base = (0 if fresh else now) if before is None else before
    by = now - base if now >= base else now
    return Growth(before, 0, absurd=True) if by > MOST else Growth(now, by)
