"""Sizes and costs at the edges: what one change costs in a large fleet, and how large the largest rows become."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from bench.far_side import CLUSTER, far_hands
from bench.figure import Figure, Line, Size, in_words, percentile
from bench.rig import LEASE, POOL, Bench, RealClock, node_id, open_policy, rules_of, store_of, xid
from sickbay.adapters.stores.codec import count, pack
from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain.admit import COUNTED_MOST
from sickbay.engine.apply import learn
from sickbay.engine.transitions import step_job
from sickbay.engine.view import Draft, View, moment
from sickbay.model.facts import Fact, JobSeen, Observed, Submitted
from sickbay.model.fleet import Brake, Cursor, JobId, NodeId
from sickbay.model.job import Job, JobSpec, JobState, RankState
from sickbay.model.parts import stored
from sickbay.model.policy import Limit
from sickbay.model.rows import CURSOR, ITEM_BYTES, Unit, key_of, kind_of
from sickbay.policy.load import load_policy
from sickbay.ports.store import Store

PLACING, LEARNING, DELAY = 0.020, 200e-6, 0.020
SAMPLES = 20
OLD = timedelta(days=100)
KEPT = timedelta(days=90)


def place_after_a_fault(nodes: int, waiting: int) -> float:
    """Seconds of rounds from the fault of a spare node to rest, while many jobs wait for more nodes than are left."""
    store = MemoryStore(limits=False)
    bench = Bench.over(store, policy=replace(open_policy(), examine=()))
    bench.populate(nodes)
    at = moment(bench.clock.wall())
    most = nodes * 9 // 10
    spec = JobSpec(name="llama", cluster=CLUSTER, pool=POOL, nodes=most)
    bench.learn([Fact(id="submit/llama", at=at, news=Submitted(job=JobId("llama"), spec=spec))])
    ranks = dict.fromkeys(map(node_id, range(most)), RankState.RUNNING)
    bench.learn([Fact(id="seen/llama", at=at, news=JobSeen(job=JobId("llama"), attempt=1, as_of=2.0, ranks=ranks))])
    smaller = replace(spec, nodes=nodes // 5)
    queue = [Submitted(job=JobId(f"queued-{n}"), spec=replace(smaller, name=f"queued-{n}")) for n in range(waiting)]
    bench.learn([Fact(id=f"submit/{news.job}", at=at, news=news) for news in queue])
    took = []
    for spare in range(nodes - min(SAMPLES, nodes - most), nodes):
        bench.ingest.take([xid(spare, 79, spare, at=bench.clock.wall())])
        start = time.perf_counter()
        bench.settle()
        took.append(time.perf_counter() - start)
    return percentile(took, 0.5)


def learn_one(jobs: int, observations: int) -> float:
    """Seconds of the processor for one observation, beside many open jobs with three interruptions each."""
    store = MemoryStore(limits=False)
    bench = Bench.over(store)
    bench.populate(observations)
    lease = store.lease("bench", LEASE)
    if lease is None:
        raise RuntimeError("somebody else leads")
    at = moment(bench.clock.wall())
    view, rules = View(store), rules_of(open_policy(), far_hands())
    for number in range(jobs):
        job = _gang(f"job-{number}", [node_id(observations + 4 * number + n) for n in range(4)])
        for attempt in (1, 2, 3):
            draft = Draft(view, rules, {}, at)
            lost = step_job(draft, replace(job, attempt=attempt), "ended", "a fault", {})
            draft.put(replace(lost, state=JobState.RUNNING, claim=job.claim, ranks=job.ranks))
            unit = draft.unit()
            view.wrote(unit, store.commit(unit, lease.epoch))
            job = replace(job, interruptions=lost.interruptions)
    facts = [replace(xid(n, 79, n, at=bench.clock.wall()), seq=10**6 + n) for n in range(observations)]
    learn(Draft(view, rules, {}, at), facts[0])  # builds the indexes
    start = time.process_time()
    for fact in facts:
        learn(Draft(view, rules, {}, at), fact)
    return (time.process_time() - start) / observations


def _gang(name: str, nodes: list[NodeId]) -> Job:
    return Job(
        id=JobId(name),
        spec=JobSpec(name=name, cluster=CLUSTER, pool=POOL, nodes=len(nodes)),
        submitted_at=moment(0.0),
        state=JobState.RUNNING,
        attempt=1,
        claim=dict.fromkeys(nodes, tuple(range(8))),
        ranks=dict.fromkeys(nodes, RankState.RUNNING),
    )


@dataclass(frozen=True, slots=True)
class Tidying:
    """Rounds that learn one fact each, without and with retention beside them, in seconds."""

    facts: int
    forgotten: int
    took: float
    without: list[float]
    beside: list[float]

    @property
    def delay(self) -> float:
        """By how much the longest round beside it was longer than the longest without it."""
        return max(self.beside) - max(self.without)


def tidy(facts: int) -> Tidying:
    """All facts are old, and are forgotten while the engine goes on."""
    clock = RealClock()
    with store_of("sqlite") as store:
        _fill(store, facts, clock.wall() - OLD.total_seconds())
        bench = Bench.over(store, clock)
        bench.populate(50)
        done, forgotten = threading.Event(), [0]

        def forget() -> None:
            forgotten[0] = store.forget(moment(clock.wall()) - KEPT)
            done.set()

        without = list(_rounds(bench, "before", threading.Event(), min(200, facts // 50)))
        start = time.perf_counter()
        thread = threading.Thread(target=forget, daemon=True)
        thread.start()
        beside = list(_rounds(bench, "beside", done, facts))
        thread.join()
        return Tidying(facts, forgotten[0], time.perf_counter() - start, without, beside)


def _fill(store: Store, facts: int, at: float) -> None:
    """Facts that were planned long ago."""
    lease = store.lease("filler", LEASE)
    if lease is None:
        raise RuntimeError("somebody else leads")
    text = "NVRM: Xid (PCI:0000:10:00): 31, pid=475, name=python, channel 0x0000000a, intr 00000000. MMU Fault"
    for first in range(0, facts, 5_000):
        news = Observed(node=node_id(first % 50), kind="gpu.temperature", fields={"device": 0}, text=text)
        numbers = range(first, min(first + 5_000, facts))
        store.append([Fact(id=f"old/{number}", at=moment(at), news=news) for number in numbers])
    store.commit(Unit(writes={CURSOR: Cursor(at=facts)}, expect={CURSOR: 0}), lease.epoch)
    store.resign("filler")


def _rounds(bench: Bench, name: str, done: threading.Event, most: int) -> Iterator[float]:
    """At least a few, then until the other is done."""
    for number in range(most):
        if done.is_set() and number >= SAMPLES:
            return
        bench.ingest.take([xid(number % 50, 43, f"{name}-{number}", at=bench.clock.wall())])
        start = time.perf_counter()
        bench.engine.round()
        yield time.perf_counter() - start
        time.sleep(0.002)


def long_name(number: int) -> NodeId:
    """As long as a cloud's."""
    return NodeId(f"{CLUSTER}/ip-10-{number // 250}-{number % 250}-17.us-west-2.compute.internal")


Sizes = dict[str, int]  # of the largest row of each kind, in bytes


def wide_job(nodes: int, interruptions: int) -> Sizes:
    """The rows of a gang that was interrupted again and again."""
    store = MemoryStore()
    lease = store.lease("bench", LEASE)
    if lease is None:
        raise RuntimeError("somebody else leads")
    view, rules, sizes = View(store), rules_of(open_policy(), far_hands()), Sizes()
    job = _gang("llama", [long_name(number) for number in range(nodes)])
    for attempt in range(1, interruptions + 1):
        draft = Draft(view, rules, {}, moment(float(attempt)))
        lost = step_job(draft, replace(job, attempt=attempt), "ended", f"xid.79 on {long_name(attempt)}", {})
        job = replace(lost, state=JobState.RUNNING, claim=job.claim, ranks=job.ranks)
        draft.put(job)
        unit = draft.unit()
        body = draft.body(unit)
        count(body, {})
        view.wrote(unit, store.commit(body, lease.epoch))
        _grow(sizes, body)
    return sizes


def _grow(sizes: Sizes, unit: Unit) -> None:
    for key, body in pack(unit).writes.items():
        sizes[kind_of(key)] = max(sizes.get(kind_of(key), 0), len(body or b""))


class _Weighing(MemoryStore):
    """With all limits; keeps the size of the largest row of each kind, and counts the rows of each."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Sizes()

    def commit(self, unit: Unit, epoch: int) -> int:
        _grow(self.sizes, unit)
        return super().commit(unit, epoch)


def storm(pool: int, faults: int) -> Sizes:
    """Rows after so many nodes of a pool of this size have failed at once, by the default policy."""
    policy = load_policy("default")
    limits = tuple(replace(limit, size=pool) for limit in policy.limits or (Limit(),))
    store = _Weighing()
    bench = Bench.over(store, policy=replace(policy, limits=limits))
    bench.populate(faults)
    bench.learn([xid(number, 79, number, at=bench.clock.wall()) for number in range(faults)])
    return store.sizes


def counting_brake(names: int) -> Sizes:
    """The rows of a brake that counts so many nodes."""
    brake = Brake(scope=f"pool:{CLUSTER}/{POOL}", signature="xid.79", seen={long_name(n): n / 7 for n in range(names)})
    sizes = Sizes()
    _grow(sizes, stored(Unit(writes={key_of(brake): brake}), lambda _: None, moment(0.0)))
    return sizes


def _told(sizes: Sizes, *kinds: str) -> str:
    return ", ".join(f"{kind} {sizes.get(kind, 0) / 1000:,.1f} kB" for kind in kinds)


def run(size: Size) -> Figure:
    nodes, waiting = size.pick(full=10_000, quick=2_000, tiny=40), size.pick(full=200, quick=50, tiny=3)
    jobs = size.pick(full=5_000, quick=1_000, tiny=20)
    gang, lost = size.pick(full=4_096, quick=1_024, tiny=300), size.pick(full=60, quick=20, tiny=3)
    pool, faults = size.pick(full=100_000, quick=20_000, tiny=400), size.pick(full=6_000, quick=1_200, tiny=30)
    placing = place_after_a_fault(nodes, waiting)
    learning = learn_one(jobs, size.pick(full=1_000, quick=500, tiny=10))
    tidying = tidy(size.pick(full=1_000_000, quick=50_000, tiny=1_000))
    job, brakes = wide_job(gang, lost), storm(pool, faults)
    brake = counting_brake(COUNTED_MOST)
    largest = max(*job.values(), *brakes.values(), *brake.values())
    fits = f"< {ITEM_BYTES // 1000} kB"
    return Figure(
        title="Sizes and costs at the edges",
        about=(
            f"Placing: a spare node fails (Xid 79) while {waiting:,} jobs wait for a fifth of {nodes:,} nodes each; all"
            f" rounds until rest, median of {SAMPLES}. Learning: one observation that opens an incident, beside"
            f" {jobs:,} open jobs with three interruptions each, in processor time. Retention: {tidying.facts:,} facts"
            " on SQLite, all of them old, are forgotten beside rounds that each learn one fact. Rows: a job on"
            f" {gang:,} nodes with {lost} interruptions, and a brake that counts {COUNTED_MOST:,} nodes, with names of"
            f" about 45 bytes; {faults:,} faults at once in a pool of {pool:,}, under the default policy and with all"
            " limits of the strictest store."
        ),
        lines=(
            Line("placing after one fault", in_words(placing), f"< {in_words(PLACING)}", placing < PLACING),
            Line("one observation beside many jobs", in_words(learning), f"< {in_words(LEARNING)}",
                 learning < LEARNING),
            Line("retention: the longest round without it", in_words(max(tidying.without))),
            Line("retention: the longest round beside it", in_words(max(tidying.beside))),
            Line("retention: delays a round by at most", in_words(max(tidying.delay, 0.0)), f"≤ {in_words(DELAY)}",
                 tidying.delay <= DELAY),
            Line("the wide job's largest rows", _told(job, "job", "part", "roster"), fits,
                 max(job.values()) < ITEM_BYTES),
            Line("the storm's largest rows", _told(brakes, "brake", "part", "incident", "ledger"), fits,
                 max(brakes.values()) < ITEM_BYTES),
            Line("the rows of a brake that counts most", _told(brake, "brake", "part"), fits,
                 max(brake.values()) < ITEM_BYTES),
        ),
        notes=(
            f"{tidying.forgotten:,} were forgotten in {tidying.took:.1f} s, beside {len(tidying.beside):,} rounds.",
            f"The largest row of all has {largest / 1000:,.0f} kB; a row may have {ITEM_BYTES // 1000} kB.",
        ),
    )  # fmt: skip
