"""Thousands of runs that a seed alone decides. Every invariant is asserted after every step of each of them.

`make soak RUNS=…` runs as many more as you like; a failing seed prints the command that repeats it.
"""

import pytest

from sickbay.sim.random_runs import random_run

CHUNK = 10


def _chunk(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            random_run(seed)
        except Exception as wrong:
            raise AssertionError(f"{wrong}; repeat it with: sickbay sim soak --from {seed} --runs 1") from wrong


@pytest.mark.parametrize("first", range(0, 20, CHUNK))
def test_whatever_the_weather_every_invariant_holds(first: int) -> None:
    _chunk(first)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(20, 2020, CHUNK))
def test_in_thousands_of_runs_every_invariant_holds(first: int) -> None:
    _chunk(first)
