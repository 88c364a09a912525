"""Training jobs, their attempts, and the interruptions between them."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec.structs import replace

from sickbay.model.clock import Deadline
from sickbay.model.fleet import IncidentId, JobId, NodeId, pool_of
from sickbay.model.incident import Wait
from sickbay.model.noun import Noun
from sickbay.model.state_machine import StateMachine, Step
from sickbay.model.tables import Diagnosis


class JobState(StrEnum):
    QUEUED = "QUEUED"
    GATING = "GATING"  # its nodes are claimed: the gate runs, then the start is under way
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    DIAGNOSING = "DIAGNOSING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def terminal(self) -> bool:
        return self in {JobState.COMPLETE, JobState.FAILED, JobState.STOPPED}


class RankState(StrEnum):
    """A job's ranks on one node, as its cluster shows them."""

    RUNNING = "running"
    GONE = "gone"


class EndReason(StrEnum):
    COMPLETED = "completed"
    FAILED = "failed"
    PREEMPTED = "preempted"
    NODE_LOST = "node_lost"
    CANCELLED_BY_OTHER = "cancelled_by_other"
    UNKNOWN = "unknown"


class LogRule(Noun):
    """A line that a job's log must show: by when it first appears, and how often from then on. Else the job hangs."""

    name: str
    pattern: str  # a regular expression, searched in each line
    starts_within: float | None = None  # seconds from the start of the rank
    recurs_within: float | None = None  # seconds from one match to the next


class Continuation(Noun):
    """Resumption from an earlier job: whose checkpoints a job goes on from, and from which of them."""

    of: JobId | None = None  # a job that is over
    before: tuple[str, ...] = ()  # that one and those before it, the newest first, with attempts: "<job>/<attempts>"
    step: int | None = None  # exactly this one is loaded when it begins; None: the newest
    anew: bool = False  # it begins at step 0, beside what is there
    anyones: bool = False  # it goes on from what is there, whichever job saved it
    last_step: int | None = None  # how far `of` has been
    home: JobId | None = None  # where no directory is named: the job in whose own one the checkpoints are


class JobSpec(Noun):
    name: str
    cluster: str
    pool: str  # the cluster's own word
    nodes: int = 1
    on: tuple[NodeId, ...] = ()  # named nodes
    gpus_per_node: int = 0  # 0: all of them
    min_nodes: int = 0  # 0: as many as `nodes`
    max_restarts: int | None = None  # None: from policy
    precheck: int | None = None  # level, 0 for none; None: from policy
    reports_steps: bool = True
    command: tuple[str, ...] = ()
    ranks_per_node: int = 1  # processes on each node; a launcher such as torchrun is one
    env: dict[str, str] = {}
    env_files: tuple[str, ...] = ()  # files with more of it, read on each node when its ranks start: never stored here
    cwd: str = ""
    checkpoint: str = ""  # the directory that its attempts share
    stall_after: float | None = None  # seconds without a heartbeat, after the first one; None: from policy, 0: never
    start_within: float | None = None  # seconds until its first heartbeat; None: from policy, 0: never too late
    expects_heartbeats: bool = False  # as it is started: it is known to send them, or whoever submitted it wants them
    log_rules: tuple[LogRule, ...] = ()
    priority: int = 0  # higher ones first, where the queue is ours
    time_limit: float | None = None  # seconds that its attempts may run, together; None: as long as they like
    grow: bool = False  # one that runs on fewer nodes than it asked for is restarted as soon as there are more
    continues: Continuation | None = None
    storage: tuple[str, ...] = ()  # shared directories that must answer on each node before it starts
    image: str = ""  # the container image of its ranks, where its cluster runs images
    native: dict[
        str, Any
    ] = {}  # plain JSON, merged over what its cluster makes of the job: in that cluster's own words

    @property
    def least(self) -> int:
        return len(self.on) or self.min_nodes or self.nodes

    @property
    def most(self) -> int:
        return len(self.on) or self.nodes


PRIORITIES = range(-100, 101)  # that a job may have

KEEP_CALLS = 20  # that an attempt names


class Call(Noun):
    """An incident's (or a hang's) request that this attempt ends."""

    because: str
    incident: IncidentId | None = None
    node: NodeId | None = None
    lost: bool = False  # the node cannot be reached: its ranks must be fenced
    booted: bool = False  # the node has booted anew
    dated: datetime | None = None
    before: str = ""  # what waits until the attempt has saved, such as "n3 is drained"; empty: it ends at once
    wished: bool = False  # for the job's own good: it costs no restart


class Work(Noun):
    """A long piece of work that rank 0 does between two steps, or before the first: bytes."""

    what: str  # verifying attempt-1/step-40
    done: int
    of: int
    moved: float = 0.0  # reading of ingest when it had last advanced


class RankEnd(Noun):
    """The first rank of an attempt that ended badly."""

    rank: int
    node: NodeId
    exit_code: int | None = None  # negative: the signal that ended it; None: nobody knows
    why: str = ""  # where its node knows more: "GPU 0 fell off the bus"
    at: datetime | None = None


class End(Noun):
    reason: EndReason
    at: datetime
    first: RankEnd | None = None  # where the cluster can tell ranks apart
    exit_codes: dict[str, int] = {}  # node → first non-zero exit code there, of ranks that we did not stop
    tail: str = ""  # may come later than the rest, once
    findings: tuple[Diagnosis, ...] = ()  # what the tail says, by our table: judged when it comes


OPEN_FOR = 1800.0  # seconds that a rendezvous stays open, so that a node can be replaced and checked meanwhile


class HeardEnds(Noun):
    """What agents have told of how ranks of an attempt ended, beside what its cluster says."""

    attempt: int
    first: RankEnd | None = None  # that ended badly, by its time
    exit_codes: dict[str, int] = {}  # node → first non-zero exit code there
    tail: str = ""  # what that first one wrote last


NAMES = 8  # of nodes that an attempt's record has itself; more are in its rosters
KEEP_ATTEMPTS = 60  # records of one job, the newest


class Attempt(Noun):
    """Record of an attempt that is over: when and where it ran, and how it ended. Written with its job's row."""

    job: JobId
    number: int
    at: datetime  # when this was written
    began_at: datetime | None = None  # its nodes were claimed
    started_at: datetime | None = None  # all its ranks were seen
    ended_at: datetime | None = None
    nodes: int = 0
    names: tuple[NodeId, ...] = ()  # the first of them
    rosters: int = 0  # rows with all their names, where there are more: `roster:<job>/<attempt>/<number>`
    reason: EndReason | None = None  # None: it was stopped, or nobody said how it ended
    exit_codes: dict[str, int] = {}  # of some nodes, where the cluster cannot tell ranks apart
    first: RankEnd | None = None
    because: str = ""  # why it is over, as is known by now
    lines: str = ""  # the last that its first failing rank wrote


class Interruption(Noun):
    """The loss of one attempt, from the first symptom to the first new step."""

    attempt: int
    cause: str
    at: float = 0.0  # reading of its cluster's clock
    incidents: tuple[IncidentId, ...] = ()
    stages: dict[str, datetime] = {}  # detected stopped diagnosed placed gated started first_step
    closed: bool = False
    rosters: int = 0  # rows with the names of its nodes: `roster:<job>/<attempt>/<number>`
    spent: float | None = None  # the restart that it cost: given back if a node turns out to be to blame


class StorageTrouble(Noun):
    """Nodes that were tried could not use a job's storage: that costs it nothing but time."""

    because: str
    times: int  # one after the other
    again: Deadline | None  # when nodes are tried once more; None: as soon as there are some
    remind: Deadline  # when a person is told again


class Job(Noun):
    id: JobId
    spec: JobSpec
    submitted_at: datetime
    owner: str = ""  # whose token submitted it; empty: nobody's whom we know (adopted, or from before owners)
    adopted: bool = False  # others submitted it; a native controller may restart it first
    made: bool = False  # its cluster has an object for it, which can be run again where it has RERUN
    state: JobState = JobState.QUEUED
    attempt: int = 0  # 0: none yet
    claim: dict[NodeId, tuple[int, ...]] = {}  # nodes and devices promised to the open attempt
    began_at: datetime | None = None  # when the attempt was claimed
    began: float = 0.0  # the same, as a reading of its cluster's clock
    started_at: datetime | None = None  # when all its ranks were seen
    runs_since: float | None = None  # reading of its cluster's clock when the attempt was seen to run
    ran: float = 0.0  # seconds that the attempts before it ran, together
    place_until: Deadline | None = None  # interrupted, its place is kept until then: nodes that nobody else may claim
    ranks: dict[NodeId, RankState] = {}  # as last seen
    ranks_as_of: float = 0.0
    # A list of its cluster did not have it: one more, and it has vanished; of one that is over: that it has.
    missing_as_of: float | None = None
    calls: tuple[Call, ...] = ()
    end: End | None = None
    heard: HeardEnds | None = None  # from its nodes' agents, while it may still add to the end
    avoid: tuple[NodeId, ...] = ()  # nodes that the next attempt does not use (unknown after a look, failed its gate)
    restarts: tuple[float, ...] = ()  # readings at which a restart was spent
    interruptions: tuple[Interruption, ...] = ()
    gates: int = 0
    storage_trouble: StorageTrouble | None = None
    step: int | None = None
    resumed_from: int | None = None
    resumed_of: str = ""  # the job that saved what it resumed from; empty: this one, or none
    continued_by: JobId | None = None  # a later job that goes on from its checkpoints
    saved: int | None = None  # the newest step that is saved, of any attempt
    saved_at: datetime | None = None  # None: when is not known
    save_failed: str = ""  # what was not saved last, and why, until a save succeeds
    work: Work | None = None  # what rank 0 is busy with
    listens: bool = False  # the attempt that runs can be asked to save
    save_by: Deadline | None = None  # it is asked to save, and is stopped then at the latest
    answered: str = ""  # the newest ask that it has answered with a save: the key of the intent
    diagnosis: str = ""
    stop_asked: str = ""  # by whom, and why
    stop_now: bool = False  # without waiting for a save
    cancelled: bool = False
    held: bool = False  # our stop keeps its own controller off (Capability.HOLDS) until we ask for the next attempt
    stepped_in: int = 0  # the newest attempt that has told a step
    opened_in: int = 0  # and the newest whose script has shown that it uses sickbay.train
    checkpoints_in: str = ""  # the directory that rank 0 names
    rules_off: dict[str, int] = {}  # log rules that are not used any more, and in which attempt
    waits: float | None = None  # seconds after which an attempt's launcher gives the others up, where that is soon
    waits_in: int = 0  # the attempt whose launcher does
    fenced: bool = False  # rank 0 said that no older attempt can commit: a restart needs no fence of its nodes
    intent: str = ""
    fences: tuple[str, ...] = ()  # intents that fence nodes out of reach, beside the stop
    remind: Deadline | None = None  # when a human is told again that it is stuck
    acts: int = 0
    deadline: Deadline | None = None
    wait: Wait | None = None
    told: tuple[str, ...] = ()
    closed_at: datetime | None = None
    digest: str = ""
    parts: int = 0  # as it is stored: rows that hold `claim` and `ranks` where there are many

    @property
    def open(self) -> bool:
        return not self.state.terminal

    @property
    def keeps_place(self) -> bool:
        """Whether nodes are reserved for it. What it still claims is its own by that."""
        return self.place_until is not None and self.open and not (self.state is JobState.GATING and self.claim)

    @property
    def stands_aside(self) -> bool:
        """Whether it wants no nodes for now, since none could use its storage: others may have them meanwhile."""
        trouble = self.storage_trouble
        return self.state is JobState.QUEUED and trouble is not None and trouble.again is not None

    @property
    def over_at(self) -> float | None:
        """The reading of its cluster's clock at which its time limit is over; None: it has none, or it does not run."""
        limit = self.spec.time_limit
        return None if limit is None or self.runs_since is None else self.runs_since + max(0.0, limit - self.ran)

    @property
    def directory(self) -> str:
        """Where its checkpoints are, the same for two jobs that share it, however they write it."""
        home = self.spec.continues.home if self.spec.continues is not None else None
        return plain_path(self.spec.checkpoint) if self.spec.checkpoint else f"~{home or self.id}"

    @property
    def vanished(self) -> bool:
        """Its attempt was there and has ended, and its cluster has it no more: no read will say more of it."""
        return not self.adopted and not self.made and self.end is not None

    def pressed(self, call: Call) -> "Job":
        """The job with a call that cannot wait: in place of its incident's earlier one, or of any if it has no room."""
        mine = [n for n, known in enumerate(self.calls) if call.incident and known.incident == call.incident]
        others = [n for n, known in enumerate(self.calls) if known.before] if self.called_enough else []
        for place in (*mine, *others):
            return replace(self, calls=(*self.calls[:place], call, *self.calls[place + 1 :]))
        return self.called(call)

    @property
    def called_at_once(self) -> bool:
        """Whether anything calls for its end that cannot wait for a save."""
        return self.stop_now or bool(self.pressing)

    @property
    def pressing(self) -> tuple[Call, ...]:
        """Calls that cannot wait. Whoever ends by himself while others wait for him has ended by himself."""
        return tuple(call for call in self.calls if not call.before)

    def called(self, *calls: Call) -> "Job":
        """The job with these calls, as far as it has room: one is enough for its end, so those it has are kept."""
        return replace(self, calls=(*self.calls, *calls)[: max(KEEP_CALLS, len(self.calls))])

    @property
    def called_enough(self) -> bool:
        return len(self.calls) >= KEEP_CALLS

    def awaits(self, intent: str) -> bool:
        """Whether it still waits for exactly this intent."""
        return intent == self.intent or intent in self.fences

    @property
    def pool(self) -> str:
        """The pool that it asks for. Its nodes may be in another: ask them."""
        return pool_of(self.spec.cluster, self.spec.pool)


def plain_path(path: str) -> str:
    """An absolute path without what says nothing. Links cannot be followed here: rank 0 sees where they lead."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in {"", "."}:
            parts.append(part)
    return "/" + "/".join(parts)


JOB_LIFE: StateMachine[JobState, Job] = StateMachine(
    "job",
    [
        Step(JobState.QUEUED, "claim", JobState.GATING),
        Step(JobState.QUEUED, "appear", JobState.RUNNING),  # an allocation or a native start that we did not choose
        Step(JobState.QUEUED, "stopped", JobState.STOPPED),
        Step(JobState.QUEUED, "fail", JobState.FAILED),
        Step(JobState.GATING, "started", JobState.RUNNING),
        Step(JobState.GATING, "restarted", JobState.RUNNING),  # ours ended before it was seen, or has not begun
        Step(JobState.GATING, "unclaim", JobState.QUEUED),
        Step(JobState.GATING, "stop", JobState.STOPPING),
        Step(JobState.GATING, "fail", JobState.FAILED),
        Step(JobState.GATING, "stopped", JobState.STOPPED),
        Step(JobState.RUNNING, "complete", JobState.COMPLETE),
        Step(JobState.RUNNING, "stop", JobState.STOPPING),
        Step(JobState.RUNNING, "ended", JobState.DIAGNOSING),
        Step(JobState.RUNNING, "restarted", JobState.RUNNING),
        Step(JobState.RUNNING, "stopped", JobState.STOPPED),
        Step(JobState.STOPPING, "ended", JobState.DIAGNOSING),
        Step(JobState.STOPPING, "stopped", JobState.STOPPED),
        Step(JobState.STOPPING, "complete", JobState.COMPLETE),  # it finished before our stop reached it
        Step(JobState.STOPPING, "restarted", JobState.RUNNING),
        Step(JobState.STOPPING, "spared", JobState.RUNNING),  # its stop was not sent, and nobody wants it any more
        Step(JobState.DIAGNOSING, "requeue", JobState.QUEUED),
        Step(JobState.DIAGNOSING, "fail", JobState.FAILED),
        Step(JobState.DIAGNOSING, "stopped", JobState.STOPPED),
        Step(JobState.DIAGNOSING, "restarted", JobState.RUNNING),
    ],
)
