"""Exit of a rank in words: its code, or that whoever ran it was killed, and the last that it wrote."""

from pathlib import Path

from sickbay.agent.ranks.directory import RankFile
from sickbay.agent.user_files import read_end
from sickbay.model.facts import RankEnded
from sickbay.model.plain_text import plain_text

TAIL = 16 * 1024  # bytes
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
        words = _end(_part_before(run)) + words
    return plain_text(words[-TAIL:].decode(errors="replace"))


def _part_before(run: Path) -> Path:
    try:
        older = [path for path in run.glob("output.*") if path.suffix[1:].isascii() and path.suffix[1:].isdigit()]
    except OSError:
        older = []
    return max(older, default=run / "output.none", key=lambda path: int(path.suffix[1:20]))


def _end(path: Path) -> bytes:
    try:
        return read_end(path, TAIL)
    except OSError:
        return b""
