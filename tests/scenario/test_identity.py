"""Cluster and agent speak of one machine and do not know the same things of it."""

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace
from tests.support.wards import (
    DAY,
    HOUR,
    OPENS_AT_THREE,
    OpenWard,
    Ward,
    cluster_without,
    in_phase,
    policy_with,
)

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.engine.ingest import Ingest
from sickbay.engine.plan import plan
from sickbay.engine.reception import Reception
from sickbay.engine.view import Draft, Rules, View, moment
from sickbay.knowledge.load import load_tables
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.facts import AgentHeard, EarlyAgent, Fact, Observed
from sickbay.model.fault import Remedy
from sickbay.model.fleet import AgentState, Capability, Incarnation, JobId, Node, NodeId
from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.intent import Intent
from sickbay.model.job import JobSpec, JobState
from sickbay.model.protocol import Item, Report
from sickbay.model.rows import Unit
from sickbay.policy.load import load_policy
from sickbay.sim.context import ClusterRules
from sickbay.sim.hardware import SimSeat
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import CLUSTER, POOL

KNOWS = {
    "kubernetes": frozenset({"uid", "instance", "boot"}),
    "kubernetes on bare metal": frozenset({"uid", "boot"}),
    "ecs": frozenset({"uid", "instance"}),
    "names of registrations": frozenset({"uid"}),
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
    job = w.running(nodes=2, steps=100_000)
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
    job = w.running(nodes=4, steps=100_000)
    before = w.node(w.nodes[0]).incarnation
    w.world.operator_reboots(w.nodes[0])
    w.until(lambda: bool(w.job(job).interruptions), HOUR)
    w.until(lambda: w.node(w.nodes[0]).agent is AgentState.HEARD and w.node(w.nodes[0]).incarnation != before, HOUR)
    row = w.node(w.nodes[0])
    assert before is not None
    assert row.incarnation == replace(before, boot_id=w.world.seat(w.nodes[0]).incarnation.boot_id)
    assert row.ended_boots == (before.boot_id,)


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_job_that_began_after_a_reboot_that_nobody_heard_of_is_left_alone(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=1, cold=cold, cluster=telling("uid", "instance"))
    job = JobId("theirs")
    spec = JobSpec(name="theirs", cluster=CLUSTER, pool=POOL, nodes=1)
    w.world.submit_to_cluster(job, spec, Programme(steps=3000), native_delay=10.0)
    w.until(lambda: w.state(job) == JobState.RUNNING, HOUR)
    w.world.agents.close_ear()  # of what agents say nothing reaches us
    w.world.operator_reboots(w.nodes[0])
    w.until(lambda: w.job(job).attempt == 2, HOUR)
    w.run(120)
    w.world.agents.open_ear()
    w.run(120)
    boot = w.world.seat(w.nodes[0]).incarnation.boot_id
    row = w.node(w.nodes[0])
    assert row.incarnation is not None
    assert row.incarnation.boot_id == boot, "it is known by now"
    assert (w.state(job), w.job(job).attempt) == (JobState.RUNNING, 2)
    assert len(w.job(job).interruptions) == 1, "that of the attempt before the reboot"
    w.rests()


@pytest.mark.parametrize("boots", [1, 2, 5])
def test_a_sign_of_life_from_some_boots_ago_is_history(ward: OpenWard, boots: int) -> None:
    w = ward(nodes=2)
    old = w.world.seat(w.nodes[0]).incarnation
    for _ in range(boots):
        w.world.operator_reboots(w.nodes[0])
        w.run(900)
    job = w.running(nodes=2, steps=100_000)
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
    job = w.running(nodes=4, steps=100_000)
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


def test_an_agent_that_was_silent_when_its_node_registered_anew_is_heard_again(ward: OpenWard) -> None:
    """Nobody could tell whether this was another machine: its boot has not ended for sure."""
    w = ward(cluster=telling("uid"))
    w.world.lose_agent(w.nodes[0])
    w.until(lambda: w.node(w.nodes[0]).agent is AgentState.SILENT, HOUR)
    w.world.operator_registers_anew(w.nodes[0])
    w.run(60)
    w.world.restore_agent(w.nodes[0])
    w.run(600)
    assert w.node(w.nodes[0]).agent is AgentState.HEARD


# --- a cordon that goes with its machine


def made_anew(w: Ward, node: NodeId) -> None:
    """Whoever makes the machine registers the seat anew: nothing that was written on the old object is there."""
    w.world.operator_replaces(node)
    w.world.seat(node).cordons.clear()


@pytest.mark.parametrize("phase", [Phase.DRAINED, Phase.REPAIRING, Phase.VERIFYING, Phase.HELD])
def test_a_machine_that_comes_without_our_cordon_is_cordoned_again_and_proven(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    before = len(w.happened("check.pass", node))
    made_anew(w, node)
    w.until(lambda: len(w.happened("cordon", node)) == 2, HOUR)
    w.run(60)
    if phase is Phase.HELD:
        assert w.phase(node) == Phase.HELD
        w.order("confirm", w.incident(node).id)
    w.reaches(node, Phase.RELEASED)
    assert len(w.happened("check.pass", node)) > before
    assert not {Phase.DISMISSED, Phase.GONE} & {stage.phase for stage in w.incident(node).stages}
    w.rests()


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.VERIFYING, Phase.HELD])
def test_a_node_that_registers_anew_without_our_cordon_is_cordoned_again(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    seat = w.world.seat(node)
    seat.incarnation = seat.shown = replace(seat.incarnation, uid="uid-anew")
    seat.cordons.clear()
    w.world.ground.show(seat)
    w.until(lambda: len(w.happened("cordon", node)) == 2, HOUR)
    w.run(60)
    assert w.phase(node) != Phase.DISMISSED


@pytest.mark.parametrize("phase", [Phase.DRAINED, Phase.HELD])
def test_seats_that_come_back_without_our_cordon_do_not_wait_for_each_other(ward: OpenWard, phase: Phase) -> None:
    """Lost seats may be more than the limit; when they serve again, one after the other is taken out of service."""
    policy = policy_with(windows=OPENS_AT_THREE) if phase is Phase.DRAINED else None
    lacks = ("reboot", "replace") if phase is Phase.HELD else ()
    w = ward(nodes=4, policy=policy, cluster=cluster_without(*lacks))
    lost = w.nodes[:2]
    for node in lost:
        w.world.lose_node(node, back_by=Remedy.REPLACE)
    for node in lost:
        w.reaches(node, phase, 2 * HOUR)
    for node in lost:
        made_anew(w, node)
    w.run(HOUR)
    for node in lost if phase is Phase.HELD else ():
        w.order("confirm", w.incident(node).id)
    w.rests()
    assert {w.phase(node) for node in lost} == {Phase.RELEASED}, w.why()


def test_our_own_replacement_without_our_cordon_is_cordoned_again_and_proven(ward: OpenWard) -> None:
    w = ward()
    w.sick(w.nodes[0], "xid.79", None)
    w.until(lambda: bool(w.happened("replace", w.nodes[0])))
    began = w.sim.scheduler.now
    w.world.seat(w.nodes[0]).cordons.clear()
    w.reaches(w.nodes[0], Phase.RELEASED)
    passed = [e for e in w.world.chronicle.events if e.what == "check.pass" and e.subject == w.nodes[0]]
    assert [e for e in passed if e.at > began]


@pytest.mark.parametrize("when", ["with the reboot", "after the new boot was told"])
def test_a_cluster_that_lifts_our_cordon_with_a_reboot_is_no_person(ward: OpenWard, when: str) -> None:
    w = ward(cluster=telling())
    w.sick(w.nodes[0], "xid.79", Remedy.REBOOT)
    w.reaches(w.nodes[0], Phase.REPAIRING)
    w.until(lambda: bool(w.happened("reboot", w.nodes[0])), HOUR)
    seat = w.world.seat(w.nodes[0])
    if when == "with the reboot":
        w.run(30)
    else:
        w.reaches(w.nodes[0], Phase.VERIFYING, HOUR)
    seat.cordons.clear()
    w.world.ground.show(seat)
    w.run(60)
    assert w.phase(w.nodes[0]) in {Phase.REPAIRING, Phase.VERIFYING}
    w.reaches(w.nodes[0], Phase.RELEASED)
    w.rests()


def test_a_person_who_takes_our_cordon_off_is_believed_once_it_was_seen_again(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.HELD)
    made_anew(w, node)
    w.until(lambda: w.world.seat(node).ours and w.incident(node).cordon_as_of is not None, DAY)
    w.run(60)
    w.world.operator_uncordons(node)
    w.reaches(node, Phase.DISMISSED, HOUR)


def test_a_node_that_is_deleted_while_it_is_out_is_checked_when_it_comes_back(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.HELD)
    seat = w.world.seat(node)
    w.world.ground.vanish(seat)
    w.reaches(node, Phase.GONE, HOUR)
    register(w, seat)
    w.run(60)
    assert w.incident(node).kind is IncidentKind.INTAKE
    w.reaches(node, Phase.HELD)  # it is as sick as before
    assert not w.node(node).claimable


def known(w: Ward) -> list[str]:
    return [key.removeprefix("node:") for key in w.sim.store.keys("node")]


def register(w: Ward, seat: SimSeat, **changed: str) -> None:
    """The machine registers with its cluster, which knew nothing of it."""
    seat.cordons.clear()
    seat.incarnation = seat.shown = replace(seat.incarnation, **changed)
    w.world.ground.seats[seat.id] = seat
    w.world.ground.show(seat)


def test_a_node_that_is_deleted_and_registers_again_under_the_same_boot_is_known_and_heard(
    ward: OpenWard, cluster: ClusterRules
) -> None:
    w = ward(cluster=cluster)
    w.run(120)
    seat = w.world.seat(w.nodes[0])
    w.world.ground.vanish(seat)
    w.until(lambda: w.nodes[0] not in set(known(w)), HOUR)
    register(w, seat, uid="uid-anew")
    w.run(120)
    assert w.node(w.nodes[0]).agent is AgentState.HEARD
    assert w.node(w.nodes[0]).claimable
    if "instance" in cluster.tells or not cluster.tells:
        assert not w.sim.incidents(w.nodes[0], intake=True)


@pytest.mark.parametrize("word", ["alive", "fault"])
@pytest.mark.parametrize("vacant", [False, True], ids=["deleted", "vacant"])
def test_a_seat_that_was_gone_and_is_back_knows_its_ended_boots(
    ward: OpenWard, cluster: ClusterRules, word: str, vacant: bool
) -> None:
    """What was said under them may arrive hours later, when the seat has long been held again."""
    w = ward(nodes=2, cluster=cluster)
    node = w.nodes[0]
    olds = [w.world.seat(node).voice]
    w.world.operator_reboots(node)
    w.run(900)
    olds.append(w.world.seat(node).voice)
    if vacant:
        w.sick(node, "xid.79", Remedy.REPLACE)
        w.reaches(node, Phase.REPAIRING, HOUR)
        w.until(lambda: w.incident(node).rung is Remedy.REPLACE, HOUR)
    w.world.operator_returns(node, 120, same_machine=not vacant)
    w.run(60)
    Reception(w.sim.store, w.sim.clock).receive(report(node, olds[0]))
    w.rests()
    job = w.running(nodes=2, steps=100_000)
    for old in olds:
        said = [xid(node)] if word == "fault" else []
        Reception(w.sim.store, w.sim.clock).receive(report(node, old, *said))
        w.sim.hosts[0].wake()
        w.run(300)
        assert w.node(node).incarnation.agrees(w.world.seat(node).incarnation)
        assert (w.state(job), w.job(job).interruptions) == (JobState.RUNNING, ())


# --- a fault leaves with its machine


def test_a_suspicion_leaves_with_its_machine_and_the_newcomer_is_taken_in(ward: OpenWard) -> None:
    w = ward()
    w.order("pause", "")
    w.sick(w.nodes[0], "xid.79", Remedy.REPLACE)
    w.reaches(w.nodes[0], Phase.SUSPECT, HOUR)
    old = w.incident(w.nodes[0])
    w.world.operator_replaces(w.nodes[0])
    w.run(1800)
    w.order("unpause", "")
    w.reaches(w.nodes[0], Phase.RELEASED)
    ended, taken_in = w.sim.incidents(w.nodes[0], intake=True)
    assert (ended.id, ended.phase) == (old.id, Phase.DISMISSED)
    assert taken_in.kind is IncidentKind.INTAKE
    assert not w.rungs(w.nodes[0])
    now = w.node(w.nodes[0]).incarnation
    assert now is not None
    assert w.sim.store.load([f"record:{now.instance_id}"])[f"record:{now.instance_id}"].row is None


def test_a_lost_node_that_is_replaced_while_it_is_suspected_is_taken_in(ward: OpenWard) -> None:
    w = ward()
    w.order("pause", "")
    w.world.lose_node(w.nodes[0])
    w.reaches(w.nodes[0], Phase.SUSPECT, HOUR)
    w.world.operator_replaces(w.nodes[0])
    w.run(1800)
    w.order("unpause", "")
    w.reaches(w.nodes[0], Phase.RELEASED)
    assert w.happened("check.pass", w.nodes[0])


# --- faults that come before the cluster's word


def test_a_fault_of_a_node_that_was_never_seen_is_learned_when_it_is(ward: OpenWard) -> None:
    w = ward(policy=policy_with(examine=()))
    node = NodeId("sim/train-new")
    seat = w.world.ground.add_seat(node, pool="train", domain="d", gpus=8, linked=True)
    reception = Reception(w.sim.store, w.sim.clock)
    reception.receive(report(node, seat.incarnation, *(xid(node) for _ in range(50))))
    w.sim.hosts[0].wake()
    w.run(30)
    kept = w.sim.store.load([f"voice:{node}"])[f"voice:{node}"].row
    assert isinstance(kept, EarlyAgent)
    assert len(kept.said) == 20
    w.world.agents.refresh(seat)
    w.world.plant.cluster_hears(seat)
    w.until(lambda: bool(w.incidents(node)), HOUR)
    assert w.incident(node).fault.code == "xid.79"
    assert w.incident(node).incarnation == seat.incarnation
    assert w.sim.store.load([f"voice:{node}"])[f"voice:{node}"].row is None


@pytest.mark.parametrize("noise", [31, 79], ids=["milder", "repeated"])
def test_many_early_words_hide_none_that_is_graver_or_of_another_device(ward: OpenWard, noise: int) -> None:
    w = ward(policy=policy_with(examine=()))
    node = NodeId("sim/train-new")
    seat = w.world.ground.add_seat(node, pool="train", domain="d", gpus=8, linked=True)
    last = replace(xid(node, 79), fields={"number": 79, "device": 3}, text="Xid 79 of the fourth GPU")
    Reception(w.sim.store, w.sim.clock).receive(report(node, seat.incarnation, *[xid(node, noise)] * 30, last))
    w.sim.hosts[0].wake()
    w.run(30)
    kept = w.sim.store.load([f"voice:{node}"])[f"voice:{node}"].row
    assert isinstance(kept, EarlyAgent)
    assert (len(kept.said), kept.said[-1].news.fields["device"]) == (20, 3)
    w.world.agents.refresh(seat)
    w.world.plant.cluster_hears(seat)
    w.until(lambda: bool(w.incidents(node)), HOUR)
    assert "fourth GPU" in " ".join(w.incident(node).evidence)
    assert w.incident(node).remedy.disrupts


def test_early_words_that_nobody_confirms_hide_none_that_is_proven(ward: OpenWard) -> None:
    w = ward(policy=policy_with(examine=()))
    node = NodeId("sim/train-new")
    seat = w.world.ground.add_seat(node, pool="train", domain="d", gpus=8, linked=True)
    forged = [
        replace(xid(node, 79), fields={"number": 79, "device": n}, text="a user's", unconfirmed=True) for n in range(30)
    ]
    Reception(w.sim.store, w.sim.clock).receive(report(node, seat.incarnation, *forged, xid(node, 63), *forged))
    w.sim.hosts[0].wake()
    w.run(30)
    kept = w.sim.store.load([f"voice:{node}"])[f"voice:{node}"].row
    assert isinstance(kept, EarlyAgent)
    assert [fact.news.fields["number"] for fact in kept.said if not fact.news.unconfirmed] == [63]


@pytest.mark.parametrize("tells", ["uid instance boot", ""])
def test_a_fault_of_a_holder_that_was_not_seen_yet_is_learned_when_it_is(ward: OpenWard, tells: str) -> None:
    w = ward(policy=policy_with(examine=()), cluster=telling(*tells.split()))
    w.run(120)
    node = w.nodes[0]
    w.world.operator_replaces(node)
    w.run(60)
    new = w.world.seat(node).incarnation
    at = w.sim.clock.wall()
    fact = Fact(id="early", at=moment(at), news=replace(xid(node), incarnation=replace(new, uid="")))
    Ingest(w.sim.store, w.sim.clock, period=30.0).take([fact], {})
    w.sim.hosts[0].wake()
    w.run(30)
    assert not [i for i in w.incidents(node) if "xid.79" in " ".join(i.evidence)]
    w.until(lambda: any("xid.79" in " ".join(i.evidence) for i in w.incidents(node)), HOUR)
    found = w.incident(node)
    assert found.incarnation is not None
    assert found.incarnation.instance_id == new.instance_id


# --- agents that nobody knows


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_an_agent_that_names_another_machine_than_its_cluster_is_told_once(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=2, agentless=2, cold=cold)
    node = w.nodes[1]
    speaks = w.world.agents.voices
    speaks[node] = Incarnation(instance_id="i-elsewhere", boot_id="b")
    w.run(2 * HOUR)
    (text,) = w.told("agent_unknown")
    assert node in text
    assert "i-elsewhere" in text
    assert w.world.seat(node).incarnation.instance_id in text
    assert text in w.story(node)
    said = speaks.pop(node)
    w.run(300)
    assert w.node(node).agent is AgentState.NONE, "whoever is silent now was never the agent of this machine"
    speaks[node] = said
    w.run(2 * HOUR)
    assert len(w.told("agent_unknown")) == 1
    speaks[node] = w.world.seat(node).voice
    w.run(300)
    assert w.node(node).agent is AgentState.HEARD


def test_an_agent_of_a_node_that_no_cluster_has_is_told_once(ward: OpenWard) -> None:
    w = ward()
    node = NodeId("sim/misspelt")
    seat = w.world.ground.add_seat(node, pool="train", domain="d", gpus=8, linked=True)
    w.world.agents.refresh(seat)
    w.run(2 * HOUR)
    (text,) = w.told("agent_unknown")
    assert node in text


def test_an_agent_of_a_cluster_that_is_not_ours_is_told_at_once_and_named(ward: OpenWard) -> None:
    """Of a machine in a cluster of ours the cluster may speak yet; of this one nobody ever will."""
    w = ward()
    heard = AgentHeard(node=NodeId("lab/real-1"), incarnation=Incarnation(instance_id="i-1", boot_id="b"))
    assert w.sim.hosts[0].tell("heard/lab/real-1", heard)
    w.run(60)
    (text,) = w.told("agent_unknown")
    assert "there is no cluster lab here (there is sim)" in text


@pytest.mark.parametrize("gone", [False, True], ids=["shown", "silent"])
def test_an_agent_that_is_soon_known_or_silent_is_told_to_nobody(ward: OpenWard, gone: bool) -> None:
    w = ward(policy=policy_with(examine=()))
    node = NodeId("sim/new")
    seat = w.world.ground.add_seat(node, pool="train", domain="d", gpus=8, linked=True)
    w.world.agents.refresh(seat)
    w.run(300)
    if gone:
        w.world.plant.set_agent(seat, alive=False)
    else:
        w.world.plant.cluster_hears(seat)
    w.run(2 * HOUR)
    assert not w.told("agent_unknown")


# --- gates


def test_a_node_that_reboots_while_its_job_is_gated_is_checked_again(ward: OpenWard) -> None:
    w = ward(nodes=2)
    w.run(60)
    job = w.sim.submit("train", Programme(steps=1000, checkpoint_every=100), nodes=2, precheck=4)
    w.until(lambda: w.state(job) == JobState.GATING, HOUR)
    first = gate(w, job)
    w.until(lambda: bool(first().verdicts), DAY)
    node = next(iter(first().verdicts))
    passed = w.world.seat(node).incarnation.boot_id
    w.world.operator_reboots(node)
    w.until(lambda: w.state(job) == JobState.RUNNING, 2 * DAY)
    boots = [e for e in w.world.chronicle.events if e.what == "check.pass" and e.subject == node]
    assert w.world.seat(node).incarnation.boot_id != passed
    assert len(boots) == 2
    assert w.job(job).attempt == 1


def gate(w: Ward, job: JobId) -> Callable[[], Intent]:
    key = w.job(job).intent

    def now() -> Intent:
        row = w.sim.store.load([f"intent:{key}"])[f"intent:{key}"].row
        assert isinstance(row, Intent)
        return row

    return now


def test_the_gate_of_several_nodes_is_meant_for_their_present_incarnations(ward: OpenWard) -> None:
    w = ward(nodes=2)
    w.run(60)
    asked: list[dict[NodeId, Incarnation | None]] = []
    start = w.world.examinations.check

    def noted(
        check: str, nodes: Mapping[NodeId, Incarnation | None], *, level: int, storage: tuple[str, ...] = ()
    ) -> None:
        asked.append(dict(nodes))
        start(check, nodes, level=level, storage=storage)

    w.world.examinations.check = noted  # type: ignore[method-assign]
    w.running(nodes=2, precheck=2)
    assert asked == [{node: w.world.seat(node).incarnation for node in w.nodes}]


# --- the first connection, and nodes without agents


def test_nobody_is_a_newcomer_at_the_first_connection(ward: OpenWard) -> None:
    w = ward(nodes=40)
    w.run(HOUR)
    assert not w.sim.incidents(intake=True)
    assert not w.happened("cordon")
    assert all(w.node(node).claimable for node in w.nodes)


def test_a_node_whose_agent_was_never_heard_is_not_checked_in_vain(ward: OpenWard) -> None:
    w = ward()
    silent = w.world.ground.add_seat(NodeId("sim/train-bare"), pool="train", domain="d", gpus=8, linked=True)
    silent.agent_alive = False
    w.world.plant.cluster_hears(silent)
    w.run(120)
    w.order("dismiss", w.incident(silent.id).id)  # a person vouches for the newcomer
    w.reaches(silent.id, Phase.DISMISSED, HOUR)
    assert w.node(silent.id).claimable
    checks = len(w.happened("check", silent.id))
    w.order("drain", silent.id)
    w.reaches(silent.id, Phase.HELD, 600)
    w.order("confirm", w.incident(silent.id).id)
    w.run(60)
    assert w.phases(silent.id)[-2:] == [Phase.VERIFYING, Phase.HELD]
    assert "no agent has been heard on this node" in w.incident(silent.id).stages[-1].because
    assert len(w.happened("check", silent.id)) == checks


def test_incidents_that_no_fact_has_led_to_have_ids_of_their_own() -> None:
    """Two clusters with a node of one name, both gone in the same second."""
    store = MemoryStore()
    lease = store.lease("x", 100.0)
    assert lease is not None
    policy = load_policy("default")
    can = {cluster: frozenset(Capability) for cluster in "ab"}
    rules = Rules(policy=policy, tables=load_tables(), policy_digest="d", can=can, blind={})
    clocks = {c: WatchedClock(source=c, period=5, reading=1000.2, as_of=1000) for c in ("ingest", "a", "b")}
    nodes = [
        Node(
            id=NodeId(f"{c}/gpu-01"), cluster=c, pool=f"{c}/p", incarnation=Incarnation(instance_id=c, boot_id=c),
            ready=False, agent=AgentState.SILENT, going_down=Deadline(clock="ingest", at=900.0),
        )
        for c in "ab"
    ]  # fmt: skip
    store.commit(Unit(writes={f"node:{node.id}": node for node in nodes}), lease.epoch)
    view = View(store)
    for node in nodes:
        draft = Draft(view, rules, clocks, moment(0.0))
        plan(draft, f"node:{node.id}")
        unit = draft.unit()
        view.wrote(unit, store.commit(unit, lease.epoch))
    rows = [store.load([key])[key].row for key in store.keys("incident")]
    assert sorted(row.node for row in rows if isinstance(row, Incident)) == ["a/gpu-01", "b/gpu-01"]
