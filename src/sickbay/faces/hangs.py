"""Hang detection in words: what would make a running job count as hung, and what nobody watches."""

from datetime import timedelta

from sickbay.brain.submission import expects_heartbeats
from sickbay.faces.archive import Archive
from sickbay.model.durations import format_duration
from sickbay.model.job import OPEN_FOR, Job, JobState


def hang_limits(archive: Archive, job: Job) -> tuple[str, ...]:
    """What would make it count as hung: nothing is said that is not watched."""
    spec, rule = job.spec, archive.policy.resume if archive.policy is not None else None
    stall, start = (rule.stall_after.total_seconds(), rule.start_within.total_seconds()) if rule else (None, None)
    said: list[str] = []
    if job.stepped_in == job.attempt and job.attempt:
        limit = spec.stall_after if spec.stall_after is not None else stall
        if limit != 0:
            said.append(f"no step after {job.step} comes{_within(limit)}")
    elif expects_heartbeats(job) or job.opened_in == job.attempt:
        limit = spec.start_within if spec.start_within is not None else start
        if limit != 0:
            said.append(f"no first heartbeat comes{_within(limit)} of its start")
    on = (watched.name for watched in spec.log_rules if job.rules_off.get(watched.name) != job.attempt)
    return (*said, *(f"its log goes without a line of the rule {name} for too long" for name in on))


def _within(limit: float | None) -> str:
    return f" within {format_duration(timedelta(seconds=limit))}" if limit else " in time"


def unwatched(archive: Archive, job: Job) -> tuple[str, ...]:
    """What does not watch it any more; and that nothing would find it hung."""
    if job.state is not JobState.RUNNING:
        return ()
    off = sorted(name for name, attempt in job.rules_off.items() if attempt == job.attempt)
    notes = [f"its log rule {name} is switched off: a hang that it would have found is not found" for name in off]
    if not hang_limits(archive, job):
        notes.append("a hang would not be noticed: it sends no heartbeats, and was submitted without --start-within")
    if job.waits is not None and job.waits_in == job.attempt and job.waits < OPEN_FOR:
        notes.append(
            f"its launcher waits {job.waits:g} s for the other nodes, and a repair takes longer: write "
            f"--rdzv-conf=timeout={OPEN_FOR:g},join_timeout={OPEN_FOR:g}, or leave that to 'sickbay run'"
        )
    return tuple(notes)
