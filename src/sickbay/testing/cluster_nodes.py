"""The Cluster port's contract on nodes: cordons, drains, and what is refused."""

from contextlib import suppress

import msgspec
import pytest

from sickbay.model.cordon import cordon_of
from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability, DrainHow, NodeId
from sickbay.testing.cluster_rig import (
    ClusterRig,
    attempts,
    cordon,
    holder,
    need,
    owner_of,
    run_job,
    shown,
    stranger,
    where,
)
from sickbay.testing.cluster_sendings import SENDINGS, Send, play, send_twice


class CordonContract:
    """Cordons are a set of owners; they change nothing that runs."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_cordon_sent_twice_is_one_cordon(self, rig: ClusterRig, how: str) -> None:
        def scene(send: Send) -> None:
            node = rig.nodes()[0]
            expect = holder(rig, node)
            send(lambda: cordon(rig, node, expect=expect))
            rig.settle()
            assert shown(rig, node).cordons == (owner_of(rig),)

        play(rig, how, scene)

    def test_an_uncordon_sent_twice_leaves_others_alone(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        theirs, second = rig.others_cordon(node), cordon_of(rig.named("second"))
        for owner in (owner_of(rig), second):
            rig.cluster.cordon(node, owner=owner, reason="r", key=rig.named(f"c-{owner}"), expect=None)
        send_twice(lambda: rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=None))
        rig.settle()
        assert set(shown(rig, node).cordons) == {second, theirs}

    def test_a_cordon_that_a_person_takes_back_is_gone_and_ours_may_stay(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        theirs = rig.others_cordon(node)
        cordon(rig, node)
        rig.settle()
        assert set(shown(rig, node).cordons) == {theirs, owner_of(rig)}
        rig.others_uncordon(node)
        rig.wait(lambda: theirs not in shown(rig, node).cordons)
        rig.settle()
        assert set(shown(rig, node).cordons) <= {owner_of(rig)}

    def test_an_uncordon_of_what_is_not_cordoned_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        theirs = rig.others_cordon(node)
        with suppress(Rejected):
            rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=None)
        rig.settle()
        assert shown(rig, node).cordons == (theirs,)

    def test_a_cordon_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        wrong = stranger(holder(rig, node))
        with pytest.raises(Rejected):
            cordon(rig, node, expect=wrong)
        rig.settle()
        assert shown(rig, node).cordons == ()

    def test_a_cordon_that_was_removed_does_not_come_back_with_its_key(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        cordon(rig, node)
        rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=None)
        with suppress(Rejected):
            cordon(rig, node)
        rig.settle()
        assert shown(rig, node).cordons == ()

    def test_an_uncordon_of_another_incarnation_is_refused_and_changes_nothing(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        cordon(rig, node)
        with pytest.raises(Rejected):
            rig.cluster.uncordon(node, owner=owner_of(rig), key=rig.named("u1"), expect=stranger(holder(rig, node)))
        rig.settle()
        assert shown(rig, node).cordons == (owner_of(rig),)

    @pytest.mark.parametrize("unknown", ["uid", "instance_id", "boot_id"])
    def test_who_knows_less_of_a_machine_is_not_refused(self, rig: ClusterRig, unknown: str) -> None:
        node = rig.nodes()[0]
        cordon(rig, node, expect=msgspec.structs.replace(holder(rig, node), **{unknown: ""}))
        rig.settle()
        assert shown(rig, node).cordons == (owner_of(rig),)

    def test_a_node_that_is_not_there_is_gone(self, rig: ClusterRig) -> None:
        with pytest.raises(Gone):
            cordon(rig, NodeId(f"{rig.cluster.id}/nobody"))

    def test_a_cordon_changes_nothing_that_runs(self, rig: ClusterRig) -> None:
        nodes = run_job(rig)
        cordon(rig, nodes[0])
        rig.settle()
        assert where(rig) == nodes
        assert attempts(rig)[1].end is None

    def test_the_cordon_is_in_every_read_that_reaches_it(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        accepted = cordon(rig, node)
        rig.wait(lambda: rig.cluster.snapshot().as_of >= accepted.visible_from)
        assert owner_of(rig) in shown(rig, node).cordons


class DrainContract:
    """A drain moves what Sickbay does not manage."""

    def test_a_drain_moves_work_off_that_others_run(self, rig: ClusterRig) -> None:
        need(rig, Capability.DRAIN)
        node = rig.nodes()[0]
        rig.others_work(node)
        rig.settle()
        assert shown(rig, node).unmanaged
        cordon(rig, node)
        expect, key = holder(rig, node), rig.named("d1")
        send_twice(lambda: rig.cluster.drain(node, how=DrainHow.EVICT, key=key, expect=expect))
        rig.wait(lambda: not shown(rig, node).unmanaged)

    def test_a_drain_of_another_incarnation_is_refused_and_moves_nothing(self, rig: ClusterRig) -> None:
        need(rig, Capability.DRAIN)
        node = rig.nodes()[0]
        rig.others_work(node)
        rig.settle()
        with pytest.raises(Rejected):
            rig.cluster.drain(node, how=DrainHow.FORCE, key=rig.named("d1"), expect=stranger(holder(rig, node)))
        rig.settle()
        assert shown(rig, node).unmanaged
