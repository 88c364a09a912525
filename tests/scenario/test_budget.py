"""The ledger has the last word on how much of a pool we take away by ourselves."""

import pytest
from tests.support.wards import HOUR, OpenWard, cluster_without, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.policy import Limit

CODES = ["xid.79", "xid.48", "xid.119"]  # one signature on three nodes would be the brake's business


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_small_pools_are_repaired_one_node_at_a_time(ward: OpenWard, size: int, cold: bool) -> None:
    w = ward(nodes=size, cold=cold)
    for node, code in zip(w.nodes, CODES, strict=False):
        w.sick(node, code, Remedy.REBOOT)
    w.run(60)
    assert w.ledger().out == 1
    w.rests()
    assert [w.phase(node) for node in w.nodes] == ["RELEASED"] * size
    assert w.ledger().out == 0
    assert w.told() == []


def test_a_deferred_quarantine_keeps_new_work_off_and_leaves_living_work_alone(ward: OpenWard) -> None:
    w = ward(nodes=3)
    first = w.running("first", nodes=1, on=(w.nodes[0],), steps=6000)
    w.sick(w.nodes[1], "xid.79")
    w.run(30)
    w.says(w.nodes[0], 48)  # a line only: its job lives
    w.run(60)
    assert w.phase(w.nodes[0]) == "SUSPECT"
    assert "may lack" in w.incident(w.nodes[0]).wait.because
    assert w.job(first).interruptions == ()
    assert not w.node(w.nodes[0]).claimable
    w.rests()
    assert w.phase(w.nodes[0]) == "RELEASED"
    assert w.job(first).state is JobState.COMPLETE


@pytest.mark.slow
def test_a_quarantine_deferred_by_held_seats_pages_once(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("reboot", "replace", "reset_gpu"))
    w.sick(w.nodes[0], "xid.79")
    w.reaches(w.nodes[0], "HELD")
    w.sick(w.nodes[1], "xid.48")
    w.run(6 * HOUR)
    assert w.phase(w.nodes[1]) == "SUSPECT"
    assert len(w.told("budget")) == 1
    assert len(w.told()) == 2
    w.order("dismiss", w.incident(w.nodes[0]).id)
    w.reaches(w.nodes[1], "HELD")


def test_others_cordons_count(ward: OpenWard) -> None:
    w = ward(nodes=20, cluster=cluster_without("reboot", "replace", "reset_gpu"))
    w.world.operator_cordons(w.nodes[0])
    w.run(30)
    assert w.ledger().out == 1
    w.sick(w.nodes[1], "xid.79")
    w.reaches(w.nodes[1], "HELD")
    w.sick(w.nodes[2], "xid.48")
    w.run(HOUR)
    assert w.phase(w.nodes[2]) == "SUSPECT", "two seats of twenty may be out"
    w.world.operator_uncordons(w.nodes[0])
    w.reaches(w.nodes[2], "HELD")


def test_lost_seats_count_once_whoever_else_has_taken_them_out(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    w.world.operator_cordons(node)
    w.world.lose_node(node)
    w.run(120)
    assert w.incident(node).fault.code == "node.lost"
    assert w.ledger().out == 1
    w.sick(w.nodes[1])
    w.run(30)
    assert w.phase(w.nodes[1]) == "SUSPECT", "one seat of four may be out"
    w.world.operator_uncordons(node)
    w.rests()
    assert w.ledger().out == 0


def test_a_seat_that_is_out_already_may_be_quarantined_over_the_limit(ward: OpenWard) -> None:
    w = ward(nodes=4)
    for node in w.nodes[:2]:
        w.world.operator_cordons(node)
    w.run(30)
    w.sick(w.nodes[0])
    w.rests()
    assert w.phase(w.nodes[0]) == "RELEASED"
    assert w.ledger().out == 2


def test_repairs_wait_for_one_another(ward: OpenWard) -> None:
    w = ward(nodes=4)
    for node, code in zip(w.nodes[:2], CODES, strict=False):
        w.world.operator_cordons(node)
        w.sick(node, code)
    w.run(60)
    assert sorted(w.phase(node) for node in w.nodes[:2]) == ["DRAINED", "REPAIRING"]
    w.rests()
    assert [w.phase(node) for node in w.nodes[:2]] == ["RELEASED", "RELEASED"]


def test_a_repair_that_a_hold_let_go_of_counts_as_under_way_until_it_is_over(ward: OpenWard) -> None:
    """Limit of repairs: one. The reboot that was sent goes on, whatever its incident is called meanwhile."""
    w = ward(nodes=10, policy=policy_with(limits=(Limit(out_percent=50.0, repairing_percent=10.0),)))
    first, second = w.nodes[:2]
    w.sick(first)
    w.until(lambda: bool(w.happened("reboot", first)), HOUR)
    w.order("hold", w.incident(first).id)
    w.reaches(first, Phase.HELD, HOUR)
    w.sick(second)
    w.run(60)
    assert w.phase(second) == Phase.DRAINED
    assert not w.happened("reboot", second)
    assert w.ledger().repairing == 1
    w.until(lambda: w.phase(second) == Phase.RELEASED, HOUR)
    assert len(w.happened("up", first)) == 1, "the second was repaired when the first had come back"
    assert w.ledger().repairing == 0
    w.rests()
