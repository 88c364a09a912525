"""Lists: what they say comes in slices, nodes before jobs, and may be compared with rows that lag behind."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without

from sickbay.model.fleet import JobId
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import Plan, Simulation

THEIRS = JobId("theirs")


def submitted(world: Any, nodes: int = 3) -> None:
    spec = JobSpec(name=THEIRS, cluster="sim", pool="train", nodes=nodes)
    world.submit_to_cluster(THEIRS, spec, Programme(steps=10**6))


def test_no_node_is_repaired_before_the_jobs_of_the_list_are_learned(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place", "reset_gpu"))
    node = w.nodes[0]
    submitted(w.world)
    w.until(lambda: bool(w.world.seat(node).holders), HOUR)
    w.says(node, 79)
    w.until(lambda: bool(w.world.seat(node).cordons), HOUR)
    assert w.state(THEIRS) == ""  # the leader ends before it has read of the job, or of its own cordon
    w.sim.hosts[0].crash(down_for=60.0)
    w.reaches(node, Phase.DRAINING)
    assert not w.happened("reboot")
    w.reaches(node, Phase.RELEASED)


class Busy(Simulation):
    """Somebody's job trains on all nodes when we first connect, and perhaps one of ours waits for them."""

    def __init__(self, plan: Plan, precheck: int | None = None) -> None:
        self._precheck = precheck
        super().__init__(plan)

    def _settle_in(self) -> None:
        submitted(self.world)
        if self._precheck is not None:
            self.submit("ours", Programme(steps=300), nodes=3, precheck=self._precheck)
        super()._settle_in()


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_node_that_trains_when_we_first_connect_is_not_checked(cold: bool) -> None:
    sim = Busy(Plan(nodes=3, cluster=cluster_without("place", checks_first=True), connect_after=300.0, cold=cold))
    sim.run(120)
    assert sim.world.running(THEIRS)
    assert not sim.world.chronicle.of("check")


@pytest.mark.parametrize("precheck", [0, 2])
def test_an_attempt_of_ours_begins_after_the_jobs_of_the_list_are_learned(precheck: int) -> None:
    sim = Busy(Plan(nodes=3, connect_after=300.0), precheck)
    sim.run(120)
    assert sim.world.running(THEIRS)
    assert not sim.world.chronicle.of("check")
    assert not [told for told in sim.world.chronicle.told if told.act == "start_job"]


def stands_still(w: Ward) -> Callable[[], None]:
    """The engine learns nothing while its watcher reads on, as in a long round; returns what ends that."""
    host = w.sim.hosts[0]
    host.later = lambda _seconds, _act: None  # type: ignore[method-assign,assignment]
    host._woken = True

    def goes_on() -> None:
        del host.later
        host._woken = False
        host.wake()

    return goes_on


def reads(w: Ward) -> int:
    """A read by the watcher, slice by slice, of what is so now."""
    w.sim.scheduler.now += 5
    watcher = w.sim.hosts[0]._watchers["sim"]
    told = watcher.read()
    while watcher.midway:
        told += watcher.read()
    return told


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_list_is_not_held_against_rows_that_have_not_learned_what_is_stored(ward: OpenWard, cold: bool) -> None:
    w = ward(nodes=3, cold=cold)
    node = w.nodes[0]
    seat, view = w.world.seat(node), w.world.ground.views["sim"]
    goes_on = stands_still(w)
    seat.ready = False
    w.world.ground.show(seat)
    assert reads(w) == 1
    seat.ready = True
    w.world.ground.show(seat)
    view.cut()
    assert reads(w) == 1  # its row says that it is ready, and is about to learn that it is not
    goes_on()
    w.rests()
    assert w.node(node).ready
    assert w.node(node).claimable


def test_a_node_that_came_and_went_while_the_engine_was_busy_leaves_no_row(ward: OpenWard) -> None:
    w = ward(nodes=3)
    goes_on = stands_still(w)
    (new,) = w.world.add_nodes("sim", 1, names=lambda _: "new")
    assert reads(w)
    w.world.operator_deletes(new)
    w.world.ground.views["sim"].cut()
    assert reads(w)
    goes_on()
    w.rests()
    assert f"node:{new}" not in w.sim.store.keys("node")


def test_a_job_that_came_and_went_while_the_engine_was_busy_is_missed(ward: OpenWard) -> None:
    w = ward(nodes=3, cluster=cluster_without("place"))
    goes_on = stands_still(w)
    submitted(w.world)
    w.sim.scheduler.run(w.sim.scheduler.now + 60)  # it is read meanwhile
    w.world.forget_job(THEIRS)
    w.world.ground.views["sim"].cut()
    reads(w)
    goes_on()
    w.rests()
    assert w.state(THEIRS) == "STOPPED"
