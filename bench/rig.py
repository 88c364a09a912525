"""What every figure stands on: a fleet that the real engine has learned, over a real store, with far sides that accept
everything and show nothing."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import open_store
from sickbay.engine.execute import Hands, Site
from sickbay.engine.ingest import Ingest
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import Rules, moment
from sickbay.knowledge.load import load_tables
from sickbay.knowledge.policy import digest, load_policy
from sickbay.model.facts import Fact, Mark, NodeSeen, Observed
from sickbay.model.fleet import Capability, Device, Incarnation, JobId, NodeId
from sickbay.model.intent import Notify
from sickbay.model.job import JobSpec
from sickbay.model.policy import Limit, Policy
from sickbay.ports.clock import Clock
from sickbay.ports.cluster import Accepted, Deltas, Lost, Snapshot
from sickbay.ports.store import Store

CLUSTER = "bench"
POOL = "train"
GPUS = 8
BATCH = 2000
LAST_ROUND = 10_000


class RealClock:
    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()


@dataclass(slots=True)
class SetClock:
    """Stands still unless it is moved: nothing falls due by itself."""

    at: float = 1_800_000_000.0

    def wall(self) -> float:
        return self.at

    def mono(self) -> float:
        return self.at


class FarSide:
    """Cluster, machines and checks in one: every call is accepted at once, and nothing is ever seen of it."""

    id = CLUSTER
    period = 10.0
    capabilities = frozenset(Capability)
    blind: frozenset[str] = frozenset()

    def watch(self, cursor: str | None) -> Deltas | Lost:
        return Deltas(cursor=cursor or "0", as_of=0.0)

    def snapshot(self) -> Snapshot:
        return Snapshot(cursor="0", as_of=0.0)

    def cordon(self, node: NodeId, *, owner: str, reason: str, key: str, expect: Incarnation | None) -> Accepted:
        return Accepted()

    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        return Accepted()

    def drain(self, node: NodeId, *, how: str, key: str, expect: Incarnation | None) -> Accepted:
        return Accepted()

    def rerun(self, job: JobId, attempt: int, *, avoid: tuple[NodeId, ...], key: str) -> Accepted:
        return Accepted()

    def stop(self, job: JobId, attempt: int, *, key: str) -> Accepted:
        return Accepted()

    def restart_service(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return Accepted()

    def reset(self, node: NodeId, devices: tuple[int, ...], *, key: str, expect: Incarnation) -> Accepted:
        return Accepted()

    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return Accepted()

    def replace(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        return Accepted()

    def fence(self, node: NodeId, *, key: str) -> Accepted:
        return Accepted(done=True)

    def look(self, look: str, nodes: tuple[NodeId, ...], *, stacks_of: JobId | None) -> Accepted:
        return Accepted()
