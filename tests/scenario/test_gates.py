"""No rank starts before every one of its nodes has passed."""

from datetime import timedelta

import pytest
from msgspec.structs import replace
from tests.support.wards import DAY, HOUR, MINUTE, Ward, cluster_without, policy_of, warm_and_cold

from sickbay.model.fleet import Capability
from sickbay.model.job import JobState
from sickbay.model.policy import OnNoFault, Trigger
from sickbay.policy.load import load_policy
from sickbay.sim.chaos import Odds


def gated_well(w: Ward) -> None:
    """Every start was preceded by a passed check of each of its nodes, newer than any earlier start there."""
    last: dict[str, float] = {}
    for event in w.events("start"):
        for node in event.detail.split(","):
            passes = [at for at in w.passed_checks(node) if last.get(node, -1.0) <= at <= event.at]
            assert passes, f"{event.subject} began on {node} unchecked\n{w.why()}"
            last[node] = event.at


@warm_and_cold
@pytest.mark.parametrize("seed", range(3))
def test_no_rank_starts_before_every_node_has_passed(cold: bool, seed: int) -> None:
    w = Ward(nodes=5, cold=cold, seed=seed, odds=Odds.rough() if seed else Odds())
    job = w.training(nodes=3)
    w.sick(w.starts(job)[0][1][1])
    w.ends(job)
    gated_well(w)
    w.rests()


@warm_and_cold
def test_a_node_that_fails_the_gate_opens_its_incident_and_the_job_takes_another(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    w.spoil(w.nodes[0])
    job = w.training()
    assert set(w.starts(job)[0][1]) == set(w.nodes[1:])
    assert w.incidents(w.nodes[0])[-1].fault.code == "check.failed"
    assert w.job(job).gates == 1
    done = w.ends(job)
    assert done.attempt == 1
    assert (done.restarts, done.interruptions) == ((), ()), "a gate is no interruption"
    w.rests()
    assert w.incidents(w.nodes[0])[-1].phase == "RELEASED"


def test_a_job_that_its_cluster_could_never_run_is_given_up_at_its_start_with_that_line() -> None:
    """Where it could not be asked when it was submitted: at its start, after all that may be tried again."""
    w = Ward(nodes=2)
    job = w.submit(native={"kind": "Pod"})
    w.job_reaches(job, JobState.FAILED)
    assert "native: " in w.job(job).diagnosis
    assert "knows no 'kind'" in w.job(job).diagnosis
    assert w.starts(job) == []
    assert w.job(job).gates == 0
    w.rests()


def test_named_nodes_wait_with_the_reason_when_one_fails_its_gate() -> None:
    w = Ward(nodes=4)
    w.spoil(w.nodes[0])
    job = w.submit(on=tuple(w.nodes[:2]))
    w.until(lambda: bool(w.incidents(w.nodes[0])), HOUR)
    w.run(30)
    assert w.because(job) == f"{w.nodes[0]} cannot be claimed"
    w.ends(job)
    assert [set(nodes) for _, nodes in w.starts(job)] == [set(w.nodes[:2])]
    w.rests()


def test_a_spare_that_fails_the_gate_of_a_restart_gives_way_to_the_next() -> None:
    w = Ward(nodes=4)
    job = w.training()
    w.spoil(w.nodes[2])
    w.sick(w.nodes[0])
    done = w.ends(job)
    assert w.starts(job)[1][1] == (w.nodes[1], w.nodes[3])
    assert done.restarts == ()
    gated_well(w)
    w.rests()


def test_a_fault_on_a_claimed_node_while_gating_gives_the_claim_up_without_spending_a_gate() -> None:
    w = Ward(nodes=3)
    job = w.submit()
    w.job_reaches(job, JobState.GATING)
    w.sick(w.nodes[0])
    w.until(lambda: w.trains(job), HOUR)
    assert [set(nodes) for _, nodes in w.starts(job)] == [set(w.nodes[1:])]
    assert w.job(job).gates == 0
    w.ends(job)
    w.rests()


def test_a_fault_on_a_spare_while_gating_does_not_touch_the_job() -> None:
    w = Ward(nodes=4)
    job = w.submit()
    w.job_reaches(job, JobState.GATING)
    w.sick(w.nodes[3])
    w.ends(job)
    assert len(w.starts(job)) == 1
    w.rests()


@warm_and_cold
def test_a_check_that_could_not_run_is_not_a_pass(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold, odds=Odds(check_could_not_run=1.0, check_silent=0.0))
    job = w.submit()
    done = w.ends(job, JobState.FAILED)
    assert w.starts(job) == []
    assert done.gates == 5
    assert "5 gates have failed" in done.diagnosis
    w.run(10)
    assert [n.text for n in w.notices("job_failed")] == [f"{job}: {done.diagnosis}"]
    assert done.claim == {}


def test_a_gate_that_never_answers_runs_out_and_is_not_a_pass() -> None:
    w = Ward(nodes=2, odds=Odds(check_could_not_run=1.0, check_silent=1.0))
    job = w.submit()
    w.ends(job, JobState.FAILED)
    assert w.starts(job) == []
    assert len(w.sent("verify")) == 5


def test_a_node_that_gives_no_answer_is_avoided_by_the_next_gate() -> None:
    w = Ward(nodes=3)
    job = w.submit()
    w.job_reaches(job, JobState.GATING)
    w.world.cut_path(w.nodes[0])
    w.run(1)
    w.until(lambda: w.trains(job), HOUR)
    assert w.nodes[0] not in w.starts(job)[0][1]


def test_max_gates_is_the_policys() -> None:
    w = Ward(nodes=1, policy=policy_of(max_gates=2), odds=Odds(check_could_not_run=1.0, check_silent=0.0))
    job = w.submit(nodes=1)
    assert w.ends(job, JobState.FAILED).gates == 2


def test_failed_gates_are_forgotten_by_the_next_restart() -> None:
    w = Ward(nodes=3)
    w.spoil(w.nodes[0])
    job = w.training(steps=20_000)
    assert w.job(job).gates == 1
    w.world.preempt(job)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    assert w.job(job).gates == 0


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize(("precheck", "level"), [(0, None), (1, 1), (3, 3), (None, 1)])
def test_the_gate_has_the_level_that_the_job_or_else_the_policy_asks_for(
    precheck: int | None, level: int | None, cold: bool
) -> None:
    w = Ward(nodes=2, cold=cold)
    job = w.training(precheck=precheck)
    gates = [e.detail for e in w.events("check.start") if e.subject.startswith(f"job.{job}.")]
    assert gates == ([] if level is None else [f"level {level}"])


def test_without_a_rule_in_the_policy_there_is_a_gate_only_if_the_job_asks() -> None:
    default = load_policy("default")
    policy = replace(default, examine=tuple(e for e in default.examine if e.on is not Trigger.BEFORE_START))
    w = Ward(nodes=2, policy=policy)
    w.training("plain", nodes=1)
    w.training("careful", nodes=1, precheck=2)
    assert [(e.subject.split(".")[1], e.detail) for e in w.events("check.start")] == [("careful", "level 2")]


def test_where_nothing_can_check_there_is_no_gate() -> None:
    w = Ward(nodes=2, cluster=cluster_without(Capability.CHECK, Capability.CHECK_CORDONED))
    w.ends(w.submit())


def test_a_gate_longer_than_its_deadline_is_not_a_pass() -> None:
    default = load_policy("default")
    short = tuple(replace(e, deadline=timedelta(seconds=20)) for e in default.examine)
    w = Ward(nodes=2, policy=replace(default, examine=short))
    w.ends(w.submit(), JobState.FAILED, most=DAY)
    assert w.events("start") == []


# --- nodes without an agent, where only an agent can check


@warm_and_cold
def test_a_job_with_a_gate_is_not_placed_where_nobody_can_check(cold: bool) -> None:
    w = Ward(nodes=4, agentless=2, cold=cold)
    bare = {w.nodes[1], w.nodes[3]}
    job = w.training(nodes=2)
    assert not bare & set(w.job(job).claim)
    assert not w.job(job).gates
    assert not [e for node in bare for e in w.events("check", node)]


@pytest.mark.parametrize("named", [False, True], ids=["counted", "named"])
def test_a_job_that_needs_a_node_without_an_agent_says_so_at_once_and_starts_when_it_is_heard(named: bool) -> None:
    w = Ward(nodes=2, agentless=2)
    bare = w.nodes[1]
    job = w.submit(nodes=2, on=tuple(w.nodes) if named else ())
    w.run(MINUTE)
    assert w.job(job).state is JobState.QUEUED
    assert "no agent has been heard" in w.because(job)
    assert not w.job(job).gates
    w.world.seat(bare).agentless = False
    w.world.agents.refresh(w.world.seat(bare))
    w.until(lambda: w.trains(job), HOUR)


def test_a_job_without_a_gate_runs_where_there_is_no_agent() -> None:
    w = Ward(nodes=2, agentless=2)
    w.training(nodes=2, precheck=0)


def test_a_node_without_an_agent_is_not_checked_in_vain_at_a_jobs_end() -> None:
    w = Ward(nodes=3, agentless=3, policy=policy_of("ecs-hybrid", on_no_fault=OnNoFault.RESTART))
    bare = w.nodes[2]
    job = w.training(nodes=3, precheck=0)
    w.world.crash(job)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    assert w.events("check.pass", w.nodes[0])
    assert not w.events("check", bare)
    assert bare in w.job(job).avoid


# --- the check at a job's end


@warm_and_cold
def test_nobody_starts_on_nodes_that_are_checked_after_a_jobs_end(cold: bool) -> None:
    w = Ward(nodes=2, cold=cold, policy=load_policy("ecs-gpu-recovery"))
    first = w.training("first")
    second = w.submit("second", nodes=1, steps=200)
    w.run(60)
    w.world.crash(first)
    w.ends(second)
    w.ends(first, JobState.FAILED)
    checked = [e.at for e in w.events("check.pass")]
    assert len(checked) == 2
    assert w.events("start", f"{second}#1")[0].at > max(checked)
    w.rests()


@warm_and_cold
def test_a_node_that_fails_the_check_at_a_jobs_end_is_in_the_record(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold, policy=load_policy("ecs-hybrid"))
    job = w.training()
    w.spoil(w.nodes[0])
    w.world.crash(job)
    done = w.ends(job)
    (incident,) = w.incidents(w.nodes[0])
    assert incident.fault.code == "check.failed"
    assert done.interruptions[0].incidents == (incident.id,)
    assert w.nodes[0] in done.interruptions[0].cause
    assert w.nodes[0] not in w.starts(job)[1][1]
    w.rests()


def test_a_node_that_could_not_be_checked_at_a_jobs_end_is_avoided() -> None:
    w = Ward(nodes=3, policy=policy_of("ecs-hybrid", on_no_fault=OnNoFault.RESTART))
    job = w.training()
    dark = w.nodes[0]
    w.world.crash(job)
    w.job_reaches(job, JobState.DIAGNOSING)
    w.until(lambda: len(w.events("check", dark)) == 2, HOUR)
    w.world.cut_path(dark)
    w.until(lambda: w.job(job).state is not JobState.DIAGNOSING, HOUR)
    w.world.open_path(dark)
    w.until(lambda: w.trains(job), HOUR)
    assert dark not in w.starts(job)[1][1]
