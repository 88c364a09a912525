"""The end of a failed attempt → why it ended, and whether running it again may come right.

First the rules for its log; then, where nothing in it is known, the signal or the exception that ended it.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import cache

from sickbay.model.tables import Diagnosis, DiagnosisRule

LINE_LIMIT = 2000  # a longer line is data, not a message
CONSEQUENCE = 3  # from this rank on a line tells what follows when a rank is gone
FOLLOWS = {0, 6, 15}  # a rank that aborts or is asked to end mostly follows another's trouble
SHELL = 128  # a shell tells the signal that ended its child as an exit code above this

# Names and numbers on Linux: signal(7).
SIGNALS = {
    1: ("SIGHUP", "its terminal or its launcher went away"),
    2: ("SIGINT", "somebody interrupted it"),
    4: ("SIGILL", "it was built for another processor, or its memory is damaged"),
    6: ("SIGABRT", "it gave up by itself, as libraries do that find their state damaged"),
    7: ("SIGBUS", "memory that it used is not there, such as a full /dev/shm"),
    8: ("SIGFPE", "it divided by zero"),
    9: ("SIGKILL", "the kernel for lack of memory, or a person"),
    11: ("SIGSEGV", "it touched memory that is not its own"),
    15: ("SIGTERM", "somebody asked it to end"),
}

# What launchers and log collectors put before each line of a rank: torchrun, srun -l, pdsh, Open MPI, Ray, Docker, CRI.
_PREFIX = re.compile(
    r"\[(?:default|rank|worker-?)\d+\]:\s?|\[\d+,\d+\]<std(?:err|out)>:\s?|\([\w.:\s-]{1,80}\bpid=\d+[^)]{0,80}\)\s"
    r"|\d{1,5}:\s|[\w.-]{1,64}(?:-|\d)\s{0,3}[|:]\s"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S{0,12}\s(?:std(?:err|out) [FP]\s)?"
    r"|(?:-\s|\[)?(?:ERROR|CRITICAL|WARNING|INFO|FATAL)\b[\]:]?\s(?:-\s)?"
)
PREFIXES = 4  # one on top of another
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:: .*)?$")
_LOOKS_RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception)(?:: .*)?$")


def diagnose(tail: str, rules: Sequence[DiagnosisRule], exit_codes: Collection[int] = ()) -> Diagnosis | None:
    """None: nothing says why."""
    rank, found = _by_rules(tail, rules)
    if found is not None and rank < CONSEQUENCE:
        return found
    struck = _by_signal({code for code in exit_codes if signal_of(code) not in FOLLOWS})
    if found is not None:
        return struck or found  # its peers wait for the rank that was killed, and say so
    if exit_codes and all(map(signal_of, exit_codes)):
        return struck or _by_signal(exit_codes)  # an exception ends a process with 1: what the log shows was not it
    return _by_exception(tail) or _by_signal(exit_codes)


def _by_rules(tail: str, rules: Sequence[DiagnosisRule]) -> tuple[int, Diagnosis | None]:
    """The line nearest to the root cause with its rank, or None if no rule fits.

    Lowest rank first: one rank's ImportError (1) makes the others time out in NCCL (3) and torchrun kill them (4), and
    those lines often come first and always outnumber it. Within a rank the earliest line: what comes later mostly
    follows from it. On one line the rule that stands first in the table.
    """
    lines = [line.strip()[:LINE_LIMIT] for line in tail.splitlines()]
    said = [bare(line) for line in lines]
    for rank in sorted({rule.rank for rule in rules}):
        peers = [rule for rule in rules if rule.rank == rank]
        for line, words in zip(lines, said, strict=True):
            for rule in peers:
                if _compiled(rule.pattern).search(words):
                    found = Diagnosis(name=rule.name, line=line, because=rule.because, restart=rule.restart)
                    return rank, found
    return 0, None


def bare(line: str) -> str:
    """A line without what launchers put before it. Leading blanks stay where nothing else stood: code is indented."""
    for _ in range(PREFIXES):
        found = _PREFIX.match(line)
        if found is None:
            break
        line = line[found.end() :]
    return line


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def signal_of(code: int) -> int:
    """The signal that an exit code tells of: -9 and 137 are both 9. 0: none."""
    number = -code if code < 0 else code - SHELL
    return number if number in SIGNALS else 0


def _by_signal(exit_codes: Collection[int]) -> Diagnosis | None:
    """What others did to it (SIGTERM, the least telling) counts only where no rank says more."""
    found = sorted({signal_of(code) for code in exit_codes} - {0}, key=lambda number: (number == 15, number))
    if not found:
        return None
    name, why = SIGNALS[found[0]]
    line = f"exit by signal {found[0]}"
    return Diagnosis(name=name.lower(), line=line, because=f"killed by {name}: {why}", restart=True)


def _by_exception(tail: str) -> Diagnosis | None:
    """The first exception that ended a Python traceback. Nobody knows whether it would be raised again."""
    line = next(_raised(tail), "")
    if not line:
        return None
    return Diagnosis(name="raised", line=line, because="the program raised an error", restart=True)


def _raised(tail: str) -> Iterator[str]:
    lines = [bare(line).rstrip()[:LINE_LIMIT] for line in tail.splitlines()]
    inside = False
    for line in lines:
        if line.startswith(_TRACEBACK):
            inside = True
        elif inside and line and not line[0].isspace():
            inside = False
            if _RAISED.match(line):
                yield line
    # The end of a log may begin in the middle of a traceback.
    yield from (line for line in lines if _LOOKS_RAISED.match(line))
