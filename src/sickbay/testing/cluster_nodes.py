"""The Cluster port's contract on nodes: cordons, and what is refused."""

from contextlib import suppress

import pytest

from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import NodeId
from sickbay.testing.cluster_rig import (
    OWNER,
    SENDINGS,
    ClusterRig,
    attempts,
    holder,
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

    def test_a_cordon_that_was_removed_does_not_come_back_with_its_key(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=None)
        rig.cluster.uncordon(node, owner=OWNER, key="u1", expect=None)
        with suppress(Rejected):
            rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=None)
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == ()

    def test_an_uncordon_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        rig.cluster.cordon(node, owner=OWNER, reason="r", key="c1", expect=None)
        with pytest.raises(Rejected):
            rig.cluster.uncordon(node, owner=OWNER, key="u1", expect=stranger(holder(rig, node)))
        rig.settle()
        found = seen(rig, node)
        assert found is not None
        assert found.cordons == (OWNER,)

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
