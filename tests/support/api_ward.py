"""A controller over a simulated fleet, served by a real server: what the tests of the API talk to."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from msgspec.structs import replace

from sickbay.adapters.metrics.rings import RingMetrics
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.faces.api.app import app
from sickbay.faces.api.route import ApiRequest
from sickbay.hosts.backend import Backend
from sickbay.hosts.census import Census
from sickbay.hosts.changes import Changes
from sickbay.hosts.server import served
from sickbay.hosts.wakeup import Wakeup
from sickbay.model.errors import Gone, Rejected, Transient
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, NodeId, Role
from sickbay.model.job import JobSpec
from sickbay.model.protocol import Command, RunLook
from sickbay.model.rows import Rows, Unit
from sickbay.policy.load import digest
from sickbay.ports.breakable import Breakage
from sickbay.ports.cluster import Log
from sickbay.sim.adapters import SimCluster
from sickbay.sim.scenarios import NAMED, JobPlan, Scenario, stage
from sickbay.sim.simulation import Simulation
from sickbay.sim.timeline import StrikeDevice

NODE = NodeId("sim/train-0000")
TOKENS = {
    "viewer": "secret-of-vera",
    "submitter": "secret-of-susi",
    "operator": "secret-of-otto",
    "admin": "secret-of-ada",
    "agent": "secret-of-agent-0",
    "join": "secret-of-all-nodes",
}


class HeardStore(MemoryStore):
    """Says what was committed, as a controller's engine does."""

    def __init__(self, changes: Changes) -> None:
        super().__init__(limits=True, now=self._virtual)
        self.virtual: Callable[[], float] = lambda: 0.0
        self._changes = changes
        self.census: Census | None = None

    def _virtual(self) -> float:
        return self.virtual()

    def commit(self, unit: Unit, epoch: int) -> int:
        version = super().commit(unit, epoch)
        if self.census is not None:
            self.census.committed(unit)
        self._changes.committed(unit)
        return version


class TalkingCluster(SimCluster):
    """A simulated cluster whose ranks write."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(sim.world, sim.plan.cluster.id)
        self.written: dict[tuple[JobId, int, int], str] = {}
        self.over = False
        self.away = False  # it cannot be asked what is wrong with a job

    def wrong(self, spec: JobSpec) -> str:
        if self.away:
            raise Transient("it is away")
        return super().wrong(spec)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return super().capabilities | {Capability.LOGS}

    def logs(self, job: JobId, attempt: int, rank: int, *, after: str = "", last: int = 0, limit: int = 65_536) -> Log:
        text = self.written.get((job, attempt, rank))
        if text is None:
            raise Gone("no such rank")
        if after and not after.startswith("at "):
            raise Rejected(f"{after!r} is no place")
        begin = int(after[3:]) if after else max(0, len(text) - last) if last else 0
        piece = text[begin : begin + limit]
        return Log(text=piece, next=f"at {begin + len(piece)}", over=self.over and begin + len(piece) >= len(text))


class Tinker:
    """Hardware that lets itself be broken."""

    def __init__(self) -> None:
        self.broken: list[tuple[NodeId, Breakage]] = []

    def inject(self, node: NodeId, breakage: Breakage) -> str:
        self.broken.append((node, breakage))
        return f"broke device {breakage.device} of {node}"


class Ward:
    """One simulated fleet, its desk, and a thread that lets the engine work when it is woken."""

    def __init__(self, scenario: Scenario, after: float, store: type[HeardStore] = HeardStore) -> None:
        self.changes = Changes()
        self._files = TemporaryDirectory()
        kept = store(self.changes)
        self.sim = stage(scenario, store=kept)
        kept.virtual = lambda: self.sim.scheduler.now
        self.sim.plan = replace(self.sim.plan, strict=False)  # the simulator's own tests watch over invariants
        self.sim.run(after)
        self.cluster = TalkingCluster(self.sim)
        self.tinker = Tinker()
        self.mail = Wakeup()
        self._woken, self._stopping = threading.Event(), threading.Event()
        self.asleep = False  # the engine is away
        self.desk = Backend(
            kept,
            self.sim.policy,
            {digest(self.sim.policy): self.sim.policy},
            {self.cluster.id: self.cluster},
            self.sim.clock,
            self._woken.set,
            self.changes,
            self.tinker,
            RingMetrics(Path(self._files.name)),
        )
        self.desk.census.follow(kept)
        kept.census = self.desk.census
        self.trouble = ""
        self.app = app(self.desk, leads=lambda: True, mail=self.mail, trouble=lambda: self.trouble)
        self._thread = threading.Thread(target=self._drive, name="engine of the ward")
        self._lock = threading.Lock()
        self._thread.start()
        for role, secret in TOKENS.items():
            self.desk.issue(
                role, Role(role), by="setup", node=NODE if role == "agent" else None, secret=secret,
                cluster="sim" if role == "join" else "",
            )  # fmt: skip

    def _drive(self) -> None:
        while not self._stopping.is_set():
            if self._woken.wait(0.02) and not self.asleep:
                self._woken.clear()
                self.pass_time(0.2)

    def pass_time(self, seconds: float) -> None:
        with self._lock:
            self.sim.hosts[0].wake()
            self.sim.run(seconds)

    def post(self, ident: str) -> None:
        """A command for the agent of NODE."""
        now = datetime.fromtimestamp(self.sim.clock.wall(), UTC)
        command = Command(id=ident, node=NODE, order=RunLook(look=ident), posted_at=now, expires_after=600.0)
        self.sim.store.post([command])
        self.mail.ring()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self.app.state.close()
        self._files.cleanup()


# train-0000 is held for a person; two jobs train, one is over.
BROKEN = Scenario(
    name="api",
    nodes=8,
    jobs=(
        JobPlan(name="llama", nodes=2, steps=1_000_000, min_nodes=1),
        JobPlan(name="qwen", nodes=2, steps=1_000_000),
        JobPlan(name="short", nodes=1, steps=100),
    ),
    timeline=(StrikeDevice(at=timedelta(minutes=10), node="train-0000", code="xid.79", cured_by=Remedy.REPLACE),),
    cannot=(Capability.REPLACE,),
)
QUIET = replace(BROKEN, timeline=())
HOURS = 3600.0


@contextmanager
def ward(
    scenario: Scenario | str = BROKEN, after: float = 2 * HOURS, store: type[HeardStore] = HeardStore
) -> Iterator[Ward]:
    made = Ward(NAMED[scenario] if isinstance(scenario, str) else scenario, after, store)
    try:
        yield made
    finally:
        made.close()


class Caller:
    """Somebody with a token, or without."""

    def __init__(self, url: str, secret: str = "") -> None:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        # Nothing is encrypted here, and to read the certificates of this machine takes longer than most tests.
        self.http = httpx.Client(base_url=url, headers=headers, timeout=30.0, verify=False)

    def get(self, path: str, **query: Any) -> httpx.Response:
        return self.http.get(path, params=query)

    def post(self, path: str, body: Any = None, key: str = "") -> httpx.Response:
        return self.http.post(path, json={} if body is None else body, headers={"Idempotency-Key": key} if key else {})


class Clinic:
    """A ward, served: everybody who may call it."""

    def __init__(self, ward: Ward, url: str) -> None:
        self.ward = ward
        self.url = url
        self.viewer = Caller(url, TOKENS["viewer"])
        self.submitter = Caller(url, TOKENS["submitter"])
        self.operator = Caller(url, TOKENS["operator"])
        self.admin = Caller(url, TOKENS["admin"])
        self.agent = Caller(url, TOKENS["agent"])
        self.join = Caller(url, TOKENS["join"])
        self.nobody = Caller(url)

    def close(self) -> None:
        for caller in (self.viewer, self.submitter, self.operator, self.admin, self.agent, self.join, self.nobody):
            caller.http.close()


@contextmanager
def clinic(
    scenario: Scenario | str = BROKEN, after: float = 2 * HOURS, store: type[HeardStore] = HeardStore
) -> Iterator[Clinic]:
    with ward(scenario, after, store) as made, served(made.app) as server:
        calls = Clinic(made, server.url)
        try:
            yield calls
        finally:
            calls.close()


@contextmanager
def counted() -> Iterator[tuple[ApiRequest, list[list[str]]]]:
    """A request for all nodes, and which rows were asked for by it."""
    loads: list[list[str]] = []

    class Counting(HeardStore):
        def load(self, keys: Iterable[str]) -> Rows:
            wanted = list(keys)
            loads.append(wanted)
            return super().load(wanted)

    with ward(store=Counting) as made:
        loads.clear()
        yield ApiRequest(shared=made.app.state.shared, path={}, key="k"), loads
