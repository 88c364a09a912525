"""A machine leaves its seat to another: what it had goes with it, and its successor inherits nothing."""

import pytest
from msgspec.structs import replace
from tests.support.wards import HOUR, OpenWard, Ward, cluster_without, in_phase, policy_with

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Device, Incarnation, NodeId, PastIncident, Record
from sickbay.model.incident import IncidentKind, Phase
from sickbay.sim.hardware import SimDefect, SimSeat

OTHER = NodeId("sim/train-other")


def put_into(w: Ward, was: Incarnation, devices: tuple[Device, ...], defects: list[SimDefect]) -> SimSeat:
    """A machine that was somewhere else joins under another name."""
    seat = w.world.ground.add_seat(OTHER, pool="train", domain="d", gpus=len(devices), linked=True)
    seat.incarnation = replace(seat.incarnation, instance_id=was.instance_id)
    seat.devices, seat.defects = devices, defects
    w.world.agents.refresh(seat)
    w.world.plant.cluster_hears(seat)
    return seat


def history(w: Ward, subject: str) -> tuple[PastIncident, ...]:
    row = w.sim.store.load([f"record:{subject}"])[f"record:{subject}"].row
    return row.past if isinstance(row, Record) else ()


@pytest.mark.parametrize("phase", [Phase.DRAINING, Phase.DRAINED, Phase.REPAIRING, Phase.VERIFYING, Phase.HELD])
def test_a_machine_that_left_while_it_was_out_is_a_newcomer_in_its_next_seat(ward: OpenWard, phase: Phase) -> None:
    w, node = in_phase(ward, phase)
    seat = w.world.seat(node)
    old, devices = seat.incarnation, seat.devices
    w.world.operator_replaces(node)
    w.run(6 * HOUR)
    put_into(w, old, devices, [SimDefect(code="xid.79", cured_by=Remedy.REBOOT)])
    w.run(60)
    assert w.incident(OTHER).kind is IncidentKind.INTAKE
    assert not w.node(OTHER).claimable
    w.until(lambda: bool(w.happened("check.fail", OTHER)))


def test_where_newcomers_are_not_checked_it_brings_what_it_had(ward: OpenWard) -> None:
    w, node = in_phase(lambda **plan: ward(**{**plan, "policy": policy_with(examine=())}), Phase.VERIFYING)
    seat = w.world.seat(node)
    old, devices = seat.incarnation, seat.devices
    w.world.operator_replaces(node)
    w.run(1800)
    put_into(w, old, devices, [])
    w.run(60)
    assert (w.incident(OTHER).kind, w.incident(OTHER).fault.code) == (IncidentKind.FAULT, "xid.79")


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("who", ["we", "others"])
def test_the_strike_is_that_of_the_machine_that_fell_ill(ward: OpenWard, who: str, cold: bool) -> None:
    w = ward(cold=cold)
    node = w.nodes[0]
    seat = w.world.seat(node)
    old, device = seat.incarnation, seat.devices[0]
    w.sick(node, "xid.79", Remedy.REPLACE)
    if who == "others":
        w.reaches(node, Phase.VERIFYING)
        w.world.operator_replaces(node)
    w.rests()
    new = w.world.seat(node)
    assert w.phase(node) == Phase.RELEASED
    assert [p.rung for p in history(w, old.instance_id)] == [Remedy.REPLACE]
    assert [p.rung for p in history(w, device.serial)] == [Remedy.REPLACE]
    assert history(w, new.incarnation.instance_id) == history(w, new.devices[0].serial) == ()


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
def test_a_machine_whose_seat_is_vacant_takes_its_history_along_and_is_a_newcomer(ward: OpenWard, cold: bool) -> None:
    w = ward(cluster=cluster_without("seat_kept"), cold=cold)
    node = w.nodes[0]
    seat = w.world.seat(node)
    old, devices = seat.incarnation, seat.devices
    w.sick(node, "xid.79", Remedy.REPLACE)
    w.rests()
    assert w.phase(node) == Phase.REPLACED
    for subject in (old.instance_id, devices[0].serial):
        assert [p.rung for p in history(w, subject)] == [Remedy.REPLACE]
    put_into(w, old, devices, [])
    w.run(60)
    assert w.incident(OTHER).kind is IncidentKind.INTAKE
