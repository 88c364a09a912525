"""One signature on many nodes at once is a common cause: nothing more is done for it, everything else goes on."""

from itertools import pairwise

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.policy import Limit
from sickbay.sim.simulation import CLUSTER

ROOMY = policy_with(limits=(Limit(out_percent=50, repairing_percent=50),))
BRAKE = "pool:sim/train:xid.79"


def storm(w: Ward, *numbers: int) -> None:
    for number in numbers:
        w.says(w.nodes[number], 79)
    w.run(10)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_storm_is_held_and_a_human_told_once(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=20, policy=ROOMY, cold=cold)
    job = w.running(nodes=4)
    storm(w, 10, 11, 12, 13, 14)
    storm(w, 0, 1, 2, 3)
    w.run(60)
    assert w.brake(BRAKE).tripped_at is not None
    assert len(w.happened("cordon")) <= 2, "only what came before the third"
    assert w.happened("reboot") == []
    assert w.job(job).interruptions == (), "living attempts are left alone"
    assert all(not w.node(node).claimable for node in w.nodes[:4])
    assert len(w.told("brake")) == len(w.told()) == 1
    w.run(HOUR / 4)
    assert len(w.told()) == 1


def test_other_signatures_go_on_under_a_brake(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    storm(w, 10, 11, 12, 13)
    w.sick(w.nodes[5], "xid.48", Remedy.RESET_GPU)
    w.run(600)
    assert w.brake(BRAKE).tripped_at is not None
    assert w.phase(w.nodes[5]) == "RELEASED"


def test_what_is_being_verified_is_released_under_a_brake(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    w.sick(w.nodes[5])
    w.reaches(w.nodes[5], Phase.VERIFYING)
    storm(w, 10, 11, 12, 13)
    assert w.brake(BRAKE).tripped_at is not None
    w.run(600)
    assert w.brake(BRAKE).tripped_at is not None
    assert w.phase(w.nodes[5]) == "RELEASED"


def test_a_job_that_lost_its_own_node_restarts_elsewhere_under_a_brake(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    job = w.running()
    storm(w, 10, 11, 12, 13)
    w.world.crash(job, tail="NCCL error: remote process exited")
    w.until(lambda: w.job(job).state is JobState.COMPLETE)
    assert w.job(job).attempt == 2


@pytest.mark.parametrize("by_hand", [True, False], ids=["by hand", "by quiet"])
def test_after_a_brake_the_backlog_is_confirmed_at_a_rate_and_never_replayed(ward: OpenWard, by_hand: bool) -> None:
    w = ward(nodes=20, policy=ROOMY)
    storm(w, 10, 11, 12, 13, 14, 15, 16)
    waiting = [node for node in w.nodes if w.phase(node) == "SUSPECT"]
    assert len(waiting) >= 5
    if by_hand:
        w.order("brake_reset", BRAKE)
    before = len(w.happened("cordon"))
    w.until(lambda: w.brake(BRAKE).tripped_at is None, 2 * HOUR)
    began = w.sim.scheduler.now
    w.rests()
    assert [w.phase(node) for node in waiting] == ["DISMISSED"] * len(waiting)
    assert "its check passed" in w.incident(waiting[0]).stages[-1].because
    assert len(w.happened("cordon")) == before
    events = w.world.chronicle.events
    checks = [e.at for e in events if e.what == "check" and e.at >= began and e.subject in waiting]
    assert len(checks) == len(waiting)
    assert all(later - earlier >= 25 for earlier, later in pairwise(checks))


def test_what_shows_itself_again_after_a_brake_is_treated(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    storm(w, 10, 11, 12, 13, 14)
    node = w.nodes[14]
    assert w.phase(node) == "SUSPECT"
    w.order("brake_reset", BRAKE)
    w.run(1)
    w.says(node, 79)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == ["reboot"]


def test_a_storm_of_silence_reboots_nobody(ward: OpenWard) -> None:
    w = ward(nodes=20, policy=ROOMY)
    lost = w.nodes[5:11]
    for node in lost:
        w.world.lose_node(node, zombie=True)
    w.run(20 * 60)
    assert w.brake("cluster:sim:silence").tripped_at is not None
    assert w.happened("reboot") == []
    assert len(w.told("brake")) == len(w.told()) == 2, "once for the cluster's brake and once for the pool's"
    for node in lost:
        w.world.open_path(node)
        w.world.heal_partition(node)
    w.rests()
    assert len(w.happened("reboot")) <= 2, "only what was taken out before the third fell silent"
    assert all(w.node(node).claimable for node in lost)


@pytest.mark.slow
@pytest.mark.parametrize("by", ["signature", "nothing"])
def test_nodes_that_stay_lost_after_the_brake_are_repaired(ward: OpenWard, by: str) -> None:
    w = ward(nodes=20, policy=ROOMY)
    lost = w.nodes[5:9]
    for node in lost:
        w.world.lose_node(node)
    w.run(10 * 60)
    w.run(6 * HOUR)  # silence is a state: while they stay lost, no quiet resets the brake
    assert {w.phase(node) for node in lost} <= {"SUSPECT", "DRAINED"}
    w.order("brake_reset", "silence" if by == "signature" else "")
    w.run(1)
    assert w.brake("cluster:sim:silence").tripped_at is None
    assert w.brake("pool:sim/train:silence").tripped_at is None
    w.rests()
    assert [w.phase(node) for node in lost] == ["RELEASED"] * 4


def test_resetting_a_brake_that_is_not_on_is_told_and_changes_nothing(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.order("brake_reset", "xid.79")
    w.order("brake_reset", "")
    w.run(60)
    told = [line.text for line in w.sim.store.story("operator:")]
    assert told == [
        "operator: brake_reset: not possible: no brake 'xid.79' is on",
        "operator: brake_reset: not possible: no brake is on",
    ]


@pytest.mark.slow
def test_a_brake_knows_of_everybody_who_is_silent_not_only_of_the_first(ward: OpenWard) -> None:
    """More fall silent than it takes to trip it. The first come back; all others are still lost, so it stays on."""
    w, name = ward(nodes=40, limits=False), f"cluster:{CLUSTER}:silence"
    for node in w.nodes[:30]:
        w.world.lose_node(node, zombie=True)
    w.run(300)
    assert w.brake(name).tripped_at is not None
    assert set(w.brake(name).seen) == set(w.nodes[:30])
    for node in w.nodes[:10]:
        w.world.heal_partition(node)
        w.world.open_path(node)
    w.run(3 * HOUR)
    assert w.brake(name).tripped_at is not None
