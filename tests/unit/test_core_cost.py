"""The cost of the core: what shares a commit, what shares a sync, what is not read or walked in vain."""

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from bench.far_side import AtOnce, far_hands
from bench.rig import Bench, open_policy, rules_of, xid
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from sqlalchemy import Engine as SqlEngine
from sqlalchemy import event

from sickbay.adapters.stores.age import AT_ONCE
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import open_store
from sickbay.brain.decision import ReadFirst
from sickbay.brain.job_input import Placement
from sickbay.brain.place import NoPlace, place
from sickbay.brain.retention import aged, cutoff
from sickbay.engine.apply import learn
from sickbay.engine.ingest import Together
from sickbay.engine.job_reads import free_on, input_of, supply
from sickbay.engine.lead import Engine, Setup
from sickbay.engine.view import Draft, View
from sickbay.model.errors import StoreUnavailable
from sickbay.model.facts import CallResult, Fact, Observed, Outcome
from sickbay.model.fault import Remedy
from sickbay.model.fleet import AgentState, Ages, Cursor, Device, Incarnation, JobId, Node, NodeId, Roster
from sickbay.model.incident import Incident, Phase
from sickbay.model.intent import Intent, IntentState
from sickbay.model.job import Interruption, Job, JobSpec, JobState
from sickbay.model.rows import CURSOR, Rows, Unit, key_of
from sickbay.policy.load import load_policy
from sickbay.ports.store import Committed
from sickbay.sim.context import ClusterRules
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import CLUSTER, Plan, Simulation

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INC = Incarnation(uid="u", instance_id="i", boot_id="b")
RULES = rules_of(open_policy(), far_hands())
NAMES = st.sampled_from(["c/a", "c/b", "c/d"])
POOLS = st.sampled_from(["c/p", "c/q"])
NODES = 60


class Ledgered(MemoryStore):
    """Counts what would wait for the disk, and what was read."""

    def __init__(self) -> None:
        super().__init__(limits=True)
        self.commits = 0
        self.synced = 0
        self.loads: Counter[int] = Counter()  # by how many rows were asked for
        self.appended: list[int] = []
        self.sent: set[str] = set()  # intents whose SENT has been committed
        self.alone = 0  # units that were refused in their group and planned again by themselves
        self._grouped = False

    def load(self, keys: Iterable[str]) -> Rows:
        asked = list(keys)
        self.loads[len(asked)] += 1
        return super().load(asked)

    def commit_many(self, units: Sequence[Unit], epoch: int) -> Committed:
        self.commits += 1
        self.synced += any(unit.durable for unit in units)
        self._grouped = True
        done = super().commit_many(units, epoch)
        self._grouped = False
        for unit in units[: len(done.versions)]:
            rows = (row for row in unit.writes.values() if isinstance(row, Intent))
            self.sent.update(row.key for row in rows if row.state is IntentState.SENT)
        return done

    def commit(self, unit: Unit, epoch: int) -> int:
        self.alone += not self._grouped
        return super().commit(unit, epoch)


class Witness(AtOnce):
    """An executor that asks, at each call, whether its SENT is in the store."""

    def __init__(self, store: Ledgered) -> None:
        self._store = store
        self.early: list[str] = []
        self.calls = 0

    def submit(self, lane: str, call: object, timeout: float, done: object, key: str) -> None:
        self.calls += 1
        if key not in self._store.sent:
            self.early.append(key)
        super().submit(lane, call, timeout, done, key)  # type: ignore[arg-type]


def fleet(group: int) -> tuple[Bench, Ledgered, Witness]:
    store = Ledgered()
    Bench.over(store).populate(NODES)
    store.resign("bench")
    hands, witness = far_hands(), Witness(store)
    plain = Bench.over(store)
    setup = Setup(holder="group", lease_ttl=3600.0, group=group, strict=True)
    engine = Engine(store, hands, rules_of(open_policy(), hands), witness, plain.clock, setup)
    bench = Bench(store, plain.clock, engine, plain.ingest, NODES)
    bench.settle()
    return bench, store, witness


def strike(bench: Bench, store: Ledgered) -> None:
    bench.ingest.take([xid(number, 79, number, at=bench.clock.wall()) for number in range(NODES)])
    store.commits = store.synced = store.alone = 0
    store.loads.clear()
    bench.settle()
    phases = [v.row.phase for v in store.load(store.keys("incident")).values() if isinstance(v.row, Incident)]
    assert phases == [Phase.QUARANTINED] * NODES


def test_a_mass_failure_shares_its_commits_and_its_syncs() -> None:
    bench, store, _ = fleet(group=100)
    strike(bench, store)
    assert store.synced <= 3, "all SENT of a round wait for the disk once"
    assert store.commits <= 20
    assert store.alone == 0, "each is planned upon what the last one leaves"
    bench, store, _ = fleet(group=1)
    strike(bench, store)
    assert store.synced == NODES, "each alone: each SENT by itself"
    assert store.commits > 3 * NODES


@pytest.mark.parametrize("group", [1, 7, 100])
def test_every_sent_is_committed_before_its_call(group: int) -> None:
    bench, store, witness = fleet(group)
    strike(bench, store)
    assert witness.calls >= NODES
    assert witness.early == []


def test_rows_are_loaded_together_not_one_by_one() -> None:
    bench, store, _ = fleet(group=100)
    strike(bench, store)
    assert store.loads[1] < NODES / 2, "no round loads a row for each node by itself"


def test_a_refused_unit_takes_none_of_those_before_it_along() -> None:
    """Another wrote one of the rows behind our back: its unit is planned again, the others stand."""
    bench, store, witness = fleet(group=100)
    bench.ingest.take([xid(number, 79, number, at=bench.clock.wall()) for number in range(NODES)])
    real = store.commit_many
    meddled: list[str] = []

    def meddle(units: Sequence[Unit], epoch: int) -> Committed:
        keys = [key for unit in units for key, v in unit.expect.items() if key.startswith("node:") and v > 0]
        if len(units) > 10 and keys and not meddled:
            meddled.append(keys[len(keys) // 2])
            row = store.load([meddled[0]])[meddled[0]].row
            store.commit(Unit(writes={meddled[0]: row}), epoch)
        return real(units, epoch)

    store.commit_many = meddle  # type: ignore[method-assign]
    bench.settle()
    phases = [v.row.phase for v in store.load(store.keys("incident")).values() if isinstance(v.row, Incident)]
    assert meddled
    assert phases == [Phase.QUARANTINED] * NODES
    assert witness.early == []


# --- indexes


class Agrees(RuleBasedStateMachine):
    """Whatever is written, in whatever order, the indexes say what a walk over all rows says."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(limits=False)
        lease = self.store.lease("me", 1e9)
        assert lease is not None
        self.epoch = lease.epoch
        self.view = View(self.store)
        self.ahead: list[Unit] = []
        self.times = count(1)

    def write(self, *rows: Node | Job | Roster, ahead: bool) -> None:
        unit = Unit(writes={key_of(row): row for row in rows})
        self.view.fetch(unit.writes)
        if ahead:
            self.ahead.append(unit)
            self.view.wrote(unit, -len(self.ahead))
            return
        self.settle()
        self.view.wrote(unit, self.store.commit(unit, self.epoch))

    @rule(name=NAMES, pool=POOLS, claimable=st.booleans(), gpus=st.integers(0, 3), ahead=st.booleans())
    def write_node(self, name: str, pool: str, claimable: bool, gpus: int, ahead: bool) -> None:
        devices = tuple(Device(index=index) for index in range(gpus))
        row = Node(id=NodeId(name), cluster="c", pool=pool, incarnation=None, claimable=claimable, devices=devices)
        self.write(row, ahead=ahead)

    @rule(
        name=st.sampled_from(["j1", "j2", "j3"]),
        claim=st.dictionaries(NAMES, st.sampled_from([(), (0,), (1,), (0, 1)]), max_size=3),
        lost=st.lists(st.lists(NAMES, max_size=3), max_size=3),
        state=st.sampled_from([JobState.QUEUED, JobState.RUNNING, JobState.COMPLETE]),
        ahead=st.booleans(),
    )
    def write_job(
        self, name: str, claim: dict[str, tuple[int, ...]], lost: list[list[str]], state: JobState, ahead: bool
    ) -> None:
        row = Job(
            id=JobId(name),
            spec=JobSpec(name=name, cluster="c", pool="p"),
            submitted_at=NOON,
            state=state,
            claim={NodeId(node): devices for node, devices in claim.items()} if state is JobState.RUNNING else {},
            interruptions=tuple(
                Interruption(attempt=n, cause="c", at=float(next(self.times)), rosters=1) for n in range(len(lost))
            ),
        )
        rosters = [
            Roster(job=row.id, attempt=n, number=0, at=NOON, nodes=tuple(map(NodeId, nodes)))
            for n, nodes in enumerate(lost)
        ]
        self.write(row, *rosters, ahead=ahead)

    @rule()
    def settle(self) -> None:
        if self.ahead:
            done = self.store.commit_many(self.ahead, self.epoch)
            assert done.refused is None
            self.view.confirm(self.ahead, done.versions)
            self.ahead = []

    @precondition(lambda self: not self.ahead)
    @rule()
    def forget(self) -> None:
        self.view.forget()

    @invariant()
    def agree(self) -> None:
        nodes = [self.view.get(f"node:{name}").row for name in ("c/a", "c/b", "c/d")]
        found = [self.view.get(f"job:{name}").row for name in ("j1", "j2", "j3")]
        jobs = [job for job in found if isinstance(job, Job) and job.open]
        draft = Draft(self.view, RULES, {}, NOON)
        for node in nodes:
            if not isinstance(node, Node):
                continue
            assert draft.holders(node) == [job for job in jobs if node.id in job.claim]
            interrupted = [job for job in jobs if any(node.id in draft.roster(job, lost) for lost in job.interruptions)]
            assert draft.interrupted_on(node) == interrupted
            waiting = [job for job in jobs if job.state is JobState.QUEUED and job.pool == node.pool]
            assert draft.waiting_jobs(node) == waiting
        for pool, wanted in ((pool, wanted) for pool in ("c/p", "c/q") for wanted in (0, 1, 2)):
            mine = [node for node in nodes if isinstance(node, Node) and node.pool == pool and node.claimable]
            assert list(self.view.find(f"claimable:{pool}")) == [key_of(node) for node in mine]
            spec = JobSpec(name="n", cluster="c", pool=pool.partition("/")[2], gpus_per_node=wanted)
            asks = Job(id=JobId("new"), spec=spec, submitted_at=NOON)
            fit = [node.id for node in mine if free_on(draft, asks, node) is not None]
            assert list(self.view.free(pool).first(wanted)) == fit
            assert self.view.free(pool).count(wanted) == len(fit)


Agrees.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestIndexes = Agrees.TestCase


class Walked(Draft):
    """Counts the rows that a decision looks at."""

    def __init__(self, *asked: Any) -> None:
        super().__init__(*asked)
        self.looked: Counter[str] = Counter()

    def read(self, kind: Any, key: str, *, watch: bool = True) -> Any:
        self.looked[key.partition(":")[0]] += 1
        return super().read(kind, key, watch=watch)

    def peek(self, kind: Any, key: str) -> Any:
        self.looked[key.partition(":")[0]] += 1
        return super().peek(kind, key)


def pool_of(nodes: int, jobs: int) -> View:
    """A pool with one job on each of its first nodes; all of them were interrupted elsewhere."""
    store = MemoryStore(limits=False)
    lease = store.lease("me", 1e9)
    assert lease is not None
    rows: list[Node | Job | Roster] = [
        Node(id=NodeId(f"c/n{n:05d}"), cluster="c", pool="c/p", incarnation=INC, claimable=True, agent=AgentState.HEARD)
        for n in range(nodes)
    ]
    lost = Interruption(attempt=1, cause="c", stages={"detected": NOON}, rosters=1)
    rows += [
        Job(
            id=JobId(f"j{n:05d}"),
            spec=JobSpec(name="j", cluster="c", pool="p"),
            submitted_at=NOON,
            state=JobState.RUNNING,
            claim={NodeId(f"c/n{n:05d}"): ()},
            interruptions=(lost,),
        )
        for n in range(jobs)
    ]
    gone = (NodeId("c/gone"),)
    rows += [Roster(job=JobId(f"j{n:05d}"), attempt=1, number=0, at=NOON, nodes=gone) for n in range(jobs)]
    store.commit(Unit(writes={key_of(row): row for row in rows}), lease.epoch)
    return View(store)


def placed(draft: Draft, job: Job) -> Placement | NoPlace:
    s = input_of(draft, job)
    while isinstance(found := place(s, draft.rules.policy), ReadFirst):
        s = supply(draft, s, found)
    return found


def test_placing_a_job_that_waits_does_not_walk_its_pool() -> None:
    view = pool_of(nodes=1000, jobs=990)
    job = Job(id=JobId("waits"), spec=JobSpec(name="w", cluster="c", pool="p", nodes=20), submitted_at=NOON)
    draft = Walked(view, RULES, {}, NOON)
    assert placed(draft, job) == NoPlace("needs 20 nodes of c/p, 10 can be claimed")
    assert draft.looked["node"] == draft.looked["job"] == 0
    fits = replace(job, spec=replace(job.spec, nodes=4))
    found = placed(draft, fits)
    assert isinstance(found, dict)
    assert list(found) == [f"c/n{n:05d}" for n in range(990, 994)]
    assert draft.looked["node"] == 4, "it looks at the nodes that it takes"
    assert draft.looked["job"] == 0


def test_an_observation_looks_at_the_jobs_of_its_node_alone() -> None:
    draft = Walked(pool_of(nodes=1000, jobs=900), RULES, {}, NOON)
    news = Observed(node=NodeId("c/n00007"), kind="xid", fields={"number": 79, "device": 0}, text="x", incarnation=INC)
    learn(draft, Fact(id="f", at=NOON, seq=1, news=news))
    assert any(key.startswith("incident:") for key in draft.writes)
    assert draft.looked["job"] <= 2, "the one that holds the node; none was interrupted there"


def test_a_seat_that_fails_wakes_no_job_that_waits_and_what_is_freed_wakes_it() -> None:
    sim = Simulation(Plan(nodes=6))
    sim.submit("big", Programme(steps=10**6, checkpoint_every=1000), nodes=4)
    sim.run_until(lambda: bool(sim.jobs()) and sim.jobs()[0].state is JobState.RUNNING, 600)
    sim.submit("waits", Programme(steps=10), nodes=3)
    sim.run(60)
    before = sim.store.load(["job:waits"])["job:waits"].version
    assert before
    spare = next(node for node in sim.nodes if node not in sim.job(JobId("big")).claim)
    sim.world.strike(spare, SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
    assert sim.run_until(lambda: any(i.phase is Phase.REPAIRING for i in sim.incidents(spare)), 600)
    assert sim.store.load(["job:waits"])["job:waits"].version == before, "it could only have waited on"
    sim.order("stop", "big")
    assert sim.run_until(lambda: sim.job(JobId("waits")).state is not JobState.QUEUED, 600)


# --- outcomes


def outcome(number: int) -> Outcome:
    return Outcome(key=f"k{number}", result=CallResult.ACCEPTED, sends=1)


def test_outcomes_that_arrive_while_another_waits_for_the_disk_share_the_next_append() -> None:
    appended: list[int] = []
    begun, free = threading.Event(), threading.Event()

    class Slow(MemoryStore):
        def append(self, facts: Sequence[Fact], *rest: Any, **more: Any) -> int:
            appended.append(len(facts))
            begun.set()
            assert free.wait(10)
            return super().append(facts, *rest, **more)

    store = Slow()
    told = Together(store, Bench.over(MemoryStore()).clock)
    threads = [threading.Thread(target=told.tell, args=(f"o{n}", outcome(n))) for n in range(9)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(told._told) < 8:  # all of them have come
        threads[0].join(0.001)
    free.set()
    for thread in threads:
        thread.join(10)
    assert appended == [1, 8]
    assert len(store.facts(0)) == 9


def test_an_outcome_that_cannot_be_stored_is_told_to_whoever_stored_it() -> None:
    class Gone(MemoryStore):
        def append(self, *asked: Any, **more: Any) -> int:
            raise StoreUnavailable(f"away: {asked} {more}")

    told = Together(Gone(), Bench.over(MemoryStore()).clock)
    with pytest.raises(StoreUnavailable):
        told.tell("o", outcome(1))


# --- retention

KEEP = timedelta(days=90)
T0 = 1_800_000_000.0


def lived(days: int, jumps: dict[int, float] | None = None) -> tuple[Ages, float, float]:
    """Ages after so many days, asked every hour of them; on some days the wall is ahead by so many seconds."""
    ages = Ages()
    reading = wall = 0.0
    for hour in range(days * 24 + 1):
        reading, wall = hour * 3600.0, T0 + hour * 3600.0 + (jumps or {}).get(hour // 24, 0.0)
        ages = aged(ages, reading, wall, KEEP)
    return ages, reading, wall


def test_what_is_old_is_measured_by_the_watched_clock() -> None:
    assert cutoff(*lived(80), KEEP) is None, "nothing here is 90 days old"
    assert cutoff(*lived(200), KEEP) == datetime.fromtimestamp(T0 + 110 * 86_400, UTC)
    assert len(lived(200)[0].marks) <= 93, "it does not grow with time"


def test_a_wall_clock_that_jumps_months_ahead_makes_nothing_old() -> None:
    ahead = 200 * 86_400.0
    ages, reading, wall = lived(50)
    assert cutoff(ages, reading, wall + ahead, KEEP) is None
    right = datetime.fromtimestamp(T0 + 110 * 86_400, UTC)
    ages, reading, wall = lived(200)
    assert cutoff(ages, reading, wall + ahead, KEEP) == right
    for day in (109, 110, 111, 150, 200):
        assert cutoff(*lived(200, {day: ahead}), KEEP) == right, day


def test_retention_reads_a_page_of_facts_when_none_is_old(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 's.db'}")
    lease = store.lease("me", 1e9)
    assert lease is not None
    news = Observed(node=NodeId("c/a"), kind="xid", fields={"number": 31}, text="x")
    store.append([Fact(id=f"f{n}", at=NOON, news=news) for n in range(2000)])
    store.commit(Unit(writes={CURSOR: Cursor(at=2000)}), lease.epoch)
    asked: list[str] = []

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        asked.append(f"{statement} {parameters}")

    event.listen(SqlEngine, "before_cursor_execute", note)
    try:
        assert store.forget(NOON - KEEP) == 0
    finally:
        event.remove(SqlEngine, "before_cursor_execute", note)
        store.close()
    facts = [statement for statement in asked if "FROM facts" in statement]
    assert len(facts) == 1
    assert str(AT_ONCE) in facts[0]


@pytest.mark.slow
def test_the_policy_says_how_long_what_is_over_is_kept() -> None:
    policy = load_policy("default")
    kept = {}
    for days in (1, 3):
        own = replace(policy, retention=replace(policy.retention, history=timedelta(days=days)))
        cluster = ClusterRules(id=CLUSTER, period=60.0)  # two days pass: nothing happens in them
        sim = Simulation(Plan(nodes=2, strict=False, cluster=cluster), policy=own)
        for _ in range(50):
            sim.hosts[0]._engine.oldest()
            sim.run(3600.0)
        kept[days] = sim.hosts[0]._engine.oldest()
    assert kept[1] is not None
    assert kept[3] is None, "it has not been here for so long"


def test_the_engine_marks_each_day_and_says_what_may_be_forgotten() -> None:
    sim = Simulation(Plan(nodes=2, strict=False))
    engine = sim.hosts[0]._engine
    assert engine.oldest(timedelta(seconds=30)) is None, "the first mark is younger"
    sim.run(120.0)
    found = engine.oldest(timedelta(seconds=30))
    assert found is not None
    assert timedelta(seconds=25) < datetime.fromtimestamp(sim.clock.wall(), UTC) - found < timedelta(seconds=60)
