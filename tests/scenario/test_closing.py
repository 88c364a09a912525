"""A fault that is seen while an incident closes is news, and must not be closed with it."""

import pytest
from tests.support.wards import HOUR, Ward

from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase


def test_a_fault_between_the_proof_and_the_release_opens_the_next_incident() -> None:
    ward = Ward()
    node = ward.nodes[0]
    ward.sick(node, "xid.79", Remedy.REBOOT)
    ward.reaches(node, Phase.VERIFYING)
    ward.until(lambda: ward.incident(node).closing is not None)
    first = ward.incident(node).id
    ward.says(node, 79)
    ward.until(lambda: ward.incident(node).id != first)
    assert ward.incident(node).id == f"{first}.2"
    assert not ward.node(node).claimable
    ward.rests()
    assert [i.phase for i in ward.incidents(node)] == [Phase.RELEASED, Phase.RELEASED]
    assert ward.node(node).claimable


@pytest.mark.parametrize("when", ["with the order", "after the order"])
def test_a_fault_after_a_person_dismissed_the_last_one_opens_the_next(when: str) -> None:
    ward = Ward()
    node = ward.nodes[0]
    ward.sick(node, "xid.79", Remedy.REBOOT)
    incident = ward.reaches(node, Phase.QUARANTINED)
    ward.order("dismiss", incident.id)
    if when == "after the order":
        ward.until(lambda: ward.incident(node).closing is not None)
    ward.says(node, 79)
    ward.rests()
    phases = [i.phase for i in ward.incidents(node)]
    assert phases[0] is Phase.DISMISSED
    assert phases[1:] == [Phase.RELEASED]


@pytest.mark.parametrize("what", ["a fault", "silence"])
@pytest.mark.parametrize("joins", [False, True], ids=["ill", "newcomer"])
def test_a_node_that_falls_ill_while_its_release_is_not_taken_keeps_its_cordon(what: str, joins: bool) -> None:
    """The release is not tried again over what the node has shown since its check passed."""
    ward = Ward(intake=joins)
    node = ward.nodes[0]
    if not joins:
        ward.sick(node, "xid.79", Remedy.REBOOT)
    ward.reaches(node, Phase.VERIFYING)
    now = ward.sim.scheduler.now
    ward.sim.mischief.outage(f"writes:{ward.incident(node).cluster}", now, now + 3 * HOUR)
    ward.until(lambda: ward.incident(node).closing is not None)
    first = ward.incident(node).id
    if what == "silence":
        ward.world.lose_node(node)
    else:
        ward.sick(node, "xid.48", Remedy.REBOOT)
    ward.until(lambda: bool(ward.rungs(node)[1 - joins :]))
    assert ward.happened("uncordon", node) == []
    ward.rests()
    assert (ward.incident(node).id, ward.phase(node)) == (first, Phase.RELEASED)
    assert ward.node(node).claimable


def test_a_node_that_was_silent_while_its_release_was_not_taken_is_released() -> None:
    ward = Ward()
    node = ward.nodes[0]
    ward.sick(node, "xid.79", Remedy.REBOOT)
    ward.reaches(node, Phase.VERIFYING)
    now = ward.sim.scheduler.now
    ward.sim.mischief.outage(f"writes:{ward.incident(node).cluster}", now, now + 3 * HOUR)
    ward.until(lambda: ward.incident(node).closing is not None)
    ward.world.partition(node)
    ward.world.lose_agent(node)
    ward.until(lambda: ward.incident(node).sequel is not None)
    ward.world.heal_partition(node)
    ward.world.restore_agent(node)
    ward.rests()
    assert (len(ward.happened("reboot", node)), len(ward.happened("uncordon", node))) == (1, 1)
    assert ward.node(node).claimable


def test_what_merely_follows_from_the_old_fault_opens_nothing() -> None:
    ward = Ward()
    node = ward.nodes[0]
    ward.sick(node, "xid.79", Remedy.REBOOT)
    ward.reaches(node, Phase.VERIFYING)
    ward.until(lambda: ward.incident(node).closing is not None)
    ward.says(node, 31)
    ward.rests()
    assert [i.phase for i in ward.incidents(node) if i.remedy.disrupts] == [Phase.RELEASED]
