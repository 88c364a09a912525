"""A job's life: how it ends, when it is run again, and that two copies of it never run."""

import json
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, policy_of, warm_and_cold

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


def crashes(w: Ward, job: JobId, tail: str = "", exit_code: int = 1) -> None:
    """The script ends by itself."""
    w.until(lambda: w.trains(job), HOUR)
    w.world.crash(job, exit_code=exit_code, tail=tail)
    w.until(lambda: not w.trains(job), MINUTE)


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
    w = Ward(nodes=3, cold=cold)
    job = w.training()
    crashes(w, job, f"Epoch 3\n{tail}\n{NCCL}\n")
    done = w.ends(job, JobState.FAILED)
    assert told in done.diagnosis
    assert tail in done.diagnosis
    w.run(10)
    assert [n.text for n in w.notices("job_failed")] == [f"{job}: {done.diagnosis}"]
    assert len(w.starts(job)) == 1
    assert w.incidents() == [], "no node is to blame"
    assert w.events("cordon") == []
    w.rests()


@warm_and_cold
def test_a_collective_that_timed_out_may_come_right(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training()
    crashes(w, job, NCCL)
    done = w.ends(job)
    assert done.attempt == 2
    assert len(done.restarts) == 1
    assert "waited for a rank that did not come" in done.interruptions[0].cause


@warm_and_cold
def test_a_printed_hint_about_an_error_is_not_that_error(cold: bool) -> None:
    hall = Ward(nodes=2, cold=cold)
    job = hall.training()
    crashes(hall, job, f"hint: if you run into CUDA out of memory, lower --batch-size\n[rank3]: {NCCL}\n")
    done = hall.ends(job)
    assert done.attempt == 2
    assert "waited for a rank that did not come" in done.interruptions[0].cause


def test_a_log_in_records_of_its_container_is_understood() -> None:
    hall = Ward(nodes=2)
    job = hall.training()
    crashes(hall, job, json.dumps({"log": f"[rank0]: {NO_MODULE}\n", "stream": "stderr"}))
    done = hall.ends(job, JobState.FAILED)
    assert "imports what is not installed" in done.diagnosis


def test_an_end_that_nobody_explains_is_tried_again_until_the_restarts_are_spent() -> None:
    w = Ward(nodes=2)
    job = w.submit(steps=5000, does={"crashes_at": 150})
    done = w.ends(job, JobState.FAILED)
    assert [attempt for attempt, _ in w.starts(job)] == [1, 2, 3, 4]
    assert "3 of 3 restarts are spent" in done.diagnosis
    w.run(10)
    assert len(w.notices("job_failed")) == 1
    assert "3 of 3 restarts are spent" in w.notices("job_failed")[0].text
    assert w.events("cordon") == []


def test_the_jobs_own_max_restarts_goes_before_the_policys() -> None:
    w = Ward(nodes=2)
    job = w.submit(steps=5000, max_restarts=1, does={"crashes_at": 150})
    w.ends(job, JobState.FAILED)
    assert len(w.starts(job)) == 2


@pytest.mark.slow
def test_restarts_are_forgiven_after_the_window() -> None:
    w = Ward(nodes=2, policy=policy_of(window=timedelta(hours=2)))
    job = w.training(steps=200_000)
    for _ in range(6):
        crashes(w, job)
        w.run(61 * MINUTE)
    assert w.job(job).state is JobState.RUNNING
    assert len(w.job(job).restarts) <= 3
    for _ in range(3):
        crashes(w, job)
    w.ends(job, JobState.FAILED)


def test_max_interruptions_ends_every_loop_also_one_that_only_nodes_are_to_blame_for() -> None:
    w = Ward(nodes=2, policy=policy_of(max_interruptions=4))
    job = w.training(steps=200_000)
    for _ in range(4):
        w.until(lambda: w.trains(job), HOUR)
        w.world.preempt(job)
        w.until(lambda: not w.trains(job), MINUTE)
    done = w.ends(job, JobState.FAILED)
    assert "4 interruptions within" in done.diagnosis
    assert done.restarts == ()
    assert len(w.starts(job)) == 4


@pytest.mark.parametrize(("code", "state"), [(1, JobState.COMPLETE), (7, JobState.FAILED)])
def test_only_the_exit_codes_that_the_policy_names_are_restarted(code: int, state: JobState) -> None:
    w = Ward(nodes=2, policy=policy_of(exit_codes=(1, 134)))
    job = w.training(nodes=1)
    crashes(w, job, exit_code=code)
    done = w.ends(job, state)
    assert ("exit code 7 is not one that is restarted" in done.diagnosis) is (state is JobState.FAILED)


def test_an_exit_code_that_is_not_named_does_not_hide_a_sick_node() -> None:
    w = Ward(nodes=3, policy=policy_of(exit_codes=(1,)))
    job = w.training()
    w.sick(w.nodes[0])  # its ranks end with 134
    w.ends(job)
    w.rests()


# --- hangs


@warm_and_cold
def test_a_hung_job_gives_its_stacks_and_is_restarted(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training(does={"give_up": None})
    w.world.hang(job)
    done = w.ends(job)
    assert len(w.starts(job)) == 2
    assert done.interruptions[0].cause.startswith("hung")
    stacks = [e.at for e in w.events("look") if e.detail == job]
    stopped = [e.at for e in w.events("end", f"{job}#1")]
    assert len(stacks) == 1
    assert stacks[0] < stopped[0], "a stopped rank has no stack"
    assert len(done.restarts) == 1
    w.rests()


def test_a_job_that_hangs_again_and_again_fails() -> None:
    w = Ward(nodes=2)
    job = w.training(max_restarts=1, does={"give_up": None})
    for _ in range(2):
        w.until(lambda: w.trains(job), HOUR)
        w.world.hang(job)
        w.run(10 * MINUTE)
    assert "hung" in w.ends(job, JobState.FAILED).diagnosis


def test_a_job_that_hangs_over_a_silent_agent_is_not_called_hung() -> None:
    w = Ward(nodes=2, cluster=cluster_without(Capability.RESTART_SERVICE))
    job = w.training(steps=4000)
    w.world.lose_agent(w.nodes[0])
    w.run(30 * MINUTE)
    assert w.trains(job)
    assert w.job(job).calls == ()


# --- stopping, and the proof that ranks are gone


@warm_and_cold
def test_ranks_that_do_not_stop_in_time_are_fenced(cold: bool) -> None:
    """The cluster has lost one node, whose agent we hear; then the other node breaks."""
    w = Ward(nodes=4, cold=cold)
    job = w.training(does={"on_death": OnDeath.HANG, "give_up": None})
    apart, sick = w.nodes[:2]
    w.world.partition(apart)
    w.run(2 * MINUTE)
    assert w.trains(job), "a partition stops nobody"
    w.sick(sick)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    assert [e.subject for e in w.events("fenced")] == [apart]
    assert w.events("fenced")[0].at < w.events("start", f"{job}#2")[0].at
    w.ends(job)


@warm_and_cold
@pytest.mark.parametrize("seed", range(2))
def test_zombie_ranks_never_run_beside_the_next_attempt(cold: bool, seed: int) -> None:
    """The world itself calls two living attempts a violation."""
    w = Ward(nodes=4, cold=cold, seed=seed, odds=Odds.rough() if seed else Odds())
    job = w.training()
    zombie = w.starts(job)[-1][1][0]
    w.world.lose_node(zombie, zombie=True)
    w.ends(job)
    assert w.events("fenced", zombie)
    w.rests()


@warm_and_cold
def test_without_a_fence_the_job_waits_for_proof_and_a_human_is_told_once(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=cluster_without(Capability.FENCE))
    job = w.training()
    zombie = w.nodes[0]
    w.world.lose_node(zombie, zombie=True)
    w.run(2 * HOUR)
    assert w.job(job).state is JobState.STOPPING
    assert "cannot prove that the ranks" in w.because(job)
    assert len(w.notices("job_stuck")) == 1
    assert zombie in w.notices("job_stuck")[0].text
    tries = [line.text for line in w.sim.store.story(f"job:{job}") if line.text.startswith("StopJob")]
    assert len(tries) <= 3, "that it is tried again and again is no news"
    w.world.operator_reboots(zombie)
    w.ends(job)
    assert w.events("reboot", zombie)[0].at < w.events("start", f"{job}#2")[0].at
    assert len(w.notices("job_stuck")) == 1


@warm_and_cold
def test_a_stop_that_is_refused_because_all_is_gone_is_done(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training(nodes=1)
    w.world.crash(job)
    w.order("stop", job)
    w.run(20)
    assert w.sent("stop_job") == ["Gone: attempt train#1 has ended"]
    w.ends(job, JobState.STOPPED, most=10 * MINUTE)


@warm_and_cold
def test_a_job_that_completed_before_our_stop_reached_it_is_complete(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training(steps=500)
    w.until(lambda: bool(w.events("end", f"{job}#1")), HOUR)
    w.sick(w.nodes[0], kills_ranks=False, observe_after=0.0)
    w.ends(job)
    assert len(w.starts(job)) == 1
    w.rests()


# --- people


STATES: dict[str, Callable[[Ward], JobId]] = {}


def _state(make: Callable[[Ward], JobId]) -> Callable[[Ward], JobId]:
    STATES[make.__name__] = make
    return make


@_state
def waits_for_nodes(w: Ward) -> JobId:
    job = w.submit(nodes=9)
    w.job_reaches(job, JobState.QUEUED)
    return job


@_state
def is_gated(w: Ward) -> JobId:
    job = w.submit()
    w.job_reaches(job, JobState.GATING)
    return job


@_state
def is_about_to_start(w: Ward) -> JobId:
    return _starting(w, IntentState.SENT)


@_state
def is_starting(w: Ward) -> JobId:
    return _starting(w, IntentState.ACCEPTED)


def _starting(w: Ward, state: IntentState) -> JobId:
    job = w.submit(precheck=0)

    def begun() -> bool:
        intent = w.sim.store.load([key := f"intent:job.{job}.1"])[key].row
        return intent is not None and isinstance(intent.act, StartJob) and intent.state is state

    if w.sim.plan.cold and state is IntentState.SENT:
        state = IntentState.ACCEPTED  # a cold host makes the call in the same breath
    w.until(begun, HOUR)
    return job


@_state
def trains(w: Ward) -> JobId:
    return w.training()


@_state
def is_stopping(w: Ward) -> JobId:
    job = w.training(does={"on_death": OnDeath.HANG})
    w.sick(w.nodes[0], kill_after=30.0)
    w.job_reaches(job, JobState.STOPPING)
    return job


@_state
def is_diagnosed(w: Ward) -> JobId:
    job = w.training()
    w.world.crash(job, tail=NCCL)
    w.job_reaches(job, JobState.DIAGNOSING)
    return job


@_state
def waits_for_its_node(w: Ward) -> JobId:
    job = w.training(on=tuple(w.nodes[:2]))
    w.sick(w.nodes[0])
    w.job_reaches(job, JobState.QUEUED)
    return job


@_state
def is_gated_again(w: Ward) -> JobId:
    job = w.training()
    w.world.preempt(job)
    w.job_reaches(job, JobState.GATING)
    return job


@warm_and_cold
@pytest.mark.parametrize("when", STATES)
def test_a_person_stops_a_job_that(when: str, cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = STATES[when](w)
    began = len(w.starts(job))
    w.order("stop", job)
    done = w.ends(job, JobState.STOPPED, most=10 * MINUTE)
    assert done.stop_asked == "stopped by operator: by hand"
    assert done.claim == {}
    assert all(interruption.closed for interruption in done.interruptions)
    w.run(HOUR)
    assert w.world.running(job) == []
    assert len(w.starts(job)) <= max(began, 1), "nothing is started for a stopped job"
    assert w.notices("job_failed") == []


@pytest.mark.parametrize("seed", range(8))
def test_a_person_stops_a_job_in_rough_weather(seed: int) -> None:
    w = Ward(nodes=3, cold=seed % 2 == 1, seed=seed, odds=Odds.rough())
    job = list(STATES.values())[seed](w)
    w.order("stop", job)
    w.ends(job, JobState.STOPPED)
    w.run(HOUR)
    assert w.world.running(job) == []


@warm_and_cold
def test_its_owner_cancels_a_job_and_it_is_stopped_not_failed(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training()
    w.world.owner_cancels(job)
    done = w.ends(job, JobState.STOPPED)
    w.run(HOUR)
    assert len(w.starts(job)) == 1
    assert done.interruptions == ()
    assert w.notices() == []
    w.rests()


def test_its_owner_cancels_a_job_that_is_starting() -> None:
    w = Ward(nodes=2)
    job = is_starting(w)
    w.world.owner_cancels(job)
    done = w.ends(job, JobState.STOPPED)
    assert done.interruptions == ()
    w.run(HOUR)
    assert w.world.running(job) == []
    assert len(w.starts(job)) == 1


@warm_and_cold
def test_a_preempted_job_is_restarted_without_blame(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold, policy=policy_of(faults_count=True))
    job = w.training(max_restarts=0)
    w.world.preempt(job)
    done = w.ends(job)
    assert done.attempt == 2
    assert done.restarts == ()
    assert done.interruptions[0].cause == "it ended: preempted"
    w.rests()


# --- starts and their doubt


@warm_and_cold
def test_a_gang_that_was_started_in_part_is_completed_under_the_same_key(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    w.sim.mischief.force_next("partial")
    job = w.submit(nodes=4, precheck=0)
    w.run(30)
    assert w.job(job).state is JobState.GATING, "a part of a gang does not train"
    done = w.ends(job)
    assert [(attempt, len(nodes)) for attempt, nodes in w.starts(job)] == [(1, 2), (1, 2)]
    assert done.attempt == 1
    w.rests()


@warm_and_cold
def test_a_part_of_a_gang_that_cannot_be_completed_is_stopped_before_the_next_attempt(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, cluster=cluster_without(blind=frozenset({"start_job"})))
    w.sim.mischief.force_next("partial")
    job = w.submit(nodes=4, precheck=0, does={"give_up": None})
    w.ends(job)
    assert [(attempt, len(nodes)) for attempt, nodes in w.starts(job)] == [(1, 2), (2, 4)]
    assert w.events("end", f"{job}#1")[0].at < w.events("start", f"{job}#2")[0].at
    w.rests()


@warm_and_cold
@pytest.mark.parametrize("fate", ["lost_before", "lost_after", "late", "doubled"])
@pytest.mark.parametrize("seed", range(2))
def test_a_start_whose_call_went_wrong_still_begins_one_attempt(fate: str, cold: bool, seed: int) -> None:
    w = Ward(nodes=2, cold=cold, seed=seed)
    w.sim.mischief.force_next(fate)
    job = w.submit(precheck=0)
    done = w.ends(job)
    assert [attempt for attempt, _ in w.starts(job)] == [1]
    assert done.attempt == 1
    assert done.restarts == ()


@pytest.mark.parametrize("fate", ["", "lost_before", "lost_after", "late", "partial"])
@pytest.mark.parametrize("seed", range(4))
def test_a_fault_while_a_start_is_in_doubt_never_lets_two_attempts_run(fate: str, seed: int) -> None:
    w = Ward(nodes=4, seed=seed, cold=seed % 2 == 1)
    if fate:
        w.sim.mischief.force_next(fate)
    job = w.submit(precheck=0)
    w.until(lambda: "start_job" in {told.act for told in w.world.chronicle.told}, MINUTE)
    w.run(float(seed))
    w.sick(w.nodes[0], observe_after=0.0)
    w.ends(job)
    w.rests()


@warm_and_cold
def test_a_refused_start_takes_other_nodes_and_spends_a_gate_not_a_restart(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.submit()
    w.job_reaches(job, JobState.GATING)
    w.world.operator_cordons(w.nodes[0])
    done = w.ends(job)
    assert [set(nodes) for _, nodes in w.starts(job)] == [set(w.nodes[1:])]
    assert done.gates == 1
    assert (done.restarts, done.interruptions) == ((), ())
    assert "Rejected" in w.sent("start_job")[0]


def test_a_start_that_is_refused_at_once_does_not_burn_all_gates_before_the_next_read() -> None:
    w = Ward(nodes=3)
    w.world.operator_cordons(w.nodes[0])
    job = w.submit(precheck=0)  # the cordon has not been seen yet
    w.ends(job)
    assert set(w.starts(job)[0][1]) == set(w.nodes[1:])


@pytest.mark.slow
@warm_and_cold
def test_an_outage_of_the_cluster_while_a_job_trains_is_nobodys_fault(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training(steps=20_000)
    now = w.sim.scheduler.now
    w.sim.mischief.outage("cluster:sim", now, now + 2 * HOUR, hangs=True)
    w.ends(job)
    assert len(w.starts(job)) == 1
    w.rests()


def test_a_stop_during_an_outage_comes_when_the_cluster_can_be_asked_again() -> None:
    w = Ward(nodes=3)
    job = w.training(steps=DAY_OF_STEPS)
    now = w.sim.scheduler.now
    w.sim.mischief.outage("cluster:sim", now, now + 2 * HOUR)
    w.order("stop", job)
    w.run(HOUR)
    assert w.job(job).state is JobState.STOPPING
    assert w.events("fenced") == [], "what we cannot ask is not called unreachable"
    w.ends(job, JobState.STOPPED, most=4 * HOUR)
    assert w.events("fenced") == []


DAY_OF_STEPS = int(DAY)


def test_a_node_that_is_lost_while_its_job_stops_is_fenced_at_once() -> None:
    """An operator's drain had asked the job to stop before; who else knows of the loss does not matter."""
    w = Ward(nodes=3)
    job = w.training(does={"on_death": OnDeath.HANG, "give_up": None})
    lost = w.nodes[0]
    w.order("drain", lost, now=True)
    w.job_reaches(job, JobState.STOPPING)
    w.world.lose_node(lost, zombie=True)
    began = w.sim.scheduler.now
    w.until(lambda: bool(w.events("fenced", lost)), HOUR)
    assert w.events("fenced", lost)[0].at - began < 90, "not only when the stop's time is over"
    w.ends(job)


@warm_and_cold
def test_nodes_that_a_stuck_job_has_left_are_free_for_others(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold, cluster=cluster_without(Capability.FENCE))
    stuck = w.training("stuck", nodes=3)
    other = w.submit("other", nodes=2, steps=500)
    w.world.lose_node(w.nodes[0], zombie=True)
    w.ends(other)
    assert set(w.starts(other)[0][1]) == set(w.nodes[1:])
    assert w.job(stuck).state is JobState.STOPPING
    assert set(w.job(stuck).claim) == {w.nodes[0]}
    w.world.operator_reboots(w.nodes[0])
    w.ends(stuck)
