"""People act in the middle of what we do, through the cluster or through Sickbay's own verbs, in every phase."""

from collections.abc import Callable
from random import Random

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, in_phase

from sickbay.model.fleet import NodeId
from sickbay.model.incident import OUT, Phase
from sickbay.model.job import JobState
from sickbay.sim.chaos import Odds

OPEN = [p for p in Phase if not p.terminal]
AMBIGUOUS = [Phase.REPAIRING, Phase.VERIFYING]  # a cordon may have gone with the boot that it was on
SEEN_OUT = [p for p in OPEN if p in OUT and p is not Phase.QUARANTINED]  # our cordon has been seen


def by_us(w: Ward, node: NodeId) -> list[str]:
    """Keys of the repairs that we had done."""
    return [key for key in (*w.happened("reboot", node), *w.happened("replace", node)) if "operator" not in key]


# --- through the cluster


@pytest.mark.parametrize("phase", [phase for phase in SEEN_OUT if phase not in AMBIGUOUS])
def test_whoever_uncordons_has_dismissed_it_and_it_is_not_opened_again(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.world.operator_uncordons(node)
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert len(w.incidents(node)) == 1
    assert not w.world.seat(node).cordons
    assert w.told() == ([] if phase is not Phase.HELD else w.told("held"))


@pytest.mark.parametrize("phase", AMBIGUOUS)
def test_a_cordon_that_goes_during_a_repair_is_put_back_and_the_node_is_proven(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.world.operator_uncordons(node)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.happened("check.pass", node)
    assert not w.world.seat(node).cordons


@pytest.mark.parametrize("phase", [Phase.SUSPECT, Phase.WATCHED, Phase.QUARANTINED])
def test_an_uncordon_where_our_cordon_is_not_yet_changes_nothing(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.world.operator_uncordons(node)
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) in ({"DISMISSED"} if phase is Phase.WATCHED else {"RELEASED", "DISMISSED"})
    assert not w.world.seat(node).cordons


@pytest.mark.parametrize("act", ["reboots", "replaces"])
@pytest.mark.parametrize("phase", [Phase.QUARANTINED, Phase.DRAINING, Phase.DRAINED, Phase.REPAIRING, Phase.VERIFYING])
def test_a_repair_by_others_counts_as_done_but_is_proven(ward: OpenWard, phase: Phase, act: str) -> None:
    w, node = in_phase(ward, phase)
    before = by_us(w, node)
    getattr(w.world, f"operator_{act}")(node)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert by_us(w, node) == before, "what others did is not done again"
    assert w.happened("check.pass", node)
    assert w.node(node).claimable
    assert w.told() == []


@pytest.mark.parametrize("act", ["reboots", "replaces"])
def test_a_held_node_that_others_repair_waits_for_an_operators_word(ward: OpenWard, act: str) -> None:
    w, node = in_phase(ward, Phase.HELD)
    getattr(w.world, f"operator_{act}")(node)
    w.run(HOUR)
    assert w.phase(node) == "HELD"
    w.order("confirm", w.incident(node).id)
    w.rests()
    assert w.phase(node) == "RELEASED"


@pytest.mark.parametrize("act", ["reboots", "replaces"])
@pytest.mark.parametrize("phase", [Phase.SUSPECT, Phase.WATCHED])
def test_a_node_in_service_that_others_repair_comes_back_proven_or_unharmed(
    ward: OpenWard, phase: Phase, act: str
) -> None:
    w, node = in_phase(ward, phase)
    getattr(w.world, f"operator_{act}")(node)
    w.run(30 * 60)
    w.order("unpause", "")
    w.rests()
    assert by_us(w, node) == [], "what others did is not done again"
    assert w.node(node).claimable
    if act == "replaces":
        assert w.happened("check.pass", node), "a newcomer is checked before it is used"


@pytest.mark.parametrize("phase", OPEN)
def test_a_deleted_node_is_gone_and_the_books_are_right(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.world.operator_deletes(node)
    w.run(60)
    assert w.phase(node) == "GONE"
    w.rests()
    assert (w.ledger().seats, w.ledger().out, w.ledger().repairing) == (3, 0, 0)


@pytest.mark.parametrize("act", ["cordons", "drains"])
@pytest.mark.parametrize("phase", OPEN)
def test_anothers_cordon_stays_and_ours_goes(ward: OpenWard, phase: Phase, act: str) -> None:
    w, node = in_phase(ward, phase)
    getattr(w.world, f"operator_{act}")(node)
    w.order("unpause", "")
    w.run(60)
    if phase is Phase.HELD:
        w.order("dismiss", w.incident(node).id)
    w.rests()
    assert w.phase(node) == ("DISMISSED" if phase in {Phase.WATCHED, Phase.HELD} else "RELEASED")
    assert [owner.split(":")[0] for owner in w.world.seat(node).cordons] == ["other"]
    assert not w.node(node).claimable
    assert w.ledger().out == 1


def test_our_cordon_overwritten_by_another_is_theirs(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    seat = w.world.seat(node)
    seat.cordons.clear()
    w.world.operator_cordons(node, "other:their reason")
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert "their reason" in w.incident(node).stages[-1].because
    assert list(seat.cordons) == ["other:their reason"]
    assert not w.node(node).claimable


# --- through Sickbay's own verbs


@pytest.mark.parametrize("verb", ["uncordon", "dismiss"])
@pytest.mark.parametrize("phase", OPEN)
def test_uncordon_and_dismiss_end_it_and_take_our_cordon_back(ward: OpenWard, phase: Phase, verb: str) -> None:
    w, node = in_phase(ward, phase)
    w.order(verb, node if verb == "uncordon" else w.incident(node).id)
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert len(w.incidents(node)) == 1
    assert not w.world.seat(node).cordons
    assert w.node(node).dismissed_at is not None
    assert f"operator: {verb}" in "\n".join(line.text for line in w.sim.store.story("operator:"))


def test_a_cordon_by_hand_is_held_and_given_back_by_hand(ward: OpenWard) -> None:
    w = ward()
    job = w.running(steps=600)
    node = w.nodes[0]
    w.order("cordon", node)
    w.rests()
    assert w.phases(node) == ["SUSPECT", "QUARANTINED", "HELD"]
    assert w.job(job).interruptions == (), "a cordon keeps new work off and changes nothing that runs"
    assert w.job(job).state is JobState.COMPLETE
    w.order("uncordon", node)
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert w.node(node).claimable


@pytest.mark.parametrize("verb", ["cordon", "drain"])
@pytest.mark.parametrize("phase", OPEN)
def test_a_cordon_or_drain_of_a_node_under_treatment_ends_held(ward: OpenWard, phase: Phase, verb: str) -> None:
    w, node = in_phase(ward, phase)
    w.order(verb, node)
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "HELD", "who asks for a cordon does not want the node back before they say so"


@pytest.mark.parametrize("phase", [p for p in OPEN if p is not Phase.WATCHED])
def test_hold_holds(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.order("hold", w.incident(node).id)
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "HELD"
    assert len(w.told("held")) == 1


def test_confirm_and_escalate_leave_held_by_their_own_ways(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.HELD)
    w.order("confirm", w.incident(node).id)
    w.reaches(node, Phase.VERIFYING, 60)
    w.rests()
    assert w.phase(node) == "HELD", "the defect is still there, and nothing here can repair it"
    w.order("escalate", w.incident(node).id)
    w.rests()
    assert w.phase(node) == "HELD"


@pytest.mark.parametrize("verb", ["confirm", "escalate"])
@pytest.mark.parametrize("phase", [p for p in OPEN if p not in {Phase.HELD, Phase.WATCHED}])
def test_what_makes_no_sense_changes_nothing(ward: OpenWard, phase: Phase, verb: str) -> None:
    w, node = in_phase(ward, phase)
    w.order(verb, w.incident(node).id)
    w.order("unpause", "")
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == ["reboot"]


@pytest.mark.parametrize("now", [False, True], ids=["soon", "now"])
@pytest.mark.parametrize("verb", ["reset", "reboot", "replace"])
def test_a_repair_by_hand_takes_the_same_path_with_proof(ward: OpenWard, verb: str, now: bool) -> None:
    w = ward()
    job = w.running()
    node = w.nodes[0]
    w.order(verb, node, now=now)
    w.run(60)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == [{"reset": "reset_gpu"}.get(verb, verb)]
    assert w.happened("check.pass", node)
    assert w.job(job).state is JobState.COMPLETE
    assert w.told() == []


def test_now_does_not_wait_for_the_window(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    w.run(600)
    assert w.phase(node) == "DRAINED"
    w.order("reboot", node, now=True)
    w.run(60)
    assert w.phase(node) == "REPAIRING"
    w.rests()


def test_now_does_not_wait_for_work_to_leave(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINING)
    w.run(60)
    w.order("drain", node, now=True)
    w.run(60)
    assert w.phase(node) != "DRAINING"


@pytest.mark.parametrize("phase", [Phase.SUSPECT, Phase.QUARANTINED, Phase.DRAINING, Phase.DRAINED])
def test_a_wish_raises_what_is_done_and_never_lowers_it(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    w.order("reset", node)
    w.order("replace", node)
    w.order("reset", node)
    w.order("unpause", "")
    w.rests()
    assert w.rungs(node) == ["replace"]
    assert w.phase(node) == "RELEASED"


# --- anything, at any time, in a rough world

ANYTHING: dict[str, Callable[[Ward, NodeId], object]] = {
    "uncordons": lambda w, node: w.world.operator_uncordons(node),
    "reboots": lambda w, node: w.world.operator_reboots(node),
    "replaces": lambda w, node: w.world.operator_replaces(node),
    "deletes": lambda w, node: w.world.operator_deletes(node),
    "drains": lambda w, node: w.world.operator_drains(node),
    "dismiss": lambda w, node: w.order("dismiss", w.incident(node).id),
    "hold": lambda w, node: w.order("hold", w.incident(node).id),
    "cordon": lambda w, node: w.order("cordon", node),
    "replace": lambda w, node: w.order("replace", node, now=True),
    "loss": lambda w, node: w.world.lose_node(node),
    "zombie": lambda w, node: w.world.lose_node(node, zombie=True),
    "silent agent": lambda w, node: w.world.lose_agent(node),
    "deafness": lambda w, _: w.world.go_deaf(HOUR),
    "a second fault": lambda w, node: w.says(node, 48),
}


@pytest.mark.parametrize("seed", range(24))
def test_whatever_happens_in_whatever_phase_it_comes_to_rest(ward: OpenWard, seed: int) -> None:
    chance = Random(seed)
    w, node = in_phase(ward, chance.choice(OPEN), seed=seed, cold=seed % 3 == 0)
    w.sim.mischief.odds = Odds.rough()
    w.run(chance.uniform(0, 40))
    ANYTHING[chance.choice(sorted(ANYTHING))](w, node)
    w.run(chance.uniform(0, HOUR))
    w.order("unpause", "")
    w.run(2 * HOUR)
    w.sim.mischief.odds = Odds()
    for seat in list(w.world.seats):
        w.world.restore_agent(seat)
    w.rests()
    assert all(w.phase(n) == "HELD" or w.node(n).incident is None for n in w.world.seats)


def test_a_job_that_has_not_begun_does_not_begin_on_a_node_that_a_person_cordons(ward: OpenWard) -> None:
    w = ward(nodes=3)
    job = w.sim.submit("late", nodes=2)
    w.until(lambda: w.state(job) == "GATING")
    node = min(w.job(job).claim)
    w.order("cordon", node)
    w.until(lambda: w.state(job) == "RUNNING")
    assert node not in w.job(job).claim
