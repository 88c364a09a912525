"""kill -9 on the real engine, on a real SQLite file, at every point of the standard incident.

The world survives in this process. A life ends in the middle of a commit, after it, before an effect, after it, between
two things it was asked for, or wherever a signal happens to find it; the next one opens the same file and goes on.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from shutil import rmtree

import pytest
from tests.support.apart_simulation import ApartSimulation, Nursery
from tests.support.thorough import THOROUGH

from sickbay.model.fault import Remedy
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.context import Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import Plan

pytestmark = pytest.mark.slow

# Everything is quick here: what is between two acts is of no interest.
QUICK = Timings(
    pulse=10.0, boot_takes=20.0, start_takes=3.0, stop_takes=1.0, check_takes=(5.0, 8.0, 10.0, 10.0), notice=8.0
)
ACTS = frozenset({"cordon", "uncordon", "reboot", "reset_gpu", "replace", "fenced", "drain", "start", "end"})
SLICES = 6
STRIDE = 1 if THOROUGH else 5  # of the points at which it dies
HOUR = 3600.0

Deeds = Counter[tuple[str, str]]


def deeds(sim: ApartSimulation) -> Deeds:
    """What was done to the world, however often and by whichever life."""
    # A look is asked for once and has two seconds: if its life ends before the call, the restart goes without it.
    assert len(sim.world.chronicle.of("look")) <= 1
    done = Counter((e.what, e.subject) for e in sim.world.chronicle.events if e.what in ACTS)
    # The subject of a check is its key, which depends on when it was decided.
    done.update((e.what, e.detail) for e in sim.world.chronicle.of("check.start"))
    return done


@contextmanager
def simulation(nursery: Nursery, at: Path, *halts: int) -> Iterator[ApartSimulation]:
    at.mkdir()
    sim = ApartSimulation(
        Plan(nodes=3, gpus=2, rules=QUICK), nursery=nursery, url=f"sqlite:///{at}/store.db", halts=list(halts)
    )
    try:
        yield sim
    finally:
        sim.close()
        rmtree(at)


def standard_incident(sim: ApartSimulation) -> None:
    """One node of a job on two breaks; in the end it is well again and the job has gone on elsewhere."""
    job = sim.submit("train", Programme(steps=25, checkpoint_every=5, load=2.0), nodes=2)
    assert sim.run_until(lambda: bool(sim.world.chronicle.of("train")), HOUR)
    (_, nodes) = sim.world.running(job)[0]
    sim.world.strike(nodes[0], SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
    assert sim.run_until(lambda: bool(sim.incidents()) and sim.calm(), HOUR), (sim.incidents(), sim.jobs())
    assert [incident.phase for incident in sim.incidents()] == [Phase.RELEASED]
    assert sim.job(job).state is JobState.COMPLETE
    assert len(sim.job(job).interruptions) == 1
    sim.run(10.0)
    sim.invariants.at_rest()


@pytest.fixture(scope="module")
def undisturbed(nursery: Nursery, quick_disk: Path) -> tuple[Deeds, int]:
    """What is done when nobody dies, and how many points there are to die at."""
    with simulation(nursery, quick_disk / "run") as sim:
        standard_incident(sim)
        assert sim.far.crashes == 0
        return deeds(sim), sim.far.points


def test_nothing_is_done_twice_when_nobody_dies(undisturbed: tuple[Deeds, int]) -> None:
    done, points = undisturbed
    assert done == {
        ("check.start", "level 1"): 2,
        ("start", "train#1"): 1,
        ("cordon", "sim/train-0000"): 1,
        ("end", "train#1"): 1,
        ("reboot", "sim/train-0000"): 1,
        ("start", "train#2"): 1,
        ("check.start", "level 2 pcie"): 1,
        ("uncordon", "sim/train-0000"): 1,
        ("end", "train#2"): 1,
    }
    assert points > 300  # half of them in the middle of a commit


@pytest.mark.parametrize("part", range(SLICES))
def test_killed_at_any_commit_or_effect_the_next_life_goes_on(
    nursery: Nursery, undisturbed: tuple[Deeds, int], quick_disk: Path, part: int
) -> None:
    done, points = undisturbed
    for point in range(1 + part, points + 1, SLICES * STRIDE):
        with simulation(nursery, quick_disk / "run", point) as sim:
            standard_incident(sim)
            assert sim.far.crashes == 1, f"nobody died at point {point}"
            assert deeds(sim) == done, f"killed at point {point}"


def test_killed_right_after_it_acknowledged_anything_the_next_life_goes_on(
    nursery: Nursery, undisturbed: tuple[Deeds, int], quick_disk: Path
) -> None:
    """What was acknowledged is not sent again: the file alone must know it. (A round acknowledges nothing.)"""
    for number in count(1, 1 if THOROUGH else 2):
        with simulation(nursery, quick_disk / "run") as sim:
            acknowledged = count(1)

            def dies(what: str, acknowledged: Iterator[int] = acknowledged, number: int = number) -> bool:
                return what != "round" and next(acknowledged) == number

            sim.far.after_each = dies
            standard_incident(sim)
            if sim.far.crashes == 0:
                assert number > 30
                return
            assert deeds(sim) == undisturbed[0], f"killed after acknowledgement {number}"


@pytest.mark.parametrize("points", [20, 25, 40, 60])
def test_killed_again_and_again_it_comes_to_the_same_end(
    nursery: Nursery, undisturbed: tuple[Deeds, int], quick_disk: Path, points: int
) -> None:
    """A life passes a few points and dies, whatever it is doing; each leaves a little more done."""
    with simulation(nursery, quick_disk / "run") as sim:
        sim.far.kill(*([points] * 200))
        standard_incident(sim)
        assert sim.far.crashes > 5
        assert deeds(sim) == undisturbed[0]


@pytest.mark.parametrize("every", [3, 7, 11])
def test_killed_wherever_the_signal_finds_it_the_next_life_goes_on(
    nursery: Nursery, undisturbed: tuple[Deeds, int], quick_disk: Path, every: int
) -> None:
    """Not at a point of our choice: the signal and the request are under way together."""
    with simulation(nursery, quick_disk / "run") as sim:
        asked = iter(range(1, 100_000))
        # Not for ever: a host that never reads its cluster twice in a row rightly sees no time pass.
        sim.far.during_each = lambda _what: next(asked) % every == 0 and sim.far.crashes < 30
        standard_incident(sim)
        assert sim.far.crashes > 5
        assert deeds(sim) == undisturbed[0]
