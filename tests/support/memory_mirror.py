"""An in-memory Mirror that can be down, refuse or be slow."""

from collections.abc import Callable

from sickbay.model.shown import AnyShown


class MemoryMirror:
    """`trouble` is called with each subject first, and may raise what an adapter may raise, or take its time."""

    period = 0.0

    def __init__(self, trouble: Callable[[str], None] = lambda _: None) -> None:
        self.values: dict[str, AnyShown] = {}
        self.calls: list[str] = []  # subjects, in order
        self.trouble = trouble

    def show(self, value: AnyShown) -> None:
        self.calls.append(value.subject)
        self.trouble(value.subject)
        self.values[value.subject] = value

    def remove(self, subject: str) -> None:
        self.calls.append(subject)
        self.trouble(subject)
        self.values.pop(subject, None)

    def shown(self) -> list[str]:
        self.trouble("")
        return list(self.values)
