"""A job's life: how it ends, when it is run again, and that two copies of it never run."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, cluster_without, policy_of, warm_and_cold

from sickbay.model.fleet import Capability, JobId
from sickbay.model.intent import IntentState, StartJob
from sickbay.model.job import JobState
from sickbay.sim.chaos import Odds
from sickbay.sim.job_behaviour import OnDeath

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
NAN = "step 1200 loss: nan"
NO_MODULE = "ModuleNotFoundError: No module named 'flash_attn'"
NCCL = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=81, OpType=ALLREDUCE)"
BUG = "TypeError: forward() missing 1 required positional argument: 'mask'"


def crashes(hall: Hall, job: JobId, tail: str = "", exit_code: int = 1) -> None:
    """The script ends by itself."""
    hall.until(lambda: hall.trains(job), HOUR)
    hall.world.crash(job, exit_code=exit_code, tail=tail)
    hall.until(lambda: not hall.trains(job), MINUTE)


# --- ends without a sick node


@warm_and_cold
@pytest.mark.parametrize(
    ("tail", "told"),
    [
        (OOM, "do not fit into the GPU's memory"),
        (NAN, "the loss is not a number"),
        (NO_MODULE, "imports what is not installed"),
        (BUG, "wrong in a way that does not depend on the machine"),
    ],
)
def test_what_does_not_come_right_by_restarting_fails_with_its_line(tail: str, told: str, cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.training()
    crashes(hall, job, f"Epoch 3\n{tail}\n{NCCL}\n")
    done = hall.ends(job, JobState.FAILED)
    assert told in done.diagnosis
    assert tail in done.diagnosis
    hall.run(10)
    assert [n.text for n in hall.told("job_failed")] == [f"{job}: {done.diagnosis}"]
    assert len(hall.starts(job)) == 1
    assert hall.incidents() == [], "no node is to blame"
    assert hall.happened("cordon") == []
    hall.rests()


@warm_and_cold
def test_a_collective_that_timed_out_may_come_right(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training()
    crashes(hall, job, NCCL)
    done = hall.ends(job)
    assert done.attempt == 2
    assert len(done.restarts) == 1
    assert "waited for a rank that did not come" in done.interruptions[0].cause


@warm_and_cold
def test_a_printed_hint_about_an_error_is_not_that_error(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training()
    crashes(hall, job, f"hint: if you run into CUDA out of memory, lower --batch-size\n[rank3]: {NCCL}\n")
    done = hall.ends(job)
    assert done.attempt == 2
    assert "waited for a rank that did not come" in done.interruptions[0].cause


def test_a_log_in_records_of_its_container_is_understood() -> None:
    hall = Hall(nodes=2)
    job = hall.training()
    crashes(hall, job, json.dumps({"log": f"[rank0]: {NO_MODULE}\n", "stream": "stderr"}))
    done = hall.ends(job, JobState.FAILED)
    assert "imports what is not installed" in done.diagnosis


def test_an_end_that_nobody_explains_is_tried_again_until_the_restarts_are_spent() -> None:
    hall = Hall(nodes=2)
    job = hall.submit(steps=5000, does={"crashes_at": 150})
    done = hall.ends(job, JobState.FAILED)
    assert [attempt for attempt, _ in hall.starts(job)] == [1, 2, 3, 4]
    assert "3 of 3 restarts are spent" in done.diagnosis
    hall.run(10)
    assert len(hall.told("job_failed")) == 1
    assert "3 of 3 restarts are spent" in hall.told("job_failed")[0].text
    assert hall.happened("cordon") == []


def test_the_jobs_own_max_restarts_goes_before_the_policys() -> None:
    hall = Hall(nodes=2)
    job = hall.submit(steps=5000, max_restarts=1, does={"crashes_at": 150})
    hall.ends(job, JobState.FAILED)
    assert len(hall.starts(job)) == 2


@pytest.mark.slow
def test_restarts_are_forgiven_after_the_window() -> None:
    hall = Hall(nodes=2, policy=policy_of(window=timedelta(hours=2)))
    job = hall.training(steps=200_000)
    for _ in range(6):
        crashes(hall, job)
        hall.run(61 * MINUTE)
    assert hall.job(job).state is JobState.RUNNING
    assert len(hall.job(job).restarts) <= 3
    for _ in range(3):
        crashes(hall, job)
    hall.ends(job, JobState.FAILED)


def test_max_interruptions_ends_every_loop_also_one_that_only_nodes_are_to_blame_for() -> None:
    hall = Hall(nodes=2, policy=policy_of(max_interruptions=4))
    job = hall.training(steps=200_000)
    for _ in range(4):
        hall.until(lambda: hall.trains(job), HOUR)
        hall.world.preempt(job)
        hall.until(lambda: not hall.trains(job), MINUTE)
    done = hall.ends(job, JobState.FAILED)
    assert "4 interruptions within" in done.diagnosis
    assert done.restarts == ()
    assert len(hall.starts(job)) == 4


@pytest.mark.parametrize(("code", "state"), [(1, JobState.COMPLETE), (7, JobState.FAILED)])
def test_only_the_exit_codes_that_the_policy_names_are_restarted(code: int, state: JobState) -> None:
    hall = Hall(nodes=2, policy=policy_of(exit_codes=(1, 134)))
    job = hall.training(nodes=1)
    crashes(hall, job, exit_code=code)
    done = hall.ends(job, state)
    assert ("exit code 7 is not one that is restarted" in done.diagnosis) is (state is JobState.FAILED)


def test_an_exit_code_that_is_not_named_does_not_hide_a_sick_node() -> None:
    hall = Hall(nodes=3, policy=policy_of(exit_codes=(1,)))
    job = hall.training()
    hall.strike(hall.nodes[0])  # its ranks end with 134
    hall.ends(job)
    hall.rests()


# --- hangs


@warm_and_cold
def test_a_hung_job_gives_its_stacks_and_is_restarted(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training(does={"give_up": None})
    hall.world.hang(job)
    done = hall.ends(job)
    assert len(hall.starts(job)) == 2
    assert done.interruptions[0].cause.startswith("hung")
    stacks = [e.at for e in hall.happened("look") if e.detail == job]
    stopped = [e.at for e in hall.happened("end", f"{job}#1")]
    assert len(stacks) == 1
    assert stacks[0] < stopped[0], "a stopped rank has no stack"
    assert len(done.restarts) == 1
    hall.rests()


def test_a_job_that_hangs_again_and_again_fails() -> None:
    hall = Hall(nodes=2)
    job = hall.training(max_restarts=1, does={"give_up": None})
    for _ in range(2):
        hall.until(lambda: hall.trains(job), HOUR)
        hall.world.hang(job)
        hall.run(10 * MINUTE)
    assert "hung" in hall.ends(job, JobState.FAILED).diagnosis


def test_a_job_that_hangs_over_a_silent_agent_is_not_called_hung() -> None:
    hall = Hall(nodes=2, cluster=cluster_without(Capability.RESTART_SERVICE))
    job = hall.training(steps=4000)
    hall.world.lose_agent(hall.nodes[0])
    hall.run(30 * MINUTE)
    assert hall.trains(job)
    assert hall.job(job).calls == ()


# --- stopping, and the proof that ranks are gone


@warm_and_cold
def test_ranks_that_do_not_stop_in_time_are_fenced(cold: bool) -> None:
    """The cluster has lost one node, whose agent we hear; then the other node breaks."""
    hall = Hall(nodes=4, cold=cold)
    job = hall.training(does={"on_death": OnDeath.HANG, "give_up": None})
    apart, sick = hall.nodes[:2]
    hall.world.partition(apart)
    hall.run(2 * MINUTE)
    assert hall.trains(job), "a partition stops nobody"
    hall.strike(sick)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
    assert [e.subject for e in hall.happened("fenced")] == [apart]
    assert hall.happened("fenced")[0].at < hall.happened("start", f"{job}#2")[0].at
    hall.ends(job)


@warm_and_cold
@pytest.mark.parametrize("seed", range(2))
def test_zombie_ranks_never_run_beside_the_next_attempt(cold: bool, seed: int) -> None:
    """The world itself calls two living attempts a violation."""
    hall = Hall(nodes=4, cold=cold, seed=seed, odds=Odds.rough() if seed else Odds())
    job = hall.training()
    zombie = hall.starts(job)[-1][1][0]
    hall.world.lose_node(zombie, zombie=True)
    hall.ends(job)
    assert hall.happened("fenced", zombie)
    hall.rests()


@warm_and_cold
def test_without_a_fence_the_job_waits_for_proof_and_a_human_is_told_once(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=cluster_without(Capability.FENCE))
    job = hall.training()
    zombie = hall.nodes[0]
    hall.world.lose_node(zombie, zombie=True)
    hall.run(2 * HOUR)
    assert hall.job(job).state is JobState.STOPPING
    assert "cannot prove that the ranks" in hall.because(job)
    assert len(hall.told("job_stuck")) == 1
    assert zombie in hall.told("job_stuck")[0].text
    tries = [line.text for line in hall.sim.store.story(f"job:{job}") if line.text.startswith("StopJob")]
    assert len(tries) <= 3, "that it is tried again and again is no news"
    hall.world.operator_reboots(zombie)
    hall.ends(job)
    assert hall.happened("reboot", zombie)[0].at < hall.happened("start", f"{job}#2")[0].at
    assert len(hall.told("job_stuck")) == 1


@warm_and_cold
def test_a_stop_that_is_refused_because_all_is_gone_is_done(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training(nodes=1)
    hall.world.crash(job)
    hall.order("stop", job)
    hall.run(20)
    assert hall.sent("stop_job") == ["Gone: attempt train#1 has ended"]
    hall.ends(job, JobState.STOPPED, most=10 * MINUTE)


@warm_and_cold
def test_a_job_that_completed_before_our_stop_reached_it_is_complete(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.training(steps=500)
    hall.until(lambda: bool(hall.happened("end", f"{job}#1")), HOUR)
    hall.strike(hall.nodes[0], kills_ranks=False, observe_after=0.0)
    hall.ends(job)
    assert len(hall.starts(job)) == 1
    hall.rests()


# --- people


STATES: dict[str, Callable[[Hall], JobId]] = {}


def _state(make: Callable[[Hall], JobId]) -> Callable[[Hall], JobId]:
    STATES[make.__name__] = make
    return make


@_state
def waits_for_nodes(hall: Hall) -> JobId:
    job = hall.submit(nodes=9)
    hall.reaches(job, JobState.QUEUED)
    return job


@_state
def is_gated(hall: Hall) -> JobId:
    job = hall.submit()
    hall.reaches(job, JobState.GATING)
    return job


@_state
def is_about_to_start(hall: Hall) -> JobId:
    return _starting(hall, IntentState.SENT)


@_state
def is_starting(hall: Hall) -> JobId:
    return _starting(hall, IntentState.ACCEPTED)


def _starting(hall: Hall, state: IntentState) -> JobId:
    job = hall.submit(precheck=0)

    def begun() -> bool:
        intent = hall.sim.store.load([key := f"intent:job.{job}.1"])[key].row
        return intent is not None and isinstance(intent.act, StartJob) and intent.state is state

    if hall.sim.plan.cold and state is IntentState.SENT:
        state = IntentState.ACCEPTED  # a cold host makes the call in the same breath
    hall.until(begun, HOUR)
    return job


@_state
def trains(hall: Hall) -> JobId:
    return hall.training()


@_state
def is_stopping(hall: Hall) -> JobId:
    job = hall.training(does={"on_death": OnDeath.HANG})
    hall.strike(hall.nodes[0], kill_after=30.0)
    hall.reaches(job, JobState.STOPPING)
    return job


@_state
def is_diagnosed(hall: Hall) -> JobId:
    job = hall.training()
    hall.world.crash(job, tail=NCCL)
    hall.reaches(job, JobState.DIAGNOSING)
    return job


@_state
def waits_for_its_node(hall: Hall) -> JobId:
    job = hall.training(on=tuple(hall.nodes[:2]))
    hall.strike(hall.nodes[0])
    hall.reaches(job, JobState.QUEUED)
    return job


@_state
def is_gated_again(hall: Hall) -> JobId:
    job = hall.training()
    hall.world.preempt(job)
    hall.reaches(job, JobState.GATING)
    return job


@warm_and_cold
@pytest.mark.parametrize("when", STATES)
def test_a_person_stops_a_job_that(when: str, cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = STATES[when](hall)
    began = len(hall.starts(job))
    hall.order("stop", job)
    done = hall.ends(job, JobState.STOPPED, most=10 * MINUTE)
    assert done.stop_asked == "stopped by operator: by hand"
    assert done.claim == {}
    assert all(interruption.closed for interruption in done.interruptions)
    hall.run(HOUR)
    assert hall.world.running(job) == []
    assert len(hall.starts(job)) <= max(began, 1), "nothing is started for a stopped job"
    assert hall.told("job_failed") == []


@pytest.mark.parametrize("seed", range(8))
def test_a_person_stops_a_job_in_rough_weather(seed: int) -> None:
    hall = Hall(nodes=3, cold=seed % 2 == 1, seed=seed, odds=Odds.rough())
    job = list(STATES.values())[seed](hall)
    hall.order("stop", job)
    hall.ends(job, JobState.STOPPED)
    hall.run(HOUR)
    assert hall.world.running(job) == []


@warm_and_cold
def test_its_owner_cancels_a_job_and_it_is_stopped_not_failed(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training()
    hall.world.owner_cancels(job)
    done = hall.ends(job, JobState.STOPPED)
    hall.run(HOUR)
    assert len(hall.starts(job)) == 1
    assert done.interruptions == ()
    assert hall.told() == []
    hall.rests()


def test_its_owner_cancels_a_job_that_is_starting() -> None:
    hall = Hall(nodes=2)
    job = is_starting(hall)
    hall.world.owner_cancels(job)
    done = hall.ends(job, JobState.STOPPED)
    assert done.interruptions == ()
    hall.run(HOUR)
    assert hall.world.running(job) == []
    assert len(hall.starts(job)) == 1


@warm_and_cold
def test_a_preempted_job_is_restarted_without_blame(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold, policy=policy_of(faults_count=True))
    job = hall.training(max_restarts=0)
    hall.world.preempt(job)
    done = hall.ends(job)
    assert done.attempt == 2
    assert done.restarts == ()
    assert done.interruptions[0].cause == "it ended: preempted"
    hall.rests()


# --- starts and their doubt


@warm_and_cold
def test_a_gang_that_was_started_in_part_is_completed_under_the_same_key(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    hall.sim.mischief.force_next("partial")
    job = hall.submit(nodes=4, precheck=0)
    hall.run(30)
    assert hall.job(job).state is JobState.GATING, "a part of a gang does not train"
    done = hall.ends(job)
    assert [(attempt, len(nodes)) for attempt, nodes in hall.starts(job)] == [(1, 2), (1, 2)]
    assert done.attempt == 1
    hall.rests()


@warm_and_cold
def test_a_part_of_a_gang_that_cannot_be_completed_is_stopped_before_the_next_attempt(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, cluster=cluster_without(blind=frozenset({"start_job"})))
    hall.sim.mischief.force_next("partial")
    job = hall.submit(nodes=4, precheck=0, does={"give_up": None})
    hall.ends(job)
    assert [(attempt, len(nodes)) for attempt, nodes in hall.starts(job)] == [(1, 2), (2, 4)]
    assert hall.happened("end", f"{job}#1")[0].at < hall.happened("start", f"{job}#2")[0].at
    hall.rests()


@warm_and_cold
@pytest.mark.parametrize("fate", ["lost_before", "lost_after", "late", "doubled"])
@pytest.mark.parametrize("seed", range(2))
def test_a_start_whose_call_went_wrong_still_begins_one_attempt(fate: str, cold: bool, seed: int) -> None:
    hall = Hall(nodes=2, cold=cold, seed=seed)
    hall.sim.mischief.force_next(fate)
    job = hall.submit(precheck=0)
    done = hall.ends(job)
    assert [attempt for attempt, _ in hall.starts(job)] == [1]
    assert done.attempt == 1
    assert done.restarts == ()


@pytest.mark.parametrize("fate", ["", "lost_before", "lost_after", "late", "partial"])
@pytest.mark.parametrize("seed", range(4))
def test_a_fault_while_a_start_is_in_doubt_never_lets_two_attempts_run(fate: str, seed: int) -> None:
    hall = Hall(nodes=4, seed=seed, cold=seed % 2 == 1)
    if fate:
        hall.sim.mischief.force_next(fate)
    job = hall.submit(precheck=0)
    hall.until(lambda: "start_job" in {told.act for told in hall.world.chronicle.told}, MINUTE)
    hall.run(float(seed))
    hall.strike(hall.nodes[0], observe_after=0.0)
    hall.ends(job)
    hall.rests()


@warm_and_cold
def test_a_refused_start_takes_other_nodes_and_spends_a_gate_not_a_restart(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    job = hall.submit()
    hall.reaches(job, JobState.GATING)
    hall.world.operator_cordons(hall.nodes[0])
    done = hall.ends(job)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [set(hall.nodes[1:])]
    assert done.gates == 1
    assert (done.restarts, done.interruptions) == ((), ())
    assert "Rejected" in hall.sent("start_job")[0]


def test_a_start_that_is_refused_at_once_does_not_burn_all_gates_before_the_next_read() -> None:
    hall = Hall(nodes=3)
    hall.world.operator_cordons(hall.nodes[0])
    job = hall.submit(precheck=0)  # the cordon has not been seen yet
    hall.ends(job)
    assert set(hall.starts(job)[0][1]) == set(hall.nodes[1:])


@pytest.mark.slow
@warm_and_cold
def test_an_outage_of_the_cluster_while_a_job_trains_is_nobodys_fault(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training(steps=20_000)
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage("cluster:sim", now, now + 2 * HOUR, hangs=True)
    hall.ends(job)
    assert len(hall.starts(job)) == 1
    hall.rests()


def test_a_stop_during_an_outage_comes_when_the_cluster_can_be_asked_again() -> None:
    hall = Hall(nodes=3)
    job = hall.training(steps=DAY_OF_STEPS)
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage("cluster:sim", now, now + 2 * HOUR)
    hall.order("stop", job)
    hall.run(HOUR)
    assert hall.job(job).state is JobState.STOPPING
    assert hall.happened("fenced") == [], "what we cannot ask is not called unreachable"
    hall.ends(job, JobState.STOPPED, most=4 * HOUR)
    assert hall.happened("fenced") == []


DAY_OF_STEPS = int(DAY)


def test_a_node_that_is_lost_while_its_job_stops_is_fenced_at_once() -> None:
    """An operator's drain had asked the job to stop before; who else knows of the loss does not matter."""
    hall = Hall(nodes=3)
    job = hall.training(does={"on_death": OnDeath.HANG, "give_up": None})
    lost = hall.nodes[0]
    hall.order("drain", lost, now=True)
    hall.reaches(job, JobState.STOPPING)
    hall.world.lose_node(lost, zombie=True)
    began = hall.sim.scheduler.now
    hall.until(lambda: bool(hall.happened("fenced", lost)), HOUR)
    assert hall.happened("fenced", lost)[0].at - began < 90, "not only when the stop's time is over"
    hall.ends(job)


@warm_and_cold
def test_nodes_that_a_stuck_job_has_left_are_free_for_others(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold, cluster=cluster_without(Capability.FENCE))
    stuck = hall.training("stuck", nodes=3)
    other = hall.submit("other", nodes=2, steps=500)
    hall.world.lose_node(hall.nodes[0], zombie=True)
    hall.ends(other)
    assert set(hall.starts(other)[0][1]) == set(hall.nodes[1:])
    assert hall.job(stuck).state is JobState.STOPPING
    assert set(hall.job(stuck).claim) == {hall.nodes[0]}
    hall.world.operator_reboots(hall.nodes[0])
    hall.ends(stuck)
