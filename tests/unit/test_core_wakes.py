"""What a decision read wakes it: a row that it depends on is a row that its wait is on."""

from datetime import UTC, datetime

from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.plan import plan
from sickbay.engine.seats import settle
from sickbay.engine.view import Draft, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.knowledge.policy import load_policy
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.fleet import AgentState, Capability, Device, Incarnation, JobId, Node, NodeId
from sickbay.model.intent import Fence, Intent, IntentState, StopJob
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.rows import AnyRow, key_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
APART = NodeId("sim/n0")  # its cluster cannot reach it, its agent can
CLOCKS = {"sim": WatchedClock(source="sim", period=5.0, reading=1000.0, as_of=1000.0)}
RULES = Rules(
    policy=load_policy("default"),
    tables=load_tables(),
    policy_digest="",
    can={"sim": frozenset({Capability.PLACE, Capability.FENCE})},
    blind={},
)


class Desk:
    """A store, and units that are planned and committed by hand."""

    def __init__(self, *rows: AnyRow) -> None:
        self.store = MemoryStore(limits=False)
        lease = self.store.lease("test", 60.0)
        assert lease is not None
        self._epoch = lease.epoch
        self.write(*rows)

    def draft(self) -> Draft:
        return Draft(View(self.store), RULES, CLOCKS, NOW)

    def write(self, *rows: AnyRow) -> None:
        draft = self.draft()
        for row in rows:
            draft.put(row)
        settle(draft)
        self.store.commit(draft.unit(), self._epoch)

    def plan(self, subject: str) -> list[AnyRow | None]:
        draft = self.draft()
        plan(draft, subject)
        self.store.commit(draft.unit(), self._epoch)
        return list(draft.writes.values())

    def due(self) -> list[str]:
        return list(self.store.due({"sim": 1000.0}))


def running(name: str, *devices: int) -> Job:
    spec = JobSpec(name=name, cluster="sim", pool="train", nodes=1, gpus_per_node=1)
    state, ranks = JobState.RUNNING, {APART: "running"}
    return Job(
        id=JobId(name), spec=spec, submitted_at=NOW, made=True, attempt=1, state=state, claim={APART: devices},
        ranks=ranks,
    )  # fmt: skip


def test_ranks_on_a_shared_node_are_fenced_as_soon_as_nobody_else_is_there() -> None:
    holder = Incarnation(uid="u0", instance_id="i0", boot_id="b0")
    devices = (Device(index=0), Device(index=1))
    node = Node(
        id=APART, cluster="sim", pool="sim/train", incarnation=holder, devices=devices, ready=False,
        agent=AgentState.HEARD,
    )  # fmt: skip
    act = StopJob(job=JobId("mine"), attempt=1)
    stop = Intent(
        key="mine.1", owner="job:mine", cluster="sim", pool="sim/train", act=act, because="", planned_at=NOW,
        clock="sim", call_timeout=10.0, patience=120.0, state=IntentState.EXPIRED,
    )  # fmt: skip
    stuck = replace(
        running("mine", 0), state=JobState.STOPPING, intent=stop.key, acts=1, deadline=Deadline(clock="sim", at=1100.0)
    )
    other = running("other", 1)
    desk = Desk(node, stop, stuck, other)
    desk.plan(key_of(stuck))
    assert desk.due() == [], "another attempt would suffer from the fence"

    desk.write(replace(other, claim={}, ranks={APART: "gone"}))
    assert desk.due() == [key_of(stuck)]
    made = [row.act for row in desk.plan(key_of(stuck)) if isinstance(row, Intent)]
    assert made == [Fence(job=stuck.id, attempt=1, node=APART)]
