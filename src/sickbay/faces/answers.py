"""The response schema: what the API answers and the command line prints as JSON, one typed value each.

Handlers return these, and the OpenAPI document is made of them. No field has a default: what is named here is always
there.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta

from sickbay.model.fault import Remedy, Severity
from sickbay.model.incident import IncidentKind, Phase
from sickbay.model.job import EndReason, JobState
from sickbay.model.noun import Noun
from sickbay.model.order import OrderVerdict
from sickbay.model.shown import NodeState

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"}, description="ISO 8601, UTC, milliseconds")]
Seconds = float


class Error(Noun):
    error: Annotated[str, Meta(description="one line that says what to do")]


class Index(Noun):
    name: str
    version: str
    about: str
    openapi: str
    routes: dict[str, str]


class Health(Noun):
    status: str
    leads: bool | None
    version: str


class NodeDevice(Noun):
    index: int
    serial: str


class NodeAnswer(Noun):
    id: str
    pool: str
    state: NodeState
    schedulable: bool
    boot_id: str | None
    instance_id: str | None
    devices: list[NodeDevice]
    job: str | None
    jobs: list[str]
    incident: str | None
    cordons: list[str]
    because: str


class PointAnswer(Noun):
    at: Time
    mean: float
    highest: float


class Series(Noun):
    node: str
    series: list[str]
    points: list[PointAnswer]


class Stages(Noun):
    detected: Time | None
    stopped: Time | None
    diagnosed: Time | None
    placed: Time | None
    gated: Time | None
    started: Time | None
    first_step: Time | None


class InterruptionAnswer(Noun):
    attempt: int
    cause: str
    incidents: list[str]
    stages: Stages
    training_again_after: Seconds | None


class RankEndAnswer(Noun):
    rank: int
    node: str
    exit_code: Annotated[int | None, Meta(description="negative: the number of the signal that ended it")]
    signal: Annotated[str | None, Meta(description="such as SIGKILL, also where a shell told it as 137")]
    why: Annotated[str, Meta(description="where its node knows more")]
    at: Time | None


class AttemptAnswer(Noun):
    number: int
    began_at: Annotated[Time | None, Meta(description="its nodes were claimed")]
    started_at: Annotated[Time | None, Meta(description="all its ranks were seen")]
    ended_at: Annotated[Time | None, Meta(description="null: it is the present one")]
    nodes: Annotated[int, Meta(description="how many")]
    names: Annotated[list[str], Meta(description="of its nodes, a thousand at most")]
    reason: Annotated[EndReason | None, Meta(description="null: it runs, was stopped, or nobody said how it ended")]
    first_failed: Annotated[RankEndAnswer | None, Meta(description="the rank that ended badly first, if it is known")]
    exit_codes: Annotated[dict[str, int], Meta(description="by node, where ranks are not told apart")]
    because: str
    last_lines: Annotated[list[str], Meta(description="that the failing rank wrote; its log has all")]


class QueuePlace(Noun):
    """Where a job stands that waits for nodes."""

    position: Annotated[int, Meta(description="1: at the head of the queue of its pool")]
    of: int
    behind: Annotated[str | None, Meta(description="the job at the head; null: itself")]
    place_kept: Annotated[bool, Meta(description="it was interrupted, and nodes are kept for it")]
    priority: int


class JobAnswer(Noun):
    id: str
    name: str
    owner: Annotated[str, Meta(description="whose token submitted it; empty: nobody whom Sickbay knows")]
    state: JobState
    attempt: int
    restarts: int
    pool: Annotated[str, Meta(description="<cluster>/<pool>")]
    nodes: list[str]
    step: int | None
    resumed_from: int | None
    resumed_of: Annotated[str | None, Meta(description="the job that saved what it resumed from; null: this one")]
    continues: Annotated[str | None, Meta(description="the ended job from whose checkpoints it goes on")]
    continued_by: Annotated[str | None, Meta(description="the later job that goes on from its checkpoints")]
    saved: Annotated[int | None, Meta(description="the newest step that is saved")]
    saved_at: Time | None
    save_failed: Annotated[str, Meta(description="what was not saved last, and why; empty once a save has succeeded")]
    doing: Annotated[str, Meta(description="a long piece of work besides its steps, and how far it is")]
    checkpoint: Annotated[str, Meta(description="the directory of its checkpoints, as far as it is known here")]
    submitted_at: Time
    ended_at: Time | None
    diagnosis: Annotated[str, Meta(description="why it ended; of one that completed, was stopped or runs: empty")]
    interruptions: list[InterruptionAnswer]
    queue: Annotated[QueuePlace | None, Meta(description="null: it waits in no queue of Sickbay's")]
    because: str


class OneJob(JobAnswer):
    """A job by itself."""

    command: list[str]
    cwd: str
    env: Annotated[list[str], Meta(description="names of the variables that were given with it: values are not shown")]
    env_files: list[str]
    storage: Annotated[list[str], Meta(description="shared directories that each node must reach before a start")]
    image: Annotated[str, Meta(description="the container image of its ranks; empty: none was named")]
    native: Annotated[dict[str, Any], Meta(description="what it says in its cluster's own words")]
    attempts: Annotated[list[AttemptAnswer], Meta(description="the newest 60, oldest first, with the present one")]


class FaultSeen(Noun):
    code: str
    component: str
    severity: Severity
    evidence: list[str]


class PhaseEntered(Noun):
    phase: Phase
    entered_at: Time
    seconds: Seconds | None
    because: str


class RungTried(Noun):
    rung: Remedy
    result: str
    at: Time


class IncidentAnswer(Noun):
    id: str
    node: str
    incident_kind: IncidentKind
    fault: FaultSeen
    remedy: Remedy
    phase: Phase
    opened_at: Time
    closed_at: Time | None
    stages: list[PhaseEntered]
    tries: list[RungTried]
    jobs: list[str]
    because: str


class ToldLine(Noun):
    at: Time
    what: Literal["happened", "seen", "decided", "done"]
    about: str
    text: str
    event: str


class ToldEvent(ToldLine):
    """As the stream of events tells it: with every row that it is about."""

    subjects: list[str]


class ChangedRow(Noun):
    kind: str
    id: str
    gone: bool


class SeatOut(Noun):
    """One seat that uses up what its pool may lack."""

    node: str
    incident: str | None
    since: Time | None
    because: str
    command: Annotated[str, Meta(description="what brings it back, where a person must decide; else empty")]


class PoolBudget(Noun):
    """What a pool may lack. The limits are null where the policy in force is not known here."""

    pool: str
    size: int
    out: int
    may_be_out: int | None
    repairing: int
    may_be_repairing: int | None
    held: int
    used_by: Annotated[list[SeatOut], Meta(description="the seats that are out, by name; of many the first eight")]


class Estimate(Noun):
    """When a deadline will pass on the wall, if its clock goes on as it does."""

    about: Time
    clock: str
    stands_since: Annotated[Time | None, Meta(description="its source is not heard: the deadline comes no nearer")]


class WayOut(Noun):
    """What would change a wait, and the command that does it; empty where no command does."""

    what: str
    command: str


class WaitedOn(Noun):
    """Who keeps a job waiting: a node with its incident, another job; and what that one waits for itself."""

    about: Annotated[str, Meta(description="an incident's or a job's id")]
    node: str
    state: str
    because: str
    since: Time | None
    until: Estimate | None
    then: str
    ways_out: tuple[WayOut, ...]


class Waiting(Noun, omit_defaults=False):
    """Why nothing happens now, and what would make something happen."""

    because: str
    since: Annotated[Time | None, Meta(description="when it entered its present state")] = None
    until: Estimate | None = None
    then: Annotated[str, Meta(description="what happens at that time")] = ""
    would: Annotated[str, Meta(description="all that would be done if nothing held it back")] = ""
    changed_by: tuple[str, ...] = ()
    ways_out: Annotated[tuple[WayOut, ...], Meta(description="the same, with the command to paste for each")] = ()
    behind: Annotated[tuple[WaitedOn, ...], Meta(description="whom a job waits for, with their own waits")] = ()
    budget: PoolBudget | None = None
    notes: Annotated[tuple[str, ...], Meta(description="what else keeps it: a silent source, a call in doubt")] = ()


class OrderAnswer(Noun):
    """What has become of a person's order, as of now."""

    id: str
    verb: str
    target: str
    by: str
    reason: str
    asked_at: Time
    verdict: Annotated[OrderVerdict, Meta(description="done is never said of an order that waits")]
    because: str
    until: Annotated[Time | None, Meta(description="about when this wait ends by itself")]
    then: Annotated[str, Meta(description="what happens at that time")]
    changed_by: Annotated[list[str], Meta(description="of one that waits: what would make it go on")]
    incident: str | None
    job: str | None


class OrderedNode(NodeAnswer):
    order: OrderAnswer


class OrderedIncident(IncidentAnswer):
    order: OrderAnswer


class OrderedJob(JobAnswer):
    order: OrderAnswer


class EarlierStory(Noun):
    """What the story leaves out: it begins with the last chapter unless more is asked for (`all`, `since`)."""

    lines: Annotated[int, Meta(description="of its own story; those of older incidents come with them")]
    incidents: int
    since: Annotated[Time | None, Meta(description="when the oldest of them was told")]


class ExplainedNode(NodeAnswer, tag_field="kind", tag="node"):
    now: Annotated[str, Meta(description="the present in one sentence")]
    story: list[ToldLine]
    chapter: Annotated[str, Meta(description="what the story tells: the last incident, the last interruption, all")]
    earlier: EarlierStory
    waits_for: Waiting | None
    as_of: Time | None


class ExplainedJob(OneJob, tag_field="kind", tag="job"):
    now: Annotated[str, Meta(description="the present in one sentence")]
    story: list[ToldLine]
    chapter: Annotated[str, Meta(description="what the story tells: the last incident, the last interruption, all")]
    earlier: EarlierStory
    waits_for: Waiting | None
    as_of: Time | None


class ExplainedIncident(IncidentAnswer, tag_field="kind", tag="incident"):
    now: Annotated[str, Meta(description="the present in one sentence")]
    story: list[ToldLine]
    chapter: Annotated[str, Meta(description="what the story tells: the last incident, the last interruption, all")]
    earlier: EarlierStory
    waits_for: Waiting | None
    as_of: Time | None


ExplainAnswer = ExplainedNode | ExplainedJob | ExplainedIncident


class LogPiece(Noun):
    rank: int
    attempt: int
    text: str
    next: Annotated[str, Meta(description="an opaque place: give it as `after` to read on")]
    over: bool


class Injected(Noun):
    node: str
    done: str
