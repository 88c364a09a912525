"""The Cluster port's contract on attempts of jobs and on what their ranks write."""

from contextlib import suppress

import pytest

from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.testing.cluster_rig import SENDINGS, ClusterRig, attempts, job_of, need, run_job, send, start, where


class JobContract:
    """Attempts start as one gang and stop as one."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_an_attempt_started_twice_is_one_gang(self, rig: ClusterRig, how: str) -> None:
        send(rig, how, lambda: start(rig))
        rig.wait(lambda: len(where(rig)) == 2)
        rig.settle()
        assert list(attempts(rig)) == [1]
        assert len(where(rig)) == 2

    def test_a_start_goes_where_it_was_told(self, rig: ClusterRig) -> None:
        need(rig, Capability.PLACE)
        assert set(run_job(rig)) == set(rig.nodes()[:2])

    def test_an_attempt_begun_under_one_key_is_refused_to_another(self, rig: ClusterRig) -> None:
        run_job(rig)
        with pytest.raises(Rejected):
            start(rig, "another key")
        rig.settle()
        assert list(attempts(rig)) == [1]
        assert len(where(rig)) == 2

    def test_a_start_on_a_node_that_others_keep_to_themselves_is_refused(self, rig: ClusterRig) -> None:
        need(rig, Capability.PLACE)
        rig.others_cordon(rig.nodes()[1])
        rig.settle()
        with pytest.raises(Rejected):
            start(rig)
        rig.settle()
        assert not attempts(rig)

    def test_a_start_on_a_node_that_is_not_there_is_refused_as_a_whole(self, rig: ClusterRig) -> None:
        need(rig, Capability.PLACE)
        nodes = dict.fromkeys((rig.nodes()[0], NodeId(f"{rig.cluster.id}/nobody")), ())
        with pytest.raises(Rejected):
            rig.cluster.start(job_of(rig), 1, spec=rig.spec(2), nodes=nodes, avoid=(), key=rig.named("start-1"))
        rig.settle()
        assert not attempts(rig)

    def test_a_start_that_was_stopped_does_not_come_back_with_its_key(self, rig: ClusterRig) -> None:
        run_job(rig)
        rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("stop-1"))
        rig.wait(lambda: not where(rig) and attempts(rig)[1].end is not None)
        with suppress(Rejected):
            start(rig)
        rig.settle()
        assert not where(rig)

    def test_a_start_avoids_what_it_was_told(self, rig: ClusterRig) -> None:
        if Capability.PLACE in rig.cluster.capabilities:
            pytest.skip("this cluster is told where to start")
        avoid = tuple(rig.nodes()[:2])
        rig.cluster.start(job_of(rig), 1, spec=rig.spec(2), nodes={}, avoid=avoid, key=rig.named("start-1"))
        rig.wait(lambda: len(where(rig)) == 2)
        assert not set(where(rig)) & set(avoid)

    @pytest.mark.parametrize("final", [False, True], ids=["", "for good"])
    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_stop_sent_twice_ends_the_attempt(self, rig: ClusterRig, how: str, final: bool) -> None:
        run_job(rig)
        send(rig, how, lambda: rig.cluster.stop(job_of(rig), 1, final=final, key=rig.named("stop-1")))
        rig.wait(lambda: not where(rig))
        rig.settle()
        assert attempts(rig)[1].end is not None
        assert not where(rig)

    def test_a_stop_stops_only_its_own_attempt(self, rig: ClusterRig) -> None:
        run_job(rig)
        rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("stop-1"))
        rig.wait(lambda: not where(rig) and attempts(rig)[1].end is not None)
        start(rig, "start-2", attempt=2)
        rig.wait(lambda: len(where(rig, 2)) == 2)
        with suppress(Gone):
            rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("stop-1"))
        with pytest.raises(Gone):
            rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("a late stop of the first"))
        rig.settle()
        assert len(where(rig, 2)) == 2

    def test_a_stop_of_one_job_leaves_another_alone(self, rig: ClusterRig) -> None:
        second = "second"
        run_job(rig, on=1)
        place = Capability.PLACE in rig.cluster.capabilities
        nodes = {rig.nodes()[1]: ()} if place else {}
        rig.cluster.start(
            job_of(rig, second), 1, spec=rig.spec(1), nodes=nodes, avoid=(), key=rig.named("start-second")
        )
        rig.wait(lambda: len(where(rig, 1, second)) == 1)
        rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("stop-1"))
        rig.wait(lambda: not where(rig))
        rig.settle()
        assert len(where(rig, 1, second)) == 1

    def test_a_stop_of_what_never_was_is_gone(self, rig: ClusterRig) -> None:
        with pytest.raises(Gone):
            rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("stop-1"))


class NativeContract:
    """Jobs with an object and a controller of their own. An attempt is shown only once it has nodes."""

    def _native(self, rig: ClusterRig) -> JobId:
        need(rig, Capability.RERUN)
        job = rig.native_job("native", 2)
        rig.wait(lambda: len(where(rig, 1, "native")) == 2)
        return job

    def _stopped(self, rig: ClusterRig, job: JobId, *, final: bool) -> None:
        rig.cluster.stop(job, 1, final=final, key=rig.named("stop-1"))
        rig.wait(lambda: not where(rig, 1, "native") and attempts(rig, "native")[1].end is not None)

    def _shown_with_nodes(self, rig: ClusterRig) -> None:
        assert all(found.ranks or found.end for found in rig.cluster.snapshot().jobs)

    def test_a_job_that_others_submitted_is_shown_with_what_is_known_of_it(self, rig: ClusterRig) -> None:
        self._native(rig)
        found = attempts(rig, "native")[1]
        assert found.native
        assert found.spec is not None
        self._shown_with_nodes(rig)

    def test_a_job_that_is_held_stays_off_until_it_is_asked_for(self, rig: ClusterRig) -> None:
        need(rig, Capability.HOLDS)
        job = self._native(rig)
        self._stopped(rig, job, final=False)
        rig.settle()
        assert set(attempts(rig, "native")) == {1}, "what waits to be started again is the ended attempt"
        self._shown_with_nodes(rig)

    @pytest.mark.parametrize("how", SENDINGS)
    def test_a_rerun_sent_twice_is_one_attempt(self, rig: ClusterRig, how: str) -> None:
        need(rig, Capability.HOLDS)
        job = self._native(rig)
        self._stopped(rig, job, final=False)
        rig.settle()
        send(rig, how, lambda: rig.cluster.rerun(job, 1, avoid=(), key=rig.named("again")))
        rig.wait(lambda: len(where(rig, 2, "native")) == 2)
        rig.settle()
        assert max(attempts(rig, "native")) == 2
        self._shown_with_nodes(rig)

    def test_a_rerun_keeps_off_what_it_was_told_to_avoid(self, rig: ClusterRig) -> None:
        need(rig, Capability.HOLDS)
        job = self._native(rig)
        bad = where(rig, 1, "native")[0]
        self._stopped(rig, job, final=False)
        rig.settle()
        rig.cluster.rerun(job, 1, avoid=(bad,), key=rig.named("again"))
        rig.wait(lambda: len(where(rig, 2, "native")) == 2)
        assert bad not in where(rig, 2, "native")

    def test_a_rerun_after_an_attempt_that_is_not_the_last_is_refused(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        with pytest.raises(Rejected):
            rig.cluster.rerun(job, 1, avoid=(), key=rig.named("again"))
        rig.settle()
        assert set(attempts(rig, "native")) == {1}

    def test_after_a_stop_for_good_its_own_controller_does_not_run_it_again(self, rig: ClusterRig) -> None:
        job = self._native(rig)
        self._stopped(rig, job, final=True)
        rig.settle()
        assert set(attempts(rig, "native")) == {1}
        with pytest.raises(Rejected):
            rig.cluster.rerun(job, 1, avoid=(), key=rig.named("again"))


class LogContract:
    """What a rank writes can be read while it runs and afterwards, from any place on."""

    TEXT = "first line\nzweite Zeile: äöü\nthe last line\n"

    def _run(self, rig: ClusterRig) -> None:
        need(rig, Capability.LOGS)
        place = Capability.PLACE in rig.cluster.capabilities
        nodes = dict.fromkeys(rig.nodes()[:2], ()) if place else {}
        rig.cluster.start(
            job_of(rig), 1, spec=rig.spec(2, says=self.TEXT), nodes=nodes, avoid=(), key=rig.named("start-1")
        )
        rig.wait(lambda: all(rig.cluster.logs(job_of(rig), 1, rank).text == self.TEXT for rank in (0, 1)))

    def test_what_a_rank_has_written_is_read_once_and_the_rest_later(self, rig: ClusterRig) -> None:
        self._run(rig)
        whole = rig.cluster.logs(job_of(rig), 1, 0)
        rest = rig.cluster.logs(job_of(rig), 1, 0, after=whole.next)
        assert (rest.text, rest.next) == ("", whole.next)
        assert not whole.over
        assert not rest.over

    def test_small_pieces_make_the_whole(self, rig: ClusterRig) -> None:
        self._run(rig)
        text, at = "", ""
        for _ in range(len(self.TEXT.encode())):
            piece = rig.cluster.logs(job_of(rig), 1, 1, after=at, limit=7)
            text, at = text + piece.text, piece.next
        assert text == self.TEXT

    def test_the_end_can_be_read_without_the_beginning(self, rig: ClusterRig) -> None:
        self._run(rig)
        end = rig.cluster.logs(job_of(rig), 1, 0, last=len("the last line\n"))
        assert end.text.endswith("the last line\n")
        assert len(end.text) < len(self.TEXT)
        assert rig.cluster.logs(job_of(rig), 1, 0, after=end.next).text == ""
        assert rig.cluster.logs(job_of(rig), 1, 0, last=1_000_000).text == self.TEXT

    def test_what_is_no_place_is_refused(self, rig: ClusterRig) -> None:
        self._run(rig)
        with pytest.raises(Rejected):
            rig.cluster.logs(job_of(rig), 1, 0, after="no place of any cluster")

    def test_the_output_is_over_only_when_the_rank_has_ended(self, rig: ClusterRig) -> None:
        self._run(rig)
        assert not rig.cluster.logs(job_of(rig), 1, 0).over
        rig.cluster.stop(job_of(rig), 1, final=False, key=rig.named("stop-1"))
        rig.wait(lambda: rig.cluster.logs(job_of(rig), 1, 0).over)
        assert not where(rig) or rig.nodes()[0] not in where(rig)
        assert rig.cluster.logs(job_of(rig), 1, 0).text == self.TEXT
        assert not rig.cluster.logs(job_of(rig), 1, 0, limit=8).over  # there is more to read

    @pytest.mark.parametrize(("attempt", "rank"), [(1, 2), (2, 0)])
    def test_the_output_of_a_rank_that_never_was_is_gone(self, rig: ClusterRig, attempt: int, rank: int) -> None:
        self._run(rig)
        with pytest.raises(Gone):
            rig.cluster.logs(job_of(rig), attempt, rank)

    def test_a_cluster_without_logs_says_so(self, rig: ClusterRig) -> None:
        if Capability.LOGS in rig.cluster.capabilities:
            pytest.skip("this cluster has logs")
        run_job(rig)
        with pytest.raises(Rejected):
            rig.cluster.logs(job_of(rig), 1, 0)
