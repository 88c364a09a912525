"""The place of a job in the queue of its pool, as people are told it: by the rows as they are now."""

from collections import defaultdict
from collections.abc import Iterable

from sickbay.brain.queue import turn_of
from sickbay.faces.answers import QueuePlace
from sickbay.model.job import Job

ORDINALS = {1: "st", 2: "nd", 3: "rd"}


class Turns:
    """The queues of all pools, from their open jobs. Where a cluster queues by itself, nobody stands in one of ours."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._lines: defaultdict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            if in_queue(job):
                self._lines[job.pool].append(job)
        for line in self._lines.values():
            line.sort(key=turn_of)
        self._numbers = {job.id: n for line in self._lines.values() for n, job in enumerate(line)}

    def of(self, job: Job) -> QueuePlace | None:
        number = self._numbers.get(job.id)
        if number is None:
            return None
        first = self.first(job)
        return QueuePlace(
            position=number + 1,
            of=len(self._lines[job.pool]),
            behind=first.id if first is not None else None,
            place_kept=job.keeps_place,
            priority=job.spec.priority,
        )

    def first(self, job: Job) -> Job | None:
        """Who stands at the head of its queue; None: itself, or it is in none."""
        line = self._lines.get(job.pool, [])
        return line[0] if line and job.id in self._numbers and line[0].id != job.id else None

    def because(self, job: Job) -> str:
        """Why it waits: where it stands, behind whom, and for what."""
        number = self._numbers.get(job.id)
        why = job.wait.because if job.wait is not None else ""
        if number is None:
            return why
        line = self._lines[job.pool]
        if len(line) == 1:
            return why
        said = f"{ordinal(number + 1)} of {len(line)} in the queue of {job.pool}"
        if (first := self.first(job)) is not None:
            said = f"{said}, behind {_shown(first)}"
        kept = "; the place of its interrupted attempt is kept" if job.keeps_place else ""
        return f"{said}{kept}: {why}"


def in_queue(job: Job) -> bool:
    """Whether it stands in a queue of ours: its decision to wait says so."""
    return job.open and job.wait is not None and job.wait.queued


def _shown(job: Job) -> str:
    nodes = len(job.spec.on) or job.spec.nodes
    kept = ", its place is kept" if job.keeps_place else ""
    return f"{job.id} (needs {nodes} node{'s' if nodes > 1 else ''}, priority {job.spec.priority}{kept})"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if number % 100 in {11, 12, 13} else ORDINALS.get(number % 10, "th")
    return f"{number}{ending}"
