"""Pools belong to clusters, nodes move between them, and a job's pool need not be its nodes'."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.brain.admit import fits, limit_for, next_opening
from sickbay.engine.execute import Effects, Site
from sickbay.model.facts import Submitted
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, Ledger, NodeId, Withhold, pool_of
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec, JobState
from sickbay.model.policy import Limit, Match, Window
from sickbay.sim.adapters import SimChecks, SimCluster, SimMachines
from sickbay.sim.context import ClusterRules
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import CLUSTER, POOL, Plan, Simulation

LONG = Programme(steps=1_000_000, checkpoint_every=100)


class TwoClusters(Simulation):
    """A second cluster beside the first, with a pool of the same name."""

    def _hands(self) -> Effects:
        self.world.add_cluster(ClusterRules(id="other"))
        self.others = self.world.add_nodes("other", self.plan.nodes, pool=POOL, gpus=self.plan.gpus)
        ours = super()._hands()
        site = Site(SimCluster(self.world, "other"), SimMachines(self.world, "other"), SimChecks(self.world, "other"))
        return Effects(sites={**ours.sites, "other": site}, notifiers=ours.notifiers)


def ledger(w: Ward | Simulation, pool: str) -> Ledger:
    store = w.sim.store if isinstance(w, Ward) else w.store
    row = store.load([f"ledger:{pool}"])[f"ledger:{pool}"].row
    assert isinstance(row, Ledger), f"no ledger {pool}"
    return row


def move(w: Ward, node: NodeId, pool: str) -> None:
    """Somebody gives the node another label."""
    seat = w.world.seat(node)
    seat.pool = pool
    w.world.ground.show(seat)
    w.run(30)


# --- two clusters


def test_two_clusters_with_a_pool_of_one_name_have_two_ledgers() -> None:
    sim = TwoClusters(Plan(nodes=4))
    sim.run(60)
    assert ledger(sim, "sim/train").seats == ledger(sim, "other/train").seats == 4
    assert {sim.node(node).pool for node in sim.others} == {"other/train"}


def test_a_job_is_never_placed_on_another_clusters_nodes() -> None:
    sim = TwoClusters(Plan(nodes=2))
    job = sim.submit("train", LONG, nodes=3)
    sim.run(600)
    assert sim.job(job).state is JobState.QUEUED
    assert not sim.world.running(job)


def test_what_is_out_in_one_cluster_takes_nothing_from_the_pool_of_the_other() -> None:
    sim = TwoClusters(Plan(nodes=4))
    sim.order("cordon", sim.nodes[0])
    sim.order("cordon", sim.others[0])
    sim.run(300)
    assert (ledger(sim, "sim/train").out, ledger(sim, "other/train").out) == (1, 1)


# --- a node that moves


def test_a_node_that_changes_its_pool_while_it_is_out_is_booked_in_both_ledgers(ward: OpenWard) -> None:
    w = ward()
    w.order("cordon", w.nodes[0])
    w.run(60)
    move(w, w.nodes[0], "infer")
    train, infer = ledger(w, "sim/train"), ledger(w, "sim/infer")
    assert (train.seats, train.out, train.held) == (3, 0, 0)
    assert (infer.seats, infer.out, infer.held) == (1, 1, 1)
    w.order("uncordon", w.nodes[0])
    w.rests()
    train, infer = ledger(w, "sim/train"), ledger(w, "sim/infer")
    assert (train.seats, train.out, train.held) == (3, 0, 0)
    assert (infer.seats, infer.out, infer.held) == (1, 0, 0)


def test_after_a_node_has_moved_the_pool_that_it_left_is_healed_as_before(ward: OpenWard) -> None:
    w = ward()
    w.order("cordon", w.nodes[0])
    w.run(60)
    move(w, w.nodes[0], "infer")
    w.sick(w.nodes[1])
    w.reaches(w.nodes[1], Phase.RELEASED)


def test_a_node_that_moves_in_mid_repair_takes_its_repair_along(ward: OpenWard) -> None:
    w = ward()
    w.sick(w.nodes[0])
    w.reaches(w.nodes[0], Phase.REPAIRING)
    assert ledger(w, "sim/train").repairing == 1
    move(w, w.nodes[0], "infer")
    assert w.phase(w.nodes[0]) == Phase.REPAIRING
    assert w.incident(w.nodes[0]).pool == "sim/infer"
    assert (ledger(w, "sim/train").repairing, ledger(w, "sim/infer").repairing) == (0, 1)
    w.reaches(w.nodes[0], Phase.RELEASED)
    assert (ledger(w, "sim/train").repairing, ledger(w, "sim/infer").repairing) == (0, 0)
    w.rests()


def test_a_node_that_moved_under_a_job_is_not_repaired_before_the_job_is_off(ward: OpenWard) -> None:
    w = ward()
    job = w.running(nodes=2, steps=1_000_000)
    victim = next(iter(w.job(job).claim))
    move(w, victim, "infer")
    w.sick(victim, "xid.79", Remedy.REBOOT, kills_ranks=False)
    w.reaches(victim, Phase.RELEASED)
    assert w.job(job).attempt == 2
    assert [cause for cause in w.job(job).interruptions if w.incident(victim).id in cause.incidents]


def test_a_node_of_another_pool_is_not_claimed_twice(ward: OpenWard) -> None:
    """The first job keeps its node when that moves; a job of the new pool does not get the same devices."""
    w = ward(nodes=2)
    first = w.running("first", nodes=1, steps=1_000_000)
    (node,) = w.job(first).claim
    move(w, node, "infer")
    second = JobId("second")
    w.world.programme(second, LONG)
    spec = JobSpec(name="second", cluster=CLUSTER, pool="infer", nodes=1)
    submit(w, second, spec)
    w.run(600)
    assert w.state(second) == JobState.QUEUED
    w.order("stop", first)
    w.until(lambda: w.state(second) == JobState.RUNNING, HOUR)
    w.sim.invariants.at_rest()


def submit(w: Ward, job: JobId, spec: JobSpec) -> None:
    assert w.sim.hosts[0].tell(f"submit/{job}", Submitted(job=job, spec=spec))


# --- a job whose pool is not its nodes'


PARTITION = JobSpec(name="debug", cluster=CLUSTER, pool="debug", nodes=2)


def test_a_node_that_is_kept_for_a_job_and_moves_is_for_those_of_its_new_pool() -> None:
    w = Ward(nodes=3)
    kept = w.training("kept", nodes=3, steps=20_000)
    w.order("drain", w.nodes[0])
    w.until(lambda: w.state(kept) == JobState.QUEUED, HOUR)
    move(w, w.nodes[1], "infer")
    other = JobId("other")
    w.world.programme(other, Programme(steps=100))
    submit(w, other, JobSpec(name="other", cluster=CLUSTER, pool="infer", nodes=1))
    w.ends(other, most=HOUR / 2)
    assert w.job(kept).place_until is not None
    w.run(2 * HOUR)


def test_no_node_is_repaired_under_an_adopted_job_that_names_another_pool(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("place"))
    w.sim.mischief.outage("cluster:sim", w.sim.scheduler.now, w.sim.scheduler.now + 120)
    w.world.submit_to_cluster(JobId("debug"), replace(PARTITION, pool=POOL), LONG)
    w.until(lambda: bool(w.world.running(JobId("debug"))), HOUR)
    job = w.world.workload.job(JobId("debug"))
    assert job is not None
    job.spec = PARTITION  # what the cluster says of it; its nodes are in another pool
    w.world.workload.show(job, job.attempts[1])
    w.run(180)
    assert w.job(JobId("debug")).pool == "sim/debug"
    victim = w.world.running(JobId("debug"))[0][1][0]
    w.sick(victim, "xid.79", Remedy.REBOOT, kills_ranks=False)
    w.reaches(victim, Phase.RELEASED)


def test_a_job_that_names_a_partition_of_no_nodes_pool_is_given_to_its_cluster(ward: OpenWard) -> None:
    w = ward(cluster=cluster_without("place"))
    for node in w.nodes[:2]:
        move(w, node, "other")
    job = JobId("debug")
    w.world.programme(job, LONG)
    submit(w, job, PARTITION)
    w.run(120)
    assert w.job(job).state is JobState.GATING
    assert w.job(job).intent


# --- what people write


@pytest.mark.parametrize("glob", ["train", "tr*", "sim/train", "sim/*", "*"])
def test_globs_for_pools_are_written_with_the_cluster_or_without(ward: OpenWard, glob: str) -> None:
    w = ward()
    w.sick(w.nodes[0])
    incident = w.reaches(w.nodes[0], Phase.QUARANTINED)
    node = w.node(w.nodes[0])
    assert node.pool == "sim/train"
    assert limit_for(node.pool, policy_with(limits=(Limit(pool=glob, out_absolute=7),))).out_absolute == 7
    assert fits(Withhold(id="a", because="b", by="c", pool=glob), incident, node)
    assert Match(pool=glob).fits(incident.fault, pool=node.pool, node=node.id)
    night = (Window(pool=glob, start="03:00", end="04:00", why="w"),)
    assert next_opening(night, node.pool, w.world.ground.stamp(12 * HOUR)) is not None


@pytest.mark.parametrize("pool", ["train", "sim/train"])
def test_a_check_of_a_pool_takes_its_name_in_either_form(ward: OpenWard, pool: str) -> None:
    w = ward()
    w.run(60)
    w.order("check", "", pool=pool, level="1")
    w.run(600)
    assert {e.subject for e in w.world.chronicle.events if e.what == "check.pass"} == set(w.nodes)


# --- a gang that lies in more pools than a unit has room for

MANY = 120


def racks(w: Ward) -> None:
    """Each node in a pool of its own."""
    for number, node in enumerate(w.nodes):
        seat = w.world.seat(node)
        seat.pool = f"rack-{number:03}"
        w.world.ground.show(seat)
    w.run(60)


def errands(w: Ward) -> list[str]:
    return [key for key in w.sim.store.keys("errand") if key.startswith("errand:pools/")]


def test_a_job_whose_nodes_are_in_very_many_pools_is_stopped_and_they_are_free(ward: OpenWard) -> None:
    w = ward(nodes=MANY)
    job = w.running(nodes=MANY, steps=10**6)
    racks(w)
    waits = [w.sim.submit(f"next-{n}", LONG, nodes=1, pool=pool_of(CLUSTER, f"rack-{n:03}")) for n in (0, MANY - 1)]
    w.run(60)
    assert {w.job(each).state for each in waits} == {JobState.QUEUED}
    w.order("stop", job)
    w.until(lambda: w.job(job).state is JobState.STOPPED, HOUR)
    w.until(lambda: all(w.job(each).state is JobState.RUNNING for each in waits), 300)  # long before a reminder
    assert w.told("set_aside") == []
    assert errands(w) == []


def test_an_adopted_gang_in_very_many_pools_is_known_and_no_node_is_repaired_under_it(ward: OpenWard) -> None:
    w = ward(nodes=MANY, cluster=cluster_without("place", mixes_pools=True))
    racks(w)
    gang = JobId("gang")
    w.world.submit_to_cluster(gang, JobSpec(name="gang", cluster=CLUSTER, pool=POOL, nodes=MANY), LONG)
    w.until(lambda: bool(w.world.running(gang)), HOUR)
    w.run(120)
    assert len(w.job(gang).claim) == MANY
    turns = [ledger(w, pool_of(CLUSTER, f"rack-{n:03}")).turn for n in (0, MANY - 1)]
    assert min(turns) > 0
    w.sick(w.nodes[0], kills_ranks=False)
    w.reaches(w.nodes[0], Phase.RELEASED, HOUR)
    assert w.world.chronicle.violations == []
    assert w.told("set_aside") == []
    assert errands(w) == []
