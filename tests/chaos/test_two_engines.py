"""Two engines in processes of their own on one PostgreSQL, in real time: one is killed, or stands still and wakes."""

import signal
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from random import Random
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace
from sqlalchemy import create_engine, make_url, text
from tests.support.apart_simulation import Born, Nursery, far_sites, perform
from tests.support.remote_engine import READS, EngineBirth

from sickbay.adapters.stores.sql import open_store
from sickbay.engine.execute import Effects, Site
from sickbay.model.facts import AnyNews, Fact, Submitted
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, Node
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.policy.load import load_policy
from sickbay.sim.adapters import SimChecks, SimCluster, SimMachines, SimNotifier
from sickbay.sim.chaos import Mischief
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.schedule import Scheduler
from sickbay.sim.world import World

pytestmark = pytest.mark.slow

CLUSTER, POOL = "sim", "train"
TTL = 2.0
DEADLINE = 60.0  # of any condition; reached only when something is broken
QUICK = Timings(
    pulse=1.0,
    report_takes=0.05,
    look_takes=0.1,
    agent_starts=0.2,
    notice=1.0,
    boot_takes=1.0,
    start_takes=0.3,
    stop_takes=0.2,
    siblings_fail=0.5,
    check_takes=(0.3, 0.4, 0.5, 0.5),
)
ONCE = frozenset({"cordon", "uncordon", "reboot", "start", "look", "check.start"})


class Called(NamedTuple):
    by: str
    method: str


class Engine:
    """One process, its two wires, and what it was handed and has not acknowledged."""

    def __init__(self, name: str, born: Born) -> None:
        self.name = name
        self.born = born
        self.orders, self.calls = born.ends
        self.unanswered: deque[tuple[Any, ...]] = deque()
        self.acknowledged = 0
        self.alive = True

    @property
    def stands_still(self) -> bool:
        found = subprocess.run(
            ["ps", "-o", "state=", "-p", str(self.born.pid)], capture_output=True, text=True, check=False
        )
        return found.stdout.startswith("T")


class Ward:
    """The world in this process, on real time; engines come and go."""

    def __init__(self, nursery: Nursery, url: str) -> None:
        self._nursery = nursery
        self._url = url
        pace = replace(load_policy("default").pace, call_timeout=timedelta(seconds=0.5))
        self._policy = replace(load_policy("default"), pace=pace)
        self._scheduler = Scheduler()
        self.world = World(self._scheduler, Random(0), Mischief(call_timeout=0.5), self._deliver, QUICK)
        self.world.add_cluster(ClusterRules(id=CLUSTER, period=0.5, lag=0.05))
        self.nodes = self.world.add_nodes(CLUSTER, 3, pool=POOL, gpus=2)
        for seat in self.world.seats.values():
            seat.unmanaged = 1
            self.world.ground.show(seat)
        site = Site(SimCluster(self.world, CLUSTER), SimMachines(self.world, CLUSTER), SimChecks(self.world, CLUSTER))
        self._hands = Effects(sites={CLUSTER: site}, notifiers={"log": SimNotifier(self.world)})
        self.engines: list[Engine] = []
        self.ear: Engine | None = None
        self._unheard: deque[tuple[Any, ...]] = deque()
        self.called: list[Called] = []
        self._began = time.monotonic()
        self._ahead = self.world.clock.wall() - time.time()
        self._store = open_store(url)
        self._admin = create_engine(make_url(url).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")

    # --- engines
    def engine(self, name: str, *, halt_at: str = "", halt_by: int = 0) -> Engine:
        life = EngineBirth(
            holder=name,
            url=self._url,
            policy=self._policy,
            lease_ttl=TTL,
            period=QUICK.pulse,
            sites=far_sites(self._hands),
            halt_at=halt_at,
            halt_by=halt_by,
            ahead=self._ahead,
            stepped=False,
        )
        engine = Engine(name, self._nursery.bear(life))
        self.engines.append(engine)
        return engine

    def bury(self, engine: Engine) -> int:
        engine.alive = False
        return engine.born.bury()

    @property
    def leader(self) -> str | None:
        with self._admin.connect() as connection:
            holder: str | None = connection.execute(text("SELECT holder FROM lease")).scalar_one()
            return holder

    def mutations(self, engine: Engine) -> list[str]:
        return [call.method for call in self.called if call.by == engine.name and call.method not in READS]

    # --- the flow
    def _deliver(self, facts: list[Fact], pulses: object) -> None:
        self._unheard.append(("hear", list(facts), dict(pulses)))  # type: ignore[call-overload]

    def tell(self, key: str, news: AnyNews) -> None:
        self._unheard.append(("tell", key, news))

    def hear_through(self, engine: Engine) -> None:
        """From now on reports go to this engine; what another has not acknowledged is sent again."""
        if self.ear is not None:
            self._unheard.extendleft(reversed(self.ear.unanswered))
            self.ear.unanswered.clear()
        self.ear = engine

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Lets time pass, the world's and ours, until it is so."""
        deadline = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < deadline, f"never came true: {what}"
            self._turn()

    def _turn(self) -> None:
        self._scheduler.run(time.monotonic() - self._began)
        ear = self.ear
        if ear is not None and self._unheard and not ear.unanswered:
            ear.unanswered.append(self._unheard.popleft())
            ear.orders.send(ear.unanswered[0])
        alive = {end: engine for engine in self.engines if engine.alive for end in (engine.orders, engine.calls)}
        for end in wait(list(alive), timeout=0.01):
            assert isinstance(end, Connection)
            self._answer(alive[end], end)

    def _answer(self, engine: Engine, end: Connection) -> None:
        try:
            said = end.recv()
        except (EOFError, ConnectionError):
            engine.alive = False
            return
        if end is engine.orders:
            assert not isinstance(said, Exception), said
            if engine.unanswered:  # else it was sent again through another
                engine.unanswered.popleft()
            engine.acknowledged += 1
            return
        _, cluster, port, method, args, named = said
        self.called.append(Called(engine.name, method))
        self._scheduler.run(time.monotonic() - self._began)
        end.send(perform(self._hands, cluster, port, method, args, named))

    # --- what the engines believe
    def rows(self, kind: str) -> list[object]:
        keys = self._store.keys(kind)
        return [row.row for row in self._store.load(keys).values()]

    def incident(self) -> Incident | None:
        found = [row for row in self.rows("incident") if isinstance(row, Incident)]
        assert len(found) <= 1, found
        return found[0] if found else None

    def job(self, job: JobId) -> Job | None:
        return next((row for row in self.rows("job") if isinstance(row, Job) and row.id == job), None)

    def in_phase(self, *phases: Phase) -> bool:
        incident = self.incident()
        return incident is not None and incident.phase in phases

    # --- the standard incident
    def settle(self) -> None:
        """Work ran on the nodes when we first connected, so that none of them counts as new; it ends now."""
        self.until(lambda: len(self.rows("node")) == len(self.nodes), "all nodes are known")
        for seat in self.world.seats.values():
            seat.unmanaged = 0
            self.world.ground.show(seat)
        self.until(
            lambda: all(isinstance(row, Node) and row.claimable for row in self.rows("node")), "all nodes are free"
        )

    def train_and_break(self) -> JobId:
        job = JobId("train")
        self.world.programme(job, Programme(steps=60, rate=20.0, checkpoint_every=10, load=0.2))
        spec = JobSpec(name="train", cluster=CLUSTER, pool=POOL, nodes=2)
        self.tell("submit/train", Submitted(job=job, spec=spec))
        self.until(lambda: bool(self.world.chronicle.of("train")), "the job trains")
        defect = SimDefect(code="xid.79", cured_by=Remedy.REBOOT, observe_after=0.1, kill_after=0.3)
        self.world.strike(self.world.running(job)[0][1][0], defect)
        return job

    def ends_well(self, job: JobId) -> None:
        def over() -> bool:
            row = self.job(job)
            return self.in_phase(Phase.RELEASED) and row is not None and row.state is JobState.COMPLETE

        self.until(over, "the node is released and the job complete")
        self.nothing_twice()

    def nothing_twice(self) -> None:
        assert self.world.chronicle.violations == []
        done = Counter((e.what, e.subject) for e in self.world.chronicle.events if e.what in ONCE)
        assert set(done.values()) == {1}, done
        assert len(self.world.chronicle.of("reboot")) == 1
        assert len(self.world.chronicle.of("start")) == 2

    def close(self) -> None:
        for engine in self.engines:
            if engine.alive:
                engine.born.kill()
                self.bury(engine)
        self._store.close()
        self._admin.dispose()


@pytest.fixture
def ward(nursery: Nursery, postgres_url: str) -> Iterator[Ward]:
    ward = Ward(nursery, postgres_url)
    yield ward
    ward.close()


def leading(ward: Ward, engine: Engine) -> Callable[[], bool]:
    return lambda: ward.leader == engine.name


def test_what_a_follower_hears_reaches_the_leader(ward: Ward) -> None:
    leader = ward.engine("leader")
    ward.until(leading(ward, leader), "the first one leads")
    follower = ward.engine("follower")
    ward.hear_through(follower)
    ward.settle()
    ward.ends_well(ward.train_and_break())
    assert leader.acknowledged == 0
    assert follower.acknowledged > 10
    assert ward.mutations(follower) == []
    assert "reboot" in ward.mutations(leader)


@pytest.mark.parametrize("phase", [Phase.QUARANTINED, Phase.DRAINED, Phase.REPAIRING, Phase.VERIFYING])
def test_when_the_leader_is_killed_the_other_goes_on_after_the_lease(ward: Ward, phase: Phase) -> None:
    leader = ward.engine("leader")
    ward.until(leading(ward, leader), "the first one leads")
    other = ward.engine("other")
    ward.hear_through(other)
    ward.settle()
    job = ward.train_and_break()
    # A phase that lasts milliseconds may have passed before anybody looks; killed is killed.
    later = list(Phase)[list(Phase).index(phase) :]
    ward.until(lambda: ward.in_phase(*later), f"the incident is {phase}")
    leader.born.kill()
    assert ward.bury(leader) == -9
    killed_at = time.monotonic()
    ward.until(leading(ward, other), "the other leads")
    assert time.monotonic() - killed_at < 3 * TTL
    ward.ends_well(job)


@pytest.mark.parametrize(
    "where", ["anywhere", "commit", "submit:Repair", "submit:StartJob", "call:cordon", "call:reboot"]
)
def test_a_leader_that_stood_still_beside_its_successor_does_nothing_when_it_wakes(ward: Ward, where: str) -> None:
    """It stops in the middle of a transaction, between SENT and the call, or with the call on its way."""
    old = ward.engine("old", halt_at=where if ":" in where else "", halt_by=signal.SIGSTOP)
    ward.until(leading(ward, old), "the first one leads")
    new = ward.engine("new")
    ward.hear_through(new)
    ward.settle()
    job = ward.train_and_break()
    if ":" not in where:
        ward.until(lambda: ward.incident() is not None, "an incident is open")
        if where == "commit":
            old.orders.send(("arm", where))
        else:
            old.born.stop()
    ward.until(lambda: old.stands_still, "the old leader stands still")
    taken = old.acknowledged
    ward.until(leading(ward, new), "the new one leads")
    before = ward.mutations(old)  # by now whatever was on its way when it stopped has arrived
    ward.ends_well(job)
    assert ward.mutations(old) == before
    old.born.go_on()
    ward.hear_through(old)
    # When it takes a report it has finished what it was doing when it stopped.
    ward.until(lambda: old.acknowledged > taken + 1, "the old one is awake")
    # A look changes nothing: it may have stood between its last question and its call, beside what was stopped.
    late = [call for call in ward.mutations(old)[len(before) :] if call != "look"]
    # What was under way when it stopped arrives late: its key says that it was done. Nothing else is sent.
    assert late in ([], [where.removeprefix("call:")])
    assert where.startswith("call:") or not late
    assert ward.leader == new.name
    ward.nothing_twice()
