"""What is held stays known: claims, calls and seats under hostile order, and rows that cannot be read."""

import pytest
from tests.scenario.wards import HOUR, OpenWard, Ward, cluster_without, policy_with

from sickbay.model.facts import JobSeen, JobVanished
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec
from sickbay.model.policy import BrakeRule, Limit
from sickbay.ports.cluster import Accepted
from sickbay.sim.adapters import SimCluster
from sickbay.sim.programme import Programme

ALL_AT_ONCE = (Limit(out_percent=100, repairing_percent=100),)


def test_an_attempt_that_very_many_incidents_want_to_end_lets_the_engine_rest(ward: OpenWard) -> None:
    policy = policy_with(limits=ALL_AT_ONCE, brakes=(BrakeRule(nodes=50),))
    w = ward(nodes=26, policy=policy, cluster=cluster_without("fence"))
    job = w.training(nodes=26, precheck=0, steps=10**6)
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
    ranks = dict.fromkeys(nodes, "running")
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
    late = JobSeen(job=THEIRS, attempt=1, as_of=early, ranks={a: "running"}, native=True, cluster="sim")
    w.sim.hosts[0].tell("late", late)
    w.run(5)
    assert w.state(THEIRS) == "STOPPED"  # what is older than its end does not bring it back
    shows(w, a, b)
    assert w.state(THEIRS) == "RUNNING"
    is_not_repaired_under(w, a)
