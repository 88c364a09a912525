"""What others did, as a table by (our last act, what is seen)."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from sickbay.brain.drift import drift, rung_shown
from sickbay.model.checkup import Verdict
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import AgentState, Incarnation, IncidentId, Node, NodeId
from sickbay.model.incident import OUT, Incident, IncidentKind, Phase, Try
from sickbay.model.intent import Intent, Repair

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEAT = NodeId("sim/a")
FIRST = Incarnation(uid="u1", instance_id="i1", boot_id="b1")
REBOOTED = Incarnation(uid="u1", instance_id="i1", boot_id="b2")
HORIZON = 100.0
REPLACED = Incarnation(uid="u2", instance_id="i2", boot_id="b3")
OURS = "sickbay:i7"
FAULT = Fault(
    code="xid.79", component="pcie", severity=Severity.FATAL, scope=Scope.DEVICE, remedy=Remedy.REBOOT, because="gone"
)


def incident(phase: Phase, *, rung: Remedy | None = None, cordoned: float | None = 10.0) -> Incident:
    tries = () if rung is None else (Try(rung=rung, result="started", at=NOW),)
    return Incident(
        id=IncidentId("i7"), node=SEAT, cluster="sim", pool="train", kind=IncidentKind.FAULT, incarnation=FIRST,
        fault=FAULT, opened_at=NOW, phase=phase, remedy=Remedy.REBOOT, tries=tries, cordon_as_of=cordoned,
    )  # fmt: skip


def node(held_by: Incarnation | None = FIRST, *cordons: str, as_of: float = 20.0) -> Node:
    return Node(id=SEAT, cluster="sim", pool="train", incarnation=held_by, cordons=cordons, as_of=as_of)


@pytest.mark.parametrize("phase", sorted(OUT - {Phase.REPAIRING}))
def test_our_cordon_gone_in_a_newer_read_was_removed_by_another(phase: Phase) -> None:
    assert drift(incident(phase), node(), HORIZON).uncordoned == "our cordon was removed by another"
    assert drift(incident(phase), node(FIRST, OURS), HORIZON).uncordoned == ""


@pytest.mark.parametrize("phase", sorted(OUT - {Phase.REPAIRING}))
def test_our_cordon_replaced_by_anothers_is_theirs(phase: Phase) -> None:
    assert "other:maintenance" in drift(incident(phase), node(FIRST, "other:maintenance"), HORIZON).uncordoned
    assert drift(incident(phase), node(FIRST, "other:maintenance", OURS), HORIZON).uncordoned == ""


@pytest.mark.parametrize("left", [(), ("other:maintenance",)])
def test_our_cordon_gone_under_our_own_repair_is_nobodys_word(left: tuple[str, ...]) -> None:
    found = drift(incident(Phase.REPAIRING, rung=Remedy.REBOOT), node(FIRST, *left), HORIZON)
    assert (found.uncordoned, found.bared) == ("", True)
    assert not drift(incident(Phase.REPAIRING, rung=Remedy.REBOOT), node(FIRST, OURS), HORIZON).bared


def test_a_read_older_than_our_cordon_is_not_held_against_it() -> None:
    assert drift(incident(Phase.DRAINED), node(as_of=10.0), HORIZON).uncordoned == ""
    assert drift(incident(Phase.QUARANTINED, cordoned=None), node(), HORIZON).uncordoned == ""


@pytest.mark.parametrize("phase", [Phase.SUSPECT, Phase.WATCHED])
def test_where_we_have_no_cordon_none_is_missed(phase: Phase) -> None:
    assert drift(incident(phase), node(), HORIZON).uncordoned == ""


@pytest.mark.parametrize("phase", [Phase.QUARANTINED, Phase.DRAINING, Phase.DRAINED, Phase.VERIFYING, Phase.HELD])
@pytest.mark.parametrize(("seen", "done"), [(REBOOTED, Remedy.REBOOT), (REPLACED, Remedy.REPLACE), (FIRST, None)])
def test_a_new_incarnation_that_we_did_not_ask_for_was_made_by_others(
    phase: Phase, seen: Incarnation, done: Remedy | None
) -> None:
    assert drift(incident(phase), node(seen, OURS), HORIZON).healed is done


@pytest.mark.parametrize(
    ("rung", "seen", "done"),
    [
        (Remedy.REBOOT, REBOOTED, None),  # that is our own
        (Remedy.REPLACE, REPLACED, None),
        (Remedy.RESET_GPU, REBOOTED, Remedy.REBOOT),
        (Remedy.REBOOT, REPLACED, Remedy.REPLACE),
    ],
)
def test_while_repairing_only_what_goes_beyond_our_rung_is_others_doing(
    rung: Remedy, seen: Incarnation, done: Remedy | None
) -> None:
    assert drift(incident(Phase.REPAIRING, rung=rung), node(seen, OURS), HORIZON).healed is done


@pytest.mark.parametrize(
    ("rung", "seat", "verdicts", "proven"),
    [
        (Remedy.REBOOT, node(FIRST), {}, False),
        (Remedy.REBOOT, node(REBOOTED), {}, True),
        (Remedy.REPLACE, node(REBOOTED), {}, False),
        (Remedy.REPLACE, node(REPLACED), {}, True),
        (Remedy.REPLACE, node(None), {}, True),
        (Remedy.REBOOT, node(None), {}, False),
        (Remedy.RESET_GPU, node(REBOOTED), {}, False),
        (Remedy.RESET_GPU, node(FIRST), {SEAT: Verdict.RESET}, True),
    ],
)
def test_each_rung_has_its_own_proof(rung: Remedy, seat: Node, verdicts: dict[NodeId, Verdict], proven: bool) -> None:
    intent = Intent(
        key="i7.1", owner="incident:i7", cluster="sim", pool="train", act=Repair(node=SEAT, rung=rung), because="",
        planned_at=NOW, clock="sim", call_timeout=30.0, patience=900.0, expect=FIRST, verdicts=verdicts,
    )  # fmt: skip
    assert rung_shown(intent, seat, rung) is proven


def test_a_restarted_agent_is_proven_by_its_voice() -> None:
    act = Repair(node=SEAT, rung=Remedy.RESTART_SERVICE)
    intent = Intent(
        key="i7.1", owner="incident:i7", cluster="sim", pool="train", act=act, because="", planned_at=NOW,
        clock="ingest", call_timeout=30.0, patience=120.0, expect=FIRST,
    )  # fmt: skip
    heard = Node(id=SEAT, cluster="sim", pool="train", incarnation=FIRST, agent=AgentState.HEARD)
    silent = Node(id=SEAT, cluster="sim", pool="train", incarnation=FIRST, agent=AgentState.SILENT)
    assert rung_shown(intent, heard, Remedy.RESTART_SERVICE)
    assert not rung_shown(intent, silent, Remedy.RESTART_SERVICE)


GONE_WITH_IT = {"cordon_as_of": None, "cordon_from": None, "bared": True}


@pytest.mark.parametrize("seen", [FIRST, REBOOTED, REPLACED])
def test_a_cordon_that_goes_under_our_repair_is_put_back(seen: Incarnation) -> None:
    found = drift(incident(Phase.REPAIRING, rung=Remedy.REPLACE), node(seen), HORIZON)
    assert (found.uncordoned, found.cordon) == ("", GONE_WITH_IT)


@pytest.mark.parametrize("phase", sorted(OUT - {Phase.REPAIRING}))
@pytest.mark.parametrize("seen", [REBOOTED, REPLACED])
def test_a_cordon_that_goes_with_its_incarnation_is_put_back(phase: Phase, seen: Incarnation) -> None:
    found = drift(incident(phase), node(seen), HORIZON)
    assert (found.uncordoned, found.cordon) == ("", GONE_WITH_IT)


def test_after_a_change_our_cordon_must_be_seen_again_before_its_absence_says_anything() -> None:
    changed = drift(incident(Phase.VERIFYING), node(REBOOTED, OURS), HORIZON)
    assert changed.cordon == {"cordon_as_of": None, "cordon_from": HORIZON}
    waiting = replace(replace(incident(Phase.VERIFYING), incarnation=REBOOTED), **changed.cordon)
    assert drift(waiting, node(REBOOTED, OURS, as_of=HORIZON), HORIZON).cordon == {}  # may be older than the change
    assert drift(waiting, node(REBOOTED, as_of=HORIZON), HORIZON).cordon == GONE_WITH_IT
    seen = drift(waiting, node(REBOOTED, OURS, as_of=101.0), HORIZON).cordon
    assert seen == {"cordon_as_of": 101.0, "cordon_from": None}
    again = replace(waiting, **seen)
    assert drift(again, node(REBOOTED, as_of=102.0), HORIZON).uncordoned == "our cordon was removed by another"
