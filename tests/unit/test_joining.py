"""Joining, the decision: who may have the name of a node."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sickbay.brain.joining import JoinAnswer, JoinInput, JoinVerdict, judge_join
from sickbay.model.facts import EarlyAgent
from sickbay.model.fleet import AgentState, Incarnation, Node, NodeId, Role, Token

NODE = NodeId("train/gpu-7")
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
GRANTED, AGAIN, TAKEN = JoinVerdict.GRANTED, JoinVerdict.ASK_AGAIN, JoinVerdict.TAKEN


def seat(
    holder: str = "i-old", *, registered: str = "", agent: AgentState = AgentState.HEARD, ready: bool = True
) -> Node:
    shown = Incarnation(uid="u", instance_id=registered)
    who = Incarnation(uid="u", instance_id=holder, boot_id="b")
    return Node(
        id=NODE, cluster="train", pool="train/p", incarnation=who, registered=shown, agent=agent, ready=ready
    )  # fmt: skip


def token(instance: str = "i-old", age: float = 3600.0, over_for: float | None = None) -> Token:
    ended = None if over_for is None else NOW - timedelta(seconds=over_for)
    issued = NOW - timedelta(seconds=age)
    return Token(
        hash="h", name=f"agent of {NODE}", role=Role.AGENT, by="jo", issued_at=issued, node=NODE, instance_id=instance,
        expires_at=ended,
    )  # fmt: skip


def judged(instance: str = "i-new", **known: Any) -> JoinAnswer:
    return judge_join(JoinInput(node=NODE, instance_id=instance, now=NOW, **known))


SILENT, NONE = AgentState.SILENT, AgentState.NONE
VOICE = EarlyAgent(node=NODE, incarnation=Incarnation(instance_id="i-old", boot_id="b"))
GONE = Node(id=NODE, cluster="train", pool="train/p", vacant_until=None)


@pytest.mark.parametrize(
    ("instance", "known", "verdict"),
    [
        ("i-new", {}, GRANTED),
        ("i-new", {"seat": GONE}, GRANTED),
        # somebody is heard under the name
        ("i-new", {"seat": seat()}, TAKEN),
        ("i-new", {"seat": seat(), "tokens": [token(over_for=1.0)]}, TAKEN),
        ("i-new", {"voice": VOICE}, TAKEN),
        ("i-new", {"seat": seat(agent=NONE), "voice": VOICE}, TAKEN),
        # the machine itself, it says, while an agent of it is heard: so would a thief of the join token
        ("i-old", {"seat": seat(), "tokens": [token()]}, AGAIN),
        ("i-old", {"seat": seat()}, AGAIN),
        ("i-old", {"voice": VOICE, "tokens": [token()]}, AGAIN),
        # its token was revoked, or has expired, and it is heard still: it need not wait for its own silence
        ("i-old", {"seat": seat(), "tokens": [token(over_for=1.0)]}, GRANTED),
        ("i-old", {"seat": seat(), "tokens": [token(over_for=600.0)]}, AGAIN),
        # silent: a machine of its own comes back, another one takes its place
        ("i-old", {"seat": seat(agent=SILENT), "tokens": [token()]}, GRANTED),
        ("i-new", {"seat": seat(agent=SILENT), "tokens": [token()]}, GRANTED),
        # unless its cluster shows the other one there, well
        ("i-new", {"seat": seat(registered="i-old", agent=SILENT)}, TAKEN),
        ("i-new", {"seat": seat(registered="i-old", agent=SILENT, ready=False)}, GRANTED),
        ("i-new", {"seat": seat("i-new", registered="i-new", agent=NONE)}, GRANTED),
        # and not if its cluster names this very machine, whoever still speaks there
        ("i-new", {"seat": seat("i-new", registered="i-new", agent=NONE), "voice": VOICE}, GRANTED),
        ("i-new", {"seat": seat("i-new", registered="i-new", agent=NONE), "tokens": [token(age=5.0)]}, GRANTED),
        ("i-old", {"seat": seat("i-new", registered="i-new", agent=NONE), "voice": VOICE}, TAKEN),
        ("i-new", {"seat": seat("i-new", registered="i-new"), "tokens": [token("i-new")]}, AGAIN),
        # an answer was lost: the same machine asks again; of two that ask, the second one waits for the first
        ("i-old", {"tokens": [token(age=5.0)]}, GRANTED),
        ("i-new", {"tokens": [token(age=5.0)]}, TAKEN),
        ("i-new", {"tokens": [token(age=120.0)]}, GRANTED),
        ("i-new", {"tokens": [token(age=5.0, over_for=1.0)]}, GRANTED),
        ("i-new", {"tokens": [token("", age=5.0)]}, GRANTED),
    ],
)  # fmt: skip
def test_a_name_is_given_out_only_while_nobody_lives_under_it(
    instance: str, known: dict[str, Any], verdict: JoinVerdict
) -> None:
    answer = judged(instance, **known)
    assert answer.verdict is verdict, answer.because
    assert bool(answer.because) == (verdict is not GRANTED)


def test_whoever_has_the_name_is_named() -> None:
    answer = judged(seat=seat())
    assert answer.holder == "i-old"
    assert answer.because.startswith("the name train/gpu-7 is taken by i-old, whose agent is heard: give this machine")
