"""Each named scenario comes to the end that it is there to show, whatever the seed."""

import pytest
from tests.support.thorough import THOROUGH

from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job, JobState
from sickbay.sim.random_runs import random_run
from sickbay.sim.report import Spread, report
from sickbay.sim.scenarios import DAY, NAMED, fleet_jobs, moments, perform, sized, stage
from sickbay.sim.simulation import Simulation
from sickbay.sim.timeline import JobAct, LoseNode, StrikeDevice
from sickbay.sim.weather import LLAMA_3, weather

SEEDS = (0, 1, 2)


def performed(name: str, seed: int) -> Simulation:
    scenario = NAMED[name]
    sim = stage(scenario, seed)
    perform(sim, scenario, seed)
    return sim


def only_job(sim: Simulation) -> Job:
    (job,) = sim.jobs()
    return job


def only_incident(sim: Simulation) -> Incident:
    (incident,) = sim.incidents()
    return incident


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["standard", "cured-by-reset", "cured-by-replace", "silence", "outage", "two-engines"])
def test_the_node_is_released_and_the_job_completes(name: str, seed: int) -> None:
    sim = performed(name, seed)
    assert only_incident(sim).phase is Phase.RELEASED
    job = only_job(sim)
    assert job.state is JobState.COMPLETE
    assert job.attempt >= 2
    assert not job.restarts  # the hardware's fault is not the researcher's budget


@pytest.mark.parametrize(("name", "rung"), [("cured-by-reset", "reset_gpu"), ("cured-by-replace", "replace")])
def test_the_last_rung_is_the_one_that_cures(name: str, rung: str) -> None:
    assert only_incident(performed(name, 0)).tries[-1].rung == rung


def test_what_nothing_cures_is_held_and_a_person_is_told() -> None:
    sim = performed("cured-by-nothing", 0)
    assert only_incident(sim).phase is Phase.HELD
    assert only_job(sim).state is JobState.COMPLETE
    assert report(sim, scenario="").notifications == {"held": 1}


def test_a_job_without_a_spare_waits_for_its_node_and_spends_nothing() -> None:
    job = only_job(performed("no-spare", 0))
    assert (job.state, job.attempt, job.restarts) == (JobState.COMPLETE, 2, ())


def test_a_storm_trips_the_brake_and_takes_no_more_than_the_limit_out() -> None:
    sim = performed("storm", 0)
    assert report(sim, scenario="").notifications["brake"] == 1
    struck = min(event.at for event in sim.world.chronicle.events if event.what.startswith("line."))
    cordoned = [event.at for event in sim.world.chronicle.of("cordon")]
    assert sum(at < struck + 1800 for at in cordoned) <= 1, "while the brake is on"
    assert {incident.phase for incident in sim.incidents()} == {Phase.RELEASED}, "none of the sick is called well"
    assert only_job(sim).attempt == 1


def test_a_lost_agent_is_restarted_and_its_job_never_notices() -> None:
    sim = performed("agent-lost", 0)
    assert only_job(sim).attempt == 1
    assert not sim.world.chronicle.of("cordon")


def test_an_application_bug_blames_no_node_and_ends() -> None:
    sim = performed("application-bug", 0)
    assert only_job(sim).state is JobState.FAILED
    assert not sim.incidents()


def test_a_native_restart_is_recorded_not_fought() -> None:
    sim = performed("native-restart", 0)
    job = only_job(sim)
    assert (job.state, job.adopted) == (JobState.COMPLETE, True)
    assert not [told for told in sim.world.chronicle.told if told.act == "rerun"]


def test_a_seat_that_the_budget_keeps_waiting_has_its_turn_once_a_person_has_released_the_other() -> None:
    sim = performed("held", 0)
    assert [incident.phase for incident in sim.incidents()] == [Phase.RELEASED, Phase.RELEASED]


def test_every_named_scenario_says_what_it_shows() -> None:
    for name, scenario in NAMED.items():
        assert scenario.name == name
        assert scenario.about.endswith(".")
        assert stage(scenario).plan.nodes == scenario.nodes


def test_the_same_seed_gives_the_same_run_to_the_last_event() -> None:
    runs = [performed("two-engines", 5).world.chronicle.events for _ in range(2)]
    assert runs[0] == runs[1]


# --- weather


def test_the_mix_is_all_of_llama_3s_interruptions() -> None:
    assert sum(cause.cases for cause in LLAMA_3) == 419


def test_faults_come_at_the_rate_that_was_asked_for() -> None:
    nodes = [f"train-{n:04d}" for n in range(1000)]
    faults = weather(3, nodes=nodes, jobs=["a"], days=100, rate=4.4)
    assert 400 < len(faults) < 480  # 440 expected; three standard deviations are 63
    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert {type(fault) for fault in faults} == {StrikeDevice, LoseNode, JobAct}


def test_no_weather_means_no_fault() -> None:
    assert weather(0, nodes=["train-0000"], jobs=[], days=3650, rate=0.0) == ()


def test_a_larger_fleet_has_larger_jobs_and_keeps_a_spare_eighth() -> None:
    fleet = sized(NAMED["fleet"], nodes=256, days=2)
    assert [job.nodes for job in fleet.jobs] == [128, 64, 32]
    assert fleet.lasts == 2 * DAY
    assert all(moment.at < fleet.lasts for moment in moments(fleet, 1))
    assert [job.nodes for job in fleet_jobs(4)] == [2, 1]


@pytest.mark.slow
def test_a_fleet_keeps_training_for_days() -> None:
    scenario = sized(NAMED["fleet"], nodes=128, days=7 if THOROUGH else 3)
    sim = stage(scenario, 1)
    perform(sim, scenario, 1)
    came_to = report(sim, scenario="fleet")
    assert came_to.effective_training_time is not None
    assert came_to.effective_training_time > 0.97  # ByteRobust reports 97 % on 9,600 GPUs
    assert set(came_to.incidents_by_phase) <= {"RELEASED", "DISMISSED", "REPLACED"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, 4])  # warm, cold, two engines
def test_a_random_run_is_the_same_each_time(seed: int) -> None:
    assert random_run(seed).world.chronicle.events == random_run(seed).world.chronicle.events


# --- the report


def test_a_spread_is_the_median_and_what_nine_of_ten_do_not_exceed() -> None:
    spread = Spread.of([float(n) for n in range(10, 0, -1)])
    assert (spread.count, spread.median, spread.p90) == (10, 5.5, 9.0)
    assert Spread.of([7.0]).p90 == 7.0


def test_useful_and_lost_time_add_up_to_the_jobs_whole_time() -> None:
    sim = performed("standard", 0)
    came_to = report(sim, scenario="standard")
    (tally,) = [job.tally for job in sim.world.workload.jobs.values()]
    assert came_to.effective_training_time == round(tally.share, 4)
    assert sum(came_to.lost_by_cause.values()) == pytest.approx(sum(tally.lost.values()), abs=0.5)
