"""Exit of a rank in words: its code, or that whoever ran it was killed, and the last that it wrote."""

from pathlib import Path

from sickbay.agent.ranks.directory import RankFile
from sickbay.agent.ranks.output import TAIL, older_parts
from sickbay.agent.user_files import read_end
from sickbay.model.facts import RankEnded
from sickbay.model.plain_text import plain_text

RUNNER_KILLED = "whoever ran it was killed, and it with him"


def rank_ended(rank: RankFile, tail: str = "") -> RankEnded:
    if rank.ended_at is None:
        return RankEnded(job=rank.job, attempt=rank.attempt, rank=rank.rank, why=RUNNER_KILLED, tail=tail)
    return RankEnded(
        job=rank.job, attempt=rank.attempt, rank=rank.rank, exit_code=rank.exit_code, stopped=rank.stopped,
        why=" ".join(rank.why.split())[:500], tail=tail,
    )  # fmt: skip


def tail_of(run: Path) -> str:
    """The end of its output, also where a new part of that has only just begun; empty where there is none to read."""
    words = _end(run / "output")
    if len(words) < TAIL:
        words = _end_of_part_before(run) + words
    return plain_text(words[-TAIL:].decode(errors="replace"))


def _end_of_part_before(run: Path) -> bytes:
    try:
        older = older_parts(run)
    except OSError:
        return b""
    return _end(older[-1][1]) if older else b""


def _end(path: Path) -> bytes:
    try:
        return read_end(path, TAIL)
    except OSError:
        return b""
