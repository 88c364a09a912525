"""Orders of people are a queue: each is audited, obeyed in turn and answered; no other word takes their place."""

import pytest
from tests.support.wards import HOUR, OpenWard, Ward, in_phase

from sickbay.engine.ingest import Ingest
from sickbay.model.facts import AnyNews, Observed, Ordered
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.incident import ORDERS_MOST, Phase


def at_once(w: Ward, *news: AnyNews) -> None:
    """All of it is stored before the engine plans again: one batch of facts."""
    ingest = Ingest(w.sim.store, w.sim.clock)
    for n, said in enumerate(news):
        ingest.tell(f"batch/{n}/{w.sim.scheduler.now}", said)
        if isinstance(said, Ordered):
            w.sim.invariants.acts.ordered(said.verb, said.target)
    w.sim.hosts[0].wake()
    w.run(5)


def order(verb: str, w: Ward, node: NodeId, by: str = "ann") -> Ordered:
    return Ordered(verb=verb, target=w.incident(node).id, by=by, reason="so")


def answers(w: Ward) -> list[str]:
    return [line.text for line in w.sim.store.story("operator:") if line.event == "answer"]


def audited(w: Ward) -> list[str]:
    return [line.text for line in w.sim.store.story("operator:") if line.event == "order"]


def test_two_orders_in_one_batch_are_both_obeyed_in_their_order(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    at_once(w, order("hold", w, node), order("escalate", w, node, by="bob"))
    assert w.phases(node)[-3:-1] == ["DRAINED", "HELD"], "the first was not lost"
    assert w.incident(node).remedy is Remedy.REBOOT
    assert w.phases(node)[-1] == "DRAINED"
    assert [line.split(":")[0] for line in answers(w)] == ["ann", "bob"]
    assert all("taken up" in line for line in answers(w))


@pytest.mark.parametrize(
    ("verbs", "ends"),
    [(("hold", "dismiss"), "DISMISSED"), (("dismiss", "hold"), "DISMISSED"), (("escalate", "hold"), "HELD")],
)
def test_each_of_several_orders_is_audited_and_answered(ward: OpenWard, verbs: tuple[str, ...], ends: str) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    at_once(w, *(order(verb, w, node) for verb in verbs))
    w.rests()
    assert w.phase(node) == ends
    assert [line.split(":")[1].strip() for line in audited(w)] == list(verbs)
    assert [line.split(":")[1].strip() for line in answers(w)] == list(verbs)


def test_what_makes_no_sense_is_answered_with_the_reason(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    at_once(w, order("escalate", w, node))
    assert "not possible" in answers(w)[0]
    assert "DRAINED" in answers(w)[0]


def test_an_order_for_what_is_over_is_answered_too(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    incident = w.incident(node).id
    w.order("dismiss", incident)
    w.rests()
    at_once(w, Ordered(verb="hold", target=incident, by="ann", reason="late"))
    assert "not possible" in answers(w)[-1]
    at_once(w, Ordered(verb="hold", target="nobody", by="ann", reason="mistyped"))
    assert "no incident" in answers(w)[-1]


def test_the_queue_is_bounded_and_says_so(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.DRAINED)
    at_once(w, *(order("escalate", w, node) for _ in range(ORDERS_MOST)), order("hold", w, node))
    assert w.phase(node) == "DRAINED"
    assert len(answers(w)) == ORDERS_MOST + 1
    assert any("hold" in line and "wait already" in line for line in answers(w))


def test_a_persons_order_is_not_lost_to_a_cordon_that_another_removed_meanwhile(ward: OpenWard) -> None:
    w, node = in_phase(ward, Phase.HELD)
    w.sim.hosts[0].pause(30)
    w.world.operator_uncordons(node)
    w.run(20)
    at_once(w, order("confirm", w, node))
    w.run(30)
    assert any("confirm" in line for line in answers(w)), "obeyed or refused, but answered"
    w.rests()
    assert w.incidents(node)[0].phase is Phase.DISMISSED


def test_a_persons_order_is_not_lost_to_the_drivers_own_word(ward: OpenWard) -> None:
    w = ward()
    node = w.nodes[0]
    w.order("pause", "")
    w.says(node, 163)
    w.until(lambda: w.phase(node) != "", HOUR)
    boot = w.world.seat(node).incarnation
    taken_back = Observed(node=node, kind="xid", fields={"number": 162, "device": 0}, text="Xid 162", incarnation=boot)
    at_once(w, order("hold", w, node), taken_back)
    assert any("hold" in line for line in answers(w))
