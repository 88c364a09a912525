"""Silence of evidence is not health: what was withheld is confirmed or cleared by a check, never by waiting."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.errors import Rejected
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.incident import Phase
from sickbay.model.policy import BrakeRule, BrakeScope, FaultRule, Limit, Match, Repeat
from sickbay.sim.chaos import Odds
from sickbay.sim.context import Timings
from sickbay.sim.hardware import SimDefect

# --- an announced end


@pytest.mark.parametrize("seconds", ["nan", "inf", "-5", "soon", "1e309", "1000000000", 10**9])
def test_an_announced_end_is_bounded_whatever_an_agent_says(ward: OpenWard, seconds: str | int) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.observe(node, "node.going_down", {"seconds": seconds}, "maintenance")
    w.run(5)
    w.world.lose_node(node)
    w.run(HOUR)
    assert w.incident(node).fault.code == "node.lost"
    w.rests()
    assert w.phase(node) == "RELEASED"


def test_an_announced_end_that_is_too_far_away_is_told_so(ward: OpenWard) -> None:
    w = ward()
    w.world.announce(w.nodes[0], "maintenance", 10**9)
    w.run(5)
    assert "30 min" in w.story(w.nodes[0])


def test_an_announced_end_within_its_bound_is_not_silence(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.announce(node, "maintenance", 1200)
    w.run(5)
    w.world.lose_node(node)
    w.run(1100)
    assert w.incidents(node) == []
    w.run(300)
    assert w.incident(node).fault.code == "node.lost"


# --- the driver's advice


def test_the_drivers_advice_lowers_neither_an_order_nor_what_another_gpu_needs(ward: OpenWard) -> None:
    w = ward()
    ordered, other = w.nodes[:2]
    w.order("pause", "")
    w.says(ordered, 48)
    w.says(other, 79)
    w.run(10)
    w.order("replace", ordered)
    w.run(10)
    w.says(ordered, 154, advice="reset_gpu")
    w.says(other, 154, device=5, advice="reset_gpu")
    w.run(10)
    assert w.incident(ordered).remedy is Remedy.REPLACE
    assert w.incident(other).remedy is Remedy.REBOOT


# --- history and repeats


def test_false_alarms_that_a_person_dismissed_make_no_lemon(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for _ in range(3):
        w.says(node, 48)
        w.order("dismiss", w.reaches(node, Phase.QUARANTINED).id)
        w.reaches(node, Phase.DISMISSED)
        w.run(60)
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    w.rests()
    assert w.rungs(node) == ["reset_gpu"]


def test_a_node_that_came_back_by_itself_makes_no_lemon(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("pause", "")
    for _ in range(2):
        w.world.cut_path(node)
        w.world.partition(node)
        w.run(300)
        w.world.heal_partition(node)
        w.world.open_path(node)
        w.reaches(node, Phase.DISMISSED)
    w.order("unpause", "")
    w.run(60)
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    w.rests()
    assert w.rungs(node) == ["reset_gpu"]


def test_two_repairs_make_a_lemon(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for _ in range(2):
        w.sick(node, "xid.48", Remedy.RESET_GPU)
        w.rests()
        assert w.rungs(node) == ["reset_gpu"]
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    w.reaches(node, Phase.REPAIRING)
    assert w.rungs(node) == ["replace"]


def test_history_is_dated_by_the_beginning(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("pause", "")
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    began = w.sim.scheduler.now
    w.run(2 * HOUR)
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "RELEASED"
    key = f"record:{w.node(node).incarnation.instance_id}"
    (past,) = w.sim.store.load([key])[key].row.past
    assert abs(past.at - began) < 60


THIRD = policy_with(
    faults=(
        FaultRule(
            match=Match(fault="xid.94"), repeat=Repeat(times=3, within=timedelta(days=1), floor=Remedy.RESET_GPU)
        ),
    )
)


def contained(w: Ward, node: NodeId, times: int, **more: Any) -> None:
    for n in range(times):
        w.world.observe(node, "xid", {"number": 94, "device": 0}, f"line {w.sim.scheduler.now} {n}", **more)
        w.run(60)


@pytest.mark.parametrize("by", ["repair", "person"])
def test_what_a_repair_ended_or_a_person_vouched_for_is_no_repeat(ward: OpenWard, by: str) -> None:
    w = ward(policy=THIRD)
    node = w.nodes[0]
    contained(w, node, 3)
    if by == "person":
        w.order("dismiss", w.incident(node).id)
    w.rests()
    assert w.phase(node) == ("RELEASED" if by == "repair" else "DISMISSED")
    contained(w, node, 2)
    assert not w.incident(node).remedy.disrupts
    contained(w, node, 1)
    assert w.incident(node).remedy is Remedy.RESET_GPU


# --- room


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_pool_that_was_scaled_down_is_small(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=40, policy=policy_with(brakes=()), cold=cold)
    for node in w.nodes[4:]:
        w.world.operator_deletes(node)
    w.run(120)
    assert (w.ledger().seats, w.ledger().size) == (4, 4)
    for node, number in zip(w.nodes, (79, 48, 119, 74), strict=False):
        w.says(node, number)
    w.run(120)
    assert sum(w.node(node).out for node in w.nodes[:4]) == 1
    w.rests()


def test_a_persons_cordon_in_a_small_pool_does_not_turn_healing_off(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.world.operator_cordons(w.nodes[3])
    w.run(30)
    assert w.ledger().out == 1
    w.sick(w.nodes[0])
    w.rests()
    assert w.phase(w.nodes[0]) == "RELEASED"


def test_a_vacancy_counts_until_its_deadline_and_a_late_newcomer_as_one(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("seat_kept"), odds=Odds(no_newcomer=1.0))
    w.order("replace", w.nodes[0])
    w.reaches(w.nodes[0], Phase.REPLACED)
    assert (w.ledger().size, w.ledger().out, w.ledger().ours) == (4, 1, 1)
    w.run(2 * HOUR)
    assert (w.ledger().size, w.ledger().out, w.ledger().ours) == (3, 0, 0)


# --- after a brake, a pause, an exclusion

ROOMY = policy_with(limits=(Limit(out_percent=50, repairing_percent=50),))
BRAKE = "pool:train:xid.79"


def checks(w: Ward, node: NodeId) -> list[float]:
    return [e.at for e in w.world.chronicle.events if e.what == "check" and e.subject == node]


def storm(w: Ward, sick: list[NodeId], well: list[NodeId]) -> list[NodeId]:
    """One signature on many nodes, most of which have nothing; the nodes that its brake withholds."""
    for node in sick:
        w.sick(node, "xid.79", Remedy.REBOOT)
    for node in well:
        w.says(node, 79)
    w.run(30)
    assert w.brake(BRAKE).tripped_at is not None
    return [node for node in (*sick, *well) if w.phase(node) == "SUSPECT"]


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by quiet"])
def test_after_a_brake_a_check_confirms_the_sick_and_clears_the_well(ward: OpenWard, by_hand: bool, cold: bool) -> None:
    w = ward(nodes=20, policy=ROOMY, cold=cold)
    sick, well = w.nodes[4:8], w.nodes[10:14]
    waiting = storm(w, sick, well)
    assert set(sick) & set(waiting)
    if by_hand:
        w.order("brake_reset", BRAKE)
    w.until(lambda: w.brake(BRAKE).tripped_at is None, 2 * HOUR)
    w.rests()
    for node in waiting:
        if node in sick:
            assert (w.phase(node), w.rungs(node)) == ("RELEASED", ["reboot"])
        else:
            assert w.phase(node) == "DISMISSED"
            assert w.incident(node).stages[-1].because == "its check passed: level 2"
            assert w.happened("cordon", node) == []
        assert w.node(node).claimable


def test_a_suspect_is_nobodys_to_claim_before_its_check_has_passed(ward: OpenWard) -> None:
    w = ward(nodes=8, policy=ROOMY)
    (node, *_) = storm(w, [], w.nodes[:4])[-1:]
    w.order("brake_reset", "")
    w.until(lambda: w.node(node).claimable, HOUR)
    assert len(w.happened("check.pass", node)) == 1


def test_another_fault_confirms_nobody(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    node = storm(w, [], w.nodes[:6])[-1]
    w.order("brake_reset", "")
    w.run(0.2)
    w.says(node, 31)
    w.says(node, 79, device=3)
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert w.happened("cordon", node) == []
    assert len(checks(w, node)) == 1


def test_a_failed_check_confirms_though_no_line_comes_with_it(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    node = storm(w, [], w.nodes[:6])[-1]
    w.world.strike(node, SimDefect(code="xid.79", cured_by=Remedy.REBOOT, silent=True))
    w.order("brake_reset", "")
    w.rests()
    assert (w.phase(node), w.rungs(node)) == ("RELEASED", ["reboot"])
    assert "its check failed: xid.79" in w.story(node)


def test_the_same_fault_again_confirms_at_once(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    node = storm(w, [], w.nodes[:6])[-1]
    w.order("brake_reset", "")
    w.run(1)
    w.says(node, 79)
    w.run(20)
    assert w.phase(node) != "SUSPECT"
    assert checks(w, node) == []


@pytest.mark.slow
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_check_that_cannot_run_clears_nobody_and_ends_with_a_person(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch, cold: bool
) -> None:
    w = ward(nodes=20, policy=ROOMY, cold=cold)
    node = storm(w, [], w.nodes[:4])[-1]

    def refuse(*_: object, **__: object) -> None:
        raise Rejected("no such command")

    monkeypatch.setattr(w.sim.hands.sites["sim"].checks, "start", refuse)
    w.order("brake_reset", "")
    w.run(DAY)
    assert w.phase(node) == "SUSPECT"
    assert not w.node(node).claimable
    told = w.told("unconfirmed")
    assert any(node in text for text in told)
    acts = w.incident(node).acts
    assert acts <= 8
    w.run(DAY)
    assert w.incident(node).acts - acts <= 4
    w.order("dismiss", w.incident(node).id)
    w.run(60)
    assert w.phase(node) == "DISMISSED"


@pytest.mark.parametrize("work", ["job", "unmanaged"])
def test_no_check_disturbs_what_runs(ward: OpenWard, work: str) -> None:
    w = ward(nodes=8, policy=ROOMY, rules=Timings(work_lasts=3 * HOUR))
    node = w.nodes[7]
    if work == "job":
        job = w.running(nodes=1, on=(node,), steps=10**6)
    else:
        assert w.world.other_scheduler_starts_work(node)
        w.run(10)
    storm(w, [], w.nodes[:3])
    w.says(node, 79)
    w.run(10)
    assert w.phase(node) == "SUSPECT"
    w.order("brake_reset", "")
    w.run(2 * HOUR)
    assert w.phase(node) == "SUSPECT"
    assert checks(w, node)[1 if work == "job" else 0 :] == [], "only the gate's, before it began"
    assert "waits until" in w.incident(node).wait.because
    if work == "job":
        assert w.job(job).interruptions == ()
        w.order("stop", job)
    w.rests()
    assert w.phase(node) == "DISMISSED"


def test_suspects_are_checked_at_the_pace_of_their_own_brake(ward: OpenWard) -> None:
    slow = BrakeRule(scope=BrakeScope.CLUSTER, signature="silence", confirm_every=timedelta(minutes=20))
    quick = BrakeRule(scope=BrakeScope.POOL, confirm_every=timedelta(seconds=10))
    w = ward(nodes=20, policy=replace(ROOMY, brakes=(slow, quick)))
    waiting = storm(w, [], w.nodes[:10])
    w.order("brake_reset", "")
    began = w.sim.scheduler.now
    w.rests()
    begun = sorted(checks(w, node)[0] - began for node in waiting)
    assert all(9 <= later - earlier <= 60 for earlier, later in pairwise(begun))


@pytest.mark.parametrize("sick", [True, False], ids=["sick", "well"])
@pytest.mark.parametrize("row", ["pause", "exclude"])
def test_what_was_withheld_is_confirmed_or_cleared_by_a_check_when_that_ends(
    ward: OpenWard, row: str, sick: bool
) -> None:
    w = ward()
    node = w.nodes[0]
    w.order(row, "", seconds="1800")
    if sick:
        w.sick(node, "xid.79", Remedy.REBOOT)
    else:
        w.says(node, 79)
    w.run(1700)
    assert w.phase(node) == "SUSPECT"
    w.rests()
    assert w.phase(node) == ("RELEASED" if sick else "DISMISSED")
    assert w.rungs(node) == (["reboot"] if sick else [])
    assert len(checks(w, node)) == (2 if sick else 1)


def test_a_node_whose_exclusion_has_ended_is_not_claimed_before_its_check(ward: OpenWard) -> None:
    w = ward(nodes=1, policy=policy_with(examine=()))
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="xid.79", seconds="600")
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.run(60)
    assert w.node(node).claimable
    w.until(lambda: not w.node(node).claimable, HOUR)
    w.until(lambda: w.node(node).claimable, HOUR)
    assert w.phase(node) == "RELEASED"


def test_a_passed_check_is_proof_and_no_strike(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    node = storm(w, [], w.nodes[:6])[-1]
    w.order("brake_reset", "")
    w.rests()
    key = f"record:{w.node(node).incarnation.instance_id}"
    record = w.sim.store.load([key])[key].row
    assert record is None or record.past == ()
    assert w.node(node).proven_at is not None
