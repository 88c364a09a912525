"""Rendezvous of torchrun: defaults that are chosen at each start and stay open through a slow repair.

torchrun reads each option's default from PET_<OPTION> (torch/distributed/argparse_util.py), so what a command says
itself wins, and so does what is in its environment already.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple
from zlib import crc32

from sickbay.model.job import OPEN_FOR

# What the static backend, c10d and the c10d store call their time-outs; each takes its own and leaves the others.
CONF: Final = ",".join(f"{name}={OPEN_FOR:.0f}" for name in ("timeout", "join_timeout", "read_timeout"))
TORCH_WAITS: Final = 600.0  # seconds, where nobody says another
PORTS: Final = (20_000, 10_000)  # below what kernels give to outgoing connections
LAUNCHERS: Final = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})


class MeetingPlace(NamedTuple):
    """Where the nodes of an attempt meet."""

    nodes: int
    node_rank: int
    host: str
    port: int


def rendezvous(env: Mapping[str, str], attempt: str, meeting: MeetingPlace | None) -> dict[str, str]:
    """What is added to an environment. `attempt`: no other start has this name."""
    chosen = {"PET_RDZV_ID": attempt, "PET_RDZV_CONF": CONF}
    if meeting is not None:
        chosen |= {"PET_NNODES": str(meeting.nodes), "PET_NODE_RANK": str(meeting.node_rank)}
        if not env.get("PET_RDZV_ENDPOINT"):
            # Not PET_RDZV_ENDPOINT: that would win over --master-addr and --master-port on a command line.
            chosen |= {"PET_MASTER_ADDR": meeting.host, "PET_MASTER_PORT": str(meeting.port)}
    return {name: value for name, value in chosen.items() if name not in env}


def meeting_of(env: Mapping[str, str], attempt: str) -> MeetingPlace | None:
    """Of a task that srun has started: on the first host of its step. None: nobody says, or this is no such task.

    The batch script itself has a list of nodes, too; what it set would go to the tasks of all nodes.
    """
    from sickbay.agent.checks.launched import LISTS, first_host

    if "SLURM_STEP_ID" not in env or env.get("SLURM_STEP_ID") == "4294967291":  # the batch step's number
        return None
    nodes = _number(env.get("SLURM_STEP_NUM_NODES", "")) or _number(env.get("SLURM_NNODES", ""))
    node_rank = _number(env.get("SLURM_NODEID", ""))
    host = next((first_host(env[name]) for name in LISTS if env.get(name)), "")
    if not nodes or node_rank is None or node_rank >= nodes or not host:
        return None
    return MeetingPlace(nodes, node_rank, host, PORTS[0] + crc32(attempt.encode()) % PORTS[1])


def waits_for(command: Sequence[str], env: Mapping[str, str]) -> float | None:
    """Seconds that the torchrun of a command waits for the other nodes; None: the command shows no torchrun."""
    words = _launcher_words(command)
    if words is None:
        return None
    backend = _option(words, "rdzv-backend") or env.get("PET_RDZV_BACKEND") or "static"
    conf = _option(words, "rdzv-conf")
    parts = [part.partition("=") for part in (conf or env.get("PET_RDZV_CONF", "")).split(",")]
    pairs = {key.strip(): value.strip() for key, _, value in parts}
    said = pairs.get("join_timeout" if backend == "c10d" else "timeout", "")
    try:
        return min(max(float(said), 0.0), 1e8) if said else TORCH_WAITS
    except ValueError:
        return TORCH_WAITS


def stands_alone(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """torchrun --standalone: on each node by itself. With a number of nodes it would wait for others."""
    words = _launcher_words(command) or ()
    until = next((n for n, word in enumerate(words) if word.endswith(".py")), len(words))
    return "--standalone" in words[:until] or env.get("PET_STANDALONE") == "1"


def _launcher_words(command: Sequence[str]) -> Sequence[str] | None:
    """What follows torchrun; None: the command shows none."""
    at = next((n for n, word in enumerate(command) if PurePath(word).name in LAUNCHERS), None)
    return None if at is None else command[at + 1 :]


def _option(words: Sequence[str], name: str) -> str:
    """The last value of an option among the launcher's own."""
    spelled = (f"--{name}", f"--{name.replace('-', '_')}")
    value = ""
    for n, word in enumerate(words):
        if word in spelled:
            value = words[n + 1] if n + 1 < len(words) else ""
        elif word.startswith(tuple(f"{one}=" for one in spelled)):
            value = word.partition("=")[2]
        elif word.endswith(".py"):
            break  # from here on it is the script's
    return value


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
