"""A soak: random runs over all cores, one seed a run. A run that fails ends nothing but itself."""

import logging
import signal
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import NamedTuple

from sickbay.sim.random_runs import random_run

AHEAD = 4  # seeds handed out for each worker before one of them has answered


class Soaked(NamedTuple):
    """One run: its seed, and why it failed; empty if it did not."""

    seed: int
    why: str = ""

    @property
    def repeat(self) -> str:
        return f"sickbay sim soak --from {self.seed} --runs 1"


def soak_one(seed: int) -> Soaked:
    try:
        random_run(seed)
    except Exception as error:  # noqa: BLE001 - whatever ends a run is what a soak looks for
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return Soaked(seed, " ".join(why.split()))
    return Soaked(seed)


def soak_all(first: int, runs: int, jobs: int) -> Iterator[Soaked]:
    """Each run as it ends, in no order. With one job, or one run, here; else in so many processes."""
    seeds = range(first, first + runs)
    if min(jobs, runs) == 1:
        yield from map(soak_one, seeds)
        return
    # Spawned: whatever threads this process has are none of a run's business.
    with ProcessPoolExecutor(min(jobs, runs), mp_context=get_context("spawn"), initializer=_begin_worker) as pool:
        under_way: dict[Future[Soaked], int] = {}
        try:
            for seed in seeds:
                under_way[pool.submit(soak_one, seed)] = seed
                if len(under_way) >= AHEAD * jobs:
                    yield from _ended(under_way)
            while under_way:
                yield from _ended(under_way)
        finally:
            pool.shutdown(cancel_futures=True)


def _ended(under_way: dict[Future[Soaked], int]) -> Iterator[Soaked]:
    done, _ = wait(under_way, return_when=FIRST_COMPLETED)
    for future in done:
        seed = under_way.pop(future)
        try:
            yield future.result()
        except BrokenProcessPool:
            # One of those under way did it: nobody can say which, and no worker is left to try the others.
            lost = sorted([seed, *under_way.values()])
            raise ChildProcessError(
                f"a worker died in one of the seeds {lost}; repeat them with: "
                f"sickbay sim soak --from {lost[0]} --runs {lost[-1] - lost[0] + 1} --jobs 1"
            ) from None


def _begin_worker() -> None:
    """An interrupt is the parent's to handle; nothing is said of a run but how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.disable(logging.CRITICAL)
