"""Before a job that listens is stopped for something that can wait, it is asked to save and given its time."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, policy_of, warm_and_cold

from sickbay.faces.explain import explain
from sickbay.model.facts import Checkpointed, Hung
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import OnDeath

LISTENS = {"listens": True, "save_takes": 20.0}
FAR = 1_000_000


def trains(w: Ward, **does: Any) -> tuple[JobId, NodeId]:
    """A job that listens, a while after its first step, and one of its nodes."""
    job = w.training(steps=FAR, does={**LISTENS, "checkpoint_every": 100_000, **does})
    w.until(lambda: w.job(job).listens or not {**LISTENS, **does}["listens"], HOUR)
    w.run(777.0)
    return job, min(w.job(job).claim)


def moments(w: Ward, what: str) -> list[float]:
    return [event.at for event in w.events(what)]


def stopped_at(w: Ward) -> float:
    return next(event.at for event in w.events("halt") if event.detail == "stopped by us")


def asked_step(w: Ward, job: JobId) -> int:
    (step,) = w.true_job(job).attempts[1].asked.values()
    return step


@warm_and_cold
@pytest.mark.parametrize("verb", ["drain", "reboot", "replace", "reset"])
def test_what_a_person_wants_of_a_node_waits_until_its_job_has_saved(verb: str, cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w)
    ordered = w.sim.scheduler.now
    w.order(verb, node)
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), 2 * HOUR)
    assert w.true_job(job).attempts[2].resumed_from == asked_step(w, job) > 700
    (asked,), (saved,) = moments(w, "asked"), moments(w, "saved")
    assert ordered < asked < ordered + 30
    assert saved < stopped_at(w) < saved + 30
    row = w.job(job)
    assert (row.restarts, len(row.interruptions)) == ((), 1)
    assert row.interruptions[0].cause == f"operator.{verb} on {node}"
    assert row.interruptions[0].stages["detected"] >= w.world.ground.stamp(saved), "until then nothing was lost"
    assert w.events("violation") == []


def test_a_wish_is_nothing_that_hardware_shows_and_a_step_of_the_attempt_before_is_none_of_this_one() -> None:
    w = Ward(nodes=4)
    job, node = trains(w)
    w.order("drain", node)
    w.until(lambda: w.job(job).attempt == 2 and w.job(job).state is JobState.RUNNING, 2 * HOUR)
    told = msgspec.json.decode(msgspec.json.encode(explain(w.sim.store, job)))
    assert f"asks {job} to stop: {node} is drained" in [line["text"] for line in told["story"]]
    assert f"attempt 2; no step yet after {w.job(job).step}" in told["now"]
    w.until(lambda: w.job(job).stepped_in == 2, HOUR)
    told = msgspec.json.decode(msgspec.json.encode(explain(w.sim.store, job)))
    assert f"it trains at step {w.job(job).step} on " in told["now"]


def test_explain_says_what_was_asked_why_and_until_when() -> None:
    w = Ward(nodes=4)
    job, node = trains(w, save_takes=60.0)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.run(10.0)
    told = msgspec.json.decode(msgspec.json.encode(explain(w.sim.store, job)))
    step = w.job(job).step
    asked = f"asked to save before {node} is drained (attempt 1, step {step})"
    assert told["state"] == "RUNNING"
    assert (told["because"], told["waits_for"]["because"], told["doing"]) == (asked, asked, asked)
    assert told["waits_for"]["until"] is not None
    assert (told["waits_for"]["then"], told["waits_for"]["changed_by"]) == ("it is stopped", [f"{job} has saved"])
    story = [line["text"] for line in told["story"]]
    assert f"asks the job to save: before {node} is drained (attempt 1, step {step})" in story
    (incident,) = w.incidents(node)
    assert asked in str(explain(w.sim.store, incident.id).waits_for)
    w.until(lambda: w.job(job).state is not JobState.RUNNING, MINUTE)
    assert f"has saved step {w.job(job).saved}, as it was asked to" in str(explain(w.sim.store, job))


@warm_and_cold
def test_a_person_who_stops_a_job_lets_it_save(cold: bool) -> None:
    w = Ward(cold=cold)
    job, _ = trains(w)
    w.order("stop", job)
    row = w.ends(job, JobState.STOPPED)
    assert row.saved == w.true_job(job).checkpoint == asked_step(w, job)
    assert row.interruptions == ()


@pytest.mark.parametrize("what", ["stop", "drain"])
def test_now_means_now_and_may_be_said_later(what: str) -> None:
    w = Ward(nodes=4)
    job, node = trains(w, save_takes=None)
    w.order(what, job if what == "stop" else node, now=True)
    w.until(lambda: bool(w.events("halt")), MINUTE)
    assert w.events("ask") == []

    w = Ward(nodes=4)
    job, node = trains(w, save_takes=None)
    target = job if what == "stop" else node
    w.order(what, target)
    w.run(2 * MINUTE)
    assert w.trains(job)
    w.order(what, target, now=True)
    w.until(lambda: bool(w.events("halt")), MINUTE)


@warm_and_cold
def test_a_save_that_never_ends_is_waited_for_until_the_deadline_and_no_longer(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w, save_takes=None)
    w.order("drain", node)
    ordered = w.sim.scheduler.now
    w.until(lambda: bool(w.events("halt")), HOUR)
    assert 300 <= w.sim.scheduler.now - ordered < 330
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    assert f"STOPPING: operator.drain on {node}; it has not saved within 0:05:00" in w.why()
    w.run(HOUR)
    assert w.incidents(node)[0].phase is Phase.HELD  # as a drain ends


@pytest.mark.parametrize("how", ["deaf", "off", "cannot"])
def test_who_does_not_listen_or_cannot_be_asked_is_not_waited_for(how: str) -> None:
    policy = policy_of(save_within=policy_of().resume.save_within * 0) if how == "off" else None
    lacking = (Capability.ASK_TO_SAVE,) if how == "cannot" else ()
    w = Ward(nodes=4, policy=policy, cluster=cluster_without(*lacking))
    job, node = trains(w, listens=how != "deaf")
    w.order("drain", node)
    w.until(lambda: bool(w.events("halt")), MINUTE)
    assert w.events("ask") == []
    assert w.true_job(job).attempts[1].asked == {}


@warm_and_cold
def test_nothing_is_delayed_where_the_hardware_fails_under_the_job(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w, save_takes=None)
    w.world.strike(node, SimDefect(code="xid.79", kills_ranks=False))
    struck = w.sim.scheduler.now
    w.until(lambda: bool(w.events("halt")), HOUR)
    assert w.sim.scheduler.now - struck < 60
    assert w.events("ask") == []
    assert w.job(job).restarts == ()


@warm_and_cold
@pytest.mark.parametrize("where", ["the node itself", "another node of the job"])
def test_a_fault_during_the_wait_ends_it_at_once(where: str, cold: bool) -> None:
    w = Ward(nodes=20, cold=cold)  # so many that two may be out
    job, node = trains(w, save_takes=None)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.run(30.0)
    sick = node if where == "the node itself" else max(w.job(job).claim)
    w.world.strike(sick, SimDefect(code="xid.79", kills_ranks=False))
    struck = w.sim.scheduler.now
    w.until(lambda: bool(w.events("halt")), HOUR)
    assert w.sim.scheduler.now - struck < 60


@warm_and_cold
def test_an_agent_that_falls_silent_during_the_wait_is_nothing_that_fails_under_the_job(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w, save_takes=200.0)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.world.lose_agent(node)
    w.run(150.0)
    assert w.trains(job), "its agent is silent, its node is ready"
    w.until(lambda: w.job(job).attempt == 2, HOUR)


def test_a_node_that_is_lost_during_the_wait_ends_it() -> None:
    w = Ward(nodes=4)
    job, node = trains(w, save_takes=None)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.world.lose_node(max(w.job(job).claim))
    w.until(lambda: w.job(job).state is not JobState.RUNNING, 4 * MINUTE)


def test_a_job_that_shares_a_sick_node_may_save_before_the_node_is_repaired() -> None:
    """The job that holds what is sick is stopped at once; its neighbour leaves when it is time, and saves first."""
    policy = policy_of()
    policy = replace(policy, pace=replace(policy.pace, bystanders="stop"))
    w = Ward(nodes=1, linked=False, policy=policy)
    jobs = [
        w.training(name, steps=FAR, nodes=1, gpus_per_node=4, on=(w.nodes[0],), does={**LISTENS, "save_takes": 40.0})
        for name in ("first", "second")
    ]
    w.until(lambda: all(w.job(job).listens for job in jobs), HOUR)
    first, second = jobs
    w.run(200.0)
    w.world.strike(w.nodes[0], SimDefect(code="xid.79", device=0, kills_ranks=False))
    w.until(lambda: len(w.events("halt")) == 2, HOUR)
    (one, other) = w.events("halt")
    assert (one.subject, other.subject) == (f"{first}#1", f"{second}#1")
    assert [event.subject for event in w.events("asked")] == [f"{second}#1"]
    assert other.at - one.at > 30
    assert w.true_job(second).checkpoint == w.true_job(second).attempts[1].saved > 0


@warm_and_cold
def test_a_job_that_ends_by_itself_during_the_wait_has_just_ended(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w, save_takes=None)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.world.workload.crash(job, tail="Killed")
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    row = w.job(job)
    assert len(row.restarts) == 1, "it failed, and nobody but itself is to blame"
    assert row.interruptions[0].incidents == ()

    w = Ward(nodes=4, cold=cold)
    job, node = trains(w, save_takes=None)
    w.order("stop", job)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    attempt = w.true_job(job).attempts[1]
    w.world.workload._complete(w.true_job(job), attempt)
    w.ends(job, JobState.COMPLETE)


@warm_and_cold
def test_whoever_changes_his_mind_during_the_wait_has_interrupted_nobody(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w, save_takes=None)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.run(10.0)
    w.order("uncordon", node)
    w.run(HOUR)
    row = w.job(job)
    assert (row.state, row.attempt, row.calls, row.save_by, row.interruptions) == (JobState.RUNNING, 1, (), None, ())
    assert w.trains(job)
    w.order("drain", node)  # he changes it again: it is asked again
    w.until(lambda: len(w.events("asked")) == 2, 5 * MINUTE)


@warm_and_cold
def test_a_pause_withholds_the_ask_like_the_stop_and_its_time_begins_after_it(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w)
    w.sim.mischief.outage(f"checks:{w.sim.plan.cluster.id}", w.sim.scheduler.now, w.sim.scheduler.now + 40)
    w.order("drain", node)
    w.run(20.0)
    assert w.job(job).save_by is not None
    w.order("pause", "")
    w.run(HOUR)
    assert (w.events("asked"), w.events("halt")) == ([], [])
    assert "pause" in w.because(job)
    w.order("unpause", "")
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), 2 * HOUR)
    assert w.true_job(job).attempts[2].resumed_from == asked_step(w, job) > 3600


@warm_and_cold
@pytest.mark.parametrize("fate", ["lost_before", "lost_after", "doubled", "late"])
def test_an_ask_that_is_lost_or_doubled_on_its_way_is_one_save(fate: str, cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w)
    w.order("drain", node)
    w.until(lambda: any(told.act == "quarantine" for told in w.world.chronicle.told), MINUTE)
    if not any(told.act == "ask_to_save" for told in w.world.chronicle.told):
        w.sim.mischief.force_next(fate)
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), 2 * HOUR)
    assert len(w.events("saved")) == 1
    assert w.true_job(job).attempts[2].resumed_from == asked_step(w, job)


def test_an_agent_that_is_away_gets_the_ask_when_it_is_back_or_the_deadline_comes() -> None:
    w = Ward(nodes=4)
    job, node = trains(w)
    speaks = next(iter(w.true_job(job).attempts[1].nodes))
    w.world.agents.close_ear()
    w.order("drain", node)
    w.run(2 * MINUTE)
    w.world.agents.open_ear()
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), 2 * HOUR)
    assert speaks
    assert w.true_job(job).attempts[2].resumed_from == asked_step(w, job)


def test_the_next_attempt_is_asked_anew() -> None:
    w = Ward(nodes=4)
    job, node = trains(w)
    w.order("drain", node)
    w.until(lambda: w.job(job).attempt == 2 and w.job(job).listens, 2 * HOUR)
    w.run(500.0)
    w.order("stop", job)
    w.ends(job, JobState.STOPPED)
    (second,) = w.true_job(job).attempts[2].asked.values()
    assert w.true_job(job).checkpoint == second > asked_step(w, job)


def true_step(w: Ward, job: JobId) -> int:
    trained = w.true_job(job)
    assert trained.last is not None
    return trained.step(trained.last, w.sim.scheduler.now)


@warm_and_cold
def test_a_pause_that_comes_when_it_has_saved_costs_no_step_either(cold: bool) -> None:
    """It trains on for as long as its stop is withheld, and saves once more before it is stopped after all."""
    w = Ward(nodes=4, cold=cold)
    job, node = trains(w)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.order("pause", "")
    w.run(HOUR)
    says(w, job, saved=true_step(w, job))  # it goes on saving now and then, and that moves nothing
    w.run(MINUTE)
    assert w.events("halt") == []
    assert "pause" in w.because(job)
    assert len([line for line in w.why().splitlines() if "STOPPING" in line]) == 1
    w.order("unpause", "")
    step = true_step(w, job)
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), 2 * HOUR)
    assert w.true_job(job).attempts[2].resumed_from >= step > 3600
    assert (len(w.events("asked")), len(w.job(job).interruptions)) == (2, 1)


@pytest.mark.parametrize("why", ["it saves for longer", "a pause"])
def test_a_drain_that_waits_for_a_save_does_not_run_out_of_its_own_time(why: str) -> None:
    longer = policy_of(save_within=policy_of().resume.save_within * 12)
    w = Ward(nodes=4, policy=longer if why == "it saves for longer" else None)
    job, node = trains(w, save_takes=1900.0 if why == "it saves for longer" else 100.0)
    w.order("reboot", node)
    w.until(lambda: any(i.phase is Phase.DRAINING for i in w.incidents(node)), MINUTE)
    if why == "a pause":
        w.order("pause", "")
        w.run(2 * HOUR)
        w.order("unpause", "")
    w.until(lambda: bool(w.events("reboot", node)), HOUR)
    assert Phase.HELD not in {stage.phase for stage in w.incidents(node)[0].stages}
    assert w.true_job(job).checkpoint > 0


def test_who_hangs_while_his_save_is_awaited_is_asked_for_his_stacks_and_stopped_for_that() -> None:
    w = Ward(nodes=4)
    job, node = trains(w, save_takes=None)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    row = w.job(job)
    seat = w.world.seat(max(row.claim))
    w.world.agents.say(seat, Hung(job=job, attempt=row.attempt, because="no step", node=seat.id), "hung:x")
    w.until(lambda: bool(w.events("halt")), MINUTE)
    assert len(w.events("look")) == 1
    assert "STOPPING: hung: no step" in w.why()


def test_a_hung_job_is_stopped_without_its_stacks_where_nobody_can_be_asked_for_them() -> None:
    w = Ward(nodes=4)
    job, _ = trains(w)
    row = w.job(job)
    seat = w.world.seat(max(row.claim))
    now = w.sim.scheduler.now
    w.sim.mischief.outage(f"checks:{w.sim.plan.cluster.id}", now, now + 12 * HOUR)
    w.world.agents.say(seat, Hung(job=job, attempt=row.attempt, because="no step", node=seat.id), "hung:x")
    w.until(lambda: bool(w.events("halt")), HOUR)
    assert w.sim.scheduler.now - now < 3 * MINUTE


def says(w: Ward, job: JobId, **what: Any) -> None:
    """Its rank 0 says so of its checkpoints."""
    row = w.job(job)
    seat = w.world.seat(min(row.claim))
    news = Checkpointed(job=job, attempt=row.attempt, node=seat.id, listens=True, **what)
    w.world.agents.say(seat, news, f"said:{w.world.ground.number()}")


def test_what_is_saved_after_the_ask_is_an_answer_whoever_of_its_ranks_heard_it_first() -> None:
    """Another rank heard it earlier, and all have saved together before it reached rank 0, which has nothing to add."""
    w = Ward(nodes=4)
    job, node = trains(w, save_takes=None)
    step = w.job(job).step
    assert step is not None
    says(w, job, saved=step + 5)
    w.run(10.0)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    says(w, job, saved=step)  # was under way by then
    w.run(MINUTE)
    assert w.trains(job)
    says(w, job, saved=step + 10)
    w.until(lambda: bool(w.events("halt")), MINUTE)
    assert f"STOPPING: operator.drain on {node}; step {step + 10} is saved" in w.why()


def test_the_last_words_of_an_attempt_do_not_make_the_next_one_listen() -> None:
    w = Ward(nodes=2)
    job, node = trains(w)
    before = w.job(job)
    w.order("drain", node)
    w.job_reaches(job, JobState.QUEUED, most=HOUR)
    seat = w.world.seat(max(before.claim))
    late = Checkpointed(job=job, attempt=1, node=seat.id, listens=True, busy="saving attempt-1/step-9", done=1, of=9)
    w.world.agents.say(seat, late, "late")
    w.run(MINUTE)
    w.true_job(job).programme = replace(w.true_job(job).programme, listens=False)
    w.order("uncordon", node)
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), HOUR)
    assert (w.job(job).listens, w.job(job).work) == (False, None)


@warm_and_cold
def test_who_is_restarted_by_his_own_controller_while_asked_has_ended_by_himself(cold: bool) -> None:
    w = Ward(nodes=6, cold=cold)
    job = w.submitted_elsewhere(steps=FAR, does={**LISTENS, "save_takes": None}, native_delay=0.1)
    w.until(lambda: w.job(job).listens, HOUR)
    node = min(w.job(job).claim)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.true_job(job).programme = replace(w.true_job(job).programme, listens=False)
    w.world.workload.crash(job, tail="Killed")
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    row = w.job(job)
    assert len(row.restarts) == 1, "it failed, and nobody but itself is to blame"
    assert (row.calls, row.save_by, row.listens) == ((), None, False)


def test_a_fault_beneath_what_a_person_wants_ends_the_wait_too() -> None:
    """He wants more than the fault asks for, so his wish leads the incident."""
    w = Ward(nodes=20)
    job, node = trains(w, save_takes=None)
    w.order("replace", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.run(30.0)
    w.world.strike(node, SimDefect(code="xid.79", kills_ranks=False))
    struck = w.sim.scheduler.now
    w.until(lambda: bool(w.events("halt")), HOUR)
    assert w.sim.scheduler.now - struck < 60
    assert w.incidents(node)[0].fault.code == "operator.replace"
    assert w.job(job).restarts == ()


def test_a_second_stop_takes_the_now_of_the_first_not_back() -> None:
    w = Ward()
    job, _ = trains(w, save_takes=None)
    w.order("stop", job, now=True)
    w.order("stop", job)
    w.until(lambda: bool(w.events("halt")), MINUTE)
    assert w.events("ask") == []


@warm_and_cold
def test_a_node_that_restarts_by_itself_during_the_wait_ends_it(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold, policy=policy_of(save_within=policy_of().resume.save_within * 12))
    job, node = trains(w, save_takes=None, on_death=OnDeath.HANG, give_up=None, hang_notice=DAY)
    w.order("drain", node)
    w.until(lambda: bool(w.events("asked")), MINUTE)
    w.world.operator_reboots(node)
    began = w.sim.scheduler.now
    w.until(lambda: w.job(job).state is not JobState.RUNNING, HOUR)
    assert w.sim.scheduler.now - began < 10 * MINUTE, "when it is up again; the save has an hour"
    assert len(w.job(job).interruptions) == 1


@warm_and_cold
def test_two_who_want_it_off_ask_once_and_the_second_gives_it_no_more_time(cold: bool) -> None:
    w = Ward(nodes=40, cold=cold)
    job, node = trains(w, save_takes=None)
    ordered = w.sim.scheduler.now
    w.order("drain", node)
    w.run(200.0)
    w.order("reboot", max(w.job(job).claim))
    w.until(lambda: len(w.job(job).calls) == 2, MINUTE)
    w.until(lambda: bool(w.events("halt")), HOUR)
    assert 300 <= w.sim.scheduler.now - ordered < 330
    assert (len(w.events("asked")), len(w.job(job).interruptions)) == (1, 1)


def test_what_has_not_begun_is_not_asked_it_begins_elsewhere() -> None:
    w = Ward(nodes=4)
    job = w.submit(steps=FAR, does=LISTENS)
    w.job_reaches(job, JobState.GATING)
    w.order("drain", min(w.job(job).claim))
    w.until(lambda: w.trains(job), HOUR)
    assert (w.events("ask"), w.job(job).restarts, w.job(job).interruptions) == ([], (), ())


@pytest.mark.parametrize("saved", [-5, 0, 2**63 - 1])
def test_an_absurd_step_that_is_said_to_be_saved_is_shown_and_ends_nothing(saved: int) -> None:
    w = Ward(nodes=4)
    job, _ = trains(w)
    says(w, job, saved=saved, busy="saving attempt-1/step-9", done=2**63 - 2, of=2**63 - 1)
    w.run(10.0)
    told: Any = explain(w.sim.store, job)
    assert (told.saved, told.state) == (saved, "RUNNING")
    assert w.trains(job)
