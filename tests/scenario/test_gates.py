"""No rank starts before every one of its nodes has passed."""

from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.support.jobs_vocabulary import DAY, HOUR, MINUTE, Hall, cluster_without, policy_of, warm_and_cold

from sickbay.model.fleet import Capability
from sickbay.model.job import JobState
from sickbay.model.policy import OnNoFault, Trigger
from sickbay.policy.load import load_policy
from sickbay.sim.chaos import Odds


def gated_well(hall: Hall) -> None:
    """Every start was preceded by a passed check of each of its nodes, newer than any earlier start there."""
    last: dict[str, float] = {}
    for event in hall.happened("start"):
        for node in event.detail.split(","):
            passes = [at for at in hall.passed_checks(node) if last.get(node, -1.0) <= at <= event.at]
            assert passes, f"{event.subject} began on {node} unchecked\n{hall.why()}"
            last[node] = event.at


@warm_and_cold
@pytest.mark.parametrize("seed", range(3))
def test_no_rank_starts_before_every_node_has_passed(cold: bool, seed: int) -> None:
    hall = Hall(nodes=5, cold=cold, seed=seed, odds=Odds.rough() if seed else Odds())
    job = hall.training(nodes=3)
    hall.strike(hall.starts(job)[0][1][1])
    hall.ends(job)
    gated_well(hall)
    hall.rests()


@warm_and_cold
def test_a_node_that_fails_the_gate_opens_its_incident_and_the_job_takes_another(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold)
    hall.spoil(hall.nodes[0])
    job = hall.training()
    assert set(hall.starts(job)[0][1]) == set(hall.nodes[1:])
    assert hall.incidents(hall.nodes[0])[-1].fault.code == "check.failed"
    assert hall.job(job).gates == 1
    done = hall.ends(job)
    assert done.attempt == 1
    assert (done.restarts, done.interruptions) == ((), ()), "a gate is no interruption"
    hall.rests()
    assert hall.incidents(hall.nodes[0])[-1].phase == "RELEASED"


def test_named_nodes_wait_with_the_reason_when_one_fails_its_gate() -> None:
    hall = Hall(nodes=4)
    hall.spoil(hall.nodes[0])
    job = hall.submit(on=tuple(hall.nodes[:2]))
    hall.until(lambda: bool(hall.incidents(hall.nodes[0])), HOUR)
    hall.run(30)
    assert hall.because(job) == f"{hall.nodes[0]} cannot be claimed"
    hall.ends(job)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [set(hall.nodes[:2])]
    hall.rests()


def test_a_spare_that_fails_the_gate_of_a_restart_gives_way_to_the_next() -> None:
    hall = Hall(nodes=4)
    job = hall.training()
    hall.spoil(hall.nodes[2])
    hall.strike(hall.nodes[0])
    done = hall.ends(job)
    assert hall.starts(job)[1][1] == (hall.nodes[1], hall.nodes[3])
    assert done.restarts == ()
    gated_well(hall)
    hall.rests()


def test_a_fault_on_a_claimed_node_while_gating_gives_the_claim_up_without_spending_a_gate() -> None:
    hall = Hall(nodes=3)
    job = hall.submit()
    hall.reaches(job, JobState.GATING)
    hall.strike(hall.nodes[0])
    hall.until(lambda: hall.trains(job), HOUR)
    assert [set(nodes) for _, nodes in hall.starts(job)] == [set(hall.nodes[1:])]
    assert hall.job(job).gates == 0
    hall.ends(job)
    hall.rests()


def test_a_fault_on_a_spare_while_gating_does_not_touch_the_job() -> None:
    hall = Hall(nodes=4)
    job = hall.submit()
    hall.reaches(job, JobState.GATING)
    hall.strike(hall.nodes[3])
    hall.ends(job)
    assert len(hall.starts(job)) == 1
    hall.rests()


@warm_and_cold
def test_a_check_that_could_not_run_is_not_a_pass(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold, odds=Odds(check_could_not_run=1.0, check_silent=0.0))
    job = hall.submit()
    done = hall.ends(job, JobState.FAILED)
    assert hall.starts(job) == []
    assert done.gates == 5
    assert "5 gates have failed" in done.diagnosis
    hall.run(10)
    assert [n.text for n in hall.told("job_failed")] == [f"{job}: {done.diagnosis}"]
    assert done.claim == {}


def test_a_gate_that_never_answers_runs_out_and_is_not_a_pass() -> None:
    hall = Hall(nodes=2, odds=Odds(check_could_not_run=1.0, check_silent=1.0))
    job = hall.submit()
    hall.ends(job, JobState.FAILED)
    assert hall.starts(job) == []
    assert len(hall.sent("verify")) == 5


def test_a_node_that_gives_no_answer_is_avoided_by_the_next_gate() -> None:
    hall = Hall(nodes=3)
    job = hall.submit()
    hall.reaches(job, JobState.GATING)
    hall.world.cut_path(hall.nodes[0])
    hall.run(1)
    hall.until(lambda: hall.trains(job), HOUR)
    assert hall.nodes[0] not in hall.starts(job)[0][1]


def test_max_gates_is_the_policys() -> None:
    hall = Hall(nodes=1, policy=policy_of(max_gates=2), odds=Odds(check_could_not_run=1.0, check_silent=0.0))
    job = hall.submit(nodes=1)
    assert hall.ends(job, JobState.FAILED).gates == 2


def test_failed_gates_are_forgotten_by_the_next_restart() -> None:
    hall = Hall(nodes=3)
    hall.spoil(hall.nodes[0])
    job = hall.training(steps=20_000)
    assert hall.job(job).gates == 1
    hall.world.preempt(job)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
    assert hall.job(job).gates == 0


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("precheck", "level"), [(0, None), (1, 1), (3, 3), (None, 1)])
def test_the_gate_has_the_level_that_the_job_or_else_the_policy_asks_for(
    precheck: int | None, level: int | None, cold: bool
) -> None:
    hall = Hall(nodes=2, cold=cold)
    job = hall.training(precheck=precheck)
    gates = [e.detail for e in hall.happened("check.start") if e.subject.startswith(f"job.{job}.")]
    assert gates == ([] if level is None else [f"level {level}"])


def test_without_a_rule_in_the_policy_there_is_a_gate_only_if_the_job_asks() -> None:
    default = load_policy("default")
    policy = replace(default, examine=tuple(e for e in default.examine if e.on is not Trigger.BEFORE_START))
    hall = Hall(nodes=2, policy=policy)
    hall.training("plain", nodes=1)
    hall.training("careful", nodes=1, precheck=2)
    assert [(e.subject.split(".")[1], e.detail) for e in hall.happened("check.start")] == [("careful", "level 2")]


def test_where_nothing_can_check_there_is_no_gate() -> None:
    hall = Hall(nodes=2, cluster=cluster_without(Capability.CHECK, Capability.CHECK_CORDONED))
    hall.ends(hall.submit())


def test_a_gate_longer_than_its_deadline_is_not_a_pass() -> None:
    default = load_policy("default")
    short = tuple(replace(e, deadline=timedelta(seconds=20)) for e in default.examine)
    hall = Hall(nodes=2, policy=replace(default, examine=short))
    hall.ends(hall.submit(), JobState.FAILED, most=DAY)
    assert hall.happened("start") == []


# --- nodes without an agent, where only an agent can check


@warm_and_cold
def test_a_job_with_a_gate_is_not_placed_where_nobody_can_check(cold: bool) -> None:
    hall = Hall(nodes=4, agentless=2, cold=cold)
    bare = {hall.nodes[1], hall.nodes[3]}
    job = hall.training(nodes=2)
    assert not bare & set(hall.job(job).claim)
    assert not hall.job(job).gates
    assert not [e for node in bare for e in hall.happened("check", node)]


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
def test_a_job_that_needs_a_node_without_an_agent_says_so_at_once_and_starts_when_it_is_heard(named: bool) -> None:
    hall = Hall(nodes=2, agentless=2)
    bare = hall.nodes[1]
    job = hall.submit(nodes=2, on=tuple(hall.nodes) if named else ())
    hall.run(MINUTE)
    assert hall.job(job).state is JobState.QUEUED
    assert "no agent has been heard" in hall.because(job)
    assert not hall.job(job).gates
    hall.world.seat(bare).agentless = False
    hall.world.agents.refresh(hall.world.seat(bare))
    hall.until(lambda: hall.trains(job), HOUR)


def test_a_job_without_a_gate_runs_where_there_is_no_agent() -> None:
    hall = Hall(nodes=2, agentless=2)
    hall.training(nodes=2, precheck=0)


def test_a_node_without_an_agent_is_not_checked_in_vain_at_a_jobs_end() -> None:
    hall = Hall(nodes=3, agentless=3, policy=policy_of("ecs-hybrid", on_no_fault=OnNoFault.RESTART))
    bare = hall.nodes[2]
    job = hall.training(nodes=3, precheck=0)
    hall.world.crash(job)
    hall.until(lambda: len(hall.starts(job)) == 2, HOUR)
    assert hall.happened("check.pass", hall.nodes[0])
    assert not hall.happened("check", bare)
    assert bare in hall.job(job).avoid


# --- the check at a job's end


@warm_and_cold
def test_nobody_starts_on_nodes_that_are_checked_after_a_jobs_end(cold: bool) -> None:
    hall = Hall(nodes=2, cold=cold, policy=load_policy("ecs-gpu-recovery"))
    first = hall.training("first")
    second = hall.submit("second", nodes=1, steps=200)
    hall.run(60)
    hall.world.crash(first)
    hall.ends(second)
    hall.ends(first, JobState.FAILED)
    checked = [e.at for e in hall.happened("check.pass")]
    assert len(checked) == 2
    assert hall.happened("start", f"{second}#1")[0].at > max(checked)
    hall.rests()


@warm_and_cold
def test_a_node_that_fails_the_check_at_a_jobs_end_is_in_the_record(cold: bool) -> None:
    hall = Hall(nodes=3, cold=cold, policy=load_policy("ecs-hybrid"))
    job = hall.training()
    hall.spoil(hall.nodes[0])
    hall.world.crash(job)
    done = hall.ends(job)
    (incident,) = hall.incidents(hall.nodes[0])
    assert incident.fault.code == "check.failed"
    assert done.interruptions[0].incidents == (incident.id,)
    assert hall.nodes[0] in done.interruptions[0].cause
    assert hall.nodes[0] not in hall.starts(job)[1][1]
    hall.rests()


def test_a_node_that_could_not_be_checked_at_a_jobs_end_is_avoided() -> None:
    hall = Hall(nodes=3, policy=policy_of("ecs-hybrid", on_no_fault=OnNoFault.RESTART))
    job = hall.training()
    dark = hall.nodes[0]
    hall.world.crash(job)
    hall.reaches(job, JobState.DIAGNOSING)
    hall.until(lambda: len(hall.happened("check", dark)) == 2, HOUR)
    hall.world.cut_path(dark)
    hall.until(lambda: hall.job(job).state is not JobState.DIAGNOSING, HOUR)
    hall.world.open_path(dark)
    hall.until(lambda: hall.trains(job), HOUR)
    assert dark not in hall.starts(job)[1][1]
