"""Where a job goes when its node is taken away, and who gets what is left."""

import pytest
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, policy_of, warm_and_cold

from sickbay.model.fault import Remedy
from sickbay.model.job import JobState
from sickbay.model.policy import PlaceBy
from sickbay.sim.chaos import Odds


@warm_and_cold
def test_a_spare_takes_over(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.training()
    sick, well, spare = hall.nodes
    hall.strike(sick)
    hall.ends(job)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [{sick, well}, {well, spare}]
    assert hall.job(job).restarts == (), "a node was to blame: no restart is spent"
    hall.rests()
    assert hall.told() == []


@pytest.mark.parametrize("seed", range(6))
def test_a_spare_takes_over_in_rough_weather(seed: int) -> None:
    hall = Hall(nodes=4, odds=Odds.rough(), seed=seed, cold=seed % 2 == 1)
    job = hall.training()
    hall.strike(hall.starts(job)[-1][1][0])
    done = hall.ends(job)
    assert done.attempt >= 2
    hall.rests()


@warm_and_cold
def test_without_a_spare_the_job_waits_with_its_reason_and_spends_no_restart(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training(max_restarts=0)
    sick = hall.nodes[0]
    hall.strike(sick)
    hall.reaches(job, JobState.QUEUED)
    hall.run(30)
    assert "needs 2 nodes of sim/train, 1 can be claimed" in hall.because(job)
    done = hall.ends(job)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [set(hall.nodes)] * 2
    assert hall.happened("reboot", sick)[0].at < hall.happened("start", f"{job}#2")[0].at
    assert done.restarts == ()
    hall.rests()


@pytest.mark.slow
def test_a_human_hears_of_a_job_that_waits_long_once_in_a_shift() -> None:
    hall = Hall(nodes=2)
    job = hall.submit(nodes=3)
    hall.run(25 * HOUR)
    assert hall.job(job).state is JobState.QUEUED
    assert len(hall.told("job_waits")) == 2
    assert "needs 3 nodes" in hall.told("job_waits")[0].text


@warm_and_cold
def test_fewer_nodes_will_do_where_the_job_says_so(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.training(nodes=3, min_nodes=2)
    sick = hall.nodes[0]
    hall.strike(sick, cured_by=None)
    hall.ends(job)
    assert set(hall.starts(job)[-1][1]) == set(hall.nodes[1:])
    hall.rests()


def test_fewer_nodes_are_not_taken_where_the_policy_does_not_say_so() -> None:
    hall = Hall(nodes=3, policy=policy_of(place=(PlaceBy.SPARE, PlaceBy.SAME)))
    job = hall.training(nodes=3, min_nodes=2)
    hall.strike(hall.nodes[0])
    hall.ends(job)
    assert [len(nodes) for _, nodes in hall.starts(job)] == [3, 3]
    hall.rests()


def test_the_first_start_waits_for_all_its_nodes_even_where_fewer_would_do() -> None:
    hall = Hall(nodes=2)
    job = hall.submit(nodes=3, min_nodes=1)
    hall.run(HOUR)
    assert hall.because(job) == "needs 3 nodes of sim/train, 2 can be claimed"


def test_only_the_same_nodes_will_do_where_the_policy_names_no_spare() -> None:
    hall = Hall(nodes=3, policy=policy_of(place=(PlaceBy.SAME,)))
    job = hall.training()
    hall.strike(hall.nodes[0])
    hall.reaches(job, JobState.QUEUED)
    hall.run(30)
    assert hall.nodes[0] in hall.because(job)
    hall.ends(job)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [set(hall.nodes[:2])] * 2
    hall.rests()


@warm_and_cold
def test_named_nodes_wait_for_their_own_node(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    named = (hall.nodes[1], hall.nodes[2])
    job = hall.training(on=named)
    hall.strike(named[0])
    hall.reaches(job, JobState.QUEUED)
    hall.run(30)
    assert hall.because(job) == f"{named[0]} cannot be claimed"
    hall.ends(job)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [set(named)] * 2
    hall.rests()


def test_a_named_node_that_nobody_knows_is_said_to_be_unknown() -> None:
    hall = Hall(nodes=2)
    job = hall.submit(on=("sim/elsewhere",))
    hall.run(HOUR)
    assert hall.because(job) == "sim/elsewhere is not known"


@warm_and_cold
@pytest.mark.parametrize("cure", [Remedy.REBOOT, Remedy.REPLACE])
def test_a_job_that_needs_every_node_of_its_pool_waits_while_its_node_is_repaired(cold: bool, cure: Remedy) -> None:
    hall = Hall(nodes=4, cold=cold)
    job = hall.training(nodes=4)
    hall.strike(hall.nodes[2], cured_by=cure)
    done = hall.ends(job)
    assert [len(nodes) for _, nodes in hall.starts(job)] == [4, 4]
    assert done.restarts == ()
    hall.rests()


def test_a_node_that_an_operator_cordoned_is_not_claimed() -> None:
    hall = Hall(nodes=3)
    hall.world.operator_cordons(hall.nodes[0])
    hall.run(30)
    job = hall.training()
    assert set(hall.starts(job)[0][1]) == set(hall.nodes[1:])


def test_a_node_whose_quarantine_was_deferred_stays_out_of_restarts() -> None:
    """The pool may lack one seat; the second sick node keeps its living job but is given no new one."""
    hall = Hall(nodes=5)
    held = hall.nodes[4]
    hall.order("cordon", held)
    hall.run(2 * MINUTE)
    job = hall.training()
    idle = hall.nodes[3]
    hall.strike(idle, kills_ranks=False)  # deferred: the budget is spent
    hall.run(2 * MINUTE)
    assert hall.incidents(idle)[-1].phase == "SUSPECT"
    hall.world.preempt(job)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
    assert idle not in hall.starts(job)[1][1]


# --- several jobs


@warm_and_cold
def test_of_two_jobs_for_the_last_nodes_one_gets_them_and_the_other_waits(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    jobs = [hall.submit(name, nodes=2, steps=1000) for name in ("first", "second")]
    hall.until(lambda: any(hall.trains(job) for job in jobs), HOUR)
    states = sorted(hall.job(job).state for job in jobs)
    assert states == [JobState.QUEUED, JobState.RUNNING]
    for job in jobs:
        hall.ends(job)
    hall.rests()


def test_two_interrupted_jobs_compete_for_one_spare_and_both_complete() -> None:
    hall = Hall(nodes=5)
    jobs = [hall.training(name, nodes=2, steps=4000) for name in ("left", "right")]
    for job in jobs:
        hall.strike(hall.starts(job)[0][1][0])
    for job in jobs:
        hall.ends(job)
    hall.rests()


@warm_and_cold
def test_jobs_share_a_node_by_its_devices(cold: bool) -> None:
    hall = Hall(nodes=1, gpus=8, linked=False, cold=cold)
    jobs = [hall.submit(f"j{n}", nodes=1, gpus_per_node=3, steps=2000) for n in range(3)]
    hall.until(lambda: sum(hall.trains(job) for job in jobs) == 2, HOUR)
    claims = [set(hall.job(job).claim[hall.nodes[0]]) for job in jobs if hall.job(job).claim]
    assert [len(claim) for claim in claims] == [3, 3]
    assert not claims[0] & claims[1]
    assert [hall.job(job).state for job in jobs].count(JobState.QUEUED) == 1
    for job in jobs:
        hall.ends(job)
    hall.rests()


def test_a_fault_of_one_device_interrupts_its_holder_only() -> None:
    hall = Hall(nodes=2, gpus=8, linked=False)
    one, other = (hall.training(f"j{n}", nodes=1, gpus_per_node=4, steps=4000) for n in range(2))
    node = hall.nodes[0]
    assert set(hall.job(one).claim) == set(hall.job(other).claim) == {node}
    hall.strike(node, "xid.48", Remedy.RESET_GPU, device=hall.job(one).claim[node][0])
    hall.ends(one)
    hall.ends(other)
    assert len(hall.starts(one)) == 2
    assert len(hall.starts(other)) == 1
    hall.rests()


@pytest.mark.parametrize("seed", range(4))
def test_many_jobs_over_few_nodes_all_complete_and_never_share_a_device(seed: int) -> None:
    hall = Hall(nodes=3, gpus=4, linked=False, seed=seed, cold=seed % 2 == 1, odds=Odds.rough() if seed > 1 else Odds())
    jobs = [
        hall.submit(f"j{n}", nodes=1 + n % 3, gpus_per_node=(0, 1, 2, 3)[n % 4], steps=300 + 100 * n) for n in range(8)
    ]
    hall.run(900)
    hall.strike(hall.nodes[seed % 3], "xid.48", Remedy.RESET_GPU)
    for job in jobs:
        hall.ends(job, most=3 * DAY)
    hall.rests()
