"""Jobs that others submitted, and clusters that choose nodes themselves: recorded, counted, not fought."""

import pytest
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, in_order, policy_of, warm_and_cold

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability
from sickbay.model.job import JobState
from sickbay.sim.chaos import Odds
from sickbay.sim.job_behaviour import OnDeath

SLURM = (Capability.PLACE,)


@warm_and_cold
def test_an_adopted_job_is_recorded_as_it_is(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.submitted_elsewhere()
    w.run(MINUTE)
    row = w.job(job)
    assert row.adopted
    assert (row.state, row.attempt) == (JobState.RUNNING, 1)
    assert set(row.claim) == set(w.starts(job)[0][1])
    w.ends(job)
    assert w.sent("start_job") == w.sent("rerun_job") == w.sent("stop_job") == []
    w.rests()


@warm_and_cold
def test_a_controller_that_restarts_first_is_recorded_and_counted_not_fought(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.submitted_elsewhere(native_delay=5.0)
    w.run(MINUTE)
    w.world.crash(job)
    done = w.ends(job)
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2]
    assert w.sent("rerun_job") == [], "its own controller was quicker"
    assert done.attempt == 2
    assert len(done.restarts) == 1
    assert len(done.interruptions) == 1
    assert all(i.closed and in_order(i) for i in done.interruptions)
    w.rests()


@pytest.mark.parametrize("delay", [0.1, 1.0, 3.0, 10.0, 20.0, 55.0])
def test_each_native_restart_is_counted_once_however_quick_it_is(delay: float) -> None:
    w = Ward(nodes=3)
    job = w.submitted_elsewhere(native_delay=delay, steps=20_000)
    for _ in range(2):
        w.run(10 * MINUTE)
        w.world.crash(job)
    w.run(10 * MINUTE)
    row = w.job(job)
    assert (row.state, row.attempt) == (JobState.RUNNING, 3)
    assert len(row.restarts) == 2
    assert [i.attempt for i in row.interruptions] == [1, 2]
    assert all(i.closed and in_order(i) for i in row.interruptions)


@warm_and_cold
def test_a_controller_that_never_restarts_is_asked_after_its_grace(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.submitted_elsewhere(native_delay=None)
    w.run(MINUTE)
    w.world.crash(job)
    ended = w.sim.scheduler.now
    done = w.ends(job)
    assert w.sent("rerun_job") == ["accepted"]
    rerun = next(t.at for t in w.world.chronicle.told if t.act == "rerun_job")
    assert rerun - ended >= 60
    assert len(done.restarts) == 1, "asked for once, counted once"
    assert done.attempt == 2
    w.rests()


def test_without_rerun_a_job_that_nobody_restarts_fails_with_the_reason() -> None:
    w = Ward(nodes=3, cluster=cluster_without(Capability.RERUN))
    job = w.submitted_elsewhere(native_delay=None)
    w.run(MINUTE)
    w.world.crash(job)
    done = w.ends(job, JobState.FAILED)
    w.run(10)
    assert done.diagnosis == "its controller did not restart it and cannot be asked to"
    assert len(w.notices("job_failed")) == 1


@warm_and_cold
def test_an_adopted_job_that_is_called_off_by_an_incident_runs_again_elsewhere(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.submitted_elsewhere(native_delay=None)
    sick = w.starts(job)[0][1][0]
    w.sick(sick)
    done = w.ends(job)
    assert sick not in w.starts(job)[1][1]
    assert done.restarts == (), "a node was to blame"
    assert done.interruptions[0].incidents == (w.incidents(sick)[0].id,)
    w.rests()


@warm_and_cold
def test_a_controller_that_restarts_after_our_stop_is_not_fought(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.submitted_elsewhere(native_delay=2.0, native_after_stop=True, does={"on_death": OnDeath.HANG})
    sick = w.starts(job)[0][1][0]
    w.sick(sick, kills_ranks=False)
    done = w.ends(job)
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2]
    assert sick not in w.starts(job)[1][1], "our cordon kept it off"
    assert w.sent("rerun_job") == []
    assert done.restarts == ()
    w.rests()


def test_its_owner_cancels_an_adopted_job_while_we_wait_for_its_controller() -> None:
    w = Ward(nodes=3)
    job = w.submitted_elsewhere(native_delay=None)
    w.run(MINUTE)
    w.world.crash(job)
    w.job_reaches(job, JobState.QUEUED)
    w.world.owner_cancels(job)
    w.ends(job, JobState.STOPPED)
    assert w.notices("job_failed") == []


def test_a_person_stops_an_adopted_job_for_good() -> None:
    w = Ward(nodes=3)
    job = w.submitted_elsewhere(native_delay=5.0)
    w.run(MINUTE)
    w.order("stop", job)
    w.ends(job, JobState.STOPPED)
    w.run(HOUR)
    assert w.world.running(job) == []


@pytest.mark.slow
def test_native_restarts_for_ever_do_not_grow_a_row_without_end() -> None:
    w = Ward(nodes=2, policy=policy_of(max_interruptions=1000))
    job = w.submitted_elsewhere(native_delay=1.0, steps=10**7, nodes=1)
    for _ in range(30):
        w.run(3 * MINUTE)
        w.world.crash(job)
    w.run(3 * MINUTE)
    assert w.job(job).attempt == 31
    assert len(w.job(job).interruptions) == 30
    w.run(2 * DAY)
    w.world.crash(job)
    w.run(3 * MINUTE)
    assert len(w.job(job).restarts) == 1


# --- clusters that choose the nodes


@warm_and_cold
def test_where_the_cluster_chooses_the_claim_is_written_when_the_allocation_is_seen(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold, cluster=cluster_without(*SLURM))
    job = w.submit()
    w.job_reaches(job, JobState.GATING)
    assert w.job(job).claim == {}
    w.job_reaches(job, JobState.RUNNING)
    assert set(w.job(job).claim) == set(w.starts(job)[0][1])
    w.ends(job)
    w.rests()


@warm_and_cold
def test_where_the_cluster_chooses_a_sick_node_is_to_be_avoided(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold, cluster=cluster_without(*SLURM))
    job = w.training()
    sick = w.starts(job)[0][1][0]
    w.sick(sick)
    w.ends(job)
    assert sick not in w.starts(job)[1][1]
    w.rests()


def test_an_allocation_with_a_node_that_cannot_be_claimed_does_not_train() -> None:
    """The agent of one node is silent, which the cluster's scheduler does not know."""
    w = Ward(nodes=3, cluster=cluster_without(*SLURM, Capability.RESTART_SERVICE))
    dark = w.nodes[0]
    w.world.lose_agent(dark)
    w.run(3 * MINUTE)
    assert not w.sim.node(dark).claimable
    job = w.submit()
    w.until(lambda: w.trains(job) and w.job(job).attempt > 1, HOUR)
    assert dark in w.starts(job)[0][1]
    assert dark not in w.starts(job)[1][1]
    done = w.ends(job)
    assert done.restarts == ()


def test_a_long_queue_of_the_cluster_is_waited_for_and_costs_nothing() -> None:
    w = Ward(nodes=2, cluster=cluster_without(*SLURM))
    first = w.training("first", steps=int(3 * HOUR))
    second = w.submit("second", steps=100)
    done = w.ends(second)
    assert w.job(first).state is JobState.COMPLETE
    assert (done.restarts, done.interruptions) == ((), ())
    assert [attempt for attempt, _ in w.starts(second)] == [1]


@pytest.mark.parametrize("seed", range(6))
def test_adopted_and_own_jobs_in_rough_weather(seed: int) -> None:
    cluster = cluster_without(*SLURM) if seed % 2 else cluster_without()
    w = Ward(nodes=5, seed=seed, cold=seed % 3 == 2, odds=Odds.rough(), cluster=cluster)
    theirs = w.submitted_elsewhere(native_delay=(None, 5.0, 50.0)[seed % 3], native_after_stop=seed % 4 == 3)
    ours = w.training("ours")
    w.sick(w.starts(theirs)[0][1][0])
    w.run(15 * MINUTE)
    w.sick(w.nodes[seed % 5], "xid.48", Remedy.RESET_GPU)
    for job in (theirs, ours):
        w.until(lambda job=job: not w.job(job).open, 3 * DAY)  # type: ignore[misc]
        assert w.job(job).state is JobState.COMPLETE, w.why()
        assert all(i.closed and in_order(i) for i in w.job(job).interruptions), w.why()
    w.rests()


# --- what storms have taught


@warm_and_cold
def test_a_stop_that_was_not_taken_does_not_count_because_nothing_runs_yet(cold: bool) -> None:
    """The job waits in the cluster's queue when a person stops it, and the cluster cannot be asked just then."""
    w = Ward(nodes=1, cold=cold, cluster=cluster_without(*SLURM))
    w.training("first", nodes=1, steps=1200)
    waiting = w.submit("waiting", nodes=1)
    w.run(MINUTE)
    now = w.sim.scheduler.now
    w.sim.mischief.outage("cluster:sim", now, now + 10 * MINUTE)
    w.order("stop", waiting)
    w.ends(waiting, JobState.STOPPED)
    w.run(HOUR)
    assert w.starts(waiting) == []


@warm_and_cold
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.STOPPED])
def test_a_job_that_was_over_for_us_but_not_for_its_controller_is_adopted_again(cold: bool, state: JobState) -> None:
    """Else nodes would be repaired under it."""
    w = Ward(nodes=2, cold=cold)
    job = w.submitted_elsewhere(native_delay=200.0, native_after_stop=True, steps=20_000, max_restarts=0, nodes=1)
    w.run(MINUTE)
    if state is JobState.FAILED:
        w.world.crash(job)
    else:
        w.order("stop", job)
    w.ends(job, state)
    if state is JobState.STOPPED:
        w.world.owner_resumes(job)
    w.until(lambda: w.trains(job), HOUR)
    w.run(30)
    row = w.job(job)
    assert (row.state, row.attempt) == (JobState.RUNNING, 2)
    assert set(row.claim) == set(w.starts(job)[1][1])
    w.sick(w.starts(job)[1][1][0], kills_ranks=False)  # the world would call a repair under it a violation
    w.until(lambda: w.incidents()[-1:] != [] and not w.incidents()[-1].open, DAY)


def test_a_repaired_node_is_used_again_by_a_job_that_had_to_avoid_it() -> None:
    """The only node of the pool: what was avoided for good would never start."""
    w = Ward(nodes=1, cluster=cluster_without(*SLURM))
    job = w.training(nodes=1)
    w.sick(w.nodes[0])
    w.ends(job)
    w.rests()


def test_an_attempt_that_has_not_begun_gives_way_to_one_of_others() -> None:
    w = Ward(nodes=2)
    job = w.submit(nodes=1, precheck=2)
    w.job_reaches(job, JobState.GATING)
    assert set(w.job(job).claim) == {w.nodes[0]}
    theirs = w.submitted_elsewhere(nodes=1)
    w.ends(job)
    assert w.starts(theirs)[0][1] == (w.nodes[0],)
    assert w.starts(job) == [(1, (w.nodes[1],))]
    assert w.job(job).restarts == ()


def test_a_job_that_waits_for_a_node_it_was_told_to_avoid_is_asked_for_anew() -> None:
    """The node did not answer when the job was submitted; then others took the rest of the pool for good."""
    w = Ward(nodes=2, cluster=cluster_without(*SLURM, Capability.RESTART_SERVICE))
    dark, other = w.nodes
    job = w.training(nodes=1, steps=5000)
    assert w.starts(job)[0][1] == (dark,)
    w.world.cut_path(dark)
    w.run(2 * MINUTE)
    w.world.operator_cordons(other)
    w.world.crash(job)
    w.run(2 * MINUTE)
    w.world.open_path(dark)
    done = w.ends(job)
    assert w.starts(job)[-1][1] == (dark,)
    assert len(done.interruptions) == len(done.restarts) == 1, "that it was asked for twice costs nothing"
