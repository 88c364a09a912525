"""Rank and world size, from who started us beside others: srun, torchrun, mpirun, or a person by flags."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PORT: Final = 28_765  # where nobody says another
JOB_PORTS: Final = (20_000, 10_000)  # below what kernels give to outgoing connections; by the job, so that two can meet

# Who tells rank and number, the surest first. RANK is torchrun's and `sickbay submit`'s.
TELLERS: Final = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)
# Task 0 of a step is on the first host of the step. Where srun itself runs may be another machine: only if no list is
# there.
LISTS: Final = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_LAUNCH_NODE_IPADDR")
_PLACE = re.compile(r"[A-Za-z0-9_.\-]+:[0-9]{1,5}\Z")
_RANGE = re.compile(r"\[([0-9]+)[^\]]*\]")


@dataclass(frozen=True, slots=True)
class Launch:
    """`at`: host:port where rank 0 waits for the others; empty: nobody said. `floor`: GB/s that there must be."""

    rank: int
    world: int
    at: str = ""
    floor: float | None = None
    seconds: float = 240.0


def launched(env: Mapping[str, str]) -> Launch | None:
    """None: this process was started alone, as far as its environment says."""
    for rank, world in TELLERS:
        number, ranks = _number(env.get(rank, "")), _number(env.get(world, ""))
        if number is None or ranks is None:
            continue
        if rank.startswith("SLURM") and env.get("ENVIRONMENT") == "BATCH" and "SLURM_STEP_ID" not in env:
            continue  # the batch script itself: it has a number of tasks, and is none of them
        return Launch(number, ranks, _at(env)) if 0 <= number < ranks and ranks > 1 else None
    return None


def _at(env: Mapping[str, str]) -> str:
    lists = [env[name] for name in LISTS if env.get(name)] if "SLURM_PROCID" in env else []
    host = env.get("MASTER_ADDR") or next((first_host(one) for one in lists), "")
    place = f"{host}:{_port(env)}"
    return place if is_place(place) else ""


def _port(env: Mapping[str, str]) -> int:
    port = _number(env.get("MASTER_PORT", ""))
    if port is not None and 0 < port < 65_535:
        # torchrun itself listens there and says so.
        return port + (env.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    job = _number(env.get("SLURM_JOB_ID", ""))
    return PORT if job is None else JOB_PORTS[0] + job % JOB_PORTS[1]


def is_place(text: str) -> bool:
    return bool(_PLACE.match(text)) and 0 < int(text.rpartition(":")[2]) < 65_536


def first_host(nodes: str) -> str:
    """Of a list as Slurm writes it: `gpu[007-010,12],login` begins with gpu007."""
    depth, end = 0, len(nodes)
    for at, sign in enumerate(nodes):
        depth += (sign == "[") - (sign == "]")
        if sign == "," and not depth:
            end = at
            break
    return _RANGE.sub(r"\1", nodes[:end]).strip()


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
