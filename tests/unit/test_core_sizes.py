"""No row grows with the fleet, the gang or time: the figures, and what comes back is what went in."""

from datetime import UTC, datetime

import msgspec
import pytest
from bench.far_side import FarCluster
from bench.rig import RealClock
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain.admit import COUNTED_MOST, ease, press, threshold
from sickbay.brain.job_input import TOLD, listing
from sickbay.engine.apply import learn
from sickbay.engine.door import EXITS, TAIL, TEXT, cut
from sickbay.engine.ingest import Watcher
from sickbay.engine.plan import plan
from sickbay.engine.seats import settle
from sickbay.engine.transitions import step_job
from sickbay.engine.view import Draft, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.model.checkup import Verdict
from sickbay.model.facts import Fact, JobSeen, Observed, Stepped, Wrote
from sickbay.model.fleet import Brake, JobId, Node, NodeId, Part
from sickbay.model.intent import StartJob, Verify
from sickbay.model.job import End, EndReason, Job, JobSpec, JobState, RankState
from sickbay.model.parts import INLINE, whole
from sickbay.model.policy import BrakeRule, BrakeScope
from sickbay.model.rows import ITEM_BYTES, UNIT_ACTIONS, AnyRow, key_of, kind_of
from sickbay.policy.load import load_policy
from sickbay.ports.cluster import Lost, Snapshot
from sickbay.testing.store_nouns import intent as small_intent

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TABLES = load_tables()
RULES = Rules(policy=load_policy("default"), tables=TABLES, policy_digest="", can={}, blind={})


def name(number: int) -> NodeId:
    return NodeId(f"eks-train/ip-10-{number // 250}-{number % 250}-17.us-west-2.compute.internal")


def gang(size: int, **more: object) -> Job:
    nodes = [name(number) for number in range(size)]
    spec = JobSpec(name="llama", cluster="eks-train", pool="gpu", nodes=size)
    full = {
        "id": JobId("llama"), "spec": spec, "submitted_at": NOW, "state": JobState.RUNNING, "attempt": 1,
        "claim": dict.fromkeys(nodes, tuple(range(8))), "ranks": dict.fromkeys(nodes, RankState.RUNNING),
    }  # fmt: skip
    return Job(**{**full, **more})  # type: ignore[arg-type]


class Shelf:
    """A store with all its limits, and one leader."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        lease = self.store.lease("test", 1e9)
        assert lease is not None
        self.epoch = lease.epoch
        self.view = View(self.store)

    def draft(self) -> Draft:
        return Draft(self.view, RULES, {}, NOW)

    def commit(self, draft: Draft) -> set[str]:
        """Returns what was written, parts and all."""
        unit = draft.unit()
        body = draft.body(unit)
        self.view.wrote(unit, self.store.commit(body, self.epoch))
        return set(body.writes)

    def put(self, row: AnyRow) -> set[str]:
        draft = self.draft()
        draft.put(row)
        return self.commit(draft)

    def read(self, key: str) -> AnyRow | None:
        return whole(self.store.load([key]), self.store.load)[key].row

    def largest(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for key, body in self.store._bodies.items():
            found[kind_of(key)] = max(found.get(kind_of(key), 0), len(body))
        return found


@pytest.mark.slow
def test_a_job_on_4096_nodes_with_60_interruptions_has_rows_of_bounded_size() -> None:
    shelf = Shelf()
    job = gang(4096)
    shelf.put(job)
    for attempt in range(1, 71):
        draft = shelf.draft()
        lost = step_job(draft, replace(job, attempt=attempt), "ended", "xid.79 on " + name(attempt), {})
        shelf.commit(draft)
        job = replace(lost, state=JobState.RUNNING, claim=job.claim, ranks=job.ranks)
        shelf.put(job)
    assert len(job.interruptions) == 60
    assert shelf.read("job:llama") == job
    rows = shelf.largest()
    assert rows["job"] < 20_000
    assert rows["part"] < 150_000
    assert rows["roster"] < 60_000
    assert max(rows.values()) < ITEM_BYTES / 2
    assert len(shelf.store.keys("roster")) == 60 * 5, "what is forgotten takes its names along"


def test_a_step_of_training_writes_the_head_of_a_large_job_alone() -> None:
    shelf = Shelf()
    job = gang(4096)
    assert len(shelf.put(job)) == 1 + 5
    assert shelf.put(replace(job, step=1)) == {"job:llama"}
    ranks = {**job.ranks, name(0): RankState.GONE}
    assert len(shelf.put(replace(job, step=2, ranks=ranks))) == 2, "one rank changes one part"
    assert shelf.read("job:llama") == replace(job, step=2, ranks=ranks)
    shelf.put(replace(job, claim={}, ranks={}))
    assert list(shelf.store.keys("part")) == []


def test_a_word_that_no_rank_has_is_damage_to_its_job_alone() -> None:
    shelf = Shelf()
    shelf.put(gang(4096))
    part = shelf.read("part:job:llama/0")
    assert isinstance(part, Part)
    shelf.put(replace(part, words={**part.words, name(0): "sleeping"}))
    found = whole(shelf.store.load(["job:llama"]), shelf.store.load)["job:llama"]
    assert found.row is None
    assert "sleeping" in found.damage


def test_a_job_that_takes_the_nodes_of_two_hundred_that_have_not_begun_is_learned_in_bounded_units() -> None:
    shelf = Shelf()
    wide = gang(200)
    crossed = [gang(1, id=JobId(f"late-{n}"), state=JobState.GATING, claim={name(n): ()}, ranks={}) for n in range(200)]
    for node in wide.claim:
        shelf.put(Node(id=node, cluster="eks-train", pool="eks-train/gpu"))
    for job in crossed:
        shelf.put(job)
    news = JobSeen(job=JobId("slurm-1"), attempt=1, as_of=1.0, ranks=wide.ranks, spec=wide.spec, native=True)
    draft = shelf.draft()
    learn(draft, Fact(id="f", at=NOW, news=news, seq=1))
    settle(draft)
    assert draft.actions < UNIT_ACTIONS / 2, "there is room for what else a unit must do"
    shelf.commit(draft)
    for _ in range(200):
        for subject in [key for key in shelf.store.due({}, 1000) if key.startswith("errand:")]:
            draft = shelf.draft()
            plan(draft, subject)
            shelf.commit(draft)
    rows = [shelf.read(key_of(job)) for job in crossed]
    assert [len(row.calls) for row in rows if isinstance(row, Job)] == [1] * 200, "each gives way, once"
    assert list(shelf.store.keys("errand")) == []


class Listing(FarCluster):
    """Lists one job each time that it is read."""

    id = "eks-train"

    def __init__(self, job: Job) -> None:
        self._seen = JobSeen(job=job.id, attempt=1, as_of=2.0, ranks=job.ranks, spec=job.spec)

    def watch(self, cursor: str | None) -> Lost:
        del cursor
        return Lost()

    def snapshot(self) -> Snapshot:
        return Snapshot(cursor="1", as_of=2.0, jobs=(self._seen,))


@pytest.mark.parametrize("size", [4, INLINE + 50], ids=["in one row", "in parts"])
def test_a_list_says_of_a_job_only_what_is_new_however_many_nodes_it_has(size: int) -> None:
    shelf = Shelf()
    job = gang(size, ranks_as_of=1.0)
    shelf.put(job)
    watcher = Watcher(shelf.store, Listing(job), RealClock())
    while watcher.read() or watcher.amid:
        pass
    assert list(shelf.store.facts(after=0)) == []
    shelf.put(replace(job, ranks={}))
    watcher.read()
    assert [type(fact.news) for fact in shelf.store.facts(after=0)] == [JobSeen]


def test_the_gate_and_the_start_of_16384_nodes_fit_their_unit() -> None:
    shelf = Shelf()
    job = gang(16_384, ranks={})
    gate = replace(small_intent("llama.1"), act=Verify(nodes=tuple(job.claim), level=1), owner="job:llama")
    draft = shelf.draft()
    draft.put(job)
    draft.put(gate)
    shelf.commit(draft)
    passed = replace(gate, verdicts=dict.fromkeys(job.claim, Verdict.PASS))
    shelf.put(passed)
    assert shelf.read("intent:llama.1") == passed
    shelf.put(replace(gate, key="llama.2", act=StartJob(job=job.id, attempt=1, nodes=job.claim)))
    assert max(shelf.largest().values()) < ITEM_BYTES / 2


@pytest.mark.parametrize(
    "sizes",
    [(0, INLINE + 1, 0), (1, INLINE, INLINE + 1), (999, 1000, 1001), (2500, 1000, 2500), (2500, 1), (1001, 2500, 0)],
)
def test_whatever_grows_or_shrinks_comes_back_as_it_was(sizes: tuple[int, ...]) -> None:
    shelf = Shelf()
    for number, size in enumerate(sizes):
        job = gang(size, step=number)
        brake = Brake(scope="pool:p", signature="xid.79", most=number, seen={name(n): float(n) for n in range(size)})
        check = replace(small_intent("k"), act=Verify(nodes=tuple(job.claim), level=1), sends=number)
        for row in (job, brake, check):
            shelf.put(row)
            assert shelf.read(key_of(row)) == row
            assert View(shelf.store).get(key_of(row)).row == row
    wide = sizes[-1] > INLINE
    assert bool(shelf.store.keys("part")) is wide


# --- storms


@pytest.mark.slow
def test_a_storm_in_a_pool_of_100000_trips_its_brake_and_fits_its_rows() -> None:
    shelf = Shelf()
    rule = BrakeRule(scope=BrakeScope.POOL, percent=5.0)
    most = threshold(rule, 100_000)
    assert most == 5_000
    brake = Brake(scope="pool:eks-train/gpu", signature="xid.79")
    for number in range(most - 1):
        brake = press(brake, rule, name(number), 1.0 + number / 100, NOW, 100_000)
    assert brake.tripped_at is None
    shelf.put(brake)
    again = press(brake, rule, name(0), 60.0, NOW, 100_000)
    assert again.tripped_at is None, "nodes are counted, not lines"
    tripped = press(again, rule, name(most), 60.0, NOW, 100_000)
    assert tripped.tripped_at is not None
    assert len(shelf.put(tripped)) <= 3, "one sighting changes one part"
    for number in range(most, 12_000):
        tripped = press(tripped, rule, name(number), 60.0, NOW, 100_000)
    assert len(tripped.seen) == most
    shelf.put(tripped)
    assert shelf.read(key_of(tripped)) == tripped
    assert max(shelf.largest().values()) < 150_000
    quiet = ease(tripped, rule, 60.0 + rule.within.total_seconds() + 1)
    off = ease(quiet, rule, 62.0 + rule.within.total_seconds() + rule.quiet.total_seconds())
    assert off.tripped_at is None


def test_no_brake_counts_more_nodes_than_a_unit_has_room_for() -> None:
    assert threshold(BrakeRule(scope=BrakeScope.POOL, percent=100.0), 1_000_000) == COUNTED_MOST


# --- the door


def test_texts_fields_tails_and_exit_codes_are_cut_where_facts_enter() -> None:
    fields: dict[str, str | int] = {f"f{n}": "y" * 5_000 for n in range(100)}
    seen = Observed(node=name(0), kind="xid", fields=fields, text="x" * 450_000)
    short = cut(Fact(id="a", at=NOW, news=seen)).news
    assert isinstance(short, Observed)
    assert len(short.text) < TEXT + 50
    assert short.text.endswith("more characters)")
    assert len(msgspec.json.encode(short)) < 20_000
    codes = {str(name(n)): 1 if n < 4_000 else 137 for n in range(4_096)}
    end = End(reason=EndReason.FAILED, at=NOW, tail="early\n" + "z" * 50_000 + "the end", exit_codes=codes)
    ended = cut(Fact(id="b", at=NOW, news=JobSeen(job=JobId("j"), attempt=1, as_of=1.0, end=end))).news
    assert isinstance(ended, JobSeen)
    assert ended.end is not None
    assert ended.end.tail.endswith("the end")
    assert len(ended.end.tail) == TAIL
    assert len(ended.end.exit_codes) <= 2 * EXITS
    assert set(ended.end.exit_codes.values()) == {1, 137}


def test_what_a_rank_wrote_last_is_cut_where_it_enters() -> None:
    said = cut(Fact(id="a", at=NOW, news=Wrote(job=JobId("j"), attempt=1, text="z" * 4_000_000 + "the end"))).news
    assert isinstance(said, Wrote)
    assert said.text.endswith("the end")
    assert len(said.text) == TAIL


def test_what_is_short_goes_through_as_it_is() -> None:
    fact = Fact(id="a", at=NOW, news=Observed(node=name(0), kind="xid", fields={"number": 79}, text="NVRM: Xid"))
    assert cut(fact) is fact


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_none(loss: float) -> None:
    news = cut(Fact(id="a", at=NOW, news=Stepped(job=JobId("j"), attempt=1, step=1, loss=loss))).news
    assert isinstance(news, Stepped)
    assert news.loss is None


def test_a_reason_names_a_few_nodes_of_many() -> None:
    assert listing([name(0), name(1)]) == f"{name(0)}, {name(1)}"
    assert listing(map(name, range(4_096))).endswith(f" and {4_096 - TOLD} more")
