"""Jobs that others submitted, and clusters that choose nodes themselves: recorded, counted, not fought."""

import pytest
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, cluster_without, in_order, policy_of, warm_and_cold

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability
from sickbay.model.job import JobState
from sickbay.sim.chaos import Odds
from sickbay.sim.job_behaviour import OnDeath

SLURM = (Capability.PLACE,)


@warm_and_cold
def test_an_adopted_job_is_recorded_as_it_is(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submitted_elsewhere()
    hall.run(MINUTE)
    row = hall.job(job)
    assert row.adopted
    assert (row.state, row.attempt) == (JobState.RUNNING, 1)
    assert set(row.claim) == set(hall.starts(job)[0][1])
    hall.ends(job)
    assert hall.sent("start_job") == hall.sent("rerun_job") == hall.sent("stop_job") == []
    hall.rests()


@warm_and_cold
def test_a_controller_that_restarts_first_is_recorded_and_counted_not_fought(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submitted_elsewhere(native_delay=5.0)
    hall.run(MINUTE)
    hall.world.crash(job)
    done = hall.ends(job)
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]
    assert hall.sent("rerun_job") == [], "its own controller was quicker"
    assert done.attempt == 2
    assert len(done.restarts) == 1
    assert len(done.interruptions) == 1
    assert all(i.closed and in_order(i) for i in done.interruptions)
    hall.rests()


@pytest.mark.parametrize("delay", [0.1, 1.0, 3.0, 10.0, 20.0, 55.0])
def test_each_native_restart_is_counted_once_however_quick_it_is(delay: float) -> None:
    hall = Hall(nodes=3)
    job = hall.submitted_elsewhere(native_delay=delay, steps=20_000)
    for _ in range(2):
        hall.run(10 * MINUTE)
        hall.world.crash(job)
    hall.run(10 * MINUTE)
    row = hall.job(job)
    assert (row.state, row.attempt) == (JobState.RUNNING, 3)
    assert len(row.restarts) == 2
    assert [i.attempt for i in row.interruptions] == [1, 2]
    assert all(i.closed and in_order(i) for i in row.interruptions)


@warm_and_cold
def test_a_controller_that_never_restarts_is_asked_after_its_grace(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submitted_elsewhere(native_delay=None)
    hall.run(MINUTE)
    hall.world.crash(job)
    ended = hall.sim.scheduler.now
    done = hall.ends(job)
    assert hall.sent("rerun_job") == ["accepted"]
    rerun = next(t.at for t in hall.world.chronicle.told if t.act == "rerun_job")
    assert rerun - ended >= 60
    assert len(done.restarts) == 1, "asked for once, counted once"
    assert done.attempt == 2
    hall.rests()


def test_without_rerun_a_job_that_nobody_restarts_fails_with_the_reason() -> None:
    hall = Hall(nodes=3, cluster=cluster_without(Capability.RERUN))
    job = hall.submitted_elsewhere(native_delay=None)
    hall.run(MINUTE)
    hall.world.crash(job)
    done = hall.ends(job, JobState.FAILED)
    hall.run(10)
    assert done.diagnosis == "its controller did not restart it and cannot be asked to"
    assert len(hall.told("job_failed")) == 1


@warm_and_cold
def test_an_adopted_job_that_is_called_off_by_an_incident_runs_again_elsewhere(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submitted_elsewhere(native_delay=None)
    sick = hall.starts(job)[0][1][0]
    hall.strike(sick)
    done = hall.ends(job)
    assert sick not in hall.starts(job)[1][1]
    assert done.restarts == (), "a node was to blame"
    assert done.interruptions[0].incidents == (hall.incidents(sick)[0].id,)
    hall.rests()


@warm_and_cold
def test_a_controller_that_restarts_after_our_stop_is_not_fought(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submitted_elsewhere(native_delay=2.0, native_after_stop=True, does={"on_death": OnDeath.HANG})
    sick = hall.starts(job)[0][1][0]
    hall.strike(sick, kills_ranks=False)
    done = hall.ends(job)
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2]
    assert sick not in hall.starts(job)[1][1], "our cordon kept it off"
    assert hall.sent("rerun_job") == []
    assert done.restarts == ()
    hall.rests()


def test_its_owner_cancels_an_adopted_job_while_we_wait_for_its_controller() -> None:
    hall = Hall(nodes=3)
    job = hall.submitted_elsewhere(native_delay=None)
    hall.run(MINUTE)
    hall.world.crash(job)
    hall.reaches(job, JobState.QUEUED)
    hall.world.owner_cancels(job)
    hall.ends(job, JobState.STOPPED)
    assert hall.told("job_failed") == []


def test_a_person_stops_an_adopted_job_for_good() -> None:
    hall = Hall(nodes=3)
    job = hall.submitted_elsewhere(native_delay=5.0)
    hall.run(MINUTE)
    hall.order("stop", job)
    hall.ends(job, JobState.STOPPED)
    hall.run(HOUR)
    assert hall.world.running(job) == []


@pytest.mark.slow
def test_native_restarts_for_ever_do_not_grow_a_row_without_end() -> None:
    hall = Hall(nodes=2, policy=policy_of(max_interruptions=1000))
    job = hall.submitted_elsewhere(native_delay=1.0, steps=10**7, nodes=1)
    for _ in range(30):
        hall.run(3 * MINUTE)
        hall.world.crash(job)
    hall.run(3 * MINUTE)
    assert hall.job(job).attempt == 31
    assert len(hall.job(job).interruptions) == 30
    hall.run(2 * DAY)
    hall.world.crash(job)
    hall.run(3 * MINUTE)
    assert len(hall.job(job).restarts) == 1


# --- clusters that choose the nodes


@warm_and_cold
def test_where_the_cluster_chooses_the_claim_is_written_when_the_allocation_is_seen(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold, cluster=cluster_without(*SLURM))
    job = hall.submit()
    hall.reaches(job, JobState.GATING)
    assert hall.job(job).claim == {}
    hall.reaches(job, JobState.RUNNING)
    assert set(hall.job(job).claim) == set(hall.starts(job)[0][1])
    hall.ends(job)
    hall.rests()


@warm_and_cold
def test_where_the_cluster_chooses_a_sick_node_is_to_be_avoided(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold, cluster=cluster_without(*SLURM))
    job = hall.training()
    sick = hall.starts(job)[0][1][0]
    hall.strike(sick)
    hall.ends(job)
    assert sick not in hall.starts(job)[1][1]
    hall.rests()


def test_an_allocation_with_a_node_that_cannot_be_claimed_does_not_train() -> None:
    """The agent of one node is silent, which the cluster's scheduler does not know."""
    hall = Hall(nodes=3, cluster=cluster_without(*SLURM, Capability.RESTART_SERVICE))
    dark = hall.nodes[0]
    hall.world.lose_agent(dark)
    hall.run(3 * MINUTE)
    assert not hall.sim.node(dark).claimable
    job = hall.submit()
    hall.until(lambda: hall.trains(job) and hall.job(job).attempt > 1, HOUR)
    assert dark in hall.starts(job)[0][1]
    assert dark not in hall.starts(job)[1][1]
    done = hall.ends(job)
    assert done.restarts == ()


def test_a_long_queue_of_the_cluster_is_waited_for_and_costs_nothing() -> None:
    hall = Hall(nodes=2, cluster=cluster_without(*SLURM))
    first = hall.training("first", steps=int(3 * HOUR))
    second = hall.submit("second", steps=100)
    done = hall.ends(second)
    assert hall.job(first).state is JobState.COMPLETE
    assert (done.restarts, done.interruptions) == ((), ())
    assert [attempt for attempt, _ in hall.starts(second)] == [1]


@pytest.mark.parametrize("seed", range(6))
def test_adopted_and_own_jobs_in_rough_weather(seed: int) -> None:
    cluster = cluster_without(*SLURM) if seed % 2 else cluster_without()
    hall = Hall(nodes=5, seed=seed, cold=seed % 3 == 2, odds=Odds.rough(), cluster=cluster)
    theirs = hall.submitted_elsewhere(native_delay=(None, 5.0, 50.0)[seed % 3], native_after_stop=seed % 4 == 3)
    ours = hall.training("ours")
    hall.strike(hall.starts(theirs)[0][1][0])
    hall.run(15 * MINUTE)
    hall.strike(hall.nodes[seed % 5], "xid.48", Remedy.RESET_GPU)
    for job in (theirs, ours):
        hall.until(lambda job=job: not hall.job(job).open, 3 * DAY)  # type: ignore[misc]
        assert hall.job(job).state is JobState.COMPLETE, hall.why()
        assert all(i.closed and in_order(i) for i in hall.job(job).interruptions), hall.why()
    hall.rests()


# --- what storms have taught


@warm_and_cold
def test_a_stop_that_was_not_taken_does_not_count_because_nothing_runs_yet(cold: bool) -> None:
    """The job waits in the cluster's queue when a person stops it, and the cluster cannot be asked just then."""
    hall = Hall(nodes=1, cold=cold, cluster=cluster_without(*SLURM))
    hall.training("first", nodes=1, steps=1200)
    waiting = hall.submit("waiting", nodes=1)
    hall.run(MINUTE)
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage("cluster:sim", now, now + 10 * MINUTE)
    hall.order("stop", waiting)
    hall.ends(waiting, JobState.STOPPED)
    hall.run(HOUR)
    assert hall.starts(waiting) == []


@warm_and_cold
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.STOPPED])
def test_a_job_that_was_over_for_us_but_not_for_its_controller_is_adopted_again(cold: bool, state: JobState) -> None:
    """Else nodes would be repaired under it."""
    hall = Hall(nodes=2, cold=cold)
    job = hall.submitted_elsewhere(native_delay=200.0, native_after_stop=True, steps=20_000, max_restarts=0, nodes=1)
    hall.run(MINUTE)
    if state is JobState.FAILED:
        hall.world.crash(job)
    else:
        hall.order("stop", job)
    hall.ends(job, state)
    if state is JobState.STOPPED:
        hall.world.owner_resumes(job)
    hall.until(lambda: hall.trains(job), HOUR)
    hall.run(30)
    row = hall.job(job)
    assert (row.state, row.attempt) == (JobState.RUNNING, 2)
    assert set(row.claim) == set(hall.starts(job)[1][1])
    hall.strike(hall.starts(job)[1][1][0], kills_ranks=False)  # the world would call a repair under it a violation
    hall.until(lambda: hall.incidents()[-1:] != [] and not hall.incidents()[-1].open, DAY)


def test_a_repaired_node_is_used_again_by_a_job_that_had_to_avoid_it() -> None:
    """The only node of the pool: what was avoided for good would never start."""
    hall = Hall(nodes=1, cluster=cluster_without(*SLURM))
    job = hall.training(nodes=1)
    hall.strike(hall.nodes[0])
    hall.ends(job)
    hall.rests()


def test_an_attempt_that_has_not_begun_gives_way_to_one_of_others() -> None:
    hall = Hall(nodes=2)
    job = hall.submit(nodes=1, precheck=2)
    hall.reaches(job, JobState.GATING)
    assert set(hall.job(job).claim) == {hall.nodes[0]}
    theirs = hall.submitted_elsewhere(nodes=1)
    hall.ends(job)
    assert hall.starts(theirs)[0][1] == (hall.nodes[0],)
    assert hall.starts(job) == [(1, (hall.nodes[1],))]
    assert hall.job(job).restarts == ()


def test_a_job_that_waits_for_a_node_it_was_told_to_avoid_is_asked_for_anew() -> None:
    """The node did not answer when the job was submitted; then others took the rest of the pool for good."""
    hall = Hall(nodes=2, cluster=cluster_without(*SLURM, Capability.RESTART_SERVICE))
    dark, other = hall.nodes
    job = hall.training(nodes=1, steps=5000)
    assert hall.starts(job)[0][1] == (dark,)
    hall.world.cut_path(dark)
    hall.run(2 * MINUTE)
    hall.world.operator_cordons(other)
    hall.world.crash(job)
    hall.run(2 * MINUTE)
    hall.world.open_path(dark)
    done = hall.ends(job)
    assert hall.starts(job)[-1][1] == (dark,)
    assert len(done.interruptions) == len(done.restarts) == 1, "that it was asked for twice costs nothing"
