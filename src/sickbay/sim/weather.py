"""Weather: how often what breaks, as others have measured it, and random runs that nobody would think of.

Rates and shares are data with their sources. What a share looks like to a node (its code, its cure) is our reading of
it, since nobody publishes that.
"""

from datetime import timedelta
from random import Random
from typing import Literal, NamedTuple

from msgspec.structs import replace

from sickbay.knowledge.policy import load_policy
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, NodeId
from sickbay.model.incident import Phase
from sickbay.model.policy import Examine, Policy, Trigger
from sickbay.sim.ground import CLUSTER_CAN, ClusterRules
from sickbay.sim.hardware import Defect
from sickbay.sim.invariants import Broken
from sickbay.sim.mischief import Odds
from sickbay.sim.programme import NCCL_TAIL, OnDeath, Programme
from sickbay.sim.simulation import CLUSTER, Plan, Simulation
from sickbay.sim.timeline import JobAct, LoseNode, Moment, Strike, happen

# Failures per 1,000 node-days on Meta's two research clusters of A100 (Kokolis et al., "Revisiting Reliability in
# Large-Scale Machine Learning Research Clusters", 2024). Llama 3's 419 in 54 days on 2,048 nodes are 3.8, in between.
RSC_LOW, RSC_HIGH = 2.3, 6.5
TYPICAL = 4.4


class Cause(NamedTuple):
    """One row of the mix: how many of Llama 3's interruptions, and what it looks like here."""

    name: str
    cases: int
    looks: tuple[str, ...]  # codes; `lost`, `hang` and `bug` are no codes
    cured_by: Remedy = Remedy.REBOOT


# The 419 unexpected interruptions of Llama 3 405B by root cause ("The Llama 3 Herd of Models", 2024, table 5).
LLAMA_3 = (
    Cause("faulty GPU", 148, ("xid.79", "xid.74", "xid.119"), Remedy.REPLACE),
    Cause("HBM3 memory", 72, ("xid.48", "xid.64", "xid.95"), Remedy.RESET_GPU),
    Cause("software bug", 54, ("bug",)),
    Cause("network switch or cable", 35, ("lost", "hang")),
    Cause("host maintenance", 32, ("lost",)),
    Cause("GPU SRAM", 19, ("xid.48", "xid.95"), Remedy.RESET_GPU),
    Cause("GPU system processor", 17, ("xid.119",)),
    Cause("NIC", 7, ("hang",)),
    Cause("NCCL watchdog", 7, ("hang",)),
    Cause("silent data corruption", 6, ("xid.64",), Remedy.REPLACE),
    Cause("GPU thermal interface", 6, ("xid.79",), Remedy.REPLACE),
    Cause("SSD", 3, ("lost",), Remedy.REPLACE),
    Cause("power supply", 3, ("lost",), Remedy.REPLACE),
    Cause("server chassis", 2, ("lost",), Remedy.REPLACE),
    Cause("IO expansion board", 2, ("xid.79",), Remedy.REPLACE),
    Cause("dependency", 2, ("bug",)),
    Cause("CPU", 2, ("lost",), Remedy.REPLACE),
    Cause("system memory", 2, ("lost",), Remedy.REPLACE),
)
CURED_SHARE = 0.7  # of GPU faults that a reset or a reboot clears, at least for a while: ours, nobody publishes it


def weather(
    seed: int,
    *,
    nodes: list[str],
    jobs: list[str],
    days: float,
    rate: float = TYPICAL,
    mix: tuple[Cause, ...] = LLAMA_3,
) -> tuple[Moment, ...]:
    """Faults over so many days, `rate` per 1,000 node-days, in the order in which they come."""
    rng = Random(seed)
    per_second = rate * len(nodes) / 1000 / 86_400
    found: list[Moment] = []
    at = rng.expovariate(per_second) if per_second > 0 else days * 86_400
    while at < days * 86_400:
        cause = rng.choices(mix, weights=[row.cases for row in mix])[0]
        found.append(_what(rng, cause, timedelta(seconds=round(at, 1)), nodes, jobs))
        at += rng.expovariate(per_second)
    return tuple(found)


def _what(rng: Random, cause: Cause, at: timedelta, nodes: list[str], jobs: list[str]) -> Moment:
    look, node = rng.choice(cause.looks), rng.choice(nodes)
    match look:
        case "lost":
            return LoseNode(at=at, node=node, zombie=rng.random() < 0.2, back_by=cause.cured_by)
        case "hang" | "bug" if jobs:
            # A bug that strikes now and then: its log does not forbid to start the job again.
            do: Literal["hang_job", "crash_job"] = "hang_job" if look == "hang" else "crash_job"
            return JobAct(at=at, do=do, job=rng.choice(jobs), log=NCCL_TAIL)
        case "hang" | "bug":
            return Strike(at=at, node=node, code="xid.31", cured_by=Remedy.RESTART_JOB)
        case code:
            cures = (Remedy.RESET_GPU, Remedy.REBOOT)
            mild = cause.cured_by is not Remedy.REPLACE or rng.random() < CURED_SHARE
            cured_by = rng.choice(cures) if mild else Remedy.REPLACE
            return Strike(at=at, node=node, code=code, device=rng.randrange(8), cured_by=cured_by)


def drizzle(sim: Simulation, seed: int, *, every: float, jobs: list[str]) -> None:
    """From now on, and for ever, something breaks about every so many seconds: for a fleet that somebody watches."""
    rng = Random(seed)

    def fall() -> None:
        cause = rng.choices(LLAMA_3, weights=[row.cases for row in LLAMA_3])[0]
        nodes = [str(node) for node in sim.world.seats]
        if nodes:
            happen(sim, _what(rng, cause, timedelta(), nodes, jobs))
        sim.scheduler.after(rng.expovariate(1 / every), fall)

    sim.scheduler.after(every / 2, fall)


# --- random runs


MENDED = 8  # how often a person comes round before we say that it never comes to rest


class NotCalm(Broken):
    """Something is still open although nothing happens any more."""


def random_run(seed: int, *, limits: bool = True) -> Simulation:
    """A run that the seed alone decides, to its end: whatever it does, every invariant must hold.

    A third of them have a cold host, a fifth two engines, a quarter checks on order, a seventh checks on schedule.
    Raises Broken (an AssertionError) with the reason.
    """
    rng, checks = Random(seed), Random(-seed)
    sim = _fleet(rng, seed, limits=limits)
    for _ in range(rng.randint(1, 6)):
        sim.run(rng.uniform(10, 1500))
        if sim.world.seats:
            _mishap(rng, sim, rng.choice(list(sim.world.seats)))
        _bad_luck(rng, sim)
        if seed % 4 == 1:
            _check_up(checks, sim)
    _clear_up(sim)
    for _ in range(MENDED):
        if calm_within(sim, 8 * 3600):
            break
        _mend_what_is_held(sim)
    else:
        raise NotCalm(f"does not come to rest: {_open_things(sim)} (seed {seed}, t={sim.scheduler.now:.1f})")
    sim.run(60)
    sim.invariants.at_rest()
    return sim


def _fleet(rng: Random, seed: int, *, limits: bool) -> Simulation:
    nodes = rng.choice([1, 2, 3, 4, 6, 10])
    plan = Plan(
        nodes=nodes,
        gpus=rng.choice([2, 8]),
        linked=rng.random() < 0.7,
        odds=Odds.rough(),
        cold=seed % 3 == 2,
        engines=2 if seed % 5 == 4 else 1,
        limits=limits,
        cluster=_cluster(rng),
        intake=rng.random() < 0.2,
    )
    sim = Simulation(plan, seed=seed, policy=_scheduled(load_policy("default")) if seed % 7 == 3 else None)
    for number in range(rng.randint(1, 3)):
        programme = Programme(steps=rng.randint(500, 6000), checkpoint_every=200, on_death=rng.choice(list(OnDeath)))
        sim.submit(
            f"job-{number}",
            programme,
            nodes=rng.randint(1, max(1, nodes - 1)),
            min_nodes=rng.choice([0, 1]),
            gpus_per_node=rng.choice([0, 1, 2]),
        )
    return sim


def _scheduled(policy: Policy) -> Policy:
    """Nodes are checked now and then, and when their fault is only watched."""
    often = Examine(on=Trigger.SCHEDULE, level=1, every=timedelta(minutes=20), deadline=timedelta(minutes=5))
    return replace(policy, examine=(*policy.examine, often, Examine(on=Trigger.FAULT, level=2)))


def _check_up(rng: Random, sim: Simulation) -> None:
    """Somebody has idle nodes checked."""
    if rng.random() < 0.5:
        sim.order("check", "", all="1", level=rng.choice("123"))
    elif sim.world.seats:
        sim.order("check", rng.choice(list(sim.world.seats)), level=rng.choice("123"))


def _cluster(rng: Random) -> ClusterRules:
    """Clusters differ in what they can do; the engine asks, and must be right with any of them."""
    lacks = {c for c in (Capability.SEAT_KEPT, Capability.PLACE) if rng.random() < 0.25}
    blind = frozenset({Remedy.REPLACE}) if rng.random() < 0.25 else frozenset()
    return ClusterRules(id=CLUSTER, capabilities=CLUSTER_CAN - lacks, blind_repairs=blind)


def _mishap(rng: Random, sim: Simulation, node: NodeId) -> None:
    """One thing that befalls a node, its cluster, or the people and programs around it."""
    world, now = sim.world, sim.scheduler.now
    chances = {
        "strike": 50, "lose": 10, "agent": 5, "partition": 5, "deaf": 5, "outage": 5, "uncordon": 4, "reboot": 4,
        "order": 2, "clock": 2, "work": 3, "nothing": 5,
    }  # fmt: skip
    match rng.choices(list(chances), weights=list(chances.values()))[0]:
        case "strike":
            world.strike(node, _defect(rng))
        case "lose":
            world.lose_node(node, zombie=rng.random() < 0.5)
        case "agent":
            world.lose_agent(node)
        case "partition":
            world.partition(node)
        case "deaf":
            world.go_deaf(rng.uniform(10, 3000))
        case "outage":
            channel = rng.choice(["cluster:sim", "machines:sim", "checks:sim"])
            sim.mischief.outage(channel, now, now + rng.uniform(10, 3000), hangs=rng.random() < 0.5)
        case "uncordon":
            world.operator_uncordons(node)
        case "reboot":
            world.operator_reboots(node)
        case "order":
            sim.order(rng.choice(["cordon", "drain", "reboot", "replace", "uncordon"]), node)
        case "clock":
            sim.clock.jump(rng.choice([-86_400, 86_400]))
        case "work":
            world.other_scheduler_starts_work(node)
        case _:
            pass


def _defect(rng: Random) -> Defect:
    cures = [Remedy.RESTART_JOB, Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE, None]
    return Defect(
        code=rng.choice(["xid.79", "xid.48", "xid.119", "xid.31", "xid.74", "xid.64"]),
        device=rng.randrange(2),
        cured_by=rng.choice(cures),
        kill_after=rng.choice([0.1, 2.0]),  # before its line is written, or after
        recurs_after_boot=rng.choice([None, 30.0]),
    )


def _bad_luck(rng: Random, sim: Simulation) -> None:
    """Crashes and lost answers on our own side, and an engine that stands still."""
    for _ in range(rng.randint(0, 4)):
        fates = ["crash_before", "crash_after", "unavailable", "lost_answer"]
        sim.fates[sim.points + rng.randint(1, 60)] = rng.choice(fates)
    if len(sim.hosts) > 1 and rng.random() < 0.5:
        rng.choice(sim.hosts).pause(rng.uniform(5, 120))


def _clear_up(sim: Simulation) -> None:
    """The weather ends: what no repair of ours can mend is mended, so that everything may come to rest."""
    sim.mischief.odds = Odds()
    for node in list(sim.world.seats):
        sim.world.heal_partition(node)
        sim.world.open_path(node)
        sim.world.restore_agent(node)


def _mend_what_is_held(sim: Simulation) -> None:
    """A person puts another machine into each held seat and has it checked: held seats keep others waiting.

    Seats that nobody fills are given up, and with them the jobs that have become too large for what is left.
    """
    held = [i for i in sim.incidents(intake=True) if i.phase is Phase.HELD and i.node in sim.world.seats]
    for incident in held:
        sim.world.operator_replaces(incident.node)
    sim.run(1800)
    for incident in held:
        sim.order("confirm", incident.id)
    for node in sim.vacancies():
        sim.order("uncordon", node)
    for job in sim.jobs():
        if job.open and job.spec.least > len(sim.world.seats):
            sim.order("stop", job.id)


def calm_within(sim: Simulation, seconds: float, tick: float = 60.0) -> bool:
    """Whether all is calm within so long, asked now and then: the question itself reads every row."""
    end = sim.scheduler.now + seconds
    while not (calm := sim.calm()) and sim.scheduler.now < end:
        sim.run(min(tick, end - sim.scheduler.now))
    return calm


def _open_things(sim: Simulation) -> str:
    incidents = [f"{i.id} {i.phase} ({i.wait.because if i.wait else 'no reason'})" for i in sim.incidents() if i.open]
    jobs = [f"{j.id} {j.state} ({j.wait.because if j.wait else 'no reason'})" for j in sim.jobs() if j.open]
    return "; ".join([*incidents, *jobs])
