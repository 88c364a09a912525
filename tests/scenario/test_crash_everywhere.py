"""A crash and a lost answer at every step of the standard incident: the end is the same.

Every step meets some of the fates, by `make test-thorough` each of them.
"""

from functools import cache

import pytest
from tests.support.thorough import THOROUGH

from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.incident import Phase
from sickbay.model.job import JobState
from sickbay.sim.context import Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import Plan, Simulation

pytestmark = pytest.mark.slow

QUICK = Timings(pulse=10.0, boot_takes=30.0, check_takes=(5.0, 10.0, 10.0, 10.0), start_takes=3.0, stop_takes=2.0)
FATES = ("crash_before", "crash_after", "lost_answer", "unavailable")
STRIDE = 1 if THOROUGH else 5  # less than there are combinations of fate and host: no step is left out


def standard(*, cold: bool, fates: dict[int, str] | None = None, calls: dict[int, str] | None = None) -> Simulation:
    """One node of a two-node job breaks, is repaired by a reboot and comes back; the job goes on elsewhere."""
    sim = Simulation(Plan(nodes=4, gpus=2, rules=QUICK, cold=cold), seed=7)
    sim.fates = {sim.points + n: fate for n, fate in (fates or {}).items()}
    for n, fate in (calls or {}).items():
        sim.mischief.force(sim.mischief.calls + n, fate)
    job = sim.submit("train", Programme(steps=300, checkpoint_every=20, load=5.0), nodes=2)
    assert sim.run_until(lambda: bool(sim.jobs()) and sim.job(job).state is JobState.RUNNING, 3600)
    sim.world.strike(min(sim.job(job).claim), SimDefect(code="xid.79", cured_by=Remedy.REBOOT))
    assert sim.run_until(lambda: bool(sim.incidents()) and sim.calm(), 4 * 3600), _open(sim)
    sim.run(60)
    sim.invariants.at_rest()
    return sim


def _open(sim: Simulation) -> str:
    incidents = [(i.id, i.phase, i.wait) for i in sim.incidents() if i.open]
    return f"still open: {incidents} {[(j.id, j.state, j.wait) for j in sim.jobs() if j.open]}"


@cache
def _length(*, cold: bool) -> tuple[int, int]:
    """How many places and calls the undisturbed run has."""
    before = Simulation(Plan(nodes=4, gpus=2, rules=QUICK, cold=cold), seed=7)
    sim = standard(cold=cold)
    return sim.points - before.points, sim.mischief.calls - before.mischief.calls


def _healed(sim: Simulation) -> None:
    (incident,) = sim.incidents()
    job = sim.job(JobId("train"))
    assert incident.phase is Phase.RELEASED
    assert job.state is JobState.COMPLETE
    assert job.attempt == 2
    reboots = [e for e in sim.world.chronicle.events if e.what in {"reboot", "reset_gpu", "replace"}]
    assert [e.what for e in reboots] == ["reboot"], "one illness that a reboot cures takes one reboot"
    assert not sim.world.seat(NodeId(incident.node)).cordons


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("fate", FATES)
def test_the_standard_incident_survives_trouble_at_every_step_of_ours(fate: str, *, cold: bool) -> None:
    places, _ = _length(cold=cold)
    assert places > 40
    first = 1 + (FATES.index(fate) + cold) % STRIDE
    for place in range(first, places + 1, STRIDE):
        sim = standard(cold=cold, fates={place: fate})
        try:
            _healed(sim)
        except AssertionError as wrong:
            raise AssertionError(f"{fate} at place {place}: {wrong}") from wrong


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("fate", ["lost_before", "lost_after", "doubled", "late"])
def test_the_standard_incident_survives_every_single_call_going_wrong(fate: str, *, cold: bool) -> None:
    _, calls = _length(cold=cold)
    assert calls > 8
    for call in range(1, calls + 1):
        sim = standard(cold=cold, calls={call: fate})
        try:
            _healed(sim)
        except AssertionError as wrong:
            raise AssertionError(f"call {call} {fate}: {wrong}") from wrong


def test_a_crash_that_happens_twice_in_a_row_is_survived_as_well() -> None:
    places, _ = _length(cold=False)
    for place in range(1, places, 3 if THOROUGH else 5):
        _healed(standard(cold=False, fates={place: "crash_after", place + 1: "crash_before", place + 2: "lost_answer"}))


def test_cold_and_warm_hosts_end_in_the_same_place() -> None:
    warm, cold = standard(cold=False), standard(cold=True)
    assert [(i.phase, [s.phase for s in i.stages], [t.rung for t in i.tries]) for i in warm.incidents()] == [
        (i.phase, [s.phase for s in i.stages], [t.rung for t in i.tries]) for i in cold.incidents()
    ]
    assert [(j.state, j.attempt) for j in warm.jobs()] == [(j.state, j.attempt) for j in cold.jobs()]
