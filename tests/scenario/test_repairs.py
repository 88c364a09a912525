"""A sick node is taken out, repaired, proven well and put back; whoever trained there trains again."""

import pytest

from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.mischief import Odds
from wards import cluster_without

HEALED = ["SUSPECT", "QUARANTINED", "DRAINING", "DRAINED", "REPAIRING", "VERIFYING", "RELEASED"]
AGAIN = ["DRAINED", "REPAIRING", "VERIFYING"]


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize(
    ("code", "cure", "rungs"),
    [
        ("xid.48", Remedy.RESET_GPU, ["reset_gpu"]),
        ("xid.79", Remedy.REBOOT, ["reboot"]),
        ("xid.48", Remedy.REBOOT, ["reset_gpu", "reset_gpu", "reboot"]),
        ("xid.48", Remedy.REPLACE, ["reset_gpu", "reset_gpu", "reboot", "replace"]),
        ("xid.79", Remedy.REPLACE, ["reboot", "replace"]),
    ],
)
def test_a_node_climbs_the_ladder_until_it_is_cured(ward, code, cure, rungs, cold):
    w = ward(cold=cold)
    job = w.training()
    node = w.nodes[0]
    w.sick(node, code, cure)
    w.rests()
    assert w.rungs(node) == rungs
    assert w.phases(node) == HEALED[:4] + ["REPAIRING", "VERIFYING"] + AGAIN * (len(rungs) - 1) + ["RELEASED"]
    assert w.job(job).state is JobState.COMPLETE
    assert w.job(job).attempt == 2
    assert w.told() == []
    assert w.node(node).claimable
    assert w.ledger().out == w.ledger().repairing == 0


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_node_that_nothing_cures_is_held_and_its_job_completes_elsewhere(ward, cold):
    w = ward(cold=cold, cluster=cluster_without("replace"))
    job = w.training()
    node = w.nodes[0]
    w.sick(node, "xid.79", None)
    w.rests()
    held = w.incident(node)
    assert held.phase is Phase.HELD
    assert w.rungs(node) == ["reboot"]
    assert "ladder's end" in held.stages[-1].because
    assert w.job(job).state is JobState.COMPLETE
    assert len(w.told("held")) == len(w.told()) == 1
    assert node not in w.job(job).interruptions[-1].nodes or node not in w.job(job).claim
    assert (w.ledger().out, w.ledger().held) == (1, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_rough_world_changes_the_way_but_not_the_end(ward, seed):
    w = ward(seed=seed, odds=Odds.rough(), nodes=5)
    job = w.training()
    node = sorted(w.job(job).claim)[0]
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.until(lambda: w.sim.calm() and w.job(job).state is JobState.COMPLETE)
    assert w.phase(node) in {"RELEASED", "HELD"}
    w.sim.invariants.check()
