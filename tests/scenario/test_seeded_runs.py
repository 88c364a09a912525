"""Runs that a seed alone decides, in a hard world. Every invariant is asserted after every step of each of them.

`make soak-sim RUNS=…` runs as many more as you like; a failing seed prints the command that repeats it.
"""

import pytest
from tests.support.thorough import THOROUGH

from sickbay.sim.hardness import Trouble
from sickbay.sim.random_runs import random_run

pytestmark = pytest.mark.slow

CHUNK = 5
RUNS = 130 if THOROUGH else 35


def _chunk(first: int) -> None:
    for seed in range(first, first + CHUNK):
        try:
            random_run(seed)
        except Exception as wrong:
            raise AssertionError(f"{wrong}; repeat it with: sickbay sim soak --from {seed} --runs 1") from wrong


@pytest.mark.parametrize("first", range(0, 10, CHUNK))
def test_whatever_the_weather_every_invariant_holds(first: int) -> None:
    _chunk(first)


@pytest.mark.parametrize("first", range(10, RUNS, CHUNK))
def test_in_many_more_runs_every_invariant_holds(first: int) -> None:
    _chunk(first)


@pytest.mark.parametrize("seed", [3, 4])
def test_with_sixty_jobs_on_one_node_every_invariant_holds(seed: int) -> None:
    sim = random_run(seed, hard={Trouble.MANY_JOBS}, surely=True)
    assert len(sim.jobs()) > 60
