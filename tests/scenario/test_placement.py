"""Where a job goes when its node is taken away, and who gets what is left."""

import pytest
from tests.support.wards import DAY, HOUR, MINUTE, Ward, policy_of, warm_and_cold

from sickbay.model.fault import Remedy
from sickbay.model.job import JobState
from sickbay.model.policy import PlaceBy
from sickbay.sim.chaos import Odds


@warm_and_cold
def test_a_spare_takes_over(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training()
    sick, well, spare = w.nodes
    w.sick(sick)
    w.ends(job)
    assert [set(nodes) for _, nodes in w.starts(job)] == [{sick, well}, {well, spare}]
    assert w.job(job).restarts == (), "a node was to blame: no restart is spent"
    w.rests()
    assert w.notices() == []


@pytest.mark.parametrize("seed", range(6))
def test_a_spare_takes_over_in_rough_weather(seed: int) -> None:
    w = Ward(nodes=4, odds=Odds.rough(), seed=seed, cold=seed % 2 == 1)
    job = w.training()
    w.sick(w.starts(job)[-1][1][0])
    done = w.ends(job)
    assert done.attempt >= 2
    w.rests()


@warm_and_cold
def test_without_a_spare_the_job_waits_with_its_reason_and_spends_no_restart(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training(max_restarts=0)
    sick = w.nodes[0]
    w.sick(sick)
    w.job_reaches(job, JobState.QUEUED)
    w.run(30)
    assert "needs 2 nodes of sim/train, 1 can be claimed" in w.because(job)
    done = w.ends(job)
    assert [set(nodes) for _, nodes in w.starts(job)] == [set(w.nodes)] * 2
    assert w.events("reboot", sick)[0].at < w.events("start", f"{job}#2")[0].at
    assert done.restarts == ()
    w.rests()


@pytest.mark.slow
def test_a_human_hears_of_a_job_that_waits_long_once_in_a_shift() -> None:
    w = Ward(nodes=2)
    job = w.submit(nodes=3)
    w.run(25 * HOUR)
    assert w.job(job).state is JobState.QUEUED
    assert len(w.notices("job_waits")) == 2
    assert "needs 3 nodes" in w.notices("job_waits")[0].text


@warm_and_cold
def test_fewer_nodes_will_do_where_the_job_says_so(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training(nodes=3, min_nodes=2)
    sick = w.nodes[0]
    w.sick(sick, cured_by=None)
    w.ends(job)
    assert set(w.starts(job)[-1][1]) == set(w.nodes[1:])
    w.rests()


def test_fewer_nodes_are_not_taken_where_the_policy_does_not_say_so() -> None:
    w = Ward(nodes=3, policy=policy_of(place=(PlaceBy.SPARE, PlaceBy.SAME)))
    job = w.training(nodes=3, min_nodes=2)
    w.sick(w.nodes[0])
    w.ends(job)
    assert [len(nodes) for _, nodes in w.starts(job)] == [3, 3]
    w.rests()


def test_the_first_start_waits_for_all_its_nodes_even_where_fewer_would_do() -> None:
    w = Ward(nodes=2)
    job = w.submit(nodes=3, min_nodes=1)
    w.run(HOUR)
    assert w.because(job) == "needs 3 nodes of sim/train, 2 can be claimed"


def test_only_the_same_nodes_will_do_where_the_policy_names_no_spare() -> None:
    w = Ward(nodes=3, policy=policy_of(place=(PlaceBy.SAME,)))
    job = w.training()
    w.sick(w.nodes[0])
    w.job_reaches(job, JobState.QUEUED)
    w.run(30)
    assert w.nodes[0] in w.because(job)
    w.ends(job)
    assert [set(nodes) for _, nodes in w.starts(job)] == [set(w.nodes[:2])] * 2
    w.rests()


@warm_and_cold
def test_named_nodes_wait_for_their_own_node(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    named = (w.nodes[1], w.nodes[2])
    job = w.training(on=named)
    w.sick(named[0])
    w.job_reaches(job, JobState.QUEUED)
    w.run(30)
    assert w.because(job) == f"{named[0]} cannot be claimed"
    w.ends(job)
    assert [set(nodes) for _, nodes in w.starts(job)] == [set(named)] * 2
    w.rests()


def test_a_named_node_that_nobody_knows_is_said_to_be_unknown() -> None:
    w = Ward(nodes=2)
    job = w.submit(on=("sim/elsewhere",))
    w.run(HOUR)
    assert w.because(job) == "sim/elsewhere is not known"


@warm_and_cold
@pytest.mark.parametrize("cure", [Remedy.REBOOT, Remedy.REPLACE])
def test_a_job_that_needs_every_node_of_its_pool_waits_while_its_node_is_repaired(cold: bool, cure: Remedy) -> None:
    w = Ward(nodes=4, cold=cold)
    job = w.training(nodes=4)
    w.sick(w.nodes[2], cured_by=cure)
    done = w.ends(job)
    assert [len(nodes) for _, nodes in w.starts(job)] == [4, 4]
    assert done.restarts == ()
    w.rests()


def test_a_node_that_an_operator_cordoned_is_not_claimed() -> None:
    w = Ward(nodes=3)
    w.world.operator_cordons(w.nodes[0])
    w.run(30)
    job = w.training()
    assert set(w.starts(job)[0][1]) == set(w.nodes[1:])


def test_a_node_whose_quarantine_was_deferred_stays_out_of_restarts() -> None:
    """The pool may lack one seat; the second sick node keeps its living job but is given no new one."""
    w = Ward(nodes=5)
    held = w.nodes[4]
    w.sick(held, cured_by=None)
    w.until(lambda: w.node(held).ours, HOUR)
    job = w.training()
    idle = w.nodes[3]
    w.sick(idle, kills_ranks=False)  # deferred: the budget is spent
    w.run(2 * MINUTE)
    assert w.incidents(idle)[-1].phase == "SUSPECT"
    w.world.preempt(job)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    assert idle not in w.starts(job)[1][1]


# --- several jobs


@warm_and_cold
def test_of_two_jobs_for_the_last_nodes_one_gets_them_and_the_other_waits(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    jobs = [w.submit(name, nodes=2, steps=1000) for name in ("first", "second")]
    w.until(lambda: any(w.trains(job) for job in jobs), HOUR)
    states = sorted(w.job(job).state for job in jobs)
    assert states == [JobState.QUEUED, JobState.RUNNING]
    for job in jobs:
        w.ends(job)
    w.rests()


def test_two_interrupted_jobs_compete_for_one_spare_and_both_complete() -> None:
    w = Ward(nodes=5)
    jobs = [w.training(name, nodes=2, steps=4000) for name in ("left", "right")]
    for job in jobs:
        w.sick(w.starts(job)[0][1][0])
    for job in jobs:
        w.ends(job)
    w.rests()


@warm_and_cold
def test_jobs_share_a_node_by_its_devices(cold: bool) -> None:
    w = Ward(nodes=1, gpus=8, linked=False, cold=cold)
    jobs = [w.submit(f"j{n}", nodes=1, gpus_per_node=3, steps=2000) for n in range(3)]
    w.until(lambda: sum(w.trains(job) for job in jobs) == 2, HOUR)
    claims = [set(w.job(job).claim[w.nodes[0]]) for job in jobs if w.job(job).claim]
    assert [len(claim) for claim in claims] == [3, 3]
    assert not claims[0] & claims[1]
    assert [w.job(job).state for job in jobs].count(JobState.QUEUED) == 1
    for job in jobs:
        w.ends(job)
    w.rests()


def test_a_fault_of_one_device_interrupts_its_holder_only() -> None:
    w = Ward(nodes=2, gpus=8, linked=False)
    one, other = (w.training(f"j{n}", nodes=1, gpus_per_node=4, steps=4000) for n in range(2))
    node = w.nodes[0]
    assert set(w.job(one).claim) == set(w.job(other).claim) == {node}
    w.sick(node, "xid.48", Remedy.RESET_GPU, device=w.job(one).claim[node][0])
    w.ends(one)
    w.ends(other)
    assert len(w.starts(one)) == 2
    assert len(w.starts(other)) == 1
    w.rests()


@pytest.mark.parametrize("seed", range(4))
def test_many_jobs_over_few_nodes_all_complete_and_never_share_a_device(seed: int) -> None:
    w = Ward(nodes=3, gpus=4, linked=False, seed=seed, cold=seed % 2 == 1, odds=Odds.rough() if seed > 1 else Odds())
    jobs = [
        w.submit(f"j{n}", nodes=1 + n % 3, gpus_per_node=(0, 1, 2, 3)[n % 4], steps=300 + 100 * n) for n in range(8)
    ]
    w.run(900)
    w.sick(w.nodes[seed % 3], "xid.48", Remedy.RESET_GPU)
    for job in jobs:
        w.ends(job, most=3 * DAY)
    w.rests()
