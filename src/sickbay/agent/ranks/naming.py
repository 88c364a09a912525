"""Identity of a rank that is started by hand or by another scheduler: job, attempt and rank, from options, environment
and node. One table says who tells what, the surest first.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from sickbay.agent.ranks.directory import LONGEST, NodeFile, names_in
from sickbay.agent.user_files import read_small


class Teller(NamedTuple):
    what: str  # job, attempt, rank
    variable: str
    plus: int = 0  # its number counts from another than ours
    of_cluster: bool = False  # its id is the cluster's own: ours is <cluster>-<id>


# The options --job, --attempt and --rank go before all of them.
TELLERS: Final = (
    Teller("job", "SICKBAY_JOB_ID"),
    Teller("job", "SLURM_JOB_ID", of_cluster=True),
    Teller("attempt", "SICKBAY_ATTEMPT"),
    Teller("attempt", "SLURM_RESTART_COUNT", plus=1),
    Teller("rank", "RANK"),
    Teller("rank", "SLURM_PROCID"),
    Teller("rank", "PMIX_RANK"),
    Teller("rank", "OMPI_COMM_WORLD_RANK"),
)


class NamedRank(NamedTuple):
    """`attempt` None: nobody counts the starts of this job, so the next free number is taken."""

    job: str  # empty: nobody says
    attempt: int | None
    rank: int
    because: str = ""  # why there is no job


def name_rank(
    env: Mapping[str, str], node: NodeFile | None, *, job: str = "", attempt: int | None = None, rank: int | None = None
) -> NamedRank:
    because = ""
    if not job:
        job, because = _job(env, node)
    if len(job) > LONGEST:
        job, because = "", f"the job's id has {len(job)} characters: write one of at most {LONGEST}"
    if attempt is None:
        attempt = _number(env, "attempt")
    if attempt is None and env.get("SLURM_JOB_ID") and not env.get("SICKBAY_JOB_ID"):
        attempt = 1  # Slurm counts restarts only once there was one
    said = rank if rank is not None else _number(env, "rank")
    return NamedRank(job, attempt, said or 0, because)


def _job(env: Mapping[str, str], node: NodeFile | None) -> tuple[str, str]:
    for teller in TELLERS:
        if teller.what != "job" or not (said := env.get(teller.variable, "")):
            continue
        if not teller.of_cluster:
            return said, ""
        if node is None:
            return "", f"no agent has said which cluster this is, so {teller.variable} names no job: write --job ID"
        return f"{node.cluster}-{said}", ""
    return "", "nobody says which job this is: write --job ID or set SICKBAY_JOB_ID"


def no_numbers(env: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that should say an attempt or a rank and have something else in them."""
    tellers = [teller.variable for teller in TELLERS if teller.what != "job"]
    return tuple(variable for variable in tellers if (said := env.get(variable, "")) and not _is_number(said))


def _number(env: Mapping[str, str], what: str) -> int | None:
    for teller in TELLERS:
        said = env.get(teller.variable, "") if teller.what == what else ""
        if _is_number(said):
            return int(said) + teller.plus
    return None


def _is_number(said: str) -> bool:
    return said.isascii() and said.isdigit() and len(said) < 10


def node_here(base: Path) -> NodeFile | None:
    """What the agent of this node has written; None: no agent has been here."""
    try:
        found = (base / "node.json").stat(follow_symlinks=False)
        if found.st_uid not in {0, os.geteuid()}:
            return None
        return msgspec.json.decode(read_small(base / "node.json"), type=NodeFile)
    except (OSError, msgspec.MsgspecError):
        return None


def next_attempt(base: Path, name: str) -> int:
    """`name`: a directory's name without its numbers. One more than the newest attempt that is there."""
    numbers = [0]
    for found in names_in(base):
        job, _, rest = found.rpartition(".")[0].rpartition(".")
        if job == name and rest.isascii() and rest.isdigit() and len(rest) < 10:
            numbers.append(int(rest))
    return max(numbers) + 1
