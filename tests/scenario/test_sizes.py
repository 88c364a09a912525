"""Nothing stops the engine but the store: what cannot be stored, read, learned, planned or sent is set aside alone."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.support.wards import policy_with

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.adapters.stores.sql import SqlStore, open_store
from sickbay.adapters.stores.sqlite import Sqlite
from sickbay.engine.reception import Reception
from sickbay.model.facts import Observed
from sickbay.model.fleet import Aside, JobId, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import Job, JobSpec, JobState
from sickbay.model.policy import Policy
from sickbay.model.protocol import Item, Report
from sickbay.model.rows import kind_of
from sickbay.policy.load import load_policy
from sickbay.ports.store import Store
from sickbay.sim.context import ClusterRules
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.schedule import EPOCH
from sickbay.sim.simulation import Plan, Simulation

HOUR = 3600.0
DAY = 24 * HOUR
OpenSim = Callable[..., Simulation]


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenSim]:
    """A simulation as in production: what cannot be planned is set aside, on a store with all its limits."""
    stores: list[Store] = []

    def open_one(policy: Policy | None = None, **plan: object) -> Simulation:
        store = open_store(f"sqlite:///{tmp_path}/store.db") if request.param == "sqlite" else None
        stores.extend([store] if store is not None else [])
        full = Plan(**{"forgiving": True, "nodes": 4, **plan})  # type: ignore[arg-type]
        return Simulation(full, policy=policy, store=store)

    yield open_one
    for store in stores:
        store.close()


def report(sim: Simulation, node: NodeId, news: Observed) -> None:
    """An agent of this node says so, through the door that real agents use."""
    holder = sim.world.seat(node).incarnation
    assert holder is not None
    Reception(sim.store, sim.clock).receive(
        Report(
            proto=1, node=node, uid=holder.uid, instance_id=holder.instance_id, boot_id=holder.boot_id, agent_run="r",
            first_seq=1, mono_now=5, wall_now=0, watermark=5, items=(Item(seq=1, mono=5, news=news),),
        )
    )  # fmt: skip


def poison(sim: Simulation, key: str) -> None:
    """A body that was changed below the store: nobody can decode it any more. The engine starts anew and must read."""
    if isinstance(sim.store, MemoryStore):
        sim.store._bodies[key] = sim.store._bodies[key][:40]
    else:
        assert isinstance(sim.store, SqlStore)
        assert isinstance(sim.store._db, Sqlite)
        sim.store._db._writer.exec_driver_sql("UPDATE nouns SET body = substr(body, 1, 40) WHERE key = ?", (key,))
    sim.hosts[0].crash()


def told(sim: Simulation, event: str = "set_aside") -> list[str]:
    return [notice.text for _, notice in sim.world.notices if notice.event == event]


def ill(sim: Simulation, node: NodeId) -> list[Incident]:
    return [incident for incident in sim.incidents() if incident.node == node]


def set_aside(sim: Simulation) -> list[Aside]:
    return [row for row in sim._all("aside") if isinstance(row, Aside)]


# --- values


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-5", "soon"])
def test_an_announced_end_that_is_no_number_of_seconds_leaves_the_store_readable(opened: OpenSim, seconds: str) -> None:
    sim = opened()
    report(sim, sim.nodes[0], Observed(node=sim.nodes[0], kind="node.going_down", fields={"seconds": seconds}))
    sim.run(5)
    announced = sim.node(sim.nodes[0]).going_down
    assert announced is not None
    sim.hosts[0].crash()
    sim.world.write_line(sim.nodes[0], "xid.79", 0)
    sim.world.write_line(sim.nodes[1], "xid.79", 0)
    sim.run(60)
    assert ill(sim, sim.nodes[0])
    assert ill(sim, sim.nodes[1])
    assert told(sim) == []


# --- rows that cannot be read


def test_a_node_whose_row_cannot_be_read_is_set_aside_and_all_others_are_healed(opened: OpenSim) -> None:
    sim = opened()
    bad, well = sim.nodes[:2]
    sim.run(60)
    poison(sim, f"node:{bad}")
    sim.run(30)
    sim.world.write_line(bad, "xid.79", 0)
    sim.world.write_line(well, "xid.79", 0)
    assert sim.run_until(lambda: bool(ill(sim, well)) and ill(sim, well)[0].phase is Phase.RELEASED, DAY)
    assert ill(sim, bad) == []
    assert any(f"the row node:{bad} in the store cannot be read" in text for text in told(sim))
    assert len(told(sim)) < 10, "a person is told once and reminded, not for every fact"


def test_an_incident_whose_row_cannot_be_read_is_set_aside_with_growing_back_off_and_reminders(opened: OpenSim) -> None:
    pace = replace(load_policy("default").pace, held_reminder=timedelta(minutes=20))
    sim = opened(policy_with(pace=pace))
    sick, well = sim.nodes[:2]
    sim.world.write_line(sick, "xid.79", 0)
    assert sim.run_until(lambda: bool(ill(sim, sick)), HOUR)
    key = f"incident:{ill(sim, sick)[0].id}"
    poison(sim, key)
    sim.run(HOUR)
    rows = [row for row in set_aside(sim) if row.subject == key]
    assert [4 <= row.times <= 7 for row in rows] == [True], "later and later: not every minute"
    mine = [text for text in told(sim) if text.startswith(f"{key} could not be planned")]
    assert 2 <= len(mine) <= 4, "told at once, and reminded"
    sim.world.write_line(well, "xid.79", 0)
    sim.run(60)
    waits = [incident.wait.because for incident in ill(sim, well) if incident.wait is not None]
    assert waits == ["pool sim/train may lack 1 of its seats and lacks 1 already"], "all others are judged as ever"


def test_what_is_set_aside_stays_so_over_a_restart_and_is_forgotten_when_it_can_be_planned_again(
    opened: OpenSim,
) -> None:
    sim = opened()
    sick = sim.nodes[0]
    sim.world.write_line(sick, "xid.79", 0)
    assert sim.run_until(lambda: bool(ill(sim, sick)), HOUR)
    incident = ill(sim, sick)[0]
    key = f"incident:{incident.id}"
    poison(sim, key)
    sim.run(600)
    assert key in [row.subject for row in set_aside(sim)]
    before = len(told(sim))
    sim.hosts[0].crash()
    sim.run(600)
    assert len(told(sim)) == before, "a restart is no news"
    mend(sim, incident)
    assert sim.run_until(lambda: key not in [row.subject for row in set_aside(sim)], 2 * HOUR)
    assert "can be planned again" in [line.text for line in sim.store.story(key)]


def mend(sim: Simulation, incident: Incident) -> None:
    """The row comes back from a backup."""
    body = msgspec.json.encode(incident)
    if isinstance(sim.store, MemoryStore):
        sim.store._bodies[f"incident:{incident.id}"] = body
    else:
        assert isinstance(sim.store, SqlStore)
        assert isinstance(sim.store._db, Sqlite)
        sim.store._db._writer.exec_driver_sql(
            "UPDATE nouns SET body = ? WHERE key = ?", (body, f"incident:{incident.id}")
        )
    sim.hosts[0].crash()


def test_a_stored_fact_that_cannot_be_read_is_set_aside_and_those_after_it_are_learned(opened: OpenSim) -> None:
    sim = opened()
    bad, well = sim.nodes[:2]
    sim.run(60)
    sim.hosts[0].crash(down_for=30.0)
    report(sim, bad, Observed(node=bad, kind="xid", fields={"number": 79, "device": 0}))
    if isinstance(sim.store, MemoryStore):
        pytest.skip("facts in memory are kept as values")
    assert isinstance(sim.store, SqlStore)
    assert isinstance(sim.store._db, Sqlite)
    sim.store._db._writer.exec_driver_sql(
        "UPDATE facts SET body = substr(body, 1, 30) WHERE seq = (SELECT max(seq) FROM facts)"
    )
    report(sim, well, Observed(node=well, kind="xid", fields={"number": 79, "device": 0}))
    sim.run(120)
    assert ill(sim, well)
    assert not [incident for incident in ill(sim, bad) if incident.fault.code == "xid.79"]
    assert any("could not be learned" in text for text in told(sim))


# --- many jobs on one node


@pytest.mark.slow
@pytest.mark.parametrize(("trouble", "jobs"), [("lost", 200), ("rebooted", 60), ("deleted", 60), ("ordered", 60)])
def test_two_hundred_jobs_on_one_node_are_all_called_a_few_in_each_unit(trouble: str, jobs: int) -> None:
    policy = replace(load_policy("default"), examine=())
    sim = Simulation(Plan(nodes=1, gpus=jobs, strict=False), policy=policy)
    node = sim.nodes[0]
    for number in range(jobs):
        sim.submit(f"j{number}", Programme(steps=10**6, checkpoint_every=1000), nodes=1, gpus_per_node=1)

    def states() -> set[str]:
        return {str(job.state) for job in sim.jobs()}

    assert sim.run_until(lambda: len(sim.jobs()) == jobs and states() == {"RUNNING"}, 2 * HOUR)
    match trouble:
        case "lost":
            sim.world.lose_node(node)
        case "rebooted":
            sim.world.operator_reboots(node)
        case "deleted":
            sim.world.operator_deletes(node)
        case "ordered":
            sim.order("reboot", node, now=True)
    sim.run(300)
    assert all(job.attempt > 1 or job.interruptions for job in sim.jobs())
    assert sim._all("errand") == []


# --- large gangs

LONG = ClusterRules(id="eks-production-training-cluster-us-west-2")


def largest_rows(sim: Simulation) -> dict[str, int]:
    """Bytes of the largest row of each kind."""
    assert isinstance(sim.store, MemoryStore)
    largest: dict[str, int] = {}
    for key, body in sim.store._bodies.items():
        largest[kind_of(key)] = max(largest.get(kind_of(key), 0), len(body))
    return largest


def head(sim: Simulation, job: JobId) -> Job:
    """The job's row as it is stored, without its nodes."""
    row = sim.store.load([f"job:{job}"])[f"job:{job}"].row
    return row if isinstance(row, Job) else Job(id=job, spec=JobSpec(name="", cluster="", pool=""), submitted_at=EPOCH)


@pytest.mark.slow
def test_a_gang_of_many_nodes_is_gated_interrupted_and_started_again_in_rows_of_bounded_size() -> None:
    sim = Simulation(Plan(nodes=1_015, cluster=LONG, strict=False))
    job = sim.submit("llama", Programme(steps=10**7, checkpoint_every=1000), nodes=1_010, precheck=1)
    assert sim.run_until(lambda: head(sim, job).state is JobState.RUNNING, 2 * HOUR)
    sim.world.write_line(min(sim.job(job).claim), "xid.79", 0)
    assert sim.run_until(lambda: head(sim, job).state is JobState.RUNNING and head(sim, job).attempt == 2, DAY)
    assert len(sim.job(job).claim) == len(sim.job(job).ranks) == 1_010
    assert head(sim, job).claim == {}
    rows = largest_rows(sim)
    assert rows["job"] < 10_000
    assert rows["intent"] < 10_000
    assert rows["part"] < 150_000
    assert rows["roster"] < 80_000
    assert set_aside(sim) == []


def test_a_text_of_half_a_megabyte_is_stored_once_and_short(opened: OpenSim) -> None:
    sim = opened()
    sick, well = sim.nodes[:2]
    news = Observed(node=sick, kind="xid", fields={"number": 79, "device": 0}, text="x" * 450_000)
    report(sim, sick, news)
    sim.world.write_line(well, "xid.79", 0)
    sim.run(60)
    assert ill(sim, sick)
    assert ill(sim, well)
    assert len(msgspec.json.encode(ill(sim, sick)[0])) < 20_000
    assert max(len(fact.news.text) for fact in sim.store.facts(0) if isinstance(fact.news, Observed)) < 3_000
    assert set_aside(sim) == []


def test_what_was_said_while_a_row_could_not_be_read_is_learned_from_the_next_list() -> None:
    sim = Simulation(Plan(nodes=3, forgiving=True))
    sim.invariants.poisoned = set()
    node = sim.nodes[0]
    sim.order("cordon", node)
    sim.run(120)
    (incident,) = ill(sim, node)
    assert sim.node(node).cordons == (f"sickbay:{incident.id}",)
    sim.damage(f"incident:{incident.id}", 300.0)
    sim.world.operator_uncordons(node)  # while nobody reads; after it nothing happens on the cluster
    sim.run(200)
    assert any("could not be learned" in text for text in told(sim))
    sim.run(600)
    assert sim.node(node).cordons == ()
    assert ill(sim, node)[0].phase is Phase.DISMISSED
