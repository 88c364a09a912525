"""What a fault means beside its neighbours and under the operator's rules."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.brain.correlate import KEEP_EVIDENCE, KEEP_SIGHTINGS, absorb, bounded, correlate, judge, rule_for
from sickbay.model.fault import Fault, Remedy, Scope, Severity, highest, lowest
from sickbay.model.fleet import Incarnation, IncidentId, Node, NodeId, Sighting
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.policy import FaultRule, Match, Policy, Repeat

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NODE = Node(
    id=NodeId("sim/a"), cluster="sim", pool="train",
    incarnation=Incarnation(uid="u", instance_id="i", boot_id="b"),
)  # fmt: skip


def fault(code: str = "xid.31", remedy: Remedy = Remedy.RESTART_JOB, **more: Any) -> Fault:
    fields: dict[str, Any] = {"component": "gpu", "severity": Severity.ERROR, "scope": Scope.DEVICE, "device": 0}
    return Fault(code=code, remedy=remedy, because="table", **{**fields, **more})


def incident(of: Fault, phase: Phase = Phase.SUSPECT, **more: Any) -> Incident:
    fields: dict[str, Any] = {"remedy": of.remedy, "evidence": (f"{of.code}: {of.because}",)}
    return Incident(
        id=IncidentId("i1"), node=NODE.id, cluster="sim", pool="train", kind=IncidentKind.FAULT,
        incarnation=NODE.incarnation, fault=of, opened_at=NOW, phase=phase, **{**fields, **more},
    )  # fmt: skip


def under(*rules: FaultRule) -> Policy:
    return Policy(faults=rules)


# --- rules


def test_the_first_rule_that_fits_counts() -> None:
    first = FaultRule(match=Match(fault="xid.3*"), floor=Remedy.REBOOT)
    policy = under(FaultRule(match=Match(pool="other")), first, FaultRule(cap=Remedy.WATCH))
    assert rule_for(fault("xid.31"), NODE, policy) is first
    assert judge(fault("xid.31"), NODE, policy).remedy is Remedy.REBOOT
    assert judge(fault("xid.79", Remedy.REBOOT), NODE, policy).remedy is Remedy.WATCH


@pytest.mark.parametrize(
    "match",
    [
        Match(fault=("xid.31", "xid.79")), Match(component="g*"), Match(severity=(Severity.ERROR,)),
        Match(pool="train"), Match(node="sim/a"), Match(),
    ],
)  # fmt: skip
def test_each_part_of_a_match_can_fit(match: Match) -> None:
    assert rule_for(fault(), NODE, under(FaultRule(match=match, why="it"))).why == "it"


@pytest.mark.parametrize(
    "match",
    [
        Match(fault="xid.79"), Match(component="memory"), Match(severity=(Severity.FATAL,)), Match(pool="infer"),
        Match(node="sim/b"), Match(fault="xid.31", node="sim/b"),
    ],
)  # fmt: skip
def test_one_part_that_does_not_fit_is_enough(match: Match) -> None:
    assert rule_for(fault(), NODE, under(FaultRule(match=match, why="it"))).why == ""


REMEDIES = st.sampled_from(Remedy)


@given(remedy=REMEDIES, floor=st.none() | REMEDIES, cap=st.none() | REMEDIES)
def test_bounds_hold_and_the_cap_has_the_last_word(remedy: Remedy, floor: Remedy | None, cap: Remedy | None) -> None:
    result = bounded(remedy, FaultRule(floor=floor, cap=cap))
    if cap is not None:
        assert result.rank <= cap.rank
    if floor is not None and (cap is None or floor.rank <= cap.rank):
        assert result.rank >= floor.rank
    if floor is None and cap is None:
        assert result is remedy


@given(a=REMEDIES, b=REMEDIES)
def test_the_order_of_remedies_is_by_rank(a: Remedy, b: Remedy) -> None:
    assert {highest(a, b), lowest(a, b)} == {a, b}
    assert lowest(a, b).rank <= highest(a, b).rank


def test_a_rule_can_call_for_a_human_but_not_send_one_away() -> None:
    assert judge(fault(), NODE, under(FaultRule(needs_human=True))).needs_human
    assert judge(fault(needs_human=True), NODE, under(FaultRule())).needs_human


# --- repeats

THIRD = FaultRule(match=Match(fault="xid.31"), repeat=Repeat(times=3, within=DAY, floor=Remedy.RESET_GPU))


def seen(*at: float, code: str = "xid.31", device: int | None = 0) -> tuple[Sighting, ...]:
    return tuple(Sighting(code=code, device=device, at=moment) for moment in at)


@pytest.mark.parametrize(
    ("recent", "remedy"),
    [
        ((), Remedy.RESTART_JOB),
        (seen(90_000.0), Remedy.RESTART_JOB),
        (seen(90_000.0, 95_000.0), Remedy.RESET_GPU),
        (seen(10_000.0, 95_000.0), Remedy.RESTART_JOB),  # the first is older than a day
        (seen(90_000.0, 95_000.0, device=1), Remedy.RESTART_JOB),
        (seen(90_000.0, 95_000.0, code="xid.13"), Remedy.RESTART_JOB),
    ],
)
def test_the_third_on_one_device_in_a_day_blames_the_device(recent: tuple[Sighting, ...], remedy: Remedy) -> None:
    result, kept = correlate(fault(), replace(NODE, recent=recent), under(THIRD), 100_000.0)
    assert result.remedy is remedy
    assert kept[-1] == Sighting(code="xid.31", device=0, at=100_000.0)


@pytest.mark.parametrize(
    ("jobs", "remedy"),
    [(("a", "a", "a"), Remedy.RESTART_JOB), (("", "", ""), Remedy.RESTART_JOB), (("a", "a", "b"), Remedy.RESET_GPU)],
)
def test_one_program_that_fails_again_and_again_does_not_blame_the_device(
    jobs: tuple[str, str, str], remedy: Remedy
) -> None:
    rule = FaultRule(repeat=Repeat(times=3, within=DAY, jobs=2, floor=Remedy.RESET_GPU))
    recent = tuple(Sighting(code="xid.31", device=0, at=float(n), job=job) for n, job in enumerate(jobs[:2]))
    result, kept = correlate(fault(), replace(NODE, recent=recent), under(rule), 3.0, jobs[2])
    assert result.remedy is remedy
    assert kept[-1].job == jobs[2]


def test_a_repeat_never_lowers_a_remedy() -> None:
    node = replace(NODE, recent=seen(1.0, 2.0))
    result, _ = correlate(fault(remedy=Remedy.REPLACE), node, under(THIRD), 3.0)
    assert result.remedy is Remedy.REPLACE


@given(st.lists(st.floats(0, 1e6), max_size=60))
def test_what_is_remembered_is_bounded(moments: list[float]) -> None:
    node = NODE
    for at in sorted(moments):
        _, kept = correlate(fault(), node, under(THIRD), at)
        node = replace(node, recent=kept)
    assert len(node.recent) <= KEEP_SIGHTINGS


# --- joining an open incident


def test_a_further_fault_is_evidence_and_may_raise_the_remedy() -> None:
    known = incident(fault("xid.48", Remedy.RESET_GPU))
    after = absorb(known, fault("xid.79", Remedy.REBOOT), NODE, Policy(), 5.0)
    assert after.remedy is Remedy.REBOOT
    assert after.fault.code == "xid.48", "who came first leads, once it disrupts"
    assert after.evidence[-1].startswith("xid.79")
    milder = absorb(after, fault("xid.63", Remedy.WATCH), NODE, Policy(), 6.0)
    assert milder.remedy is Remedy.REBOOT


def test_a_fault_that_disrupts_takes_the_lead_from_one_that_was_only_watched() -> None:
    after = absorb(
        incident(fault("xid.63", Remedy.WATCH), Phase.WATCHED), fault("xid.79", Remedy.REBOOT), NODE, Policy(), 5.0
    )
    assert (after.fault.code, after.remedy) == ("xid.79", Remedy.REBOOT)


def test_a_consequence_raises_nothing() -> None:
    known = incident(fault("xid.74", Remedy.RESET_GPU))
    after = absorb(known, fault("xid.45", Remedy.REPLACE, follows="xid.74"), NODE, Policy(), 5.0)
    assert after.remedy is Remedy.RESET_GPU


@pytest.mark.parametrize(
    ("phase", "taken_back"), [(Phase.SUSPECT, True), (Phase.WATCHED, True), (Phase.DRAINED, False)]
)
def test_a_fault_takes_another_back_only_while_the_node_is_in_service(phase: Phase, taken_back: bool) -> None:
    after = absorb(incident(fault("xid.163"), phase), fault("xid.162", cancels=("xid.163",)), NODE, Policy(), 5.0)
    assert bool(after.orders) is taken_back


@pytest.mark.parametrize("phase", [Phase.REPAIRING, Phase.VERIFYING])
def test_a_fault_during_a_repair_fails_the_rung_if_it_disrupts(phase: Phase) -> None:
    known = incident(fault("xid.79", Remedy.REBOOT), phase)
    assert absorb(known, fault("xid.79", Remedy.REBOOT), NODE, Policy(), 5.0).relapse
    assert not absorb(known, fault("xid.63", Remedy.WATCH), NODE, Policy(), 5.0).relapse


def test_the_drivers_advice_wins_over_the_table_within_the_operators_bounds() -> None:
    known = incident(fault("xid.48", Remedy.RESET_GPU))
    advice = fault("xid.154", Remedy.NONE, advice=Remedy.REBOOT)
    assert absorb(known, advice, NODE, Policy(), 5.0).remedy is Remedy.REBOOT
    capped = under(FaultRule(cap=Remedy.RESET_GPU))
    assert absorb(known, advice, NODE, capped, 5.0).remedy is Remedy.RESET_GPU


FAULTS = st.builds(
    fault, st.sampled_from(["xid.31", "xid.79", "xid.154", "node.lost"]), REMEDIES,
    device=st.none() | st.integers(0, 7), follows=st.sampled_from(["", "xid.79"]),
    cancels=st.sampled_from([(), ("xid.31",)]), advice=st.none() | REMEDIES, needs_human=st.booleans(),
)  # fmt: skip


@given(first=FAULTS, more=st.lists(FAULTS, max_size=30), phase=st.sampled_from(Phase))
def test_whatever_joins_the_record_stays_bounded_and_is_never_forgotten_by_the_clock(
    first: Fault, more: list[Fault], phase: Phase
) -> None:
    current = incident(first, phase)
    for n, further in enumerate(more):
        after = absorb(current, further, NODE, Policy(), float(n))
        assert after.seen_at == n
        assert len(after.evidence) <= KEEP_EVIDENCE
        assert after.phase is phase
        assert after.needs_human >= current.needs_human
        current = after


# --- the root cause among a burst


def of(code: str, remedy: Remedy, severity: Severity = Severity.ERROR, device: int | None = 0) -> Fault:
    return fault(code, remedy, severity=severity, device=device)


DBE = of("xid.48", Remedy.RESET_GPU, Severity.FATAL)
REMAP = of("xid.63", Remedy.WATCH, Severity.WARNING)
CONTAINED = of("xid.94", Remedy.RESTART_JOB)
SWITCH = of("sxid.12028", Remedy.RESET_GPU, Severity.FATAL, device=None)
LINK = of("xid.74", Remedy.RESET_GPU, device=3)


@pytest.mark.parametrize(("first", "then"), [(REMAP, DBE), (CONTAINED, DBE), (LINK, SWITCH)])
def test_the_root_cause_leads_though_it_was_learned_later(first: Fault, then: Fault) -> None:
    after = absorb(incident(first), then, NODE, Policy(), 1.0)
    assert after.fault.code == then.code
    assert after.remedy is then.remedy


@pytest.mark.parametrize(("first", "then"), [(DBE, REMAP), (DBE, CONTAINED), (SWITCH, LINK)])
def test_what_the_root_cause_brings_is_evidence_and_no_more(first: Fault, then: Fault) -> None:
    after = absorb(incident(first), then, NODE, Policy(), 1.0)
    assert (after.fault.code, after.remedy) == (first.code, first.remedy)
    assert len(after.evidence) == 2


def test_a_consequence_asks_for_nothing_beyond_its_cause() -> None:
    replaced = of("xid.74", Remedy.REPLACE, device=3)  # as a policy may want it
    assert absorb(incident(SWITCH), replaced, NODE, Policy(), 1.0).remedy is Remedy.RESET_GPU
    assert absorb(incident(of("sxid.1", Remedy.WATCH, Severity.WARNING)), replaced, NODE, Policy(), 1.0).remedy is (
        Remedy.REPLACE
    )


def test_two_gpus_are_two_illnesses() -> None:
    other = of("xid.63", Remedy.REBOOT, device=5)
    assert absorb(incident(DBE), other, NODE, Policy(), 1.0).remedy is Remedy.REBOOT


def test_a_consequence_after_the_repair_began_is_a_relapse() -> None:
    repairing = incident(SWITCH, Phase.VERIFYING)
    assert absorb(repairing, LINK, NODE, Policy(), 1.0).relapse
