"""What metrics tell is what happened: counters that were fed by commits, against the rows that are there at the end."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.support.census_store import CensusStore

from sickbay.hosts.census import Census
from sickbay.hosts.tally import MOST_LABELS, OTHER, FleetTally, LabelledCounts
from sickbay.model.fleet import Brake, JobId, Ledger, Node, Withholding
from sickbay.model.incident import Incident
from sickbay.model.intent import Intent, Notify
from sickbay.model.job import Call, Interruption, Job, JobSpec, JobState
from sickbay.model.rows import AnyRow
from sickbay.sim.scenarios import NAMED, Scenario, perform, stage
from sickbay.sim.simulation import Simulation

pytestmark = pytest.mark.slow

SCENARIOS = (
    "standard",
    "cured-by-replace",
    "cured-by-nothing",
    "storm",
    "silence",
    "application-bug",
    "native-restart",
    "two-engines",
    "held",
)


def run(scenario: Scenario, seed: int) -> tuple[Simulation, CensusStore]:
    store = CensusStore()
    sim = stage(scenario, seed, store=store)
    store.virtual = lambda: sim.scheduler.now
    perform(sim, scenario, seed)
    return sim, store


def rows(store: CensusStore, kind: str) -> list[AnyRow]:
    found = store.load(store.keys(kind, limit=100_000))
    return [one.row for one in found.values() if one.row is not None]


def total(counts: LabelledCounts) -> float:
    return sum(counts.values.values())


@pytest.mark.parametrize("name", SCENARIOS)
def test_counters_agree_with_what_is_stored_at_the_end(name: str) -> None:
    _, store = run(NAMED[name], 7)
    tally = store.census.tally
    incidents = [row for row in rows(store, "incident") if isinstance(row, Incident)]
    assert Counter({key[:2]: 0 for key in tally.opened.values}).keys() == {(i.pool, i.kind) for i in incidents}
    assert total(tally.opened) == len(incidents)  # by the fault that led when it was opened: another may lead later
    assert tally.closed.values == Counter((i.pool, i.kind, i.phase) for i in incidents if not i.open)
    assert tally.entered.values == Counter((i.pool, stage.phase) for i in incidents for stage in i.stages)
    jobs = [row for row in rows(store, "job") if isinstance(row, Job)]
    assert total(tally.submitted) == len(jobs)
    assert total(tally.attempts) == sum(job.attempt for job in jobs)
    lost = [one for job in jobs for one in job.interruptions if one.closed]
    assert total(tally.interruptions) == len(lost)
    training = [one.stages for one in lost if "first_step" in one.stages]
    seconds = sum((stages["first_step"] - stages["detected"]).total_seconds() for stages in training)
    assert total(tally.lost_seconds) >= seconds - 1e-6
    notices = [row for row in rows(store, "intent") if isinstance(row, Intent) and isinstance(row.act, Notify)]
    intents = [row for row in rows(store, "intent") if isinstance(row, Intent)]
    assert total(tally.effects) == sum(one.state.over for one in intents)
    assert total(tally.sent) == sum(one.sends for one in intents)
    assert total(tally.notices) == sum(one.state.over for one in notices)
    tried = sum(one.result != "started" for i in incidents for one in i.tries)
    judged = Counter[str]()
    for (_, _, outcome), times in tally.repairs.values.items():
        judged[outcome] += times
    assert judged["proven"] + judged["not_cured"] + judged["failed"] + judged["ended"] >= tried


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_census_is_what_a_reading_of_the_whole_store_would_give(name: str) -> None:
    _, store = run(NAMED[name], 3)
    fresh = Census()
    fresh.seed(store)
    for kind in (Node, Incident, Job, Ledger, Brake, Withholding):
        told, read = store.census.all_of(kind), fresh.all_of(kind)
        assert sorted(map(repr, told)) == sorted(map(repr, read)), kind


def test_an_interruption_is_counted_under_its_cause_once_it_is_over() -> None:
    _, store = run(NAMED["standard"], 1)
    tally = store.census.tally
    assert {cause for _, cause in tally.interruptions.values} == {"fault"}
    assert total(tally.lost_seconds) > 0
    assert tally.faults.values["xid.79",] >= 1
    assert ("sim/train", "reboot", "proven") in tally.repairs.values


def test_a_controller_that_takes_over_amid_an_incident_counts_its_end_and_no_beginning() -> None:
    scenario = NAMED["standard"]
    store = CensusStore()
    sim = stage(scenario, 1, store=store)
    store.virtual = lambda: sim.scheduler.now
    while not store.census.all_of(Incident):
        sim.run(10)
    store.census = Census()
    store.census.follow(store)
    sim.run(scenario.lasts.total_seconds())
    tally = store.census.tally
    assert not tally.opened.values
    assert [phase for _, _, phase in tally.closed.values] == ["RELEASED"]
    assert not tally.submitted.values
    assert {cause for _, cause in tally.interruptions.values} == {"fault"}


def test_a_counter_has_a_bounded_number_of_label_sets() -> None:
    counts = LabelledCounts()
    for number in range(MOST_LABELS + 500):
        counts.add("pool", f"xid.{number}")
    assert len(counts.values) == MOST_LABELS + 1
    assert counts.values[OTHER, OTHER] == 500
    assert total(counts) == MOST_LABELS + 500


def causes(name: str) -> set[str]:
    _, store = run(NAMED[name], 1)
    return {cause for _, cause in store.census.tally.interruptions.values}


def test_a_lost_node_and_a_failing_script_are_different_causes() -> None:
    assert causes("silence") == {"node_lost"}
    assert causes("application-bug") == {"program"}


def test_a_hang_is_counted_as_one_though_its_job_then_restarts() -> None:
    tally, spec = FleetTally(), JobSpec(name="j", cluster="sim", pool="train")
    at = datetime(2026, 3, 1, tzinfo=UTC)
    running = Job(id=JobId("j"), spec=spec, submitted_at=at, state=JobState.RUNNING, attempt=1)
    lost = Interruption(attempt=1, cause="hung: no step", stages={"detected": at})
    stopping = replace(running, calls=(Call(because="hung: no step"),), interruptions=(lost,))
    again = replace(stopping, calls=(), attempt=2)
    over = replace(lost, stages={"detected": at, "first_step": at + timedelta(seconds=42)}, closed=True)
    rows = (running, stopping, again, replace(again, interruptions=(over,)))
    for before, after in pairwise(rows):
        tally.job(before, after, created=False)
    assert tally.interruptions.values == {("sim", "hang"): 1}
    assert tally.lost_seconds.values == {("sim", "hang"): 42.0}
