"""Before a job that listens is stopped for something that can wait, it is asked to save and given its time."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, cluster_without, policy_of, warm_and_cold

from sickbay.faces.explain import explain
from sickbay.model.facts import Checkpointed, Hung
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import OnDeath

LISTENS = {"listens": True, "save_takes": 20.0}
FAR = 1_000_000


def trains(hall: Hall, **does: Any) -> tuple[JobId, NodeId]:
    """A job that listens, a while after its first step, and one of its nodes."""
    job = hall.training(steps=FAR, does={**LISTENS, "checkpoint_every": 100_000, **does})
    hall.until(lambda: hall.job(job).listens or not {**LISTENS, **does}["listens"], HOUR)
    hall.run(777.0)
    return job, min(hall.job(job).claim)


def moments(hall: Hall, what: str) -> list[float]:
    return [event.at for event in hall.happened(what)]


def stopped_at(hall: Hall) -> float:
    return next(event.at for event in hall.happened("halt") if event.detail == "stopped by us")


def asked_step(hall: Hall, job: JobId) -> int:
    (step,) = hall.true_job(job).attempts[1].asked.values()
    return step


@warm_and_cold
@pytest.mark.parametrize("verb", ["drain", "reboot", "replace", "reset"])
def test_what_a_person_wants_of_a_node_waits_until_its_job_has_saved(verb: str, cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall)
    ordered = hall.sim.scheduler.now
    hall.order(verb, node)
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), 2 * HOUR)
    assert hall.true_job(job).attempts[2].resumed_from == asked_step(hall, job) > 700
    (asked,), (saved,) = moments(hall, "asked"), moments(hall, "saved")
    assert ordered < asked < ordered + 30
    assert saved < stopped_at(hall) < saved + 30
    row = hall.job(job)
    assert (row.restarts, len(row.interruptions)) == ((), 1)
    assert row.interruptions[0].cause == f"operator.{verb} on {node}"
    assert row.interruptions[0].stages["detected"] >= hall.world.ground.stamp(saved), "until then nothing was lost"
    assert hall.happened("violation") == []


def test_explain_says_what_was_asked_why_and_until_when() -> None:
    hall = Hall(nodes=4)
    job, node = trains(hall, save_takes=60.0)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.run(10.0)
    told = msgspec.json.decode(msgspec.json.encode(explain(hall.sim.store, job)))
    step = hall.job(job).step
    asked = f"asked to save before {node} is drained (attempt 1, step {step})"
    assert told["state"] == "RUNNING"
    assert (told["because"], told["waits_for"]["because"], told["doing"]) == (asked, asked, asked)
    assert told["waits_for"]["until"] is not None
    assert (told["waits_for"]["then"], told["waits_for"]["changed_by"]) == ("it is stopped", [f"{job} has saved"])
    story = [line["text"] for line in told["story"]]
    assert f"asks the job to save: before {node} is drained (attempt 1, step {step})" in story
    (incident,) = hall.incidents(node)
    assert asked in str(explain(hall.sim.store, incident.id).waits_for)
    hall.until(lambda: hall.job(job).state is not JobState.RUNNING, MINUTE)
    assert f"has saved step {hall.job(job).saved}, as it was asked to" in str(explain(hall.sim.store, job))


@warm_and_cold
def test_a_person_who_stops_a_job_lets_it_save(cold: bool) -> None:
    hall = Hall(cold=cold)
    job, _ = trains(hall)
    hall.order("stop", job)
    row = hall.ends(job, JobState.STOPPED)
    assert row.saved == hall.true_job(job).checkpoint == asked_step(hall, job)
    assert row.interruptions == ()


@pytest.mark.parametrize("what", ["stop", "drain"])
def test_now_means_now_and_may_be_said_later(what: str) -> None:
    hall = Hall(nodes=4)
    job, node = trains(hall, save_takes=None)
    hall.order(what, job if what == "stop" else node, now=True)
    hall.until(lambda: bool(hall.happened("halt")), MINUTE)
    assert hall.happened("ask") == []

    hall = Hall(nodes=4)
    job, node = trains(hall, save_takes=None)
    target = job if what == "stop" else node
    hall.order(what, target)
    hall.run(2 * MINUTE)
    assert hall.trains(job)
    hall.order(what, target, now=True)
    hall.until(lambda: bool(hall.happened("halt")), MINUTE)


@warm_and_cold
def test_a_save_that_never_ends_is_waited_for_until_the_deadline_and_no_longer(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall, save_takes=None)
    hall.order("drain", node)
    ordered = hall.sim.scheduler.now
    hall.until(lambda: bool(hall.happened("halt")), HOUR)
    assert 300 <= hall.sim.scheduler.now - ordered < 330
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)
    assert f"STOPPING: operator.drain on {node}; it has not saved within 0:05:00" in hall.why()
    hall.run(HOUR)
    assert hall.incidents(node)[0].phase is Phase.HELD  # as a drain ends


@pytest.mark.parametrize("how", ["deaf", "off", "cannot"])
def test_who_does_not_listen_or_cannot_be_asked_is_not_waited_for(how: str) -> None:
    policy = policy_of(save_within=policy_of().resume.save_within * 0) if how == "off" else None
    lacking = (Capability.ASK_TO_SAVE,) if how == "cannot" else ()
    hall = Hall(nodes=4, policy=policy, cluster=cluster_without(*lacking))
    job, node = trains(hall, listens=how != "deaf")
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("halt")), MINUTE)
    assert hall.happened("ask") == []
    assert hall.true_job(job).attempts[1].asked == {}


@warm_and_cold
def test_nothing_is_delayed_where_the_hardware_fails_under_the_job(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall, save_takes=None)
    hall.world.strike(node, SimDefect(code="xid.79", kills_ranks=False))
    struck = hall.sim.scheduler.now
    hall.until(lambda: bool(hall.happened("halt")), HOUR)
    assert hall.sim.scheduler.now - struck < 60
    assert hall.happened("ask") == []
    assert hall.job(job).restarts == ()


@warm_and_cold
@pytest.mark.parametrize("where", ["the node itself", "another node of the job"])
def test_a_fault_during_the_wait_ends_it_at_once(where: str, cold: bool) -> None:
    hall = Hall(nodes=20, cold=cold)  # so many that two may be out
    job, node = trains(hall, save_takes=None)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.run(30.0)
    sick = node if where == "the node itself" else max(hall.job(job).claim)
    hall.world.strike(sick, SimDefect(code="xid.79", kills_ranks=False))
    struck = hall.sim.scheduler.now
    hall.until(lambda: bool(hall.happened("halt")), HOUR)
    assert hall.sim.scheduler.now - struck < 60


@warm_and_cold
def test_an_agent_that_falls_silent_during_the_wait_is_nothing_that_fails_under_the_job(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall, save_takes=200.0)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.world.lose_agent(node)
    hall.run(150.0)
    assert hall.trains(job), "its agent is silent, its node is ready"
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)


def test_a_node_that_is_lost_during_the_wait_ends_it() -> None:
    hall = Hall(nodes=4)
    job, node = trains(hall, save_takes=None)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.world.lose_node(max(hall.job(job).claim))
    hall.until(lambda: hall.job(job).state is not JobState.RUNNING, 4 * MINUTE)


def test_a_job_that_shares_a_sick_node_may_save_before_the_node_is_repaired() -> None:
    """The job that holds what is sick is stopped at once; its neighbour leaves when it is time, and saves first."""
    policy = policy_of()
    policy = replace(policy, pace=replace(policy.pace, bystanders="stop"))
    hall = Hall(nodes=1, linked=False, policy=policy)
    jobs = [
        hall.training(
            name, steps=FAR, nodes=1, gpus_per_node=4, on=(hall.nodes[0],), does={**LISTENS, "save_takes": 40.0}
        )
        for name in ("first", "second")
    ]
    hall.until(lambda: all(hall.job(job).listens for job in jobs), HOUR)
    first, second = jobs
    hall.run(200.0)
    hall.world.strike(hall.nodes[0], SimDefect(code="xid.79", device=0, kills_ranks=False))
    hall.until(lambda: len(hall.happened("halt")) == 2, HOUR)
    (one, other) = hall.happened("halt")
    assert (one.subject, other.subject) == (f"{first}#1", f"{second}#1")
    assert [event.subject for event in hall.happened("asked")] == [f"{second}#1"]
    assert other.at - one.at > 30
    assert hall.true_job(second).checkpoint == hall.true_job(second).attempts[1].saved > 0


@warm_and_cold
def test_a_job_that_ends_by_itself_during_the_wait_has_just_ended(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall, save_takes=None)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.world.workload.crash(job, tail="Killed")
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)
    row = hall.job(job)
    assert len(row.restarts) == 1, "it failed, and nobody but itself is to blame"
    assert row.interruptions[0].incidents == ()

    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall, save_takes=None)
    hall.order("stop", job)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    attempt = hall.true_job(job).attempts[1]
    hall.world.workload._complete(hall.true_job(job), attempt)
    hall.ends(job, JobState.COMPLETE)


@warm_and_cold
def test_whoever_changes_his_mind_during_the_wait_has_interrupted_nobody(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall, save_takes=None)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.run(10.0)
    hall.order("uncordon", node)
    hall.run(HOUR)
    row = hall.job(job)
    assert (row.state, row.attempt, row.calls, row.save_by, row.interruptions) == (JobState.RUNNING, 1, (), None, ())
    assert hall.trains(job)
    hall.order("drain", node)  # he changes it again: it is asked again
    hall.until(lambda: len(hall.happened("asked")) == 2, 5 * MINUTE)


@warm_and_cold
def test_a_pause_withholds_the_ask_like_the_stop_and_its_time_begins_after_it(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall)
    hall.sim.mischief.outage(f"checks:{hall.sim.plan.cluster.id}", hall.sim.scheduler.now, hall.sim.scheduler.now + 40)
    hall.order("drain", node)
    hall.run(20.0)
    assert hall.job(job).save_by is not None
    hall.order("pause", "")
    hall.run(HOUR)
    assert (hall.happened("asked"), hall.happened("halt")) == ([], [])
    assert "pause" in hall.because(job)
    hall.order("unpause", "")
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), 2 * HOUR)
    assert hall.true_job(job).attempts[2].resumed_from == asked_step(hall, job) > 3600


@warm_and_cold
@pytest.mark.parametrize("fate", ["lost_before", "lost_after", "doubled", "late"])
def test_an_ask_that_is_lost_or_doubled_on_its_way_is_one_save(fate: str, cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall)
    hall.order("drain", node)
    hall.until(lambda: any(told.act == "quarantine" for told in hall.world.chronicle.told), MINUTE)
    if not any(told.act == "ask_to_save" for told in hall.world.chronicle.told):
        hall.sim.mischief.force_next(fate)
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), 2 * HOUR)
    assert len(hall.happened("saved")) == 1
    assert hall.true_job(job).attempts[2].resumed_from == asked_step(hall, job)


def test_an_agent_that_is_away_gets_the_ask_when_it_is_back_or_the_deadline_comes() -> None:
    hall = Hall(nodes=4)
    job, node = trains(hall)
    speaks = next(iter(hall.true_job(job).attempts[1].nodes))
    hall.world.agents.close_ear()
    hall.order("drain", node)
    hall.run(2 * MINUTE)
    hall.world.agents.open_ear()
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), 2 * HOUR)
    assert speaks
    assert hall.true_job(job).attempts[2].resumed_from == asked_step(hall, job)


def test_the_next_attempt_is_asked_anew() -> None:
    hall = Hall(nodes=4)
    job, node = trains(hall)
    hall.order("drain", node)
    hall.until(lambda: hall.job(job).attempt == 2 and hall.job(job).listens, 2 * HOUR)
    hall.run(500.0)
    hall.order("stop", job)
    hall.ends(job, JobState.STOPPED)
    (second,) = hall.true_job(job).attempts[2].asked.values()
    assert hall.true_job(job).checkpoint == second > asked_step(hall, job)


def true_step(hall: Hall, job: JobId) -> int:
    trained = hall.true_job(job)
    assert trained.last is not None
    return trained.step(trained.last, hall.sim.scheduler.now)


@warm_and_cold
def test_a_pause_that_comes_when_it_has_saved_costs_no_step_either(cold: bool) -> None:
    """It trains on for as long as its stop is withheld, and saves once more before it is stopped after all."""
    hall = Hall(nodes=4, cold=cold)
    job, node = trains(hall)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.order("pause", "")
    hall.run(HOUR)
    says(hall, job, saved=true_step(hall, job))  # it goes on saving now and then, and that moves nothing
    hall.run(MINUTE)
    assert hall.happened("halt") == []
    assert "pause" in hall.because(job)
    assert len([line for line in hall.why().splitlines() if "STOPPING" in line]) == 1
    hall.order("unpause", "")
    step = true_step(hall, job)
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), 2 * HOUR)
    assert hall.true_job(job).attempts[2].resumed_from >= step > 3600
    assert (len(hall.happened("asked")), len(hall.job(job).interruptions)) == (2, 1)


@pytest.mark.parametrize("why", ["it saves for longer", "a pause"])
def test_a_drain_that_waits_for_a_save_does_not_run_out_of_its_own_time(why: str) -> None:
    longer = policy_of(save_within=policy_of().resume.save_within * 12)
    hall = Hall(nodes=4, policy=longer if why == "it saves for longer" else None)
    job, node = trains(hall, save_takes=1900.0 if why == "it saves for longer" else 100.0)
    hall.order("reboot", node)
    hall.until(lambda: any(i.phase is Phase.DRAINING for i in hall.incidents(node)), MINUTE)
    if why == "a pause":
        hall.order("pause", "")
        hall.run(2 * HOUR)
        hall.order("unpause", "")
    hall.until(lambda: bool(hall.happened("reboot", node)), HOUR)
    assert Phase.HELD not in {stage.phase for stage in hall.incidents(node)[0].stages}
    assert hall.true_job(job).checkpoint > 0


def test_who_hangs_while_his_save_is_awaited_is_asked_for_his_stacks_and_stopped_for_that() -> None:
    hall = Hall(nodes=4)
    job, node = trains(hall, save_takes=None)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    row = hall.job(job)
    seat = hall.world.seat(max(row.claim))
    hall.world.agents.say(seat, Hung(job=job, attempt=row.attempt, because="no step", node=seat.id), "hung:x")
    hall.until(lambda: bool(hall.happened("halt")), MINUTE)
    assert len(hall.happened("look")) == 1
    assert "STOPPING: hung: no step" in hall.why()


def test_a_hung_job_is_stopped_without_its_stacks_where_nobody_can_be_asked_for_them() -> None:
    hall = Hall(nodes=4)
    job, _ = trains(hall)
    row = hall.job(job)
    seat = hall.world.seat(max(row.claim))
    now = hall.sim.scheduler.now
    hall.sim.mischief.outage(f"checks:{hall.sim.plan.cluster.id}", now, now + 12 * HOUR)
    hall.world.agents.say(seat, Hung(job=job, attempt=row.attempt, because="no step", node=seat.id), "hung:x")
    hall.until(lambda: bool(hall.happened("halt")), HOUR)
    assert hall.sim.scheduler.now - now < 3 * MINUTE


def says(hall: Hall, job: JobId, **what: Any) -> None:
    """Its rank 0 says so of its checkpoints."""
    row = hall.job(job)
    seat = hall.world.seat(min(row.claim))
    news = Checkpointed(job=job, attempt=row.attempt, node=seat.id, listens=True, **what)
    hall.world.agents.say(seat, news, f"said:{hall.world.ground.number()}")


def test_what_is_saved_after_the_ask_is_an_answer_whoever_of_its_ranks_heard_it_first() -> None:
    """Another rank heard it earlier, and all have saved together before it reached rank 0, which has nothing to add."""
    hall = Hall(nodes=4)
    job, node = trains(hall, save_takes=None)
    step = hall.job(job).step
    assert step is not None
    says(hall, job, saved=step + 5)
    hall.run(10.0)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    says(hall, job, saved=step)  # was under way by then
    hall.run(MINUTE)
    assert hall.trains(job)
    says(hall, job, saved=step + 10)
    hall.until(lambda: bool(hall.happened("halt")), MINUTE)
    assert f"STOPPING: operator.drain on {node}; step {step + 10} is saved" in hall.why()


def test_the_last_words_of_an_attempt_do_not_make_the_next_one_listen() -> None:
    hall = Hall(nodes=2)
    job, node = trains(hall)
    before = hall.job(job)
    hall.order("drain", node)
    hall.reaches(job, JobState.QUEUED, most=HOUR)
    seat = hall.world.seat(max(before.claim))
    late = Checkpointed(job=job, attempt=1, node=seat.id, listens=True, busy="saving attempt-1/step-9", done=1, of=9)
    hall.world.agents.say(seat, late, "late")
    hall.run(MINUTE)
    hall.true_job(job).programme = replace(hall.true_job(job).programme, listens=False)
    hall.order("uncordon", node)
    hall.until(lambda: hall.job(job).attempt == 2 and hall.trains(job), HOUR)
    assert (hall.job(job).listens, hall.job(job).work) == (False, None)


@warm_and_cold
def test_who_is_restarted_by_his_own_controller_while_asked_has_ended_by_himself(cold: bool) -> None:
    hall = Hall(nodes=6, cold=cold)
    job = hall.submitted_elsewhere(steps=FAR, does={**LISTENS, "save_takes": None}, native_delay=0.1)
    hall.until(lambda: hall.job(job).listens, HOUR)
    node = min(hall.job(job).claim)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.true_job(job).programme = replace(hall.true_job(job).programme, listens=False)
    hall.world.workload.crash(job, tail="Killed")
    hall.until(lambda: hall.job(job).attempt == 2, HOUR)
    row = hall.job(job)
    assert len(row.restarts) == 1, "it failed, and nobody but itself is to blame"
    assert (row.calls, row.save_by, row.listens) == ((), None, False)


def test_a_fault_beneath_what_a_person_wants_ends_the_wait_too() -> None:
    """He wants more than the fault asks for, so his wish leads the incident."""
    hall = Hall(nodes=20)
    job, node = trains(hall, save_takes=None)
    hall.order("replace", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.run(30.0)
    hall.world.strike(node, SimDefect(code="xid.79", kills_ranks=False))
    struck = hall.sim.scheduler.now
    hall.until(lambda: bool(hall.happened("halt")), HOUR)
    assert hall.sim.scheduler.now - struck < 60
    assert hall.incidents(node)[0].fault.code == "operator.replace"
    assert hall.job(job).restarts == ()


def test_a_second_stop_takes_the_now_of_the_first_not_back() -> None:
    hall = Hall()
    job, _ = trains(hall, save_takes=None)
    hall.order("stop", job, now=True)
    hall.order("stop", job)
    hall.until(lambda: bool(hall.happened("halt")), MINUTE)
    assert hall.happened("ask") == []


@warm_and_cold
def test_a_node_that_restarts_by_itself_during_the_wait_ends_it(cold: bool) -> None:
    hall = Hall(nodes=4, cold=cold, policy=policy_of(save_within=policy_of().resume.save_within * 12))
    job, node = trains(hall, save_takes=None, on_death=OnDeath.HANG, give_up=None, hang_notice=DAY)
    hall.order("drain", node)
    hall.until(lambda: bool(hall.happened("asked")), MINUTE)
    hall.world.operator_reboots(node)
    began = hall.sim.scheduler.now
    hall.until(lambda: hall.job(job).state is not JobState.RUNNING, HOUR)
    assert hall.sim.scheduler.now - began < 10 * MINUTE, "when it is up again; the save has an hour"
    assert len(hall.job(job).interruptions) == 1


@warm_and_cold
def test_two_who_want_it_off_ask_once_and_the_second_gives_it_no_more_time(cold: bool) -> None:
    hall = Hall(nodes=40, cold=cold)
    job, node = trains(hall, save_takes=None)
    ordered = hall.sim.scheduler.now
    hall.order("drain", node)
    hall.run(200.0)
    hall.order("reboot", max(hall.job(job).claim))
    hall.until(lambda: len(hall.job(job).calls) == 2, MINUTE)
    hall.until(lambda: bool(hall.happened("halt")), HOUR)
    assert 300 <= hall.sim.scheduler.now - ordered < 330
    assert (len(hall.happened("asked")), len(hall.job(job).interruptions)) == (1, 1)


def test_what_has_not_begun_is_not_asked_it_begins_elsewhere() -> None:
    hall = Hall(nodes=4)
    job = hall.submit(steps=FAR, does=LISTENS)
    hall.reaches(job, JobState.GATING)
    hall.order("drain", min(hall.job(job).claim))
    hall.until(lambda: hall.trains(job), HOUR)
    assert (hall.happened("ask"), hall.job(job).restarts, hall.job(job).interruptions) == ([], (), ())


@pytest.mark.parametrize("saved", [-5, 0, 2**63 - 1])
def test_an_absurd_step_that_is_said_to_be_saved_is_shown_and_ends_nothing(saved: int) -> None:
    hall = Hall(nodes=4)
    job, _ = trains(hall)
    says(hall, job, saved=saved, busy="saving attempt-1/step-9", done=2**63 - 2, of=2**63 - 1)
    hall.run(10.0)
    told: Any = explain(hall.sim.store, job)
    assert (told.saved, told.state) == (saved, "RUNNING")
    assert hall.trains(job)
