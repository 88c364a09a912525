"""Serial numbers: what an agent finds in its machine, where its cluster does not tell."""

from msgspec.structs import replace
from tests.support.wards import OpenWard, Ward

from sickbay.model.facts import Inventory, NodeVanished
from sickbay.model.fleet import Incarnation, NodeId
from sickbay.sim.context import ClusterRules
from sickbay.sim.simulation import CLUSTER


def counted(ward: OpenWard) -> Ward:
    return ward(cluster=ClusterRules(id=CLUSTER, lists=False))


def test_a_bad_gpu_keeps_its_history_where_the_cluster_tells_no_devices(ward: OpenWard) -> None:
    w = counted(ward)
    first, second = w.nodes[0], w.nodes[1]
    w.run(60)
    assert w.node(first).devices == w.world.seat(first).devices
    for _ in range(2):
        w.sick(first)
        w.rests()
    moved = w.world.seat(first).devices[0]
    w.world.seat(second).devices = (moved, *w.world.seat(second).devices[1:])
    w.world.agents.take_stock(w.world.seat(second))
    w.run(60)
    w.sick(second)
    w.rests()
    assert w.rungs(second) == ["replace"]


def test_a_cluster_that_tells_no_serials_wipes_none(ward: OpenWard) -> None:
    w = counted(ward)
    node = w.nodes[0]
    w.run(60)
    found = w.node(node).devices
    w.world.operator_cordons(node)
    w.run(60)
    assert w.node(node).cordons
    assert w.node(node).devices == found != ()


def test_what_another_incarnation_had_is_not_learned(ward: OpenWard) -> None:
    w = counted(ward)
    node = w.nodes[0]
    w.run(60)
    before = w.world.seat(node).voice
    found = w.node(node).devices
    w.sick(node)
    w.rests()
    assert not before.agrees(w.world.seat(node).voice)
    for who in (before, Incarnation(instance_id="i-of-another", boot_id="b")):
        _says(w, node, who)
    w.run(60)
    assert w.node(node).devices == found


def test_a_machine_that_registers_again_keeps_its_serials(ward: OpenWard) -> None:
    w = counted(ward)
    node = w.nodes[0]
    w.run(60)
    found = w.node(node).devices
    w.world.agents.tell(NodeVanished(node=node, as_of=w.world.scheduler.now), "vanished")
    w.run(5)
    assert "deleted" in w.story(node)
    w.world.ground.show(w.world.seat(node))  # its agent has nothing new to tell
    w.run(60)
    assert w.node(node).devices == found != ()


def _says(w: Ward, node: NodeId, who: Incarnation) -> None:
    seat = w.world.seat(node)
    wrong = tuple(replace(device, serial="wrong") for device in seat.devices)
    w.world.agents.say(seat, Inventory(devices=wrong, node=node, incarnation=who), f"stale:{who.boot_id}")
