"""Checks of idle nodes that a person, the schedule or a watched fault asked for, and what a check found."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from sickbay.model.fleet import NodeId
from sickbay.model.noun import Noun


class Verdict(StrEnum):
    """What one node has answered to a check, a look or a reset. A word that we do not know is no proof of health."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    COULD_NOT_RUN = "could_not_run"
    UNFIT = "unfit"  # nothing is wrong with its hardware, and it cannot use what the job names: our word, no agent's
    LOOKED = "looked"
    RESET = "reset"

    @classmethod
    def _missing_(cls, value: object) -> "Verdict":  # noqa: ARG003
        return cls.COULD_NOT_RUN


class Tested(Noun):
    """One test of a check."""

    __test__: ClassVar[bool] = False  # its name begins like that of a test class, which pytest would collect

    name: str
    verdict: Verdict
    seconds: float = 0.0
    because: str = ""
    figures: dict[str, float] = {}  # what it measured, by name with its unit: `h2d_gbps`, `gpu.0.temperature`


class CheckFinding(Noun):
    """What a check said of one node."""

    verdict: Verdict
    because: str = ""
    tests: tuple[Tested, ...] = ()


class StorageSeen(Noun):
    """What a node's agent found of one shared directory that a job names."""

    path: str
    verdict: Verdict
    because: str = ""  # of one that passed: what was not proven
    remote: bool = False  # it lies on a file system of another machine
    empty: bool = False
    seconds: float = 0.0


class StorageTally(Noun):
    """What a gate has found of a job's storage so far, as far as its nodes must be compared and named."""

    unfit: dict[NodeId, str] = {}  # why not, of the first STORAGE_NAMED
    bare: dict[NodeId, str] = {}  # an empty directory of the node's own disk, where another node may have it mounted
    remote: tuple[str, ...] = ()  # paths that some node has from another machine, with something in them


STORAGE_NAMED = 20  # nodes that a tally names
STORAGE_MOST = 16  # directories that a job names


class Checkup(Noun):
    """One request, from its order to the last verdict. Its checks are the intents `<id>.0`, `<id>.1` …, few nodes each.

    While a node's check runs the node says so (`Node.checking`) and cannot be claimed.
    """

    id: str
    level: int
    by: str
    reason: str
    asked_at: datetime
    target: NodeId | None = None  # one node; None: those of `pools`
    pools: tuple[str, ...] = ()  # not gone through yet
    after: str = ""  # the last row of a node that was considered in the first of them
    listed: bool = False  # every node has been considered
    slices: int = 0  # intents made so far
    ended: tuple[int, ...] = ()  # of them, those that are over
    nodes: int = 0  # that are or were checked
    passed: int = 0
    failed: tuple[NodeId, ...] = ()
    unrun: tuple[NodeId, ...] = ()  # nodes whose check could not run, or never answered
    skipped: dict[NodeId, str] = {}  # and why
    more_skipped: int = 0  # beyond those that are named
    closed_at: datetime | None = None

    @property
    def open(self) -> bool:
        return self.closed_at is None

    @property
    def intents(self) -> tuple[str, ...]:
        """Row keys of its checks, where verdicts and findings are."""
        return tuple(f"intent:{self.id}.{number}" for number in range(self.slices))


class ScheduleWalk(Noun):
    """The cursor of a walk over all nodes, which gives each its place in the schedule of checks."""

    after: str = ""  # the last row of a node that has its place


def checkup_id(fact: str) -> str:
    """The check that the order under this fact's id makes: whoever gave the order knows it beforehand."""
    from hashlib import sha256  # here: every agent imports this module, and none needs a hash

    return f"check-{sha256(fact.encode()).hexdigest()[:10]}"
