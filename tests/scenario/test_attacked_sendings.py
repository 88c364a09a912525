"""What is sent late, or amid a list: it is judged by what is known then, and by nothing that is half known."""

from functools import partial

from tests.scenario.test_acts import Channel
from tests.support.wards import HOUR, OpenWard, cluster_without, policy_with

from sickbay.model.errors import Transient
from sickbay.model.facts import JobSeen
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec, JobState, RankState
from sickbay.sim.context import Timings
from sickbay.sim.job_behaviour import OnDeath, Programme
from sickbay.sim.simulation import Plan, Simulation

THEIRS = JobId("theirs")
MINUTE = 60.0


def begins(sim: Simulation, nodes: int = 3, **spec: object) -> None:
    """A job that others submit, to a cluster that chooses nodes itself."""
    asked = JobSpec(name="theirs", cluster="sim", pool="train", nodes=nodes, **spec)  # type: ignore[arg-type]
    sim.world.submit_to_cluster(THEIRS, asked, Programme(steps=200_000, on_death=OnDeath.HANG))


# --- lists


def test_no_repair_is_sent_before_the_rest_of_a_list_has_told_what_runs_there(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place", "reset_gpu"))
    node, host = w.nodes[0], w.sim.hosts[0]
    begins(w.sim)
    w.until(lambda: bool(w.world.seat(node).holders), MINUTE)
    w.says(node, 79)
    w.until(lambda: bool(w.world.seat(node).cordons), MINUTE)
    host.crash(down_for=MINUTE)  # before it has read either
    w.until(lambda: w.phase(node) == Phase.DRAINING, HOUR)
    assert w.happened("reboot") == []
    w.reaches(node, Phase.RELEASED, HOUR)
    assert len(w.happened("reboot")) == 1


def test_nobody_is_checked_before_the_first_list_has_told_what_runs_there() -> None:
    class Early(Simulation):
        def _settle_in(self) -> None:
            begins(self)
            super()._settle_in()

    sim = Early(Plan(nodes=3, cluster=cluster_without("place", checks_first=True), connect_after=300.0))
    sim.run(300)
    assert sim.world.running(THEIRS)
    assert sim.world.chronicle.of("check.start") == []


# --- sent late


def throttled(_: int) -> Transient:
    return Transient("the API is throttled")


def test_who_uncordons_a_node_before_its_repair_was_sent_has_withdrawn_it(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place", "reset_gpu"))
    node = w.nodes[0]
    channel = Channel(w.sim.hands.sites["sim"].machines, "reboot", throttled)
    w.says(node, 79)
    w.reaches(node, Phase.REPAIRING, HOUR)
    w.run(10)
    w.world.operator_uncordons(node)
    begins(w.sim)
    w.run(MINUTE)
    channel.works()
    w.run(HOUR)
    assert w.phase(node) == Phase.DISMISSED
    assert w.happened("reboot") == []
    assert w.job(THEIRS).attempt == 1


def test_no_check_on_order_is_sent_to_a_node_that_a_job_has_come_to(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place"))
    channel = Channel(w.sim.hands.sites["sim"].checks, "start", throttled)
    w.order("check", w.nodes[0], level="3")
    w.run(20)
    begins(w.sim)
    w.run(120)
    channel.works()
    w.run(600)
    assert w.happened("check.start") == []
    assert w.world.running(THEIRS)


def test_no_check_before_return_is_sent_to_a_node_that_a_job_has_come_to(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place"), rules=Timings(pulse=5.0))
    node = w.nodes[0]
    channel = Channel(w.sim.hands.sites["sim"].checks, "start", throttled)
    w.sick(node, "xid.79", Remedy.REBOOT)
    w.reaches(node, Phase.VERIFYING, HOUR)
    # Its cluster had given the node away before our cordon came, and shows that only now.
    view, now = w.world.ground.views["sim"], w.sim.scheduler.now
    spec = JobSpec(name="theirs", cluster="sim", pool="train", nodes=1)
    view.put(
        JobSeen(
            job=THEIRS, attempt=1, as_of=now, ranks={node: RankState.RUNNING}, native=True, spec=spec, cluster="sim"
        )
    )
    w.until(lambda: w.state(THEIRS) == JobState.RUNNING, MINUTE)
    channel.works()
    w.until(lambda: w.phase(node) == Phase.DRAINING, HOUR)
    assert w.happened("check.start") == []


def test_no_node_is_fenced_that_is_in_touch_again(ward: OpenWard) -> None:
    rules = Timings(notice=10.0, pulse=5.0, node_lost_end=30.0)
    w = ward(nodes=2, gpus=8, linked=False, policy=policy_with(examine=()), rules=rules)
    node = w.nodes[0]
    hangs = Programme(steps=200_000, on_death=OnDeath.HANG)
    first = w.sim.submit("first", hangs, on=tuple(w.nodes), gpus_per_node=2, precheck=0)
    w.until(lambda: w.state(first) == JobState.RUNNING, HOUR)
    ends = w.world.workload.node_proven  # what is left of it there takes two minutes to end
    w.world.workload.node_proven = lambda seat: w.sim.scheduler.after(120.0, partial(ends, seat))  # type: ignore[method-assign, assignment]
    channel = Channel(w.sim.hands.sites["sim"].machines, "fence", throttled)
    w.order("pause", "")
    w.run(5)
    w.world.lose_node(node, zombie=True)
    w.until(lambda: channel.calls >= 7, HOUR)
    w.world.open_path(node)
    w.world.heal_partition(node)
    w.until(lambda: w.node(node).agent == "heard" and w.node(node).ready, HOUR)
    other = w.sim.submit("other", Programme(steps=200_000), on=(node,), gpus_per_node=2, precheck=0)
    w.until(lambda: bool(w.world.running(other)), HOUR)
    channel.works()
    w.until(lambda: w.state(first) == JobState.RUNNING, HOUR)
    assert w.happened("fenced") == []
    assert w.job(other).attempt == 1
