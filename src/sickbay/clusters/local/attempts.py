"""Write-ahead records of attempts, on the controller's side: one file for each, written before anything is ordered.

    <root>/attempts/<job>.<attempt>.json

What has ended is written there when it is first seen, so that it stays known when the nodes have forgotten it.
"""

import hashlib
import re
import secrets
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sickbay.clusters.local.files import LocalSeat, Rank, RankPlan, StartRanks, StopRanks, write
from sickbay.clusters.local.locks import held
from sickbay.clusters.local.seat_state import Cache
from sickbay.model.errors import Rejected
from sickbay.model.fleet import Device, JobId, NodeId
from sickbay.model.job import End, JobSpec
from sickbay.model.noun import Noun

GRACE = 10.0  # seconds that a rank has to end when it is asked to
# Below the range from which the kernel gives out ports, so that nobody gets it by chance before rank 0 binds it.
_PORTS = range(20_000, 32_000)
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]{0,127}")


class NodePart(Noun):
    """What one node does for an attempt, under the boot in which it was asked."""

    node: NodeId
    seat: str
    instance_id: str
    boot_id: str
    node_rank: int
    devices: tuple[int, ...]
    ranks: tuple[RankPlan, ...]


class Over(Noun):
    """A part of which nothing is left. `lost`: it did not end by itself, its node did."""

    ranks: tuple[Rank, ...] = ()
    lost: bool = False


class GangRecord(Noun):
    key: str
    job: JobId
    attempt: int
    spec: JobSpec
    parts: tuple[NodePart, ...]
    port: int
    env: dict[str, str]
    began_at: float  # wall
    stop: str = ""  # the key of the first stop
    over: dict[NodeId, Over] = {}
    end: End | None = None
    closed_at: float | None = None  # wall: when the last part was seen over

    @property
    def name(self) -> str:
        return f"{self.job}.{self.attempt}"

    @property
    def open(self) -> tuple[NodePart, ...]:
        return tuple(part for part in self.parts if part.node not in self.over)

    # The names of orders are the order in which they are carried out: a start comes before a stop of the same attempt.
    @property
    def start_name(self) -> str:
        return f"{self.name}.1-start.{digest(self.key)}"

    def stop_name(self, key: str) -> str:
        return f"{self.name}.2-stop.{digest(key)}"

    def start_order(self, part: NodePart) -> StartRanks:
        return StartRanks(
            boot_id=part.boot_id,
            job=self.job,
            attempt=self.attempt,
            node_rank=part.node_rank,
            ranks=part.ranks,
            command=self.spec.command,
            env=self.env,
            cwd=self.spec.cwd,
            stall_after=self.spec.stall_after or 0.0,
            start_within=self.spec.start_within or 0.0,
            expects_heartbeats=self.spec.expects_heartbeats,
            env_files=self.spec.env_files,
            log_rules=self.spec.log_rules,
        )

    def stop_order(self, part: NodePart, grace: float) -> StopRanks:
        return StopRanks(boot_id=part.boot_id, job=self.job, attempt=self.attempt, grace=grace)


def digest(key: str) -> str:
    """A key as part of a file's name."""
    return hashlib.sha256(key.encode()).hexdigest()[:24]


class Attempts:
    """The files. Whoever changes one holds the lock."""

    def __init__(self, root: Path, patience: float | None = None) -> None:
        self._directory = root / "attempts"
        self._patience = patience
        self._cache = Cache(GangRecord)
        self._depth = 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """May be nested; not for two threads at once (another process, or another object, waits)."""
        if self._depth:
            yield
            return
        with held(self._directory / ".lock", self._patience):
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def path(self, job: JobId, attempt: int) -> Path:
        if not _PLAIN.fullmatch(job):
            raise Rejected(f"{job!r} cannot name a job: letters, digits and _ . : @ + - only")
        return self._directory / f"{job}.{attempt}.json"

    def get(self, job: JobId, attempt: int) -> GangRecord | None:
        return self._cache.get(self.path(job, attempt))

    def all(self) -> list[GangRecord]:
        """Oldest first."""
        paths = list(self._directory.glob("[!.]*.json"))
        self._cache.keep(paths)
        found = (self._cache.get(path) for path in paths)
        return sorted((each for each in found if each is not None), key=lambda each: (each.began_at, each.name))

    def save(self, attempt: GangRecord, *, durable: bool = True) -> None:
        write(self.path(attempt.job, attempt.attempt), attempt, durable=durable)

    def forget(self, attempt: GangRecord) -> None:
        self.path(attempt.job, attempt.attempt).unlink(missing_ok=True)


def lay_out(
    job: JobId,
    spec: JobSpec,
    nodes: Mapping[NodeId, tuple[int, ...]],
    holders: Mapping[NodeId, tuple[LocalSeat, tuple[Device, ...]]],
) -> tuple[NodePart, ...]:
    """Ranks in the order of the nodes, the devices of each node divided evenly among its ranks."""
    each = spec.ranks_per_node
    if each < 1:
        raise Rejected(f"job {job}: ranks_per_node is {each}; it must be 1 or more")
    parts = []
    for node_rank, (node, chosen) in enumerate(nodes.items()):
        seat, devices = holders[node]
        present = tuple(device.index for device in devices)
        mine = tuple(sorted(chosen)) or present[: spec.gpus_per_node or None]
        if missing := sorted(set(mine) - set(present)):
            raise Rejected(f"job {job}: node {node} has no GPU {missing[0]}")
        if len(mine) % each:
            raise Rejected(f"job {job}: {len(mine)} GPUs of {node} cannot be divided evenly among {each} ranks")
        share = len(mine) // each
        ranks = tuple(
            RankPlan(rank=node_rank * each + local, local_rank=local, devices=mine[local * share : (local + 1) * share])
            for local in range(each)
        )
        parts.append(
            NodePart(
                node=node,
                seat=seat.name,
                instance_id=seat.instance_id,
                boot_id=seat.boot_id,
                node_rank=node_rank,
                devices=mine,
                ranks=ranks,
            )
        )
    return tuple(parts)


def environment(job: JobId, attempt: int, spec: JobSpec, *, size: int, port: int, checkpoint: Path) -> dict[str, str]:
    """What all ranks share. What we say wins over what the job brings along."""
    return {
        **spec.env,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(spec.ranks_per_node),
        "SICKBAY_JOB_ID": job,
        "SICKBAY_ATTEMPT": str(attempt),
        "SICKBAY_CHECKPOINT_DIR": str(checkpoint),
    }


def free_port(taken: Iterable[int]) -> int:
    """A port that nobody listens on and no other attempt was given."""
    avoid = set(taken)
    for _ in range(1000):
        port = _PORTS[secrets.randbelow(len(_PORTS))]
        if port in avoid:
            continue
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise Rejected(f"no free port between {_PORTS.start} and {_PORTS.stop} for the ranks to meet at")
