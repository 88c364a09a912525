"""The harder parts of the simulated world do what they claim."""

import pytest
from tests.unit.test_sim_world import JOB, Bench

from sickbay.model.errors import Rejected, Transient
from sickbay.model.fleet import Capability, DrainHow
from sickbay.model.job import JobSpec
from sickbay.sim.context import CLUSTER_CAN, Timings
from sickbay.sim.hardness import Dice, Trouble


def test_an_outage_of_writes_leaves_reads_alone_and_the_reverse() -> None:
    bench = Bench()
    now = bench.scheduler.now
    bench.mischief.outage("writes:c", now, now + 100)
    with pytest.raises(Transient):
        bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
    assert bench.seen(bench.a).ready
    bench.run(100)
    bench.mischief.outage("reads:c", now + 100, now + 200)
    bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k2", expect=None)
    with pytest.raises(Transient):
        bench.cluster.snapshot()


def test_a_replaced_machine_may_come_without_our_cordon() -> None:
    bench = Bench(keeps_cordons=False)
    bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
    bench.world.operator_replaces(bench.a)
    bench.run(2000)
    assert bench.seen(bench.a).cordons == ()


def test_a_machine_that_is_registered_anew_keeps_its_boot_and_loses_its_cordons() -> None:
    bench = Bench()
    before = bench.holder(bench.a)
    bench.cluster.cordon(bench.a, owner="sickbay:i", reason="r", key="k", expect=None)
    bench.world.operator_registers_anew(bench.a)
    bench.run(10)
    after = bench.seen(bench.a)
    assert after.cordons == ()
    assert (after.incarnation.boot_id, after.incarnation.instance_id) == (before.boot_id, before.instance_id)
    assert after.incarnation.uid != before.uid


def test_a_disruption_budget_keeps_work_from_being_evicted_at_first() -> None:
    bench = Bench(rules=Timings(budget_holds=300.0, work_lasts=90_000.0))
    assert bench.world.other_scheduler_starts_work(bench.a)
    bench.cluster.drain(bench.a, how=DrainHow.EVICT, key="d1", expect=None)
    bench.run(100)
    assert bench.seen(bench.a).unmanaged == 1
    bench.run(300)
    bench.cluster.drain(bench.a, how=DrainHow.EVICT, key="d2", expect=None)
    bench.run(100)
    assert bench.seen(bench.a).unmanaged == 0


def test_the_world_sees_a_repair_under_unmanaged_work() -> None:
    bench = Bench()
    assert bench.world.other_scheduler_starts_work(bench.a)
    bench.machines.reboot(bench.a, key="k", expect=bench.holder(bench.a))
    assert bench.violations() == ["repair_on_work"]


def test_a_start_where_anothers_job_runs_is_refused() -> None:
    bench = Bench()
    bench.world.submit_to_cluster(JOB, bench.spec(1))
    bench.run(200)
    (node,) = bench.job().ranks
    spec = JobSpec(name="k", cluster="c", pool="train", nodes=1)
    with pytest.raises(Rejected, match="in use"):
        bench.cluster.start(spec.name, 1, spec=spec, nodes={node: ()}, avoid=(), key="s")  # type: ignore[arg-type]


def test_a_scheduler_that_mixes_pools_does_not_ask_for_the_jobs() -> None:
    bench = Bench(capabilities=CLUSTER_CAN - {Capability.PLACE}, mixes_pools=True)
    for node in bench.nodes:
        bench.world.operator_moves(node, "infer")
    bench.world.submit_to_cluster(JOB, bench.spec(1))
    bench.run(200)
    assert len(bench.job().ranks) == 1


def test_a_trouble_that_is_switched_off_changes_no_other_stream_of_chance() -> None:
    with_storms, without = Dice(7, {Trouble.STORMS, Trouble.MOVES}), Dice(7, {Trouble.MOVES})
    for dice in (with_storms, without):
        dice.meets(Trouble.STORMS)
    assert with_storms.of(Trouble.MOVES).random() == without.of(Trouble.MOVES).random()
    assert with_storms.main.random() == without.main.random()
