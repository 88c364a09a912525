"""The tables of lives are complete: every state can be reached and left, and an end is an end."""

from enum import StrEnum
from typing import Any

import pytest

from sickbay.model.errors import IllegalMove
from sickbay.model.incident import OUT, TERMINAL, TRANSITIONS, Phase
from sickbay.model.intent import INTENT_LIFE, IntentState
from sickbay.model.job import JOB_LIFE, JobState
from sickbay.model.state_machine import StateMachine, Step

LIVES: list[tuple[StateMachine[Any, Any], type[StrEnum], set[Any], Any]] = [
    (TRANSITIONS, Phase, set(TERMINAL), Phase.SUSPECT),
    (JOB_LIFE, JobState, {s for s in JobState if s.terminal}, JobState.QUEUED),
    (INTENT_LIFE, IntentState, {s for s in IntentState if s.over}, IntentState.PLANNED),
]
BY_NAME = pytest.mark.parametrize(("life", "states", "ends", "first"), LIVES, ids=[life.what for life, *_ in LIVES])


def reached(life: StateMachine[Any, Any], start: Any) -> set[Any]:
    found, ahead = {start}, [start]
    while ahead:
        state = ahead.pop()
        for step in life.steps:
            if step.source == state and step.target not in found:
                found.add(step.target)
                ahead.append(step.target)
    return found


@BY_NAME
def test_every_state_can_be_reached(
    life: StateMachine[Any, Any], states: type[StrEnum], ends: set[Any], first: Any
) -> None:
    del ends
    assert reached(life, first) == set(states)


@BY_NAME
def test_from_every_open_state_there_is_a_way_to_an_end(
    life: StateMachine[Any, Any], states: type[StrEnum], ends: set[Any], first: Any
) -> None:
    del first
    for state in states:
        assert state in ends or reached(life, state) & ends, f"{state} has no way out"


@BY_NAME
def test_no_end_is_left(life: StateMachine[Any, Any], states: type[StrEnum], ends: set[Any], first: Any) -> None:
    del states, first
    assert [step.source for step in life.steps if step.source in ends] == []


def test_from_every_open_phase_a_node_may_go_a_person_may_dismiss_and_hold() -> None:
    for phase in set(Phase) - TERMINAL:
        assert TRANSITIONS.can(phase, "gone")
        assert TRANSITIONS.can(phase, "dismiss")
        assert phase is Phase.HELD or TRANSITIONS.can(phase, "hold")


def test_released_is_reached_from_verifying_only_and_only_with_proof() -> None:
    steps = [step for step in TRANSITIONS.steps if step.target is Phase.RELEASED]
    assert [(step.source, step.guard is not None) for step in steps] == [(Phase.VERIFYING, True)]


def test_a_repair_begins_only_where_the_node_is_drained() -> None:
    assert {step.source for step in TRANSITIONS.steps if step.target is Phase.REPAIRING} == {Phase.DRAINED}


def test_phases_that_are_out_are_open() -> None:
    assert OUT.isdisjoint(TERMINAL)
    assert {Phase.SUSPECT, Phase.WATCHED}.isdisjoint(OUT)


def test_a_step_that_is_not_in_the_table_is_refused_by_name() -> None:
    with pytest.raises(IllegalMove, match="incident in SUSPECT cannot take 'release'"):
        TRANSITIONS.target(None, Phase.SUSPECT, "release")  # type: ignore[arg-type]


def test_two_steps_for_one_event_are_a_mistake_of_the_table() -> None:
    with pytest.raises(ValueError, match="two steps share"):
        StateMachine("thing", [Step("a", "go", "b"), Step("a", "go", "c")])
