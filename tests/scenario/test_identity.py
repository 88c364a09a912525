"""Cluster and agent speak of one machine and do not know the same things of it."""

import pytest
from msgspec.structs import replace
from tests.scenario.wards import DAY, HOUR, OpenWard

from sickbay.engine.reception import Reception
from sickbay.model.facts import Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import AgentState, Incarnation, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.model.protocol import Item, Report
from sickbay.sim.ground import ClusterRules
from sickbay.sim.simulation import CLUSTER

KNOWS = {
    "kubernetes": frozenset({"uid", "instance", "boot"}),
    "kubernetes on bare metal": frozenset({"uid", "boot"}),
    "ecs": frozenset({"uid", "instance"}),
    "slurm": frozenset[str](),
}


def telling(*fields: str) -> ClusterRules:
    return ClusterRules(id=CLUSTER, tells=frozenset(fields))


def report(node: NodeId, who: Incarnation, *news: Observed, run: str = "r0") -> Report:
    items = tuple(Item(seq=n, mono=5.0, news=one) for n, one in enumerate(news, start=1))
    return Report(
        proto=1, node=node, instance_id=who.instance_id, boot_id=who.boot_id, agent_run=run, first_seq=1,
        mono_now=5.0, wall_now=0.0, watermark=5.0, items=items,
    )  # fmt: skip


def xid(node: NodeId, number: int = 79) -> Observed:
    text = f"NVRM: Xid (PCI:0000:10:00): {number}, GPU has fallen off the bus."
    return Observed(node=node, kind="xid", fields={"number": number, "device": 0}, text=text)


@pytest.fixture(params=KNOWS, ids=str)
def cluster(request: pytest.FixtureRequest) -> ClusterRules:
    return ClusterRules(id=CLUSTER, tells=KNOWS[request.param])


def test_an_agent_is_heard_whatever_its_cluster_can_tell_of_the_node(ward: OpenWard, cluster: ClusterRules) -> None:
    w = ward(cluster=cluster)
    w.run(120)
    for node in w.nodes:
        row, truth = w.node(node), w.world.seat(node).incarnation
        assert row.agent is AgentState.HEARD
        assert row.claimable
        assert row.incarnation is not None
        assert row.incarnation.agrees(truth)
        assert (row.incarnation.instance_id, row.incarnation.boot_id) == (truth.instance_id, truth.boot_id)


def test_the_agents_first_word_ends_no_job_that_runs_there(ward: OpenWard, cluster: ClusterRules) -> None:
    w = ward(cluster=cluster)
    job = w.training(nodes=2, steps=100_000)
    for node in w.nodes:
        w.world.lose_agent(node)
    w.run(HOUR)
    for node in w.nodes:
        w.world.restore_agent(node)
    w.run(HOUR)
    assert (w.state(job), w.job(job).attempt, w.job(job).interruptions) == (JobState.RUNNING, 1, ())


def test_a_fault_is_repaired_and_proven_whatever_the_cluster_can_tell(ward: OpenWard, cluster: ClusterRules) -> None:
    w = ward(cluster=cluster)
    w.sick(w.nodes[0], "xid.79", Remedy.REBOOT)
    w.reaches(w.nodes[0], Phase.RELEASED)
    assert w.rungs(w.nodes[0]) == ["reboot"]
    assert w.happened("reboot", w.nodes[0])
    w.rests()


def test_a_replacement_is_seen_and_proven_whatever_the_cluster_can_tell(ward: OpenWard, cluster: ClusterRules) -> None:
    w = ward(cluster=cluster)
    w.sick(w.nodes[0], "xid.79", None)
    w.reaches(w.nodes[0], Phase.RELEASED, 3 * DAY)
    assert w.rungs(w.nodes[0])[-1] == "replace"
    row, truth = w.node(w.nodes[0]), w.world.seat(w.nodes[0]).incarnation
    assert row.incarnation is not None
    assert row.incarnation.instance_id == truth.instance_id
    w.rests()


def test_a_reboot_that_the_cluster_cannot_tell_is_learned_from_the_agent(ward: OpenWard) -> None:
    w = ward(cluster=telling())
    job = w.training(nodes=4, steps=100_000)
    before = w.node(w.nodes[0]).incarnation
    w.world.operator_reboots(w.nodes[0])
    w.until(lambda: bool(w.job(job).interruptions), HOUR)
    w.until(lambda: w.node(w.nodes[0]).agent is AgentState.HEARD and w.node(w.nodes[0]).incarnation != before, HOUR)
    row = w.node(w.nodes[0])
    assert before is not None
    assert row.incarnation == replace(before, boot_id=w.world.seat(w.nodes[0]).incarnation.boot_id)
    assert row.ended_boots == (before.boot_id,)


@pytest.mark.parametrize("boots", [1, 2, 5])
def test_a_sign_of_life_from_some_boots_ago_is_history(ward: OpenWard, boots: int) -> None:
    w = ward(nodes=2)
    old = w.world.seat(w.nodes[0]).incarnation
    for _ in range(boots):
        w.world.operator_reboots(w.nodes[0])
        w.run(900)
    job = w.training(nodes=2, steps=100_000)
    Reception(w.sim.store, w.sim.clock).receive(report(w.nodes[0], old))
    w.sim.hosts[0].wake()
    w.run(300)
    assert w.node(w.nodes[0]).incarnation == w.world.seat(w.nodes[0]).incarnation
    assert (w.state(job), w.job(job).interruptions) == (JobState.RUNNING, ())


@pytest.mark.parametrize("boots", [1, 2, 5])
def test_a_fault_from_some_boots_ago_is_history(ward: OpenWard, boots: int) -> None:
    w = ward(nodes=2)
    old = w.world.seat(w.nodes[0]).incarnation
    for _ in range(boots):
        w.world.operator_reboots(w.nodes[0])
        w.run(900)
    Reception(w.sim.store, w.sim.clock).receive(report(w.nodes[0], old, xid(w.nodes[0])))
    w.sim.hosts[0].wake()
    w.run(300)
    assert not w.incidents(w.nodes[0])
    assert "history only" in w.story(w.nodes[0])


def test_a_node_that_registers_anew_under_the_same_boot_is_neither_rebooted_nor_new(
    ward: OpenWard, cluster: ClusterRules
) -> None:
    w = ward(cluster=cluster)
    job = w.training(nodes=4, steps=100_000)
    seat = w.world.seat(w.nodes[0])
    seat.incarnation = seat.shown = replace(seat.incarnation, uid="uid-anew")
    w.world.ground.show(seat)
    w.run(600)
    row = w.node(w.nodes[0])
    assert row.incarnation is not None
    assert row.incarnation.uid == ("uid-anew" if "uid" in cluster.tells else "")
    assert row.ended_boots == ()
    assert row.agent is AgentState.HEARD
    assert (w.state(job), w.job(job).interruptions) == (JobState.RUNNING, ())
    assert not w.sim.incidents(w.nodes[0], intake=True)
