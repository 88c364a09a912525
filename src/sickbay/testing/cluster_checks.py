"""The Checks port's contract."""

from sickbay.model.facts import Checked, Looked
from sickbay.model.fleet import Capability, NodeId
from sickbay.testing.cluster_rig import (
    ClusterRig,
    attempts,
    cordon,
    holder,
    job_of,
    need,
    run_job,
    stop,
    stranger,
    where,
)
from sickbay.testing.cluster_sendings import send_twice


class CheckContract:
    """Checks answer once for each node, and never pass what they did not examine."""

    def _verdicts(self, rig: ClusterRig, check: str) -> dict[str, Checked]:
        news = [fact.news for fact in rig.facts]
        return {found.node: found for found in news if isinstance(found, Checked) and found.check == rig.named(check)}

    def test_a_check_answers_once_for_each_node(self, rig: ClusterRig) -> None:
        need(rig, Capability.CHECK)
        nodes = {node: holder(rig, node) for node in rig.nodes()[:3]}
        send_twice(lambda: rig.checks.start(rig.named("k1"), nodes, level=1, profile=""))
        rig.wait(lambda: len(self._verdicts(rig, "k1")) == 3)
        rig.settle()
        answers = (fact for fact in rig.facts if isinstance(fact.news, Checked) and fact.news.check == rig.named("k1"))
        assert len({fact.id for fact in answers}) == 3
        assert {found.verdict for found in self._verdicts(rig, "k1").values()} == {"pass"}
        assert all(self._verdicts(rig, "k1")[node].incarnation.agrees(holder) for node, holder in nodes.items())

    def test_a_check_runs_on_a_cordoned_node(self, rig: ClusterRig) -> None:
        need(rig, Capability.CHECK, Capability.CHECK_CORDONED)
        node = rig.nodes()[0]
        cordon(rig, node)
        rig.settle()
        rig.checks.start(rig.named("k1"), {node: holder(rig, node)}, level=1, profile="")
        rig.wait(lambda: bool(self._verdicts(rig, "k1")))
        assert self._verdicts(rig, "k1")[node].verdict == "pass"

    def test_a_check_of_another_incarnation_never_passes(self, rig: ClusterRig) -> None:
        need(rig, Capability.CHECK)
        node, witness = rig.nodes()[:2]
        rig.checks.start(rig.named("k1"), {node: stranger(holder(rig, node))}, level=1, profile="")
        rig.checks.start(rig.named("k2"), {witness: holder(rig, witness)}, level=1, profile="")
        rig.wait(lambda: bool(self._verdicts(rig, "k2")))
        rig.settle()
        assert {found.verdict for found in self._verdicts(rig, "k1").values()} <= {"could_not_run"}

    def test_a_look_is_answered_by_each_node(self, rig: ClusterRig) -> None:
        need(rig, Capability.LOOK)
        nodes, look = tuple(rig.nodes()[:3]), rig.named("l1")
        rig.checks.look(look, nodes, stacks_of=None)
        rig.wait(lambda: self._who_looked(rig, look) == set(nodes))

    def _who_looked(self, rig: ClusterRig, look: str) -> set[NodeId]:
        news = (fact.news for fact in rig.facts)
        return {found.node for found in news if isinstance(found, Looked) and found.look == look}

    def test_an_ask_to_save_ends_nothing_however_often_it_comes(self, rig: ClusterRig) -> None:
        need(rig, Capability.ASK_TO_SAVE)
        ran = run_job(rig)
        ask = rig.named("ask-1")
        send_twice(lambda: rig.checks.ask_to_save(ask, tuple(ran), job=job_of(rig), attempt=1))
        rig.settle()
        assert sorted(where(rig)) == sorted(ran)
        assert attempts(rig)[1].end is None

    def test_an_ask_that_comes_too_late_asks_nobody_else(self, rig: ClusterRig) -> None:
        """What has ended is not asked, and who asks is not told that it failed: the mail may have been on its way."""
        need(rig, Capability.ASK_TO_SAVE)
        ran = run_job(rig)
        stop(rig, final=True)
        rig.wait(lambda: not where(rig))
        rig.checks.ask_to_save(rig.named("ask-1"), tuple(ran), job=job_of(rig), attempt=1)
        rig.settle()
        assert not where(rig)
