"""Numbering (epochs): which number an attempt has in a directory that several jobs have used one after another.

A job counts its attempts from 1, wherever it is. At its first start in a directory rank 0 fixes a base there,
exclusively, above everything that is there already: attempt k of the job is attempt base + k in the directory. So the
numbers rise in the order in which its cluster has started the attempts, however late one of them comes to it; and those
of a job that continues another are above all that the other one was ever started with.

A directory belongs to the job whose attempt chose last what it goes on from. Another one begins only if it continues
that job, or on wish.
"""

import hashlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from sickbay.train import disk
from sickbay.train.errors import CheckpointError, NotOurs
from sickbay.train.layout import attempts, begun, fenced, jobs_path, read_fence, refused_path, run_path
from sickbay.train.run import Run

log = logging.getLogger("sickbay.train")
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}\Z")
TRIES = 100  # names for one record: each is spent by a death between two calls, on a disk without hard links


def number_of(run: Run) -> int | None:
    """The number of this attempt in its directory; None: rank 0 has not fixed it yet, or it takes the next free one."""
    if not run.counted:
        return run.attempt
    base = base_of(run.directory, run.job)
    return None if base is None else base + (run.attempt or 1)


def base_of(directory: Path, job: str) -> int | None:
    """What a job adds to its attempts here; None: it has never begun here."""
    for number in range(TRIES):
        path = _record(directory, job, number)
        with disk.undamaged(path):
            content = disk.read(path)
        if content is not None:
            return _understood(path, content, job)
        if not disk.exists(disk.claim_of(path)):
            return None
    return None


def fix_number(run: Run) -> int:
    """Rank 0: the number of this attempt, whose job's base is written down if it begins here for the first time."""
    number = number_of(run)
    if number is not None or not run.counted:
        return number or 0
    disk.make(jobs_path(run.directory))
    base = max([*attempts(run.directory), *_reach(run)], default=0)
    content = {"job": run.job, "base": base, "continues": [name for name, _ in run.before]}
    for step in range(TRIES):
        disk.create(_record(run.directory, run.job, step), content)
        if (number := number_of(run)) is not None:
            return number
    raise CheckpointError(f"{jobs_path(run.directory)} does not keep what is written into it: start once more")


def _reach(run: Run) -> list[int]:
    """The highest number that each job before this one was started with, also where it never came to begin."""
    known = [(base_of(run.directory, job), attempts_of) for job, attempts_of in run.before]
    return [base + count for base, count in known if base is not None]


def owner_of(directory: Path, attempt: int) -> str:
    """The job of an attempt. Empty: nobody knows, as it was begun by hand, or by an older version."""
    try:
        fence = read_fence(directory, attempt)
    except disk.Damaged as damage:  # it is a fence by being there; its lineage is in another file
        log.warning("which job began attempt %d is not known: %s %s", attempt, run_path(directory, attempt), damage)
        return ""
    return fence.job if fence is not None else ""


def refuse_strangers(run: Run, below: int | None = None) -> None:
    """A job goes on from its own checkpoints, and from those of jobs that it continues: weights are never mixed."""
    latest = _last_of_all(run.directory, below) if run.job else None
    owner = owner_of(run.directory, latest) if latest is not None else ""
    if not owner or owner == run.job or owner in {job for job, _ in run.before}:
        return
    if any(owner_of(run.directory, number) == run.job for number in _below(begun(run.directory), below)):
        raise NotOurs(
            f"job {owner} has taken {run.directory} over (attempt-{latest}), where {run.job} saved before: this one is"
            f" over; give one of them another --checkpoint, or 'sickbay restart {owner}' goes on from there"
        )
    if not (run.anew or run.adopt):
        raise NotOurs(
            f"{run.directory} holds checkpoints of job {owner} (attempt-{latest}), which {run.job} does not continue:"
            f" 'sickbay restart {owner}' goes on from them, and so does submit with --adopt; with --anew it begins"
            " beside them, with another --checkpoint elsewhere"
        )


def _last_of_all(directory: Path, below: int | None) -> int | None:
    """The attempt whose job has the directory: the last that has chosen, whoever has a fence above it and chose not.

    Where none has chosen yet the first come has it.
    """
    if chosen := _below(begun(directory), below):
        return chosen[-1]
    there = (number for number in fenced(directory) if not disk.exists(refused_path(directory, number)))
    return max(_below(there, below), default=None)


def _below(numbers: Iterable[int], below: int | None) -> list[int]:
    return [number for number in numbers if below is None or number < below]


def _record(directory: Path, job: str, number: int) -> Path:
    name = job if _PLAIN.match(job) else hashlib.sha256(job.encode()).hexdigest()
    return jobs_path(directory) / (f"{name}.json" if number == 0 else f"{name}.{number}.json")


def _understood(path: Path, content: dict[str, object], job: str) -> int:
    base = content.get("base")
    if content.get("job") != job or not isinstance(base, int) or isinstance(base, bool) or base < 0:
        raise CheckpointError(f"{path} has another shape than expected: move it away, and this job counts anew")
    return base
