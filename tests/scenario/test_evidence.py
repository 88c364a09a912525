"""Silence of evidence is not health: what was withheld is confirmed or cleared by a check, never by waiting."""

from datetime import timedelta
from typing import Any

import pytest
from tests.scenario.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.incident import Phase
from sickbay.model.policy import FaultRule, Match, Repeat
from sickbay.sim.mischief import Odds

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
