"""The operator's rules. Ordered, first match wins."""

from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Literal

from sickbay.model.fault import Fault, Remedy, Scope, Severity
from sickbay.model.fleet import DrainHow, Withhold, pool_fits
from sickbay.model.notice import LOG, NoticeSeverity
from sickbay.model.noun import Noun


class Strict(Noun, forbid_unknown_fields=True):
    """Part of a policy: a word that is not known is a mistake, not an extension."""


class Match(Strict):
    """All that is given must fit; globs for text."""

    fault: str | tuple[str, ...] = "*"
    component: str = "*"
    severity: tuple[Severity, ...] = ()
    pool: str = "*"
    node: str = "*"

    def fits(self, fault: Fault, *, pool: str, node: str) -> bool:
        codes = (self.fault,) if isinstance(self.fault, str) else self.fault
        return (
            any(fnmatchcase(fault.code, code) for code in codes)
            and fnmatchcase(fault.component, self.component)
            and (not self.severity or fault.severity in self.severity)
            and pool_fits(pool, self.pool)
            and fnmatchcase(node, self.node)
        )


class Mode(StrEnum):
    ACT = "act"
    RECOMMEND = "recommend"  # notify, touch nothing
    OBSERVE = "observe"  # tell nobody


class Repeat(Strict):
    """So many sightings of one code on one device (or node) within a time ask for at least this remedy."""

    times: int
    within: timedelta
    floor: Remedy
    jobs: int = 1  # seen under so many different jobs: one program's bug is not the device's


class FaultRule(Strict):
    match: Match = Match()
    floor: Remedy | None = None  # at least
    cap: Remedy | None = None  # at most
    mode: Mode = Mode.ACT
    scope: Scope | None = None
    needs_human: bool = False
    repeat: Repeat | None = None
    why: str = ""


class OnCouldNotRun(StrEnum):
    HOLD = "hold"
    FAIL = "fail"


class RungRule(Strict):
    do: Remedy
    tries: int = 1
    deadline: timedelta = timedelta(minutes=15)
    verify: int = 2  # level of the check that proves it
    profile: str = ""  # which tests; empty: those that would meet the fault again
    verify_deadline: timedelta = timedelta(minutes=20)
    on_could_not_run: OnCouldNotRun = OnCouldNotRun.HOLD
    why: str = ""


class Strikes(Strict):
    """History sets the first rung: after `after` earlier incidents of this hardware within `within`.

    The present one then begins at `first`, or, with `needs_human`, is held for a person instead of being repaired.
    """

    after: int
    within: timedelta
    first: Remedy | None = None
    needs_human: bool = False
    same_fault: bool = False
    reset_by_release: bool = False  # a passed check wipes the strikes (the two-strike rule "in a row")
    why: str = ""


class Ladder(Strict):
    match: Match = Match()
    rungs: tuple[RungRule, ...] = ()
    strikes: tuple[Strikes, ...] = ()
    why: str = ""


class Trigger(StrEnum):
    FAULT = "fault"
    JOB_END = "job_end"
    BEFORE_START = "before_start"
    JOIN = "join"
    SCHEDULE = "schedule"


class WhichNodes(StrEnum):
    SUSPECTS = "suspects"
    ALL = "all"


class Examine(Strict):
    on: Trigger
    level: int
    profile: str = ""  # which tests, such as the set `hyperpod`; empty: all of the level
    nodes: WhichNodes = WhichNodes.ALL
    every: timedelta | None = None  # for `schedule`
    deadline: timedelta = timedelta(minutes=15)
    why: str = ""


class PlaceBy(StrEnum):
    SPARE = "spare"
    SAME = "same"  # the node it ran on, once it is back
    FEWER = "fewer"  # if the job says min_nodes


class OnNoFault(StrEnum):
    DIAGNOSE = "diagnose"
    RESTART = "restart"
    FAIL = "fail"


class ResumeRule(Strict):
    exit_codes: tuple[int, ...] = ()  # which exit codes may be restarted; empty: any
    place: tuple[PlaceBy, ...] = (PlaceBy.SPARE, PlaceBy.SAME, PlaceBy.FEWER)
    on_no_fault: OnNoFault = OnNoFault.DIAGNOSE
    max_restarts: int = 3  # restarts for which no node was to blame
    faults_count: bool = False  # restarts for which a node was to blame count in max_restarts too
    max_interruptions: int = 50  # of any cause: ends every loop
    window: timedelta = timedelta(days=1)
    max_gates: int = 5
    settle: timedelta = timedelta(milliseconds=200)
    look_deadline: timedelta = timedelta(seconds=2)
    start_deadline: timedelta = timedelta(minutes=10)
    stop_deadline: timedelta = timedelta(minutes=2)
    stall_after: timedelta = timedelta(minutes=15)  # without a heartbeat, after the first one; 0: never called hung
    save_within: timedelta = timedelta(minutes=5)  # to save before a planned stop; 0: nobody is asked to
    start_within: timedelta = timedelta(hours=1)  # until the first heartbeat, where one is awaited; 0: never late
    keep_place: timedelta = timedelta(minutes=45)  # nodes are reserved for an interrupted job so long; 0: none are
    grow_after: timedelta = timedelta(hours=1)  # an attempt that shrank runs so long until it is restarted to grow
    native_grace: timedelta = timedelta(minutes=1)  # how long a native controller may take to restart its own job
    why: str = ""


class Limit(Strict):
    """limit = max(at_least, min(absolute, floor(percent × size)))."""

    pool: str = "*"
    size: int | None = None  # the pool's size; None: the seats that are there
    out_percent: float = 10.0
    out_absolute: int | None = None
    out_at_least: int = 1
    repairing_percent: float = 10.0
    repairing_absolute: int | None = None
    repairing_at_least: int = 1
    why: str = ""

    def out(self, size: int) -> int:
        return _limit(size, self.out_percent, self.out_absolute, self.out_at_least)

    def repairing(self, size: int) -> int:
        return _limit(size, self.repairing_percent, self.repairing_absolute, self.repairing_at_least)


def _limit(size: int, percent: float, absolute: int | None, at_least: int) -> int:
    share = int(percent * size / 100 + 1e-9)
    return max(at_least, share if absolute is None else min(absolute, share))


class BrakeScope(StrEnum):
    CLUSTER = "cluster"
    POOL = "pool"
    DOMAIN = "domain"


class BrakeRule(Strict):
    """Tripped when max(nodes, percent of the scope's size) distinct nodes show one signature within `within`."""

    scope: BrakeScope = BrakeScope.POOL
    signature: str = "*"
    nodes: int = 3
    percent: float = 5.0
    within: timedelta = timedelta(minutes=10)
    quiet: timedelta = timedelta(minutes=30)
    confirm_every: timedelta = timedelta(seconds=30)  # once it is off: paces the checks that confirm or clear
    why: str = ""


class Window(Strict):
    """When Repair is allowed, UTC. Days 0 (Monday) … 6."""

    pool: str = "*"
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    start: str = "00:00"
    end: str = "24:00"
    why: str = ""


class NotifyRule(Strict):
    """Who is told of what. The first rule that fits counts; what no rule fits goes to the log."""

    events: tuple[str, ...] = ("*",)
    severity: tuple[NoticeSeverity, ...] = ()  # empty: any
    pool: str = "*"  # what is about no pool fits only '*'
    to: tuple[str, ...] = (LOG,)  # names of notifiers: all of them are told
    next: tuple[str, ...] = ()  # told one after the other if one of `to` takes it not; after the last the log
    next_after: timedelta = timedelta(minutes=5)  # without delivery; one that refuses is not waited for
    why: str = ""

    def fits(self, event: str, severity: NoticeSeverity, pool: str) -> bool:
        return (
            any(fnmatchcase(event, glob) for glob in self.events)
            and (not self.severity or severity in self.severity)
            and (self.pool == "*" or (bool(pool) and pool_fits(pool, self.pool)))
        )


class Silence(Strict):
    agent: timedelta = timedelta(seconds=30)  # of not hearing an agent, on the ingest clock
    agent_restarts: int = 2
    restart_deadline: timedelta = timedelta(minutes=2)
    announced_most: timedelta = timedelta(minutes=30)  # an announced end longer than this is silence after all


class Pace(Strict):
    """Deadlines of states that no rung owns, and how long calls may take."""

    call_timeout: timedelta = timedelta(seconds=10)
    cordon_deadline: timedelta = timedelta(minutes=2)
    drain_deadline: timedelta = timedelta(minutes=30)
    watch_for: timedelta = timedelta(hours=1)
    held_reminder: timedelta = timedelta(hours=12)
    vacancy: timedelta = timedelta(hours=1)
    notice_patience: timedelta = timedelta(days=1)  # a notifier that cannot be reached is tried again for so long
    drain: DrainHow = DrainHow.EVICT  # of work that Sickbay does not manage
    drain_every: timedelta = timedelta(seconds=30)  # how often such work is asked to leave again
    drain_then: Literal["hold", "force"] = "hold"  # at the drain's deadline: hold the node, or end that work
    bystanders: Literal["wait", "stop"] = "wait"  # managed attempts on a sick node that do not hold what is sick


class Retention(Strict):
    """How much of what is over is kept."""

    history: timedelta = timedelta(days=90)  # the story, facts, closed incidents, ended jobs and intents
    log_mib: int = 32  # of the controller's own log, its older parts included


class Policy(Strict):
    name: str = "default"
    about: str = ""
    faults: tuple[FaultRule, ...] = ()
    ladders: tuple[Ladder, ...] = ()
    examine: tuple[Examine, ...] = ()
    resume: ResumeRule = ResumeRule()
    limits: tuple[Limit, ...] = (Limit(),)
    brakes: tuple[BrakeRule, ...] = (BrakeRule(),)
    withhold: tuple[Withhold, ...] = ()
    windows: tuple[Window, ...] = ()
    channels: dict[Remedy, str] = {}
    notify: tuple[NotifyRule, ...] = (NotifyRule(),)
    silence: Silence = Silence()
    pace: Pace = Pace()
    retention: Retention = Retention()

    @property
    def hands_off(self) -> bool:
        """Whether no fault at all makes it act: it recommends, or only observes."""
        for rule in self.faults:
            if rule.mode is Mode.ACT:
                return False
            if rule.match == Match():
                return True
        return False
