"""Intents: imperative decisions, written down before anything is touched, with their doubt."""

from datetime import datetime
from enum import StrEnum

from sickbay.model.checkup import CheckFinding, StorageTally, Verdict
from sickbay.model.clock import Deadline
from sickbay.model.fault import Remedy
from sickbay.model.fleet import DrainHow, Incarnation, IncidentId, JobId, NodeId
from sickbay.model.notice import LOG, NoticeSeverity
from sickbay.model.noun import Noun
from sickbay.model.state_machine import StateMachine, Step


class Act(Noun, tag_field="act"):
    """What is to be done. One shape per act."""


class Quarantine(Act, tag="quarantine"):
    node: NodeId
    owner: str  # sickbay:<incident>
    reason: str


class Drain(Act, tag="drain"):
    node: NodeId
    how: DrainHow


class Repair(Act, tag="repair"):
    node: NodeId
    rung: Remedy
    devices: tuple[int, ...] = ()  # empty: all


class Verify(Act, tag="verify"):
    nodes: tuple[NodeId, ...]
    level: int  # 0: nothing but the storage
    profile: str = ""
    storage: tuple[str, ...] = ()  # directories that a job names, looked at on each node


class Release(Act, tag="release"):
    node: NodeId
    owner: str


class Look(Act, tag="look"):
    nodes: tuple[NodeId, ...]
    stacks_of: JobId | None = None


class AskToSave(Act, tag="ask_to_save"):
    """Ask the ranks of an attempt to save now: they are going to be stopped for something that can wait for it."""

    job: JobId
    attempt: int
    nodes: tuple[NodeId, ...]
    sent_at: datetime | None = None  # first: it may have been withheld for long
    step: int | None = None  # that was known then: whatever is saved of later ones is the answer


class Fence(Act, tag="fence"):
    job: JobId
    attempt: int
    node: NodeId = NodeId("")  # empty in rows from before each node was fenced by an intent of its own


class StopJob(Act, tag="stop_job"):
    job: JobId
    attempt: int
    final: bool = False  # it is not to run again


class StartJob(Act, tag="start_job"):
    job: JobId
    attempt: int
    nodes: dict[NodeId, tuple[int, ...]] = {}  # chosen nodes and their devices (Capability.PLACE)
    avoid: tuple[NodeId, ...] = ()  # elsewhere


class RerunJob(Act, tag="rerun_job"):
    job: JobId
    attempt: int  # the attempt that ended: refused if another has begun
    avoid: tuple[NodeId, ...] = ()


class Notify(Act, tag="notify"):
    """A notice in the outbox. Whoever decides it says what is so; whom it goes to is added when it is posted."""

    event: str
    subject: str  # key of the row that it is about
    text: str
    to: str = LOG  # the channel: the notifier's name
    severity: NoticeSeverity = NoticeSeverity.WARNING
    node: NodeId = NodeId("")
    job: JobId = JobId("")
    incident: IncidentId = IncidentId("")
    fault: str = ""
    pool: str = ""
    at: datetime | None = None
    next: tuple[str, ...] = ()  # channels that are told, one after the other, if this one takes it not
    next_after: float = 0.0  # seconds that each is given
    pass_on: Deadline | None = None  # when the next one is told though this one is still tried
    passed_on: bool = False
    settled_at: datetime | None = None  # delivered, or given up: counted and told once

    @property
    def about(self) -> str:
        """The name of what it is about, without the kind of its row."""
        return self.subject.partition(":")[2]


class Strike(Act, tag="strike"):
    """Take back from the agents' mail what an intent has posted there: who has not begun it never will."""

    intent: str  # its key


AnyAct = (
    Quarantine | Drain | Repair | Verify | Release | Look | AskToSave | Fence | StopJob | StartJob | RerunJob | Notify
    | Strike
)  # fmt: skip


class IntentState(StrEnum):
    PLANNED = "PLANNED"
    SENT = "SENT"
    ACCEPTED = "ACCEPTED"
    UNKNOWN = "UNKNOWN"
    SEEN = "SEEN"
    REJECTED = "REJECTED"
    EXPIRED = "EXPIRED"

    @property
    def over(self) -> bool:
        return self in {IntentState.SEEN, IntentState.REJECTED, IntentState.EXPIRED}


class OwnerKind(StrEnum):
    """For what an intent is done: the kind of row that its owner names."""

    NOBODY = ""  # a notice in the outbox, a letter that is struck
    INCIDENT = "incident"
    JOB = "job"
    CHECKUP = "checkup"


class Intent(Noun):
    key: str  # names the effect for ever: sending it twice has one effect
    owner: str  # row key of what it is done for ("" for the outbox)
    cluster: str
    pool: str
    act: AnyAct
    because: str
    planned_at: datetime
    clock: str  # the source that will show it
    call_timeout: float  # seconds; ends the call
    patience: float  # seconds on `clock` from the sending until it must have been seen
    blind: bool = False  # cannot promise one effect per key: UNKNOWN is never sent again
    expect: Incarnation | None = None
    state: IntentState = IntentState.PLANNED
    sends: int = 0
    not_before: Deadline | None = None  # paces what was Transient
    sent_at: float = 0.0  # reading of `clock`
    seen_by: Deadline | None = None
    doubted: int = 0  # the first sending of which nobody knows whether it took effect; 0: none
    withdrawn: bool = (
        False  # its owner wants it no longer; what may have come of it, if it was sent, is awaited all the same
    )
    refused: bool = False  # a later sending than that was refused: awaited, never sent again
    withheld: bool = False  # it was we who refused it (a pause, a brake): that it is not seen says nothing of the rung
    doubt_until: float = 0.0  # as_of that a read must have reached before absence means absence
    visible_from: float = 0.0  # as_of from which it must be visible; older facts are not held against it
    answer: str = ""
    gone: bool = False  # REJECTED because the target is not there any more
    hopeless: bool = False  # REJECTED, and another try cannot come right
    verdicts: dict[NodeId, Verdict] = {}  # what a check or a look has answered so far
    storage: StorageTally | None = None  # what a gate has found of its job's storage
    found: dict[NodeId, CheckFinding] = {}  # a check's verdicts with their reasons, where it has few nodes
    digest: str = ""
    parts: int = 0  # as it is stored: rows that hold the act's nodes and `verdicts` where there are many

    @property
    def done_for(self) -> OwnerKind:
        return OwnerKind(self.owner.partition(":")[0])

    @property
    def lane(self) -> str:
        """Calls of one kind to one cluster, or to one notifier, share workers; whoever hangs stalls only its own."""
        return f"{self.act.to}/Notify" if isinstance(self.act, Notify) else f"{self.cluster}/{type(self.act).__name__}"


def nodes_of(act: AnyAct) -> tuple[NodeId, ...]:
    """Whom an act is done to, where that is named."""
    match act:
        case Quarantine(node=node) | Drain(node=node) | Repair(node=node) | Release(node=node) | Fence(node=node):
            return (node,)
        case Verify(nodes=nodes) | Look(nodes=nodes) | AskToSave(nodes=nodes):
            return nodes
        case _:
            return ()


def may_be_sent_again(intent: Intent) -> bool:
    """Sending it twice has one effect, and nobody has refused it."""
    return not intent.blind and not intent.refused


INTENT_LIFE: StateMachine[IntentState, Intent] = StateMachine(
    "intent",
    [
        Step(IntentState.PLANNED, "send", IntentState.SENT),
        Step(IntentState.PLANNED, "seen", IntentState.SEEN),  # done by others, or by a sending whose answer was lost
        Step(IntentState.PLANNED, "expire", IntentState.EXPIRED),
        Step(IntentState.PLANNED, "unknown", IntentState.UNKNOWN),  # withheld, while an earlier sending is in doubt
        Step(IntentState.PLANNED, "rejected", IntentState.REJECTED),  # a late refusal of a sending that was given up
        Step(IntentState.SENT, "accepted", IntentState.ACCEPTED),
        Step(IntentState.SENT, "rejected", IntentState.REJECTED),
        Step(IntentState.SENT, "transient", IntentState.PLANNED),
        Step(IntentState.SENT, "unknown", IntentState.UNKNOWN),
        Step(IntentState.SENT, "seen", IntentState.SEEN),
        Step(IntentState.ACCEPTED, "seen", IntentState.SEEN),
        Step(IntentState.ACCEPTED, "rejected", IntentState.REJECTED),  # a late refusal by the agent that was asked
        Step(IntentState.ACCEPTED, "expire", IntentState.EXPIRED),
        Step(IntentState.UNKNOWN, "accepted", IntentState.ACCEPTED),
        Step(IntentState.UNKNOWN, "rejected", IntentState.REJECTED),
        Step(IntentState.UNKNOWN, "again", IntentState.PLANNED, may_be_sent_again),
        Step(IntentState.UNKNOWN, "seen", IntentState.SEEN),
        Step(IntentState.UNKNOWN, "expire", IntentState.EXPIRED),
    ],
)
