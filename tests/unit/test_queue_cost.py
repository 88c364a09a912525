"""What a long queue costs: a change looks at a window of it, and wakes those who can begin and nobody else."""

from datetime import UTC, datetime, timedelta

from bench.far_side import far_hands
from bench.rig import open_policy, rules_of

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain.queue import LOOKED_AT
from sickbay.engine.line import CALLED_AT_ONCE, line_of, plan_line
from sickbay.engine.plan import plan
from sickbay.engine.view import Draft, Rules, View
from sickbay.model.fleet import AgentState, Capability, Incarnation, JobId, Ledger, Node, NodeId
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.rows import Unit, key_of

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INC = Incarnation(uid="u", instance_id="i", boot_id="b")
BASE = rules_of(open_policy(), far_hands())
RULES = Rules(
    policy=BASE.policy,
    tables=BASE.tables,
    policy_digest="",
    can={"c": frozenset({Capability.PLACE})},
    blind={},
)
POOL = "c/p"


def long_queue(nodes: int, free: int, jobs: int, first: int = 1, hopeless: int = 0) -> View:
    """A pool whose nodes are busy but for a few, and jobs that wait; the first of them wants so many nodes.

    `hopeless`: older ones that want one more than there is.
    """
    store = MemoryStore(limits=False)
    lease = store.lease("me", 1e9)
    assert lease is not None
    rows: list[Node | Job | Ledger] = [Ledger(pool=POOL, seats=nodes, size=nodes)]
    rows += [
        Node(id=NodeId(f"c/n{n:05d}"), cluster="c", pool=POOL, incarnation=INC, claimable=True, agent=AgentState.HEARD)
        for n in range(nodes)
    ]
    busy = JobSpec(name="busy", cluster="c", pool="p")
    rows += [
        Job(
            id=JobId(f"busy{n:05d}"),
            spec=busy,
            submitted_at=NOON,
            state=JobState.RUNNING,
            claim={NodeId(f"c/n{n:05d}"): ()},
        )
        for n in range(free, nodes)
    ]
    for n in range(jobs):
        spec = JobSpec(name="q", cluster="c", pool="p", nodes=1 if n else first)
        rows.append(Job(id=JobId(f"q{jobs - n:05d}"), spec=spec, submitted_at=NOON + timedelta(seconds=n)))
    large = JobSpec(name="large", cluster="c", pool="p", nodes=nodes + 1)
    rows += [Job(id=JobId(f"l{n:05d}"), spec=large, submitted_at=NOON - timedelta(hours=1)) for n in range(hopeless)]
    store.commit(Unit(writes={key_of(row): row for row in rows}), lease.epoch)
    return View(store)


def called(view: View) -> list[str]:
    draft = Draft(view, RULES, {}, NOON)
    plan_line(draft, f"freed:{POOL}")
    assert not draft.writes
    return sorted(key for key, mark in draft.waits.items() if mark is not None)


def test_one_node_wakes_one_of_a_thousand() -> None:
    view = long_queue(nodes=600, free=1, jobs=1000)
    assert called(view) == ["job:q01000"], "the first that was submitted, the last in the alphabet"
    assert len(line_of(Draft(view, RULES, {}, NOON), POOL).tickets) == LOOKED_AT


def test_nobody_is_woken_for_what_is_kept_for_the_head() -> None:
    assert called(long_queue(nodes=600, free=20, jobs=1000, first=30)) == []


def test_many_free_nodes_wake_a_few_at_a_time() -> None:
    assert len(called(long_queue(nodes=600, free=300, jobs=1000))) == CALLED_AT_ONCE


def test_whoever_begins_makes_the_queue_due_and_no_other_job() -> None:
    view = long_queue(nodes=600, free=2, jobs=1000)
    draft = Draft(view, RULES, {}, NOON)
    plan(draft, "job:q01000")
    due = {key for key, mark in draft.waits.items() if mark is not None and not key.startswith("intent:")}
    assert due == {"job:q01000", f"freed:{POOL}"}
    assert draft.actions < 30


def test_whoever_stands_too_far_behind_is_not_looked_at() -> None:
    view = long_queue(nodes=600, free=500, jobs=1000)
    draft = Draft(view, RULES, {}, NOON)
    plan(draft, "job:q00001")
    job = draft.peek(Job, "job:q00001")
    assert job is not None
    assert job.state is JobState.QUEUED


def test_hundreds_that_need_more_than_there_is_hide_nobody_who_can_begin() -> None:
    assert called(long_queue(nodes=4, free=4, jobs=1, hopeless=300)) == ["job:q00001"]
