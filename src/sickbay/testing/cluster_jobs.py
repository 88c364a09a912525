"""The Cluster port's contract on attempts of jobs that we start."""

from contextlib import suppress

import pytest

from sickbay.model.errors import Gone, Rejected
from sickbay.model.fleet import Capability, NodeId
from sickbay.testing.cluster_rig import ClusterRig, attempts, end_of, job_of, need, run_job, start, stop, where
from sickbay.testing.cluster_sendings import SENDINGS, Send, play


class JobContract:
    """Attempts start as one gang and stop as one."""

    @pytest.mark.parametrize("how", SENDINGS)
    def test_an_attempt_started_twice_is_one_gang(self, rig: ClusterRig, how: str) -> None:
        def scene(send: Send) -> None:
            send(lambda: start(rig))
            rig.wait(lambda: len(where(rig)) == 2)
            rig.settle()
            assert list(attempts(rig)) == [1]
            assert len(where(rig)) == 2

        play(rig, how, scene)

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
        stop(rig)
        rig.wait(lambda: end_of(rig) is not None)
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

    @pytest.mark.parametrize(("how", "final"), [*((how, False) for how in SENDINGS), ("twice", True)])
    def test_a_stop_sent_twice_ends_the_attempt(self, rig: ClusterRig, how: str, final: bool) -> None:
        def scene(send: Send) -> None:
            run_job(rig)
            send(lambda: stop(rig, final=final))
            rig.wait(lambda: end_of(rig) is not None)
            rig.settle()
            assert not where(rig)

        play(rig, how, scene)

    def test_a_stop_stops_only_its_own_attempt(self, rig: ClusterRig) -> None:
        run_job(rig)
        stop(rig)
        rig.wait(lambda: end_of(rig) is not None)
        start(rig, "start-2", attempt=2)
        rig.wait(lambda: len(where(rig, 2)) == 2)
        with suppress(Gone):
            stop(rig)
        with pytest.raises(Gone):
            stop(rig, key="a late stop of the first")
        rig.settle()
        assert len(where(rig, 2)) == 2

    def test_a_stop_of_one_job_leaves_another_alone(self, rig: ClusterRig) -> None:
        second = job_of(rig, "second")
        run_job(rig, on=1)
        place = Capability.PLACE in rig.cluster.capabilities
        nodes = {rig.nodes()[1]: ()} if place else {}
        rig.cluster.start(second, 1, spec=rig.spec(1), nodes=nodes, avoid=(), key=rig.named("start-second"))
        rig.wait(lambda: len(where(rig, 1, second)) == 1)
        stop(rig)
        rig.wait(lambda: not where(rig))
        rig.settle()
        assert len(where(rig, 1, second)) == 1

    def test_a_stop_of_what_never_was_is_gone(self, rig: ClusterRig) -> None:
        with pytest.raises(Gone):
            stop(rig)


class SpecContract:
    """Asked at submission: a mistake is one line then, not a failed start later."""

    def test_what_it_can_run_is_not_refused(self, rig: ClusterRig) -> None:
        assert rig.cluster.wrong(rig.spec(2)) == ""

    def test_what_it_could_never_run_is_refused_in_one_line_and_nothing_is_made_of_it(self, rig: ClusterRig) -> None:
        spec = rig.impossible()
        said = {rig.cluster.wrong(spec) for _ in range(2)}
        assert len(said) == 1, "the same job is wrong in the same way"
        (line,) = said
        assert line.strip()
        assert "\n" not in line
        assert not attempts(rig)
