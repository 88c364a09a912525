"""What becomes of an intent: it comes to rest, and it is never sent again while it may have taken effect."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from sickbay.brain.retry import BACKOFF_MOST, TRANSIENT_LIMIT, IntentInput, answered, developed, next_look
from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.facts import CallResult, Outcome
from sickbay.model.fault import Remedy
from sickbay.model.fleet import DrainHow, Incarnation, JobId, Node, NodeId
from sickbay.model.intent import AnyAct, Drain, Intent, IntentState, Notify, Quarantine, Repair, StopJob

NOW = datetime(2026, 3, 1, tzinfo=UTC)
NODE = NodeId("sim/n1")
ACTS: list[AnyAct] = [
    Quarantine(node=NODE, owner="sickbay:i1", reason=""),
    Drain(node=NODE, how=DrainHow.EVICT),
    Repair(node=NODE, rung=Remedy.REBOOT),
    StopJob(job=JobId("j1"), attempt=1),
    Notify(event="held", subject="incident:i1", text="", to="ops"),
]
HERE = Incarnation(instance_id="i", boot_id="b")


def intent(act: AnyAct, state: IntentState, **more: Any) -> Intent:
    fields: dict[str, Any] = {"clock": "sim", "owner": "incident:i1", "sends": 1, "sent_at": 900.0, **more}
    return Intent(
        key="i1.1", cluster="sim", pool="sim/train", act=act, because="", planned_at=NOW, call_timeout=30.0,
        patience=600.0, state=state, expect=HERE, **fields,
    )  # fmt: skip


def seen(of: Intent, **more: Any) -> IntentInput:
    """Its node is as it was when it was asked for: nothing of it shows."""
    seat = Node(id=NODE, cluster="sim", pool="sim/train", incarnation=HERE, unmanaged=1, as_of=1000.0)
    fields: dict[str, Any] = {
        "readings": {"sim": 1000.0},
        "present": {"sim": 1000.0},
        "read_after": 1040.0,
        "clock": WatchedClock(source="sim", period=5.0, reading=1000.0, as_of=1000.0),
        "nodes": {NODE: seat} if isinstance(of.act, Quarantine | Drain | Repair) else {},
        **more,
    }
    return IntentInput(intent=of, **fields)


DEADLINES = st.none() | st.sampled_from([Deadline(clock="sim", at=at) for at in (999.0, 2000.0)])


@given(
    act=st.sampled_from(ACTS),
    state=st.sampled_from([state for state in IntentState if not state.over]),
    more=st.fixed_dictionaries(
        {
            "seen_by": DEADLINES, "not_before": DEADLINES, "sends": st.integers(0, 3), "doubted": st.integers(0, 3),
            "sent_at": st.sampled_from([0.0, 900.0, 999.0]), "doubt_until": st.sampled_from([0.0, 950.0, 1040.0]),
            "blind": st.booleans(), "refused": st.booleans(), "withdrawn": st.booleans(),
        }
    ),
    wanted=st.booleans(),
)  # fmt: skip
def test_it_comes_to_rest_and_says_when_to_look_again(
    act: AnyAct, state: IntentState, more: dict[str, Any], wanted: bool
) -> None:
    s = seen(intent(act, state, **more), wanted=wanted)
    after = developed(s)
    rested = replace(s, intent=after)
    assert after.state.over or developed(rested) == after, "what has come of it comes of it once"
    if state is IntentState.UNKNOWN and after.state is IntentState.PLANNED:
        assert not after.blind, "sent again, though nobody can promise that it has one effect"
        assert not after.refused
        assert after.doubt_until <= 1000.0, "sent again, though no read is new enough to show that it had no effect"
    waits_for_others = {IntentState.UNKNOWN, IntentState.ACCEPTED, IntentState.PLANNED}
    assert after.state.over or after.state in waits_for_others or next_look(rested) is not None


@pytest.mark.parametrize(("sends", "pause"), [(1, 0.5), (2, 1.0), (4, 4.0), (7, 32.0), (9, BACKOFF_MOST)])
def test_what_did_not_take_effect_is_tried_again_with_back_off(sends: int, pause: float) -> None:
    sent = intent(ACTS[0], IntentState.SENT, sends=sends)
    news = Outcome(key=sent.key, result=CallResult.TRANSIENT, sends=sends, text="busy")
    after = answered(seen(sent), news)
    assert (after.state, after.not_before) == (IntentState.PLANNED, Deadline(clock="sim", at=1000.0 + pause))
    assert after.sent_at == 0.0, "none of its sendings took effect"


def test_an_act_is_for_its_moment_and_a_notice_for_as_long_as_its_patience_lasts() -> None:
    news = Outcome(key="i1.1", result=CallResult.TRANSIENT, sends=TRANSIENT_LIMIT, text="busy")
    act, notice = (intent(of, IntentState.SENT, sends=TRANSIENT_LIMIT) for of in (ACTS[0], ACTS[-1]))
    assert answered(seen(act), news).state is IntentState.EXPIRED
    assert answered(seen(notice), news).state is IntentState.PLANNED
    over = replace(notice, seen_by=Deadline(clock="sim", at=999.0))
    assert answered(seen(over), news).state is IntentState.EXPIRED


def test_a_refusal_after_a_sending_in_doubt_is_awaited_and_not_believed() -> None:
    doubted = intent(ACTS[0], IntentState.SENT, sends=2, doubted=1)
    after = answered(seen(doubted), Outcome(key="i1.1", result=CallResult.REJECTED, sends=2, text="no"))
    assert (after.state, after.refused) == (IntentState.UNKNOWN, True)
    assert after.seen_by == Deadline(clock="sim", at=1600.0)
    late = answered(seen(doubted), Outcome(key="i1.1", result=CallResult.REJECTED, sends=1, text="no"))
    assert late == replace(doubted, doubted=0), "the one in doubt had no effect, after all"


def test_absence_counts_only_in_a_read_that_is_newer_than_the_call() -> None:
    lost = developed(seen(intent(ACTS[0], IntentState.SENT)))
    assert (lost.state, lost.doubted, lost.doubt_until) == (IntentState.UNKNOWN, 1, 1040.0)
    newer = seen(lost, clock=WatchedClock(source="sim", period=5.0, reading=1050.0, as_of=1040.0))
    assert developed(newer).state is IntentState.PLANNED
    assert developed(replace(newer, wanted=False)).state is IntentState.EXPIRED
    reboot = replace(lost, act=ACTS[2])
    assert developed(replace(newer, intent=reboot, wanted=False)).state is IntentState.UNKNOWN, "it may yet come"
