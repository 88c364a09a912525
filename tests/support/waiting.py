"""Waiting for what real processes and threads do: one polling loop for all tests."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T | None], within: float = 20.0, what: str = "") -> T:
    """Polls; gives what the condition gave once that is true, and fails when it took too long."""
    end = time.monotonic() + within
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(what or f"did not come true within {within:g} s: {condition}")
        time.sleep(0.005)
    return found
