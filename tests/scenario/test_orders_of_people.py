"""The way people work: cordon, drain, reboot, uncordon; what they cordon stays until they take it back."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OPENS_AT_THREE, OpenWard, cluster_without, policy_with

from sickbay.brain.admit import goes_off_at
from sickbay.faces.explain import explain
from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.policy import FaultRule, Mode

CORDON_FIRST = [("cordon", "reboot"), ("cordon", "drain", "reboot"), ("drain", "reboot")]
SOON, LATER = 1.0, HOUR  # after HOUR a reboot that was ordered first is over


@pytest.mark.parametrize(
    ("verbs", "apart"),
    [*((verbs, apart) for verbs in CORDON_FIRST for apart in (0.0, SOON, LATER)),
     (("reboot", "cordon"), 0.0), (("reboot", "cordon"), SOON)],
    ids=str,
)  # fmt: skip
def test_a_reboot_of_a_cordoned_node_is_done_and_it_returns_only_by_uncordon(
    ward: OpenWard, verbs: tuple[str, ...], apart: float
) -> None:
    w = ward()
    node = w.nodes[0]
    for verb in verbs:
        w.order(verb, node)
        w.run(apart)
    w.run(HOUR)
    w.rests()
    assert len(w.happened("reboot", node)) == 1
    assert w.happened("check.pass", node)
    assert w.phase(node) == Phase.HELD
    assert not w.node(node).claimable
    w.order("uncordon", node)
    w.rests()
    assert w.phase(node) == Phase.DISMISSED
    assert w.node(node).claimable
    assert not w.world.seat(node).cordons


def test_an_uncordon_before_the_reboot_is_done_takes_the_cordon_back_and_leaves_the_reboot(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for verb in ("cordon", "drain", "reboot", "uncordon"):  # pasted in one go
        w.order(verb, node)
        w.run(1)
    w.rests()
    assert len(w.happened("reboot", node)) == 1
    assert w.happened("check.pass", node), "proof before return"
    assert w.phase(node) == Phase.RELEASED
    assert w.node(node).claimable


def test_confirm_gives_a_cordoned_node_back_after_a_check(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("cordon", node)
    w.order("reboot", node)
    w.rests()
    w.order("confirm", w.incident(node).id)
    w.rests()
    assert w.phase(node) == Phase.RELEASED


def test_a_cordoned_node_can_be_rebooted_again_and_again(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("cordon", node)
    for times in (1, 2, 3):
        w.order("reboot", node)
        w.rests()
        assert len(w.happened("reboot", node)) == times
        assert w.phase(node) == Phase.HELD


@pytest.mark.parametrize("order", ["reboot", "escalate"])
def test_a_node_held_at_the_ladders_end_is_repaired_when_a_person_orders_it(ward: OpenWard, order: str) -> None:
    w = ward(cluster=cluster_without("replace"))
    node = w.nodes[0]
    w.sick(node, "xid.79", None)
    w.reaches(node, Phase.HELD, 6 * HOUR)
    made = len(w.happened("reboot", node))
    if order == "escalate":
        w.order("escalate", w.incident(node).id)
        w.rests()
        assert w.phase(node) == Phase.HELD, "this cluster has no stronger repair"
        return
    for defect in list(w.world.seat(node).defects):
        w.world.seat(node).defects.remove(defect)  # somebody has mended it meanwhile
    w.order("reboot", node)
    w.rests()
    assert len(w.happened("reboot", node)) == made + 1
    assert w.phase(node) == Phase.RELEASED


def test_an_incident_on_hold_can_be_escalated(ward: OpenWard) -> None:
    w = ward(policy=policy_with(windows=OPENS_AT_THREE))
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.DRAINED, HOUR)
    w.order("hold", w.incident(node).id)
    w.reaches(node, Phase.HELD, HOUR)
    w.order("escalate", w.incident(node).id)
    w.rests()
    assert w.rungs(node) == ["reboot"]
    assert w.phase(node) == Phase.RELEASED


def test_a_cordoned_nodes_job_goes_on_until_the_window_of_its_reboot_opens(ward: OpenWard) -> None:
    w = ward(policy=policy_with(windows=OPENS_AT_THREE), nodes=4)
    job = w.training(steps=20_000)
    node = min(w.job(job).claim)
    w.order("cordon", node)
    w.reaches(node, Phase.HELD, HOUR)
    w.order("reboot", node)
    w.run(HOUR)
    assert node in w.job(job).claim, "a cordon changes nothing that runs, and the reboot has to wait"
    assert w.job(job).interruptions == ()
    wait = w.incident(node).wait
    assert wait is not None
    assert wait.opens is not None
    assert wait.opens.hour == 3
    assert "2026-01-01 03:00" in wait.because
    w.run(3 * HOUR)
    assert len(w.happened("reboot", node)) == 1


def test_a_well_node_serves_until_the_window_of_its_reboot_opens(ward: OpenWard) -> None:
    w = ward(policy=policy_with(windows=OPENS_AT_THREE), nodes=4)
    node = w.nodes[0]
    w.order("reboot", node)
    w.run(HOUR)
    assert w.node(node).claimable
    assert "it serves on and takes new work" in explain(w.sim.store, node).now
    assert w.ledger().out == 0
    w.run(3 * HOUR)
    assert w.phase(node) == Phase.RELEASED


@pytest.mark.parametrize("verb", ["cordon", "drain"])
def test_a_persons_own_cordon_does_not_turn_healing_off_in_a_small_pool(ward: OpenWard, verb: str) -> None:
    w = ward(nodes=4)
    w.order(verb, w.nodes[3])
    w.reaches(w.nodes[3], Phase.HELD, HOUR)
    w.sick(w.nodes[0], "xid.79", Remedy.REBOOT)
    w.rests()
    assert w.phase(w.nodes[0]) == Phase.RELEASED
    assert (w.ledger().out, w.ledger().ours) == (1, 0)


@pytest.mark.parametrize("verb", ["cordon", "drain"])
def test_a_seat_that_a_person_takes_over_uses_up_no_budget_any_more(ward: OpenWard, verb: str) -> None:
    """His reboot could not be proven, so it is held; then he wants it out himself."""
    w = ward(nodes=4, cluster=cluster_without("check_cordoned"))
    w.order("reboot", w.nodes[3])
    w.reaches(w.nodes[3], Phase.HELD, HOUR)
    w.sick(w.nodes[0], "xid.79", Remedy.REBOOT)
    w.run(10 * 60)
    assert w.phase(w.nodes[0]) == Phase.SUSPECT, "what is not proven uses it up"
    w.order(verb, w.nodes[3])
    w.until(lambda: bool(w.happened("reboot", w.nodes[0])), HOUR)
    assert w.phase(w.nodes[3]) == Phase.HELD


def test_a_seat_that_a_person_gives_back_unproven_uses_up_the_budget_until_its_proof(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.order("cordon", w.nodes[3])
    w.reaches(w.nodes[3], Phase.HELD, HOUR)
    w.order("reboot", w.nodes[3])
    w.reaches(w.nodes[3], Phase.REPAIRING, HOUR)
    w.order("uncordon", w.nodes[3])
    w.run(5)
    w.sick(w.nodes[0], "xid.79", Remedy.REBOOT)
    w.until(lambda: w.phase(w.nodes[0]) == Phase.SUSPECT, HOUR)
    w.reaches(w.nodes[3], Phase.VERIFYING, HOUR)
    assert w.phase(w.nodes[0]) == Phase.SUSPECT
    w.rests()
    assert [w.phase(node) for node in (w.nodes[0], w.nodes[3])] == [Phase.RELEASED, Phase.RELEASED]


def test_a_held_node_uses_up_the_budget_of_a_small_pool(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.sick(w.nodes[3], "xid.79", Remedy.REBOOT)
    w.reaches(w.nodes[3], Phase.REPAIRING, HOUR)
    w.order("hold", w.incident(w.nodes[3]).id)
    w.reaches(w.nodes[3], Phase.HELD, HOUR)
    w.sick(w.nodes[0], "xid.79", Remedy.REBOOT)
    w.run(HOUR)
    assert w.phase(w.nodes[0]) == Phase.SUSPECT
    assert w.told("budget")


def test_a_wait_for_a_brake_ends_when_the_brake_goes_off_by_itself(ward: OpenWard) -> None:
    w = ward(nodes=8)
    for node in w.nodes[:4]:
        w.sick(node, "xid.79", Remedy.REBOOT)
    w.run(60)
    suspect = next(node for node in w.nodes[:4] if w.phase(node) == Phase.SUSPECT)
    brake, rule = w.brake("pool:train:xid.79"), policy_with().brakes[1]
    wait = w.incident(suspect).wait
    assert wait is not None
    assert wait.until is not None
    assert wait.until.at == goes_off_at(brake, rule, reading=0.0)
    assert "the brake goes off by itself" in wait.then
    began = w.sim.scheduler.now
    w.until(lambda: w.brake("pool:train:xid.79").tripped_at is None, 3 * HOUR)
    assert w.sim.scheduler.now - began < 45 * 60, "ten minutes within, and half an hour of quiet"


@pytest.mark.parametrize(("verb", "phase"), [("cordon", Phase.HELD), ("reboot", Phase.RELEASED)])
def test_a_persons_order_for_a_node_that_is_excluded_is_carried_out(ward: OpenWard, verb: str, phase: Phase) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("exclude", "", node=node, fault="*")
    w.run(1)
    w.order(verb, node)
    w.run(HOUR)
    assert w.phase(node) == phase
    assert not w.told("withheld")


def test_a_sick_node_that_is_cordoned_and_rebooted_is_not_called_sick_once_it_is_proven_well(ward: OpenWard) -> None:
    w = ward(policy=replace(policy_with(), faults=(FaultRule(mode=Mode.RECOMMEND),)))
    node = w.nodes[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.run(60)
    w.order("cordon", node)
    w.run(60)
    assert any("a person has cordoned it and decides on the repair of xid.79" in text for text in w.told("held"))
    w.order("reboot", node)
    w.run(HOUR)
    assert w.phase(node) == Phase.HELD
    assert not any("and now shows xid.79" in text for text in w.told("held")), "it was proven well"
    assert not any("the policy leaves" in text for text in w.told("held")), "the policy does not: a person does"


def test_a_repair_that_is_ordered_at_the_ladders_end_makes_no_news_of_the_same_fault(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("replace"))
    node = w.nodes[0]
    w.sick(node, "xid.79", None)  # cured by nothing
    w.reaches(node, Phase.HELD, 6 * HOUR)
    w.order("reboot", node)
    w.run(6 * HOUR)
    assert w.phase(node) == Phase.HELD
    assert not any("and now shows" in text for text in w.told("held")), "it has shown it all along"
