"""What a seat's silence means, and which idle node is due for a check: decisions of values, as tables."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from sickbay.brain.admit import spares_one
from sickbay.brain.idle_checks import BUSY, CheckDue, NotDue, PatrolInput, patrol, proven, why_not_idle
from sickbay.brain.seat import silence_of
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import AGENT_LOST, NODE_LOST, PARTITION, Fault, Remedy, Scope, Severity
from sickbay.model.fleet import AgentState, Capability, Incarnation, IncidentId, JobId, Ledger, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Job, JobSpec
from sickbay.model.policy import Examine, Limit, Policy, Trigger
from sickbay.policy.load import load_policy

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HEARD, SILENT, NONE = AgentState.HEARD, AgentState.SILENT, AgentState.NONE
CAN = frozenset(Capability)
DAY = timedelta(days=1)


def node(**more: Any) -> Node:
    fields: dict[str, Any] = {"incarnation": Incarnation(instance_id="i1", boot_id="b1"), "agent": HEARD, **more}
    return Node(id=NodeId("sim/n1"), cluster="sim", pool="sim/train", **fields)


def incident(code: str = "xid.79", phase: Phase = Phase.WATCHED) -> Incident:
    fault = Fault(
        code=code, component="gpu", severity=Severity.FATAL, scope=Scope.NODE, remedy=Remedy.REBOOT, because=""
    )
    return Incident(
        id=IncidentId("i1"), node=NodeId("sim/n1"), cluster="sim", pool="sim/train", kind=IncidentKind.FAULT,
        incarnation=None, fault=fault, opened_at=NOW, phase=phase,
    )  # fmt: skip


# --- silence


@pytest.mark.parametrize(
    ("agent", "ready", "fell", "known", "code"),
    [
        (HEARD, True, False, True, None),
        (SILENT, True, False, True, AGENT_LOST),
        (SILENT, False, False, True, NODE_LOST),
        (HEARD, False, False, True, PARTITION),
        (NONE, True, False, True, None),
        (NONE, True, True, True, AGENT_LOST),
        (NONE, True, True, False, None),
        (NONE, False, False, True, None),
        (NONE, False, True, False, NODE_LOST),
    ],
)
def test_who_is_silent_decides_what_it_is(
    agent: AgentState, ready: bool, fell: bool, known: bool, code: str | None
) -> None:
    seat = node(agent=agent, ready=ready, agent_known=known)
    assert silence_of(seat, None, {}, fell=fell) == code
    assert silence_of(seat, incident(), {}, fell=fell) == code
    assert silence_of(seat, incident(phase=Phase.REPAIRING), {}, fell=fell) is None, "the rung owns its silence"
    assert silence_of(replace(seat, incarnation=None), None, {}, fell=fell) is None
    if code is not None:
        assert silence_of(seat, incident(code), {}, fell=fell) is None, "it is known"


def test_an_announced_end_is_no_silence_until_its_time_is_over() -> None:
    seat = node(agent=SILENT, going_down=Deadline(clock=INGEST, at=100.0))
    assert silence_of(seat, None, {INGEST: 99.0}, fell=False) is None
    assert silence_of(seat, None, {INGEST: 100.0}, fell=False) == AGENT_LOST


# --- which node is due


SCHEDULE = Examine(on=Trigger.SCHEDULE, level=2, every=DAY)
JOIN = Examine(on=Trigger.JOIN, level=1)
FAULT = Examine(on=Trigger.FAULT, level=3)


def policy(*rules: Examine) -> Policy:
    return replace(load_policy("default"), examine=rules)


def seen(seat: Node, **more: Any) -> PatrolInput:
    fields: dict[str, Any] = {"watched": None, "pool": 10, "reading": 1000.0, "can": CAN, **more}
    return PatrolInput(node=seat, **fields)


def test_nobody_is_due_where_nothing_can_check_or_nobody_is_there_or_one_is_under_way() -> None:
    every = policy(FAULT, JOIN, SCHEDULE)
    due = node(check_due=0.0, unproven=True)
    assert isinstance(patrol(seen(due), every), CheckDue)
    assert patrol(seen(due, can=CAN - {Capability.CHECK}), every) == NotDue(due)
    vacant, busy = replace(due, incarnation=None), replace(due, checking="check.1")
    assert patrol(seen(vacant), every) == NotDue(vacant)
    assert patrol(seen(busy), every) == NotDue(busy, BUSY)
    assert patrol(seen(due), policy()) == NotDue(due)


def test_a_watched_fault_comes_first_then_who_was_there_before_us_then_the_schedule() -> None:
    every, due = policy(FAULT, JOIN, SCHEDULE), node(check_due=0.0, unproven=True)
    asked = [
        patrol(seen(due, watched=incident()), every),
        patrol(seen(due), every),
        patrol(seen(replace(due, unproven=False)), every),
    ]
    found = [(check.rule, check.by, check.node.unproven) for check in asked if isinstance(check, CheckDue)]
    assert found == [(FAULT, "policy", True), (JOIN, "first connection", False), (SCHEDULE, "schedule", False)]


def test_a_large_pool_is_asked_less_often() -> None:
    due = [patrol(seen(node(unproven=True), pool=size), policy(JOIN)) for size in (10, 10_000)]
    assert [check.busy for check in due if isinstance(check, CheckDue)] == [BUSY, 1000.0]


def test_a_node_gets_its_place_in_the_schedule_and_is_due_there() -> None:
    first = patrol(seen(node()), policy(SCHEDULE))
    assert isinstance(first, NotDue)
    assert first.node.check_due is not None
    assert first.again is not None
    assert 0 < first.again < DAY.total_seconds()
    assert first.node.check_due == 1000.0 + first.again
    on_time = patrol(seen(first.node, reading=first.node.check_due), policy(SCHEDULE))
    assert isinstance(on_time, CheckDue)
    assert on_time.node.check_due == first.node.check_due + 0.1 * DAY.total_seconds(), "if it does not pass"


@pytest.mark.parametrize(("level", "put_off", "unproven"), [(0, False, True), (1, False, False), (2, True, False)])
def test_only_a_check_that_is_deep_enough_counts(level: int, put_off: bool, unproven: bool) -> None:
    after = proven(node(unproven=True, check_due=1.0), level, policy(JOIN, SCHEDULE), 1000.0)
    assert after.unproven is unproven
    assert (after.check_due != 1.0) is put_off
    if put_off:
        assert after.check_due is not None
        assert DAY.total_seconds() <= after.check_due - 1000.0 <= 1.1 * DAY.total_seconds()


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({}, ""),
        ({"incarnation": None}, "vacant"),
        ({"checking": "c.1"}, "c.1"),
        ({"cordons": ("other:me",)}, "cordoned by other:me"),
        ({"ready": False}, "ready"),
        ({"going_down": Deadline(clock=INGEST, at=1.0)}, "announced"),
        ({"agent": SILENT}, "not heard"),
        ({"unmanaged": 2}, "2 pieces"),
    ],
)
def test_why_a_node_is_not_idle(changes: dict[str, Any], because: str) -> None:
    why = why_not_idle(node(**changes), None, [], CAN)
    assert because in why
    assert bool(why) == bool(because)


def test_neither_a_sick_node_nor_one_that_a_job_has_is_idle() -> None:
    assert not why_not_idle(node(), incident(), [], CAN), "what is only watched may be checked"
    assert "SUSPECT" in why_not_idle(node(), incident(phase=Phase.SUSPECT), [], CAN)
    job = Job(id=JobId("j1"), spec=JobSpec(name="j", cluster="sim", pool="train"), submitted_at=NOW)
    assert "j1" in why_not_idle(node(), None, [job], CAN)
    assert "can check" in why_not_idle(node(), None, [], frozenset())


def test_a_pool_spares_a_node_only_within_its_limit_and_while_no_job_waits() -> None:
    limit, ledger = Limit(out_percent=20.0), Ledger(pool="sim/train", seats=10, size=10, out=1)
    assert spares_one(ledger, limit, checking=0, wanted=False)
    assert not spares_one(ledger, limit, checking=0, wanted=True)
    assert not spares_one(ledger, limit, checking=1, wanted=False), "a node that is checked is away, too"
    assert not spares_one(replace(ledger, out=2), limit, checking=0, wanted=False)
