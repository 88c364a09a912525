"""Random search: runs that nobody would think of, each decided by its seed alone. Whatever they do, invariants hold."""

from collections.abc import Collection
from datetime import timedelta
from random import Random

from msgspec.structs import replace

from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, JobId, NodeId, Withholding
from sickbay.model.incident import Phase
from sickbay.model.job import JobSpec, JobState
from sickbay.model.policy import Examine, FaultRule, Match, Mode, Policy, Trigger, Window
from sickbay.model.rows import WITHHOLDING, key_of
from sickbay.policy.load import load_policy
from sickbay.sim.chaos import Odds
from sickbay.sim.context import CLUSTER_CAN, ClusterRules, Timings
from sickbay.sim.hardness import LANDED, Dice, Trouble
from sickbay.sim.hardware import MachinePower
from sickbay.sim.invariants import Broken
from sickbay.sim.job_behaviour import OnDeath, Programme
from sickbay.sim.mishaps import mishap
from sickbay.sim.simulation import CLUSTER, POOL, Plan, Quarter, Simulation

ROUNDS = 8  # how often a person comes round before we say that it never comes to rest
STILL = 2 * 3600.0  # longer than any brake, look or back-off of the policy lasts
OTHER_CLUSTER, OTHER_POOL = "far", "infer"


class NotCalm(Broken):
    """Something is still open although nothing happens any more."""


def random_run(
    seed: int, *, limits: bool = True, hard: Collection[Trouble] = LANDED, surely: bool = False
) -> Simulation:
    """A run that the seed alone decides, to its end: whatever it does, every invariant must hold.

    A third of them have a cold host, a fifth two engines, a quarter checks on order, a seventh checks on schedule;
    each meets some of the troubles in `hard` (with `surely`, all of them).
    Raises Broken (an AssertionError) with the reason.
    """
    dice = Dice(seed, hard, surely=surely)
    rng, checks = dice.main, Random(-seed)
    sim = _fleet(dice, limits=limits)
    for _ in range(rng.randint(1, 6)):
        sim.run(rng.uniform(10, 1500))
        if sim.world.seats:
            mishap(dice, sim, rng.choice(list(sim.world.seats)))
        _bad_luck(rng, sim)
        if seed % 4 == 1:
            _check_up(checks, sim)
    _clear_up(sim)
    for _ in range(ROUNDS):
        if calm_within(sim, 8 * 3600):
            sim.run(60 + _slowest(sim))
            if sim.calm():  # a check on schedule may have found something meanwhile
                sim.invariants.at_rest()
                return sim
            continue
        sim.invariants.nobody_waits_for_the_dead()
        _mend_what_is_held(sim)
    raise NotCalm(
        f"does not come to rest: {_open_things(sim)} (seed {seed}, t={sim.scheduler.now:.1f})",
        "not_calm",
    )


# --- the fleet


def cloud_name(index: int) -> str:
    """What a node is called in EC2."""
    return f"ip-10-123-{index // 250}-{index % 250 + 4}.us-west-2.compute.internal"


def _fleet(dice: Dice, *, limits: bool) -> Simulation:
    rng, seed = dice.main, dice.seed
    nodes = rng.choice([1, 2, 3, 4, 6, 10])
    gpus = rng.choice([2, 8])
    first = _cluster(dice, CLUSTER)
    large, many = dice.meets(Trouble.LARGE, 0.01), dice.meets(Trouble.MANY_JOBS, 0.02)
    if large:
        nodes = dice.of(Trouble.LARGE).randint(300, 600)
    joins = rng.random() < 0.2
    connects = dice.meets(Trouble.FIRST_CONNECTION, 0.2)
    if connects and seed % 2:
        first = replace(first, checks_first=True)  # of those that idle, while others' jobs run
    plan = Plan(
        nodes=nodes,
        gpus=64 if many else gpus,
        linked=rng.random() < 0.7 and not many,
        odds=_odds(dice),
        cold=seed % 3 == 2 and not large,
        engines=2 if seed % 5 == 4 else 1,
        limits=limits,
        cluster=replace(first, checks_first=connects and seed % 2 == 0),
        intake=joins or connects,
        names=cloud_name if dice.meets(Trouble.LONG_NAMES, 0.3) or large else None,
        agentless=dice.of(Trouble.NO_AGENTS).choice([2, 3]) if dice.meets(Trouble.NO_AGENTS, 0.15) else 0,
        also=_quarters(dice, first, gpus),
        connect_after=120.0 if connects else 0.0,
        trusted=connects,
        skew=dice.of(Trouble.SKEW).uniform(-30, 30) if dice.meets(Trouble.SKEW, 0.7) else 0.0,
        one_name=dice.meets(Trouble.EQUAL_NAMES, 0.3),
        forgiving=dice.meets(Trouble.POISON, 0.15),
        rules=Timings(budget_holds=900.0) if dice.meets(Trouble.BUDGETS, 0.5) else Timings(),
    )
    sim = Simulation(plan, seed=seed, policy=_policy(dice))
    if dice.meets(Trouble.POISON):
        sim.invariants.poisoned = set()
    if connects:
        _running_already(dice, sim)
    _jobs(dice, sim)
    return sim


def _cluster(dice: Dice, name: str) -> ClusterRules:
    """Clusters differ in what they can do; the engine asks, and must be right with any of them."""
    rng = dice.main if name == CLUSTER else dice.of(Trouble.CLUSTERS)
    lacks = {c for c in (Capability.SEAT_KEPT, Capability.PLACE) if rng.random() < 0.25}
    blind = frozenset({Remedy.REPLACE}) if rng.random() < 0.25 else frozenset[Remedy]()
    rules = ClusterRules(id=name, capabilities=CLUSTER_CAN - lacks, blind_repairs=blind)
    if dice.meets(Trouble.SLOW_READS, 0.15):
        slow = dice.of(Trouble.SLOW_READS)
        rules = replace(rules, read_takes=slow.choice([0.0, 6.0, 20.0]), lag=slow.choice([0.5, 2.0, 15.0]))
    if dice.meets(Trouble.RELISTS, 0.3):
        rules = replace(rules, slice_size=dice.of(Trouble.RELISTS).choice([1, 2, 0]))
    if dice.meets(Trouble.BARE_SEATS, 0.4):
        rules = replace(rules, keeps_cordons=False)
    if dice.meets(Trouble.ORDERS, 0.4):
        rules = replace(rules, begins_within=dice.of(Trouble.ORDERS).choice([0.0, 55.0]))
    if dice.meets(Trouble.TELLS, 0.4):
        words = ["uid", "instance", "boot"]
        rules = replace(rules, tells=frozenset(w for w in words if dice.of(Trouble.TELLS).random() < 0.6))
    if dice.meets(Trouble.MIXED_POOLS, 0.5):
        rules = replace(rules, mixes_pools=True)
    return rules


def _quarters(dice: Dice, first: ClusterRules, gpus: int) -> tuple[Quarter, ...]:
    if not dice.meets(Trouble.CLUSTERS, 0.5):
        return ()
    rng = dice.of(Trouble.CLUSTERS)
    second = Quarter(cluster=first, pool=OTHER_POOL, nodes=rng.randint(1, 4), gpus=gpus)
    far = _cluster(dice, OTHER_CLUSTER)
    same_names = Quarter(cluster=far, pool=POOL, nodes=rng.randint(1, 4), gpus=gpus)
    both = Quarter(cluster=far, pool=OTHER_POOL, nodes=rng.randint(1, 3), gpus=gpus)
    return rng.choice([(second,), (same_names,), (second, same_names), (second, same_names, both)])


def _odds(dice: Dice) -> Odds:
    odds = Odds.rough()
    if dice.meets(Trouble.LATE_REPORTS, 0.3):
        odds = replace(odds, report_late=0.2, report_late_by=3 * 3600.0)
    return odds


def _policy(dice: Dice) -> Policy:
    policy = load_policy("default")
    if dice.seed % 7 == 3:
        policy = _scheduled(policy)
    if dice.meets(Trouble.WITHHOLDING, 0.4):
        rng = dice.of(Trouble.WITHHOLDING)
        if rng.random() < 0.3:
            window = Window(pool=rng.choice(["*", f"*{POOL}", POOL]), start="01:00", end="05:00", why="at night")
            policy = replace(policy, windows=(window,))
        if rng.random() < 0.3:
            asked = FaultRule(
                match=Match(fault=rng.choice(["xid.79", "xid.119"])), mode=rng.choice([Mode.OBSERVE, Mode.RECOMMEND])
            )
            policy = replace(policy, faults=(asked, *policy.faults))
    return policy


def _scheduled(policy: Policy) -> Policy:
    """Nodes are checked now and then, and when their fault is only watched."""
    often = Examine(on=Trigger.SCHEDULE, level=1, every=timedelta(minutes=20), deadline=timedelta(minutes=5))
    return replace(policy, examine=(*policy.examine, often, Examine(on=Trigger.FAULT, level=2)))


# --- jobs


def _jobs(dice: Dice, sim: Simulation) -> None:
    rng = dice.main
    nodes = sim.plan.nodes
    for number in range(rng.randint(1, 3)):
        programme = Programme(steps=rng.randint(500, 6000), checkpoint_every=200, on_death=rng.choice(list(OnDeath)))
        sim.submit(
            f"job-{number}",
            _listening(dice, programme),
            nodes=rng.randint(1, max(1, nodes - 1)),
            min_nodes=rng.choice([0, 1]),
            gpus_per_node=rng.choice([0, 1, 2]),
        )
    if dice.meets(Trouble.QUEUE, 0.4):
        _queue(dice.of(Trouble.QUEUE), sim)
    if dice.meets(Trouble.MANY_JOBS):
        for number in range(60):
            sim.submit(f"small-{number}", Programme(steps=6000), nodes=1, gpus_per_node=1, on=(sim.nodes[0],))
    for number, quarter in enumerate(sim.plan.also):
        where = {"cluster": quarter.cluster.id, "pool": quarter.pool}
        more = dice.of(Trouble.CLUSTERS)
        programme = _listening(dice, Programme(steps=more.randint(500, 4000)))
        sim.submit(f"also-{number}", programme, nodes=more.randint(1, quarter.nodes), **where)
    if dice.meets(Trouble.OTHERS_JOBS, 0.4):
        _others_jobs(dice.of(Trouble.OTHERS_JOBS), sim)


def _queue(rng: Random, sim: Simulation) -> None:
    """More jobs than there are nodes, of all sizes and ranks; some end by their own limit, some grow."""
    nodes = sim.plan.nodes
    for number in range(rng.randint(3, 9)):
        most = rng.randint(1, nodes)
        least = rng.choice([0, rng.randint(1, most)])
        sim.submit(
            f"queued-{number}",
            Programme(steps=rng.randint(100, 3000), checkpoint_every=200, listens=rng.random() < 0.3),
            nodes=most,
            min_nodes=least,
            grow=0 < least < most and rng.random() < 0.5,
            gpus_per_node=rng.choice([0, 0, 1, 2]),
            priority=rng.choice([0, 0, 0, -10, 10, rng.randint(-100, 100)]),
            time_limit=rng.choice([None, None, rng.uniform(300, 7200)]),
            on=(rng.choice(sim.nodes),) if most == 1 and rng.random() < 0.2 else (),
        )


def _listening(dice: Dice, programme: Programme) -> Programme:
    """Some save when they are asked to: at once, just in time, too late or never."""
    rng = dice.of(Trouble.SAVES)
    if not dice.meets(Trouble.SAVES, 0.5) or rng.random() < 0.2:
        return programme
    return replace(programme, listens=True, save_takes=rng.choice([2.0, 30.0, 240.0, 400.0, None]))


def _others_jobs(rng: Random, sim: Simulation, stem: str = "theirs") -> None:
    """Somebody else's jobs, some with a controller that restarts them, whether or not we stop them."""
    for number in range(rng.randint(1, 2)):
        quarter = rng.choice(sim.plan.quarters)
        spec = JobSpec(name=f"{stem}-{number}", cluster=quarter.cluster.id, pool=quarter.pool, nodes=1)
        sim.world.submit_to_cluster(
            JobId(spec.name),
            spec,
            Programme(steps=rng.randint(500, 4000)),
            native_delay=rng.choice([None, 10.0, 90.0]),
            native_after_stop=rng.random() < 0.3,
        )


def _running_already(dice: Dice, sim: Simulation) -> None:
    """Before we connect others' jobs run, and one node has work of its own."""
    rng = dice.of(Trouble.FIRST_CONNECTION)
    _others_jobs(rng, sim, "before")
    if sim.world.seats and rng.random() < 0.5:
        sim.world.other_scheduler_starts_work(rng.choice(list(sim.world.seats)))


# --- what befalls it besides


def _check_up(rng: Random, sim: Simulation) -> None:
    """Somebody has idle nodes checked."""
    if rng.random() < 0.5:
        sim.order("check", "", all="1", level=rng.choice("123"))
    elif sim.world.seats:
        sim.order("check", rng.choice(list(sim.world.seats)), level=rng.choice("123"))


def _bad_luck(rng: Random, sim: Simulation) -> None:
    """Crashes and lost answers on our own side, and an engine that stands still."""
    for _ in range(rng.randint(0, 4)):
        fates = ["crash_before", "crash_after", "unavailable", "lost_answer"]
        sim.fates[sim.points + rng.randint(1, 60)] = rng.choice(fates)
    if len(sim.hosts) > 1 and rng.random() < 0.5:
        rng.choice(sim.hosts).pause(rng.uniform(5, 120))


# --- the end


def _clear_up(sim: Simulation) -> None:
    """The weather ends: what no repair of ours can mend is mended, so that everything may come to rest."""
    sim.mischief.odds = Odds()
    for key in sorted({key for host in sim.hosts for key in host.store.damaged}):
        sim.mend_row(key)
    for node in list(sim.world.seats):
        sim.world.heal_partition(node)
        sim.world.open_path(node)
        sim.world.restore_agent(node)
    sim.order("unpause", "")
    found = sim.store.load([WITHHOLDING])[WITHHOLDING].row
    for row in found.rows if isinstance(found, Withholding) else ():
        if not row.pauses:
            sim.order("include", row.id)


def _mend_what_is_held(sim: Simulation) -> None:
    """A person puts another machine into each held seat and has it checked: held seats keep others waiting.

    Seats that nobody fills are given up, and with them the jobs that have become too large for what is left. What the
    policy only recommends, and what nobody there can check, he vouches for. A brake that lasts, since its nodes stay
    lost, he resets if he was told of it. A job that waits in a queue which does not have it any more, he stops if he
    was told that it waits: it began, ended and was purged between two reads. So he does with one that was given up
    and that its own controller runs again and again, on a node that only makes its program look wrong.
    """
    seats = sim.world.seats
    told = {notice.subject for _, notice in sim.world.notices if notice.event in {"brake", "job_waits", "job_failed"}}
    for brake in [b for b in sim.brakes() if b.tripped_at is not None and key_of(b) in told]:
        sim.order("brake_reset", key_of(brake).removeprefix("brake:"))
    here = [i for i in sim.incidents(intake=True) if i.open and i.node in seats]
    held = [i for i in here if i.phase is Phase.HELD]
    # A machine that was down before we connected is nobody's incident: he finds it when a job is said to wait.
    treated = {incident.node for incident in here}
    down = [s.id for s in seats.values() if s.power is MachinePower.DOWN and s.id not in treated]
    for node in (*(incident.node for incident in held), *(down if any(key.startswith("job:") for key in told) else ())):
        sim.world.operator_replaces(node)
    sim.run(1800)
    for incident in here:
        if incident.phase is Phase.SUSPECT or (incident.phase is Phase.HELD and _deaf(sim, incident.node)):
            sim.order("dismiss", incident.id)
        elif incident.phase is Phase.HELD:
            sim.order("confirm", incident.id)
    for node in sim.vacancies():
        sim.order("uncordon", node)
    for job in sim.jobs():
        mine = [s for s in seats.values() if s.cluster == job.spec.cluster and not s.agentless]
        pooled = [s for s in mine if s.pool == job.spec.pool.rpartition("/")[2]]
        place = job.spec.pool.rpartition("/")[2]
        gone = [n for n in job.spec.on if n not in seats or seats[n].agentless or seats[n].pool != place]
        # One that never ran wants all that it asked for, however often its start was called off.
        known = sim.world.workload.jobs.get(job.id)
        queues = job.state in {JobState.GATING, JobState.QUEUED}
        purged = queues and known is not None and known.purged and key_of(job) in told
        over = job.adopted and len(job.interruptions) >= sim.policy.resume.max_interruptions and key_of(job) in told
        if over:  # its owner ends it where it lives, also between two attempts
            sim.world.owner_cancels(job.id)
        if job.open and (purged or gone or (job.spec.least if job.interruptions else job.spec.most) > len(pooled)):
            sim.order("stop", job.id)


def _deaf(sim: Simulation, node: NodeId) -> bool:
    seat = sim.world.seats.get(node)
    return seat is not None and seat.agentless


def calm_within(sim: Simulation, seconds: float, tick: float = 60.0) -> bool:
    """Whether all is calm within so long, asked now and then: the question itself reads every row.

    Whoever is needed need not be awaited in vain: after two hours in which nothing happened nothing will.
    """
    end = sim.scheduler.now + seconds
    events, moved = -1, sim.scheduler.now
    while not (calm := sim.calm()) and sim.scheduler.now < end:
        happened = len(sim.world.chronicle.events)
        if happened != events or any(job.state is JobState.RUNNING for job in sim.jobs()):
            events, moved = happened, sim.scheduler.now
        elif sim.scheduler.now - moved >= STILL:
            break
        sim.run(min(tick, end - sim.scheduler.now))
    return calm


def _slowest(sim: Simulation) -> float:
    """How long until the last thing that happened has surely been read."""
    return max(4 * (c.period + c.read_takes + 4 * c.lag) for c in sim.world.ground.clusters.values())


def _open_things(sim: Simulation) -> str:
    incidents = [f"{i.id} {i.phase} ({i.wait.because if i.wait else 'no reason'})" for i in sim.incidents() if i.open]
    jobs = [f"{j.id} {j.state} ({j.wait.because if j.wait else 'no reason'})" for j in sim.jobs() if j.open]
    return "; ".join([*incidents, *jobs])
