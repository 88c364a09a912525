"""A newcomer is checked before it counts; a vacancy is filled, or a human is told."""

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without

from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.incident import IncidentKind, Phase
from sickbay.sim.chaos import Odds
from sickbay.sim.hardware import SimDefect


def joins(w: Ward, name: str, *defects: SimDefect, unmanaged: int = 0) -> NodeId:
    """A machine that nobody has seen before."""
    node = NodeId(f"sim/{name}")
    seat = w.world.ground.add_seat(node, pool="train", domain="train-rack-0", gpus=8, linked=True)
    seat.defects.extend(defects)
    seat.unmanaged = unmanaged
    w.world.agents.refresh(seat)
    w.world.plant.cluster_hears(seat)
    return node


def newcomers(w: Ward) -> list[NodeId]:
    return [node for node in w.world.seats if node not in w.nodes]


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_newcomer_is_checked_before_it_counts(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold)
    node = joins(w, "newcomer")
    w.run(60)
    assert w.incident(node).kind is IncidentKind.INTAKE
    assert not w.node(node).claimable
    assert (w.ledger().seats, w.ledger().out) == (4, 0)
    w.rests()
    assert w.phases(node) == ["SUSPECT", "QUARANTINED", "DRAINED", "VERIFYING", "RELEASED"]
    assert w.node(node).claimable
    assert (w.ledger().seats, w.ledger().out) == (5, 0)
    assert w.incidents(node) == [], "intake is shown only on request"
    assert w.told() == []


@pytest.mark.slow
def test_a_newcomer_that_came_with_work_keeps_it_and_is_checked_when_that_has_left(ward: OpenWard) -> None:
    w = ward()
    node = joins(w, "newcomer", unmanaged=1)
    w.run(2 * HOUR)
    assert w.phases(node) == ["SUSPECT"], "it is suspected of nothing: nobody is sent away"
    assert not w.node(node).claimable
    assert w.told() == []
    w.run(12 * HOUR)
    assert len(w.told("check_could_not_run")) == 1, "a human hears of it now and then"
    seat = w.world.seats[node]
    seat.unmanaged = 0
    w.world.plant.cluster_hears(seat)
    w.rests()
    assert w.phases(node) == ["SUSPECT", "QUARANTINED", "DRAINED", "VERIFYING", "RELEASED"]


def test_a_newcomer_takes_no_part_of_the_budget(ward: OpenWard) -> None:
    w = ward()
    w.sick(w.nodes[0])
    w.run(30)
    node = joins(w, "newcomer")
    w.run(60)
    assert w.phase(node) == "VERIFYING"
    w.rests()


def test_a_newcomer_in_a_kept_seat_is_taken_in_while_the_pool_is_at_its_limit(ward: OpenWard) -> None:
    """It does not serve before its release, so its cordon takes nothing out of service."""
    w = ward(nodes=4, cluster=cluster_without("reboot", "replace", "reset_gpu"))
    w.sick(w.nodes[0])
    w.reaches(w.nodes[0], Phase.HELD, HOUR)
    w.world.announce(w.nodes[1], "maintenance", 1800)
    w.run(5)
    w.world.operator_replaces(w.nodes[1])
    w.world.seat(w.nodes[1]).cordons.clear()
    w.reaches(w.nodes[1], Phase.RELEASED, 2 * HOUR)
    assert w.incident(w.nodes[1]).kind is IncidentKind.INTAKE
    assert w.phase(w.nodes[0]) == Phase.HELD
    assert w.node(w.nodes[1]).claimable


def test_all_nodes_that_join_after_we_have_connected_are_taken_in(ward: OpenWard) -> None:
    w = ward(intake=True)
    w.run(60)
    w.rests()
    assert [w.phase(node) for node in w.nodes] == ["RELEASED"] * 4
    assert w.ledger().seats == 4


def test_a_newcomer_that_fails_its_check_is_repaired_like_any_other(ward: OpenWard) -> None:
    w = ward()
    node = joins(w, "newcomer", SimDefect(code="xid.79", cured_by=Remedy.REBOOT, silent=True))
    w.rests()
    assert w.happened("check.fail", node)
    assert w.rungs(node) == ["reboot"]
    assert w.phase(node) == "RELEASED"
    assert w.node(node).claimable


def test_a_newcomer_that_nothing_cures_never_counts(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("replace"))
    node = joins(w, "newcomer", SimDefect(code="xid.79", cured_by=None, silent=True))
    w.rests()
    assert w.phase(node) == "HELD"
    assert not w.node(node).claimable
    assert (w.ledger().seats, w.ledger().out) == (4, 0)
    assert len(w.told("held")) == 1


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_where_seats_are_not_kept_the_newcomer_fills_the_vacancy(ward: OpenWard, cold: bool) -> None:
    w = ward(cluster=cluster_without("seat_kept"), cold=cold)
    node = w.nodes[0]
    w.order("replace", node)
    w.until(lambda: w.phase(node) == "REPLACED")
    assert (w.ledger().seats, w.ledger().out) == (4, 1), "a vacant seat is out"
    w.until(lambda: bool(newcomers(w)))
    w.run(30)
    (fresh,) = newcomers(w)
    assert not w.node(fresh).claimable
    assert (w.ledger().seats, w.ledger().out) == (4, 1)
    w.rests()
    assert w.phase(fresh) == "RELEASED"
    assert w.node(fresh).claimable
    assert (w.ledger().seats, w.ledger().out) == (4, 0)
    assert w.told() == []


@pytest.mark.slow
def test_a_vacancy_that_nobody_fills_is_told_once(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("seat_kept"), odds=Odds(no_newcomer=1.0))
    w.order("replace", w.nodes[0])
    w.run(6 * HOUR)
    assert w.phase(w.nodes[0]) == "REPLACED"
    assert len(w.told("vacancy")) == len(w.told()) == 1
    assert (w.ledger().size, w.ledger().out) == (3, 0), "past its deadline it is no seat of the pool any more"


def test_a_replaced_machine_in_a_kept_seat_is_proven_before_it_returns(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    before = w.node(node).incarnation
    w.order("replace", node)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert not w.node(node).incarnation.same_holder(before)
    assert w.incident(node).proof.incarnation == w.node(node).incarnation


def test_an_operators_replacement_of_a_healthy_node_is_taken_in(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.announce(node, "hardware swap", 3600)
    w.run(5)
    w.world.operator_replaces(node)
    w.run(1200)
    w.rests()
    assert w.incident(node).kind is IncidentKind.INTAKE
    assert w.phase(node) == "RELEASED"
    assert w.happened("check.pass", node)


def test_a_new_boot_of_a_known_machine_is_no_newcomer(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.operator_reboots(node)
    w.run(600)
    w.rests()
    assert w.sim.incidents(node, intake=True) == []


def test_a_blind_replacement_in_doubt_is_never_sent_again(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without(blind_repairs=frozenset({"replace"})))
    node = w.nodes[0]
    now = w.sim.scheduler.now
    w.sim.mischief.outage("machines:sim", now, now + 600, hangs=True)
    w.order("replace", node)
    w.reaches(node, Phase.HELD)
    sent = [t for t in w.world.chronicle.told if t.act == "replace"]
    assert len(sent) == 1
    assert w.happened("replace", node) == []
    w.rests()
    assert len(w.told("held")) == len(w.told()) == 1
