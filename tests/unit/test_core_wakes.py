"""What a decision read wakes it: a row that it depends on is a row that its wait is on."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.plan import plan
from sickbay.engine.seats import settle
from sickbay.engine.view import Draft, RowType, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import (
    AgentState,
    Aside,
    Brake,
    Capability,
    Device,
    Incarnation,
    IncidentId,
    JobId,
    Node,
    NodeId,
)
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.intent import Fence, Intent, IntentState, Notify, StopJob
from sickbay.model.job import Job, JobSpec, JobState, RankState
from sickbay.model.rows import AnyRow, key_of
from sickbay.policy.load import load_policy

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

    def row(self, key: str, kind: type[RowType]) -> RowType:
        row = self.store.load([key])[key].row
        assert isinstance(row, kind)
        return row

    def due(self) -> list[str]:
        return list(self.store.due({"sim": 1000.0}))


def running(name: str, *devices: int) -> Job:
    spec = JobSpec(name=name, cluster="sim", pool="train", nodes=1, gpus_per_node=1)
    state, ranks = JobState.RUNNING, {APART: RankState.RUNNING}
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

    desk.write(replace(other, claim={}, ranks={APART: RankState.GONE}))
    assert desk.due() == [key_of(stuck)]
    made = [row.act for row in desk.plan(key_of(stuck)) if isinstance(row, Intent)]
    assert made == [Fence(job=stuck.id, attempt=1, node=APART)]


# --- room within a pool's limit


def seat(number: int, **more: Any) -> Node:
    holder = Incarnation(uid=f"u{number}", instance_id=f"i{number}", boot_id=f"b{number}")
    name = NodeId(f"sim/n{number}")
    return Node(id=name, cluster="sim", pool="sim/train", incarnation=holder, agent=AgentState.HEARD, **more)


def suspect(number: int, **more: Any) -> Incident:
    severity, scope = Severity.FATAL, Scope.NODE
    fault = Fault(
        code="xid.79", component="gpu", severity=severity, scope=scope, remedy=Remedy.REBOOT, because="off the bus"
    )
    name = IncidentId(f"i{number}")
    return Incident(
        id=name, node=NodeId(f"sim/n{number}"), cluster="sim", pool="sim/train", kind=IncidentKind.FAULT,
        incarnation=seat(number).incarnation, fault=fault, opened_at=NOW, began=100.0 - number, remedy=Remedy.REBOOT,
        **more,
    )  # fmt: skip


TAKEN = suspect(0, phase=Phase.DRAINED)
BACK = (seat(0), replace(TAKEN, phase=Phase.RELEASED, closed_at=NOW))


def crowded(*more: AnyRow) -> Desk:
    """One of four seats may be out and is; the others are suspect, the one with the highest number the longest."""
    sick = [seat(number, incident=f"i{number}") for number in range(4)]
    desk = Desk(*sick, TAKEN, *(suspect(number) for number in (1, 2, 3)), *more)
    for number in (1, 2, 3):
        desk.plan(f"incident:i{number}")
    assert desk.due() == []
    return desk


def test_a_seat_that_comes_back_calls_the_one_that_has_waited_longest() -> None:
    desk = crowded()
    desk.write(*BACK)
    assert desk.due() == ["incident:i3"]
    desk.plan("incident:i3")
    assert not [key for key in desk.due() if key.startswith("incident:")], "it has taken the room that there was"


def test_a_person_s_order_is_called_first() -> None:
    desk = crowded()
    desk.write(replace(desk.row("incident:i1", Incident), ordered=True))
    desk.plan("incident:i1")
    desk.write(*BACK)
    assert desk.due() == ["incident:i1"]


def test_who_was_called_and_is_gone_leaves_the_room_to_the_next() -> None:
    desk = crowded()
    desk.write(*BACK)
    called = desk.row("incident:i3", Incident)
    desk.write(replace(called, phase=Phase.GONE, wait=None, closed_at=NOW))
    assert "incident:i2" in desk.due()


def test_who_cannot_be_planned_keeps_nobody_from_the_room() -> None:
    again = Deadline(clock="ingest", at=5000.0)
    aside = Aside(subject="incident:i3", times=1, why="", since=NOW, again=again, remind=again)
    desk = crowded(aside)
    desk.write(*BACK)
    assert desk.due() == ["incident:i2"]


def test_a_seat_that_fails_wakes_nobody_who_waits_for_room() -> None:
    desk = crowded()
    desk.write(seat(4), seat(5))
    desk.write(seat(4, cordons=("other:maintenance",)))
    assert desk.due() == []


def test_a_seat_that_is_held_lets_one_of_those_who_wait_page_a_person() -> None:
    desk = crowded()
    desk.write(replace(TAKEN, phase=Phase.HELD))
    assert desk.due() == ["incident:i3"]
    told = [row.act for row in desk.plan("incident:i3") if isinstance(row, Intent)]
    assert [act.event for act in told if isinstance(act, Notify)] == ["budget"]


@pytest.mark.parametrize(("pressed", "wakes"), [({}, False), ({"tripped_at": NOW}, True), ({"reset_at": 990.0}, True)])
def test_a_brake_wakes_who_waits_when_it_trips_or_resets_not_when_it_counts(
    pressed: dict[str, Any], wakes: bool
) -> None:
    brake = Brake(scope="pool:sim/train", signature="xid.79", most=5, seen={"sim/n1": 900.0})
    desk = crowded(brake)
    desk.write(replace(brake, seen={"sim/n1": 950.0}, **pressed))
    assert ("incident:i1" in desk.due()) == wakes
