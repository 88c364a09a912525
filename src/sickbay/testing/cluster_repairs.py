"""The Machines port's contract."""

from collections.abc import Callable
from contextlib import suppress

import msgspec
import pytest

from sickbay.model.errors import Rejected, Transient
from sickbay.model.facts import Fact, ResetDone
from sickbay.model.fleet import Capability, Incarnation, NodeId
from sickbay.ports.cluster import Accepted
from sickbay.testing.cluster_rig import (
    ClusterRig,
    attempts,
    holder,
    is_ready,
    need,
    run_job,
    stop,
    stranger,
    was_refused,
    where,
)
from sickbay.testing.cluster_sendings import SENDINGS, Send, play, send_twice


class RepairContract:
    """Repairs are done to one incarnation, once for each key."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_reboot_sent_twice_boots_once(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.REBOOT)

        def scene(send: Send) -> None:
            node = rig.nodes()[0]
            old = holder(rig, node)
            boots = {old.boot_id}

            def has_booted() -> bool:
                boots.add(holder(rig, node).boot_id)
                return holder(rig, node).boot_id != old.boot_id

            send(lambda: rig.machines.reboot(node, key=rig.named("b1"), expect=old))
            rig.wait(has_booted)
            with suppress(Rejected):
                rig.machines.reboot(node, key=rig.named("b1"), expect=old)
            rig.settle()
            assert has_booted()
            assert len(boots) == 2
            assert holder(rig, node).same_holder(old)

        play(rig, how, scene)

    def test_a_replacement_sent_twice_brings_one_machine(self, rig: ClusterRig) -> None:
        need(rig, Capability.REPLACE)
        if "replace" in rig.machines.blind:
            pytest.skip("this adapter's replace is blind")
        before = {found.node: found.incarnation.instance_id for found in rig.cluster.snapshot().nodes}
        node = rig.nodes()[0]
        old = holder(rig, node)
        send_twice(lambda: rig.machines.replace(node, key=rig.named("r1"), expect=old))
        rig.settle()
        after = {found.node: found.incarnation.instance_id for found in rig.cluster.snapshot().nodes}
        assert len(after) == len(before)
        assert len(set(after.values()) - set(before.values())) == 1
        assert old.instance_id not in after.values()
        assert (node in after) is (Capability.SEAT_KEPT in rig.cluster.capabilities)

    def test_a_restart_of_the_agent_sent_twice_is_no_new_boot(self, rig: ClusterRig) -> None:
        need(rig, Capability.RESTART_SERVICE)
        node = run_job(rig)[0]
        old = holder(rig, node)
        send_twice(lambda: rig.machines.restart_service(node, key=rig.named("a1"), expect=old))
        rig.settle()
        assert holder(rig, node) == old
        assert node in where(rig)

    def test_a_reset_sent_twice_is_confirmed_and_boots_nothing(self, rig: ClusterRig) -> None:
        need(rig, Capability.RESET_GPU)
        node = rig.nodes()[0]
        old, key = holder(rig, node), rig.named("s1")
        send_twice(lambda: rig.machines.reset(node, (0,), key=key, expect=old))
        rig.wait(lambda: any(_is_done(fact, key, node, old) for fact in rig.facts))
        rig.settle()
        assert len({fact.id for fact in _resets(rig, key)}) == 1
        assert holder(rig, node) == old

    def test_a_reset_under_a_rank_is_refused(self, rig: ClusterRig) -> None:
        need(rig, Capability.RESET_GPU)
        node = run_job(rig)[0]
        rig.settle()  # where nothing runs yet, though it is ordered, there is nothing to refuse
        key = rig.named("s1")
        _refused(rig, key, lambda: rig.machines.reset(node, (0,), key=key, expect=holder(rig, node)))
        rig.settle()
        assert node in where(rig)
        assert not _resets(rig, key)

    @pytest.mark.parametrize("repair", ["restart_service", "reset_gpu", "reboot", "replace"])
    def test_a_repair_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig, repair: str) -> None:
        need(rig, Capability(repair))
        node = rig.nodes()[0]
        old, key = holder(rig, node), rig.named("k")
        _refused(rig, key, lambda: _repair(rig, repair, node, stranger(old)))
        rig.settle()
        assert holder(rig, node) == old
        assert not _resets(rig, key)

    def test_a_reboot_ends_what_ran_there(self, rig: ClusterRig) -> None:
        need(rig, Capability.REBOOT)
        node = run_job(rig)[0]
        rig.machines.reboot(node, key=rig.named("b1"), expect=holder(rig, node))
        rig.wait(lambda: node not in where(rig) and attempts(rig)[1].end is not None)
        rig.wait(lambda: is_ready(rig, node))
        rig.settle()
        assert node not in where(rig)

    @pytest.mark.parametrize("repair", ["restart_service", "reboot", "replace"])
    def test_a_repair_of_a_node_that_is_not_there_is_refused(self, rig: ClusterRig, repair: str) -> None:
        need(rig, Capability(repair))
        with pytest.raises(Rejected):
            _repair(rig, repair, NodeId(f"{rig.cluster.id}/nobody"), holder(rig, rig.nodes()[0]))


class FenceContract:
    """A fence is done when nothing of the one that was meant can write any more; nobody else is touched."""

    def test_after_a_fence_nothing_runs_there(self, rig: ClusterRig) -> None:
        need(rig, Capability.FENCE)
        node = run_job(rig)[0]
        there = holder(rig, node)
        stop(rig)
        with suppress(Transient):
            rig.machines.fence(node, key=rig.named("f1"), expect=there)
        rig.wait(lambda: self._fence_done(rig, node, there))
        rig.wait(lambda: node not in where(rig))

    def test_a_fence_that_says_done_has_left_nothing_alive(self, rig: ClusterRig) -> None:
        need(rig, Capability.FENCE)
        node = run_job(rig)[0]
        rig.settle()
        assert rig.living_ranks(node)
        there = holder(rig, node)
        rig.wait(lambda: self._fence_done(rig, node, there))
        assert not rig.living_ranks(node)

    @pytest.mark.parametrize("unknown", ["uid", "instance_id", "boot_id"])
    def test_who_knows_less_of_a_machine_fences_it_all_the_same(self, rig: ClusterRig, unknown: str) -> None:
        need(rig, Capability.FENCE)
        node = run_job(rig)[0]
        rig.settle()  # a machine on which nothing runs yet may be left alone
        less = msgspec.structs.replace(holder(rig, node), **{unknown: ""})
        stop(rig)
        rig.wait(lambda: self._fence_done(rig, node, less))
        rig.wait(lambda: not is_ready(rig, node))

    def test_a_fence_that_was_meant_for_another_incarnation_touches_nobody(self, rig: ClusterRig) -> None:
        need(rig, Capability.FENCE)
        nodes = run_job(rig)
        old = holder(rig, nodes[0])
        with suppress(Rejected):  # that the one who was meant has ended may also be said: done
            rig.machines.fence(nodes[0], key=rig.named("f1"), expect=stranger(old))
        rig.settle()
        assert where(rig) == nodes
        assert is_ready(rig, nodes[0])
        assert holder(rig, nodes[0]) == old

    @pytest.mark.parametrize("expects", [False, True], ids=["under its key", "another, of the boot before"])
    def test_a_late_fence_leaves_the_next_boot_alone(self, rig: ClusterRig, expects: bool) -> None:
        need(rig, Capability.FENCE, Capability.REBOOT)
        node, down = self._fenced(rig)
        rig.machines.reboot(node, key=rig.named("b1"), expect=down)
        rig.wait(lambda: is_ready(rig, node))
        new = holder(rig, node)
        key, expect = (rig.named("f2"), down) if expects else (rig.named("f1"), None)
        assert rig.machines.fence(node, key=key, expect=expect).done
        rig.settle()
        assert is_ready(rig, node)
        assert holder(rig, node) == new

    def test_of_a_machine_that_does_not_run_the_holder_decides(self, rig: ClusterRig) -> None:
        need(rig, Capability.FENCE, Capability.REBOOT)
        node, down = self._fenced(rig)
        other = msgspec.structs.replace(down, instance_id="an instance that never was")
        with pytest.raises(Rejected):
            rig.machines.reboot(node, key=rig.named("b1"), expect=other)
        rig.machines.reboot(node, key=rig.named("b2"), expect=stranger(down))
        rig.wait(lambda: is_ready(rig, node))
        assert holder(rig, node).same_holder(down)
        assert holder(rig, node) != down

    def _fence_done(self, rig: ClusterRig, node: NodeId, there: Incarnation) -> bool:
        """A machine that is still going down is Transient."""
        with suppress(Transient):
            return rig.machines.fence(node, key=rig.named("f1"), expect=there).done
        return False

    def _fenced(self, rig: ClusterRig) -> tuple[NodeId, Incarnation]:
        node = run_job(rig)[0]
        rig.settle()  # a machine on which nothing runs yet may be left alone
        stop(rig)
        rig.machines.fence(node, key=rig.named("f1"), expect=None)
        rig.wait(lambda: not is_ready(rig, node))
        return node, holder(rig, node)


def _resets(rig: ClusterRig, key: str) -> list[Fact]:
    return [fact for fact in rig.facts if isinstance(fact.news, ResetDone) and fact.news.key == key]


def _is_done(fact: Fact, key: str, node: NodeId, who: Incarnation) -> bool:
    """A confirmation of a reset, by whoever may not know all that the cluster knows of the node."""
    news = fact.news
    return isinstance(news, ResetDone) and (news.key, news.node) == (key, node) and news.incarnation.agrees(who)


def _refused(rig: ClusterRig, key: str, call: Callable[[], Accepted]) -> None:
    """At once, or by whoever was to do it."""
    try:
        call()
    except Rejected:
        return
    rig.wait(lambda: was_refused(rig, key))


def _repair(rig: ClusterRig, repair: str, node: NodeId, expect: Incarnation) -> Accepted:
    match repair:
        case "restart_service":
            return rig.machines.restart_service(node, key=rig.named("k"), expect=expect)
        case "reset_gpu":
            return rig.machines.reset(node, (), key=rig.named("k"), expect=expect)
        case "reboot":
            return rig.machines.reboot(node, key=rig.named("k"), expect=expect)
        case _:
            return rig.machines.replace(node, key=rig.named("k"), expect=expect)
