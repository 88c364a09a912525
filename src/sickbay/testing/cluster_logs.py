"""The Cluster port's contract on what the ranks of a job write."""

import pytest

from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability
from sickbay.testing.cluster_rig import ClusterRig, job_of, need, run_job, stop, where


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
        stop(rig)
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
