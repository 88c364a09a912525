"""Nodes, the incarnations that hold their seats, pools' ledgers, and the history that follows hardware."""

from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import NewType

from sickbay.model.clock import Deadline, WatchedClock
from sickbay.model.cordon import others_of
from sickbay.model.noun import Noun

NodeId = NewType("NodeId", str)  # "<cluster>/<name>": a seat
IncidentId = NewType("IncidentId", str)
JobId = NewType("JobId", str)


def cluster_of(node: NodeId) -> str:
    return node.partition("/")[0]


def pool_of(cluster: str, word: str) -> str:
    """The pool's qualified name, `<cluster>/<pool>`: two clusters may use one word for different machines."""
    return word if word.startswith(f"{cluster}/") else f"{cluster}/{word}"


def pool_word(pool: str) -> str:
    """What the cluster itself, and most people, call a pool."""
    return pool.split("/", 1)[-1]


def pool_fits(pool: str, glob: str) -> bool:
    """Globs for pools are written in either form."""
    return fnmatchcase(pool, glob) or fnmatchcase(pool_word(pool), glob)


class Capability(StrEnum):
    """What a pool's cluster, machines and checks can do together. Code asks for these, never for a class."""

    RESTART_SERVICE = "restart_service"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    FENCE = "fence"
    DRAIN = "drain"
    CHECK = "check"
    CHECK_CORDONED = "check_cordoned"
    CHECK_BY_AGENT = "check_by_agent"  # the node's own agent does it: where none was ever heard, none can be done
    LOOK = "look"
    ASK_TO_SAVE = "ask_to_save"  # ranks can be asked to save before they are stopped
    PLACE = "place"  # start(job) takes chosen nodes; without it, nodes to avoid
    RERUN = "rerun"  # a job's own controller can be asked to run it again
    HOLDS = "holds"  # after a stop that is not final a job's own controller leaves it alone until `rerun`
    LOGS = "logs"  # the output of a job's ranks can be read
    SEAT_KEPT = "seat_kept"  # a replaced instance takes the same seat


class DrainHow(StrEnum):
    """How work that Sickbay does not manage is moved off a node."""

    EVICT = "evict"  # asked to leave, as far as its own guards let it
    FORCE = "force"  # ended
    WAIT = "wait"  # until it leaves by itself


class Incarnation(Noun):
    """Identity of who holds a seat, as far as the one who speaks can tell: an empty field is unknown.

    `uid` is the cluster's own name of the registration, `instance_id` that of the machine, `boot_id` the kernel's. A
    reboot changes the last, a replacement all of them. Two sources rarely know the same fields, so statements are
    compared by `agrees`, not by equality.
    """

    uid: str = ""
    instance_id: str = ""
    boot_id: str = ""

    def agrees(self, other: "Incarnation | None") -> bool:
        """No field that both know differs."""
        if other is None:
            return False
        ours, theirs = (self.uid, self.instance_id, self.boot_id), (other.uid, other.instance_id, other.boot_id)
        return all(a == b or not a or not b for a, b in zip(ours, theirs, strict=True))

    def same_holder(self, other: "Incarnation | None") -> bool:
        """Whether both are the same machine. A machine that registers anew has another uid under the same boot."""
        if other is None:
            return False
        if self.instance_id and other.instance_id:
            return self.instance_id == other.instance_id
        if self.boot_id and self.boot_id == other.boot_id:
            return True
        return self.uid == other.uid or not self.uid or not other.uid

    def new_boot(self, before: "Incarnation | None") -> bool:
        """Proof of a reboot: two known boot ids that differ. Filling one in is none."""
        return before is not None and bool(self.boot_id and before.boot_id) and self.boot_id != before.boot_id

    def same_boot(self, other: "Incarnation | None") -> bool:
        """The same machine, and nobody knows of a reboot between the two statements."""
        return other is not None and self.same_holder(other) and not self.new_boot(other)

    def told(self, newer: "Incarnation") -> "Incarnation":
        """What both statements say together; the newer one wins where it knows."""
        return Incarnation(
            uid=newer.uid or self.uid,
            instance_id=newer.instance_id or self.instance_id,
            boot_id=newer.boot_id or self.boot_id,
        )


class Device(Noun):
    index: int
    serial: str = ""


class AgentState(StrEnum):
    NONE = "none"  # no agent has ever been heard here: its silence says nothing
    HEARD = "heard"
    SILENT = "silent"


SIGHTINGS = 16  # of one code on one device that a node remembers one by one


class Sighting(Noun):
    """A fault recently seen on a node, kept only to correlate the next one."""

    code: str
    device: int | None
    at: float  # reading of the ingest clock
    job: str = ""  # the managed job that held the node then
    count: int = 1  # sightings that it stands for

    @property
    def kind(self) -> tuple[str, int | None]:
        return self.code, self.device


MANY_SILENCES = 5  # so many within the time that a fault is watched: the agent comes and goes


class Node(Noun):
    """A seat and what is known of it. Rewritten only when something that a decision reads has changed."""

    id: NodeId
    cluster: str
    pool: str  # <cluster>/<pool>
    domain: str = ""  # topology: rack, switch
    incarnation: Incarnation | None = None  # what cluster and agent know together; None: vacant
    registered: Incarnation | None = None  # the cluster's own word: what it cannot tell, the agent's word decides
    ended_boots: tuple[str, ...] = ()  # the last ones, newest last: what comes from them is history
    left_boot: str = ""  # the one before, while nobody can tell whether it has ended: the seat was made anew since
    boot_ended_by_us: bool = False
    # An agent that cannot name its machine told the present boot while its cluster missed the node, which has not been
    # called ready since: it may be the boot of a machine that the cluster has yet to speak of.
    unconfirmed: bool = False
    unnamed_since: float | None = None  # reading of its cluster's clock: a machine came, and nobody could name it
    dated_boot: tuple[str, datetime] | None = None  # a boot, the next or the present one, and when it began
    devices: tuple[Device, ...] = ()
    linked: bool = True  # NVLink ties the GPUs: one cannot be reset alone
    ready: bool = True  # the cluster's word
    agent: AgentState = AgentState.NONE
    agent_known: bool = False  # one has been heard in this seat, under whichever holder
    silent_at: float | None = None  # reading of ingest when the agent was last heard, while SILENT
    silences: tuple[
        float, ...
    ] = ()  # readings of ingest when the agent was last heard, before each of its last silences
    going_down: Deadline | None = None  # an announced end is not silence
    cordons: tuple[str, ...] = ()  # owners, as `model.cordon` reads them
    unmanaged: int = 0  # pieces of work there that Sickbay does not manage
    as_of: float = 0.0
    incident: IncidentId | None = None
    recent: tuple[Sighting, ...] = ()
    dismissed_at: datetime | None = None  # an operator's own proof: older evidence opens nothing
    proven_at: datetime | None = None  # the check that ended its last incident: older evidence was part of that one
    excused: bool = False  # an exclusion covers its open incident: it may be claimed all the same
    counted: bool = True  # part of its pool's size (a newcomer is not, until it is released)
    vacant_until: Deadline | None = None
    checking: str = ""  # the check of an idle node that runs here: it is nobody's to claim until that is over
    unproven: bool = False  # it was there before us, and its cluster wants such nodes checked once
    check_due: float | None = None  # reading of ingest from which the schedule wants it checked
    # Derived by the unit that writes the row, so that ledger and free list change with their cause:
    out: bool = False
    ours: bool = False  # out by our own hand
    held: bool = False
    claimable: bool = False

    @property
    def name(self) -> str:
        return self.id.split("/", 1)[1]

    @property
    def held_apart(self) -> bool:
        """It waits for a person, and that it is out is his own wish, or it was never in service."""
        return self.held and (not self.counted or (self.out and not self.ours))

    @property
    def away(self) -> bool:
        """It does not come back into service by itself."""
        return self.held or (self.out and not self.ours)

    @property
    def unknown(self) -> bool:
        """Absence is not health: nobody on the node can tell us how it is."""
        return self.agent is AgentState.SILENT

    @property
    def unheard(self) -> bool:
        """An agent is known here, and is not heard under this boot."""
        return self.agent is AgentState.SILENT or (self.agent is AgentState.NONE and self.agent_known)

    @property
    def lost(self) -> bool:
        """Both witnesses are silent (or the only one there is)."""
        return not self.ready and self.agent is not AgentState.HEARD

    @property
    def others_cordon(self) -> bool:
        return bool(others_of(self.cordons))


class Freed(Noun):
    """Raised whenever something of a pool can be claimed that could not before: what jobs wait for that have no nodes.

    Apart from the ledger, which changes with every seat that fails: that helps nobody who waits.
    """

    pool: str
    times: int = 0


class Flipped(Noun):
    """Raised whenever a brake trips or resets. Who is held by it waits on this, and is not woken by its counting."""

    brake: str  # <scope>:<signature>
    times: int = 0


class Ledger(Noun):
    """One row per pool. `out`, `ours` and `repairing` change only in the unit that changes a seat."""

    pool: str  # <cluster>/<pool>
    seats: int = 0  # that count now
    size: int = 0  # what the policy says, else the seats that count: a pool that was scaled down is small
    out: int = 0
    ours: int = 0  # of those, the ones that are out by our own hand
    repairing: int = 0
    held: int = 0
    held_apart: int = 0  # of those, the ones that others' hands keep out, too, or that are none of the seats
    turn: int = 0  # nobody reads it: a claim changes no count, and must still refuse whoever expected this row


class PastIncident(Noun):
    incident: IncidentId
    code: str
    at: float  # reading of ingest when it was opened
    ended: str  # the terminal phase
    rung: str  # the last repair, ours or others'; empty: none, so that nothing was proven


class Record(Noun):
    """The history of one piece of hardware (an instance id or a device serial), never of a seat."""

    subject: str
    past: tuple[PastIncident, ...] = ()
    told_until: datetime | None = None  # when no rule of the policy looks back so far as the newest of `past`


class KnownMachine(Noun):
    """A machine that was seen before: it is no newcomer when it is seen again."""

    subject: str  # holder/<its own name>, or holder/uid/<that of its registration>
    gone_at: datetime | None = None  # since then nobody has seen it
    left: IncidentId | None = None  # of what it had shown, and no check had cleared, when it was last seen


class FormerSeat(Noun):
    """A seat that is gone: its holder, whose ranks may run still, and its boots.

    A late word from one of these is known for what it is when somebody holds the seat again.
    """

    subject: str  # seat/<node>
    gone_at: datetime
    boots: tuple[str, ...] = ()  # the last ones, newest last; that one may run still
    holder: Incarnation | None = None


def read_scope(scope: str) -> tuple[str, str]:
    """A brake's scope: its kind (cluster, pool or domain), and which of that kind."""
    kind, _, name = scope.partition(":")
    return kind, name


class Brake(Noun):
    """One per (scope, signature). While tripped, nothing new is quarantined or repaired for that signature."""

    scope: str  # cluster:<id> | pool:<id> | domain:<id>
    signature: str
    most: int = 0  # distinct nodes at which it trips, by the rule and the pool's size when it was last pressed
    seen: dict[str, float] = {}  # node → reading of ingest when it last showed the signature
    tripped_at: datetime | None = None
    below_since: float | None = None
    reset_at: float | None = None  # evidence older than this must be confirmed by a check
    told: tuple[str, ...] = ()
    parts: int = 0  # as it is stored: rows that hold `seen` where there are many


class ConfirmPace(Noun):
    """A rate limit's token, of the checks that confirm or clear suspects of one signature, one after the other."""

    scope: str  # a brake's
    signature: str
    next_check: float  # reading of ingest


class WithheldActs(StrEnum):
    ALL = "all"  # Quarantine, Drain, Repair and an incident's StopJob
    WORK = "work"  # all but Quarantine: what runs there may go on
    REPAIR = "repair"


class Withhold(Noun):
    """One row of what is withheld. `fault`, `pool` and `node` are globs, the last two with or without the cluster."""

    id: str
    because: str
    by: str
    fault: str = "*"
    pool: str = "*"
    node: str = "*"
    acts: WithheldActs = WithheldActs.ALL
    tell: bool = True
    until: datetime | None = None
    excuse: bool = False  # an excluded fault does not keep its seat from being claimed

    @property
    def pauses(self) -> bool:
        """A person's pause, of everything; else an exclusion."""
        return not self.excuse


class Withholding(Noun):
    """All stored rows of `pause` and `exclude`; one item, read by every admission."""

    rows: tuple[Withhold, ...] = ()
    orders: dict[str, str] = {}  # row → id of the order that it came of


class Role(StrEnum):
    """What a token lets its owner do. Each of people's may do what those before it may; a machine's, that alone."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"
    AGENT = "agent"
    JOIN = "join"


class Token(Noun):
    """A credential. The secret itself is known to its owner only."""

    hash: str
    name: str
    role: Role
    by: str
    issued_at: datetime
    node: NodeId | None = None
    cluster: str = ""  # a join token's: the only one that it is good for
    instance_id: str = ""  # of the machine whose agent got it by joining
    expires_at: datetime | None = None  # on the wall; None: never
    used_at: datetime | None = None  # as far as it was told: up to an hour ago

    def over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now

    @property
    def governs(self) -> bool:
        """Whether it can give out others, and will be able to for good."""
        return self.role is Role.ADMIN and self.expires_at is None


class Aside(Noun):
    """A subject that cannot be planned, or the facts that could not be learned: set aside, with growing back-off."""

    subject: str  # a row's key, or `facts`
    times: int
    why: str
    since: datetime
    again: Deadline  # not tried before
    remind: Deadline  # a person is not told again before


class Errand(Noun):
    """What is left to be done to many jobs for one cause: end their ranks on a node, link them to an incident, or let
    those that have not begun give way to one that has; or to the books of many pools, which a gang has come to or left.
    """

    id: str
    because: str
    at: datetime
    node: Node | None = None  # as it was
    job: JobId | None = None  # to which others give way
    lost: bool = False
    incident: IncidentId | None = None  # to link; None: their ranks there have ended
    device: int | None = None  # of the fault to link; None: it is about all of the node
    reading: float = 0.0  # of the clock of the node's cluster, when their ranks ended
    since: datetime | None = None  # when the node's present boot began, if that is known
    pools: tuple[str, ...] = ()


class Part(Noun):
    """Some of the nodes of a large job, intent or brake: a claim and its ranks, an act's nodes and their verdicts."""

    of: str  # the row's key
    number: int
    owner: str  # the row by which it is kept
    at: datetime
    nodes: dict[NodeId, tuple[int, ...]] = {}  # with their devices
    words: dict[NodeId, str] = {}  # what its ranks do there (`RankState`), or a verdict
    seen: dict[str, float] = {}  # of a brake


class Roster(Noun):
    """Some of the nodes of an attempt that was interrupted, as many names as a row has room for."""

    job: JobId
    attempt: int
    number: int
    at: datetime
    nodes: tuple[NodeId, ...] = ()
    devices: tuple[tuple[int, ...], ...] = ()  # of each node, where it had not all of them; one entry: the same of all

    @property
    def held(self) -> dict[NodeId, tuple[int, ...]]:
        """Each node with its devices; none of them: all."""
        same = len(self.devices) != len(self.nodes)
        each = (self.devices or ((),)) * len(self.nodes) if same else self.devices
        return dict(zip(self.nodes, each, strict=True))


class InForce(Noun):
    """The policy and knowledge in force. Decisions read it, so that a new policy makes every wait due."""

    policy: str
    knowledge: str


class Ages(Noun):
    """Which moment on the wall a reading of the ingest clock was, once for each day: how old is old (retention)."""

    marks: tuple[tuple[float, float], ...] = ()  # reading, wall; oldest first


class Cursor(Noun):
    """Planned up to: committed with what follows from the facts.

    While facts are left to learn, with the clocks that decisions may look at (`learned`), and those that they may look
    at when the facts are learned that were stored before (`ahead`): else who never catches up would never move on.
    """

    at: int = 0
    learned: dict[str, WatchedClock] = {}
    ahead: dict[str, WatchedClock] = {}
