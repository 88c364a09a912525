"""The Cluster port's contract on what is wrong with a job before anything is made of it."""

from sickbay.testing.cluster_rig import ClusterRig, attempts


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
