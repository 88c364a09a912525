"""Scenarios: a fleet, its jobs, a policy and a timeline; the named ones, and how one is put on stage.

The fields are the words of scenario files.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from sickbay.knowledge.yaml_places import unknown
from sickbay.model.errors import BadInput
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.model.noun import Noun
from sickbay.model.policy import Policy
from sickbay.policy.load import load_policy
from sickbay.ports.store import Store
from sickbay.sim.chaos import Odds
from sickbay.sim.context import ClusterRules, Timings
from sickbay.sim.job_behaviour import OnDeath, Programme
from sickbay.sim.simulation import CLUSTER, POOL, Plan, Simulation
from sickbay.sim.timeline import (
    CrashEngine,
    LoseNode,
    Moment,
    NodeMoment,
    OperatorOrder,
    Outage,
    PauseEngine,
    StrikeDevice,
    happen,
)
from sickbay.sim.weather import TYPICAL, weather

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LIMITS_UP_TO = 64  # nodes: above, speed counts for more than a store as strict as the strictest
AFTER_ALL = 120.0  # seconds of quiet after the last thing, so that late news can still come


class JobPlan(Noun, forbid_unknown_fields=True):
    """A training job of a scenario, and what its script does."""

    name: str
    at: timedelta = timedelta()
    nodes: int = 1
    on: tuple[str, ...] = ()  # named nodes
    gpus_per_node: int = 0
    min_nodes: int = 0
    max_restarts: int | None = None
    precheck: int | None = None
    reports_steps: bool = True
    reports_every: timedelta = timedelta(minutes=5)
    steps: int = 3000
    rate: float = 1.0  # steps in a second
    checkpoint_every: int = 100
    load: timedelta = MINUTE
    on_death: OnDeath = OnDeath.FAIL
    crashes_at: int | None = None
    submitted_to: Literal["sickbay", "cluster"] = "sickbay"
    native_restart: timedelta | None = None  # its own controller restarts it after so long


class Scenario(Noun, forbid_unknown_fields=True):
    name: str = ""
    about: str = ""
    nodes: int = 4
    gpus: int = 8
    linked: bool = True
    policy: str = "default"
    jobs: tuple[JobPlan, ...] = ()
    timeline: tuple[Moment, ...] = ()
    lasts: timedelta = msgspec.field(default=timedelta(hours=12), name="for")  # at most: it ends when all is calm
    cannot: tuple[Capability, ...] = ()  # what this site's cluster, machines and checks lack
    rough: bool = False  # calls are lost, late and doubled, reports too
    engines: int = 1
    cold: bool = False  # a host that forgets everything after each event
    newcomers: bool = False  # the nodes are new to us: each goes through its intake first
    weather: float | None = None  # faults per 1,000 node-days, besides the timeline


def stage(scenario: Scenario, seed: int = 0, *, policy: Policy | None = None, store: Store | None = None) -> Simulation:
    """The simulation with everything submitted and scheduled; nothing of it has happened yet."""
    fleet = scenario.weather is not None
    rules = Timings()
    can = ClusterRules(id=CLUSTER, period=15.0 if fleet else 5.0)
    cannot = frozenset(scenario.cannot)
    cluster = replace(
        can,
        capabilities=can.capabilities - cannot,
        machines=can.machines - cannot,
        checks=can.checks - cannot,
    )
    plan = Plan(
        nodes=scenario.nodes,
        gpus=scenario.gpus,
        linked=scenario.linked,
        cluster=cluster,
        rules=rules,
        odds=Odds.rough() if scenario.rough else Odds(),
        cold=scenario.cold,
        engines=scenario.engines,
        limits=scenario.nodes <= LIMITS_UP_TO,
        intake=scenario.newcomers,
    )
    sim = Simulation(plan, seed=seed, policy=policy or load_policy(scenario.policy), store=store)
    for job in scenario.jobs:
        sim.scheduler.after(job.at.total_seconds(), lambda job=job: _submit(sim, job))  # type: ignore[misc]
    for moment in moments(scenario, seed):
        sim.scheduler.after(moment.at.total_seconds(), lambda it=moment: happen(sim, it))  # type: ignore[misc]
    return sim


def moments(scenario: Scenario, seed: int) -> tuple[Moment, ...]:
    """The timeline, with the weather that the seed gives it."""
    if scenario.weather is None:
        return scenario.timeline
    names = [f"{POOL}-{n:04d}" for n in range(scenario.nodes)]
    faults = weather(
        seed,
        nodes=names,
        jobs=[job.name for job in scenario.jobs],
        days=scenario.lasts / DAY,
        rate=scenario.weather,
    )
    return (*scenario.timeline, *faults)


def perform(sim: Simulation, scenario: Scenario, seed: int, progress: Callable[[float], None] | None = None) -> None:
    """To its end: all has happened and all is calm, or its time is up. Raises Broken where an invariant breaks.

    `progress` hears how much of its time has passed, from 0 to 1.
    """
    begin, length = sim.scheduler.now, scenario.lasts.total_seconds()
    happened = [m.at for m in moments(scenario, seed)] + [job.at for job in scenario.jobs]
    busy_until = max(happened, default=timedelta()).total_seconds()
    tick = length / 500 if scenario.weather is not None else 60.0
    while (passed := sim.scheduler.now - begin) < length:
        sim.run(min(tick, length - passed))
        if progress is not None:
            progress((sim.scheduler.now - begin) / length)
        if scenario.weather is None and sim.scheduler.now - begin > busy_until + tick and sim.calm():
            break
    sim.run(AFTER_ALL)
    sim.invariants.at_rest()
    if progress is not None:
        progress(1.0)


def _submit(sim: Simulation, job: JobPlan) -> None:
    programme = Programme(
        steps=job.steps,
        rate=job.rate,
        checkpoint_every=job.checkpoint_every,
        load=job.load.total_seconds(),
        tell_every=job.reports_every.total_seconds(),
        on_death=job.on_death,
        crashes_at=job.crashes_at,
    )
    spec = {
        "nodes": job.nodes,
        "on": tuple(NodeId(name if "/" in name else f"{CLUSTER}/{name}") for name in job.on),
        "gpus_per_node": job.gpus_per_node,
        "min_nodes": job.min_nodes,
        "max_restarts": job.max_restarts,
        "precheck": job.precheck,
        "reports_steps": job.reports_steps,
    }
    if job.submitted_to == "sickbay":
        sim.submit(job.name, programme, **spec)
        return
    full = JobSpec(name=job.name, cluster=CLUSTER, pool=POOL, **spec)  # type: ignore[arg-type]
    delay = job.native_restart.total_seconds() if job.native_restart is not None else None
    sim.world.submit_to_cluster(JobId(job.name), full, programme, native_delay=delay)


# --- the named ones


def fleet_jobs(nodes: int) -> tuple[JobPlan, ...]:
    """One job on half of the fleet, one on a quarter, one on an eighth; the last eighth is spare. They never end."""
    sizes = {"large": nodes // 2, "middle": nodes // 4, "small": nodes // 8}
    return tuple(
        JobPlan(name=name, nodes=max(1, size), steps=10**9, checkpoint_every=1800, load=5 * MINUTE)
        for name, size in sizes.items()
        if size or name == "large"
    )


_JOB = JobPlan(name="train", nodes=2)
_HURT = StrikeDevice(at=10 * MINUTE, job="train", code="xid.79", cured_by=Remedy.REBOOT)


def _one_fault(name: str, about: str, strike: StrikeDevice, **more: object) -> Scenario:
    return replace(Scenario(name=name, about=about, jobs=(_JOB,), timeline=(strike,)), **more)


_ALL = (
    _one_fault("standard", "A GPU falls off the bus under a job of two nodes; a reboot cures it.", _HURT),
    _one_fault(
        "cured-by-reset",
        "An uncorrectable memory error; a reset of the GPU cures it.",
        replace(_HURT, code="xid.48", cured_by=Remedy.RESET_GPU),
    ),
    _one_fault(
        "cured-by-replace",
        "Reset and reboot do not help; another machine does.",
        replace(_HURT, code="xid.48", cured_by=Remedy.REPLACE, returns_after_boot=timedelta(seconds=30)),
    ),
    _one_fault(
        "cured-by-nothing",
        "A site that cannot replace machines, and a fault that nothing else cures: the node is held for a person.",
        replace(_HURT, cured_by=Remedy.REPLACE),
        cannot=(Capability.REPLACE,),
    ),
    Scenario(
        name="no-spare",
        about="The job needs every node of its pool: it waits while its node is repaired, and spends no restart.",
        nodes=2,
        jobs=(_JOB,),
        timeline=(_HURT,),
    ),
    Scenario(
        name="storm",
        about="One code on half of the nodes at once: nothing is quarantined for it until a check has confirmed each.",
        nodes=16,
        jobs=(JobPlan(name="train", nodes=4, steps=9000),),
        timeline=tuple(
            StrikeDevice(at=10 * MINUTE, node=f"{POOL}-{n:04d}", code="xid.119", cured_by=Remedy.RESET_GPU)
            for n in range(4, 12)
        ),
    ),
    Scenario(
        name="silence",
        about="A node falls silent, its ranks go on where nobody can reach them: fenced before anything restarts.",
        jobs=(_JOB,),
        timeline=(LoseNode(at=10 * MINUTE, job="train", zombie=True),),
    ),
    Scenario(
        name="agent-lost",
        about="Only the agent dies: it is restarted through the cluster, and the job never notices.",
        jobs=(_JOB,),
        timeline=(NodeMoment(at=10 * MINUTE, do="lose_agent", job="train"),),
    ),
    Scenario(
        name="application-bug",
        about="The script fails at the same step each time: no node is blamed, and restarts have an end.",
        jobs=(replace(_JOB, crashes_at=750),),
    ),
    Scenario(
        name="native-restart",
        about="A job that others submitted and whose own controller restarts it: recorded and counted, not fought.",
        jobs=(replace(_JOB, submitted_to="cluster", native_restart=timedelta(seconds=20)),),
        timeline=(_HURT,),
    ),
    Scenario(
        name="outage",
        about="The cluster hangs for two hours in the middle of it: nothing has run out afterwards.",
        jobs=(_JOB,),
        timeline=(_HURT, Outage(at=11 * MINUTE, of="cluster", lasts=2 * HOUR, hangs=True)),
    ),
    Scenario(
        name="two-engines",
        about="Two engines, lost and doubled calls; the leader stands still, then crashes, in the middle of it.",
        jobs=(_JOB,),
        rough=True,
        engines=2,
        timeline=(
            _HURT,
            PauseEngine(at=10 * MINUTE, lasts=2 * MINUTE),
            CrashEngine(at=14 * MINUTE, engine=1),
            CrashEngine(at=16 * MINUTE, engine=0),
        ),
    ),
    Scenario(
        name="held",
        about="Two repairs at once where one seat may lack: the second waits; a person releases what is held.",
        nodes=4,
        cannot=(Capability.REPLACE,),
        jobs=(_JOB,),
        timeline=(
            replace(_HURT, cured_by=Remedy.REPLACE),
            StrikeDevice(at=20 * MINUTE, node=f"{POOL}-0003", code="xid.48", cured_by=Remedy.RESET_GPU),
            NodeMoment(at=3 * HOUR, do="others_replace", node=f"{POOL}-0000"),
            OperatorOrder(at=4 * HOUR, verb="confirm", node=f"{POOL}-0000"),
        ),
    ),
    Scenario(
        name="fleet",
        about="A fleet over days with the fault rates and causes that Meta has published (--nodes, --days).",
        nodes=128,
        jobs=fleet_jobs(128),
        lasts=7 * DAY,
        weather=TYPICAL,
    ),
)
NAMED: dict[str, Scenario] = {scenario.name: scenario for scenario in _ALL}


def named(name: str) -> Scenario:
    if name not in NAMED:
        raise BadInput(f"{unknown('scenario', name, NAMED)}, or a path to a .yaml file")
    return NAMED[name]


def sized(scenario: Scenario, *, nodes: int | None = None, days: float | None = None) -> Scenario:
    """The scenario with another number of nodes or another length; a fleet's jobs grow with it."""
    if nodes is not None and scenario is NAMED["fleet"]:
        scenario = replace(scenario, jobs=fleet_jobs(nodes))
    if nodes is not None:
        least = nodes_needed(scenario)
        if nodes < least:
            raise BadInput(f"--nodes {nodes}: {scenario.name} needs {least} or more")
        scenario = replace(scenario, nodes=nodes)
    if days is not None:
        scenario = replace(scenario, lasts=timedelta(days=days))
    return scenario


def nodes_needed(scenario: Scenario) -> int:
    """By its largest job, and by the nodes that its timeline names."""
    asked = [getattr(moment, "node", "") for moment in scenario.timeline]
    asked += [name for job in scenario.jobs for name in job.on]
    numbers = [int(name.rpartition("-")[2]) + 1 for name in asked if name.rpartition("-")[2].isdigit()]
    return max([1, *numbers, *(job.nodes for job in scenario.jobs)])
