"""Jobs whose own controller may run them again: who holds them, who asks, and what a lost node leaves behind."""

import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, policy_of, warm_and_cold

from sickbay.model.facts import JobSeen
from sickbay.model.fleet import Capability, JobId
from sickbay.model.intent import Fence, Intent
from sickbay.model.job import JobSpec, JobState
from sickbay.sim.chaos import Odds
from sickbay.sim.context import CLUSTER_CAN, ClusterRules, Timings
from sickbay.sim.job_behaviour import OnDeath, Programme
from sickbay.sim.simulation import CLUSTER, POOL

HOLDS = ClusterRules(id=CLUSTER, capabilities=CLUSTER_CAN - {Capability.PLACE} | {Capability.HOLDS})
SLURM = cluster_without(Capability.PLACE)


def told_at(w: Ward, act: str) -> list[float]:
    return [told.at for told in w.world.chronicle.told if told.act == act]


# --- holding


@warm_and_cold
def test_a_job_that_our_own_stop_holds_is_asked_for_at_once(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=HOLDS)
    job = w.submitted_elsewhere(native_delay=5.0, native_after_stop=True, does={"on_death": OnDeath.HANG})
    w.sick(w.starts(job)[0][1][0], kills_ranks=False)
    w.until(lambda: told_at(w, "rerun_job") != [], HOUR)
    waited = told_at(w, "rerun_job")[0] - told_at(w, "stop_job")[0]
    assert waited < policy_of().resume.native_grace.total_seconds()
    w.ends(job)
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2]
    w.rests()


@warm_and_cold
def test_a_job_that_ended_by_itself_is_left_to_its_controller_first_though_it_could_be_held(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=HOLDS)
    job = w.submitted_elsewhere(native_delay=5.0)
    w.run(MINUTE)
    w.world.crash(job)
    w.ends(job)
    assert w.sent("rerun_job") == []


def test_where_nothing_holds_it_its_controller_has_its_time_after_our_stop() -> None:
    w = Ward(nodes=4, cluster=SLURM)
    job = w.submitted_elsewhere(native_delay=None, does={"on_death": OnDeath.HANG})
    w.sick(w.starts(job)[0][1][0], kills_ranks=False)
    w.until(lambda: told_at(w, "rerun_job") != [], HOUR)
    waited = told_at(w, "rerun_job")[0] - told_at(w, "stop_job")[0]
    assert waited >= policy_of().resume.native_grace.total_seconds()


@warm_and_cold
def test_a_held_job_that_is_shown_under_its_next_number_without_nodes_has_not_restarted(cold: bool) -> None:
    """Slurm raises its count of restarts when it requeues and holds a job, before anything runs."""
    w = Ward(nodes=4, cold=cold, cluster=HOLDS)
    job = w.submitted_elsewhere(native_delay=5.0, does={"on_death": OnDeath.HANG})
    w.sick(w.starts(job)[0][1][0], kills_ranks=False)
    w.until(lambda: w.sent("stop_job") != [], HOUR)
    spec = w.job(job).spec
    pending = JobSeen(job=job, attempt=2, as_of=w.sim.scheduler.now, native=True, spec=spec, cluster=CLUSTER)
    w.world.ground.views[CLUSTER].put(pending)
    w.ends(job)
    assert w.sent("rerun_job") == ["accepted"]
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2]


def test_a_job_without_nodes_is_not_adopted_before_it_has_some() -> None:
    w = Ward(nodes=2, cluster=SLURM)
    first = w.submitted_elsewhere("first", steps=600)
    spec = w.job(first).spec
    w.world.submit_to_cluster(second := JobId("second"), spec)
    w.run(MINUTE)
    assert not w.known(second)
    w.ends(first)
    w.until(lambda: w.trains(second), HOUR)
    assert w.job(second).attempt == 1


# --- stopping for good


@warm_and_cold
@pytest.mark.parametrize("when", [JobState.RUNNING, JobState.STOPPING, JobState.QUEUED])
def test_a_person_stops_a_job_for_good_whatever_our_own_stop_had_meant(cold: bool, when: JobState) -> None:
    w = Ward(nodes=4, cold=cold, cluster=HOLDS, rules=Timings(stop_takes=60.0))
    job = w.submitted_elsewhere(native_delay=5.0, native_after_stop=True, does={"on_death": OnDeath.HANG})
    if when is not JobState.RUNNING:
        for node in w.nodes:  # nothing is left to run it on
            if node not in w.starts(job)[0][1]:
                w.world.operator_cordons(node)
        w.sick(w.starts(job)[0][1][0], kills_ranks=False)
        w.job_reaches(job, when)
    w.order("stop", job)
    w.ends(job, JobState.STOPPED)
    assert w.true_job(job).cancelled, "its controller was told, too"
    for node in w.nodes:
        w.world.operator_uncordons(node)
    w.run(HOUR)
    assert [attempt for attempt, _ in w.starts(job)] == [1]


# --- made once


@warm_and_cold
def test_a_submitted_job_is_made_once_where_its_cluster_can_run_it_again(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=HOLDS)
    job = w.training()
    w.sick(w.starts(job)[0][1][0])
    done = w.ends(job)
    assert w.sent("start_job") == ["accepted"]
    assert w.sent("rerun_job") == ["accepted"]
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2]
    assert (done.attempt, done.restarts, done.adopted) == (2, (), False)
    w.rests()


@warm_and_cold
def test_a_submitted_job_that_its_cluster_has_purged_is_made_anew(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=HOLDS, policy=policy_of(on_no_fault="restart"))
    job = w.training(steps=1000)
    w.world.forget_job(job)
    w.ends(job)
    assert w.sent("start_job") == ["accepted", "accepted"]
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2]


@pytest.mark.slow
def test_a_rerun_that_waits_in_its_clusters_queue_is_no_failure() -> None:
    w = Ward(nodes=2, cluster=HOLDS)
    job = w.training()
    for node in w.nodes:
        w.world.operator_cordons(node)
    w.world.crash(job)
    w.until(lambda: w.sent("rerun_job") != [], HOUR)
    w.run(5 * HOUR)
    assert w.job(job).state is JobState.QUEUED
    assert w.notices("job_failed") == []
    for node in w.nodes:
        w.world.operator_uncordons(node)
    w.ends(job)


@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_are_held_and_run_again_in_rough_weather(seed: int) -> None:
    w = Ward(nodes=5, seed=seed, cold=seed % 2 == 1, odds=Odds.rough(), cluster=HOLDS)
    theirs = w.submitted_elsewhere(native_delay=(None, 5.0)[seed % 2], native_after_stop=True)
    ours = w.training("ours")
    w.sick(w.starts(theirs)[0][1][0])
    w.run(15 * MINUTE)
    w.sick(w.nodes[seed % 5])
    for job in (theirs, ours):
        w.until(lambda job=job: not w.job(job).open, 3 * DAY)  # type: ignore[misc]
        assert w.job(job).state is JobState.COMPLETE, w.why()
    w.rests()


# --- interruptions of jobs that report no steps


def test_an_adopted_job_that_never_reported_a_step_is_interrupted_until_it_is_started() -> None:
    w = Ward(nodes=4, cluster=SLURM)
    job, spec = JobId("theirs"), JobSpec(name="theirs", cluster=CLUSTER, pool=POOL, nodes=2)
    w.world.submit_to_cluster(job, spec, Programme(load=10**6), native_delay=5.0)
    w.until(lambda: w.known(job), HOUR)
    w.run(MINUTE)
    assert w.job(job).step is None
    w.world.crash(job)
    w.job_reaches(job, JobState.RUNNING)
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    (lost,) = w.job(job).interruptions
    assert lost.closed
    assert "started" in lost.stages
    assert "first_step" not in lost.stages


def test_an_adopted_job_that_reports_steps_is_interrupted_until_its_first_one() -> None:
    w = Ward(nodes=4, cluster=SLURM)
    job = w.submitted_elsewhere(native_delay=5.0, does={"load": 300.0, "tell_every": 10.0})
    w.until(lambda: w.job(job).step is not None, HOUR)
    w.world.crash(job)
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    w.run(30)
    assert not w.job(job).interruptions[0].closed
    w.ends(job)
    assert "first_step" in w.job(job).interruptions[0].stages


# --- nodes that nobody reaches


@warm_and_cold
def test_a_job_that_our_stop_holds_is_let_go_on_its_cluster_when_it_is_given_up(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=HOLDS)
    job = w.training(steps=10**5, max_restarts=0)
    w.world.hang(job)
    done = w.ends(job, JobState.FAILED)
    assert "restarts are spent" in done.diagnosis
    assert w.true_job(job).cancelled, "its cluster does not hold it any more"
    w.rests()
    assert len(w.notices("job_failed")) == 1


@warm_and_cold
def test_a_native_job_pays_no_restart_for_a_sick_node_that_the_limit_keeps_in_service(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    first, second = w.nodes
    w.sick(first, cured_by=None)
    w.until(lambda: w.sim.node(first).ours, HOUR)
    job = w.submitted_elsewhere(nodes=1, steps=10**5, native_delay=10.0)
    assert w.starts(job)[0][1] == (second,)
    w.sick(second)
    w.until(lambda: len(w.starts(job)) >= 3, HOUR)
    assert w.job(job).restarts == ()


BARE = (Capability.FENCE, Capability.REBOOT, Capability.REPLACE)  # bare metal without a way to its power


def fences(w: Ward) -> list[Intent]:
    rows = [w.sim.store.load([key])[key].row for key in w.sim.store.keys("intent", limit=1000)]
    return [row for row in rows if isinstance(row, Intent) and isinstance(row.act, Fence)]


@warm_and_cold
def test_a_job_that_fences_itself_goes_on_without_a_node_that_nobody_can_fence(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=cluster_without(*BARE))
    job = w.training(steps=10**5, does={"fenced": True, "tell_every": 10.0})
    w.until(lambda: w.job(job).fenced, HOUR)
    lost = w.starts(job)[0][1][0]
    w.world.lose_node(lost, zombie=True)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    assert lost not in w.starts(job)[1][1]
    story = "\n".join(line.text for line in w.sim.store.story(f"job:{job}"))
    assert f"goes on without {lost}" in story
    assert w.notices("job_stuck") == []


@pytest.mark.slow
@warm_and_cold
def test_a_job_that_can_neither_be_stopped_nor_fenced_keeps_telling_a_human_why(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=replace(cluster_without(*BARE), period=30.0))  # more than a day passes
    job = w.training(steps=10**6)
    lost = w.starts(job)[0][1][0]
    w.world.lose_node(lost, zombie=True)
    w.job_reaches(job, JobState.STOPPING)
    w.run(30 * HOUR)
    assert len(w.starts(job)) == 1
    told = w.notices("job_stuck")
    assert len(told) == 3, "at once and at each reminder"
    assert "nothing here can fence a node" in told[-1].text
    assert lost in told[-1].text


@warm_and_cold
def test_a_gang_that_lost_several_nodes_fences_each_by_an_intent_of_its_own(cold: bool) -> None:
    w = Ward(nodes=10, cold=cold, policy=policy_of(), cluster=cluster_without())
    job = w.training(nodes=9, steps=10**5, min_nodes=1)
    lost = w.starts(job)[0][1][1:]
    meant = {node: w.sim.node(node).incarnation for node in lost}
    for node in lost:
        w.world.lose_node(node, zombie=True)
    w.job_reaches(job, JobState.DIAGNOSING, JobState.QUEUED, most=HOUR)
    made = fences(w)
    assert sorted(row.act.node for row in made if isinstance(row.act, Fence)) == sorted(lost)
    assert {row.act.node: row.expect for row in made if isinstance(row.act, Fence)} == meant


@warm_and_cold
def test_a_machine_that_goes_down_slowly_is_fenced_when_it_is_down(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, rules=Timings(fence_takes=180.0))
    job = w.training(steps=10**5)
    lost = w.starts(job)[0][1][0]
    w.world.lose_node(lost, zombie=True)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)  # a second copy while it goes down would be a violation
    assert any("still going down" in answer for answer in w.sent("fence"))
    assert w.notices("job_stuck") == []


@warm_and_cold
def test_what_cannot_be_fenced_does_not_hold_up_a_job_that_fences_itself(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job = w.training(steps=10**5, does={"fenced": True, "tell_every": 10.0})
    w.until(lambda: w.job(job).fenced, HOUR)
    now = w.sim.scheduler.now
    w.sim.mischief.outage("machines:sim", now, now + DAY)
    w.world.lose_node(w.starts(job)[0][1][0], zombie=True)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
