"""What counts as evidence, as history and as room: tables of the decisions behind them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.brain.admit import Asked, Fleet, admit
from sickbay.brain.correlate import KEEP_KINDS, KEEP_SIGHTINGS, absorb, correlate
from sickbay.brain.ladder import next_rung, strike
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import Capability, Incarnation, IncidentId, Ledger, Node, NodeId, PastIncident, Withholding
from sickbay.model.incident import Incident, IncidentKind, Phase, Try
from sickbay.model.policy import FaultRule, Ladder, Limit, Match, Policy, Repeat, RungRule, Strikes

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NODE = Node(
    id=NodeId("sim/a"), cluster="sim", pool="train",
    incarnation=Incarnation(uid="u", instance_id="i", boot_id="b"),
)  # fmt: skip


def fault(code: str = "xid.79", remedy: Remedy = Remedy.REBOOT, **more: Any) -> Fault:
    fields: dict[str, Any] = {"component": "gpu", "severity": Severity.ERROR, "scope": Scope.DEVICE, "device": 0}
    return Fault(code=code, remedy=remedy, because="table", **{**fields, **more})


def incident(of: Fault | None = None, phase: Phase = Phase.SUSPECT, **more: Any) -> Incident:
    of = of or fault()
    fields: dict[str, Any] = {"remedy": of.remedy, "kind": IncidentKind.FAULT}
    return Incident(
        id=IncidentId("i1"), node=NODE.id, cluster="sim", pool="train",
        incarnation=NODE.incarnation, fault=of, opened_at=NOW, phase=phase, **{**fields, **more},
    )  # fmt: skip


# --- the driver's advice


def advice(remedy: Remedy, device: int | None = 0) -> Fault:
    return fault("xid.154", Remedy.NONE, advice=remedy, device=device)


@pytest.mark.parametrize(
    ("device", "word", "remedy"),
    [
        (0, Remedy.RESET_GPU, Remedy.RESET_GPU),  # its own device: the driver's word wins, also downwards
        (5, Remedy.RESET_GPU, Remedy.REBOOT),
        (None, Remedy.RESET_GPU, Remedy.REBOOT),  # whose it is cannot be told
        (5, Remedy.RESTART_JOB, Remedy.REBOOT),
        (5, Remedy.REPLACE, Remedy.REPLACE),  # upwards it is a fault like any other
    ],
)
def test_the_drivers_advice_is_about_its_own_device(device: int | None, word: Remedy, remedy: Remedy) -> None:
    after = absorb(incident(), advice(word, device), NODE, Policy(), 5.0)
    assert after.remedy is remedy
    assert after.fault.device == 0


@pytest.mark.parametrize("first", [Remedy.RESET_GPU, Remedy.REBOOT])
def test_advice_for_one_device_does_not_lower_what_another_asks_for(first: Remedy) -> None:
    known = incident(fault("xid.48", first))
    other = absorb(known, fault("xid.79", Remedy.REBOOT, device=5), NODE, Policy(), 5.0)
    assert absorb(other, advice(Remedy.RESET_GPU), NODE, Policy(), 6.0).remedy is Remedy.REBOOT


def test_advice_for_one_device_does_not_lower_what_the_node_asks_for() -> None:
    known = incident(fault("check.failed", Remedy.REBOOT, device=None, scope=Scope.NODE))
    assert absorb(known, advice(Remedy.RESET_GPU), NODE, Policy(), 6.0).remedy is Remedy.REBOOT


def test_advice_never_lowers_an_operators_order() -> None:
    ordered = incident(remedy=Remedy.REPLACE, least=Remedy.REPLACE, kind=IncidentKind.OPERATOR)
    assert absorb(ordered, advice(Remedy.RESET_GPU), NODE, Policy(), 6.0).remedy is Remedy.REPLACE


def test_advice_changes_nothing_once_a_repair_has_begun() -> None:
    begun = incident(tries=(Try(rung=Remedy.REBOOT, result="failed: x", at=NOW),), phase=Phase.DRAINED)
    for word in (Remedy.RESET_GPU, Remedy.REPLACE):
        after = absorb(begun, advice(word), NODE, Policy(), 6.0)
        assert (after.remedy, after.fault) == (Remedy.REBOOT, begun.fault)


# --- repeats


def repeats(times: int, **more: Any) -> Policy:
    repeat = Repeat(times=times, within=DAY, floor=Remedy.RESET_GPU, **more)
    return Policy(faults=(FaultRule(match=Match(fault="xid.94"), repeat=repeat),))


CONTAINED = fault("xid.94", Remedy.RESTART_JOB)


def sightings_until_raised(policy: Policy, every: float, most: int, device: int = 0) -> int | None:
    node = NODE
    for n in range(1, most + 1):
        found, kept = correlate(replace(CONTAINED, device=device), node, policy, n * every)
        node = replace(node, recent=kept)
        if found.remedy is Remedy.RESET_GPU:
            return n
    return None


@pytest.mark.parametrize("times", [1, 3, 16, 17, 20, 500])
def test_a_rule_fires_at_the_number_that_it_names(times: int) -> None:
    assert sightings_until_raised(repeats(times), 60.0, 600) == times


def test_what_is_older_than_the_rules_time_does_not_count_however_much_was_seen() -> None:
    assert sightings_until_raised(repeats(30), 3600.0, 400) is None


def test_other_codes_do_not_push_a_sighting_out() -> None:
    policy, node = repeats(3), NODE
    for n in range(3):
        found, kept = correlate(CONTAINED, node, policy, 1000.0 * n)
        node = replace(node, recent=kept)
        for other in range(20):
            _, kept = correlate(fault(f"xid.{other}", Remedy.WATCH), node, policy, 1000.0 * n + other)
            node = replace(node, recent=kept)
    assert found.remedy is Remedy.RESET_GPU


@pytest.mark.parametrize(("count", "remedy"), [(1, Remedy.RESTART_JOB), (2, Remedy.RESTART_JOB), (3, Remedy.RESET_GPU),
                                               (500, Remedy.RESET_GPU), (-9, Remedy.RESTART_JOB)])  # fmt: skip
def test_an_observation_that_stands_for_many_counts_as_many(count: int, remedy: Remedy) -> None:
    assert correlate(CONTAINED, NODE, repeats(3), 1.0, count=count)[0].remedy is remedy


def test_programs_are_told_apart_however_often_each_was_seen() -> None:
    node, policy = NODE, repeats(40, jobs=2)
    for n in range(100):
        found, kept = correlate(CONTAINED, node, policy, float(n), "a" if n < 99 else "b")
        node = replace(node, recent=kept)
        assert (found.remedy is Remedy.RESET_GPU) is (n == 99)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 7), st.sampled_from(["", "a", "b"])), max_size=300))
def test_what_a_node_remembers_is_bounded(seen: list[tuple[int, int, str]]) -> None:
    node, policy = NODE, Policy(faults=(FaultRule(repeat=Repeat(times=9, within=DAY, floor=Remedy.RESET_GPU)),))
    for at, (code, device, job) in enumerate(seen):
        _, kept = correlate(fault(f"xid.{code}", Remedy.WATCH, device=device), node, policy, float(at), job)
        node = replace(node, recent=kept)
    kinds = {(s.code, s.device) for s in node.recent}
    assert len(kinds) <= KEEP_KINDS
    assert all(sum((s.code, s.device) == kind for s in node.recent) <= KEEP_SIGHTINGS for kind in kinds)


# --- history

LEMON = Ladder(strikes=(Strikes(after=1, within=28 * DAY, first=Remedy.REPLACE),))


@pytest.mark.parametrize(
    ("ended", "rung", "counts"),
    [
        ("RELEASED", "reboot", True),
        ("RELEASED", "", False),  # it came back by itself and was checked
        ("REPLACED", "replace", True),
        ("GONE", "reboot", True),
        ("GONE", "", False),
        ("DISMISSED", "", False),
        ("DISMISSED", "reboot", False),
    ],
)
def test_only_what_was_proven_is_a_strike(ended: str, rung: str, counts: bool) -> None:
    past = (PastIncident(incident=IncidentId("i0"), code="xid.48", at=10.0, ended=ended, rung=rung),)
    assert (strike(incident(), LEMON, past, 1000.0) is not None) is counts


# --- the pool's room


def ask(ledger: Ledger, limit: Limit | None = None) -> bool:
    fleet = Fleet(ledger=ledger, brakes=(), withholding=Withholding(), now=NOW)
    return admit(Asked.QUARANTINE, incident(), NODE, fleet, Policy(limits=(limit or Limit(),))) is None


@pytest.mark.parametrize(
    ("out", "ours", "admitted"),
    [(0, 0, True), (1, 0, True), (3, 0, True), (1, 1, False), (3, 1, False), (3, 2, False)],
)
def test_others_cordons_in_a_small_pool_do_not_turn_healing_off(out: int, ours: int, admitted: bool) -> None:
    assert ask(Ledger(pool="train", seats=4, size=4, out=out, ours=ours)) is admitted


def test_at_least_none_means_none() -> None:
    none = Limit(out_percent=10, out_at_least=0)
    assert not ask(Ledger(pool="train", seats=4, size=4, out=1, ours=0), none)


# --- ladders


def test_a_rung_below_the_last_one_is_not_tried_again() -> None:
    rungs = (RungRule(do=Remedy.RESET_GPU, tries=2), RungRule(do=Remedy.REBOOT, tries=1), RungRule(do=Remedy.REPLACE))
    can = frozenset({Capability.RESET_GPU, Capability.REBOOT, Capability.REPLACE})
    failed = (Try(rung=Remedy.REBOOT, result="failed: x", at=NOW),)
    tried = incident(fault("xid.48", Remedy.RESET_GPU), Phase.DRAINED, tries=failed)
    rung, _ = next_rung(tried, Ladder(rungs=rungs), Remedy.RESET_GPU, can, frozenset())
    assert rung is not None
    assert rung.do is Remedy.REPLACE
