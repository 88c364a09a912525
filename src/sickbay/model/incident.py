"""The life of one illness of one node."""

from datetime import datetime
from enum import StrEnum

from msgspec.structs import replace

from sickbay.model.clock import Deadline
from sickbay.model.fault import Fault, Remedy, touches
from sickbay.model.fleet import Incarnation, IncidentId, JobId, NodeId
from sickbay.model.noun import Noun
from sickbay.model.state_machine import StateMachine, Step


class Phase(StrEnum):
    SUSPECT = "SUSPECT"
    WATCHED = "WATCHED"
    QUARANTINED = "QUARANTINED"
    DRAINING = "DRAINING"
    DRAINED = "DRAINED"
    REPAIRING = "REPAIRING"
    VERIFYING = "VERIFYING"
    HELD = "HELD"
    RELEASED = "RELEASED"
    DISMISSED = "DISMISSED"
    REPLACED = "REPLACED"
    GONE = "GONE"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL

    @property
    def out(self) -> bool:
        """The node is out of service by our hand."""
        return self in OUT


TERMINAL = frozenset({Phase.RELEASED, Phase.DISMISSED, Phase.REPLACED, Phase.GONE})
OUT = frozenset({Phase.QUARANTINED, Phase.DRAINING, Phase.DRAINED, Phase.REPAIRING, Phase.VERIFYING, Phase.HELD})


class IncidentKind(StrEnum):
    FAULT = "fault"
    INTAKE = "intake"
    OPERATOR = "operator"


class Stage(Noun):
    phase: Phase
    entered_at: datetime
    because: str


class Try(Noun):
    """One go at one rung."""

    rung: Remedy
    result: str  # started | done | failed: <why> | by others
    at: datetime


class Proven(Noun):
    """The passed check that lets a node go back."""

    check: str
    incarnation: Incarnation
    repairs: int  # how many tries had been made when it passed: newer than the last repair, or worthless
    at: datetime | None = None


ORDERS_MOST = 8  # of people, waiting in one incident; whoever comes then is refused and told so


class Verb(StrEnum):
    """What an incident may be asked for. The last two nobody asks for: others have done them."""

    CONFIRM = "confirm"
    HOLD = "hold"
    DISMISS = "dismiss"
    ESCALATE = "escalate"
    UNCORDON = "uncordon"
    CORDON = "cordon"  # this and the next four of a node, which may be treated already
    DRAIN = "drain"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    UNCORDONED = "uncordoned"  # another removed our cordon on the cluster
    CANCEL = "cancel"  # the driver took its own word back


OTHERS_DID = frozenset({Verb.UNCORDONED, Verb.CANCEL})
VOUCH = frozenset({Verb.DISMISS, Verb.UNCORDON})  # a person's word that the node is well


class OperatorRequest(Noun):
    """What was asked of an incident and it has not answered yet, by a person or by what others did."""

    verb: Verb
    by: str
    reason: str
    now: bool = False
    id: str = ""  # of its record; empty: nobody has ordered it, others have done it


class Doubt(Noun):
    """A suspect was withheld: a check must confirm or clear it, or its fault must show itself again."""

    since: float  # reading of ingest: only newer evidence of the fault itself confirms it
    turn: Deadline | None = None  # when its check may begin
    unrun: int = 0  # checks that could not run


class Room(StrEnum):
    """What a pool's limit leaves room for."""

    SEAT = "seat"  # one more that is out
    REPAIR = "repair"  # one more under way


class Wait(Noun):
    """A decision not to act now."""

    because: str
    until: Deadline | None = None
    would: str = ""  # the act that is withheld
    queued: bool = False  # a job that stands in the queue of its pool (`brain.queue`)
    room: Room | None = None  # it stands in a queue of its pool, and is called when there is room (`engine.seats`)
    ends: tuple[str, ...] = ()  # what would end it before, where no intent under way says so; for people
    then: str = ""  # what happens at `until`; for people
    opens: datetime | None = None  # on the wall: when what withholds ends by itself, which may be long after `until`


class Incident(Noun):
    id: IncidentId
    node: NodeId
    cluster: str
    pool: str
    kind: IncidentKind
    incarnation: Incarnation | None  # the holder that it is about now
    fault: Fault  # what leads
    opened_at: datetime
    whose: tuple[str, ...] | None = None  # whose history it enters, once the machine that fell ill has left its seat
    phase: Phase = Phase.SUSPECT
    evidence: tuple[str, ...] = ()
    began: float = 0.0  # reading of ingest when it was opened
    seen_at: float = 0.0  # reading of ingest at the newest evidence
    shown_at: float = 0.0  # of that, at the newest evidence of the leading fault itself: same code, same device
    remedy: Remedy = Remedy.NONE
    beside: tuple[int, ...] = ()  # further devices that have shown a fault which asks for a repair
    wide: bool = False  # a further fault that asks for a repair is about all of the node
    others: tuple[
        Fault, ...
    ] = ()  # further faults that ask for a repair: what excuses the leading one may not excuse them
    least: Remedy = Remedy.NONE  # asked for by a person or for another device: no advice of the driver goes below it
    needs_human: bool = False
    tries: tuple[Try, ...] = ()
    spent: int = 0  # of those, made before a person's order: the ladder begins anew behind them
    healed: Remedy | None = None  # a rung that others did (a reboot by hand, the boot that ended with its last words)
    relapse: str = ""  # a fault from the new boot while REPAIRING or VERIFYING: fails the rung
    proof: Proven | None = None
    cut_short: int = (
        0  # checks in a row that a new boot has ended: a machine that falls under each is not checked for ever
    )
    bared: bool = False  # our cordon went with the incarnation that it was on: it is put back before anything else
    serves: bool = False  # and may not be put back now: the seat is in service, and is not counted as out
    cordon_as_of: float | None = None  # our cordon has been seen: a newer read without it means that another removed it
    cordon_from: float | None = None  # reads up to here may be older than a change of incarnation: they confirm nothing
    intent: str = ""  # key of the intent under way
    loose: tuple[str, ...] = ()  # keys of repairs and drains that it has let go of; they may still take effect
    astray: bool = False  # a repair is among those: it counts as one of its pool's until it is over
    acts: int = 0  # how many intents this incident has made: names the next key
    orders: tuple[OperatorRequest, ...] = ()  # a queue, oldest first
    ordered: bool = False  # a person asked for its treatment: it passes observe, recommend and brakes
    cordoned: bool = False  # by a person, besides: after its proof it is held, and returns by his word
    kept: bool = False  # a person wants the node out of service, whether it is well or not, until he says otherwise
    now: bool = False  # an operator's --now: no windows, no waiting
    to_verify: bool = False  # once the node is empty a check is next, whatever its fault asks for
    closing: Phase | None = None  # what it becomes when our cordon is seen gone
    closing_why: str = ""
    doubt: Doubt | None = None  # while SUSPECT: it was withheld, and must be confirmed or cleared
    sequel: Fault | None = None  # seen while it closes: it opens the next incident
    later: tuple[OperatorRequest, ...] = ()  # what people asked for while it closes: the next incident begins with it
    deadline: Deadline | None = None  # of the phase
    wait: Wait | None = None
    stages: tuple[Stage, ...] = ()
    jobs: tuple[JobId, ...] = ()  # attempts that it interrupted
    told: tuple[str, ...] = ()  # notifications that were sent once and are not sent again
    told_through: tuple[str, ...] = ()  # channels that may have heard of it: some want to hear that it is over
    paged_through: tuple[str, ...] = ()  # channels that were told once that it waits for a person
    digest: str = ""  # policy and knowledge of the last decision
    closed_at: datetime | None = None

    @property
    def open(self) -> bool:
        return not self.phase.terminal

    def about(self, held: tuple[int, ...]) -> bool:
        """Whether any of its faults is about what somebody holds of the node: these devices, or with () all of it."""
        return self.wide or touches(self.fault, held) or bool(set(self.beside) & set(held))

    @property
    def queues_for(self) -> Room | None:
        """What it needs of its pool's limit before it can go on, and has not got."""
        return self.wait.room if self.open and self.wait is not None else None

    @property
    def repairs(self) -> bool:
        """Whether it counts among the repairs under way in its pool."""
        return self.phase is Phase.REPAIRING or (self.astray and self.open)

    @property
    def as_good_as_over(self) -> bool:
        """What is seen from now on is news: the node was proven well, or a person has vouched for it."""
        return self.closing is not None or any(order.verb in VOUCH for order in self.orders)

    @property
    def rung(self) -> Remedy | None:
        """The newest one of the ladder that it is on now."""
        return self.tries[-1].rung if len(self.tries) > self.spent else None


def enqueue(incident: Incident, order: OperatorRequest) -> Incident:
    """The incident with one more order at the end of its queue; what others did is asked once."""
    if order.verb in OTHERS_DID and any(waiting.verb == order.verb for waiting in incident.orders):
        return incident
    return replace(incident, orders=(*incident.orders, order))


def proven(incident: Incident) -> bool:
    """Proof before return: a passed check of the present incarnation, newer than the last repair."""
    proof = incident.proof
    return proof is not None and proof.incarnation.agrees(incident.incarnation) and proof.repairs == len(incident.tries)


def last_repair(incident: Incident) -> Remedy | None:
    """What was done to the machine for an ended incident, by us or by others, if that proves that it was sick.

    A repair after which its check passed does; so does one that did not help, after which it was held and is gone. What
    a person dismissed, or what came back by itself, proves nothing.
    """
    done = incident.healed or next((t.rung for t in reversed(incident.tries) if t.rung.disrupts), None)
    held = any(stage.phase is Phase.HELD for stage in incident.stages)
    proves = incident.phase in {Phase.RELEASED, Phase.REPLACED} or (incident.phase is Phase.GONE and held)
    return done if proves else None


REPAIR_WORDS = {Remedy.RESET_GPU: "reset its GPUs", Remedy.REBOOT: "reboot it", Remedy.REPLACE: "replace its machine"}


def treatment(incident: Incident) -> str:
    """All that would follow if nothing held it back, in words: not only the next act."""
    repair = REPAIR_WORDS.get(incident.remedy)
    rest = f"{repair}, check it, put it back to work" if repair else "check it, put it back to work"
    if incident.kind is IncidentKind.OPERATOR and not incident.remedy.disrupts:
        rest = "keep it out of service for a person"
    return rest if incident.phase.out else f"cordon {incident.node}, move its jobs off, {rest}"


def _held_from(*phases: Phase) -> list[Step[Phase, Incident]]:
    return [Step(phase, "hold", Phase.HELD) for phase in phases]


_OPEN = tuple(phase for phase in Phase if phase not in TERMINAL)

TRANSITIONS: StateMachine[Phase, Incident] = StateMachine(
    "incident",
    [
        Step(Phase.SUSPECT, "watch", Phase.WATCHED),
        Step(Phase.SUSPECT, "quarantine", Phase.QUARANTINED),
        Step(Phase.QUARANTINED, "defer", Phase.SUSPECT),  # its cordon is not admitted any more, before it was sent
        Step(Phase.REPAIRING, "defer", Phase.DRAINED),  # nor is its repair
        Step(Phase.WATCHED, "raise", Phase.SUSPECT),
        Step(Phase.QUARANTINED, "drain", Phase.DRAINING),
        Step(Phase.QUARANTINED, "empty", Phase.DRAINED),
        Step(Phase.DRAINING, "empty", Phase.DRAINED),
        Step(Phase.DRAINED, "drain", Phase.DRAINING),  # the next rung needs more of the node than the last one did
        Step(Phase.DRAINED, "repair", Phase.REPAIRING),
        Step(Phase.DRAINED, "verify", Phase.VERIFYING),
        Step(Phase.REPAIRING, "repaired", Phase.VERIFYING),
        Step(Phase.REPAIRING, "replaced", Phase.REPLACED),
        Step(Phase.REPAIRING, "fail", Phase.DRAINED),
        Step(Phase.VERIFYING, "fail", Phase.DRAINED),
        Step(Phase.VERIFYING, "drain", Phase.DRAINING),  # work is there: no check disturbs it
        Step(Phase.VERIFYING, "cordon", Phase.QUARANTINED),  # released on a proof that a newer boot has made worthless
        Step(Phase.VERIFYING, "release", Phase.RELEASED, proven),
        Step(Phase.HELD, "escalate", Phase.DRAINED),
        Step(Phase.HELD, "verify", Phase.VERIFYING),
        Step(Phase.HELD, "drain", Phase.DRAINING),  # left by an operator while work is there: the check comes after it
        Step(Phase.HELD, "quarantine", Phase.QUARANTINED),  # or while our cordon is not
        *_held_from(*(phase for phase in _OPEN if phase is not Phase.HELD)),
        *(Step(phase, "dismiss", Phase.DISMISSED) for phase in _OPEN),
        *(Step(phase, "gone", Phase.GONE) for phase in _OPEN),
    ],
)
