"""The Cluster port's contract on nodes: cordons, and what is refused."""

from contextlib import suppress

import msgspec
import pytest

from sickbay.model.cordon import cordon_of
from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability, DrainHow, NodeId
from sickbay.testing.cluster_rig import (
    SENDINGS,
    ClusterRig,
    attempts,
    holder,
    need,
    owner_of,
    run_job,
    seen,
    send,
    stranger,
    where,
)


class CordonContract:
    """Cordons are a set of owners; they change nothing that runs."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_cordon_sent_twice_is_one_cordon(self, rig: ClusterRig, how: str) -> None:
        node = rig.nodes()[0]
        send(
            rig,
            how,
            lambda: rig.cluster.cordon(
                node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=holder(rig, node)
            ),
        )
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == (owner_of(rig),)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_an_uncordon_sent_twice_leaves_others_alone(self, rig: ClusterRig, how: str) -> None:
        node = rig.nodes()[0]
        theirs, second = rig.others_cordon(node), cordon_of(rig.named("second"))
        for owner in (owner_of(rig), second):
            rig.cluster.cordon(node, owner=owner, reason="r", key=rig.named(f"c-{owner}"), expect=None)
        send(rig, how, lambda: rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=None))
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert set(found.cordons) == {second, theirs}

    def test_an_uncordon_of_what_is_not_cordoned_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        theirs = rig.others_cordon(node)
        with suppress(Rejected):
            rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=None)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == (theirs,)

    def test_a_cordon_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        wrong = stranger(holder(rig, node))
        with pytest.raises(Rejected):
            rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=wrong)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == ()

    def test_a_cordon_that_was_removed_does_not_come_back_with_its_key(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None)
        rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=None)
        with suppress(Rejected):
            rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == ()

    def test_an_uncordon_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None)
        with pytest.raises(Rejected):
            rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=stranger(holder(rig, node)))
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == (owner_of(rig),)

    def test_who_knows_less_of_a_machine_is_not_refused(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        less = msgspec.structs.replace(holder(rig, node), boot_id="")
        rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=less)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == (owner_of(rig),)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_drain_moves_work_off_that_others_run(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.DRAIN)
        node = rig.nodes()[0]
        rig.others_work(node)
        rig.settle()
        assert self._unmanaged(rig, node)
        rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None)
        expect, key = holder(rig, node), rig.named("d1")
        send(rig, how, lambda: rig.cluster.drain(node, how=DrainHow.EVICT, key=key, expect=expect))
        rig.wait(lambda: not self._unmanaged(rig, node))

    def test_a_drain_of_another_incarnation_is_refused_and_moves_nothing(self, rig: ClusterRig) -> None:
        need(rig, Capability.DRAIN)
        node = rig.nodes()[0]
        rig.others_work(node)
        rig.settle()
        with pytest.raises(Rejected):
            rig.cluster.drain(node, how=DrainHow.FORCE, key=rig.named("d1"), expect=stranger(holder(rig, node)))
        rig.settle()
        assert self._unmanaged(rig, node)

    def _unmanaged(self, rig: ClusterRig, node: NodeId) -> int:
        found = seen(rig, node)
        assert found is not None
        return found.unmanaged

    def test_a_node_that_is_not_there_is_gone(self, rig: ClusterRig) -> None:
        with pytest.raises(Gone):
            rig.cluster.cordon(
                NodeId(f"{rig.cluster.id}/nobody"), owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None
            )

    def test_a_cordon_changes_nothing_that_runs(self, rig: ClusterRig) -> None:
        nodes = run_job(rig)
        rig.cluster.cordon(nodes[0], owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None)
        rig.settle()
        assert where(rig) == nodes
        assert attempts(rig)[1].end is None

    def test_the_cordon_is_in_every_read_that_reaches_it(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        accepted = rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=None)
        rig.wait(lambda: rig.cluster.snapshot().as_of >= accepted.visible_from)
        found = seen(rig, node)
        assert found is not None
        assert owner_of(rig) in found.cordons
