"""Jobs whose own controller may run them again: who holds them, who asks, and what a lost node leaves behind."""

import pytest
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, cluster_without, policy_of, warm_and_cold

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


def told_at(hall: Hall, act: str) -> list[float]:
    return [told.at for told in hall.world.chronicle.told if told.act == act]


# --- holding


@warm_and_cold
def test_a_job_that_our_own_stop_holds_is_asked_for_at_once(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS)
    job = hall.submitted_elsewhere(native_delay=5.0, native_after_stop=True, does={"on_death": OnDeath.HANG})
    hall.strike(hall.starts(job)[0][1][0], kills_ranks=False)
    hall.until(lambda: told_at(hall, "rerun_job") != [], HOUR)
    waited = told_at(hall, "rerun_job")[0] - told_at(hall, "stop_job")[0]
    assert waited < policy_of().resume.native_grace.total_seconds()
    hall.ends(job)
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]
    hall.rests()


@warm_and_cold
def test_a_job_that_ended_by_itself_is_left_to_its_controller_first_though_it_could_be_held(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS)
    job = hall.submitted_elsewhere(native_delay=5.0)
    hall.run(MINUTE)
    hall.world.crash(job)
    hall.ends(job)
    assert hall.sent("rerun_job") == []


def test_where_nothing_holds_it_its_controller_has_its_time_after_our_stop() -> None:
    hall = Hall(nodes=4, cluster=SLURM)
    job = hall.submitted_elsewhere(native_delay=None, does={"on_death": OnDeath.HANG})
    hall.strike(hall.starts(job)[0][1][0], kills_ranks=False)
    hall.until(lambda: told_at(hall, "rerun_job") != [], HOUR)
    waited = told_at(hall, "rerun_job")[0] - told_at(hall, "stop_job")[0]
    assert waited >= policy_of().resume.native_grace.total_seconds()


@warm_and_cold
def test_a_held_job_that_is_shown_under_its_next_number_without_nodes_has_not_restarted(cold: bool) -> None:
    """Slurm raises its count of restarts when it requeues and holds a job, before anything runs."""
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS)
    job = hall.submitted_elsewhere(native_delay=5.0, does={"on_death": OnDeath.HANG})
    hall.strike(hall.starts(job)[0][1][0], kills_ranks=False)
    hall.until(lambda: hall.sent("stop_job") != [], HOUR)
    spec = hall.job(job).spec
    pending = JobSeen(job=job, attempt=2, as_of=hall.sim.scheduler.now, native=True, spec=spec, cluster=CLUSTER)
    hall.world.ground.views[CLUSTER].put(pending)
    hall.ends(job)
    assert hall.sent("rerun_job") == ["accepted"]
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]


def test_a_job_without_nodes_is_not_adopted_before_it_has_some() -> None:
    hall = Hall(nodes=2, cluster=SLURM)
    first = hall.submitted_elsewhere("first", steps=600)
    spec = hall.job(first).spec
    hall.world.submit_to_cluster(second := JobId("second"), spec)
    hall.run(MINUTE)
    assert not hall.known(second)
    hall.ends(first)
    hall.until(lambda: hall.trains(second), HOUR)
    assert hall.job(second).attempt == 1


# --- stopping for good


@warm_and_cold
@pytest.mark.parametrize("when", [JobState.RUNNING, JobState.STOPPING, JobState.QUEUED])
def test_a_person_stops_a_job_for_good_whatever_our_own_stop_had_meant(cold: bool, when: JobState) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS, rules=Timings(stop_takes=60.0))
    job = hall.submitted_elsewhere(native_delay=5.0, native_after_stop=True, does={"on_death": OnDeath.HANG})
    if when is not JobState.RUNNING:
        for node in hall.nodes:  # nothing is left to run it on
            if node not in hall.starts(job)[0][1]:
                hall.world.operator_cordons(node)
        hall.strike(hall.starts(job)[0][1][0], kills_ranks=False)
        hall.reaches(job, when)
    hall.order("stop", job)
    hall.ends(job, JobState.STOPPED)
    assert hall.true_job(job).cancelled, "its controller was told, too"
    for node in hall.nodes:
        hall.world.operator_uncordons(node)
    hall.run(HOUR)
    assert [attempt for attempt, _ in hall.starts(job)] == [1]


# --- made once


@warm_and_cold
def test_a_submitted_job_is_made_once_where_its_cluster_can_run_it_again(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS)
    job = hall.training()
    hall.strike(hall.starts(job)[0][1][0])
    done = hall.ends(job)
    assert hall.sent("start_job") == ["accepted"]
    assert hall.sent("rerun_job") == ["accepted"]
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]
    assert (done.attempt, done.restarts, done.adopted) == (2, (), False)
    hall.rests()


@warm_and_cold
def test_a_submitted_job_that_its_cluster_has_purged_is_made_anew(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS, policy=policy_of(on_no_fault="restart"))
    job = hall.training(steps=1000)
    hall.world.forget_job(job)
    hall.ends(job)
    assert hall.sent("start_job") == ["accepted", "accepted"]
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]


@pytest.mark.slow
def test_a_rerun_that_waits_in_its_clusters_queue_is_no_failure() -> None:
    hall = Hall(nodes=2, cluster=HOLDS)
    job = hall.training()
    for node in hall.nodes:
        hall.world.operator_cordons(node)
    hall.world.crash(job)
    hall.until(lambda: hall.sent("rerun_job") != [], HOUR)
    hall.run(5 * HOUR)
    assert hall.job(job).state is JobState.QUEUED
    assert hall.told("job_failed") == []
    for node in hall.nodes:
        hall.world.operator_uncordons(node)
    hall.ends(job)


@pytest.mark.parametrize("seed", range(4))
def test_jobs_that_are_held_and_run_again_in_rough_weather(seed: int) -> None:
    hall = Hall(nodes=5, seed=seed, cold=seed % 2 == 1, odds=Odds.rough(), cluster=HOLDS)
    theirs = hall.submitted_elsewhere(native_delay=(None, 5.0)[seed % 2], native_after_stop=True)
    ours = hall.training("ours")
    hall.strike(hall.starts(theirs)[0][1][0])
    hall.run(15 * MINUTE)
    hall.strike(hall.nodes[seed % 5])
    for job in (theirs, ours):
        hall.until(lambda job=job: not hall.job(job).open, 3 * DAY)  # type: ignore[misc]
        assert hall.job(job).state is JobState.COMPLETE, hall.why()
    hall.rests()


# --- interruptions of jobs that report no steps


def test_an_adopted_job_that_never_reported_a_step_is_interrupted_until_it_is_started() -> None:
    hall = Hall(nodes=4, cluster=SLURM)
    job, spec = JobId("theirs"), JobSpec(name="theirs", cluster=CLUSTER, pool=POOL, nodes=2)
    hall.world.submit_to_cluster(job, spec, Programme(load=10**6), native_delay=5.0)
    hall.until(lambda: hall.known(job), HOUR)
    hall.run(MINUTE)
    assert hall.job(job).step is None
    hall.world.crash(job)
    hall.reaches(job, JobState.RUNNING)
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)
    (lost,) = hall.job(job).interruptions
    assert lost.closed
    assert "started" in lost.stages
    assert "first_step" not in lost.stages


def test_an_adopted_job_that_reports_steps_is_interrupted_until_its_first_one() -> None:
    hall = Hall(nodes=4, cluster=SLURM)
    job = hall.submitted_elsewhere(native_delay=5.0, does={"load": 300.0, "tell_every": 10.0})
    hall.until(lambda: hall.job(job).step is not None, HOUR)
    hall.world.crash(job)
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)
    hall.run(30)
    assert not hall.job(job).interruptions[0].closed
    hall.ends(job)
    assert "first_step" in hall.job(job).interruptions[0].stages


# --- nodes that nobody reaches


@warm_and_cold
def test_a_job_that_our_stop_holds_is_let_go_on_its_cluster_when_it_is_given_up(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=HOLDS)
    job = hall.training(steps=10**5, max_restarts=0)
    hall.world.hang(job)
    done = hall.ends(job, JobState.FAILED)
    assert "restarts are spent" in done.diagnosis
    assert hall.true_job(job).cancelled, "its cluster does not hold it any more"
    hall.rests()
    assert len(hall.told("job_failed")) == 1


@warm_and_cold
def test_a_native_job_pays_no_restart_for_a_sick_node_that_the_limit_keeps_in_service(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    first, second = hall.nodes
    hall.order("cordon", first)
    hall.until(lambda: hall.sim.node(first).ours, HOUR)
    job = hall.submitted_elsewhere(nodes=1, steps=10**5, native_delay=10.0)
    assert hall.starts(job)[0][1] == (second,)
    hall.strike(second)
    hall.until(lambda: len(hall.starts(job)) >= 3, HOUR)
    assert hall.job(job).restarts == ()


BARE = (Capability.FENCE, Capability.REBOOT, Capability.REPLACE)  # bare metal without a way to its power


def fences(hall: Hall) -> list[Intent]:
    rows = [hall.sim.store.load([key])[key].row for key in hall.sim.store.keys("intent", limit=1000)]
    return [row for row in rows if isinstance(row, Intent) and isinstance(row.act, Fence)]


@warm_and_cold
def test_a_job_that_fences_itself_goes_on_without_a_node_that_nobody_can_fence(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=cluster_without(*BARE))
    job = hall.training(steps=10**5, does={"fenced": True, "tell_every": 10.0})
    hall.until(lambda: hall.job(job).fenced, HOUR)
    lost = hall.starts(job)[0][1][0]
    hall.world.lose_node(lost, zombie=True)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
    assert lost not in hall.starts(job)[1][1]
    story = "\n".join(line.text for line in hall.sim.store.story(f"job:{job}"))
    assert f"goes on without {lost}" in story
    assert hall.told("job_stuck") == []


@pytest.mark.slow
@warm_and_cold
def test_a_job_that_can_neither_be_stopped_nor_fenced_keeps_telling_a_human_why(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=cluster_without(*BARE))
    job = hall.training(steps=10**6)
    lost = hall.starts(job)[0][1][0]
    hall.world.lose_node(lost, zombie=True)
    hall.reaches(job, JobState.STOPPING)
    hall.run(30 * HOUR)
    assert len(hall.starts(job)) == 1
    told = hall.told("job_stuck")
    assert len(told) == 3, "at once and at each reminder"
    assert "nothing here can fence a node" in told[-1].text
    assert lost in told[-1].text


@warm_and_cold
def test_a_gang_that_lost_several_nodes_fences_each_by_an_intent_of_its_own(cold: bool) -> None:
    hall = Hall(nodes=10, cold=cold, policy=policy_of(), cluster=cluster_without())
    job = hall.training(nodes=9, steps=10**5, min_nodes=1)
    lost = hall.starts(job)[0][1][1:]
    meant = {node: hall.sim.node(node).incarnation for node in lost}
    for node in lost:
        hall.world.lose_node(node, zombie=True)
    hall.reaches(job, JobState.DIAGNOSING, JobState.QUEUED, most=HOUR)
    made = fences(hall)
    assert sorted(row.act.node for row in made if isinstance(row.act, Fence)) == sorted(lost)
    assert {row.act.node: row.expect for row in made if isinstance(row.act, Fence)} == meant


@warm_and_cold
def test_a_machine_that_goes_down_slowly_is_fenced_when_it_is_down(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, rules=Timings(fence_takes=180.0))
    job = hall.training(steps=10**5)
    lost = hall.starts(job)[0][1][0]
    hall.world.lose_node(lost, zombie=True)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)  # a second copy while it goes down would be a violation
    assert any("still going down" in answer for answer in hall.sent("fence"))
    assert hall.told("job_stuck") == []


@warm_and_cold
def test_what_cannot_be_fenced_does_not_hold_up_a_job_that_fences_itself(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job = hall.training(steps=10**5, does={"fenced": True, "tell_every": 10.0})
    hall.until(lambda: hall.job(job).fenced, HOUR)
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage("machines:sim", now, now + DAY)
    hall.world.lose_node(hall.starts(job)[0][1][0], zombie=True)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
