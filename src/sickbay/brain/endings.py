"""Post-mortem of an attempt: which rank ended first, with which exit code or signal, in words and as a record."""

from datetime import datetime

from msgspec.structs import replace

from sickbay.model.job import NAMES, Attempt, End, EndReason, HeardEnds, Job, RankEnd

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


HEARD_FROM = 256  # nodes whose exit codes are kept of what agents told


def add_heard_end(heard: HeardEnds | None, attempt: int, rank: RankEnd, tail: str) -> HeardEnds:
    """What agents told, with one more rank that ended badly. The first of all is the one that counts."""
    if heard is None or heard.attempt != attempt:
        heard = HeardEnds(attempt=attempt)
    codes = heard.exit_codes
    if rank.exit_code and str(rank.node) not in codes and len(codes) < HEARD_FROM:
        codes = {**codes, str(rank.node): rank.exit_code}
    first = heard.first is None or (rank.at is not None and heard.first.at is not None and rank.at < heard.first.at)
    if not first:
        return replace(heard, exit_codes=codes, tail=heard.tail or tail)
    return replace(heard, first=rank, exit_codes=codes, tail=tail or heard.tail)


def complete_end(end: End, heard: HeardEnds | None, before: HeardEnds | None = None) -> End:
    """The end with what agents know and its cluster does not say: the cluster's own word stays.

    `before`: what agents had told when this was last asked, so that what came from them may still be put right.
    """
    if heard is None or end.reason not in {EndReason.FAILED, EndReason.UNKNOWN}:
        return end
    theirs = before or HeardEnds(attempt=heard.attempt)
    first = heard.first if end.first in {None, theirs.first} else end.first
    codes = heard.exit_codes if end.exit_codes in ({}, theirs.exit_codes) else end.exit_codes
    return replace(end, first=first, exit_codes=codes, tail=end.tail or heard.tail)


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
