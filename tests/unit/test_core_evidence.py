"""What counts as evidence, as history and as room: tables of the decisions behind them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support import tables

from sickbay.adapters.stores.memory import MemoryStore
from sickbay.brain.admit import AdmissionInput, AdmissionStage, admit, press, threshold
from sickbay.brain.correlate import KEEP_KINDS, KEEP_SIGHTINGS, absorb, correlate
from sickbay.brain.decide import decide
from sickbay.brain.decision import Do
from sickbay.brain.drift import shown
from sickbay.brain.ladder import next_rung, strike
from sickbay.engine.apply import learn
from sickbay.engine.view import Draft, Rules, View
from sickbay.knowledge.load import load_tables
from sickbay.model.checkup import Verdict
from sickbay.model.facts import Checked, Fact, Looked, Observed, ResetDone
from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import (
    Brake,
    Capability,
    Incarnation,
    IncidentId,
    JobId,
    Ledger,
    Node,
    NodeId,
    PastIncident,
    Withholding,
)
from sickbay.model.incident import Incident, IncidentKind, Phase, Proven, Try
from sickbay.model.intent import Intent, IntentState, Look, Release, Repair, Verify
from sickbay.model.policy import BrakeRule, FaultRule, Ladder, Limit, Match, Policy, Repeat, RungRule, Strikes
from sickbay.model.rows import Unit, key_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NODE = Node(
    id=NodeId("sim/a"), cluster="sim", pool="train",
    incarnation=Incarnation(uid="u", instance_id="i", boot_id="b"),
)  # fmt: skip


def fault(code: str = "xid.79", remedy: Remedy = Remedy.REBOOT, **more: Any) -> Fault:
    fields: dict[str, Any] = {"component": "gpu", "severity": Severity.ERROR, "scope": Scope.DEVICE, "device": 0}
    return Fault(code=code, remedy=remedy, because="table", **{**fields, **more})


def incident(of: Fault | None = None, phase: Phase = Phase.SUSPECT, **more: Any) -> Incident:
    of = of or fault()
    fields: dict[str, Any] = {"remedy": of.remedy, "kind": IncidentKind.FAULT}
    return Incident(
        id=IncidentId("i1"), node=NODE.id, cluster="sim", pool="train",
        incarnation=NODE.incarnation, fault=of, opened_at=NOW, phase=phase, **{**fields, **more},
    )  # fmt: skip


# --- the driver's advice


def advice(remedy: Remedy, device: int | None = 0) -> Fault:
    return fault("xid.154", Remedy.NONE, advice=remedy, device=device)


@pytest.mark.parametrize(
    ("device", "word", "remedy"),
    [
        (0, Remedy.RESET_GPU, Remedy.RESET_GPU),  # its own device: the driver's word wins, also downwards
        (5, Remedy.RESET_GPU, Remedy.REBOOT),
        (None, Remedy.RESET_GPU, Remedy.REBOOT),  # whose it is cannot be told
        (5, Remedy.RESTART_JOB, Remedy.REBOOT),
        (5, Remedy.REPLACE, Remedy.REPLACE),  # upwards it is a fault like any other
    ],
)
def test_the_drivers_advice_is_about_its_own_device(device: int | None, word: Remedy, remedy: Remedy) -> None:
    after = absorb(incident(), advice(word, device), NODE, Policy(), 5.0)
    assert after.remedy is remedy
    assert after.fault.device == 0


@pytest.mark.parametrize("first", [Remedy.RESET_GPU, Remedy.REBOOT])
def test_advice_for_one_device_does_not_lower_what_another_asks_for(first: Remedy) -> None:
    known = incident(fault("xid.48", first))
    other = absorb(known, fault("xid.79", Remedy.REBOOT, device=5), NODE, Policy(), 5.0)
    assert absorb(other, advice(Remedy.RESET_GPU), NODE, Policy(), 6.0).remedy is Remedy.REBOOT


def test_advice_for_one_device_does_not_lower_what_the_node_asks_for() -> None:
    known = incident(fault("check.failed", Remedy.REBOOT, device=None, scope=Scope.NODE))
    assert absorb(known, advice(Remedy.RESET_GPU), NODE, Policy(), 6.0).remedy is Remedy.REBOOT


def test_advice_never_lowers_an_operators_order() -> None:
    ordered = incident(remedy=Remedy.REPLACE, least=Remedy.REPLACE, kind=IncidentKind.OPERATOR)
    assert absorb(ordered, advice(Remedy.RESET_GPU), NODE, Policy(), 6.0).remedy is Remedy.REPLACE


def test_advice_changes_nothing_once_a_repair_has_begun() -> None:
    begun = incident(tries=(Try(rung=Remedy.REBOOT, result="failed: x", at=NOW),), phase=Phase.DRAINED)
    for word in (Remedy.RESET_GPU, Remedy.REPLACE):
        after = absorb(begun, advice(word), NODE, Policy(), 6.0)
        assert (after.remedy, after.fault) == (Remedy.REBOOT, begun.fault)


# --- repeats


def repeats(times: int, **more: Any) -> Policy:
    repeat = Repeat(times=times, within=DAY, floor=Remedy.RESET_GPU, **more)
    return Policy(faults=(FaultRule(match=Match(fault="xid.94"), repeat=repeat),))


CONTAINED = fault("xid.94", Remedy.RESTART_JOB)


def sightings_until_raised(policy: Policy, every: float, most: int, device: int = 0) -> int | None:
    node = NODE
    for n in range(1, most + 1):
        found, kept = correlate(replace(CONTAINED, device=device), node, policy, n * every)
        node = replace(node, recent=kept)
        if found.remedy is Remedy.RESET_GPU:
            return n
    return None


@pytest.mark.parametrize("times", [1, 3, 16, 17, 20, 500])
def test_a_rule_fires_at_the_number_that_it_names(times: int) -> None:
    assert sightings_until_raised(repeats(times), 60.0, 600) == times


def test_what_is_older_than_the_rules_time_does_not_count_however_much_was_seen() -> None:
    assert sightings_until_raised(repeats(30), 3600.0, 400) is None


def test_other_codes_do_not_push_a_sighting_out() -> None:
    policy, node = repeats(3), NODE
    for n in range(3):
        found, kept = correlate(CONTAINED, node, policy, 1000.0 * n)
        node = replace(node, recent=kept)
        for other in range(20):
            _, kept = correlate(fault(f"xid.{other}", Remedy.WATCH), node, policy, 1000.0 * n + other)
            node = replace(node, recent=kept)
    assert found.remedy is Remedy.RESET_GPU


@pytest.mark.parametrize(("count", "remedy"), [(1, Remedy.RESTART_JOB), (2, Remedy.RESTART_JOB), (3, Remedy.RESET_GPU),
                                               (500, Remedy.RESET_GPU), (-9, Remedy.RESTART_JOB)])  # fmt: skip
def test_an_observation_that_stands_for_many_counts_as_many(count: int, remedy: Remedy) -> None:
    assert correlate(CONTAINED, NODE, repeats(3), 1.0, count=count)[0].remedy is remedy


def test_programs_are_told_apart_however_often_each_was_seen() -> None:
    node, policy = NODE, repeats(40, jobs=2)
    for n in range(100):
        found, kept = correlate(CONTAINED, node, policy, float(n), "a" if n < 99 else "b")
        node = replace(node, recent=kept)
        assert (found.remedy is Remedy.RESET_GPU) is (n == 99)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 7), st.sampled_from(["", "a", "b"])), max_size=300))
def test_what_a_node_remembers_is_bounded(seen: list[tuple[int, int, str]]) -> None:
    node, policy = NODE, Policy(faults=(FaultRule(repeat=Repeat(times=9, within=DAY, floor=Remedy.RESET_GPU)),))
    for at, (code, device, job) in enumerate(seen):
        _, kept = correlate(fault(f"xid.{code}", Remedy.WATCH, device=device), node, policy, float(at), job)
        node = replace(node, recent=kept)
    kinds = {(s.code, s.device) for s in node.recent}
    assert len(kinds) <= KEEP_KINDS
    assert all(sum((s.code, s.device) == kind for s in node.recent) <= KEEP_SIGHTINGS for kind in kinds)


# --- history

LEMON = Ladder(strikes=(Strikes(after=1, within=28 * DAY, first=Remedy.REPLACE),))


@pytest.mark.parametrize(
    ("ended", "rung", "counts"),
    [
        ("RELEASED", "reboot", True),
        ("RELEASED", "", False),  # it came back by itself and was checked
        ("REPLACED", "replace", True),
        ("GONE", "reboot", True),
        ("GONE", "", False),
        ("DISMISSED", "", False),
        ("DISMISSED", "reboot", False),
    ],
)
def test_only_what_was_proven_is_a_strike(ended: str, rung: str, counts: bool) -> None:
    past = (PastIncident(incident=IncidentId("i0"), code="xid.48", at=10.0, ended=ended, rung=rung),)
    assert (strike(incident(), LEMON, past, 1000.0) is not None) is counts


# --- the pool's room


def ask(ledger: Ledger, limit: Limit | None = None) -> bool:
    fleet = AdmissionInput(ledger=ledger, brakes=(), withholding=Withholding(), now=NOW)
    return admit(AdmissionStage.QUARANTINE, incident(), NODE, fleet, Policy(limits=(limit or Limit(),))) is None


@pytest.mark.parametrize(
    ("out", "ours", "admitted"),
    [(0, 0, True), (1, 0, True), (3, 0, True), (1, 1, False), (3, 1, False), (3, 2, False)],
)
def test_others_cordons_in_a_small_pool_do_not_turn_healing_off(out: int, ours: int, admitted: bool) -> None:
    assert ask(Ledger(pool="train", seats=4, size=4, out=out, ours=ours)) is admitted


def test_at_least_none_means_none() -> None:
    none = Limit(out_percent=10, out_at_least=0)
    assert not ask(Ledger(pool="train", seats=4, size=4, out=1, ours=0), none)


# --- ladders


def test_a_rung_below_the_last_one_is_not_tried_again() -> None:
    rungs = (RungRule(do=Remedy.RESET_GPU, tries=2), RungRule(do=Remedy.REBOOT, tries=1), RungRule(do=Remedy.REPLACE))
    can = frozenset({Capability.RESET_GPU, Capability.REBOOT, Capability.REPLACE})
    failed = (Try(rung=Remedy.REBOOT, result="failed: x", at=NOW),)
    tried = incident(fault("xid.48", Remedy.RESET_GPU), Phase.DRAINED, tries=failed)
    rung, _ = next_rung(tried, Ladder(rungs=rungs), Remedy.RESET_GPU, can, frozenset())
    assert rung is not None
    assert rung.do is Remedy.REPLACE


# --- guards


def test_an_order_to_act_now_does_not_wait_for_bystanders() -> None:
    other = (JobId("other"),)
    waits = tables.sight(tables.incident(Phase.DRAINING), bystanders=other)
    assert tables.ask(waits) == "wait"
    assert tables.ask(tables.sight(tables.incident(Phase.DRAINING, now=True), bystanders=other)) == "call"


def test_a_repair_makes_older_proof_void() -> None:
    proof = Proven(check="i1.1", incarnation=tables.BOOT, repairs=0)
    decision = decide(tables.sight(tables.incident(Phase.DRAINED, proof=proof)), tables.POLICY)
    assert isinstance(decision, Do)
    assert decision.also["proof"] is None


def test_a_repair_that_is_being_sent_is_awaited_before_the_cordon_is_taken_back() -> None:
    sent = tables.intent(Repair(node=tables.SEAT, rung=Remedy.REBOOT), IntentState.SENT)
    closing = tables.incident(Phase.REPAIRING, closing=Phase.DISMISSED, tries=tables.tries(Remedy.REBOOT))
    assert tables.ask(tables.sight(closing, intent=sent)) == "wait"


@pytest.mark.parametrize(("horizon", "seen"), [(9.0, False), (40.0, False), (50.0, True)])
def test_absence_means_absence_only_after_the_doubt_of_its_call(horizon: float, seen: bool) -> None:
    act = Release(node=tables.SEAT, owner=tables.OURS)
    asked = tables.intent(act, IntentState.UNKNOWN, visible_from=10.0, doubt_until=50.0)
    free: dict[NodeId, Node | None] = {tables.SEAT: tables.node(cordons=())}
    assert shown(asked, free, None, horizon) is seen


def test_a_storm_of_a_whole_fleet_fits_one_row() -> None:
    rule = BrakeRule(nodes=3, percent=5)
    brake = Brake(scope="pool:train", signature="xid.79")
    for n in range(1000):
        brake = press(brake, rule, f"n{n}", float(n) / 10, NOW, 100)
    assert brake.tripped_at is not None
    assert len(brake.seen) <= 2 * threshold(rule, 100)
    assert press(brake, rule, "n0", 200.0, NOW, 100).seen["n0"] == 200.0, "who is known is known to show it still"


def drafted(*rows: Node | Incident | Intent) -> Draft:
    store = MemoryStore(limits=False)
    lease = store.lease("test", 60.0)
    assert lease is not None
    for row in rows:
        store.commit(Unit(writes={key_of(row): row}, expect={key_of(row): 0}), lease.epoch)
    rules = Rules(policy=tables.POLICY, tables=load_tables(), policy_digest="", can={}, blind={})
    return Draft(View(store), rules, {}, NOW)


@pytest.mark.parametrize("state", [IntentState.ACCEPTED, IntentState.EXPIRED, IntentState.REJECTED])
def test_a_check_that_is_over_proves_nothing_afterwards(state: IntentState) -> None:
    check = tables.intent(Verify(nodes=(tables.SEAT,), level=2), state)
    verifying = tables.incident(Phase.VERIFYING, intent="i1.1")
    draft = drafted(tables.node(incident=verifying.id), verifying, check)
    passed = Checked(check="i1.1", node=tables.SEAT, verdict=Verdict.PASS, incarnation=tables.BOOT, level=2)
    learn(draft, Fact(id="f", at=NOW, news=passed, seq=7))
    after = draft.incident(verifying.id)
    assert after is not None
    assert (after.proof is not None) is (state is IntentState.ACCEPTED)


STRANGER = NodeId("sim/stranger")
ITS_BOOT = Incarnation(uid="x", instance_id="x", boot_id="x")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (
            Verify(nodes=(tables.SEAT,), level=2),
            Checked(check="i1.1", node=STRANGER, verdict=Verdict.FAIL, incarnation=ITS_BOOT, level=2),
        ),
        (
            Look(nodes=(tables.SEAT,), stacks_of=JobId("j")),
            Looked(look="i1.1", node=STRANGER, incarnation=ITS_BOOT, text="not one of its ranks"),
        ),
        (Repair(node=tables.SEAT, rung=Remedy.RESET_GPU), ResetDone(key="i1.1", node=STRANGER, incarnation=ITS_BOOT)),
    ],
)
def test_an_agent_answers_nothing_that_others_were_asked(act: Any, words: Any) -> None:
    asked = replace(tables.intent(act, IntentState.ACCEPTED), expect=None)
    draft = drafted(tables.node(), replace(tables.node(), id=STRANGER, incarnation=ITS_BOOT), asked)
    learn(draft, Fact(id="f", at=NOW, news=words, seq=7))
    after = draft.intent("i1.1")
    assert after is not None
    assert not after.verdicts
    assert not [line for line in draft.story if "not one of its ranks" in line.text]


@pytest.mark.parametrize(("dismissed", "opens"), [(-1, True), (1, False), (7200, True)])
def test_evidence_from_before_a_dismissal_opens_nothing(dismissed: int, opens: bool) -> None:
    """A dismissal in the future is that of a clock that has jumped: it vouches for nothing."""
    at = NOW - timedelta(minutes=1)
    seat = tables.node(cordons=(), dismissed_at=at + timedelta(seconds=dismissed))
    draft = drafted(seat)
    fields: dict[str, str | int] = {"number": 79, "device": 0}
    line = Observed(node=tables.SEAT, kind="xid", fields=fields, text="NVRM: Xid 79", incarnation=tables.BOOT)
    learn(draft, Fact(id="f", at=at, news=line, seq=7))
    after = draft.node(tables.SEAT)
    assert after is not None
    assert (after.incident is not None) is opens
