"""Whose turn it is: an interrupted job keeps its place, ranks go before age, and nobody at the head is overtaken."""

from datetime import timedelta

import pytest
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, policy_of, warm_and_cold

from sickbay.model.errors import UnitTooLarge
from sickbay.model.fleet import Capability, JobId
from sickbay.model.job import JobState
from sickbay.model.rows import Unit
from sickbay.sim.chaos import Odds
from sickbay.sim.context import ClusterRules
from sickbay.sim.simulation import CLUSTER, Quarter

FOR_EVER = 10**7


def began(w: Ward, *jobs: JobId) -> list[JobId]:
    """These jobs in the order in which they first began."""
    first = {job: w.events("start", f"{job}#1")[0].at for job in jobs}
    return sorted(jobs, key=lambda job: first[job])


# --- an interrupted job keeps its place


@warm_and_cold
def test_an_interrupted_job_runs_again_before_any_that_waits(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    big = w.training("wbig", nodes=4, steps=4000)
    small = [w.submit(f"q{n}", nodes=1, steps=FOR_EVER) for n in range(3)]
    w.run(MINUTE)
    w.world.crash(big, tail="NCCL error: remote process exited")
    w.until(lambda: len(w.starts(big)) == 2 or any(w.starts(job) for job in small), DAY)
    assert len(w.starts(big)) == 2
    assert not any(w.starts(job) for job in small)
    w.ends(big)


@warm_and_cold
def test_a_spare_is_kept_for_each_sick_node_of_an_interrupted_job(cold: bool) -> None:
    """All nodes are busy when one of its own falls ill: the next that becomes free is not for those that queue."""
    w = Ward(nodes=4, cold=cold)
    big = w.training("big", nodes=3, steps=20_000)
    w.training("short", nodes=1, steps=600)
    waits = w.submit("waits", nodes=1, steps=FOR_EVER)
    w.run(MINUTE)
    w.sick(w.starts(big)[0][1][0], cured_by=None)  # held in the end: it does not come back
    w.until(lambda: len(w.starts(big)) == 2, DAY)
    assert w.starts(waits) == []
    w.ends(big)


def test_its_place_is_kept_as_long_as_the_policy_says_and_a_person_hears_of_it() -> None:
    w = Ward(nodes=4, policy=policy_of(keep_place=timedelta(minutes=20)))
    big = w.training("big", nodes=4, steps=20_000)
    small = [w.submit(f"q{n}", nodes=1, steps=FOR_EVER) for n in range(3)]
    w.run(MINUTE)
    at = w.sim.scheduler.now
    w.order("drain", w.nodes[0])
    w.until(lambda: w.state(big) == JobState.QUEUED, HOUR)
    w.until(lambda: all(w.starts(job) for job in small), DAY)
    assert min(w.events("start", f"{job}#1")[0].at for job in small) > at + 20 * MINUTE
    assert any("its place is kept no longer" in text for text in w.told("job_waits"))
    assert w.job(big).place_until is None


def test_without_a_place_kept_its_nodes_go_to_whoever_is_next() -> None:
    w = Ward(nodes=2, policy=policy_of(keep_place=timedelta(0)))
    w.training("big", nodes=2, steps=20_000)
    small = w.submit("small", nodes=1, priority=1, steps=FOR_EVER)
    w.run(MINUTE)
    w.world.crash(JobId("big"), tail="NCCL error")
    w.until(lambda: bool(w.starts(small)), DAY)
    assert len(w.starts(JobId("big"))) == 1


def test_of_two_interrupted_jobs_each_keeps_its_own_and_the_first_gets_the_spare() -> None:
    w = Ward(nodes=5)
    first = w.training("z-first", nodes=2, steps=20_000)
    second = w.training("a-second", nodes=2, steps=20_000)
    waits = w.submit("waits", nodes=2, steps=FOR_EVER)
    for job in (second, first):
        w.sick(w.starts(job)[0][1][0], cured_by=None)
    w.until(lambda: len(w.starts(first)) == 2, DAY)
    assert w.starts(waits) == []
    assert len(w.starts(second)) == 1
    assert w.nodes[4] in w.starts(first)[1][1]


@warm_and_cold
def test_a_stopped_job_gives_up_its_place(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    big = w.training("big", nodes=2, steps=20_000)
    waits = w.submit("waits", nodes=1, steps=500)
    w.order("drain", w.nodes[0])
    w.until(lambda: w.state(big) == JobState.QUEUED, HOUR)
    w.run(MINUTE)
    assert w.starts(waits) == []
    w.order("stop", big)
    w.ends(waits)


def test_a_job_that_can_neither_be_stopped_nor_fenced_gives_its_place_up_at_once() -> None:
    w = Ward(nodes=3, cluster=cluster_without(Capability.FENCE))
    job = w.training("stuck", nodes=3, steps=20_000)
    waits = w.submit("waits", nodes=1, steps=100)
    w.run(MINUTE)
    w.world.lose_node(w.nodes[0], zombie=True)
    w.until(lambda: bool(w.told("job_stuck")), HOUR)
    told = w.sim.scheduler.now
    w.ends(waits)
    assert w.sim.scheduler.now - told < 20 * MINUTE
    assert w.state(job) == JobState.STOPPING


def test_a_job_that_cannot_be_planned_gives_its_place_up_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    w = Ward(nodes=3, forgiving=True, strict=False)
    bad = w.training("bad", nodes=2, steps=20_000)
    w.training("long", nodes=1, steps=FOR_EVER)
    waits = w.submit("waits", nodes=1, steps=100)
    w.order("drain", w.nodes[0])
    w.until(lambda: w.state(bad) == JobState.QUEUED, HOUR)
    commit = w.sim.store.commit

    def refused(unit: Unit, epoch: int) -> int:
        if f"job:{bad}" in unit.writes and f"aside:job:{bad}" not in unit.writes:
            raise UnitTooLarge("too much of it")
        return commit(unit, epoch)

    monkeypatch.setattr(w.sim.store, "commit", refused)
    w.ends(waits, most=3 * HOUR)
    assert w.state(bad) == JobState.QUEUED


def test_jobs_that_share_a_node_keep_their_devices_of_it() -> None:
    w = Ward(nodes=1, gpus=8, linked=False)
    mine = w.training("mine", nodes=1, gpus_per_node=4, steps=4000)
    w.training("other", nodes=1, gpus_per_node=4, steps=4000)
    waits = w.submit("waits", nodes=1, gpus_per_node=4, steps=100)
    w.run(MINUTE)
    held = w.job(mine).claim
    w.world.crash(mine, tail="NCCL error")
    w.until(lambda: len(w.starts(mine)) == 2, DAY)
    assert w.starts(waits) == []
    assert w.job(mine).claim == held


def test_what_is_left_of_its_own_shared_nodes_is_no_spare_and_it_never_begins_on_fewer_nodes_than_it_needs() -> None:
    w = Ward(nodes=4, gpus=8, linked=False)
    mine = w.training("mine", nodes=3, gpus_per_node=1, steps=4000)
    w.training("whole", nodes=1, steps=FOR_EVER)
    w.order("drain", w.nodes[0])
    w.until(lambda: w.state(mine) == JobState.QUEUED, HOUR)
    w.run(10 * MINUTE)
    assert len(w.starts(mine)) == 1
    w.order("uncordon", w.nodes[0])
    w.ends(mine)
    assert [len(nodes) for _, nodes in w.starts(mine)] == [3, 3]


# --- the order of the queue


@warm_and_cold
def test_the_queue_is_in_order_of_submission(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    hog = w.training("hog", nodes=2, steps=500)
    names = ["zeta", "yam", "xray", "m", "d", "a"]
    jobs = []
    for name in names:
        jobs.append(w.submit(name, nodes=2, steps=50))
        w.run(5)
    w.ends(hog)
    for job in jobs:
        w.ends(job)
    assert began(w, *jobs) == jobs
    w.rests()


def test_a_higher_priority_goes_first_and_among_equals_age() -> None:
    w = Ward(nodes=2)
    hog = w.training("hog", nodes=2, steps=500)
    ranks = {"low": -5, "plain": 0, "urgent": 7, "also": 0}
    jobs = {}
    for name, priority in ranks.items():
        jobs[name] = w.submit(name, nodes=2, steps=50, priority=priority)
        w.run(5)
    w.ends(hog)
    for job in jobs.values():
        w.ends(job)
    assert began(w, *jobs.values()) == ["urgent", "plain", "also", "low"]


@pytest.mark.slow
@warm_and_cold
def test_a_large_job_is_not_overtaken_for_ever(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    w.training("hog", nodes=1, steps=600)
    w.submit("hug", nodes=1, steps=900)
    big = w.submit("aabig", nodes=4, steps=100)
    small = []
    for n in range(25):
        w.run(20)
        small.append(w.submit(f"s{n:02d}", nodes=1, steps=300))
    w.ends(big)
    assert not any(w.events("start", f"{job}#1") and began(w, job, big)[0] == job for job in small if w.starts(job))
    for job in small:
        w.ends(job)
    w.rests()


def test_whoever_is_over_before_the_head_can_begin_goes_first() -> None:
    w = Ward(nodes=4)
    w.training("hog", nodes=2, steps=FOR_EVER, time_limit=2 * HOUR)
    big = w.submit("big", nodes=4, steps=100)
    w.run(10)
    quick = w.submit("quick", nodes=1, steps=200, time_limit=600.0)
    longer = w.submit("longer", nodes=1, steps=200, time_limit=3 * HOUR)
    unknown = w.submit("unknown", nodes=1, steps=200)
    w.ends(quick, most=HOUR)
    assert w.starts(longer) == w.starts(unknown) == w.starts(big) == []
    for job in (big, longer, unknown):
        w.ends(job)
    assert began(w, big, longer, unknown)[0] == big


def test_nodes_that_the_head_does_not_need_are_for_others() -> None:
    """At the end of a job's limit more are free than the head needs: those are given away for as long as one likes."""
    w = Ward(nodes=4)
    w.training("hog", nodes=2, steps=FOR_EVER, time_limit=2 * HOUR)
    big = w.submit("big", nodes=3, steps=100)
    w.run(10)
    one = w.submit("one", nodes=1, steps=FOR_EVER)
    two = w.submit("two", nodes=1, steps=FOR_EVER)
    w.until(lambda: w.trains(one), HOUR)
    w.run(HOUR / 2)
    assert w.starts(two) == []
    w.ends(big)
    w.until(lambda: bool(w.starts(two)), HOUR)
    assert began(w, big, two) == [big, two]


def test_a_job_that_is_too_large_for_what_is_left_of_its_pool_keeps_nobody_waiting() -> None:
    w = Ward(nodes=3)
    w.order("cordon", w.nodes[0])
    w.run(MINUTE)
    w.submit("all", nodes=3)
    small = w.submit("small", nodes=1, steps=100)
    w.ends(small)


def test_named_nodes_are_kept_for_the_first_who_names_them_and_others_are_not() -> None:
    w = Ward(nodes=3)
    w.training("hog", nodes=1, steps=FOR_EVER, on=(w.nodes[0],), time_limit=2 * HOUR)
    named = w.submit("named", nodes=2, on=(w.nodes[0], w.nodes[1]), steps=100)
    w.run(10)
    both = w.submit("both", nodes=2, steps=100)
    one = w.submit("one", nodes=1, steps=FOR_EVER)
    w.run(HOUR)
    assert w.starts(named) == w.starts(both) == []
    assert w.starts(one) == [], "the head of the queue has the node that nobody names"
    w.ends(named)
    w.ends(both)


def test_a_node_that_a_person_has_cordoned_counts_once_and_the_head_keeps_its_reservation() -> None:
    w = Ward(nodes=3)
    w.order("cordon", w.nodes[0])
    w.run(MINUTE)
    w.training("hog", nodes=1, steps=1500)
    head = w.submit("head", nodes=2, steps=100)
    w.run(MINUTE)
    small = w.submit("small", nodes=1, steps=FOR_EVER)
    w.ends(head)
    assert not w.starts(small) or began(w, head, small)[0] == head


def test_named_nodes_are_not_kept_while_one_of_them_waits_for_a_person() -> None:
    w = Ward(nodes=3)
    w.order("cordon", w.nodes[0])
    w.run(MINUTE)
    named = w.submit("named", nodes=3, on=tuple(w.nodes), steps=100)
    w.run(MINUTE)
    w.ends(w.submit("small", nodes=1, steps=100), most=HOUR)
    w.order("uncordon", w.nodes[0])
    w.ends(named)


def test_a_large_job_keeps_its_reservation_in_a_pool_of_different_nodes() -> None:
    """What the limited job leaves is too small for the head: its own free node is not lent for it."""
    small = Quarter(cluster=ClusterRules(id=CLUSTER), gpus=4, linked=False, names=lambda n: f"small-{n}")
    w = Ward(nodes=2, gpus=8, linked=False, also=(small,))
    w.training("hog", nodes=1, on=(w.nodes[0],), steps=3000, gpus_per_node=8)
    w.training("limited", nodes=4, on=tuple(w.nodes[2:]), steps=FOR_EVER, time_limit=4 * HOUR)
    head = w.submit("head", nodes=2, gpus_per_node=8, steps=100)
    w.run(MINUTE)
    w.submit("one", nodes=1, gpus_per_node=8, steps=FOR_EVER)
    w.ends(head)


def test_a_whole_node_is_drained_of_small_jobs_for_the_head() -> None:
    """One GPU after the other becomes free; small jobs that come later do not fill the gaps for ever."""
    w = Ward(nodes=1, gpus=4, linked=False)
    for n in range(4):
        w.running(f"old{n}", nodes=1, gpus_per_node=1, steps=300 + 300 * n)
    whole = w.submit("whole", nodes=1, steps=100)
    small = []
    for n in range(10):
        w.run(100)
        small.append(w.submit(f"s{n}", nodes=1, gpus_per_node=1, steps=400))
    w.ends(whole)
    assert not any(w.starts(job) and began(w, job, whole)[0] == job for job in small)
    for job in small:
        w.ends(job)


# --- time limits


@warm_and_cold
def test_at_its_limit_a_job_is_asked_to_save_and_stopped_and_not_restarted(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training("long", nodes=2, steps=FOR_EVER, time_limit=1800.0, does={"listens": True})
    done = w.ends(job, JobState.STOPPED)
    assert "its time limit of 0:30:00 is over" in done.diagnosis
    assert done.saved is not None
    assert len(w.starts(job)) == 1
    assert done.interruptions == ()
    w.rests()


def test_what_its_attempts_have_run_counts_and_the_pauses_between_them_do_not() -> None:
    w = Ward(nodes=2)
    job = w.training("long", nodes=2, steps=FOR_EVER, time_limit=2 * HOUR)
    w.run(HOUR)
    w.order("drain", w.nodes[0])
    w.until(lambda: w.state(job) == JobState.QUEUED, HOUR)
    ran = w.job(job).ran
    assert HOUR < ran < 1.2 * HOUR
    w.run(3 * HOUR)
    assert w.job(job).open
    w.order("uncordon", w.nodes[0])
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    again = w.sim.scheduler.now
    w.ends(job, JobState.STOPPED)
    left = w.sim.scheduler.now - again
    assert 2 * HOUR - ran - MINUTE < left < 2 * HOUR - ran + 15 * MINUTE


def test_the_runs_of_all_its_attempts_count_together() -> None:
    w = Ward(nodes=2)
    job = w.training("long", nodes=2, steps=FOR_EVER, time_limit=2 * HOUR)
    for attempt in (1, 2):
        w.run(50 * MINUTE)
        w.world.preempt(job)
        w.until(lambda attempt=attempt: len(w.starts(job)) > attempt, HOUR)  # type: ignore[misc]
    third = w.sim.scheduler.now
    w.ends(job, JobState.STOPPED)
    assert w.sim.scheduler.now - third < 35 * MINUTE


# --- growing


@warm_and_cold
def test_a_job_that_shrank_grows_back_at_its_next_restart(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training("train", nodes=3, min_nodes=2, steps=9000)
    w.sick(w.nodes[0])
    w.until(lambda: len(w.starts(job)) == 2 and w.trains(job), DAY)
    w.until(lambda: w.node(w.nodes[0]).claimable, DAY)
    w.world.preempt(job)
    w.until(lambda: len(w.starts(job)) == 3, DAY)
    assert [len(nodes) for _, nodes in w.starts(job)] == [3, 2, 3]


@warm_and_cold
def test_on_wish_it_grows_as_soon_as_there_are_nodes_and_spends_no_restart(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training("train", nodes=3, min_nodes=2, grow=True, steps=20_000, does={"listens": True}, max_restarts=0)
    w.sick(w.nodes[0])
    done = w.ends(job)
    assert [len(nodes) for _, nodes in w.starts(job)] == [3, 2, 3]
    assert done.restarts == ()
    assert [i.cause for i in done.interruptions][-1] == "it grows to 3 nodes"
    shrank, grew = (w.events("start", f"{job}#{n}")[0].at for n in (2, 3))
    assert grew - shrank >= w.sim.policy.resume.grow_after.total_seconds()
    w.rests()


def test_the_nodes_that_it_grows_to_are_kept_while_it_saves() -> None:
    w = Ward(nodes=3)
    job = w.training("train", nodes=3, min_nodes=2, grow=True, steps=20_000, does={"listens": True})
    w.sick(w.nodes[0])
    w.until(lambda: len(w.starts(job)) == 2, DAY)
    w.until(lambda: any(call.wished for call in w.job(job).calls), DAY)
    late = w.submit("late", nodes=1, steps=100)
    w.ends(late)
    assert [len(nodes) for _, nodes in w.starts(job)] == [3, 2, 3]
    assert began(w, job, late) == [job, late]
    assert w.events("start", f"{job}#3")[0].at < w.events("start", f"{late}#1")[0].at


def test_it_does_not_grow_before_those_who_wait() -> None:
    w = Ward(nodes=3)
    job = w.training("train", nodes=3, min_nodes=2, grow=True, steps=20_000)
    waits = w.submit("waits", nodes=1, steps=FOR_EVER)
    w.sick(w.nodes[0])
    w.until(lambda: len(w.starts(waits)) == 1, DAY)
    w.run(3 * HOUR)
    assert [len(nodes) for _, nodes in w.starts(job)] == [3, 2]


# --- in rough weather


@pytest.mark.parametrize("seed", range(4))
def test_a_mixed_queue_ends_whatever_happens(seed: int) -> None:
    odds = Odds.rough() if seed % 2 else Odds()
    w = Ward(nodes=5, gpus=4, linked=False, seed=seed, cold=seed == 3, engines=2 if seed == 2 else 1, odds=odds)
    jobs = []
    for n in range(14):
        jobs.append(
            w.submit(
                f"j{n}",
                nodes=(1, 4, 2, 3)[n % 4],
                gpus_per_node=(0, 0, 1, 2)[n % 4],
                min_nodes=(0, 2, 0, 1)[n % 4],
                priority=(0, 0, 3, -1)[(n // 2) % 4],
                time_limit=None if n % 3 else 20_000.0,
                steps=100 + 50 * n,
            )
        )
        w.run(30)
    w.sick(w.nodes[seed % 4])
    for job in jobs:
        w.until(lambda job=job: w.known(job) and not w.job(job).open, 5 * DAY)  # type: ignore[misc]
    w.rests(5 * DAY)
