"""Post-mortem of an attempt: which rank ended first, with which exit code or signal, in words and as a record."""

from datetime import datetime

from msgspec.structs import replace

from sickbay.model.job import NAMES, Attempt, End, EndReason, Job, RankEnd

SHELL = 128  # a shell tells the signal that ended its child as an exit code above this
LINES, CHARACTERS = 10, 1000  # of what a rank wrote last
WORDS = 500  # of a reason
CODES = 8  # nodes whose exit codes a record has

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


def signal_of(code: int) -> int:
    """The signal that an exit code tells of: -9 and 137 are both 9. 0: none."""
    number = -code if code < 0 else code - SHELL
    return number if number in SIGNALS else 0


def signal_name(code: int | None) -> str:
    """SIGKILL of -9 and 137; empty: it was no signal that we know."""
    number = signal_of(code) if code is not None else 0
    return SIGNALS[number][0] if number else ""


def ending_of(end: End) -> str:
    """rank 1 on local/node-0 ended with exit code 7."""
    if end.reason is EndReason.NODE_LOST and end.first is not None:
        return f"{end.first.node} was lost, with rank {end.first.rank}"
    if end.reason not in {EndReason.FAILED, EndReason.UNKNOWN}:
        return f"it ended: {end.reason}"
    if end.first is not None:
        return _of_rank(end.first)
    bad = {node: code for node, code in end.exit_codes.items() if code}
    if not bad:
        return f"it ended: {end.reason}"
    node, code = next(iter(bad.items()))
    return f"a rank on {node} {_with(code)}" if node else f"it {_with(code)}"


def _of_rank(first: RankEnd) -> str:
    who = f"rank {first.rank} on {first.node}"
    if first.exit_code is None:
        return f"{who} ended: {first.why}" if first.why else f"{who} ended, and nobody knows how"
    return f"{who} {_with(first.exit_code)}{f' ({first.why})' if first.why else ''}"


def _with(code: int) -> str:
    name = signal_name(code)
    if name and code < 0:
        return f"was killed by {name}"
    if code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}{f' ({name})' if name else ''}"


def last_lines(tail: str) -> str:
    """The last lines of an output, as many as a record has room for; a line is cut, not left out."""
    lines = [line.rstrip() for line in tail.splitlines() if line.strip()][-LINES:]
    kept: list[str] = []
    room = CHARACTERS
    for line in reversed(lines):
        if room <= 0:
            break
        kept.append(line if len(line) <= room else f"{line[: room - 1]}…")
        room -= len(line) + 1
    return "\n".join(reversed(kept))


# --- records


def recorded(known: Attempt | None, job: Job, now: datetime, because: str = "", rosters: int = 0) -> Attempt:
    """The record of its present attempt: where it ran when that was first written, how it ended as far as is known."""
    if known is None:
        names = sorted(job.claim or job.ranks)
        known = Attempt(
            job=job.id,
            number=job.attempt,
            at=now,
            began_at=job.began_at,
            started_at=job.started_at,
            nodes=len(names),
            names=tuple(names[:NAMES]),
            rosters=rosters,
        )
    said, end = because[:WORDS] or known.because, job.end
    if end is None:
        return replace(known, at=now, ended_at=known.ended_at or now, because=said)
    return replace(
        known,
        at=now,
        started_at=min(known.started_at, end.at) if known.started_at else None,  # a rank may end before all were seen
        ended_at=end.at,
        reason=end.reason,
        first=end.first,
        exit_codes=dict(list(end.exit_codes.items())[:CODES]) if end.first is None else {},
        lines=last_lines(end.tail) if end.reason is not EndReason.COMPLETED else "",
        because=said,
    )
