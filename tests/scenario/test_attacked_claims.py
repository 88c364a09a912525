"""What is held stays known: claims, calls and seats under hostile order, and rows that cannot be read."""

from tests.scenario.wards import HOUR, OpenWard, cluster_without, policy_with

from sickbay.model.policy import BrakeRule, Limit

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
