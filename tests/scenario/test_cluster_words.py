"""What a cluster says besides nodes and ranks: checks of its own, requests by label, jobs that it has no more."""

from tests.scenario.jobs_vocabulary import HOUR, MINUTE, Hall, cluster_without, policy_of, warm_and_cold
from tests.scenario.wards import OpenWard, Ward

from sickbay.model.facts import Checked, Fact, Observed, Ordered
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.simulation import CLUSTER


def facts(hall: Hall | Ward) -> list[Fact]:
    """All that was ever learned."""
    found: list[Fact] = []
    while page := list(hall.sim.store.facts(after=found[-1].seq if found else 0, limit=1000)):
        found += page
    return found


def relist(hall: Hall | Ward) -> None:
    """The stream is lost: what is there is listed again."""
    hall.run(20)
    hall.world.ground.views[CLUSTER].cut()
    hall.run(20)


# --- checks, conditions and requests


def prolog_fails(w: Ward, node: NodeId, check: str = "prolog/17") -> None:
    seen = w.node(node).incarnation
    assert seen is not None
    w.world.operator_cordons(node, "other:Prolog error")
    w.world.says(CLUSTER, f"{node}/{check}", Checked(check=check, node=node, verdict="fail", incarnation=seen))


def test_a_check_that_failed_on_the_cluster_opens_an_incident(ward: OpenWard) -> None:
    w = ward(nodes=4)
    prolog_fails(w, w.nodes[0])
    w.until(lambda: w.incidents(w.nodes[0]) != [], MINUTE)
    assert w.incident(w.nodes[0]).fault.code == "check.failed"


def test_a_check_that_passed_on_the_cluster_opens_nothing(ward: OpenWard) -> None:
    w = ward(nodes=4)
    seen = w.node(w.nodes[0]).incarnation
    assert seen is not None
    passed = Checked(check="prolog/18", node=w.nodes[0], verdict="pass", incarnation=seen)
    w.world.says(CLUSTER, "prolog/18", passed)
    w.run(HOUR)
    assert w.incidents() == []


def test_a_condition_that_the_cluster_tells_is_a_fault_like_any(ward: OpenWard) -> None:
    w = ward(nodes=4)
    w.world.says(CLUSTER, "event-1", Observed(node=w.nodes[0], kind="xid", fields={"number": 79, "device": 0}))
    assert w.reaches(w.nodes[0], Phase.RELEASED).fault.code == "xid.79"


def test_a_persons_request_by_label_is_an_operators_order(ward: OpenWard) -> None:
    w = ward(nodes=4)
    wish = Ordered(verb="reboot", target=w.nodes[1], by="alice (label)", reason="Action:Reboot")
    w.world.says(CLUSTER, f"{w.nodes[1]}/Action:Reboot/1700000000", wish)
    done = w.reaches(w.nodes[1], Phase.RELEASED)
    assert done.fault.code == "operator.reboot"
    assert len(w.happened("reboot", w.nodes[1])) == 1
    assert any("alice (label): reboot" in line.text for line in w.sim.store.story("operator:"))


def test_what_a_list_says_again_is_no_second_fact(ward: OpenWard) -> None:
    w = ward(nodes=4)
    wish = Ordered(verb="reboot", target=w.nodes[1], by="alice", reason="Action:Reboot")
    w.world.says(CLUSTER, "label/1", wish)
    w.reaches(w.nodes[1], Phase.RELEASED)
    relist(w)
    w.run(HOUR)
    assert len([fact for fact in facts(w) if isinstance(fact.news, Ordered)]) == 1
    assert len(w.happened("reboot", w.nodes[1])) == 1


# --- jobs that a cluster has no more


@warm_and_cold
def test_an_adopted_job_that_was_purged_while_nobody_read_is_stopped(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submitted_elsewhere(steps=10**6)
    hall.run(MINUTE)
    hall.world.forget_job(job)
    done = hall.ends(job, JobState.STOPPED, HOUR)
    assert done.claim == {}
    hall.rests()


@warm_and_cold
def test_an_owned_job_that_was_purged_is_diagnosed_and_started_again(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold, policy=policy_of(on_no_fault="restart"))
    job = hall.training(steps=1000)
    hall.world.forget_job(job)
    hall.reaches(job, JobState.DIAGNOSING, JobState.QUEUED, JobState.GATING, most=HOUR)
    assert hall.job(job).interruptions[-1].cause
    done = hall.ends(job)
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]
    assert len(done.restarts) == 1
    hall.rests()


def test_a_cluster_that_says_that_a_job_is_gone_is_believed_at_once() -> None:
    hall = Hall(nodes=3)
    job = hall.submitted_elsewhere(steps=10**6)
    hall.run(MINUTE)
    hall.world.forget_job(job, told=True)
    hall.ends(job, JobState.STOPPED, MINUTE)


def test_a_job_that_one_list_did_not_have_is_not_gone() -> None:
    hall = Hall(nodes=3)
    job = hall.submitted_elsewhere(steps=10**5)
    hall.run(MINUTE)
    hall.world.ground.views[CLUSTER].hide_once(job)
    relist(hall)
    hall.run(10 * MINUTE)
    row = hall.job(job)
    assert (row.state, row.missing_as_of) == (JobState.RUNNING, None)


def test_a_list_in_which_nothing_changed_brings_no_facts() -> None:
    hall = Hall(nodes=4)
    hall.submitted_elsewhere(steps=10**6)
    hall.training(steps=10**6)
    hall.run(MINUTE)
    before = len(facts(hall))
    for _ in range(5):
        relist(hall)
    brought = [fact.news for fact in facts(hall)[before:]]
    assert not [news for news in brought if type(news).__name__ in {"JobSeen", "NodeSeen", "JobVanished"}]


def test_a_job_that_waits_for_its_nodes_has_not_vanished() -> None:
    hall = Hall(nodes=2, cluster=cluster_without(Capability.PLACE))
    hall.training("first", steps=int(3 * HOUR))
    second = hall.submit("second", steps=100)
    hall.reaches(second, JobState.GATING)
    for _ in range(5):
        relist(hall)
    assert hall.job(second).state is JobState.GATING
    hall.ends(second)


def test_a_cluster_that_has_forgotten_a_job_proves_nothing_about_a_node_that_nobody_reaches() -> None:
    hall = Hall(nodes=4, cluster=cluster_without(Capability.FENCE, Capability.REBOOT, Capability.REPLACE))
    job = hall.training(steps=10**5)
    lost = hall.starts(job)[0][1][0]
    hall.world.lose_node(lost, zombie=True)
    hall.reaches(job, JobState.STOPPING, most=HOUR)
    hall.world.forget_job(job)
    hall.run(HOUR)
    assert hall.job(job).state is JobState.STOPPING
    assert len(hall.starts(job)) == 1, "its ranks on the lost node may still write"
