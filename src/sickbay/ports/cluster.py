"""The Cluster port: where nodes and jobs live."""

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from sickbay.model.facts import Checked, JobSeen, JobVanished, NodeSeen, NodeVanished, Observed, Ordered
from sickbay.model.fleet import Capability, DrainHow, Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec
from sickbay.model.noun import Noun


class Accepted(Noun):
    """The far side took the call. `visible_from`: reads that are older do not show it and are not held against it.

    `done` is for calls that are their own proof when they return (a fence, a notification); `said`: what it answered.
    """

    visible_from: float = 0.0
    done: bool = False
    said: str = ""


class Told(Noun):
    """Something else that a cluster says: a check that ran there, a node's condition, a person's request by label.

    `id` is the far side's own name for it (an event's uid, a reason with its time), so that a list that says it again
    is no second fact. A check of the cluster's own (prolog, init step) has a `check` of its own, too; one that we asked
    for has ours. Who cannot tell boot or instance leaves them empty.
    """

    id: str
    at: datetime
    news: Observed | Checked | Ordered


class Deltas(Noun):
    """What changed since a cursor. `as_of` says how far this read reaches, in seconds of the cluster's own time."""

    cursor: str
    as_of: float
    news: tuple[NodeSeen | NodeVanished | JobSeen | JobVanished | Told, ...] = ()


class Lost(Noun):
    """The cursor is too old (or None): the snapshot must be compared."""


class Snapshot(Noun):
    """Everything, at one moment; `cursor` goes on from there."""

    cursor: str
    as_of: float
    nodes: tuple[NodeSeen, ...] = ()
    jobs: tuple[JobSeen, ...] = ()
    told: tuple[Told, ...] = ()


class Log(Noun):
    """A piece of one rank's output. `next` goes on from there; `over`: the rank has ended and nothing more comes.

    `next` is an opaque place (an offset, a timestamp, a forward token): only the cluster that gave it can read it.
    """

    text: str
    next: str
    over: bool = False


class Cluster(Protocol):
    """Contract, besides what each method says:

    - Every mutation takes `key` and, where a node or attempt is meant, `expect`: calling it twice with one key has one
      effect; one whose `expect` differs from what is there raises Rejected and changes nothing. An act that cannot
      promise this is named in `blind`.
    - An incarnation is partial: a field that the cluster cannot tell is empty, never guessed (a boot id is the kernel's
      own or none), and an empty field of `expect` refuses nothing.
    - Errors are Transient, Rejected, Gone or Unknown (`model.errors`), nothing else. No call retries by itself.
    - `as_of` never goes back for one cluster, across restarts of anybody. It counts seconds: times are added to it.
    - A cursor that another run of this adapter gave is Lost.
    - An attempt is shown only once it has nodes, or has ended: what waits to be started, again or at all, is shown as
      the attempt that ended before it, or not at all. An open job that was shown is in every list from then on.
    - A job's id means one job in all clusters: one that a cluster gives by itself (a number, a name in a namespace)
      has the cluster's id in front. Of two jobs with one id only the first is seen.
    - What a person did to a node (a cordon, the words with it) is not lost by what we do to it.
    - *Cordon* keeps others' new work off and changes nothing that runs; owners form a set. *Drain* moves running work
      that Sickbay does not manage, and is asked again, under another key, while some of it is left.
    """

    @property
    def id(self) -> str: ...

    @property
    def period(self) -> float:
        """Seconds between two reads when nothing is wrong."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def blind(self) -> frozenset[str]:
        """Tags of acts (`model.intent`) that cannot promise one effect per key."""
        ...

    def watch(self, cursor: str | None) -> Deltas | Lost:
        """What changed since a cursor. None, one that lies too far back, and one of another run are Lost.

        Only the leader reads; who takes over may hold a cursor that another process was given.
        """
        ...

    def snapshot(self) -> Snapshot: ...

    def wrong(self, spec: JobSpec) -> str:
        """Why it could never run this job as it is written, in one line that says what to write instead; empty: it can.

        Asked when a job is submitted, and once more before each start. Transient: it cannot be asked now, and then
        nobody is refused. It ends within a time-out of its own.
        """
        ...

    def cordon(self, node: NodeId, *, owner: str, reason: str, key: str, expect: Incarnation | None) -> Accepted: ...

    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        """Removes this owner's cordon only."""
        ...

    def drain(self, node: NodeId, *, how: DrainHow, key: str, expect: Incarnation | None) -> Accepted: ...

    def start(
        self,
        job: JobId,
        attempt: int,
        *,
        spec: JobSpec,
        nodes: Mapping[NodeId, tuple[int, ...]],
        avoid: tuple[NodeId, ...],
        key: str,
    ) -> Accepted:
        """Starts one attempt: on `nodes` (with Capability.PLACE), else anywhere but on `avoid`."""
        ...

    def rerun(self, job: JobId, attempt: int, *, avoid: tuple[NodeId, ...], key: str) -> Accepted:
        """Asks a job's own controller to run it again after `attempt`, which has ended. Needs Capability.RERUN.

        Where it waits for its turn already, `avoid` takes the place of what was to be avoided before. Rejected: another
        attempt has begun. Gone: the cluster has the job no more.
        """
        ...

    def stop(self, job: JobId, attempt: int, *, final: bool, key: str) -> Accepted:
        """Stops this attempt's ranks, no other attempt's. Gone if none is left.

        `final`: the job is not to run again, so what waits to be started again is cancelled too. Else, with
        Capability.HOLDS, its own controller leaves it alone until `rerun`.
        """
        ...

    def logs(self, job: JobId, attempt: int, rank: int, *, after: str = "", last: int = 0, limit: int = 65_536) -> Log:
        """What a rank wrote, from the place `after` on; what was rotated away is skipped. Gone: no such rank.

        `after` is the `next` of an earlier piece; without it, the beginning, or about the `last` so many bytes.
        Rejected: not a place of this cluster's. Needs Capability.LOGS.
        """
        ...
