"""The contract of the Cluster, Machines and Checks ports as a suite, for every set of adapters.

    class TestMyCluster(ClusterContract):
        @pytest.fixture
        def rig(self):
            return MyRig(…)

What an adapter cannot do by its capabilities is skipped, with the reason.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import pytest

from sickbay.model.errors import Gone, Rejected, Transient, Unknown
from sickbay.model.facts import Checked, Fact, JobSeen, Looked, NodeSeen, NodeVanished, ResetDone
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.ports.checks import Checks
from sickbay.ports.cluster import Accepted, Cluster, Deltas, Lost, Snapshot
from sickbay.ports.machines import Machines

JOB = JobId("contract")
OWNER = "sickbay:contract"


class ClusterRig(Protocol):
    """What the suite needs around the adapters: at least four idle nodes of one pool, and power over the connection."""

    cluster: Cluster
    machines: Machines
    checks: Checks
    facts: Sequence[Fact]  # all that was delivered so far

    def nodes(self) -> list[NodeId]: ...

    def spec(self, nodes: int) -> JobSpec:
        """A job that runs until it is stopped."""
        ...

    def cut_before(self) -> None:
        """The next mutation is lost on its way."""
        ...

    def cut_after(self) -> None:
        """The next mutation takes effect and its answer is lost."""
        ...

    def outdated_cursor(self) -> str:
        """A cursor that was good once and lies too far back now."""
        ...

    def wait(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds; fails the test if it takes too long."""
        ...

    def settle(self) -> None:
        """Lets so much time pass that every effect under way is over and visible."""
        ...


# How a call is sent: what happens to the first sending, before it is repeated under the same key.
SENDINGS = ("twice", "cut before", "cut after")


def send(rig: ClusterRig, how: str, call: Callable[[], Accepted]) -> None:
    """Sends one call two times under one key; the second may be refused because the first has changed what is there."""
    match how:
        case "twice":
            call()
        case "cut before":
            rig.cut_before()
            with pytest.raises((Transient, Unknown)):
                call()
        case "cut after":
            rig.cut_after()
            with pytest.raises(Unknown):
                call()
    with suppress(Rejected):
        call()


def need(rig: ClusterRig, *capabilities: Capability) -> None:
    have = rig.cluster.capabilities | rig.machines.capabilities | rig.checks.capabilities
    for capability in capabilities:
        if capability not in have:
            pytest.skip(f"the adapter has no {capability}")


def seen(rig: ClusterRig, node: NodeId) -> NodeSeen | None:
    return next((found for found in rig.cluster.snapshot().nodes if found.node == node), None)


def holder(rig: ClusterRig, node: NodeId) -> Incarnation:
    found = seen(rig, node)
    assert found is not None, f"{node} is not in the snapshot"
    return found.incarnation


def attempts(rig: ClusterRig, job: JobId = JOB) -> dict[int, JobSeen]:
    return {found.attempt: found for found in rig.cluster.snapshot().jobs if found.job == job}


def where(rig: ClusterRig, attempt: int = 1, job: JobId = JOB) -> list[NodeId]:
    """The nodes on which the attempt's ranks run."""
    found = attempts(rig, job).get(attempt)
    return [] if found is None else [node for node, state in found.ranks.items() if state == "running"]


def stranger(incarnation: Incarnation) -> Incarnation:
    return msgspec.structs.replace(incarnation, boot_id="a boot that never was")


def start(rig: ClusterRig, key: str = "start-1", *, attempt: int = 1, on: int = 2, job: JobId = JOB) -> Accepted:
    place = Capability.PLACE in rig.cluster.capabilities
    nodes = dict.fromkeys(rig.nodes()[:on], ()) if place else {}
    return rig.cluster.start(job, attempt, spec=rig.spec(on), nodes=nodes, avoid=(), key=key)


def run_job(rig: ClusterRig, on: int = 2) -> list[NodeId]:
    start(rig, on=on)
    rig.wait(lambda: len(where(rig)) == on)
    return where(rig)


class CordonContract:
    """Cordons are a set of owners; they change nothing that runs."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_cordon_sent_twice_is_one_cordon(self, rig: ClusterRig, how: str) -> None:
        node = rig.nodes()[0]
        send(rig, how, lambda: rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=holder(rig, node)))
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == (OWNER,)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_an_uncordon_sent_twice_leaves_others_alone(self, rig: ClusterRig, how: str) -> None:
        node = rig.nodes()[0]
        for owner in (OWNER, "sickbay:second", "other:person"):
            rig.cluster.cordon(node, owner=owner, reason="r", key=f"c-{owner}", expect=None)
        send(rig, how, lambda: rig.cluster.uncordon(node, owner=OWNER, key="u1", expect=None))
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert set(found.cordons) == {"sickbay:second", "other:person"}

    def test_an_uncordon_of_what_is_not_cordoned_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        rig.cluster.cordon(node, owner="other:person", reason="r", key="c1", expect=None)
        with suppress(Rejected):
            rig.cluster.uncordon(node, owner=OWNER, key="u1", expect=None)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == ("other:person",)

    def test_a_cordon_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        wrong = stranger(holder(rig, node))
        with pytest.raises(Rejected):
            rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=wrong)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == ()

    def test_a_node_that_is_not_there_is_gone(self, rig: ClusterRig) -> None:
        with pytest.raises(Gone):
            rig.cluster.cordon(NodeId(f"{rig.cluster.id}/nobody"), owner=OWNER, reason="r", key="c1", expect=None)

    def test_a_cordon_changes_nothing_that_runs(self, rig: ClusterRig) -> None:
        nodes = run_job(rig)
        rig.cluster.cordon(nodes[0], owner=OWNER, reason="r", key="c1", expect=None)
        rig.settle()
        assert where(rig) == nodes
        assert attempts(rig)[1].end is None

    def test_the_cordon_is_in_every_read_that_reaches_it(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        accepted = rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=None)
        rig.wait(lambda: rig.cluster.snapshot().as_of >= accepted.visible_from)
        found = seen(rig, node)
        assert found is not None
        assert OWNER in found.cordons


class ReadContract:
    """Reads lag, and never go back."""

    def test_as_of_never_goes_back(self, rig: ClusterRig) -> None:
        reads = [rig.cluster.snapshot().as_of]
        cursor = rig.cluster.snapshot().cursor
        for number, node in enumerate(rig.nodes()[:3]):
            rig.cluster.cordon(node, owner=OWNER, reason="r", key=f"c{number}", expect=None)
            deltas = rig.cluster.watch(cursor)
            assert isinstance(deltas, Deltas)
            reads += [deltas.as_of, rig.cluster.snapshot().as_of]
            rig.settle()
        assert reads == sorted(reads)

    def test_without_a_cursor_the_stream_is_lost(self, rig: ClusterRig) -> None:
        assert isinstance(rig.cluster.watch(None), Lost)

    def test_an_old_cursor_is_lost_and_the_snapshot_goes_on(self, rig: ClusterRig) -> None:
        assert isinstance(rig.cluster.watch(rig.outdated_cursor()), Lost)
        assert isinstance(rig.cluster.watch(rig.cluster.snapshot().cursor), Deltas)

    def test_nothing_new_is_told_when_nothing_changed(self, rig: ClusterRig) -> None:
        rig.settle()
        cursor = rig.cluster.snapshot().cursor
        rig.settle()
        deltas = rig.cluster.watch(cursor)
        assert isinstance(deltas, Deltas)
        assert deltas.news == ()

    def test_a_snapshot_and_the_deltas_after_it_make_the_later_snapshot(self, rig: ClusterRig) -> None:
        before = rig.cluster.snapshot()
        nodes = rig.nodes()
        start(rig)
        rig.cluster.cordon(nodes[3], owner=OWNER, reason="r", key="c1", expect=None)
        rig.wait(lambda: len(where(rig)) == 2)
        rig.cluster.stop(JOB, 1, key="stop-1")
        if Capability.REPLACE in rig.machines.capabilities:
            rig.machines.replace(nodes[3], key="r1", expect=holder(rig, nodes[3]))
        rig.settle()
        folded, cursor = _state(before), before.cursor
        for _ in range(3):
            deltas = rig.cluster.watch(cursor)
            assert isinstance(deltas, Deltas)
            cursor = deltas.cursor
            for news in deltas.news:
                _apply(folded, news)
        later = _state(rig.cluster.snapshot())
        assert {key: value for key, value in folded.items() if key.startswith("node")} == {
            key: value for key, value in later.items() if key.startswith("node")
        }
        for key, value in later.items():
            assert folded[key] == value  # a snapshot may forget an attempt that ended, never change it


def _state(snapshot: Snapshot) -> dict[str, NodeSeen | JobSeen]:
    state: dict[str, NodeSeen | JobSeen] = {}
    for node in snapshot.nodes:
        _apply(state, node)
    for job in snapshot.jobs:
        _apply(state, job)
    return state


def _apply(state: dict[str, NodeSeen | JobSeen], news: NodeSeen | NodeVanished | JobSeen) -> None:
    match news:
        case NodeSeen():
            # Whether a node is busy follows from the jobs; only a first read asks the node itself.
            state[f"node {news.node}"] = msgspec.structs.replace(news, as_of=0.0, busy=False)
        case NodeVanished():
            state.pop(f"node {news.node}", None)
        case JobSeen():
            state[f"job {news.job} {news.attempt}"] = msgspec.structs.replace(news, as_of=0.0)


class JobContract:
    """Attempts start as one gang and stop as one."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_an_attempt_started_twice_is_one_gang(self, rig: ClusterRig, how: str) -> None:
        send(rig, how, lambda: start(rig))
        rig.wait(lambda: len(where(rig)) == 2)
        rig.settle()
        assert list(attempts(rig)) == [1]
        assert len(where(rig)) == 2
        assert sum(found.busy for found in rig.cluster.snapshot().nodes) == 2

    def test_a_start_goes_where_it_was_told(self, rig: ClusterRig) -> None:
        need(rig, Capability.PLACE)
        assert set(run_job(rig)) == set(rig.nodes()[:2])

    def test_a_start_avoids_what_it_was_told(self, rig: ClusterRig) -> None:
        if Capability.PLACE in rig.cluster.capabilities:
            pytest.skip("this cluster is told where to start")
        avoid = tuple(rig.nodes()[:2])
        rig.cluster.start(JOB, 1, spec=rig.spec(2), nodes={}, avoid=avoid, key="start-1")
        rig.wait(lambda: len(where(rig)) == 2)
        assert not set(where(rig)) & set(avoid)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_stop_sent_twice_ends_the_attempt(self, rig: ClusterRig, how: str) -> None:
        run_job(rig)
        send(rig, how, lambda: rig.cluster.stop(JOB, 1, key="stop-1"))
        rig.wait(lambda: not where(rig))
        rig.settle()
        assert attempts(rig)[1].end is not None
        assert not any(found.busy for found in rig.cluster.snapshot().nodes)

    def test_a_stop_stops_only_its_own_attempt(self, rig: ClusterRig) -> None:
        run_job(rig)
        rig.cluster.stop(JOB, 1, key="stop-1")
        rig.wait(lambda: not where(rig) and attempts(rig)[1].end is not None)
        start(rig, "start-2", attempt=2)
        rig.wait(lambda: len(where(rig, 2)) == 2)
        with suppress(Gone):
            rig.cluster.stop(JOB, 1, key="stop-1")
        with pytest.raises(Gone):
            rig.cluster.stop(JOB, 1, key="a late stop of the first")
        rig.settle()
        assert len(where(rig, 2)) == 2

    def test_a_stop_of_one_job_leaves_another_alone(self, rig: ClusterRig) -> None:
        second = JobId("contract-second")
        run_job(rig, on=1)
        place = Capability.PLACE in rig.cluster.capabilities
        nodes = {rig.nodes()[1]: ()} if place else {}
        rig.cluster.start(second, 1, spec=rig.spec(1), nodes=nodes, avoid=(), key="start-second")
        rig.wait(lambda: len(where(rig, 1, second)) == 1)
        rig.cluster.stop(JOB, 1, key="stop-1")
        rig.wait(lambda: not where(rig))
        rig.settle()
        assert len(where(rig, 1, second)) == 1

    def test_a_stop_of_what_never_was_is_gone(self, rig: ClusterRig) -> None:
        with pytest.raises(Gone):
            rig.cluster.stop(JOB, 1, key="stop-1")


class RepairContract:
    """Repairs are done to one incarnation, once for each key."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_reboot_sent_twice_boots_once(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.REBOOT)
        node = rig.nodes()[0]
        old, boots = holder(rig, node), set[str]()

        def changed() -> bool:
            now = holder(rig, node)
            boots.add(now.boot_id)
            return now.boot_id != old.boot_id

        send(rig, how, lambda: rig.machines.reboot(node, key="b1", expect=old))
        rig.wait(changed)
        with suppress(Rejected):
            rig.machines.reboot(node, key="b1", expect=old)
        rig.settle()
        changed()
        assert len(boots) == 2
        assert holder(rig, node).same_holder(old)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_replacement_sent_twice_brings_one_machine(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.REPLACE)
        if "replace" in rig.machines.blind:
            pytest.skip("this adapter's replace is blind")
        before = {found.node: found.incarnation.instance_id for found in rig.cluster.snapshot().nodes}
        node = rig.nodes()[0]
        old = holder(rig, node)
        send(rig, how, lambda: rig.machines.replace(node, key="r1", expect=old))
        rig.settle()
        after = {found.node: found.incarnation.instance_id for found in rig.cluster.snapshot().nodes}
        assert len(after) == len(before)
        assert len(set(after.values()) - set(before.values())) == 1
        assert old.instance_id not in after.values()
        assert (node in after) is (Capability.SEAT_KEPT in rig.cluster.capabilities)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_reset_sent_twice_is_confirmed_and_boots_nothing(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.RESET_GPU)
        node = rig.nodes()[0]
        old = holder(rig, node)
        send(rig, how, lambda: rig.machines.reset(node, (0,), key="s1", expect=old))
        done = ResetDone(key="s1", node=node, incarnation=old)
        rig.wait(lambda: any(fact.news == done for fact in rig.facts))
        rig.settle()
        assert len({fact.id for fact in rig.facts if isinstance(fact.news, ResetDone)}) == 1
        assert holder(rig, node) == old

    def test_a_reset_under_a_rank_is_refused(self, rig: ClusterRig) -> None:
        need(rig, Capability.RESET_GPU)
        node = run_job(rig)[0]
        with pytest.raises(Rejected):
            rig.machines.reset(node, (0,), key="s1", expect=holder(rig, node))
        rig.settle()
        assert node in where(rig)

    @pytest.mark.parametrize("repair", ["restart_service", "reset_gpu", "reboot", "replace"])
    def test_a_repair_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig, repair: str) -> None:
        need(rig, Capability(repair))
        node = rig.nodes()[0]
        old = holder(rig, node)
        with pytest.raises(Rejected):
            _repair(rig, repair, node, stranger(old))
        rig.settle()
        assert holder(rig, node) == old
        assert not [fact for fact in rig.facts if isinstance(fact.news, ResetDone)]

    @pytest.mark.parametrize("how", SENDINGS)
    def test_after_a_fence_nothing_runs_there(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.FENCE)
        node = run_job(rig)[0]
        rig.cluster.stop(JOB, 1, key="stop-1")
        send(rig, how, lambda: rig.machines.fence(node, key="f1"))
        assert rig.machines.fence(node, key="f1").done
        rig.wait(lambda: node not in where(rig))


def _repair(rig: ClusterRig, repair: str, node: NodeId, expect: Incarnation) -> Accepted:
    match repair:
        case "restart_service":
            return rig.machines.restart_service(node, key="k", expect=expect)
        case "reset_gpu":
            return rig.machines.reset(node, (), key="k", expect=expect)
        case "reboot":
            return rig.machines.reboot(node, key="k", expect=expect)
        case _:
            return rig.machines.replace(node, key="k", expect=expect)


class CheckContract:
    """Checks answer once for each node, and never pass what they did not examine."""

    def _verdicts(self, rig: ClusterRig, check: str) -> dict[str, Checked]:
        news = [fact.news for fact in rig.facts]
        return {found.node: found for found in news if isinstance(found, Checked) and found.check == check}

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_check_answers_once_for_each_node(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.CHECK)
        nodes = {node: holder(rig, node) for node in rig.nodes()[:3]}
        send(rig, how, lambda: rig.checks.start("k1", nodes, level=1, profile=""))
        rig.wait(lambda: len(self._verdicts(rig, "k1")) == 3)
        rig.settle()
        ids = [fact.id for fact in rig.facts if isinstance(fact.news, Checked)]
        assert len(set(ids)) == 3
        assert {found.verdict for found in self._verdicts(rig, "k1").values()} == {"pass"}
        assert {node: found.incarnation for node, found in self._verdicts(rig, "k1").items()} == nodes

    def test_a_check_runs_on_a_cordoned_node(self, rig: ClusterRig) -> None:
        need(rig, Capability.CHECK, Capability.CHECK_CORDONED)
        node = rig.nodes()[0]
        rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=None)
        rig.settle()
        rig.checks.start("k1", {node: holder(rig, node)}, level=1, profile="")
        rig.wait(lambda: bool(self._verdicts(rig, "k1")))
        assert self._verdicts(rig, "k1")[node].verdict == "pass"

    def test_a_check_of_another_incarnation_never_passes(self, rig: ClusterRig) -> None:
        need(rig, Capability.CHECK)
        node, witness = rig.nodes()[:2]
        rig.checks.start("k1", {node: stranger(holder(rig, node))}, level=1, profile="")
        rig.checks.start("k2", {witness: holder(rig, witness)}, level=1, profile="")
        rig.wait(lambda: bool(self._verdicts(rig, "k2")))
        rig.settle()
        assert {found.verdict for found in self._verdicts(rig, "k1").values()} <= {"could_not_run"}

    def test_a_look_is_answered_by_each_node(self, rig: ClusterRig) -> None:
        need(rig, Capability.LOOK)
        nodes = tuple(rig.nodes()[:3])
        rig.checks.look("l1", nodes, stacks_of=None)
        rig.wait(
            lambda: (
                {fact.news.node for fact in rig.facts if isinstance(fact.news, Looked) and fact.news.look == "l1"}
                == set(nodes)
            )
        )


class ClusterContract(CordonContract, ReadContract, JobContract, RepairContract, CheckContract):
    """Every sentence of the three ports' contracts. The fixture `rig` gives a fresh rig to each test."""
