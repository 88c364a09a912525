"""How lives are written down: a table of steps, and the one function that takes them."""

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from sickbay.model.errors import IllegalMove

State = TypeVar("State", bound=str)
Thing = TypeVar("Thing")


class Step(Generic[State, Thing]):
    """(from, event, to, guard). The guard is what must hold of the thing itself; None: nothing more."""

    __slots__ = ("event", "guard", "source", "target")

    def __init__(self, source: State, event: str, target: State, guard: Callable[[Thing], bool] | None = None) -> None:
        self.source, self.event, self.target, self.guard = source, event, target, guard


class StateMachine(Generic[State, Thing]):
    """A set of steps, asked by (state, event)."""

    def __init__(self, what: str, steps: Iterable[Step[State, Thing]]) -> None:
        self.what = what
        self.steps = tuple(steps)
        self._index = {(step.source, step.event): step for step in self.steps}
        if len(self._index) != len(self.steps):
            raise ValueError(f"{what}: two steps share a state and an event")

    def target(self, thing: Thing, state: State, event: str) -> State:
        step = self._index.get((state, event))
        if step is None:
            raise IllegalMove(f"{self.what} in {state} cannot take {event!r}")
        if step.guard is not None and not step.guard(thing):
            raise IllegalMove(f"{self.what} in {state}: {event!r} needs {step.guard.__name__}")
        return step.target

    def can(self, state: State, event: str) -> bool:
        return (state, event) in self._index
