"""Guards of the core that no other test holds: each of these is red without the line that it is about."""

import pytest
from tests.scenario.test_acts import Channel, intent_of, repairs, waiting_repair
from tests.scenario.test_clocks import Deputy, clock, noise, rounds
from tests.support.wards import HOUR, OpenWard, Ward

from sickbay.adapters.machines.agents import AgentMachines
from sickbay.engine import lead
from sickbay.engine.reception import Reception
from sickbay.engine.view import moment
from sickbay.model.errors import Rejected, UnitTooLarge, Unknown, Unstorable
from sickbay.model.facts import Fact, Observed
from sickbay.model.fleet import Ledger
from sickbay.model.incident import Incident, Phase
from sickbay.model.protocol import PROTO, Poll
from sickbay.model.rows import Unit
from sickbay.sim.context import Timings


def test_a_seat_that_is_back_while_its_cordon_was_refused_serves_again_where_the_pool_is_at_its_limit(
    ward: OpenWard,
) -> None:
    """A7 (`engine.admission.deferred`, "defer"): asked again after a refusal, it does not stay QUARANTINED."""
    w = ward(nodes=4)
    Channel(w.sim.hands.sites["sim"].cluster, "cordon", lambda _: Rejected("the webhook denies it"))
    lost = w.nodes[:2]
    for node in lost:
        w.world.cut_path(node)
        w.world.partition(node)
    w.until(lambda: all(w.phase(node) == Phase.QUARANTINED for node in lost), HOUR)
    w.run(5)
    for node in lost:
        w.world.heal_partition(node)
        w.world.open_path(node)
    w.until(lambda: any(w.phase(node) == Phase.DISMISSED for node in lost), HOUR)
    assert w.happened("cordon") == []


@pytest.mark.parametrize("where", ["sim/train", "sim/infer"])
def test_a_claim_takes_its_turn_in_the_pool_of_each_of_its_nodes(ward: OpenWard, where: str) -> None:
    """A3 (`engine.seats.take_turns`): a decision about a node expects its pool's ledger, so a claim must move it."""
    w = ward(nodes=2)
    w.run(60)
    node = w.nodes[0]
    seat = w.world.seat(node)
    seat.pool = where.removeprefix("sim/")
    w.world.ground.show(seat)
    w.run(60)
    turn = turn_of(w, where)
    w.sim.submit("train", nodes=1, on=(node,), precheck=0)
    w.until(lambda: bool(w.sim.jobs()) and node in w.sim.jobs()[0].claim, HOUR)
    assert turn_of(w, where) > turn


def turn_of(w: Ward, pool: str) -> int:
    row = w.sim.store.load([f"ledger:{pool}"])[f"ledger:{pool}"].row
    assert isinstance(row, Ledger)
    return row.turn


def test_a_repair_that_was_written_down_before_work_came_is_not_begun_under_it(ward: OpenWard) -> None:
    """A11 (`engine.sending.withheld`: unmanaged work at the moment of sending)."""
    w = ward(nodes=4, rules=Timings(work_lasts=100_000.0))
    node = w.nodes[0]
    reboot = waiting_repair(w, node)
    seat = w.world.seat(node)
    seat.unmanaged = 1  # a scheduler that minds no cordon
    w.world.ground.show(seat)
    w.until(lambda: w.node(node).unmanaged == 1, HOUR)
    reboot.works()
    w.reaches(node, Phase.DRAINING, HOUR)
    assert repairs(w) == []
    w.rests()
    assert w.phase(node) == "RELEASED"
    assert w.rungs(node) == ["reboot"], "what was never sent was not tried"


@pytest.mark.parametrize("error", [UnitTooLarge, Unstorable])
def test_a_unit_that_the_store_refuses_for_itself_stops_nobody_else(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """A1 (`model.errors`: UnitTooLarge and Unstorable are UnitRefused; `engine.aside.stops`)."""
    w = ward(nodes=4, forgiving=True, strict=False)
    bad, well = w.nodes[:2]
    w.run(60)
    commit = w.sim.store.commit

    def refused(unit: Unit, epoch: int) -> int:
        for row in unit.writes.values():
            if isinstance(row, Incident) and row.node == bad and row.phase is not Phase.SUSPECT:
                raise error("too much of it")
        return commit(unit, epoch)

    monkeypatch.setattr(w.sim.store, "commit", refused)
    w.says(bad, 79)
    w.run(10)
    w.says(well, 48)
    w.until(lambda: w.phase(well) == Phase.RELEASED, HOUR)
    assert w.phase(bad) == Phase.SUSPECT
    assert len(w.told("set_aside")) == 1


def test_a_decision_amid_a_backlog_sees_no_clock_ahead_of_its_rows(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A13 (`engine.lead._draft`): due because a row changed, not because time passed; the proof is not read yet."""
    monkeypatch.setattr(lead, "FACTS", 20)
    monkeypatch.setattr(lead, "PAGES", 2)
    w = ward(nodes=4, strict=False)
    node = w.nodes[0]
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    row = intent_of(w, w.incident(node).intent)
    assert row.seen_by is not None
    deputy = Deputy(w)
    w.run(5)
    more = Observed(node=node, kind="xid", fields={"number": 48, "device": 1}, text="more", incarnation=row.expect)
    deputy.ingest.take([Fact(id="more", at=moment(w.sim.clock.wall()), news=more), *noise(w, "noise", 300)])
    while clock(w).reading <= row.seen_by.at + 20:
        deputy.serve(60)
    engine = deputy.successor()
    for _ in range(12):
        rounds(engine, None, 1)
        assert w.rungs(node) == ["reboot"], "it gave up a reboot whose proof it had not read yet"
    assert w.phase(node) == Phase.VERIFYING


def test_a_withdrawn_letter_is_handed_out_to_nobody_though_it_is_not_struck_yet(
    ward: OpenWard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A5 (`engine.reception._in_flight`: withdrawn)."""
    w = ward(nodes=4)
    node = w.nodes[0]
    agents = AgentMachines(w.sim.store, wall=w.sim.clock.wall, reboots=True)
    w.sim.hands.sites["sim"].machines.reboot = agents.reboot  # type: ignore[method-assign]
    w.sick(node)
    w.reaches(node, Phase.REPAIRING)
    w.run(5)
    monkeypatch.setattr(w.sim.store, "strike", lambda _: None)
    w.order("dismiss", w.incident(node).id)
    w.run(5)
    asks = Poll(proto=PROTO, node=node, instance_id="", boot_id="")
    assert list(w.sim.store.mail(node)), "it lies there still"
    assert Reception(w.sim.store, w.sim.clock).commands(asks).commands == ()


def test_what_a_pause_holds_while_it_is_in_doubt_is_awaited_and_not_forgotten(ward: OpenWard) -> None:
    """A6 (`engine.sending._take_back`: doubted): an earlier sending may have taken effect."""
    w = ward()
    node = w.nodes[0]
    reboot = Channel(w.sim.hands.sites["sim"].machines, "reboot", lambda _: Unknown("no answer"))
    w.sick(node)
    w.until(lambda: reboot.calls == 1, HOUR)
    w.run(2)
    w.order("pause", "")
    w.run(120)
    assert reboot.calls == 1
    assert w.phase(node) == Phase.REPAIRING, "it may have been rebooted: nothing else begins there"


def test_no_gate_of_a_large_gang_is_sent_to_a_node_where_others_work_runs_by_now(ward: OpenWard) -> None:
    """A11 (`engine.sending._busy`, more than FEW nodes)."""
    w = ward(nodes=14)
    node = w.nodes[0]
    now = w.sim.scheduler.now
    w.sim.mischief.outage("checks:sim", now, now + 100)
    w.sim.submit("train", nodes=14, precheck=1)
    w.run(40)
    assert w.world.other_scheduler_starts_work(node)
    w.run(900)
    assert not w.happened("check", node)
