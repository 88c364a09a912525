"""Mishaps of a random run: what befalls a node, its cluster, and the people and programs around it."""

from collections.abc import Callable
from functools import partial
from random import Random

import msgspec
from msgspec.structs import replace

from sickbay.model.checkup import Tested, Verdict
from sickbay.model.facts import (
    Checked,
    Checkpointed,
    Hung,
    Inventory,
    Looked,
    Observed,
    RankEnded,
    ResetDone,
    Stepped,
    Wrote,
)
from sickbay.model.fault import Remedy
from sickbay.model.fleet import Capability, Device, Incarnation, JobId, NodeId
from sickbay.model.incident import Incident, Phase
from sickbay.model.job import JobState
from sickbay.model.protocol import PROTO, Answered, CommandResult, Item, ItemNews, Measured, Report
from sickbay.sim.hardness import Dice, Trouble
from sickbay.sim.hardware import SimDefect, SimSeat
from sickbay.sim.job_behaviour import Programme
from sickbay.sim.simulation import Simulation

CODES = ["xid.79", "xid.48", "xid.119", "xid.31", "xid.74", "xid.64"]
CURES = [Remedy.RESTART_JOB, Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE, None]
# What the protocol admits in a field, besides what makes sense.
ODD: list[str | int] = ["nan", "inf", "-inf", "-1", "1e309", "", "0x10", "seven", 10**12, -5, 0]
FLOATS = [0.0, 1.0, -1.0, 1e9, -1e9, 1e18, 1e308, -1e308, 5e-324]
KINDS = ["xid", "sxid", "node.going_down", "gpu.lost", "thermal", "no.such.kind", ""]


def mishap(dice: Dice, sim: Simulation, node: NodeId) -> None:
    """One thing that every run may meet, then one of each trouble that this run meets."""
    _common(dice.main, sim, node)
    for trouble, befall in TROUBLES.items():
        if dice.meets(trouble) and sim.world.seats:
            rng = dice.of(trouble)
            befall(rng, sim, rng.choice(list(sim.world.seats)))


def _common(rng: Random, sim: Simulation, node: NodeId) -> None:
    world, now = sim.world, sim.scheduler.now
    chances = {
        "strike": 50, "lose": 10, "agent": 5, "partition": 5, "deaf": 5, "outage": 5, "uncordon": 4, "reboot": 4,
        "order": 2, "clock": 2, "work": 3, "nothing": 5,
    }  # fmt: skip
    match rng.choices(list(chances), weights=list(chances.values()))[0]:
        case "strike":
            world.strike(node, defect(rng))
        case "lose":
            world.lose_node(node, zombie=rng.random() < 0.5)
        case "agent":
            world.lose_agent(node)
        case "partition":
            world.partition(node)
        case "deaf":
            world.go_deaf(rng.uniform(10, 3000))
        case "outage":
            channel = f"{rng.choice(['cluster', 'machines', 'checks'])}:{world.seat(node).cluster}"
            sim.mischief.outage(channel, now, now + rng.uniform(10, 3000), hangs=rng.random() < 0.5)
        case "uncordon":
            world.operator_uncordons(node)
        case "reboot":
            world.operator_reboots(node)
        case "order":
            sim.order(rng.choice(["cordon", "drain", "reboot", "replace", "uncordon"]), node)
        case "clock":
            sim.jump(rng.choice([-86_400, 86_400]))
        case "work":
            world.other_scheduler_starts_work(node)
        case _:
            pass


def defect(rng: Random) -> SimDefect:
    return SimDefect(
        code=rng.choice(CODES),
        device=rng.randrange(2),
        cured_by=rng.choice(CURES),
        kill_after=rng.choice([0.1, 2.0]),  # before its line is written, or after
        recurs_after_boot=rng.choice([None, 30.0]),
    )


def _if_there(sim: Simulation, node: NodeId, act: Callable[[], None]) -> None:
    if node in sim.world.seats:
        act()


def _soon(rng: Random, sim: Simulation, most: float, act: Callable[[], object]) -> None:
    """In the middle of what follows, not before it."""
    sim.scheduler.after(rng.uniform(0.0, most), act)


# --- one function for each trouble


def _moves(rng: Random, sim: Simulation, node: NodeId) -> None:
    cluster = sim.world.seat(node).cluster
    pools = sorted({seat.pool for seat in sim.world.seats.values() if seat.cluster == cluster} | {"spare"})
    pool = rng.choice(pools)

    def move() -> None:
        if node in sim.world.seats and sim.world.seat(node).pool != pool:
            sim.world.operator_moves(node, pool)

    _soon(rng, sim, 600.0, move)


def _ambush(rng: Random, sim: Simulation, looks: int) -> None:
    """Somebody reboots a node after its check has passed, just when the cluster takes no release."""

    def look(left: int) -> None:
        closing = [i for i in sim.incidents() if i.open and i.closing is Phase.RELEASED and i.node in sim.world.seats]
        if closing:
            now, incident = sim.scheduler.now, closing[0]
            sim.mischief.outage(f"writes:{incident.cluster}", now, now + rng.uniform(60, 600))
            sim.world.operator_reboots(incident.node)
        elif left:
            sim.scheduler.after(1.0, lambda: look(left - 1))

    look(looks)


def _half_out(rng: Random, sim: Simulation, node: NodeId) -> None:
    """Often just when a node falls silent: what is written down then is sent when it is long back."""
    if rng.random() < 0.3:
        _ambush(rng, sim, 1800)
        return
    now, cluster = sim.scheduler.now, sim.world.seat(node).cluster
    channel = f"{rng.choice(['writes', 'reads'])}:{cluster}"
    sim.mischief.outage(channel, now, now + rng.uniform(30, 1200), hangs=rng.random() < 0.3)
    for other in rng.sample(list(sim.world.seats), k=min(2, len(sim.world.seats))):
        if rng.random() < 0.5:
            sim.world.partition(other)
            sim.world.lose_agent(other)
            heal = rng.uniform(60, 900)
            sim.scheduler.after(heal, partial(_if_there, sim, other, partial(_back, sim, other)))


def _back(sim: Simulation, node: NodeId) -> None:
    sim.world.heal_partition(node)
    sim.world.restore_agent(node)


def _bare_seats(rng: Random, sim: Simulation, node: NodeId) -> None:
    how = rng.choice(["replace", "delete", "return"])

    def act() -> None:
        if node not in sim.world.seats:
            return
        match how:
            case "replace":
                sim.world.operator_replaces(node)
            case "delete" if len(sim.world.seats) > 2:
                sim.world.operator_deletes(node)
            case _:
                sim.world.operator_returns(node, rng.uniform(1, 300), same_machine=rng.random() < 0.5)

    if rng.random() < 0.7:
        sim.world.strike(node, defect(rng))  # it is being treated then
    _soon(rng, sim, 600.0, act)


def _registered_anew(rng: Random, sim: Simulation, node: NodeId) -> None:
    if rng.random() < 0.7:
        sim.world.strike(node, defect(rng))
    _soon(rng, sim, 600.0, partial(_if_there, sim, node, lambda: sim.world.operator_registers_anew(node)))


def _forgotten(rng: Random, sim: Simulation, node: NodeId) -> None:
    """Mostly before anybody has fenced it. After an hour the machine goes, too, if it was not in touch meanwhile."""
    busy = [seat.id for seat in sim.world.seats.values() if seat.holders]
    node = rng.choice(busy) if busy else node
    sim.world.lose_node(node, zombie=True)

    def at_last() -> None:
        if sim.world.seat(node).forgotten:
            sim.world.operator_deletes(node)

    _soon(rng, sim, 150.0, partial(_if_there, sim, node, lambda: sim.world.operator_forgets(node)))
    sim.scheduler.after(3600.0, partial(_if_there, sim, node, at_last))


def _late_reports(rng: Random, sim: Simulation, node: NodeId) -> None:
    """A line leaves the node, and the node is rebooted more than once before it arrives; or a bare sign of life."""
    sim.world.write_line(node, rng.choice(CODES))
    sim.world.agents.echo(sim.world.seat(node), rng.uniform(10, 3 * 3600))

    def reboot() -> None:
        if node in sim.world.seats:
            sim.world.operator_reboots(node)

    for n in range(rng.randint(0, 2)):
        sim.scheduler.after(60.0 + 600.0 * n, reboot)


def _early_words(rng: Random, sim: Simulation, node: NodeId) -> None:
    seat = sim.world.seat(node)
    seat.next_defects.append(defect(rng))
    if rng.random() < 0.7:
        sim.world.operator_replaces(node)


def _odd_values(rng: Random, sim: Simulation, node: NodeId) -> None:
    seat = sim.world.seat(node)
    names = ["number", "device", "seconds", "count", "check", "link"]
    for _ in range(rng.randint(1, 3)):
        fields = {rng.choice(names): rng.choice([*ODD, 79, 48]) for _ in range(rng.randint(0, 3))}
        text = rng.choice(
            ["", "NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.", "x" * 450_000, "\0\udcff"[:1]]
        )
        _say(sim, seat, Observed(
            node=seat.id, kind=rng.choice(KINDS), fields=fields, text=text, incarnation=seat.incarnation,
            count=rng.choice([1, 0, -1, 500, 10**9]),
        ))  # fmt: skip


def _say(sim: Simulation, seat: SimSeat, news: Observed) -> None:
    seat.seq += 1
    sim.world.agents.say(seat, news, f"{seat.incarnation.boot_id}:odd:{seat.seq}")


def _odd_reports(rng: Random, sim: Simulation, node: NodeId) -> None:
    """An agent says anything that can be decoded, in any order: refused or taken, it harms nobody."""
    if not sim.world.seat(node).speaking:
        return  # a machine that is still booting does not name the boot to come; where nobody speaks nobody is missed
    for _ in range(rng.randint(1, 4)):
        report = msgspec.json.decode(msgspec.json.encode(odd_report(rng, sim, node)), type=Report)
        for host in sim.hosts:
            host.report(report)


def odd_report(rng: Random, sim: Simulation, node: NodeId) -> Report:
    """Its incarnation is the present one, or one that never was: what it says of the hardware is not a lie."""
    seat = sim.world.seat(node)
    first = rng.choice([1, 1, 1, 0, 10**12, 2**62])
    news = [_odd_item(rng, sim, seat) for _ in range(rng.randint(0, 4))]
    numbers = [first + n for n in range(len(news))]
    if rng.random() < 0.1:
        rng.shuffle(numbers)
    return Report(
        proto=rng.choice([PROTO, PROTO, PROTO, PROTO, 0, 2**31]),
        node=node,
        instance_id=rng.choice([seat.voice.instance_id, ""]),
        boot_id=seat.voice.boot_id,
        agent_run=rng.choice(["run", "", "r" * 10_000]),
        first_seq=first,
        mono_now=rng.choice(FLOATS),
        wall_now=rng.choice(FLOATS),
        watermark=rng.choice(FLOATS),
        stream=rng.choice(["odd", "", "s" * 10_000]),
        items=tuple(
            Item(
                seq=seq,
                mono=rng.choice(FLOATS),
                news=each,
                source=rng.choice(["", "kmsg", "k" * 5_000]),
                source_seq=rng.choice([None, 2**62, -1]),
            )
            for seq, each in zip(numbers, news, strict=True)
        ),
    )


def _odd_item(rng: Random, sim: Simulation, seat: SimSeat) -> ItemNews:
    """Of any kind. What would be a false proof (a passed check, a reset, a step of the present attempt) names nothing
    that anybody waits for: against an agent that lies about its own hardware nobody can hold.
    """
    text = rng.choice(["", "x" * 300_000, "\0\x1b[31m", "é" * 3_000])
    who = rng.choice([seat.voice, Incarnation(), Incarnation(boot_id="b" * 9_000)])
    job = JobId(rng.choice([*(job.id for job in sim.jobs()), "no-such-job", "", "j" * 9_000]))
    number = rng.choice([0, -1, -(2**63), 2**63 - 1, 10**12])
    device = Device(index=rng.choice([0, -1, 2**40]), serial=rng.choice(["", "s" * 9_000]))
    tests = tuple(Tested(name=text, verdict=Verdict("odd"), because=text) for _ in range(rng.choice([0, 1, 300])))
    values: list[str | int] = [number, text, "nan"]
    fields = {rng.choice(["number", "device", "seconds", text]): rng.choice(values)}
    match rng.randrange(11):
        case 0:
            kind = rng.choice([*KINDS, text])
            return Observed(
                node=seat.id, kind=kind, fields=fields, text=text, count=number, last_words=who is not seat.voice
            )
        case 1:
            same = tuple(seat.devices)
            return Inventory(devices=rng.choice([same, (), (*same, device)]), linked=rng.choice([None, seat.linked]))
        case 2:
            return Checked(
                check=text,
                node=seat.id,
                verdict=Verdict(rng.choice(["pass", "odd", ""])),
                incarnation=who,
                level=number,
                tests=tests,
            )
        case 3:
            return Looked(look=text, node=seat.id, incarnation=who, text=text)
        case 4:
            return ResetDone(key=text, node=seat.id, incarnation=who)
        case 5:
            loss = rng.choice([None, *FLOATS])
            return Stepped(job=job, attempt=number, step=number, resumed_from=number, skipped=(text,) * 3, loss=loss)
        case 6:
            if number % 2:
                return Wrote(job=job, attempt=number, text=text)
            return RankEnded(job=job, attempt=number, rank=number, exit_code=number, why=text, tail=text)
        case 7:
            return Hung(job=job, attempt=number, because=text)
        case 8:
            return Checkpointed(job=job, attempt=number, saved=number, failed=text, busy=text, done=number, of=-number)
        case 9:
            return Answered(command=text, result=CommandResult(rng.choice(["done", "refused", "odd"])), text=text)
        case _:
            return Measured(values={text[:200]: rng.choice(FLOATS)})


def _poison(rng: Random, sim: Simulation, node: NodeId) -> None:
    """An open incident's or job's row is damaged, and comes back from a backup later."""
    if rng.random() < 0.7:
        sim.world.strike(node, defect(rng))

    def damage() -> None:
        found = list(sim.invariants.witness.open)
        if found:
            sim.damage(rng.choice(found), rng.uniform(120, 3000))

    _soon(rng, sim, 300.0, damage)


def _budgets(rng: Random, sim: Simulation, node: NodeId) -> None:
    if sim.world.other_scheduler_starts_work(node) and rng.random() < 0.6:
        _soon(rng, sim, 60.0, partial(_if_there, sim, node, lambda: sim.world.strike(node, defect(rng))))


def _orders(rng: Random, sim: Simulation, node: NodeId) -> None:
    """While something is being treated a person changes his mind, sometimes in one breath."""
    if rng.random() < 0.7:
        sim.world.strike(node, defect(rng))
    if rng.random() < 0.5:
        _change_of_mind(rng, sim, 300)

    def say() -> None:
        for _ in range(rng.choice([1, 1, 2, 3])):
            found = [i for i in sim.incidents(intake=True) if i.open]
            _one_order(rng, sim, node, found)

    for _ in range(rng.randint(1, 3)):
        _soon(rng, sim, 900.0, say)


def _change_of_mind(rng: Random, sim: Simulation, looks: int) -> None:
    """Just when a repair has been asked for, its incident is dismissed, and a job is submitted for that very node."""

    def look(left: int) -> None:
        found = [i for i in sim.incidents() if i.phase is Phase.REPAIRING and i.node in sim.world.seats]
        if found and rng.random() < 0.5:
            incident, seat = found[0], sim.world.seats[found[0].node]
            sim.order("dismiss", incident.id)
            where: dict[str, object] = {"cluster": seat.cluster, "pool": seat.pool, "on": (seat.id,), "precheck": 0}
            sim.submit(f"eager-{incident.id}", Programme(steps=500), nodes=1, **where)
        elif left:
            sim.scheduler.after(2.0, lambda: look(left - 1))

    look(looks)


def _one_order(rng: Random, sim: Simulation, node: NodeId, found: list[Incident]) -> None:
    if found and rng.random() < 0.8:
        sim.order(rng.choice(["dismiss", "hold", "confirm", "escalate"]), rng.choice(found).id)
    else:
        verb = rng.choice(["cordon", "drain", "reset", "reboot", "replace", "uncordon"])
        sim.order(verb, node, now=rng.random() < 0.3)


def _withholding(rng: Random, sim: Simulation, node: NodeId) -> None:
    """A person pauses while something is under way, and goes on later; often just when it cannot be sent."""
    if rng.random() < 0.4:
        now, cluster = sim.scheduler.now, sim.world.seat(node).cluster
        sim.mischief.outage(f"machines:{cluster}", now, now + rng.uniform(200, 600))
        sim.world.strike(node, defect(rng))
        _pause_amid_repair(rng, sim, 100)
        return
    if rng.random() < 0.6:
        sim.world.strike(node, defect(rng))
        if rng.random() < 0.5:
            now, cluster = sim.scheduler.now, sim.world.seat(node).cluster
            channel = f"{rng.choice(['writes', 'machines'])}:{cluster}"
            sim.mischief.outage(channel, now, now + rng.uniform(60, 400))

    def withhold() -> None:
        match rng.choice(["pause", "exclude", "brake_reset"]):
            case "pause":
                sim.order("pause", "")
                sim.scheduler.after(rng.uniform(30, 1800), lambda: sim.order("unpause", ""))
            case "exclude":
                what = rng.choice([{"fault": rng.choice(CODES)}, {"node": node.split("/", 1)[1]}, {"node": "*"}])
                lasts = str(rng.choice([60, 600, 3600]))
                sim.order("exclude", "", now=False, seconds=lasts, **what)
            case _:
                sim.order("brake_reset", "")

    _soon(rng, sim, 120.0, withhold)


def _pause_amid_repair(rng: Random, sim: Simulation, looks: int) -> None:
    """A repair is written down and cannot be sent yet when everything is paused."""

    def look(left: int) -> None:
        if any(i.phase is Phase.REPAIRING for i in sim.incidents()):
            sim.order("pause", "")
            sim.scheduler.after(rng.uniform(600, 1800), lambda: sim.order("unpause", ""))
        elif left:
            sim.scheduler.after(2.0, lambda: look(left - 1))

    look(looks)


def _long_ends(rng: Random, sim: Simulation, node: NodeId) -> None:
    sim.world.announce(node, "maintenance", rng.choice([0, 60, 86_400, 10**9, -(10**9)]))
    if rng.random() < 0.7:
        _soon(rng, sim, 60.0, partial(_if_there, sim, node, lambda: sim.world.lose_node(node)))


def _storms(rng: Random, sim: Simulation, node: NodeId) -> None:
    del node
    seats = list(sim.world.seats)
    code = rng.choice(["xid.79", "xid.119", "xid.48"])
    for other in rng.sample(seats, k=max(1, round(len(seats) * rng.uniform(0.3, 1.0)))):
        lasts = rng.choice([Remedy.RESET_GPU, Remedy.REBOOT, Remedy.RESTART_JOB])
        mine = SimDefect(code=code, cured_by=lasts, observe_after=rng.uniform(0.0, 60.0))
        sim.world.strike(other, mine)
    if rng.random() < 0.5:
        _soon(rng, sim, 1200.0, lambda: sim.order("brake_reset", ""))


def _no_notifier(rng: Random, sim: Simulation, node: NodeId) -> None:
    del node
    now = sim.scheduler.now
    sim.mischief.outage("notifier", now, now + rng.uniform(600, 3700), hangs=rng.random() < 0.5)


def _relists(rng: Random, sim: Simulation, node: NodeId) -> None:
    view = sim.world.ground.views[sim.world.seat(node).cluster]
    for _ in range(rng.randint(1, 3)):
        _soon(rng, sim, 300.0, view.cut)
    if rng.random() < 0.5:  # one of them takes back what was read before it and is not learned yet
        stalled = rng.uniform(40, 150)

        def amid() -> None:
            for host in sim.hosts:
                host.stall(stalled)
            sim.world.operator_cordons(node)
            uncordons = partial(_if_there, sim, node, partial(sim.world.operator_uncordons, node))
            sim.scheduler.after(stalled * 0.5, uncordons)
            sim.scheduler.after(stalled * 0.5 + 0.5, view.cut)

        _soon(rng, sim, 300.0, partial(_if_there, sim, node, amid))


def _vanished_jobs(rng: Random, sim: Simulation, node: NodeId) -> None:
    del node
    alive = [job.id for job in sim.world.workload.jobs.values() if job.last is not None and job.last.alive]
    if alive:
        sim.world.forget_job(rng.choice(alive), told=rng.random() < 0.3)


def _saves(rng: Random, sim: Simulation, node: NodeId) -> None:
    """Somebody wants a node, or ends a job, in a planned way; while its jobs save something else happens."""
    busy = [seat.id for seat in sim.world.seats.values() if seat.holders]
    node = rng.choice(busy) if busy else node

    def want() -> None:
        running = [job.id for job in sim.jobs() if job.state is JobState.RUNNING]
        stop = bool(running) and rng.random() < 0.15
        verb, target = ("stop", rng.choice(running)) if stop else (rng.choice(["drain", "reset", "reboot"]), node)
        sim.order(verb, target)
        sim.scheduler.after(rng.uniform(1.0, 280.0), partial(amid, verb, target))

    def amid(verb: str, target: str) -> None:
        seat = sim.world.seats.get(node)
        match rng.choice(
            ["nothing", "nothing", "now", "strike", "lose", "uncordon", "crash", "deaf", "outage", "fall"]
        ):
            case "now":
                sim.order(verb, target, now=True)
            case "strike" if seat is not None:
                sim.world.strike(node, replace(defect(rng), kills_ranks=rng.random() < 0.3))
            case "lose" if seat is not None:
                sim.world.lose_node(node)
            case "uncordon":
                sim.order("uncordon", node)
            case "crash" if seat is not None and seat.holders:
                sim.world.crash(next(iter(seat.holders))[0])
            case "deaf":
                sim.world.go_deaf(rng.uniform(10, 400))
            case "outage" if seat is not None:
                now = sim.scheduler.now
                sim.mischief.outage(
                    f"cluster:{seat.cluster}", now, now + rng.uniform(10, 400), hangs=rng.random() < 0.5
                )
            case "fall":
                rng.choice(sim.hosts).crash()
            case _:
                pass

    _soon(rng, sim, 300.0, partial(_if_there, sim, node, want))


def _others_jobs(rng: Random, sim: Simulation, node: NodeId) -> None:
    """Their owners cancel them, and others preempt them."""
    del node
    running = [job for job in sim.jobs() if job.state is JobState.RUNNING]
    if running and rng.random() < 0.5:
        job = rng.choice(running).id
        rng.choice([sim.world.preempt, sim.world.owner_cancels, sim.world.hang])(job)
    places = {c for c, rules in sim.world.ground.clusters.items() if Capability.PLACE in rules.capabilities}
    jobs = [job for job in sim.world.workload.jobs.values() if job.spec.cluster not in places and not job.purged]
    over = [job.id for job in jobs if not job.complete and job.last is not None and job.last.over]
    if over and rng.random() < 0.5:
        sim.world.owner_resumes(rng.choice(over))


TROUBLES: dict[Trouble, Callable[[Random, Simulation, NodeId], None]] = {
    Trouble.MOVES: _moves,
    Trouble.HALF_OUT: _half_out,
    Trouble.BARE_SEATS: _bare_seats,
    Trouble.REGISTERED_ANEW: _registered_anew,
    Trouble.FORGOTTEN: _forgotten,
    Trouble.LATE_REPORTS: _late_reports,
    Trouble.EARLY_WORDS: _early_words,
    Trouble.ODD_VALUES: _odd_values,
    Trouble.ODD_REPORTS: _odd_reports,
    Trouble.POISON: _poison,
    Trouble.BUDGETS: _budgets,
    Trouble.ORDERS: _orders,
    Trouble.WITHHOLDING: _withholding,
    Trouble.LONG_ENDS: _long_ends,
    Trouble.STORMS: _storms,
    Trouble.NO_NOTIFIER: _no_notifier,
    Trouble.RELISTS: _relists,
    Trouble.OTHERS_JOBS: _others_jobs,
    Trouble.VANISHED_JOBS: _vanished_jobs,
    Trouble.SAVES: _saves,
}
