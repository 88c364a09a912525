"""Objects that are deleted under a machine which goes on, and machines that not everybody can name."""

import pytest
from tests.scenario.test_acts import Channel
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.errors import Transient
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.incident import IncidentKind, Phase
from sickbay.model.intent import Fence, Intent
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import SimSeat
from sickbay.sim.job_behaviour import OnDeath, Programme

HANGS = Programme(steps=200_000, on_death=OnDeath.HANG)
QUICK = Timings(pulse=5.0, notice=10.0, node_lost_end=None)


def cut_off(ward: OpenWard, *lacking: str) -> tuple[Ward, JobId, NodeId]:
    """A job, one of whose nodes nobody can reach, and that node; its ranks go on there."""
    w = ward(nodes=4, policy=policy_with(examine=()), rules=QUICK, cluster=cluster_without(*lacking))
    job = w.sim.submit("train", HANGS, nodes=2, precheck=0)
    w.until(lambda: w.state(job) == "RUNNING", HOUR)
    w.order("pause", "")  # nothing is done about the node itself
    w.run(2)
    node = w.world.running(job)[0][1][0]
    w.world.lose_node(node, zombie=True)
    w.run(60)
    return w, job, node


def object_deleted(w: Ward, node: NodeId) -> None:
    w.world.operator_forgets(node)
    w.until(lambda: f"node:{node}" not in set(w.sim.store.keys("node")), HOUR)


def test_a_job_does_not_start_again_because_the_object_of_its_node_was_deleted(ward: OpenWard) -> None:
    w, job, node = cut_off(ward, "fence", "reboot", "replace")
    object_deleted(w, node)
    w.run(HOUR)
    assert w.state(job) == "STOPPING"
    assert [number for number, _ in w.world.running(job)] == [1]
    assert "cannot prove that the ranks on" in w.told("job_stuck")[0]
    w.world.open_path(node)
    w.world.heal_partition(node)  # its kubelet registers again, and the job can be stopped there
    w.until(lambda: w.state(job) == "RUNNING", HOUR)
    assert w.job(job).attempt == 2


def test_the_machine_behind_a_deleted_object_is_fenced_before_its_job_starts_again(ward: OpenWard) -> None:
    w, job, node = cut_off(ward)
    meant = w.node(node).incarnation
    object_deleted(w, node)
    w.until(lambda: w.state(job) == "RUNNING" and w.job(job).attempt == 2, HOUR)
    assert w.happened("fenced", node)
    rows = [loaded.row for loaded in w.sim.store.load(list(w.sim.store.keys("intent"))).values()]
    fences = [row for row in rows if isinstance(row, Intent) and isinstance(row.act, Fence)]
    assert [fence.expect for fence in fences] == [meant]


@pytest.mark.parametrize("joins", [True, False])
def test_a_machine_that_leaves_a_vacancy_unreplaced_and_comes_back_is_as_sick_as_before(
    ward: OpenWard, joins: bool
) -> None:
    more = {} if joins else {"policy": policy_with(examine=())}
    w = ward(nodes=4, cluster=cluster_without("reset_gpu", "reboot", "seat_kept"), **more)
    node = w.nodes[0]
    Channel(w.sim.hands.sites["sim"].machines, "replace", lambda _: Transient("no capacity"))
    w.sick(node, "xid.79", Remedy.REPLACE)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.run(30)
    w.world.operator_returns(node, 20.0, same_machine=True)
    w.reaches(node, Phase.REPLACED, HOUR)
    w.until(lambda: w.phase(node) != Phase.REPLACED, HOUR)
    assert w.incident(node).kind is (IncidentKind.INTAKE if joins else IncidentKind.FAULT)
    w.run(HOUR)
    assert not w.node(node).claimable


def test_a_newcomer_is_taken_in_when_its_agent_names_it_where_its_cluster_cannot(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=ClusterRules(id="sim", tells=frozenset()))
    new = w.world.add_nodes("sim", 1, names=lambda _: "new-0000")[0]
    w.world.lose_agent(new)
    w.run(60)
    w.world.restore_agent(new)
    w.reaches(new, Phase.RELEASED, HOUR)
    assert w.incident(new).kind is IncidentKind.INTAKE
    assert w.happened("check.pass", new)
    assert w.node(new).counted
    assert not [i for node in w.nodes[:3] for i in w.sim.incidents(node, intake=True)]  # they were there before us


def test_a_node_that_served_for_long_without_a_name_is_checked_when_it_is_idle(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=ClusterRules(id="sim", tells=frozenset()))
    new = w.world.add_nodes("sim", 1, names=lambda _: "new-0000")[0]
    w.world.lose_agent(new)
    w.run(HOUR)
    job = w.running(on=(new,), nodes=1, precheck=0, steps=1500)
    w.world.restore_agent(new)
    w.run(300)
    assert w.state(job) == "RUNNING"
    w.until(lambda: bool(w.happened("check.pass", new)), HOUR)
    assert not w.sim.incidents(new, intake=True)


def agents_cannot_name_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimSeat, "voice", property(lambda self: Incarnation(boot_id=self.incarnation.boot_id)))


def test_an_agent_that_speaks_before_its_cluster_names_its_machine_is_heard_from_then_on(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents_cannot_name_machines(monkeypatch)
    w = ward(nodes=3, cluster=ClusterRules(id="sim", tells=frozenset({"instance"})))
    node = w.nodes[0]
    w.run(60)
    show = w.world.ground.show

    def late(seat: SimSeat) -> None:
        if seat.id == node and seat.ready and seat.incarnation.instance_id != "i-00000001":
            w.sim.scheduler.after(8.0, lambda: show(seat))
        else:
            show(seat)

    monkeypatch.setattr(w.world.ground, "show", late)
    w.world.operator_replaces(node)
    w.run(2 * HOUR)
    now = w.node(node)
    assert now.incarnation is not None
    assert now.incarnation.boot_id == w.world.seat(node).incarnation.boot_id
    assert now.claimable
    w.says(node, 79)
    w.run(60)
    assert w.incident(node).fault.code == "xid.79"


def test_a_new_registration_with_a_new_boot_is_a_newcomer_whoever_speaks_first(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents_cannot_name_machines(monkeypatch)
    rules = Timings(replace_takes=20.0, pulse=5.0)
    w = ward(nodes=3, cluster=ClusterRules(id="sim", tells=frozenset({"uid"})), rules=rules)
    w.run(60)
    w.world.operator_replaces(w.nodes[0])
    w.reaches(w.nodes[0], Phase.RELEASED, HOUR)
    assert w.incident(w.nodes[0]).kind is IncidentKind.INTAKE
    assert w.happened("check.pass", w.nodes[0])


def test_a_reboot_of_a_machine_that_nobody_names_makes_no_newcomer_of_it(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents_cannot_name_machines(monkeypatch)
    w = ward(nodes=3, cluster=ClusterRules(id="sim", tells=frozenset({"uid"})))
    w.run(60)
    w.world.operator_reboots(w.nodes[0])
    w.run(1800)
    w.world.operator_registers_anew(w.nodes[0])
    w.run(300)
    assert w.node(w.nodes[0]).claimable
    assert not w.sim.incidents(w.nodes[0], intake=True)


def test_a_reboot_that_its_cluster_has_missed_makes_no_newcomer_of_a_node_that_registers_anew(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents_cannot_name_machines(monkeypatch)
    w = ward(nodes=3, cluster=ClusterRules(id="sim", tells=frozenset({"uid"})))
    w.run(60)
    with monkeypatch.context() as quick:
        quick.setattr(w.world.ground, "show", lambda _: None)
        w.world.operator_reboots(w.nodes[0])
        w.run(1800)
    job = w.running(nodes=3, precheck=0, steps=100_000)
    w.world.operator_registers_anew(w.nodes[0])
    w.run(300)
    assert (w.state(job), w.job(job).attempt) == ("RUNNING", 1)
    assert not [i for i in w.sim.incidents(w.nodes[0], intake=True) if i.kind is IncidentKind.INTAKE]


def test_a_job_is_off_a_machine_that_is_back_under_another_boot_after_its_object_was_deleted(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, job, node = cut_off(ward, "fence", "reboot", "replace")
    object_deleted(w, node)
    w.run(300)
    assert w.state(job) == "STOPPING"
    monkeypatch.setattr(w.world.workload, "show", lambda *_: None)  # of its ranks there the cluster says nothing more
    w.world.operator_reboots(node)
    w.until(lambda: f"node:{node}" in set(w.sim.store.keys("node")), HOUR)
    w.run(15)
    assert w.state(job) != "STOPPING"
    assert w.world.running(job) == []
