"""The end of a failed attempt's log → why it ended, and whether running it again may come right."""

import re
from collections.abc import Sequence
from functools import cache

from sickbay.model.tables import Diagnosis, DiagnosisRule

LINE_LIMIT = 2000  # a longer line is data, not a message


def diagnose(tail: str, rules: Sequence[DiagnosisRule]) -> Diagnosis | None:
    """The line nearest to the root cause, or None if no rule fits.

    Lowest rank first: one rank's ImportError (1) makes the others time out in NCCL (3) and torchrun kill them (4), and
    those lines often come first and always outnumber it. Within a rank the earliest line: what comes later mostly
    follows from it. On one line the rule that stands first in the table.
    """
    lines = [line.strip()[:LINE_LIMIT] for line in tail.splitlines()]
    for rank in sorted({rule.rank for rule in rules}):
        peers = [rule for rule in rules if rule.rank == rank]
        for line in lines:
            for rule in peers:
                if _compiled(rule.pattern).search(line):
                    return Diagnosis(name=rule.name, line=line, because=rule.because, restart=rule.restart)
    return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
