"""What a simulation came to: where the time went, how long each stage took, what is open, who was told."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from statistics import median

from sickbay.model.incident import Incident, IncidentKind, Phase
from sickbay.model.job import Interruption, Job
from sickbay.model.noun import Noun
from sickbay.sim.job_behaviour import SimJob, Tally
from sickbay.sim.simulation import Simulation

# In the order in which a job passes them; `gated` is not stamped where no gate is asked for.
INTERRUPTION_STAGES = ("detected", "stopped", "diagnosed", "placed", "gated", "started", "first_step")


class Spread(Noun):
    """Many durations in three numbers, in seconds."""

    count: int
    median: float
    p90: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Spread":
        ordered = sorted(seconds)
        # The smallest value that nine of ten do not exceed.
        p90 = ordered[max(0, -(-9 * len(ordered) // 10) - 1)]
        return cls(count=len(ordered), median=round(median(ordered), 1), p90=round(p90, 1))


class JobReport(Noun):
    id: str
    state: str
    attempts: int
    restarts: int
    interruptions: int
    step: int | None
    effective: float  # share of its time that was kept
    because: str


class SimReport(Noun):
    """One object for people and programs; its keys are stable."""

    scenario: str
    seed: int
    policy: str
    nodes: int
    seconds: float  # of virtual time
    effective_training_time: float | None  # None: no job has trained
    lost_by_cause: dict[str, float]  # seconds of jobs' time
    incident_stages: dict[str, Spread]
    incidents: Spread | None  # from opened to closed
    interruption_stages: dict[str, Spread]
    training_again: Spread | None  # from the first symptom to the first new step
    incidents_by_phase: dict[str, int]
    intakes_by_phase: dict[str, int]
    notifications: dict[str, int]
    jobs: list[JobReport]
    broken: str = ""  # the invariant that did not hold
    repeat: str = ""  # the command that gives the same run


def report(sim: Simulation, *, scenario: str, broken: str = "", repeat: str = "") -> SimReport:
    incidents, jobs = sim.incidents(intake=True), sim.jobs()
    interruptions = [i for job in jobs for i in job.interruptions]
    still_open = {job.id for job in jobs if job.open}
    trained = sim.world.workload.jobs.values()
    tallies = {job.id: tally(sim, job, still_open=job.id in still_open) for job in trained}
    lost: defaultdict[str, float] = defaultdict(float)
    for one in tallies.values():
        for cause, seconds in one.lost.items():
            lost[cause] += seconds
    useful = sum(one.useful for one in tallies.values())
    whole = useful + sum(lost.values())
    own = [i for i in incidents if i.kind is not IncidentKind.INTAKE]
    return SimReport(
        scenario=scenario,
        seed=sim.seed,
        policy=sim.policy.name,
        nodes=sim.plan.nodes,
        seconds=round(sim.scheduler.now, 1),
        effective_training_time=round(useful / whole, 4) if whole else None,
        lost_by_cause={cause: round(lost[cause], 1) for cause in sorted(lost, key=lambda c: -lost[c]) if lost[cause]},
        incident_stages=_spreads(map(incident_seconds, own)),
        incidents=_spread([(i.closed_at - i.opened_at).total_seconds() for i in own if i.closed_at is not None]),
        interruption_stages=_spreads(map(interruption_seconds, interruptions)),
        training_again=_spread([s for i in interruptions if (s := training_again(i)) is not None]),
        incidents_by_phase=dict(Counter(i.phase.value for i in own)),
        intakes_by_phase=dict(Counter(i.phase.value for i in incidents if i.kind is IncidentKind.INTAKE)),
        notifications=dict(Counter(notice.event for _, notice in sim.world.notices)),
        jobs=[_job(job, tallies.get(job.id)) for job in jobs],
        broken=broken,
        repeat=repeat,
    )


def _job(job: Job, time: Tally | None) -> JobReport:
    return JobReport(
        id=job.id,
        state=job.state,
        attempts=job.attempt,
        restarts=len(job.restarts),
        interruptions=len(job.interruptions),
        step=job.step,
        effective=round(time.share, 4) if time is not None else 0.0,
        because=job.diagnosis or (job.wait.because if job.wait else ""),
    )


def tally(sim: Simulation, job: SimJob, *, still_open: bool) -> Tally:
    """Where the job's time went up to now, with the span that is not closed yet."""
    now, attempt = sim.scheduler.now, job.last
    whole = Tally(useful=job.tally.useful)
    whole.lost.update(job.tally.lost)
    training = attempt is not None and attempt.training_since is not None and attempt.halted_at is None
    if attempt is not None and training:
        whole.useful += (job.step(attempt, now) - attempt.resumed_from) / job.programme.rate
    elif still_open and job.idle_since is not None:
        whole.lost[job.idle_cause] += now - job.idle_since
    return whole


def incident_seconds(incident: Incident) -> dict[str, float]:
    """How long it stayed in each phase, all visits together; a phase that has not ended does not count."""
    spent: defaultdict[str, float] = defaultdict(float)
    for stage, after in zip(incident.stages, incident.stages[1:], strict=False):
        spent[stage.phase] += _positive(stage.entered_at, after.entered_at)
    order = list(Phase)
    return {phase: spent[phase] for phase in sorted(spent, key=lambda name: order.index(Phase(name)))}


def interruption_seconds(interruption: Interruption) -> dict[str, float]:
    """What came before each stage: the seconds since the stage before it."""
    spent: dict[str, float] = {}
    before: datetime | None = None
    for name in INTERRUPTION_STAGES:
        at = interruption.stages.get(name)
        if at is None:
            continue
        if before is not None:
            spent[name] = _positive(before, at)
        before = at
    return spent


def training_again(interruption: Interruption) -> float | None:
    """From the first symptom to the first new step; None: not yet, or never."""
    first, last = interruption.stages.get("detected"), interruption.stages.get("first_step")
    return _positive(first, last) if first is not None and last is not None else None


def _positive(begin: datetime, end: datetime) -> float:
    """A clock that was set back in between gives 0, not less than nothing."""
    return max(0.0, (end - begin).total_seconds())


def _spreads(each: Iterable[dict[str, float]]) -> dict[str, Spread]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for spent in each:
        for name, seconds in spent.items():
            found[name].append(seconds)
    order = [*Phase, *INTERRUPTION_STAGES]
    return {name: Spread.of(found[name]) for name in sorted(found, key=order.index)}


def _spread(seconds: list[float]) -> Spread | None:
    return Spread.of([max(0.0, s) for s in seconds]) if seconds else None
