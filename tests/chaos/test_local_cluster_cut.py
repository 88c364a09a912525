"""A controller that is killed between any two effects of a call leaves nothing that the same call cannot complete."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from tests.support.cut_call import JOB, SPEC
from tests.support.local_cluster_rig import LocalRig

from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.files import BOOT_MARK
from sickbay.clusters.local.machines import LocalMachines
from sickbay.clusters.local.processes import find
from sickbay.clusters.local.rack import Rack
from sickbay.clusters.local.ranks import RANK_MARK
from sickbay.model.facts import JobSeen
from sickbay.model.fleet import Incarnation, NodeId

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
MOST = 60  # effects of one call


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LocalRig]:
    rig = LocalRig(tmp_path, nodes=2)
    yield rig
    rig.close()


def cut(root: Path, at: int, what: str, key: str, nodes: list[NodeId], expect: Incarnation | None = None) -> bool:
    """Whether the call was cut; False: it has fewer effects and was carried out."""
    command = [sys.executable, "-m", "tests.support.cut_call", str(root), str(at), what, key]
    command += [msgspec.json.encode(expect).decode(), *nodes]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, timeout=60)
    assert done.returncode in {0, -9}
    return done.returncode == -9


def cuts() -> Iterator[int]:
    yield from range(1, MOST)
    pytest.fail(f"a call has more than {MOST} effects")


def of(boot_id: str) -> int:
    return len(find(marks=[f"{BOOT_MARK}={boot_id}"]))


def marks_of(rig: LocalRig, number: int) -> list[str]:
    """One for each rank: two on each node."""
    boots = [rig.room.seat(f"node-{rank // 2}").boot_id for rank in range(4)]
    return [f"{RANK_MARK}={JOB}.{number}.{rank}.{boot}" for rank, boot in enumerate(boots)]


def each_once(marks: list[str]) -> bool:
    return Counter(find(marks=marks).values()) == Counter(marks)


def runs(boot_id: str) -> bool:
    """Its supervisor, its agent and nothing else."""
    return of(boot_id) == 2


def ended(cluster: LocalCluster, number: int) -> bool:
    return attempt(cluster, number).end is not None


def attempt(cluster: LocalCluster, number: int) -> JobSeen | None:
    return next((each for each in cluster.snapshot().jobs if each.attempt == number), None)


@pytest.mark.parametrize("what", ["reboot", "replace"])
@pytest.mark.parametrize("restart", [False, True], ids=["sent again", "after a restart of the controller"])
def test_a_cut_repair_leads_to_one_boot(rig: LocalRig, what: str, *, restart: bool) -> None:
    node = rig.nodes()[0]
    for at in cuts():
        old = rig.holder(node)
        was_cut = cut(rig.root, at, what, f"k-{at}", [node], old)
        cluster, machines = LocalCluster(rig.root), LocalMachines(rig.root)
        cluster.snapshot()  # can be read at any moment
        if restart:
            Rack(rig.root).power_on()
        getattr(machines, what)(node, key=f"k-{at}", expect=old)
        getattr(machines, what)(node, key=f"k-{at}", expect=old)
        rig.settle()
        new = rig.holder(node)
        assert new.boot_id != old.boot_id
        assert new.same_holder(old) is (what == "reboot")
        assert of(old.boot_id) == 0
        rig.wait(partial(runs, new.boot_id))
        assert len(list(rig.root.glob(f"seats/node-0/instances/{new.instance_id}/devices.json"))) == 1
        if not was_cut:
            break


def test_a_cut_start_leads_to_one_gang(rig: LocalRig) -> None:
    nodes = rig.nodes()
    for at in cuts():
        was_cut = cut(rig.root, at, "start", f"k-{at}", nodes)
        cluster = LocalCluster(rig.root, grace=2.0)
        before = attempt(cluster, at)
        for _ in range(2):
            cluster.start(JOB, at, spec=SPEC, nodes=dict.fromkeys(nodes, ()), avoid=(), key=f"k-{at}")
        marks = marks_of(rig, at)
        rig.wait(partial(each_once, marks))
        found = attempt(cluster, at)
        assert found.ranks == dict.fromkeys(nodes, "running")
        # What was shown before is never more than what was there.
        assert before is None or before.ranks.keys() <= found.ranks.keys()
        cluster.stop(JOB, at, final=False, key=f"s-{at}")
        rig.settle()
        assert not find(marks=marks)
        if not was_cut:
            break


def test_a_cut_stop_leaves_nothing_of_the_gang(rig: LocalRig) -> None:
    nodes = rig.nodes()
    for at in cuts():
        cluster = LocalCluster(rig.root, grace=2.0)
        cluster.start(JOB, at, spec=SPEC, nodes=dict.fromkeys(nodes, ()), avoid=(), key=f"k-{at}")
        marks = marks_of(rig, at)
        rig.wait(partial(each_once, marks))
        was_cut = cut(rig.root, at, "stop", f"s-{at}", nodes)
        cluster = LocalCluster(rig.root, grace=2.0)
        cluster.stop(JOB, at, final=False, key=f"s-{at}")
        rig.wait(partial(ended, cluster, at))
        rig.settle()
        assert set(attempt(cluster, at).ranks.values()) == {"gone"}
        assert not find(marks=marks)
        if not was_cut:
            break


def test_a_cut_start_that_is_stopped_leaves_nothing_and_never_comes_back(rig: LocalRig) -> None:
    nodes = rig.nodes()
    for at in cuts():
        was_cut = cut(rig.root, at, "start", f"k-{at}", nodes)
        cluster = LocalCluster(rig.root, grace=2.0)
        marks = marks_of(rig, at)
        if attempt(cluster, at) is not None:
            cluster.stop(JOB, at, final=False, key=f"s-{at}")
            rig.wait(partial(ended, cluster, at))
            cluster.start(JOB, at, spec=SPEC, nodes=dict.fromkeys(nodes, ()), avoid=(), key=f"k-{at}")
            assert set(attempt(cluster, at).ranks.values()) == {"gone"}
        rig.settle()
        assert not find(marks=marks)
        if not was_cut:
            break


def test_a_cut_fence_ends_its_boot_and_no_later_one(rig: LocalRig) -> None:
    node = rig.nodes()[0]
    for at in cuts():
        old = rig.holder(node)
        was_cut = cut(rig.root, at, "fence", f"k-{at}", [node])
        machines = LocalMachines(rig.root)
        assert machines.fence(node, key=f"k-{at}", expect=None).done
        assert of(old.boot_id) == 0
        assert Rack(rig.root).power_on() == ()
        machines.reboot(node, key=f"b-{at}", expect=old)
        assert machines.fence(node, key=f"k-{at}", expect=None).done
        rig.settle()
        assert rig.holder(node) != old
        if not was_cut:
            break


def test_a_room_that_is_switched_on_and_off_by_a_dying_controller_comes_up_whole(rig: LocalRig) -> None:
    for at in cuts():
        off = cut(rig.root, at, "down", f"k-{at}", [])
        rig.room.down(within=2.0)
        assert not rig.processes()
        on = cut(rig.root, at, "power_on", f"k-{at}", [])
        rig.room.power_on()
        rig.settle()
        for node in rig.nodes():
            rig.wait(partial(runs, rig.holder(node).boot_id))
        if not off and not on:
            break


def test_a_room_that_is_enlarged_by_a_dying_controller_has_whole_seats(rig: LocalRig) -> None:
    for at in cuts():
        was_cut = cut(rig.root, at, "create", "k-3", [])
        listed = rig.room.names()
        assert listed in {("node-0", "node-1"), ("node-0", "node-1", "node-2")}
        if not was_cut:
            break
    rig.room.create("local", 3, 2, "train", boot_takes=0.05)
    rig.room.power_on()
    rig.settle()
    assert len([found for found in rig.bare.snapshot().nodes if found.ready and len(found.devices) == 2]) == 3
