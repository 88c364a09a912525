"""What every figure stands on: a fleet that the real engine has learned through facts and pulses, over a real store."""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from bench.far_side import CLUSTER, AtOnce, far_hands
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import open_store
from sickbay.engine.execute import Effects
from sickbay.engine.ingest import Ingest
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import Rules, moment
from sickbay.knowledge.load import load_tables
from sickbay.model.facts import Fact, Mark, NodeSeen, Observed
from sickbay.model.fleet import Device, Incarnation, NodeId
from sickbay.model.policy import Limit, Policy
from sickbay.policy.load import digest, load_policy
from sickbay.ports.clock import Clock
from sickbay.ports.store import Store

POOL = "train"
GPUS = 8
BATCH = 2000
LEASE = 3600.0  # no figure but the takeover's is about leases


class RealClock:
    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()


class StillClock:
    """Stands still: nothing falls due by itself."""

    def wall(self) -> float:
        return 1_800_000_000.0

    def mono(self) -> float:
        return 1_000.0


def busy() -> str:
    """What else the machine had to do, for a note under a figure."""
    return f"{os.getloadavg()[0]:.1f} processes were running on average when this one began."


@contextmanager
def store_of(kind: str) -> Iterator[Store]:
    """`memory` (without limits) or `sqlite` (a file, every commit synced)."""
    if kind == "memory":
        yield MemoryStore(limits=False)
        return
    with tempfile.TemporaryDirectory(prefix="sickbay-bench-") as directory:
        store = open_store(f"sqlite:///{Path(directory) / 'bench.db'}")
        try:
            yield store
        finally:
            store.close()


def open_policy() -> Policy:
    """The default, but nothing is held back: every fault that asks for it is quarantined at once."""
    wide = Limit(out_percent=100.0, repairing_percent=100.0)
    return replace(load_policy("default"), limits=(wide,), brakes=())


def rules_of(policy: Policy, hands: Effects) -> Rules:
    return Rules(
        policy=policy,
        tables=load_tables(),
        policy_digest=digest(policy),
        can={c: site.capabilities for c, site in hands.sites.items()},
        blind={c: site.blind for c, site in hands.sites.items()},
    )


def node_id(number: int) -> NodeId:
    return NodeId(f"{CLUSTER}/n{number:06d}")


def incarnation(number: int) -> Incarnation:
    return Incarnation(uid=f"uid-{number:06d}", instance_id=f"i-{number:017x}", boot_id=f"boot-{number:032x}")


def xid(number: int, code: int, serial: object, *, device: int = 0, at: float) -> Fact:
    """A line of the kernel log, as an agent reports it."""
    text = f"NVRM: Xid (PCI:0000:{0x10 + device:02x}:00): {code}, pid=475, name=python, channel 0x0000000a"
    news = Observed(
        node=node_id(number),
        kind="xid",
        fields={"number": code, "device": device},
        text=text,
        incarnation=incarnation(number),
    )
    return Fact(id=f"boot-{number:032x}/kmsg/{serial}", at=moment(at), news=news)


@dataclass(slots=True)
class Bench:
    """An engine over a store, and a way to fill both."""

    store: Store
    clock: Clock
    engine: Engine
    ingest: Ingest
    nodes: int = 0

    @classmethod
    def over(
        cls, store: Store, clock: Clock | None = None, policy: Policy | None = None, setup: Setup | None = None
    ) -> "Bench":
        clock = clock or StillClock()
        policy = policy or open_policy()
        hands = far_hands()
        rules = rules_of(policy, hands)
        setup = setup or Setup(holder="bench", lease_ttl=LEASE, strict=True)
        engine = Engine(store, hands, rules, AtOnce(), clock, setup)
        return cls(store, clock, engine, Ingest(store, clock))

    def settle(self) -> int:
        """Rounds until nothing is left to do; how many."""
        rounds = 1
        while self.engine.round():
            rounds += 1
        return rounds

    def populate(self, nodes: int) -> None:
        """Seats as a cluster shows them at first connection, each with work on it, each with an agent that is heard."""
        wall = self.clock.wall()
        for first in range(self.nodes, nodes, BATCH):
            numbers = range(first, min(first + BATCH, nodes))
            mark = Mark(source=CLUSTER, at=wall, period=10.0, cursor="0", as_of=1.0)
            self.store.append([_seen(number, wall) for number in numbers], [mark])
            self.ingest.take([], {node_id(number): incarnation(number) for number in numbers})
            self.settle()
        self.nodes = nodes

    def learn(self, facts: Sequence[Fact]) -> None:
        self.ingest.take(facts)
        self.settle()


def _seen(number: int, wall: float) -> Fact:
    news = NodeSeen(
        node=node_id(number),
        cluster=CLUSTER,
        pool=POOL,
        as_of=1.0,
        incarnation=incarnation(number),
        domain=f"rack-{number // 32}",
        devices=tuple(Device(index=index, serial=f"{number:08d}{index:02d}") for index in range(GPUS)),
        first_connection=True,
    )
    return Fact(id=f"seen/{number}", at=moment(wall), news=news)
