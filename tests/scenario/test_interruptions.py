"""The record of what was lost: who was to blame, how long each stage took, and that the sums are right."""

from datetime import datetime, timedelta

import pytest
from tests.support.wards import (
    DAY,
    HOUR,
    MINUTE,
    STAGES,
    Ward,
    cluster_without,
    in_order,
    policy_of,
    warm_and_cold,
)

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, NodeId, Roster
from sickbay.model.job import Interruption, JobState
from sickbay.sim.chaos import Odds
from sickbay.sim.schedule import EPOCH


def moment(w: Ward, what: str, subject: str) -> datetime:
    return EPOCH + timedelta(seconds=w.events(what, subject)[0].at)


def roster(w: Ward, job: JobId, interruption: Interruption) -> set[NodeId]:
    """The nodes of the attempt that was lost."""
    keys = [f"roster:{job}/{interruption.attempt}/{number}" for number in range(interruption.rosters)]
    rows = (found.row for found in w.sim.store.load(keys).values())
    return {node for row in rows if isinstance(row, Roster) for node in row.nodes}


def lost(interruptions: tuple[Interruption, ...]) -> float:
    """Seconds, as the records say; one that handed its clock over is in its successor's."""
    whole = [i for i in interruptions if "first_step" in i.stages]
    return sum((i.stages["first_step"] - i.stages["detected"]).total_seconds() for i in whole)


@warm_and_cold
def test_an_interruption_tells_its_cause_its_incident_and_every_stage(cold: bool) -> None:
    w = Ward(nodes=3, cold=cold)
    job = w.training()
    sick = w.nodes[0]
    w.sick(sick)
    struck = w.sim.scheduler.now
    done = w.ends(job)
    (interruption,) = done.interruptions
    assert interruption.attempt == 1
    assert interruption.cause == f"xid.79 on {sick}"
    assert interruption.incidents == (w.incidents(sick)[0].id,)
    assert roster(w, job, interruption) == set(w.nodes[:2])
    assert tuple(interruption.stages) == STAGES
    assert in_order(interruption)
    assert interruption.closed
    since = interruption.stages["detected"] - EPOCH
    assert 0.0 <= since.total_seconds() - struck <= 2.0, "the clock starts with the first symptom"
    assert interruption.stages["first_step"] >= moment(w, "train", f"{job}#2")


def test_gated_is_stamped_when_the_gate_has_passed() -> None:
    w = Ward(nodes=3)
    job = w.training()
    w.sick(w.nodes[0])
    w.job_reaches(job, JobState.GATING)
    assert "gated" not in w.job(job).interruptions[-1].stages
    w.ends(job)
    stages = w.job(job).interruptions[-1].stages
    assert (stages["gated"] - stages["placed"]).total_seconds() >= 40, "a level 1 check takes its minute"


def test_without_a_gate_there_is_no_such_stage() -> None:
    w = Ward(nodes=3)
    job = w.training(precheck=0)
    w.sick(w.nodes[0])
    stages = w.ends(job).interruptions[0].stages
    assert tuple(stages) == tuple(stage for stage in STAGES if stage != "gated")


def test_a_job_that_reports_no_steps_closes_its_interruption_when_it_has_started() -> None:
    w = Ward(nodes=3)
    job = w.training(reports_steps=False)
    w.sick(w.nodes[0])
    w.until(lambda: w.job(job).attempt == 2 and w.job(job).state is JobState.RUNNING, HOUR)
    (interruption,) = w.job(job).interruptions
    assert interruption.closed
    assert "first_step" not in interruption.stages
    assert tuple(interruption.stages)[-1] == "started"


def test_an_interruption_stays_open_until_the_first_new_step() -> None:
    w = Ward(nodes=3)
    job = w.training()
    w.sick(w.nodes[0])
    w.until(lambda: w.job(job).attempt == 2 and w.job(job).state is JobState.RUNNING, HOUR)
    assert not w.job(job).interruptions[-1].closed
    w.until(lambda: w.trains(job), HOUR)
    w.run(10)
    assert w.job(job).interruptions[-1].closed


@warm_and_cold
def test_an_attempt_that_ends_before_its_first_step_takes_over_the_clock(cold: bool) -> None:
    w = Ward(nodes=4, cold=cold)
    job = w.training()
    w.sick(w.nodes[0])
    w.until(lambda: w.job(job).attempt == 2 and w.job(job).state is JobState.RUNNING, HOUR)
    w.world.preempt(job)
    done = w.ends(job)
    first, second = done.interruptions
    assert first.closed
    assert "first_step" not in first.stages
    assert second.attempt == 2
    assert second.stages["detected"] == first.stages["detected"]
    assert in_order(second)
    tally = w.true_job(job).tally
    idle = (second.stages["first_step"] - second.stages["detected"]).total_seconds()
    assert idle <= sum(tally.lost.values()) + 30


# --- what arrives late


@warm_and_cold
def test_an_xid_that_arrives_after_the_exit_joins_the_interruption(cold: bool) -> None:
    """The rank dies first, the driver's line follows; the look before the restart brings it."""
    w = Ward(nodes=3, cold=cold)
    job = w.training(max_restarts=0)
    sick = w.nodes[0]
    w.sick(sick, kill_after=0.0, observe_after=6.0)
    done = w.ends(job)
    (interruption,) = done.interruptions
    assert interruption.incidents == (w.incidents(sick)[0].id,)
    assert done.restarts == (), "the node was to blame"
    assert sick not in w.starts(job)[1][1]
    w.rests()
    assert w.incidents(sick)[0].phase == "RELEASED"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("after", [0.2, 4.0, 5.0])
def test_whenever_the_line_is_written_before_the_end_the_node_is_to_blame(after: float, seed: int) -> None:
    w = Ward(nodes=3, seed=seed)
    job = w.training(nodes=1, max_restarts=0)
    w.sick(w.nodes[0], kill_after=5.0, observe_after=after)
    done = w.ends(job)
    assert [len(i.incidents) for i in done.interruptions] == [1]
    w.rests()


def test_a_fault_dated_inside_an_ended_attempt_joins_its_interruption_much_later() -> None:
    """The agent's way to us was cut when the line was written; the job has long been running elsewhere."""
    w = Ward(nodes=4, cluster=cluster_without(Capability.RESTART_SERVICE))
    job = w.training(steps=6000)
    sick = w.starts(job)[0][1][1]
    w.world.cut_path(sick)
    w.sick(sick, kill_after=1.0, observe_after=0.5)
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), HOUR)
    w.run(5 * MINUTE)
    assert w.job(job).interruptions[0].closed
    assert w.job(job).interruptions[0].incidents == ()
    w.world.open_path(sick)
    w.run(MINUTE)
    xid = next(i for i in w.incidents(sick) if any(line.startswith("xid.79") for line in i.evidence))
    assert w.job(job).interruptions[0].incidents == (xid.id,)
    w.ends(job)
    assert len(w.starts(job)) == 2, "the attempt that runs elsewhere is left alone"
    w.rests()


def test_a_fault_from_after_the_attempt_does_not_join_its_interruption() -> None:
    w = Ward(nodes=4)
    job = w.training()
    w.world.preempt(job)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    w.run(5 * MINUTE)
    node = next(n for n in w.nodes if n not in w.job(job).claim)
    w.sick(node)
    w.ends(job)
    assert [i.incidents for i in w.job(job).interruptions] == [()]


def test_a_watched_fault_is_no_ones_blame() -> None:
    """A row was remapped on a node; then the program crashed by itself."""
    w = Ward(nodes=2)
    job = w.training(max_restarts=0)
    w.world.write_line(w.nodes[0], "xid.63")
    w.run(MINUTE)
    w.world.crash(job)
    done = w.ends(job, JobState.FAILED)
    assert [i.incidents for i in done.interruptions] == [()]


def test_a_node_that_does_not_answer_the_look_is_avoided() -> None:
    w = Ward(nodes=3)
    job = w.training()
    dark = w.nodes[1]
    w.world.cut_path(dark)
    w.world.crash(job)
    w.until(lambda: len(w.starts(job)) == 2, HOUR)
    assert dark not in w.starts(job)[1][1]


# --- sums


@pytest.mark.parametrize("seed", range(6))
def test_time_lost_by_cause_and_time_used_make_the_whole(seed: int) -> None:
    """From the first start to the end every second is either training that was kept or lost to a named cause."""
    w = Ward(nodes=4, seed=seed, cold=seed % 2 == 1, odds=Odds.rough() if seed > 2 else Odds())
    job = w.training(steps=8000)
    w.sick(w.starts(job)[-1][1][0])
    w.run(30 * MINUTE)
    w.world.preempt(job)
    w.run(30 * MINUTE)
    w.sick(w.starts(job)[-1][1][0], "xid.48", Remedy.RESET_GPU)
    w.ends(job)
    tally = w.true_job(job).tally
    began = min(e.at for e in w.events("start") if e.subject.startswith(f"{job}#"))
    ended = max(e.at for e in w.events("end") if e.subject.startswith(f"{job}#"))
    assert tally.useful == 8000
    assert tally.useful + sum(tally.lost.values()) == pytest.approx(ended - began, abs=1.0)
    assert 0.5 < tally.share < 1.0


def test_the_records_of_lost_time_agree_with_the_truth() -> None:
    w = Ward(nodes=4)
    job = w.training(steps=8000)
    for _ in range(3):
        w.run(20 * MINUTE)
        w.sick(w.starts(job)[-1][1][0], kill_after=0.5, observe_after=0.2)
        w.until(lambda: not w.trains(job), HOUR)
        w.until(lambda: w.trains(job), HOUR)
    done = w.ends(job)
    trained = [e.at for e in w.events("train") if e.subject.startswith(f"{job}#")]
    halted = [e.at for e in w.events("halt") if e.subject.startswith(f"{job}#")]
    idle = sum(begin - end for end, begin in zip(halted, trained[1:], strict=False))
    assert len(done.interruptions) == len(trained) - 1
    assert lost(done.interruptions) == pytest.approx(idle, abs=5.0 * len(done.interruptions))


@pytest.mark.parametrize("seed", range(10))
def test_every_record_is_in_order_and_closed_whatever_the_weather(seed: int) -> None:
    w = Ward(nodes=4, seed=seed, cold=seed % 2 == 1, odds=Odds.rough(), policy=policy_of(max_restarts=20))
    job = w.submit(steps=5000)
    for n in range(5):
        w.run(300.0 + 97 * (seed + n))
        target = w.starts(job)[-1][1][0] if w.starts(job) else w.nodes[0]
        match (seed + n) % 5:
            case 0:
                w.sick(NodeId(target))
            case 1:
                w.world.preempt(job) if w.starts(job) else None
            case 2:
                w.world.lose_node(NodeId(target), zombie=bool(n % 2))
            case 3:
                w.world.crash(job) if w.starts(job) else None
            case _:
                w.sick(NodeId(target), "xid.48", Remedy.RESET_GPU, kill_after=0.1, observe_after=3.0)
    w.until(lambda: not w.job(job).open, 3 * DAY)
    for interruption in w.job(job).interruptions:
        assert interruption.closed, w.why()
        assert in_order(interruption), f"{interruption}\n{w.why()}"
        assert interruption.cause
    attempts = [i.attempt for i in w.job(job).interruptions]
    assert attempts == sorted(set(attempts)), "one record for each attempt that was lost"


def test_a_fault_that_asks_for_nothing_does_not_join_however_it_is_dated() -> None:
    w = Ward(nodes=4, cluster=cluster_without(Capability.RESTART_SERVICE))
    job = w.training(steps=6000)
    node = w.starts(job)[0][1][1]
    w.world.cut_path(node)
    w.world.write_line(node, "xid.63")
    w.world.crash(job)
    w.until(lambda: w.job(job).attempt == 2 and w.trains(job), HOUR)
    w.world.open_path(node)
    w.run(MINUTE)
    assert any("xid.63" in line for i in w.incidents(node) for line in i.evidence)
    assert [i.incidents for i in w.job(job).interruptions] == [()]


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_puts_no_stage_before_the_one_that_it_follows(jump: float) -> None:
    w = Ward(nodes=3)
    job = w.training()
    w.sick(w.nodes[0])
    w.job_reaches(job, JobState.GATING)
    w.sim.clock.jump(jump)
    done = w.ends(job)
    assert in_order(done.interruptions[0]), done.interruptions[0]
