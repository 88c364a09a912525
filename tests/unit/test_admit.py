"""The fleet's safety has the last word: tables of what is admitted, what is deferred, and why."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from sickbay.brain.admit import (
    AdmissionInput,
    AdmissionStage,
    admit,
    ease,
    goes_off_at,
    next_opening,
    press,
    released,
    threshold,
)
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import (
    AgentState,
    Brake,
    Incarnation,
    IncidentId,
    Ledger,
    Node,
    NodeId,
    WithheldActs,
    Withhold,
    Withholding,
)
from sickbay.model.incident import Doubt, Incident, IncidentKind, Phase
from sickbay.model.policy import BrakeRule, FaultRule, Limit, Match, Mode, Policy, Window

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)  # a Thursday
SEAT = NodeId("sim/a")
FAULT = Fault(
    code="xid.79", component="pcie", severity=Severity.FATAL, scope=Scope.DEVICE, remedy=Remedy.REBOOT, because="gone"
)
NODE = Node(
    id=SEAT, cluster="sim", pool="train", incarnation=Incarnation(uid="u", instance_id="i", boot_id="b"),
    agent=AgentState.HEARD,
)  # fmt: skip
INCIDENT = Incident(
    id=IncidentId("i1"), node=SEAT, cluster="sim", pool="train", kind=IncidentKind.FAULT,
    incarnation=NODE.incarnation, fault=FAULT, opened_at=NOW, remedy=Remedy.REBOOT,
)  # fmt: skip
RULE = BrakeRule(nodes=3, percent=5, within=timedelta(minutes=10), quiet=timedelta(minutes=30))
TRIPPED = Brake(scope="pool:train", signature="xid.79", most=3, seen={"a": 1.0, "b": 1.0, "c": 1.0}, tripped_at=NOW)


def fleet(**changes: Any) -> AdmissionInput:
    whole = {"ledger": Ledger(pool="train", size=20), "brakes": (), "withholding": Withholding(), "now": NOW}
    return AdmissionInput(**{**whole, **changes})


# --- the ledger


@pytest.mark.parametrize(
    ("size", "percent", "absolute", "at_least", "limit"),
    [(1, 10, None, 1, 1), (9, 10, None, 1, 1), (20, 10, None, 1, 2), (200, 10, 5, 1, 5), (3, 10, 0, 0, 0)],
)
def test_the_limit_is_the_share_within_its_bounds(
    size: int, percent: float, absolute: int | None, at_least: int, limit: int
) -> None:
    rule = Limit(out_percent=percent, out_absolute=absolute, out_at_least=at_least)
    assert rule.out(size) == limit


@pytest.mark.parametrize(("out", "admitted"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_seat_in_service_needs_room_in_the_ledger(out: int, admitted: bool) -> None:
    now = fleet(ledger=Ledger(pool="train", size=20, out=out, ours=out))
    assert (admit(AdmissionStage.QUARANTINE, INCIDENT, NODE, now, Policy()) is None) is admitted


def test_a_seat_that_is_out_already_needs_none() -> None:
    full = fleet(ledger=Ledger(pool="train", size=20, out=9))
    assert admit(AdmissionStage.QUARANTINE, INCIDENT, replace(NODE, out=True), full, Policy()) is None
    assert admit(AdmissionStage.QUARANTINE, INCIDENT, replace(NODE, counted=False), full, Policy()) is None


@pytest.mark.parametrize(("out", "admitted"), [(2, True), (3, False)])
def test_a_cordon_asked_again_of_a_seat_that_came_back_is_judged_by_the_others(out: int, admitted: bool) -> None:
    quarantined = replace(INCIDENT, phase=Phase.QUARANTINED)
    back = replace(NODE, out=True)  # counted for this very incident, ready, and without our cordon
    now = fleet(ledger=Ledger(pool="train", size=20, out=out, ours=out))
    assert (admit(AdmissionStage.QUARANTINE, quarantined, back, now, Policy()) is None) is admitted


def test_a_human_is_told_only_if_held_seats_take_the_room() -> None:
    full = Ledger(pool="train", size=20, out=2, ours=2)
    for held, event in [(0, ""), (1, "budget")]:
        deferred = admit(AdmissionStage.QUARANTINE, INCIDENT, NODE, fleet(ledger=replace(full, held=held)), Policy())
        assert deferred is not None
        assert deferred.tell == event
        assert not deferred.withheld


@pytest.mark.parametrize(("repairing", "admitted"), [(1, True), (2, False)])
def test_repairs_have_a_limit_of_their_own(repairing: int, admitted: bool) -> None:
    now = fleet(ledger=Ledger(pool="train", size=20, out=9, repairing=repairing))
    assert (admit(AdmissionStage.REPAIR, INCIDENT, NODE, now, Policy()) is None) is admitted


# --- what withholds


ALL = [AdmissionStage.QUARANTINE, AdmissionStage.CALL, AdmissionStage.DRAIN, AdmissionStage.REPAIR]
PAUSE = Withhold(id="pause-1", because="paused", by="ann")


@pytest.mark.parametrize("asked", ALL)
@pytest.mark.parametrize(
    ("row", "withheld"),
    [
        (PAUSE, True),
        (replace(PAUSE, fault="xid.7?"), True),
        (replace(PAUSE, fault="xid.4*"), False),
        (replace(PAUSE, pool="other"), False),
        (replace(PAUSE, node="a"), True),
        (replace(PAUSE, node="sim/b"), False),
        (replace(PAUSE, until=NOW + timedelta(seconds=1)), True),
        (replace(PAUSE, until=NOW), False),
    ],
)
def test_a_row_withholds_what_it_matches_until_it_ends(asked: AdmissionStage, row: Withhold, withheld: bool) -> None:
    for now, policy in [(fleet(withholding=Withholding(rows=(row,))), Policy()), (fleet(), Policy(withhold=(row,)))]:
        deferred = admit(asked, INCIDENT, NODE, now, policy)
        assert (deferred is not None) is withheld
        assert deferred is None or (deferred.withheld and deferred.tell == "withheld")


def test_an_exclusion_is_about_what_is_done_by_itself_and_a_pause_about_all() -> None:
    for row, passes in (
        (Withhold(id="exclude-1", because="", by="ann", excuse=True), True),
        (Withhold(id="pause-1", because="", by="ann"), False),
    ):
        held = fleet(withholding=Withholding(rows=(row,)))
        for ordered in (replace(INCIDENT, kind=IncidentKind.OPERATOR), replace(INCIDENT, ordered=True)):
            assert (admit(AdmissionStage.QUARANTINE, ordered, NODE, held, Policy()) is None) is passes
        assert admit(AdmissionStage.QUARANTINE, INCIDENT, NODE, held, Policy()) is not None


@pytest.mark.parametrize("asked", ALL)
def test_a_closed_window_withholds_repairs_only(asked: AdmissionStage) -> None:
    closed = Policy(windows=(Window(start="02:00", end="04:00"),))
    deferred = admit(asked, INCIDENT, NODE, fleet(), closed)
    assert (deferred is not None) is (asked is AdmissionStage.REPAIR)
    assert admit(asked, replace(INCIDENT, now=True), NODE, fleet(), closed) is None


def test_a_row_for_repairs_leaves_the_rest_alone() -> None:
    row = replace(PAUSE, acts=WithheldActs.REPAIR)
    now = fleet(withholding=Withholding(rows=(row,)))
    assert [admit(asked, INCIDENT, NODE, now, Policy()) is None for asked in ALL] == [True, True, True, False]


@pytest.mark.parametrize(("mode", "tell"), [(Mode.OBSERVE, ""), (Mode.RECOMMEND, "withheld")])
def test_a_mode_of_the_policy_is_for_faults_and_not_for_people(mode: Mode, tell: str) -> None:
    policy = Policy(faults=(FaultRule(match=Match(fault="xid.79"), mode=mode),))
    deferred = admit(AdmissionStage.QUARANTINE, INCIDENT, NODE, fleet(), policy)
    assert deferred is not None
    assert deferred.tell == tell
    wish = replace(INCIDENT, kind=IncidentKind.OPERATOR)
    assert admit(AdmissionStage.QUARANTINE, wish, NODE, fleet(), policy) is None


@pytest.mark.parametrize(
    ("hour", "opens"),
    [(1, datetime(2026, 1, 1, 2, tzinfo=UTC)), (3, None), (4, datetime(2026, 1, 2, 2, tzinfo=UTC))],
)
def test_windows_open_and_close_to_the_minute(hour: int, opens: datetime | None) -> None:
    window = Window(start="02:00", end="04:00")
    assert next_opening((window,), "train", datetime(2026, 1, 1, hour, tzinfo=UTC)) == opens
    assert next_opening((replace(window, pool="other"),), "train", NOW) is None


def test_a_window_on_other_days_opens_on_the_next_of_them() -> None:
    saturday = Window(days=(5,), start="02:00", end="04:00")
    assert next_opening((saturday,), "train", NOW) == datetime(2026, 1, 3, 2, tzinfo=UTC)


# --- brakes


@pytest.mark.parametrize("asked", ALL)
def test_a_tripped_brake_defers_faults_of_its_signature_but_no_wish(asked: AdmissionStage) -> None:
    now = fleet(brakes=((RULE, TRIPPED),))
    assert admit(asked, INCIDENT, NODE, now, Policy()) is not None
    assert admit(asked, replace(INCIDENT, kind=IncidentKind.OPERATOR), NODE, now, Policy()) is None


def test_the_restart_of_an_agent_is_under_no_brake() -> None:
    now = fleet(brakes=((RULE, TRIPPED),))
    assert admit(AdmissionStage.RESTART_SERVICE, INCIDENT, NODE, now, Policy()) is None


@pytest.mark.parametrize(("shown_at", "confirm"), [(50.0, True), (100.0, True), (101.0, False)])
def test_evidence_from_before_a_reset_must_be_confirmed(shown_at: float, confirm: bool) -> None:
    off = released(TRIPPED, 100.0)
    shown = replace(INCIDENT, shown_at=shown_at, seen_at=200.0)  # another fault confirms nobody
    deferred = admit(AdmissionStage.QUARANTINE, shown, NODE, fleet(brakes=((RULE, off),)), Policy())
    assert (deferred is not None and deferred.confirm is not None) is confirm
    withheld = replace(shown, doubt=Doubt(since=100.0))  # by a pause, an exclusion or a mode that has ended
    deferred = admit(AdmissionStage.QUARANTINE, withheld, NODE, fleet(), Policy())
    assert (deferred is not None and deferred.confirm is not None) is confirm


@pytest.mark.parametrize(("size", "nodes"), [(1, 3), (60, 3), (100, 5), (2000, 100)])
def test_a_brake_needs_so_many_nodes_or_such_a_share(size: int, nodes: int) -> None:
    assert threshold(RULE, size) == nodes


def test_a_brake_counts_nodes_not_lines_and_forgets_what_is_old() -> None:
    brake = Brake(scope="pool:train", signature="xid.79")
    for reading, node in [(0.0, "a"), (1.0, "a"), (2.0, "b"), (603.0, "c")]:
        brake = press(brake, RULE, node, reading, NOW, 20)
        assert brake.tripped_at is None
    for reading, node in [(604.0, "a"), (605.0, "b")]:
        brake = press(brake, RULE, node, reading, NOW, 20)
    assert brake.tripped_at == NOW


def test_a_brake_resets_after_quiet_below_half_and_only_then() -> None:
    brake = replace(TRIPPED, seen={"a": 100.0, "b": 100.0, "c": 100.0})
    brake = ease(brake, RULE, 650.0)
    assert brake.below_since is None, "all three are still within the rule's time"
    brake = ease(brake, RULE, 701.0)
    assert brake.below_since == 701.0
    brake = ease(brake, RULE, 701.0 + 1799.0)
    assert brake.tripped_at is not None
    brake = ease(brake, RULE, 701.0 + 1800.0)
    assert brake.tripped_at is None
    assert brake.reset_at == 2501.0


@pytest.mark.parametrize("seen", [{"a": 100.0, "b": 300.0, "c": 500.0}, {"a": 10.0, "b": 20.0, "c": 590.0}, {"a": 1.0}])
def test_when_a_brake_goes_off_by_itself_is_known_before_and_stays_so(seen: dict[str, float]) -> None:
    brake, reading = replace(TRIPPED, seen=seen), 600.0
    said = goes_off_at(brake, RULE, reading)
    assert said is not None
    while brake.tripped_at is not None:
        assert goes_off_at(brake, RULE, reading) == pytest.approx(said, abs=1.0)
        reading += 1.0
        brake = ease(brake, RULE, reading)
    assert reading == pytest.approx(said, abs=1.0)
    assert goes_off_at(brake, RULE, reading) is None


def test_the_storm_that_comes_back_ends_the_quiet() -> None:
    brake = ease(replace(TRIPPED, seen={}), RULE, 1000.0)
    assert brake.below_since == 1000.0
    for node in ("a", "b"):
        brake = press(brake, RULE, node, 1100.0, NOW, 20)
    assert ease(brake, RULE, 2801.0).tripped_at is not None


def test_a_storm_that_goes_on_is_counted_by_its_newest_nodes_not_by_its_first() -> None:
    """Else it would seem to be over when those that came first are too long ago."""
    brake, last = Brake(scope="pool:train", signature="xid.79"), 0.0
    for number in range(120):
        last = 10.0 * number
        brake = press(brake, RULE, f"n{number}", last, NOW, 20)
    assert len(brake.seen) == brake.most
    later = last + RULE.within.total_seconds() / 2
    assert ease(brake, RULE, later).below_since is None, "half of the time in which they count is not over"


# --- what would end it


ASKED = Withhold(id="pause-7", because="pause by ann: network", by="ann", until=datetime(2026, 1, 1, 14, tzinfo=UTC))
CROWD = tuple(Withhold(id=f"exclude-{n}", because="x" * 900, by="ann", excuse=True) for n in range(40))


@pytest.mark.parametrize(
    ("asked", "changes", "ends"),
    [
        (
            AdmissionStage.QUARANTINE,
            {"withholding": Withholding(rows=(ASKED,))},
            ("an operator takes back pause-7 (pause by ann: network)", "pause-7 ends at 2026-01-01 14:00:00Z"),
        ),
        (
            AdmissionStage.QUARANTINE,
            {"brakes": ((RULE, TRIPPED),)},
            (
                "an operator resets the brake on xid.79 in pool:train",
                "fewer nodes show it for long enough: the brake then goes off by itself",
            ),
        ),
        (
            AdmissionStage.QUARANTINE,
            {"ledger": Ledger(pool="train", size=20, out=2, ours=2)},
            ("a seat of pool train comes back into service",),
        ),
        (
            AdmissionStage.REPAIR,
            {"ledger": Ledger(pool="train", size=20, repairing=9)},
            ("a repair in pool train ends",),
        ),
    ],
)
def test_what_is_deferred_says_what_would_end_that(
    asked: AdmissionStage, changes: dict[str, Any], ends: tuple[str, ...]
) -> None:
    refused = admit(asked, INCIDENT, NODE, fleet(**changes), Policy())
    assert refused is not None
    assert refused.ends == ends


def test_of_many_that_withhold_it_names_few_in_few_words() -> None:
    """It is stored with the incident, whose row must not grow with them."""
    refused = admit(AdmissionStage.QUARANTINE, INCIDENT, NODE, fleet(withholding=Withholding(rows=CROWD)), Policy())
    assert refused is not None
    assert len(refused.ends) <= 8
    assert all(len(each) <= 300 for each in refused.ends)


def test_what_the_policy_withholds_ends_with_the_policy() -> None:
    policy = Policy(faults=(FaultRule(match=Match(fault=("xid.*",)), mode=Mode.OBSERVE),))
    refused = admit(AdmissionStage.QUARANTINE, INCIDENT, NODE, fleet(), policy)
    assert refused is not None
    assert refused.ends == ("the policy is changed, or its window opens",)
