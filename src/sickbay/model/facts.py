"""Facts: everything the engine learns, numbered by the store, kept as a log.

Reports of agents, deltas of clusters, outcomes of effects and operators' commands are all facts. A fact's `id` makes
a second delivery of it harmless.
"""

from datetime import datetime
from enum import StrEnum

from sickbay.model.checkup import StorageSeen, Tested, Verdict
from sickbay.model.fleet import Device, Incarnation, JobId, NodeId, Role
from sickbay.model.job import End, JobSpec, RankState
from sickbay.model.noun import Noun


class News(Noun, tag_field="news"):
    """What a fact says."""


AGENT_ANSWERED = "agent.answered"  # what became of something that a person asked of a node's agent


class Observed(News, tag="observed"):
    """One fact from a probe: whoever reads a source parses it; `text` is evidence only."""

    node: NodeId
    kind: str  # xid, sxid, node.going_down …
    fields: dict[str, str | int] = {}
    text: str = ""
    incarnation: Incarnation | None = None
    ended: bool = False  # the agent that said it knows that this boot has ended since
    last_words: bool = False  # read under a boot that has ended (spooled, or from that boot's journal)
    count: int = 1
    unconfirmed: bool = False  # any program could have written it, and no witness tells it: shown, never acted upon


class AgentSilent(News, tag="agent_silent"):
    node: NodeId
    since: float  # reading of ingest


class AgentHeard(News, tag="agent_heard"):
    """An agent's first word: after a start, or after silence."""

    node: NodeId
    incarnation: Incarnation


class Booted(News, tag="booted"):
    """An agent is heard under another boot, which began when the fact is dated, by the agent's own clock."""

    node: NodeId
    incarnation: Incarnation


class Inventory(News, tag="inventory"):
    """Which devices an agent finds in its machine. Many a cluster counts them only, or does not even do that."""

    devices: tuple[Device, ...]
    linked: bool | None = None  # NVLink ties them; None: the agent cannot tell
    node: NodeId = NodeId("")
    incarnation: Incarnation | None = None


class NodeSeen(News, tag="node_seen"):
    """What a cluster says of one seat."""

    node: NodeId
    cluster: str
    pool: str  # the cluster's own word
    as_of: float
    incarnation: Incarnation
    domain: str = ""
    devices: tuple[Device, ...] = ()
    linked: bool | None = None  # None: the cluster cannot tell
    ready: bool = True
    cordons: tuple[str, ...] = ()
    unmanaged: int = 0
    first_connection: bool = False  # seen while we first read this cluster: it is no newcomer


class NodeVanished(News, tag="node_vanished"):
    node: NodeId
    as_of: float


class JobSeen(News, tag="job_seen"):
    """What a cluster says of one job's attempt: which nodes its ranks are on, and how it ended, if it did."""

    job: JobId
    attempt: int
    as_of: float
    # A cluster that chooses nodes itself lists them as running from the allocation on: there is no word
    # for "starting", and a node that is not listed is not claimed.
    ranks: dict[NodeId, RankState] = {}
    end: End | None = None
    native: bool = False  # begun by the job's own controller, not by us
    spec: JobSpec | None = None  # of a job that others submitted
    cluster: str = ""


class JobVanished(News, tag="job_vanished"):
    """A cluster has a job no more. Not `sure`: one list did not have it; the next that does not makes it so."""

    job: JobId
    as_of: float
    sure: bool = True
    cluster: str = ""


class Stepped(News, tag="stepped"):
    """Rank 0 reports its step."""

    job: JobId
    attempt: int
    step: int
    resumed_from: int | None = None
    resumed_of: str = ""  # the job that saved it, if that was another one
    skipped: tuple[str, ...] = ()  # newer checkpoints that could not be used, each with its reason
    loss: float | None = None
    fenced: bool = False  # the script says (`heartbeat(…, fenced=True)`) that no older attempt can commit any more
    node: NodeId | None = None  # whose agent says so


class Checkpointed(News, tag="checkpointed"):
    """How rank 0 stands with its checkpoints: all that is so now, whatever was said before.

    `busy`: what it verifies, loads or saves, `done` bytes of `of`. `saved`: the newest step that this attempt has
    committed. `failed`: the step that was not saved, and why. `listens`: it can be asked to save. `answered`: the
    newest ask that a save has followed.
    """

    job: JobId
    attempt: int
    saved: int | None = None
    failed: str = ""
    busy: str = ""
    done: int = 0
    of: int = 0
    listens: bool = False
    answered: str = ""
    opened: bool = False  # its script has shown that it uses sickbay.train
    directory: str = ""  # where its checkpoints are
    node: NodeId | None = None  # whose agent says so


class Wrote(News, tag="wrote"):
    """The end of what a rank wrote, told by its agent when the cluster could not tell it with the attempt's end."""

    job: JobId
    attempt: int
    text: str
    node: NodeId | None = None  # whose agent says so


class RankEnded(News, tag="rank_ended"):
    """How one rank ended, told by its node's agent: many a cluster knows no ranks, or no exit codes, or no output."""

    job: JobId
    attempt: int
    rank: int
    exit_code: int | None = None  # negative: the signal that ended it; None: nobody knows
    stopped: bool = False  # it was asked to end: its exit says nothing about it
    why: str = ""
    tail: str = ""  # the end of what it wrote, of the first on its node that ended badly
    node: NodeId | None = None  # whose agent says so


class RankWaits(News, tag="rank_waits"):
    """A rank's launcher gives the others up at its rendezvous sooner than a repair takes (`OPEN_FOR`)."""

    job: JobId
    attempt: int
    seconds: float
    node: NodeId | None = None  # whose agent says so


class Hung(News, tag="hung"):
    job: JobId
    attempt: int
    because: str
    unbegun: bool = False  # no first heartbeat came, of a rank that may never send one if another does
    node: NodeId | None = None  # whose agent says so


class RuleOff(News, tag="rule_off"):
    """A log rule of a job is not used any more: its pattern takes too long, or cannot be used."""

    job: JobId
    attempt: int
    rule: str
    because: str
    node: NodeId | None = None  # whose agent says so


class Checked(News, tag="checked"):
    """A check's verdict on one node."""

    check: str  # the key of the Verify intent, or a check that a person or a schedule started
    node: NodeId
    verdict: Verdict
    incarnation: Incarnation
    level: int = 0
    because: str = ""
    tests: tuple[Tested, ...] = ()
    storage: tuple[StorageSeen, ...] = ()  # of the directories that were asked for: no word on the node's health


class Looked(News, tag="looked"):
    """A node's watermark has passed what a Look asked for: all faults up to then have been reported before this."""

    look: str
    node: NodeId
    incarnation: Incarnation
    text: str = ""  # what its ranks were doing, where stacks were asked for


class ResetDone(News, tag="reset_done"):
    key: str
    node: NodeId
    incarnation: Incarnation


class CallResult(StrEnum):
    """What came of one call of an effect."""

    ACCEPTED = "accepted"
    DONE = "done"  # accepted, and its own proof
    REJECTED = "rejected"
    GONE = "gone"  # rejected because the target is not there any more
    TRANSIENT = "transient"  # it did not take effect
    UNKNOWN = "unknown"  # whether it took effect


class Outcome(News, tag="outcome"):
    """What a call returned."""

    key: str
    result: CallResult
    sends: int  # which sending of the intent this answers; 0: an agent's own word
    text: str = ""
    node: NodeId = NodeId("")  # whose agent says so
    visible_from: float = 0.0
    hopeless: bool = False  # rejected: another try cannot come right
    again_after: float = 0.0  # seconds that a far side which was busy asks for


class Ordered(News, tag="ordered"):
    """An operator's command."""

    verb: str
    target: str  # node, incident or job
    by: str
    reason: str
    now: bool = False
    args: dict[str, str] = {}


class Submitted(News, tag="submitted"):
    job: JobId
    spec: JobSpec
    by: str = ""  # the name of whose token it was
    owner: str = ""  # whose job it is, where that is another: an operator restarts somebody's
    reason: str = ""  # why an earlier job is continued


class TokenIssued(News, tag="token_issued"):
    """A credential came into being. Only its hash is ever stored."""

    hash: str  # SHA-256 of the secret, in hex
    name: str
    role: Role
    by: str
    node: NodeId | None = None  # an agent's: the only node that it may report for
    cluster: str = ""  # a join token's: the only one that it is good for
    instance_id: str = ""  # of the machine whose agent asked to join; the name may be taken by another
    seconds: float | None = None  # it expires so long after it was issued
    anew: bool = False  # it takes the place of every token of its name; else a name that is taken is refused
    reason: str = ""


class JoinRefused(News, tag="join_refused"):
    """A machine asks again and again to join under a name that another one has. A person is told."""

    node: NodeId
    instance_id: str
    holder: str
    by: str  # the join token's name
    because: str


class TokenRevoked(News, tag="token_revoked"):
    name: str
    by: str
    reason: str = ""


class TokensUsed(News, tag="tokens_used"):
    """When some tokens were last used: told for many at once, and rarely."""

    hashes: tuple[str, ...]


class PolicyInForce(News, tag="policy_in_force"):
    policy: str
    knowledge: str
    name: str = ""


class ControllerStarted(News, tag="controller_started"):
    """Somebody has started a controller, with these rules."""

    by: str  # the user of the machine
    policy: str  # its digest
    name: str
    source: str = ""  # the file that it was read from, or the shipped name
    knowledge: str = ""


class Garbled(News, tag="garbled"):
    """Stands for a stored fact that cannot be decoded any more. Nobody writes it."""

    because: str


AnyNews = (
    Observed | AgentSilent | AgentHeard | Booted | Inventory | NodeSeen | NodeVanished | JobSeen | JobVanished
    | Stepped | Checkpointed | Wrote | RankEnded | RankWaits | Hung | RuleOff | Checked | Looked | ResetDone | Outcome
    | Ordered | Submitted | TokenIssued | JoinRefused | TokenRevoked | TokensUsed | PolicyInForce | ControllerStarted
    | Garbled
)  # fmt: skip


class Fact(Noun):
    id: str
    at: datetime  # when it happened, as far as we can date it; never the node's wall clock
    news: AnyNews
    seq: int = 0  # given by the store


class EarlyAgent(Noun):
    """An agent that was heard before the cluster spoke of its machine, and what it has said; kept until it does."""

    node: NodeId
    incarnation: Incarnation
    said: tuple[Fact, ...] = ()  # the most telling observations, cut short
    at: datetime | None = None  # of its last word
    heard: bool = True  # not silent since
    told: bool = False  # a person knows that no cluster speaks of its machine: kept over its silence


class Mark(Noun):
    """How a source of facts stands after a read of it; written with what was read."""

    source: str
    at: float  # wall seconds of the success; a store with a time of its own takes that instead
    period: float
    took: float = 0.0  # seconds from the beginning of the read until now, on the reader's monotonic clock
    cursor: str | None = None
    as_of: float | None = None
