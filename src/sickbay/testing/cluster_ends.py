"""The Cluster port's contract on how attempts end, and on what others do to jobs and machines."""

from collections import Counter

import pytest

from sickbay.model.errors import Rejected
from sickbay.model.job import EndReason
from sickbay.testing.cluster_rig import (
    ClusterRig,
    attempts,
    cordon,
    end_of,
    holder,
    is_ready,
    job_of,
    owner_of,
    run_job,
    shown,
    where,
)


class EndContract:
    """An end has its reason, and the exit codes that are known."""

    def test_ranks_that_all_end_with_0_have_completed(self, rig: ClusterRig) -> None:
        run_job(rig)
        rig.finish(job_of(rig), 0)
        rig.wait(lambda: end_of(rig) is not None)
        end = end_of(rig)
        assert end is not None
        assert end.reason is EndReason.COMPLETED
        assert not any(end.exit_codes.values())

    def test_a_rank_that_ends_badly_has_failed_with_its_exit_code(self, rig: ClusterRig) -> None:
        nodes = run_job(rig)
        rig.finish(job_of(rig), 3)
        rig.wait(lambda: attempts(rig)[1].end is not None)
        end = attempts(rig)[1].end
        assert end is not None
        assert end.reason is EndReason.FAILED
        assert 3 in end.exit_codes.values()
        assert {str(node) for node in nodes} >= end.exit_codes.keys()

    def test_an_end_stays_as_it_was_told(self, rig: ClusterRig) -> None:
        run_job(rig, on=1)
        rig.finish(job_of(rig), 3)
        rig.wait(lambda: end_of(rig) is not None)
        told = end_of(rig)
        rig.settle()
        assert end_of(rig) == told

    def test_what_its_owner_cancels_is_cancelled_by_another(self, rig: ClusterRig) -> None:
        run_job(rig)
        rig.cancel_by_owner(job_of(rig))
        rig.wait(lambda: end_of(rig) is not None)
        end = end_of(rig)
        assert end is not None
        assert end.reason is EndReason.CANCELLED_BY_OTHER

    def test_what_had_to_give_way_was_preempted(self, rig: ClusterRig) -> None:
        run_job(rig)
        rig.preempt(job_of(rig))
        rig.wait(lambda: end_of(rig) is not None)
        end = end_of(rig)
        assert end is not None
        assert end.reason is EndReason.PREEMPTED


class OthersContract:
    """What a person does to a machine is seen, and what was meant for the machine before is not done to this one."""

    def test_what_a_person_moves_off_a_node_has_not_completed(self, rig: ClusterRig) -> None:
        nodes = run_job(rig)
        rig.settle()
        theirs = rig.others_drain(nodes[0])
        rig.wait(lambda: attempts(rig)[1].end is not None and nodes[0] not in where(rig))
        end = attempts(rig)[1].end
        assert end is not None
        assert end.reason is not EndReason.COMPLETED
        rig.settle()
        assert shown(rig, nodes[0]).cordons == (theirs,)

    def test_a_machine_that_a_person_restarts_is_under_a_new_boot(self, rig: ClusterRig) -> None:
        node = run_job(rig)[0]
        old = holder(rig, node)
        rig.others_reboot(node)
        rig.wait(lambda: is_ready(rig, node) and holder(rig, node).boot_id != old.boot_id)
        assert holder(rig, node).same_holder(old)
        rig.wait(lambda: node not in where(rig) and attempts(rig)[1].end is not None)
        with pytest.raises(Rejected):
            cordon(rig, node, expect=old)
        rig.settle()
        assert owner_of(rig) not in shown(rig, node).cordons

    def test_a_machine_that_a_person_replaces_is_another_whatever_its_name(self, rig: ClusterRig) -> None:
        node = rig.nodes()[0]
        old, before = holder(rig, node), self._machines(rig)
        rig.others_replace(node)
        rig.wait(lambda: self._are_ready(rig, len(before)) and old.instance_id not in self._machines(rig))
        rig.settle()
        after = self._machines(rig)
        assert len(after.keys() - before.keys()) == 1, "one left and one came"
        assert max(after.values()) == 1, "no machine holds two seats"
        with pytest.raises(Rejected):
            cordon(rig, node, expect=old)
        rig.settle()
        assert not any(owner_of(rig) in found.cordons for found in rig.cluster.snapshot().nodes)

    def _machines(self, rig: ClusterRig) -> Counter[str]:
        return Counter(found.incarnation.instance_id for found in rig.cluster.snapshot().nodes)

    def _are_ready(self, rig: ClusterRig, number: int) -> bool:
        return sum(found.ready for found in rig.cluster.snapshot().nodes) == number
