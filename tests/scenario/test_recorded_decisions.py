"""Record and replay: what a decision may read is a value, and from the written value the same decision follows."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from sickbay.brain.decide import decide
from sickbay.brain.decision import ReadFirst
from sickbay.brain.idle_checks import PatrolInput, patrol
from sickbay.brain.incident_input import IncidentInput
from sickbay.brain.job_input import JobInput
from sickbay.brain.resume import resume
from sickbay.brain.retry import IntentInput, developed, next_look
from sickbay.engine import patrol as patrols
from sickbay.engine import plan_incidents, plan_intents, plan_jobs
from sickbay.sim.random_runs import random_run

Input = TypeVar("Input", JobInput, IncidentInput, IntentInput, PatrolInput)


@pytest.mark.parametrize("kind", [JobInput, IncidentInput, IntentInput, PatrolInput])
def test_every_field_that_a_decision_may_read_can_be_written_down(kind: type[Any]) -> None:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType | msgspec.inspect.DataclassType)
    opaque = (msgspec.inspect.CustomType, msgspec.inspect.AnyType)
    assert info.fields
    assert not [field.name for field in info.fields if isinstance(field.type, opaque)]


def _twice(kind: type[Input], decided: Callable[..., Any], seen: Counter[str]) -> Callable[..., Any]:
    def both(s: Input, *more: Any) -> Any:
        decision = decided(s, *more)
        again = msgspec.json.decode(msgspec.json.encode(s), type=kind)
        assert again == s
        assert decided(again, *more) == decision
        seen[decision.need.name if isinstance(decision, ReadFirst) else type(decision).__name__] += 1
        return decision

    return both


@pytest.mark.parametrize(
    ("seed", "needs"),
    [
        pytest.param(3, {"ROOM", "SEATS", "WITHHELD", "THEIRS", "WELL", "AWAY"}, marks=pytest.mark.slow),
        (5, {"ROOM", "DISMISSED"}),
    ],
)
def test_a_recorded_decision_is_made_again(seed: int, needs: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, incidents, others = Counter[str](), Counter[str](), Counter[str]()
    monkeypatch.setattr(plan_jobs, "resume", _twice(JobInput, resume, jobs))
    monkeypatch.setattr(plan_incidents, "decide", _twice(IncidentInput, decide, incidents))
    monkeypatch.setattr(plan_intents, "developed", _twice(IntentInput, developed, others))
    monkeypatch.setattr(plan_intents, "next_look", _twice(IntentInput, next_look, others))
    monkeypatch.setattr(patrols, "patrol", _twice(PatrolInput, patrol, others))
    random_run(seed)
    assert {"Move", "Do", "Stay"} | needs <= jobs.keys()
    assert {"Move", "Do", "Stay"} <= incidents.keys()
    assert {"Intent", "Deadline"} <= others.keys()
