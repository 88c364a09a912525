"""A fault on a job's own node is its blame, whether or not anything was done about it: it costs no restart."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, Ward, cluster_without, warm_and_cold

from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.job import Interruption, JobState
from sickbay.model.policy import FaultRule, Limit, Match, Mode, Policy
from sickbay.policy.load import load_policy


def policy_with(**changes: Any) -> Policy:
    return replace(load_policy("default"), **changes)


def lost(h: Ward, job: JobId) -> Interruption:
    return h.job(job).interruptions[-1]


def its_node(h: Ward, job: JobId) -> NodeId:
    return min(h.job(job).claim)


def withheld(how: str, cold: bool = False) -> Ward:
    """A fleet in which nothing is done about Xid 79."""
    changes: dict[str, Any] = {}
    if how in {"observe", "recommend"}:
        changes["faults"] = (FaultRule(match=Match(fault="xid.79"), mode=Mode(how)),)
    if how == "budget":
        changes["limits"] = (Limit(out_percent=0, out_at_least=0, repairing_percent=0, repairing_at_least=0),)
    h = Ward(nodes=10, policy=policy_with(**changes), cold=cold)
    if how == "pause":
        h.order("pause", "")
    if how == "exclude":
        h.order("exclude", "", fault="xid.79")
    if how == "brake":
        for node in h.nodes[-4:]:
            h.world.write_line(node, "xid.79")
        h.run(30)
    return h


HOW = ["pause", "exclude", "observe", "recommend", "budget", "brake"]


@warm_and_cold
@pytest.mark.parametrize("how", HOW)
def test_a_fault_that_is_not_acted_upon_is_still_the_jobs_blame(how: str, cold: bool) -> None:
    h = withheld(how, cold)
    job = h.training(nodes=1, steps=600)
    node = its_node(h, job)
    h.sick(node)
    h.until(lambda: bool(h.job(job).interruptions), HOUR)
    h.until(lambda: h.job(job).state in {JobState.QUEUED, JobState.GATING, JobState.RUNNING}, HOUR)
    (incident,) = h.sim.incidents(node)
    assert incident.phase == "SUSPECT"
    assert lost(h, job).incidents == (incident.id,)
    assert lost(h, job).cause == f"xid.79 on {node}"
    assert h.job(job).restarts == ()


def test_four_sick_nodes_under_a_pause_spend_no_restart() -> None:
    h = withheld("pause")
    job = h.training(nodes=1, steps=3000)
    for number in range(1, 5):
        h.until(lambda: h.trains(job), HOUR)
        h.sick(its_node(h, job))
        h.until(lambda number=number: len(h.job(job).interruptions) == number, HOUR)  # type: ignore[misc]
    done = h.ends(job)
    assert (done.attempt, done.restarts) == (5, ())
    assert all(i.cause.startswith("xid.79 on ") for i in done.interruptions)


def test_a_hung_job_on_a_sick_node_is_the_nodes_blame() -> None:
    h = withheld("pause")
    job = h.training(nodes=1, steps=3000)
    node = its_node(h, job)
    h.world.write_line(node, "xid.79")
    h.run(10)
    h.world.hang(job)
    done = h.ends(job)
    assert done.restarts == ()
    assert done.interruptions[0].cause == f"xid.79 on {node}"


def test_a_gpu_of_another_job_is_not_blamed() -> None:
    h = withheld("pause")
    job = h.training(nodes=1, gpus_per_node=1, steps=600)
    node = its_node(h, job)
    (mine,) = h.job(job).claim[node]
    h.world.write_line(node, "xid.79", device=mine + 1)
    h.run(10)
    assert h.sim.incidents(node)[-1].phase == "SUSPECT"
    h.world.crash(job)
    done = h.ends(job)
    assert len(done.restarts) == 1
    assert done.interruptions[0].incidents == ()


def test_a_second_gpu_of_the_same_node_is_blamed_by_who_holds_it() -> None:
    h = withheld("pause")
    job = h.training(nodes=1, gpus_per_node=1, steps=600)
    node = its_node(h, job)
    (mine,) = h.job(job).claim[node]
    h.world.write_line(node, "xid.79", device=mine + 1)
    h.run(10)
    h.sick(node, "xid.79", device=mine)
    done = h.ends(job)
    assert done.restarts == ()


def test_an_excluded_fault_from_before_the_attempt_is_no_excuse_for_the_program() -> None:
    h = Ward(nodes=1)
    node = h.nodes[0]
    h.order("exclude", "", node=node, fault="xid.79")
    h.world.write_line(node, "xid.79")
    h.run(60)
    job = h.training(nodes=1, steps=600)
    h.run(60)
    h.world.crash(job)
    done = h.ends(job)
    assert len(done.restarts) == 1
    assert done.interruptions[0].incidents == ()


def test_a_watched_fault_from_before_the_attempt_is_no_excuse_for_the_program() -> None:
    h = Ward(nodes=1)
    node = h.nodes[0]
    h.world.write_line(node, "xid.31")
    h.run(60)
    job = h.training(nodes=1, steps=600)
    h.run(60)
    assert h.sim.incidents(node)[-1].phase == "WATCHED"
    h.world.crash(job)
    assert len(h.ends(job).restarts) == 1


# --- learned late


def late(gpus_per_node: int = 0, device: int = 0, **plan: Any) -> tuple[Ward, JobId, NodeId]:
    """The agent dies, then the GPU, then the rank: nobody knows why, and a restart is spent."""
    h = Ward(nodes=1, **plan)
    job = h.training(nodes=1, gpus_per_node=gpus_per_node, steps=600)
    node = its_node(h, job)
    h.world.lose_agent(node)
    h.sick(node, "xid.79", device=device, kills_ranks=False)
    h.run(3)
    h.world.crash(job)
    h.until(lambda: h.job(job).state is JobState.QUEUED, HOUR)
    assert len(h.job(job).restarts) == 1
    return h, job, node


@warm_and_cold
def test_a_fault_that_is_learned_late_gives_the_restart_back(cold: bool) -> None:
    h, job, node = late(cluster=cluster_without(Capability.RESTART_SERVICE), cold=cold)
    h.world.restore_agent(node)
    h.until(lambda: bool(lost(h, job).incidents), HOUR)
    assert h.job(job).restarts == ()
    assert lost(h, job).cause == f"xid.79 on {node}"
    assert h.job(job).diagnosis == f"xid.79 on {node}"
    assert h.ends(job).restarts == ()


def test_a_late_fault_of_another_gpu_gives_nothing_back() -> None:
    h, job, node = late(gpus_per_node=1, device=3, cluster=cluster_without(Capability.RESTART_SERVICE))
    h.world.restore_agent(node)
    h.run(60)
    assert h.sim.incidents(node)[-1].fault.code == "xid.79"
    assert len(h.job(job).restarts) == 1
    assert lost(h, job).incidents == ()


def test_a_fault_after_the_end_gives_nothing_back() -> None:
    h = Ward(nodes=1)
    job = h.training(nodes=1, steps=600)
    node = its_node(h, job)
    h.order("pause", "")
    h.world.crash(job)
    h.until(lambda: h.job(job).state is JobState.GATING, HOUR)
    h.run(1)
    h.world.write_line(node, "xid.79")
    h.run(10)
    assert len(h.job(job).restarts) == 1
    assert h.job(job).interruptions[0].incidents == ()


# --- where it goes on


def test_a_job_that_waits_for_a_withheld_node_says_so() -> None:
    h = Ward(nodes=2)
    h.order("pause", "", reason="network work")
    job = h.training(nodes=2, steps=600)
    node = its_node(h, job)
    h.sick(node)
    h.until(lambda: h.job(job).state is JobState.QUEUED, HOUR)
    h.run(60)
    because = h.job(job).wait.because
    assert node in because
    assert "xid.79" in because
    assert "pause" in because
    h.order("unpause", "")
    assert h.ends(job, most=DAY).restarts == ()
