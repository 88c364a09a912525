"""What an incident does next, phase by phase, as tables."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.tables import (
    AHEAD,
    BOOT,
    CAN,
    NEXT,
    NOW,
    OURS,
    PAST,
    POLICY,
    SEAT,
    ask,
    fault,
    incident,
    intent,
    node,
    said,
    sight,
    tries,
)

from sickbay.brain.correlate import absorb
from sickbay.brain.decide import decide
from sickbay.brain.decision import Change, Do, Move, Stay
from sickbay.brain.incident_input import reset_domain
from sickbay.model.checkup import Verdict
from sickbay.model.clock import INGEST, Deadline
from sickbay.model.fault import AGENT_LOST, NODE_LOST, PARTITION, Fault, Remedy, Scope
from sickbay.model.fleet import AgentState, Capability, DrainHow, IncidentId, JobId, Node, PastIncident
from sickbay.model.incident import OUT, TERMINAL, IncidentKind, OperatorRequest, Phase, Proven, Try, Verb
from sickbay.model.intent import Drain, Intent, IntentState, Quarantine, Release, Repair, Verify

# --- whatever the phase


@pytest.mark.parametrize("phase", [p for p in Phase if p not in TERMINAL])
def test_without_a_node_it_is_gone(phase: Phase) -> None:
    assert ask(dataclasses.replace(sight(incident(phase)), node=None)) == "gone"


@pytest.mark.parametrize("phase", sorted(TERMINAL))
def test_what_is_over_stays_over(phase: Phase) -> None:
    assert ask(sight(incident(phase))) == "wait"


@pytest.mark.parametrize("phase", [p for p in Phase if p not in TERMINAL])
@pytest.mark.parametrize("verb", ["dismiss", "uncordon"])
def test_a_dismissal_takes_our_cordon_back_first(phase: Phase, verb: str) -> None:
    ordered = incident(phase, orders=(OperatorRequest(verb=Verb(verb), by="ann", reason="mine"),))
    decision = decide(sight(ordered), POLICY)
    assert isinstance(decision, Change)
    assert decision.also["closing"] is Phase.DISMISSED
    closing = incident(phase, closing=Phase.DISMISSED)
    assert ask(sight(closing)) == ("Release" if phase in OUT else "dismiss")


@pytest.mark.parametrize(
    ("verb", "phase", "word"),
    [
        ("hold", Phase.DRAINED, "hold"),
        ("hold", Phase.SUSPECT, "change"),
        ("hold", Phase.HELD, "change"),
        ("confirm", Phase.HELD, "verify"),
        ("confirm", Phase.DRAINED, "change"),
        ("escalate", Phase.HELD, "escalate"),
        ("escalate", Phase.VERIFYING, "change"),
        ("uncordoned", Phase.REPAIRING, "change"),
        ("cancel", Phase.WATCHED, "dismiss"),
    ],
)
def test_orders_do_what_the_phase_allows(verb: str, phase: Phase, word: str) -> None:
    asked = OperatorRequest(verb=Verb(verb), by="ann", reason="mine")
    decision = decide(sight(incident(phase, orders=(asked,))), POLICY)
    assert said(decision) == word
    assert decision.also["orders"] == ()


def test_what_a_person_has_ordered_is_not_cancelled_by_the_driver() -> None:
    taken_back = (OperatorRequest(verb=Verb.CANCEL, by="xid.162", reason="xid.162 takes it back"),)
    assert said(decide(sight(incident(Phase.SUSPECT, ordered=True, orders=taken_back)), POLICY)) == "change"


@pytest.mark.parametrize(
    ("tried", "remedy"),
    [((), Remedy.REBOOT), ((Remedy.REBOOT,), Remedy.REPLACE), ((Remedy.REPLACE,), Remedy.REPLACE)],
)
def test_escalate_asks_for_one_rung_more_than_was_tried(tried: tuple[Remedy, ...], remedy: Remedy) -> None:
    tries = tuple(Try(rung=rung, result="failed", at=NOW) for rung in tried)
    held = incident(Phase.HELD, tries=tries, orders=(OperatorRequest(verb=Verb.ESCALATE, by="ann", reason="go on"),))
    decision = decide(sight(held), POLICY)
    assert isinstance(decision, Move)
    assert decision.also["remedy"] is remedy


# --- in service


@pytest.mark.parametrize("remedy", [r for r in Remedy if r is not Remedy.NONE])
def test_only_what_disrupts_is_quarantined(remedy: Remedy) -> None:
    s = sight(incident(Phase.SUSPECT, fault(remedy=remedy)))
    assert ask(s) == ("Quarantine" if remedy.disrupts else "watch")


def test_a_lost_node_that_is_heard_again_is_let_go() -> None:
    lost = incident(Phase.SUSPECT, fault(NODE_LOST))
    assert ask(sight(lost, node(ready=True))) == "dismiss"
    gone = node(ready=False, agent=AgentState.SILENT)
    assert ask(sight(lost, gone, scoped=(JobId("j"),))) == "call", "what runs there is lost with it"
    assert ask(sight(lost, gone)) == "Quarantine"


@pytest.mark.parametrize(
    ("code", "remedy", "seat", "deadline", "word"),
    [
        ("xid.31", Remedy.WATCH, node(), AHEAD, "wait"),
        ("xid.31", Remedy.WATCH, node(), PAST, "dismiss"),
        ("xid.79", Remedy.REBOOT, node(), AHEAD, "raise"),
        (AGENT_LOST, Remedy.RESTART_SERVICE, node(agent=AgentState.SILENT), None, "Repair"),
        (AGENT_LOST, Remedy.RESTART_SERVICE, node(), None, "dismiss"),
        (PARTITION, Remedy.WATCH, node(ready=False), AHEAD, "wait"),
        (PARTITION, Remedy.WATCH, node(ready=False), PAST, "change"),
        (PARTITION, Remedy.WATCH, node(), AHEAD, "dismiss"),
    ],
)
def test_what_is_watched(code: str, remedy: Remedy, seat: Node, deadline: Deadline | None, word: str) -> None:
    assert ask(sight(incident(Phase.WATCHED, fault(code, remedy), deadline=deadline), seat)) == word


def test_a_watched_fault_that_asks_for_a_restart_asks_those_that_train_there() -> None:
    watched = incident(Phase.WATCHED, fault("xid.31", Remedy.RESTART_JOB))
    jobs = (JobId("j"), JobId("k"))
    decision = decide(sight(watched, scoped=jobs, training=frozenset({JobId("j")})), POLICY)
    assert isinstance(decision, Change)
    assert decision.call == (JobId("j"),)
    assert ask(sight(watched, scoped=jobs)) == "wait"


# --- on the way out

CORDON = Quarantine(node=SEAT, owner=OURS, reason="")


@pytest.mark.parametrize(
    ("seat", "last", "deadline", "word"),
    [
        (node(), None, AHEAD, "empty"),
        (node(unmanaged=1), None, AHEAD, "drain"),
        (node(cordons=()), None, AHEAD, "Quarantine"),
        (node(cordons=()), intent(CORDON, IntentState.ACCEPTED), AHEAD, "wait"),
        (node(cordons=()), intent(CORDON, IntentState.EXPIRED), AHEAD, "Quarantine"),
        (node(cordons=()), intent(CORDON, IntentState.REJECTED), AHEAD, "wait"),
        (node(cordons=()), intent(CORDON, IntentState.REJECTED, seen_by=PAST), AHEAD, "Quarantine"),
        (node(cordons=()), intent(CORDON, IntentState.REJECTED, seen_by=PAST), PAST, "hold"),
        (node(cordons=(), ready=False), intent(CORDON, IntentState.REJECTED, seen_by=PAST), PAST, "Quarantine"),
        (node(cordons=(), incarnation=NEXT), intent(CORDON, IntentState.REJECTED), PAST, "Quarantine"),
    ],
)
def test_a_cordon_is_seen_awaited_or_asked_for_again(
    seat: Node, last: Intent | None, deadline: Deadline, word: str
) -> None:
    assert ask(sight(incident(Phase.QUARANTINED, deadline=deadline), seat, intent=last)) == word


@pytest.mark.parametrize(
    ("code", "seat", "can", "ends", "then"),
    [
        ("xid.31", node(), CAN, "xid.31 shows itself again, or something worse does", "it is dismissed"),
        (AGENT_LOST, node(agent=AgentState.SILENT), frozenset(), "its agent is heard again", "a person is reminded"),
        (PARTITION, node(ready=False), CAN, "the cluster sees the node again", "a person is reminded"),
    ],
)
def test_a_watch_says_what_would_end_it_and_what_comes_else(
    code: str, seat: Node, can: frozenset[Capability], ends: str, then: str
) -> None:
    decision = decide(sight(incident(Phase.WATCHED, fault(code, Remedy.WATCH)), seat, can=can), POLICY)
    assert isinstance(decision, Stay)
    assert (decision.wait.ends, decision.wait.then) == ((ends,), then)


def test_a_persons_cordon_stops_nothing_and_is_held() -> None:
    cordon = incident(Phase.QUARANTINED, fault("operator.cordon", Remedy.NONE), kind=IncidentKind.OPERATOR)
    assert ask(sight(cordon, scoped=(JobId("j"),))) == "hold"


@pytest.mark.parametrize(
    ("more", "seat", "deadline", "word"),
    [
        ({}, node(), AHEAD, "empty"),
        ({"scoped": ("j",)}, node(), AHEAD, "call"),
        ({"scoped": ("j",), "called": frozenset({"j"})}, node(), AHEAD, "wait"),
        ({"bystanders": ("k",)}, node(), AHEAD, "wait"),
        ({"bystanders": ("k",)}, node(), PAST, "call"),
        ({"bystanders": ("k",), "called": frozenset({"k"})}, node(), PAST, "hold"),
        ({}, node(unmanaged=2), AHEAD, "Drain"),
        ({}, node(unmanaged=2), PAST, "hold"),
        (
            {"intent": intent(Drain(node=SEAT, how=DrainHow.EVICT), IntentState.ACCEPTED)},
            node(unmanaged=2),
            AHEAD,
            "wait",
        ),
        ({}, node(unmanaged=2), None, "change"),
    ],
)
def test_draining(more: dict[str, Any], seat: Node, deadline: Deadline | None, word: str) -> None:
    assert ask(sight(incident(Phase.DRAINING, deadline=deadline), seat, **more)) == word


def test_now_forces_what_was_asked_politely() -> None:
    polite = intent(Drain(node=SEAT, how=DrainHow.EVICT), IntentState.ACCEPTED)
    decision = decide(sight(incident(Phase.DRAINING, now=True), node(unmanaged=1), intent=polite), POLICY)
    assert isinstance(decision, Do)
    assert decision.act == Drain(node=SEAT, how=DrainHow.FORCE)


@pytest.mark.parametrize(
    ("linked", "scope", "device", "domain"),
    [
        (False, Scope.DEVICE, 3, (3,)),
        (True, Scope.DEVICE, 3, ()),
        (False, Scope.NODE, 3, ()),
        (False, Scope.DEVICE, None, ()),
    ],
)
def test_the_reset_domain(linked: bool, scope: Scope, device: int | None, domain: tuple[int, ...]) -> None:
    of = incident(Phase.DRAINED, fault("xid.48", Remedy.RESET_GPU, scope=scope, device=device))
    assert reset_domain(of, node(linked=linked)) == domain


@pytest.mark.parametrize(
    ("further", "domain"),
    [
        (fault("xid.48", Remedy.RESET_GPU, device=5), (3, 5)),
        (fault("xid.31", Remedy.WATCH, device=5), (3,)),
        (fault("fabric_manager.multicast", Remedy.RESET_GPU, scope=Scope.NODE, device=None), ()),
        (fault("other", Remedy.RESET_GPU, scope=Scope.NODE, device=3), ()),
    ],
)
def test_what_a_further_fault_is_about_is_reset_with_the_rest(further: Fault, domain: tuple[int, ...]) -> None:
    first = incident(Phase.QUARANTINED, fault("xid.48", Remedy.RESET_GPU, device=3))
    after = absorb(first, further, node(linked=False), POLICY, 10.0)
    assert reset_domain(after, node(linked=False)) == domain
    assert [after.about((device,)) for device in (3, 4, 5)] == [not domain or d in domain for d in (3, 4, 5)]


def test_a_reset_of_one_untied_device_leaves_bystanders_alone() -> None:
    drained = incident(Phase.DRAINED, fault("xid.48", Remedy.RESET_GPU))
    assert ask(sight(drained, node(linked=False), bystanders=(JobId("k"),))) == "Repair"
    assert ask(sight(drained, node(linked=True), bystanders=(JobId("k"),))) == "drain"


# --- the ladder


RESET, REBOOT, REPLACE = Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE


@pytest.mark.parametrize(
    ("asked", "made", "lacking", "blind", "rung"),
    [
        (RESET, (), (), (), RESET),
        (RESET, (RESET,), (), (), RESET),
        (RESET, (RESET,), (), ("reset_gpu",), REBOOT),
        (RESET, (RESET, RESET), (), (), REBOOT),
        (RESET, (), ("reset_gpu",), (), REBOOT),
        (RESET, (), ("reset_gpu", "reboot"), (), REPLACE),
        (REBOOT, (REBOOT,), (), (), REPLACE),
        (REBOOT, (REBOOT, REPLACE), (), (), REPLACE),
        (REBOOT, (REBOOT, REPLACE), (), ("replace",), None),
        (REBOOT, (REBOOT, REPLACE, REPLACE), (), (), None),
        (REBOOT, (), ("reboot", "replace"), (), None),
    ],
)
def test_the_next_rung(
    asked: Remedy, made: tuple[Remedy, ...], lacking: tuple[str, ...], blind: tuple[str, ...], rung: Remedy | None
) -> None:
    drained = incident(Phase.DRAINED, fault("xid.48", asked), tries=tries(*made))
    s = sight(drained, can=frozenset(c for c in CAN if c not in lacking), blind=frozenset(blind))
    decision = decide(s, POLICY)
    if rung is None:
        assert said(decision) == "hold"
    else:
        assert isinstance(decision, Do)
        assert isinstance(decision.act, Repair)
        assert decision.act.rung is rung


def past(*ago: float, code: str = "xid.79") -> tuple[PastIncident, ...]:
    return tuple(PastIncident(incident=IncidentId(f"i{n}"), code=code, at=1000.0 - a, ended="RELEASED", rung="reboot")
                 for n, a in enumerate(ago))  # fmt: skip


@pytest.mark.parametrize(("history", "rung"), [((), REBOOT), ((50.0,), REBOOT), ((50.0, 60.0), REPLACE)])
def test_a_lemon_goes_straight_to_replace(history: tuple[float, ...], rung: Remedy) -> None:
    decision = decide(sight(incident(Phase.DRAINED), past=past(*history)), POLICY)
    assert isinstance(decision, Do)
    assert isinstance(decision.act, Repair)
    assert decision.act.rung is rung


@pytest.mark.parametrize(
    ("healed", "word"), [(None, "Repair"), (RESET, "Repair"), (REBOOT, "verify"), (REPLACE, "verify")]
)
def test_what_others_did_counts_if_it_is_enough(healed: Remedy | None, word: str) -> None:
    assert ask(sight(incident(Phase.DRAINED, healed=healed))) == word


def test_needs_human_holds_wherever_it_is_asked() -> None:
    for phase in (Phase.DRAINED, Phase.VERIFYING):
        decision = decide(sight(incident(phase, needs_human=True)), POLICY)
        assert said(decision) == "hold"
        assert decision.also == {"needs_human": False}, "once: whoever leaves HELD has decided"


def test_what_a_person_asks_for_by_name_is_a_rung() -> None:
    wish = fault("operator.reset", RESET, scope=Scope.NODE, device=None)
    decision = decide(sight(incident(Phase.DRAINED, wish, kind=IncidentKind.OPERATOR)), POLICY)
    assert isinstance(decision, Do)
    assert decision.act == Repair(node=SEAT, rung=RESET)


# --- repairing

REPAIR = Repair(node=SEAT, rung=REBOOT)
LATER = Deadline(clock="sim", at=1010.0)


@pytest.mark.parametrize(
    ("last", "seat", "word"),
    [
        (None, node(), "fail"),
        (intent(REPAIR, IntentState.ACCEPTED), node(), "wait"),
        (intent(REPAIR, IntentState.UNKNOWN), node(), "wait"),
        (intent(REPAIR, IntentState.SEEN), node(incarnation=NEXT), "repaired"),
        (intent(REPAIR, IntentState.SEEN), node(incarnation=None), "replaced"),
        (intent(REPAIR, IntentState.EXPIRED), node(), "fail"),
        (intent(REPAIR, IntentState.EXPIRED, sent_at=0.0), node(), "hold"),
        (intent(REPAIR, IntentState.REJECTED), node(), "fail"),
        (intent(REPAIR, IntentState.REJECTED, not_before=LATER), node(), "wait"),
        (intent(REPAIR, IntentState.REJECTED), node(ready=False), "wait"),
        (intent(REPAIR, IntentState.REJECTED, seen_by=PAST), node(ready=False), "fail"),
        (intent(REPAIR, IntentState.REJECTED, gone=True), node(ready=False), "fail"),
        (intent(REPAIR, IntentState.REJECTED), node(incarnation=NEXT), "repaired"),
    ],
)
def test_a_repair_is_proven_refused_or_awaited(last: Intent | None, seat: Node, word: str) -> None:
    assert ask(sight(incident(Phase.REPAIRING, tries=tries(REBOOT)), seat, intent=last)) == word


def test_a_rung_that_was_never_carried_out_was_not_tried() -> None:
    last = intent(REPAIR, IntentState.EXPIRED, sent_at=0.0, answer="no route")
    decision = decide(sight(incident(Phase.REPAIRING, tries=tries(RESET, REBOOT)), intent=last), POLICY)
    assert isinstance(decision, Move)
    assert [t.rung for t in decision.also["tries"]] == [RESET]
    assert "no route" in decision.because


# --- verifying

CHECK = Verify(nodes=(SEAT,), level=2)


def verified(verdict: Verdict, **more: Any) -> Intent:
    return intent(CHECK, IntentState.SEEN, verdicts={SEAT: verdict}, clock=INGEST, **more)


@pytest.mark.parametrize(
    ("made", "last", "word"),
    [
        ((REBOOT,), None, "Verify"),
        ((REBOOT,), intent(CHECK, IntentState.ACCEPTED), "wait"),
        ((REBOOT,), intent(CHECK, IntentState.ACCEPTED, expect=NEXT), "Verify"),
        ((REBOOT,), verified(Verdict.FAIL), Verdict.FAIL),
        ((REBOOT,), verified(Verdict.COULD_NOT_RUN), "hold"),
        ((RESET,), verified(Verdict.COULD_NOT_RUN), Verdict.FAIL),  # so says the default policy for resets
        ((REBOOT,), intent(CHECK, IntentState.EXPIRED), "hold"),
        ((REBOOT,), intent(CHECK, IntentState.REJECTED), "hold"),
        ((RESET,), intent(CHECK, IntentState.EXPIRED), "fail"),
    ],
)
def test_only_a_passed_check_is_a_pass(made: tuple[Remedy, ...], last: Intent | None, word: str) -> None:
    assert ask(sight(incident(Phase.VERIFYING, fault("xid.48"), tries=tries(*made)), intent=last)) == word


@pytest.mark.parametrize(
    ("proof", "seat", "word"),
    [
        (Proven(check="i1.2", incarnation=BOOT, repairs=1), node(), "change"),
        (Proven(check="i1.2", incarnation=BOOT, repairs=0), node(), "Verify"),  # older than the repair
        (Proven(check="i1.2", incarnation=NEXT, repairs=1), node(), "Verify"),  # of another boot
        (Proven(check="i1.2", incarnation=BOOT, repairs=1), node(incarnation=NEXT), "Verify"),
    ],
)
def test_proof_is_of_this_boot_and_newer_than_the_repair(proof: Proven, seat: Node, word: str) -> None:
    of = incident(Phase.VERIFYING, tries=tries(REBOOT), proof=proof)
    decision = decide(sight(of, seat), POLICY)
    assert said(decision) == word
    if isinstance(decision, Change):
        assert decision.also == {"closing": Phase.RELEASED}


def test_a_relapse_fails_the_rung_even_with_a_passed_check() -> None:
    proof = Proven(check="i1.2", incarnation=BOOT, repairs=1)
    of = incident(Phase.VERIFYING, tries=tries(REBOOT), proof=proof, relapse="xid.79: again")
    assert ask(sight(of)) == "fail"


@pytest.mark.parametrize("lacking", [Capability.CHECK, Capability.CHECK_CORDONED])
def test_without_a_check_nothing_is_released(lacking: Capability) -> None:
    assert ask(sight(incident(Phase.VERIFYING, tries=tries(REBOOT)), can=CAN - {lacking})) == "hold"


# --- held, and the end


def test_held_tells_once_and_reminds() -> None:
    first = decide(sight(incident(Phase.HELD, deadline=None)), POLICY)
    assert isinstance(first, Change)
    assert first.tell is not None
    assert "so it is" in first.tell.notice.text
    ahead = Deadline(clock=INGEST, at=1000.0 + timedelta(hours=12).total_seconds())
    assert first.also == {"deadline": ahead}
    assert ask(sight(incident(Phase.HELD, deadline=ahead))) == "wait"


OURS_BACK = Release(node=SEAT, owner=OURS)


@pytest.mark.parametrize(
    ("last", "deadline", "word"),
    [
        (None, None, "Release"),
        (intent(CHECK, IntentState.SEEN), None, "Release"),
        (intent(OURS_BACK, IntentState.ACCEPTED), None, "wait"),
        (intent(OURS_BACK, IntentState.SEEN), None, "release"),
        (intent(OURS_BACK, IntentState.EXPIRED), None, "change"),  # a human is told
        (intent(OURS_BACK, IntentState.EXPIRED), AHEAD, "wait"),
        (intent(OURS_BACK, IntentState.EXPIRED), PAST, "change"),  # now and again; it is asked for anew all the same
    ],
)
def test_closing_waits_until_our_cordon_is_seen_gone(last: Intent | None, deadline: Deadline | None, word: str) -> None:
    proof = Proven(check="i1.1", incarnation=BOOT, repairs=0, at=NOW)
    of = incident(Phase.VERIFYING, closing=Phase.RELEASED, deadline=deadline, proof=proof)
    assert ask(sight(of, intent=last)) == word


def test_a_dismissed_cordon_that_is_still_on_its_way_is_awaited_before_it_is_taken_back() -> None:
    of = incident(Phase.QUARANTINED, closing=Phase.DISMISSED, cordon_as_of=None)
    assert ask(sight(of, node(cordons=()), intent=intent(CORDON, IntentState.UNKNOWN))) == "wait"
    assert ask(sight(of, node(cordons=()), intent=intent(CORDON, IntentState.SEEN))) == "Release"


def test_no_decision_depends_on_the_order_of_what_it_reads() -> None:
    jobs = (JobId("a"), JobId("b"))
    one = sight(incident(Phase.DRAINING), scoped=jobs)
    two = sight(incident(Phase.DRAINING), scoped=tuple(reversed(jobs)))
    first, second = decide(one, POLICY), decide(two, POLICY)
    assert isinstance(first, Change)
    assert isinstance(second, Change)
    assert set(first.call) == set(second.call) == set(jobs)


def test_a_changed_remedy_is_read_from_the_incident_not_from_its_fault() -> None:
    raised = replace(incident(Phase.DRAINED, fault("xid.48", RESET)), remedy=REPLACE)
    decision = decide(sight(raised), POLICY)
    assert isinstance(decision, Do)
    assert isinstance(decision.act, Repair)
    assert decision.act.rung is REPLACE
