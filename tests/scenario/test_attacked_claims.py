"""What is held stays known: claims, calls and seats under hostile order, and rows that cannot be read."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.facts import JobSeen, JobVanished
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec, RankState
from sickbay.model.policy import BrakeRule, Limit, Trigger
from sickbay.policy.load import load_policy
from sickbay.ports.cluster import Accepted
from sickbay.sim.adapters import SimCluster, SimMachines
from sickbay.sim.hardware import SimSeat
from sickbay.sim.job_behaviour import Programme

ALL_AT_ONCE = (Limit(out_percent=100, repairing_percent=100),)


@pytest.mark.slow
def test_an_attempt_that_very_many_incidents_want_to_end_lets_the_engine_rest(ward: OpenWard) -> None:
    policy = policy_with(limits=ALL_AT_ONCE, brakes=(BrakeRule(nodes=50),))
    w = ward(nodes=26, policy=policy, cluster=cluster_without("fence"))
    job = w.running(nodes=26, precheck=0, steps=10**6)
    for node in w.nodes[:24]:
        w.world.lose_node(node)
    w.until(lambda: w.state(job) == "STOPPING", HOUR)
    w.run(60)
    assert len(w.job(job).calls) == 20  # no row grows with the gang
    assert all(job in incident.jobs for incident in w.incidents() if incident.open)
    before = len(list(w.sim.store.story(f"job:{job}", limit=10**6)))
    w.run(HOUR)
    assert len(list(w.sim.store.story(f"job:{job}", limit=10**6))) - before < 10


THEIRS = JobId("theirs")


def shows(w: Ward, *nodes: NodeId, job: JobId = THEIRS, attempt: int = 1) -> None:
    """The cluster says that a job that others submitted runs there."""
    spec = JobSpec(name=job, cluster="sim", pool="train", nodes=len(nodes))
    now = w.sim.scheduler.now
    ranks = dict.fromkeys(nodes, RankState.RUNNING)
    seen = JobSeen(job=job, attempt=attempt, as_of=now, ranks=ranks, native=True, spec=spec, cluster="sim")
    w.sim.hosts[0].tell(f"shows/{job}/{now}", seen)
    w.run(5)


def takes_and_does_nothing(w: Ward) -> object:
    def act(*_: object, **__: object) -> Accepted:
        return Accepted(visible_from=w.sim.scheduler.now)

    return act


def is_not_repaired_under(w: Ward, node: NodeId) -> None:
    w.order("reboot", node)
    w.run(120)
    assert w.phase(node) == Phase.DRAINING
    assert not w.happened("reboot", node)


def test_a_rank_that_appears_while_its_attempt_is_stopped_is_claimed_too(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = ward(nodes=6, policy=policy_with(limits=ALL_AT_ONCE))
    monkeypatch.setattr(SimCluster, "stop", takes_and_does_nothing(w))
    a, b, c = w.nodes[:3]
    shows(w, a, b)
    w.sick(a)
    w.until(lambda: w.state(THEIRS) == "STOPPING", HOUR)
    shows(w, a, b, c)
    assert c in w.job(THEIRS).claim
    is_not_repaired_under(w, c)


def test_what_its_own_controller_runs_is_claimed_while_we_wait_for_an_attempt_before_it(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = ward(nodes=4, cluster=cluster_without("place"))
    monkeypatch.setattr(SimCluster, "start", takes_and_does_nothing(w))
    monkeypatch.setattr(SimCluster, "stop", takes_and_does_nothing(w))
    a, b = w.nodes[:2]
    job = w.sim.submit("train", Programme(steps=10**6, checkpoint_every=100), nodes=2, precheck=0)
    w.until(lambda: w.state(job) == "GATING", HOUR)
    w.run(30)
    shows(w, a, b, job=job, attempt=2)
    assert (w.state(job), w.job(job).attempt, sorted(w.job(job).claim)) == ("RUNNING", 2, [a, b])
    assert len(w.job(job).restarts) == 1  # counted, as any native restart
    is_not_repaired_under(w, a)


def test_a_job_that_is_deleted_and_made_anew_under_its_name_holds_its_nodes(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = ward(nodes=4)
    monkeypatch.setattr(SimCluster, "stop", takes_and_does_nothing(w))
    a, b = w.nodes[:2]
    shows(w, a, b)
    early = w.sim.scheduler.now
    w.run(20)
    w.sim.hosts[0].tell("deleted", JobVanished(job=THEIRS, as_of=w.sim.scheduler.now, sure=True))
    w.run(10)
    assert w.state(THEIRS) == "STOPPED"
    late = JobSeen(job=THEIRS, attempt=1, as_of=early, ranks={a: RankState.RUNNING}, native=True, cluster="sim")
    w.sim.hosts[0].tell("late", late)
    w.run(5)
    assert w.state(THEIRS) == "STOPPED"  # what is older than its end does not bring it back
    shows(w, a, b)
    assert w.state(THEIRS) == "RUNNING"
    is_not_repaired_under(w, a)


def test_a_seat_that_is_filled_again_after_its_vacancy_was_given_up_counts_again(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    unchecked = tuple(e for e in load_policy("default").examine if e.on is not Trigger.JOIN)
    w = ward(nodes=10, policy=policy_with(examine=unchecked), cluster=cluster_without("seat_kept"))
    node = w.nodes[0]

    def takes_away(_: object, seat: NodeId, **__: object) -> Accepted:
        w.world.plant.delete(w.world.seat(seat), cause="replaced")
        return Accepted(visible_from=w.sim.scheduler.now)

    monkeypatch.setattr(SimMachines, "replace", takes_away)
    w.order("replace", node)
    w.until(lambda: node not in w.world.seats, HOUR)
    w.run(1.2 * HOUR)
    assert w.ledger().size == 9
    comes_back(w, node)
    w.run(120)
    assert w.node(node).claimable
    assert (w.node(node).counted, w.ledger().size, w.ledger().out) == (True, 10, 0)


def comes_back(w: Ward, node: NodeId) -> SimSeat:
    seat = w.world.ground.add_seat(node, pool="train", domain="", gpus=8, linked=True, agentless=False)
    w.world.agents.refresh(seat)
    w.world.plant.cluster_hears(seat)
    return seat


@pytest.mark.parametrize("joins", [True, False])
def test_a_suspect_whose_node_is_deleted_and_registers_anew_is_a_suspect_still(ward: OpenWard, joins: bool) -> None:
    examine = tuple(e for e in load_policy("default").examine if joins or e.on is not Trigger.JOIN)
    w = ward(policy=policy_with(examine=examine))
    node = w.nodes[0]
    w.order("pause", "")
    w.sick(node)
    w.reaches(node, Phase.SUSPECT, HOUR)
    old = w.world.seat(node)
    w.world.plant.delete(old, cause="operator")
    w.until(lambda: w.phase(node) == Phase.GONE, HOUR)
    new = w.world.ground.add_seat(node, pool="train", domain="", gpus=8, linked=True, agentless=False)
    new.devices, new.defects = old.devices, old.defects
    new.incarnation = replace(old.incarnation, uid=new.incarnation.uid)
    w.world.agents.refresh(new)
    w.world.plant.cluster_hears(new)
    w.run(120)
    assert (w.phase(node), w.incident(node).fault.code) == (Phase.SUSPECT, "xid.79")
    assert not w.node(node).claimable
    w.order("unpause", "")
    w.reaches(node, Phase.RELEASED)


def test_a_fault_is_not_lost_because_some_job_of_its_cluster_cannot_be_read(ward: OpenWard) -> None:
    w = ward(nodes=12, forgiving=True, strict=False)  # the law plans every row, this one too
    job = w.running(nodes=2, steps=10**6, precheck=0)
    far, damaged = w.nodes[-1], w.sim.hosts[0].store.damaged
    damaged.add(f"job:{job}")
    w.sim.hosts[0].crash()
    w.run(30)
    w.sick(far)
    w.run(HOUR)
    assert (w.phase(far), w.node(far).claimable) == (Phase.SUSPECT, False)  # nobody knows who works there: no act
    assert not w.happened("reboot", far)
    damaged.clear()
    w.sim.hosts[0].crash()
    w.reaches(far, Phase.RELEASED)


def test_a_brake_that_cannot_be_read_keeps_no_other_from_being_reset(ward: OpenWard) -> None:
    w = ward(nodes=10, forgiving=True, strict=False, policy=policy_with(brakes=(BrakeRule(nodes=2),)))
    for number in (79, 48):
        for node in w.nodes[number % 7 : number % 7 + 2]:
            w.says(node, number)
    w.run(60)
    damaged, other = [key for key in w.sim.store.keys("brake") if "xid." in key][:2]
    assert w.brake(other.removeprefix("brake:")).tripped_at is not None
    w.sim.hosts[0].store.damaged.add(damaged)
    w.sim.hosts[0].crash()
    w.run(30)
    w.order("brake_reset", "")
    w.run(30)
    assert w.brake(other.removeprefix("brake:")).tripped_at is None
