"""What a person was answered "done" is done, whatever the machine or its cluster does in between."""

import pytest
from tests.scenario.test_acts import Channel
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.errors import Transient, Unknown
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.incident import IncidentKind, Phase
from sickbay.model.policy import FaultRule, Match, Mode
from sickbay.sim.context import Timings


def lost_under_a_pause(w: Ward) -> NodeId:
    """A node that nobody hears, and for which nothing may be done."""
    node = w.nodes[0]
    w.order("pause", "")
    w.run(2)
    w.world.partition(node)
    w.world.cut_path(node)
    w.until(lambda: w.phase(node) == Phase.SUSPECT and w.incident(node).fault.code == "node.lost", HOUR)
    return node


def is_heard_again(w: Ward, node: NodeId) -> None:
    w.run(5)
    w.world.heal_partition(node)
    w.world.open_path(node)
    w.run(60)
    w.order("unpause", "")


def closing(w: Ward) -> Channel:
    """The first node is proven well, and the cluster does not take our release yet."""
    w.sick(w.nodes[0], "xid.48", Remedy.RESET_GPU)
    channel = Channel(w.sim.hands.sites["sim"].cluster, "uncordon", lambda _: Transient("API down"))
    w.until(lambda: bool(w.phase(w.nodes[0])) and w.incident(w.nodes[0]).closing is not None, 2 * HOUR)
    return channel


# --- during a repair


def test_a_machine_that_reboots_by_itself_does_not_stand_in_for_its_replacement(ward: OpenWard) -> None:
    w = ward(nodes=4, rules=Timings(reset_takes=60))
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.REBOOT)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.order("replace", node)
    w.run(3)
    w.world.operator_reboots(node)
    w.reaches(node, Phase.RELEASED, 3 * HOUR)
    assert w.happened("replace", node)


def test_a_machine_that_reboots_by_itself_stands_in_for_an_ordered_reboot(ward: OpenWard) -> None:
    w = ward(nodes=4, rules=Timings(reset_takes=60))
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.REBOOT)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.order("reboot", node)
    w.run(3)
    w.world.operator_reboots(node)
    w.reaches(node, Phase.RELEASED, 3 * HOUR)
    assert w.rungs(node) == ["reset_gpu"]


# --- of a node that is lost


def test_a_lost_node_whose_replacement_was_ordered_is_replaced_though_it_is_heard_again(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = lost_under_a_pause(w)
    w.order("replace", node)
    is_heard_again(w, node)
    w.reaches(node, Phase.RELEASED, 2 * HOUR)
    assert w.happened("replace", node)


def test_a_lost_node_that_a_person_has_cordoned_is_held_though_it_is_heard_again(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = lost_under_a_pause(w)
    w.order("cordon", node)
    is_heard_again(w, node)
    w.reaches(node, Phase.HELD, HOUR)
    assert not w.node(node).claimable


def test_a_lost_node_of_which_nobody_asks_anything_is_dismissed_when_it_is_heard_again(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = lost_under_a_pause(w)
    is_heard_again(w, node)
    w.reaches(node, Phase.DISMISSED, HOUR)


# --- while an incident closes


@pytest.mark.parametrize("fault_first", [True, False])
def test_an_ordered_reboot_is_made_though_a_fault_comes_with_it_that_is_only_observed(
    ward: OpenWard, fault_first: bool
) -> None:
    observed = FaultRule(match=Match(fault=("xid.79",)), mode=Mode.OBSERVE)
    w = ward(nodes=4, policy=policy_with(faults=(observed,)))
    node = w.nodes[0]
    channel = closing(w)
    if fault_first:
        w.says(node, 79)
        w.run(2)
    w.order("reboot", node, now=True)
    w.run(2)
    if not fault_first:
        w.says(node, 79)
        w.run(2)
    channel.works()
    w.until(lambda: len(w.incidents(node)) == 2 and w.phase(node) == Phase.RELEASED, 6 * HOUR)
    assert w.happened("reboot", node)
    assert w.incident(node).now


def test_orders_of_several_people_while_it_closes_are_all_carried_out(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    channel = closing(w)
    w.order("reboot", node, now=True)
    w.order("cordon", node)
    w.run(2)
    channel.works()
    w.until(lambda: len(w.incidents(node)) == 2 and w.phase(node) == Phase.HELD, 2 * HOUR)
    assert w.incident(node).now
    answers = [line.text for line in w.sim.store.story("operator:") if line.event == "answer"]
    assert "cordon: taken up" in answers[-1]
    assert w.rungs(node) == ["reboot"], (
        "a cordon besides does not keep the reboot that was ordered before it from being done"
    )


def test_a_dismissal_takes_our_cordon_back_at_once_though_a_release_before_it_was_refused(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    w.sick(node, "xid.48", Remedy.RESET_GPU)
    answers = [Unknown("no answer")]  # to the first call; then it does not get through
    channel = Channel(
        w.sim.hands.sites["sim"].cluster, "uncordon", lambda n: answers[0] if n == 1 else Transient("API down")
    )
    w.until(lambda: bool(w.phase(node)) and w.incident(node).closing is not None, 2 * HOUR)
    w.run(15)
    w.order("dismiss", w.incident(node).id)
    w.run(2)
    w.world.operator_reboots(node)
    w.run(600)
    channel.works()
    w.reaches(node, Phase.DISMISSED, HOUR)
    assert w.node(node).cordons == ()


# --- of a node that is deleted and comes back


@pytest.mark.parametrize("joins", [True, False])
def test_a_node_that_a_person_holds_is_held_again_when_its_machine_registers_anew(ward: OpenWard, joins: bool) -> None:
    w = ward(nodes=4) if joins else ward(nodes=4, policy=policy_with(examine=()))
    node = w.nodes[0]
    w.order("cordon", node)
    w.reaches(node, Phase.HELD, HOUR)
    w.world.operator_returns(node, 20.0, same_machine=True)
    w.until(lambda: len(w.sim.incidents(node, intake=True)) == 2, HOUR)
    w.reaches(node, Phase.HELD, HOUR)
    assert w.incident(node).kind is IncidentKind.OPERATOR
    w.run(HOUR)
    assert not w.node(node).claimable
    assert len(w.told("held")) == 2
    w.order("uncordon", node)
    w.reaches(node, Phase.DISMISSED, HOUR)
    w.world.operator_returns(node, 20.0, same_machine=True)  # he has let it go: it is not held a third time
    w.run(6 * HOUR)
    assert w.node(node).claimable


def test_a_sick_node_that_a_person_has_cordoned_is_held_again_and_not_repaired(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    w.order("cordon", node)
    w.reaches(node, Phase.HELD, HOUR)
    w.says(node, 79)
    w.run(60)
    w.world.operator_returns(node, 20.0, same_machine=True)
    w.until(lambda: len(w.sim.incidents(node, intake=True)) == 2, HOUR)
    w.reaches(node, Phase.HELD, HOUR)
    w.run(6 * HOUR)
    assert w.phase(node) == Phase.HELD
    assert w.rungs(node) == []


def test_a_node_that_a_person_has_rebooted_and_that_registers_anew_is_not_rebooted_again(ward: OpenWard) -> None:
    w = ward(nodes=4)
    node = w.nodes[0]
    w.order("reboot", node)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.world.operator_returns(node, 20.0, same_machine=True)
    w.until(lambda: len(w.sim.incidents(node, intake=True)) == 2, HOUR)
    w.reaches(node, Phase.RELEASED, HOUR)
    assert w.rungs(node) == []


def test_a_node_held_at_the_ladders_end_is_held_again_once_a_person_has_cordoned_it(ward: OpenWard) -> None:
    w = ward(nodes=4, cluster=cluster_without("reboot", "replace", "reset_gpu"))
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.HELD, HOUR)
    w.order("cordon", node)
    w.run(5)
    w.world.operator_returns(node, 20.0, same_machine=True)
    w.until(lambda: len(w.sim.incidents(node, intake=True)) == 2, HOUR)
    w.reaches(node, Phase.HELD, HOUR)
    assert w.incident(node).kind is IncidentKind.OPERATOR
