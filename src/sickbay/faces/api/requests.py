"""The request schema: bodies and queries, with their ranges."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from sickbay.brain.submission import NAME, wrong_name
from sickbay.faces.api.refusal import ApiRefusal
from sickbay.model.fleet import Role
from sickbay.model.noun import Noun
from sickbay.ports.breakable import Breakage

DAYS = 86_400.0

Name = Annotated[
    str, Meta(pattern=f"^{NAME}$", description="letters, digits, _ . - (at most 63, a letter or digit first)")
]
Reason = Annotated[str, Meta(min_length=1, max_length=1000, description="why; it goes into the audit log")]
Limit = Annotated[int, Meta(ge=1, le=5000)]
After = Annotated[str, Meta(max_length=300, description="the id of the last one of the page before")]
Level = Annotated[int, Meta(ge=1, le=4)]
Text = Annotated[str, Meta(max_length=4096)]
Span = Annotated[float, Meta(ge=1, le=366 * DAYS, description="seconds")]


def named(name: str, what: str = "name") -> str:
    """A pattern alone lets a line's end pass. Raises ApiRefusal."""
    if wrong := wrong_name(name, what):
        raise ApiRefusal(400, wrong)
    return name


def reasoned(reason: str) -> str:
    """Raises ApiRefusal."""
    if not reason.strip():
        raise ApiRefusal(400, "a reason is missing: say why, it goes into the audit log")
    return " ".join(reason.split())


class RequestBody(Noun, forbid_unknown_fields=True):
    """What people send: a word that is not known is a mistake, not an extension."""


class Nothing(RequestBody):
    """No query."""


class WithReason(RequestBody):
    reason: Reason


class NodeAct(RequestBody):
    reason: Reason
    now: bool = False


class Inject(RequestBody):
    """Exactly one of xid, line, defect. `log`: the node's agent writes the line into the log file that it watches."""

    xid: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    line: Text = ""
    defect: Annotated[str, Meta(max_length=100)] = ""
    device: Annotated[int, Meta(ge=0, le=1023)] = 0
    cured_by: Literal["", "reset", "reboot", "replace", "nothing"] = ""
    log: bool = False
    reason: Annotated[str, Meta(max_length=1000, description="why; asked for where a real node is involved")] = ""

    def breakage(self) -> Breakage:
        given = [name for name, value in (("xid", self.xid), ("line", self.line), ("defect", self.defect)) if value]
        if self.xid == 0:
            given.append("xid")
        if len(given) != 1:
            said = " and ".join(given) if given else "nothing"
            raise ApiRefusal(400, f"give exactly one of xid, line and defect (given: {said})")
        return Breakage(xid=self.xid, line=self.line, defect=self.defect, device=self.device, cured_by=self.cured_by)


class Rule(RequestBody):
    name: Name
    pattern: Annotated[str, Meta(min_length=1, max_length=1000, description="a regular expression (Python)")]
    starts_within: Span | None = None
    recurs_within: Span | None = None


class Submit(RequestBody):
    name: Name
    command: Annotated[tuple[Annotated[str, Meta(max_length=32_768)], ...], Meta(min_length=1, max_length=1024)]
    nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    on: Annotated[tuple[Annotated[str, Meta(max_length=200)], ...], Meta(max_length=1000)] = ()
    gpus_per_node: Annotated[int, Meta(ge=0, le=1024)] = 0
    min_nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    checkpoint: Text = ""
    max_restarts: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    precheck: Annotated[int, Meta(ge=0, le=4)] | None = None
    env: Annotated[dict[str, Annotated[str, Meta(max_length=32_768)]], Meta(max_length=1000)] = {}
    env_files: Annotated[
        tuple[Text, ...], Meta(max_length=16, description="absolute paths: each node reads them when its ranks start")
    ] = ()
    cwd: Text = ""
    pool: Annotated[str, Meta(max_length=200)] = ""
    cluster: Annotated[str, Meta(max_length=200)] = ""
    ranks_per_node: Annotated[int, Meta(ge=1, le=256)] = 1
    stall_after: Annotated[float, Meta(ge=0, le=366 * DAYS)] | None = None
    start_within: Annotated[float, Meta(ge=0, le=366 * DAYS)] | None = None
    log_rules: Annotated[tuple[Rule, ...], Meta(max_length=20)] = ()
    anew: Annotated[bool, Meta(description="begin at step 0, beside what is in the checkpoint directory")] = False
    adopt: Annotated[bool, Meta(description="go on from what is there, whichever job saved it")] = False
    priority: Annotated[int, Meta(ge=-100, le=100, description="higher ones run first")] = 0
    time_limit: (
        Annotated[float, Meta(gt=0, le=366 * DAYS, description="that its attempts may run, together")] | None
    ) = None
    grow: Annotated[bool, Meta(description="restarted on more nodes once there are more, where it runs on fewer")] = (
        False
    )
    storage: Annotated[
        tuple[Text, ...],
        Meta(max_length=16, description="shared directories (absolute): looked at on each node before each start"),
    ] = ()
    image: Annotated[
        str, Meta(max_length=1000, description="the container image of its ranks, where its cluster runs images")
    ] = ""
    native: Annotated[
        dict[str, Any], Meta(description="merged over the object that its cluster makes of the job; no secrets")
    ] = {}


class Restart(RequestBody):
    """What is not given stays as it was."""

    step: Annotated[int, Meta(ge=0, le=2**62, description="go on from exactly this step; else the newest")] | None = (
        None
    )
    anew: Annotated[bool, Meta(description="begin at step 0, beside what is in the checkpoint directory")] = False
    nodes: Annotated[int, Meta(ge=1, le=100_000, description="also of a job with named nodes")] | None = None
    min_nodes: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    command: Annotated[tuple[Annotated[str, Meta(max_length=32_768)], ...], Meta(max_length=1024)] = ()
    reason: Annotated[str, Meta(max_length=1000)] = ""


class OfMetrics(RequestBody):
    measured: Annotated[bool, Meta(description="also the newest value of each series of each node")] = True


class OfSeries(RequestBody):
    series: Annotated[str, Meta(max_length=60, description="its name; empty: only the names are listed")] = ""
    hours: Annotated[float, Meta(gt=0, le=31 * 24, description="how far back")] = 1.0


class OfPool(RequestBody):
    pool: Annotated[str, Meta(max_length=200)] = ""
    limit: Limit | None = None  # None: all of them
    after: After = ""


class OfState(RequestBody):
    state: Literal["QUEUED", "GATING", "RUNNING", "STOPPING", "DIAGNOSING", "COMPLETE", "FAILED", "STOPPED", "open"] | (
        None
    ) = None
    limit: Limit = 500
    after: After = ""


class Which(RequestBody):
    which: Literal["open", "recent", "all"] = "recent"
    limit: Limit = 500
    after: After = ""


class Explained(RequestBody):
    """Without `all` and `since` the story is its last chapter."""

    name: Annotated[str, Meta(min_length=1, max_length=300)]
    all: bool = False
    since: Annotated[str, Meta(max_length=40, description="a time (ISO 8601), or how long ago, such as 2h")] = ""


class Latest(RequestBody):
    limit: Limit = 200


class WhichNotices(RequestBody):
    which: Literal["open", "failed"] | None = None
    key: Annotated[str, Meta(max_length=400, description="only the one with this key")] = ""
    limit: Limit = 200


class ChannelsToTry(RequestBody):
    channels: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...], Meta(max_length=20)] = ()


class LogAsked(RequestBody):
    rank: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    after: Annotated[str, Meta(max_length=1000, description="the `next` of an earlier piece")] = ""
    last: Annotated[int, Meta(ge=0, le=2**62, description="without `after`: about so many bytes from the end")] = 0
    limit: Annotated[int, Meta(ge=1, le=1_048_576)] = 65_536
    wait: Annotated[float, Meta(ge=0, le=20, description="seconds that it is held until there is more")] = 0.0


class Pause(RequestBody):
    reason: Reason
    seconds: Span | None = None


class BrakeReset(RequestBody):
    reason: Reason
    scope: Annotated[str, Meta(max_length=200)] = ""
    signature: Annotated[str, Meta(max_length=200)] = ""


class Exclude(RequestBody):
    reason: Reason
    fault: Annotated[str, Meta(max_length=200)] = ""
    pool: Annotated[str, Meta(max_length=200)] = ""
    node: Annotated[str, Meta(max_length=200)] = ""
    seconds: Span | None = None


class Include(RequestBody):
    reason: Annotated[str, Meta(max_length=1000)] = "not needed any more"


class TokenAsked(RequestBody):
    name: Name
    role: Role
    cluster: Annotated[str, Meta(max_length=200, description="a join token's: the one that it is good for")] = ""
    node: Annotated[str, Meta(max_length=200, description="an agent's: <cluster>/<name>, or a known node's name")] = ""
    seconds: Annotated[float, Meta(ge=60, le=10 * 366 * DAYS, description="it expires after so long")] | None = None
    reason: Annotated[str, Meta(max_length=1000)] = ""


class TokenRevoke(RequestBody):
    reason: Annotated[str, Meta(max_length=1000)] = ""


class AuditAsked(RequestBody):
    limit: Limit = 200
    since: Annotated[float, Meta(ge=0, le=366 * DAYS, description="only the last so many seconds")] | None = None
    by: Annotated[str, Meta(max_length=200, description="only what was done with the token of this name")] = ""
    target: Annotated[str, Meta(max_length=300, description="only about this node, job, incident or token")] = ""


class Check(RequestBody):
    """One of node, pool, all."""

    level: Level
    node: Annotated[str, Meta(max_length=200)] = ""
    pool: Annotated[str, Meta(max_length=200)] = ""
    all: bool = False
    reason: Annotated[str, Meta(max_length=1000)] = "asked for"


class EventCursor(RequestBody):
    last_event_id: Annotated[str, Meta(max_length=100, description="as the header Last-Event-ID")] = ""
