"""Who is silent decides what it is, and silence of our own ear is no verdict at all."""

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.fleet import MANY_SILENCES, AgentState, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.policy import Window
from sickbay.sim.context import Timings


def repairs(w: Ward, node: NodeId) -> list[str]:
    """Without restarts of the agent, which come while the cluster still calls the node ready."""
    return [rung for rung in w.rungs(node) if rung != "restart_service"]


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_an_agent_that_is_lost_is_restarted_and_its_job_left_alone(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold)
    job = w.running()
    node = w.nodes[0]
    w.world.lose_agent(node)
    w.reaches(node, Phase.WATCHED, 300)
    assert w.node(node).agent is AgentState.SILENT
    assert not w.node(node).claimable
    w.rests()
    assert w.phases(node) == ["SUSPECT", "WATCHED", "DISMISSED"]
    assert w.rungs(node) == ["restart_service"]
    assert w.job(job).state is JobState.COMPLETE
    assert w.job(job).interruptions == ()
    assert w.happened("cordon") == []
    assert w.told() == []
    assert w.node(node).claimable


def test_an_agent_that_stays_lost_is_told_once_and_its_job_still_left_alone(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("restart_service"))
    job = w.running()
    node = w.nodes[0]
    w.world.lose_agent(node)
    w.until(lambda: w.job(job).state is JobState.COMPLETE)
    assert w.phase(node) == "WATCHED"
    assert len(w.told("agent_lost")) == len(w.told()) == 1
    assert w.job(job).interruptions == ()
    w.world.restore_agent(node)
    w.rests()
    assert w.phase(node) == "DISMISSED"


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_lost_node_is_rebooted_and_its_job_goes_on_elsewhere(ward: OpenWard, cold: bool) -> None:
    w = ward(cold=cold)
    job = w.running()
    node = w.nodes[0]
    w.world.lose_node(node)
    w.rests()
    assert w.incident(node).fault.code == "node.lost"
    assert w.phase(node) == "RELEASED"
    assert repairs(w, node) == ["reboot"]
    assert w.job(job).state is JobState.COMPLETE
    assert len(w.job(job).interruptions) == 1
    assert w.told() == []


def test_a_lost_node_that_no_reboot_brings_back_is_replaced(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.lose_node(node, back_by=Remedy.REPLACE)
    w.rests()
    assert repairs(w, node) == ["reboot", "replace"]
    assert w.phase(node) == "RELEASED"


def test_zombie_ranks_are_fenced_before_the_next_attempt(ward: OpenWard) -> None:
    w = ward()
    job = w.running()
    node = w.nodes[0]
    w.world.lose_node(node, zombie=True)
    w.rests()
    # Two attempts at once would be a violation that the world itself notices.
    assert w.job(job).state is JobState.COMPLETE
    assert w.job(job).attempt == 2
    assert w.phase(node) == "RELEASED"


def test_an_agent_that_comes_and_goes_is_told_once_and_not_restarted_for_ever(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    for _ in range(20):
        w.world.lose_agent(node)
        w.run(90)
        w.world.restore_agent(node)
        w.run(90)
    assert len(w.told("agent_lost")) == 1
    assert "5 times" in w.told("agent_lost")[0]
    assert sum(len(incident.tries) for incident in w.incidents(node)) <= MANY_SILENCES
    w.rests()
    assert w.phase(node) == "DISMISSED", "once it was steady for long enough"


def test_a_partition_is_told_and_nothing_is_repaired(ward: OpenWard) -> None:
    w = ward()
    job = w.running()
    node = w.nodes[3]
    w.world.partition(node)
    w.until(lambda: w.job(job).state is JobState.COMPLETE)
    assert w.incident(node).fault.code == "cluster.partition"
    assert w.phase(node) == "WATCHED"
    assert not w.node(node).claimable
    assert w.happened("cordon") == []
    assert len(w.told("partition")) == len(w.told()) == 1
    w.world.heal_partition(node)
    w.rests()
    assert w.phase(node) == "DISMISSED"
    assert w.node(node).claimable


def test_a_short_partition_is_told_nobody(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.partition(node)
    w.reaches(node, Phase.WATCHED, 300)
    w.world.heal_partition(node)
    w.rests()
    assert w.told() == []


def test_an_announced_end_is_not_silence(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.announce(node, "kernel update", 600)
    w.run(5)
    w.world.operator_reboots(node)
    w.run(20 * 60)
    assert w.incidents(node) == []
    w.rests()
    assert w.node(node).claimable


def test_an_announced_end_from_which_nobody_returns_is_a_lost_node(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.announce(node, "kernel update", 600)
    w.run(5)
    w.world.lose_node(node)
    w.run(500)
    assert w.incidents(node) == []
    w.run(300)
    w.rests()
    assert w.incident(node).fault.code == "node.lost"
    assert w.phase(node) == "RELEASED"


def test_an_agent_that_restarts_by_itself_is_no_news(ward: OpenWard) -> None:
    w = ward()
    job = w.running()
    node = w.nodes[0]
    w.world.lose_agent(node)
    w.run(10)
    w.world.restore_agent(node)
    w.rests()
    assert w.incidents(node) == []
    assert w.job(job).interruptions == ()


def test_a_lost_node_that_is_back_before_we_touched_it_is_let_go(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("pause", "")
    w.world.lose_node(node, zombie=True)
    w.until(lambda: bool(w.incidents(node)) and w.incident(node).fault.code == "node.lost")
    w.run(30)
    assert w.phase(node) == "SUSPECT"
    w.world.open_path(node)
    w.world.heal_partition(node)
    w.run(60)
    assert w.phase(node) == "DISMISSED"
    w.order("unpause", "")
    w.rests()
    assert w.happened("cordon") == []
    assert w.node(node).claimable


@pytest.mark.parametrize("phase", [Phase.DRAINED, Phase.REPAIRING, Phase.VERIFYING, Phase.HELD])
def test_a_lost_node_that_is_back_after_we_took_it_out_returns_by_proof(ward: OpenWard, phase: Phase) -> None:
    held = phase is Phase.HELD
    shut = phase is Phase.DRAINED
    windows = (Window(start="02:00"),) if shut else ()
    w = ward(policy=policy_with(windows=windows), cluster=cluster_without(*(["reboot", "replace"] if held else [])))
    node = w.nodes[0]
    w.world.lose_node(node, zombie=True)
    w.reaches(node, phase)
    w.world.open_path(node)
    w.world.heal_partition(node)
    w.run(60)
    if held:
        w.order("confirm", w.incident(node).id)
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.happened("check.pass", node)
    assert w.node(node).claimable


# --- last words


def test_last_words_open_an_incident_and_that_boot_was_its_reboot(ward: OpenWard) -> None:
    w = ward(rules=Timings(boot_takes=20.0))  # up again before anybody misses it
    node = w.nodes[0]
    w.run(16)  # its pulse has just been heard
    w.world.cut_path(node)
    w.says(node, 79)
    w.world.operator_reboots(node)
    w.rests()
    found = [i for i in w.incidents(node) if i.fault.code == "xid.79"]
    assert len(found) == 1
    assert w.phases(node)[-4:] == ["QUARANTINED", "DRAINED", "VERIFYING", "RELEASED"]
    assert len(w.happened("reboot", node)) == 1


def test_last_words_on_a_node_that_is_being_treated_are_history(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.world.cut_path(node)
    w.says(node, 79)
    w.world.operator_reboots(node)
    w.rests()
    assert [i.fault.code for i in w.incidents(node)] == ["node.lost"]
    assert w.phase(node) == "RELEASED"
    assert "xid.79 of an older boot" in w.story(node)


def test_last_words_of_a_boot_that_our_repair_ended_are_history(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.sick(node, "xid.79")
    w.reaches(node, Phase.QUARANTINED)
    w.world.cut_path(node)
    w.says(node, 48)
    w.rests()
    assert len(w.incidents(node)) == 1
    assert w.rungs(node) == ["reboot"]


def test_a_fault_in_the_first_report_of_a_new_boot_is_not_missed(ward: OpenWard) -> None:
    w = ward(rules=Timings(boot_takes=20.0))
    node = w.nodes[0]
    w.world.operator_reboots(node)
    w.until(lambda: bool(w.happened("up", node)))
    w.says(node, 79)
    w.rests()
    assert [i.fault.code for i in w.incidents(node)] == ["xid.79"]
    assert w.rungs(node) == ["reboot"]
    assert w.phase(node) == "RELEASED"


# --- a node that comes back, and our own ear


def test_silence_of_our_own_ear_is_no_verdict(ward: OpenWard) -> None:
    w = ward()
    job = w.running(steps=10_000)
    w.world.go_deaf(2 * HOUR)
    w.run(2 * HOUR + 120)
    assert w.incidents() == []
    assert w.job(job).interruptions == ()
    w.rests()
    assert len(w.told("unheard")) == len(w.told()) == 1  # that nobody can be heard, and nothing of any node


def test_a_node_lost_while_the_cluster_cannot_be_read_gets_its_verdict_afterwards(ward: OpenWard) -> None:
    w = ward(policy=policy_with())
    node = w.nodes[0]
    w.sim.mischief.outage("cluster:sim", w.sim.scheduler.now, w.sim.scheduler.now + HOUR)
    w.world.lose_node(node)
    w.run(HOUR - 60)
    assert [i.fault.code for i in w.incidents(node)] in ([], ["agent.lost"])
    w.rests()
    assert w.incident(node).fault.code == "node.lost"
    assert w.phase(node) == "RELEASED"
