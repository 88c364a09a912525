"""What agents and the controller say to one another. Over HTTP each of these is a JSON body.

An agent numbers what it has to say in a *stream* of its own run and keeps it until it is acknowledged; the controller
acknowledges after its commit, so an item arrives at least once and counts once (`fact_id`).
"""

from datetime import datetime

from sickbay.model.facts import Checked, Hung, Looked, News, Observed, ResetDone, Stepped
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.noun import Noun

PROTO = 1


class Answered(News, tag="answered"):
    """What became of a command: done | refused | unknown (it may have been carried out: the agent died over it)."""

    command: str
    result: str
    text: str = ""


ItemNews = Observed | Checked | Looked | ResetDone | Stepped | Hung | Answered


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
    uid: str
    instance_id: str
    boot_id: str
    agent_run: str
    first_seq: int
    mono_now: float
    wall_now: float  # evidence only
    watermark: float  # kernel log and devices have been read through this moment of the agent's monotonic clock
    stream: str = "main"
    ended: bool = False  # spooled under a boot that has ended: history, and no sign of life
    items: tuple[Item, ...] = ()

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(uid=self.uid, instance_id=self.instance_id, boot_id=self.boot_id)


class Poll(Noun):
    """An agent asks for commands. `has`: those that it already works on or has just answered."""

    proto: int
    node: NodeId
    uid: str
    instance_id: str
    boot_id: str
    has: tuple[str, ...] = ()


class Order(Noun, tag_field="order"):
    """What a command asks for."""


class RunCheck(Order, tag="check"):
    """Exercise the hardware; the answer is a `Checked` item under `check`."""

    check: str
    level: int
    profile: str = ""


class RunLook(Order, tag="look"):
    """Read kernel log and devices through now, say what was found, then `Looked`; `stacks_of`: with ranks' stacks."""

    look: str
    stacks_of: JobId | None = None
    settle: float = 0.2  # seconds: what led to the look may take so long to reach the kernel log


class RunReset(Order, tag="reset"):
    """Reset devices (none named: all); the answer is `ResetDone`, or refused while anybody holds one of them."""

    key: str
    devices: tuple[int, ...] = ()


AnyOrder = RunCheck | RunLook | RunReset


class Command(Noun):
    """Delivered at least once; the agent writes its id down before it carries it out, and refuses another `expect`."""

    id: str
    node: NodeId
    order: AnyOrder
    posted_at: datetime
    expires_after: float  # seconds from posted_at on the controller's clock; on delivery: what is left of them
    expect: Incarnation | None = None


class Reply(Noun):
    """The controller's answer to a report or a poll.

    `ack`: every item up to this seq is stored. `report_every`: seconds between two signs of life. `poll_for`: how long
    a poll may be held; 0: commands ride on replies to reports only, do not poll.
    """

    ack: int = 0
    commands: tuple[Command, ...] = ()
    report_every: float = 5.0
    poll_for: float = 20.0


def fact_id(report: Report, item: Item) -> str:
    """The same item has the same id, whichever run of the agent says it and however often."""
    if item.source and item.source_seq is not None:
        return f"{report.boot_id}/{item.source}/{item.source_seq}"
    return f"{report.boot_id}/{report.agent_run}/{report.stream}/{item.seq}"
