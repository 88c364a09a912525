"""Event types of a scenario's timeline: one noun for each thing that can befall a cluster, and the one that does it.

The fields are the words of scenario files (`sim.scenario_file`), so a rename here is a change for their writers.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from sickbay.model.errors import Gone
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.noun import Noun
from sickbay.sim.hardware import SimDefect
from sickbay.sim.job_behaviour import TRACEBACK

if TYPE_CHECKING:
    from sickbay.sim.simulation import Simulation

NEXT_LOOK = 10.0  # seconds until an act that waits for its job to train looks again


class Moment(Noun, forbid_unknown_fields=True):
    """Something that happens `at` so long after the beginning. `do` names it in files."""

    at: timedelta = timedelta()


class Target(Moment):
    """Befalls one node: by its name, or the first one of a job, as soon as that job trains."""

    node: str = ""
    job: str = ""


class StrikeDevice(Target, kw_only=True):
    """A device breaks: it shows its code and its users die, until the remedy that cures it."""

    do: Literal["strike"] = "strike"
    code: str
    device: int = 0
    cured_by: Remedy = Remedy.REBOOT
    kills_ranks: bool = True
    silent: bool = False  # no line: only a check finds it
    returns_after_boot: timedelta | None = None


class WriteLine(Target, kw_only=True):
    """The kernel writes a line and nothing is behind it."""

    do: Literal["line"] = "line"
    code: str
    device: int = 0


class LoseNode(Target, kw_only=True):
    """Nobody hears the node any more. A zombie's ranks go on where nobody can reach them."""

    do: Literal["lose_node"] = "lose_node"
    zombie: bool = False
    back_by: Remedy = Remedy.REBOOT


class NodeMoment(Target, kw_only=True):
    """Acts that need no more than their node."""

    do: Literal[
        "lose_agent", "restore_agent", "partition", "heal_partition",
        "others_cordon", "others_uncordon", "others_reboot", "others_replace", "others_delete", "others_drain",
        "others_start_work",
    ]  # fmt: skip


class JobAct(Moment, kw_only=True):
    """Befalls a job, whatever its nodes do."""

    do: Literal["crash_job", "hang_job", "preempt_job", "cancel_job"]
    job: str
    log: str = TRACEBACK  # of a crash: the end of its log, which says whether restarting may help


class DeafenAgents(Moment, kw_only=True):
    """For a while no agent can be heard."""

    do: Literal["deaf"] = "deaf"
    lasts: timedelta = msgspec.field(name="for")


class Outage(Moment, kw_only=True):
    """For a while one of the far sides refuses every call, or lets it hang."""

    do: Literal["outage"] = "outage"
    of: Literal["cluster", "machines", "checks", "notifier"] = "cluster"
    lasts: timedelta = msgspec.field(name="for")
    hangs: bool = False


class Jump(Moment, kw_only=True):
    """The controller's wall clock jumps, ahead or back."""

    do: Literal["jump_clock"] = "jump_clock"
    by: timedelta
    back: bool = False


class CrashEngine(Moment, kw_only=True):
    do: Literal["crash_engine"] = "crash_engine"
    engine: int = 0


class PauseEngine(Moment, kw_only=True):
    """The process stands still and does not know it."""

    do: Literal["pause_engine"] = "pause_engine"
    engine: int = 0
    lasts: timedelta = msgspec.field(name="for")


class OperatorOrder(Target, kw_only=True):
    """An operator's command to Sickbay. For an incident's verbs, `node` means the incident that is open there."""

    do: Literal["order"] = "order"
    verb: Literal[
        "cordon", "drain", "reset", "reboot", "replace", "uncordon", "confirm", "hold", "dismiss", "escalate",
        "stop", "pause", "unpause", "exclude", "include", "brake_reset",
    ]  # fmt: skip
    target: str = ""  # of a brake: pool:train:xid.79
    now: bool = False
    args: dict[str, str] = {}


KINDS: tuple[type[Moment], ...] = (
    StrikeDevice, WriteLine, LoseNode, NodeMoment, JobAct, DeafenAgents, Outage, Jump,
    CrashEngine, PauseEngine, OperatorOrder,
)  # fmt: skip
INCIDENT_VERBS = frozenset({"confirm", "hold", "dismiss", "escalate"})


def happen(sim: "Simulation", moment: Moment) -> None:
    """Let it happen now, or as soon as the job that it is about trains."""
    try:
        match moment:
            case OperatorOrder():
                _order(sim, moment)
            case Target():
                _at_node(sim, moment)
            case JobAct():
                _at_job(sim, moment)
            case DeafenAgents():
                sim.world.go_deaf(moment.lasts.total_seconds())
            case Outage():
                channel = "notifier" if moment.of == "notifier" else f"{moment.of}:{sim.plan.cluster.id}"
                now = sim.scheduler.now
                sim.mischief.outage(channel, now, now + moment.lasts.total_seconds(), hangs=moment.hangs)
            case Jump():
                sim.clock.jump(moment.by.total_seconds() * (-1 if moment.back else 1))
            case CrashEngine():
                sim.hosts[moment.engine].crash()
            case PauseEngine():
                sim.hosts[moment.engine].pause(moment.lasts.total_seconds())
    except Gone as error:
        # The node was replaced under another name, or deleted, before its turn came.
        sim.world.chronicle.note("act.void", str(getattr(moment, "node", "")), str(error))


def _at_node(sim: "Simulation", moment: Target) -> None:
    node = _where(sim, moment)
    if node is None:
        sim.scheduler.after(NEXT_LOOK, lambda: _at_node(sim, moment))
        return
    match moment:
        case StrikeDevice():
            sim.world.strike(node, defect_of(moment))
        case WriteLine():
            sim.world.write_line(node, moment.code, moment.device)
        case LoseNode():
            sim.world.lose_node(node, zombie=moment.zombie, back_by=moment.back_by)
        case NodeMoment():
            _ACTS[moment.do](sim, node)


def defect_of(strike: StrikeDevice) -> SimDefect:
    back = strike.returns_after_boot
    return SimDefect(
        code=strike.code,
        device=strike.device,
        cured_by=strike.cured_by,
        kills_ranks=strike.kills_ranks,
        silent=strike.silent,
        recurs_after_boot=back.total_seconds() if back is not None else None,
    )


_ACTS: dict[str, Callable[["Simulation", NodeId], object]] = {
    "lose_agent": lambda sim, node: sim.world.lose_agent(node),
    "restore_agent": lambda sim, node: sim.world.restore_agent(node),
    "partition": lambda sim, node: sim.world.partition(node),
    "heal_partition": lambda sim, node: sim.world.heal_partition(node),
    "others_cordon": lambda sim, node: sim.world.operator_cordons(node),
    "others_uncordon": lambda sim, node: sim.world.operator_uncordons(node),
    "others_reboot": lambda sim, node: sim.world.operator_reboots(node),
    "others_replace": lambda sim, node: sim.world.operator_replaces(node),
    "others_delete": lambda sim, node: sim.world.operator_deletes(node),
    "others_drain": lambda sim, node: sim.world.operator_drains(node),
    "others_start_work": lambda sim, node: sim.world.other_scheduler_starts_work(node),
}


def _at_job(sim: "Simulation", moment: JobAct) -> None:
    job = JobId(moment.job)
    if job not in sim.world.workload.jobs:
        sim.scheduler.after(NEXT_LOOK, lambda: _at_job(sim, moment))
        return
    match moment.do:
        case "crash_job":
            sim.world.crash(job, tail=moment.log)
        case "hang_job":
            sim.world.hang(job)
        case "preempt_job":
            sim.world.preempt(job)
        case "cancel_job":
            sim.world.owner_cancels(job)


def _order(sim: "Simulation", moment: OperatorOrder) -> None:
    node = _where(sim, moment) if moment.node else None
    target = moment.target or node or moment.job
    if node is not None and moment.verb in INCIDENT_VERBS:
        held = [incident.id for incident in sim.incidents(node, intake=True) if incident.open]
        if not held:
            sim.scheduler.after(NEXT_LOOK, lambda: _order(sim, moment))
            return
        target = held[-1]
    sim.order(moment.verb, target, now=moment.now, **moment.args)


def _where(sim: "Simulation", moment: Target) -> NodeId | None:
    """The node that is meant; None: its job does not train yet."""
    if moment.node:
        return node_id(sim, moment.node)
    job = sim.world.workload.jobs.get(JobId(moment.job))
    attempt = job.last if job is not None else None
    if attempt is None or attempt.training_since is None or attempt.halted_at is not None:
        return None
    return min(attempt.nodes)


def node_id(sim: "Simulation", name: str) -> NodeId:
    return NodeId(name if "/" in name else f"{sim.plan.cluster.id}/{name}")
