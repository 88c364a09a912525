"""The Cluster port's contract on jobs that others submitted, with a controller of their own."""

import pytest

from sickbay.model.errors import Rejected
from sickbay.model.fleet import Capability, JobId
from sickbay.testing.cluster_rig import ClusterRig, attempts, end_of, need, where
from sickbay.testing.cluster_sendings import SENDINGS, Send, play


class NativeContract:
    """An attempt is shown only once it has nodes; one that its own controller begins is the next one."""

    def _native(self, rig: ClusterRig) -> JobId:
        need(rig, Capability.RERUN)
        job = rig.native_job("native", 2)
        rig.wait(lambda: len(where(rig, 1, job)) == 2)
        return job

    def _stopped(self, rig: ClusterRig, job: JobId, *, final: bool) -> None:
        rig.cluster.stop(job, 1, final=final, key=rig.named("stop-1"))
        rig.wait(lambda: end_of(rig, 1, job) is not None)

    def _shown_with_nodes(self, rig: ClusterRig) -> None:
        assert all(found.ranks or found.end for found in rig.cluster.snapshot().jobs)

    def test_a_job_that_others_submitted_is_shown_with_what_is_known_of_it(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        found = attempts(rig, job)[1]
        assert found.native
        assert found.spec is not None
        assert found.spec.nodes == 2
        self._shown_with_nodes(rig)

    def test_a_stop_of_a_job_that_others_submitted_ends_its_attempt(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        self._stopped(rig, job, final=True)
        assert not where(rig, 1, job)

    def test_an_attempt_that_its_own_controller_begins_is_the_next_one(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        rig.native_restart(job)
        rig.wait(lambda: len(where(rig, 2, job)) == 2)
        rig.settle()
        assert max(attempts(rig, job)) == 2
        assert attempts(rig, job)[2].native
        assert not where(rig, 1, job)

    def test_a_stop_of_what_was_before_a_native_restart_leaves_the_new_attempt_alone(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        rig.native_restart(job)
        rig.wait(lambda: len(where(rig, 2, job)) == 2)
        with pytest.raises(Rejected):
            rig.cluster.stop(job, 1, final=False, key=rig.named("late"))
        rig.settle()
        assert len(where(rig, 2, job)) == 2

    def test_a_job_that_is_held_stays_off_until_it_is_asked_for(self, rig: ClusterRig) -> None:
        need(rig, Capability.HOLDS)
        job = self._native(rig)
        self._stopped(rig, job, final=False)
        rig.settle()
        assert set(attempts(rig, job)) == {1}, "what waits to be started again is the ended attempt"
        self._shown_with_nodes(rig)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_rerun_sent_twice_is_one_attempt(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.HOLDS)

        def scene(send: Send) -> None:
            job = self._native(rig)
            self._stopped(rig, job, final=False)
            rig.settle()
            send(lambda: rig.cluster.rerun(job, 1, avoid=(), key=rig.named("again")))
            rig.wait(lambda: len(where(rig, 2, job)) == 2)
            rig.settle()
            assert max(attempts(rig, job)) == 2
            self._shown_with_nodes(rig)

        play(rig, how, scene)

    def test_a_rerun_keeps_off_what_it_was_told_to_avoid(self, rig: ClusterRig) -> None:
        need(rig, Capability.HOLDS)
        job = self._native(rig)
        bad = where(rig, 1, job)[0]
        self._stopped(rig, job, final=False)
        rig.settle()
        rig.cluster.rerun(job, 1, avoid=(bad,), key=rig.named("again"))
        rig.wait(lambda: len(where(rig, 2, job)) == 2)
        assert bad not in where(rig, 2, job)

    def test_a_rerun_after_an_attempt_that_is_not_the_last_is_refused(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        with pytest.raises(Rejected):
            rig.cluster.rerun(job, 1, avoid=(), key=rig.named("again"))
        rig.settle()
        assert set(attempts(rig, job)) == {1}

    def test_after_a_stop_for_good_its_own_controller_does_not_run_it_again(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        self._stopped(rig, job, final=True)
        rig.settle()
        assert set(attempts(rig, job)) == {1}
        with pytest.raises(Rejected):
            rig.cluster.rerun(job, 1, avoid=(), key=rig.named("again"))
