"""What agents and the controller say to one another. Over HTTP each of these is a JSON body.

An agent numbers what it has to say in a *stream* of its own run and keeps it until it is acknowledged; the controller
acknowledges after its commit, so an item arrives at least once and counts once (`fact_id`).
"""

from datetime import datetime
from enum import StrEnum

from sickbay.model.facts import (
    Checked,
    Checkpointed,
    Hung,
    Inventory,
    Looked,
    News,
    Observed,
    RankEnded,
    RankWaits,
    ResetDone,
    RuleOff,
    Stepped,
    Wrote,
)
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.noun import Noun

PROTO = 1


class CommandResult(StrEnum):
    """What became of a command."""

    DONE = "done"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # it may have been carried out: the agent died over it

    @classmethod
    def _missing_(cls, value: object) -> "CommandResult":  # noqa: ARG003
        return cls.UNKNOWN


class Answered(News, tag="answered"):
    """An agent's answer to a command, after it was carried out or refused."""

    command: str
    result: CommandResult
    text: str = ""


class Measured(News, tag="measured"):
    """What was measured at one moment, by the series' name (`gpu.0.temperature`, `cpu.busy`).

    History for charts, no fact: nothing is decided by it, and it is the first to go where there is no room.
    """

    values: dict[str, float]
    node: NodeId = NodeId("")


ItemNews = (
    Observed
    | Inventory
    | Checked
    | Looked
    | ResetDone
    | Stepped
    | Checkpointed
    | Wrote
    | RankEnded
    | RankWaits
    | Hung
    | RuleOff
    | Answered
    | Measured
)


class Item(Noun):
    """One thing an agent says. `source` and `source_seq` are given where the source itself counts (kmsg, journald)."""

    seq: int
    mono: float  # the agent's monotonic clock when it happened
    news: ItemNews
    source: str = ""
    source_seq: int | None = None


class Report(Noun):
    """Items of one stream in order, without gaps, from `first_seq` on; without items it is a sign of life."""

    proto: int
    node: NodeId
    instance_id: str
    boot_id: str
    agent_run: str
    first_seq: int
    mono_now: float
    wall_now: float  # evidence only
    watermark: float  # kernel log and devices have been read through this moment of the agent's monotonic clock
    stream: str = "main"
    ended: bool = False  # spooled under a boot that has ended: history, and no sign of life
    uid: str = ""  # not used: how a cluster has registered a machine, only the cluster knows
    items: tuple[Item, ...] = ()

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(instance_id=self.instance_id, boot_id=self.boot_id)


class JoinAsked(Noun):
    """An agent asks for the token of a node, with a join token. Which machine it is, it says itself."""

    cluster: str
    name: str  # of the node
    instance_id: str


class Joined(Noun):
    """The answer: the token of that node, told here once. Whoever loses it asks again."""

    node: NodeId
    token: str


class Poll(Noun):
    """An agent asks for commands. `has`: those that it already works on or has just answered."""

    proto: int
    node: NodeId
    instance_id: str
    boot_id: str
    has: tuple[str, ...] = ()
    uid: str = ""  # not used, as in a report


class CommandBody(Noun, tag_field="order"):
    """What a command asks for."""


class RunCheck(CommandBody, tag="check"):
    """Exercise the hardware; the answer is a `Checked` item under `check`."""

    check: str
    level: int  # 0: only the storage
    profile: str = ""
    storage: tuple[str, ...] = ()  # directories: is each there, does it answer, can it be written?


class RunLook(CommandBody, tag="look"):
    """Read kernel log and devices through now, say what was found, then `Looked`; `stacks_of`: with ranks' stacks."""

    look: str
    stacks_of: JobId | None = None
    settle: float = 0.2  # seconds: what led to the look may take so long to reach the kernel log


class RunSave(CommandBody, tag="save"):
    """Ask the ranks of an attempt on this node to save: once for each `save`, however often it comes."""

    save: str
    job: JobId
    attempt: int


class RunReset(CommandBody, tag="reset"):
    """Reset devices (none named: all); the answer is `ResetDone`, or refused while anybody holds one of them."""

    key: str
    devices: tuple[int, ...] = ()


class RunReboot(CommandBody, tag="reboot"):
    """Reboot this machine, politely. There is no result but a new boot id; refused where the agent may not."""

    key: str
    reason: str = ""


class RunCollect(CommandBody, tag="collect"):
    """Gather what a person would ask for (logs, `nvidia-smi -q`, versions) into one file on the node; answers where."""

    key: str


class RunInject(CommandBody, tag="inject"):
    """Write one line, dated now, into the log file that the agent watches: a drill that every part takes for real."""

    key: str
    line: str


AnyOrder = RunCheck | RunLook | RunSave | RunReset | RunReboot | RunCollect | RunInject


class Command(Noun):
    """Delivered at least once; the agent writes its id down before it carries it out, and refuses another `expect`."""

    id: str
    node: NodeId
    order: AnyOrder
    posted_at: datetime
    expires_after: float  # seconds from posted_at on the controller's clock; on delivery: what is left of them
    expect: Incarnation | None = None


def command_id(key: str, node: NodeId) -> str:
    """The command by which an intent reaches one node's agent."""
    return f"{key}/{node}"


class Reply(Noun, omit_defaults=False):
    """The controller's answer to a report or a poll. All its fields are said: `ack` is what agents know it by.

    `ack`: every item up to this seq is stored. `report_every`: seconds between two signs of life. `poll_for`: how long
    a poll may be held; 0: commands ride on replies to reports only, do not poll.
    """

    ack: int = 0
    commands: tuple[Command, ...] = ()
    report_every: float = 5.0
    poll_for: float = 20.0


def fact_id(report: Report, item: Item) -> str:
    """The same item has the same id, whichever run of the agent says it and however often.

    The node is part of it: what one agent says is never a double of what another says. A source counts anew with each
    boot, so where the boot is not known its count holds for one run of the agent only.
    """
    if item.source and item.source_seq is not None:
        return f"{report.node}/{report.boot_id or report.agent_run}/{item.source}/{item.source_seq}"
    return f"{report.node}/{report.boot_id}/{report.agent_run}/{report.stream}/{item.seq}"
