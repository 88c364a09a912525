"""Intents that nobody wants any more, proofs that did not last, and work that is in the way: as tables."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.tables import BOOT, NEXT, NOW, OURS, PAST, POLICY, SEAT, fault, incident, intent, node, said, sight

from sickbay.brain.decide import decide
from sickbay.brain.decision import Change, Move, Stay
from sickbay.brain.orders import planned
from sickbay.model.fault import Remedy
from sickbay.model.fleet import DrainHow
from sickbay.model.incident import IncidentKind, OperatorRequest, Phase, Proven, Try, Verb
from sickbay.model.intent import (
    INTENT_LIFE,
    AnyAct,
    Drain,
    IntentState,
    Quarantine,
    Release,
    Repair,
    Verify,
    may_be_sent_again,
)

RELEASE = Release(node=SEAT, owner=OURS)
REBOOT = Repair(node=SEAT, rung=Remedy.REBOOT)
PROOF = Proven(check="i1.1", incarnation=BOOT, repairs=0, at=NOW)


# --- a proof that did not last


@pytest.mark.parametrize(
    ("last", "cordoned", "word"),
    [
        (None, True, "change"),
        (intent(RELEASE, IntentState.PLANNED), True, "change"),
        (intent(RELEASE, IntentState.SENT), True, "wait"),
        (intent(RELEASE, IntentState.ACCEPTED), False, "wait"),
        (intent(RELEASE, IntentState.REJECTED), True, "change"),
        (intent(RELEASE, IntentState.SEEN), False, "cordon"),
        (intent(RELEASE, IntentState.EXPIRED), False, "cordon"),
    ],
)
@pytest.mark.parametrize("proof", [None, PROOF], ids=["wiped", "of another boot"])
def test_nobody_is_released_on_a_proof_that_is_gone(last: Any, cordoned: bool, word: str, proof: Any) -> None:
    closing = incident(Phase.VERIFYING, closing=Phase.RELEASED, proof=proof, incarnation=NEXT)
    seat = node(incarnation=NEXT, cordons=(OURS,) if cordoned else ())
    decision = decide(sight(closing, seat, intent=last), POLICY)
    assert said(decision) == word
    if isinstance(decision, Change | Move):
        assert decision.also["closing"] is None
        assert decision.also["intent"] == ""


def test_what_a_node_shows_while_its_release_is_not_taken_stands_beside_what_led() -> None:
    led = fault("operator.reboot", Remedy.REBOOT, device=None)
    asked = incident(
        Phase.VERIFYING, led, closing=Phase.RELEASED, proof=PROOF, sequel=fault("xid.48"), kind=IncidentKind.OPERATOR
    )
    not_taken = intent(RELEASE, IntentState.EXPIRED, seen_by=PAST)
    decision = decide(sight(asked, intent=not_taken), POLICY)
    assert said(decision) == "change"
    kept = replace(asked, **decision.also)
    assert (kept.closing, [other.code for other in kept.others]) == (None, ["xid.48"])
    assert planned(kept) == "", "what fails under a job waits for no save"


def test_a_proof_that_lasts_is_released() -> None:
    closing = incident(Phase.VERIFYING, closing=Phase.RELEASED, proof=PROOF)
    assert said(decide(sight(closing), POLICY)) == "Release"
    seen = intent(RELEASE, IntentState.SEEN)
    assert said(decide(sight(closing, node(cordons=()), intent=seen), POLICY)) == "release"


# --- what is let go of and may still come


@pytest.mark.parametrize("act", [REBOOT, Drain(node=SEAT, how=DrainHow.EVICT)], ids=["a repair", "a drain"])
@pytest.mark.parametrize(
    "of",
    [
        incident(Phase.REPAIRING, closing=Phase.DISMISSED),
        incident(Phase.HELD, closing=Phase.DISMISSED),
        incident(Phase.VERIFYING, closing=Phase.RELEASED, proof=PROOF),
        incident(Phase.DRAINED),
        incident(Phase.VERIFYING),
    ],
    ids=["dismissed", "held and dismissed", "released", "to be repaired", "to be checked"],
)
def test_what_may_still_come_is_awaited_and_said(of: Any, act: AnyAct) -> None:
    under_way = intent(act, IntentState.ACCEPTED, withdrawn=True)
    decision = decide(sight(of, loose=(under_way,)), POLICY)
    assert isinstance(decision, Stay)
    assert decision.wait.until == under_way.seen_by
    assert "on its way" in decision.wait.because
    assert not isinstance(decide(sight(of), POLICY), Stay)


@pytest.mark.parametrize("verb", ["dismiss", "uncordon", "uncordoned"])
@pytest.mark.parametrize(
    ("act", "state", "kept"),
    [
        (REBOOT, IntentState.ACCEPTED, False),
        (Verify(nodes=(SEAT,), level=2), IntentState.ACCEPTED, False),
        (Quarantine(node=SEAT, owner=OURS, reason=""), IntentState.PLANNED, False),
        (Quarantine(node=SEAT, owner=OURS, reason=""), IntentState.SENT, True),
        (RELEASE, IntentState.ACCEPTED, True),
    ],
)
def test_whoever_lets_go_of_a_node_lets_go_of_what_is_done_to_it(
    verb: str, act: AnyAct, state: IntentState, kept: bool
) -> None:
    asked = incident(Phase.REPAIRING, orders=(OperatorRequest(verb=Verb(verb), by="ann", reason="mine"),))
    decision = decide(sight(asked, intent=intent(act, state)), POLICY)
    assert isinstance(decision, Change)
    assert decision.also["closing"] is Phase.DISMISSED
    assert ("intent" not in decision.also) is kept


def test_a_cordon_that_another_removed_needs_no_release() -> None:
    closing = incident(Phase.DRAINED, closing=Phase.DISMISSED, closing_why="uncordoned by another: because")
    decision = decide(sight(closing, node(cordons=())), POLICY)
    assert isinstance(decision, Move)
    assert (decision.event, decision.because) == ("dismiss", "uncordoned by another: because")


# --- doubt


def test_what_was_refused_in_doubt_is_never_sent_again() -> None:
    assert may_be_sent_again(intent(REBOOT, IntentState.UNKNOWN))
    assert not may_be_sent_again(intent(REBOOT, IntentState.UNKNOWN, refused=True))
    assert not may_be_sent_again(intent(REBOOT, IntentState.UNKNOWN, blind=True))


@pytest.mark.parametrize("state", [s for s in IntentState if not s.over])
def test_every_intent_that_is_not_over_has_an_end(state: IntentState) -> None:
    ends = {"rejected", "expire"} if state is not IntentState.SENT else {"rejected", "unknown"}
    assert all(INTENT_LIFE.can(state, event) for event in ends)


# --- work that is in the way


@pytest.mark.parametrize(
    "there", [{"scoped": ("j",)}, {"bystanders": ("j",)}, {}], ids=["scoped", "beside", "unmanaged"]
)
@pytest.mark.parametrize(
    "of",
    [
        incident(Phase.DRAINED),
        incident(Phase.DRAINED, fault("operator.drain", Remedy.NONE)),
        incident(Phase.DRAINED, healed=Remedy.REPLACE),
        incident(Phase.DRAINED, to_verify=True),
        incident(Phase.VERIFYING),
        incident(Phase.HELD, orders=(OperatorRequest(verb=Verb.CONFIRM, by="ann", reason="mine"),)),
    ],
    ids=["repair", "nothing to repair", "repaired by others", "drained for a check", "check", "confirmed"],
)
def test_nothing_is_repaired_or_checked_under_work(of: Any, there: dict[str, Any]) -> None:
    busy = sight(of, node(unmanaged=0 if there else 1), **there)
    decision = decide(busy, POLICY)
    assert said(decision) == "drain"
    assert said(decide(sight(of), POLICY)) in {"Repair", "verify", "Verify"}


def test_whoever_a_reset_of_one_device_left_alone_is_left_alone_by_its_check() -> None:
    tries = (Try(rung=Remedy.RESET_GPU, result="done", at=NOW),)
    reset = incident(Phase.VERIFYING, fault("xid.48", Remedy.RESET_GPU), tries=tries)
    assert said(decide(sight(reset, node(linked=False), bystanders=("j",)), POLICY)) == "Verify"
    assert said(decide(sight(reset, node(linked=True), bystanders=("j",)), POLICY)) == "drain"


def test_a_check_after_draining_is_not_a_second_repair() -> None:
    tries = (Try(rung=Remedy.REBOOT, result="done", at=NOW),)
    decision = decide(sight(incident(Phase.DRAINED, tries=tries, to_verify=True)), POLICY)
    assert isinstance(decision, Move)
    assert (decision.event, decision.also["to_verify"]) == ("verify", False)


@pytest.mark.parametrize("verb", ["confirm", "escalate"])
def test_a_held_node_without_our_cordon_is_cordoned_first(verb: str) -> None:
    held = incident(Phase.HELD, orders=(OperatorRequest(verb=Verb(verb), by="ann", reason="mine"),))
    assert said(decide(sight(held, node(cordons=())), POLICY)) == "quarantine"
