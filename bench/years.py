"""How quickly the simulator runs: a year of a large fleet should be a coffee break."""

import time
from datetime import timedelta
from functools import partial
from random import Random

from msgspec.structs import replace

from bench.figure import Figure, Line, Size
from sickbay.model.fault import Remedy
from sickbay.model.fleet import NodeId
from sickbay.model.policy import Policy
from sickbay.policy.load import load_policy
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import CLUSTER, Plan, Simulation

DAY = 86_400.0
PULSE = 300.0
PERIOD = 120.0
FAULTS = 5.0  # per thousand node-days
YEAR_NODES = 2_000
GOAL_MINUTES = 10.0
GOAL = YEAR_NODES * 365 / (GOAL_MINUTES * 60)
# What breaks, and what mends it: most are the program's own, few need another machine.
DEFECTS = (
    SimDefect(code="xid.31", cured_by=Remedy.RESTART_JOB),
    SimDefect(code="xid.13", cured_by=Remedy.RESTART_JOB),
    SimDefect(code="xid.94", cured_by=Remedy.RESTART_JOB),
    SimDefect(code="xid.74", cured_by=Remedy.RESET_GPU),
    SimDefect(code="xid.48", cured_by=Remedy.RESET_GPU),
    SimDefect(code="xid.119", cured_by=Remedy.REBOOT),
    SimDefect(code="xid.79", cured_by=Remedy.REBOOT),
    SimDefect(code="xid.64"),
)


def patient(policy: Policy) -> Policy:
    """With pulses and reads so far apart, deadlines that count them are longer: nobody is silent by mistake."""
    silence = replace(policy.silence, agent=timedelta(seconds=3 * PULSE), restart_deadline=timedelta(seconds=4 * PULSE))
    pace = replace(policy.pace, cordon_deadline=timedelta(seconds=10 * PERIOD))
    resume = replace(policy.resume, look_deadline=timedelta(seconds=2 * PULSE), stop_deadline=timedelta(minutes=20))
    return replace(policy, silence=silence, pace=pace, resume=resume)


def measure(nodes: int, days: float, seed: int = 1) -> tuple[float, Simulation]:
    """CPU seconds for so many days of a fleet that is busy and breaks now and then; and the simulation afterwards."""
    plan = Plan(
        nodes=nodes,
        cluster=ClusterRules(id=CLUSTER, period=PERIOD),
        rules=Timings(pulse=PULSE),
        limits=False,
        strict=False,
    )
    sim = Simulation(plan, seed=seed, policy=patient(load_policy("default")))
    rng = Random(seed)
    programme = Programme(steps=10**9, checkpoint_every=1000)
    gang = max(1, nodes // 20)
    for number in range(max(1, 9 * nodes // (10 * gang))):
        sim.submit(f"job-{number}", programme, nodes=gang, max_restarts=10_000)
    for _ in range(round(FAULTS * nodes * days / 1000)):
        node, defect = rng.choice(sim.nodes), rng.choice(DEFECTS)
        sim.scheduler.at(sim.scheduler.now + rng.uniform(0.0, days * DAY), partial(_strike, sim, node, defect))
    start = time.process_time()
    sim.run(days * DAY)
    return time.process_time() - start, sim


def _strike(sim: Simulation, node: NodeId, defect: SimDefect) -> None:
    if node in sim.world.seats:
        sim.world.strike(node, defect)


def run(size: Size) -> Figure:
    nodes = size.pick(full=YEAR_NODES, quick=500, tiny=10)
    days = size.pick(full=20, quick=5, tiny=1)
    seconds, sim = measure(nodes, days)
    rate = nodes * days / seconds
    minutes = YEAR_NODES * 365 / rate / 60
    closed = [i for i in sim.incidents(intake=True) if not i.open]
    return Figure(
        title="Simulated node-days per second",
        about=(
            f"The real engine over the store in memory, {nodes:,} nodes with eight GPUs, nine tenths of them in jobs,"
            f" {FAULTS:g} faults per thousand node-days, a pulse of each agent every {PULSE:.0f} s, a read of the"
            f" cluster every {PERIOD:.0f} s; policy: the default with deadlines stretched to those periods."
        ),
        lines=(
            Line("node-days per second", f"{rate:,.0f}", f"≥ {GOAL:,.0f}", rate >= GOAL),
            Line(f"a year of {YEAR_NODES:,} nodes, extrapolated", f"{minutes:.1f} min", f"≤ {GOAL_MINUTES:.0f} min",
                 minutes <= GOAL_MINUTES),
        ),
        notes=(
            f"Measured over {days} days ({seconds:.1f} s of one core, {len(closed)} incidents closed).",
            "The year is that rate times 365: that histories and the store in memory grow over a year is left out.",
        ),
    )  # fmt: skip
