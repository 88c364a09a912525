"""Rig (test harness) of the suites for the Cluster, Machines and Checks ports, and words for what it shows.

One cluster serves all tests of a suite: it may be slow to build, and shared with others. So every name is unique
(`named`), what a test leaves behind is mended (`clean`), and nothing waits for a time instead of a condition.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NoReturn, Protocol

import msgspec
import pytest

from sickbay.model.cordon import cordon_of
from sickbay.model.facts import CallResult, Fact, JobSeen, NodeSeen, Outcome
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.job import End, JobSpec, RankState
from sickbay.ports.checks import Checks
from sickbay.ports.cluster import Accepted, Cluster
from sickbay.ports.machines import Machines

JOB = "contract"

Moment = Literal["before", "after"]
Trouble = Literal["down", "hangs", "refuses", "no permission"]


def lacks(what: str) -> NoReturn:
    """For a rig: skips the test, as its cluster knows no such thing."""
    pytest.skip(f"nothing to try here: {what}")


class FarCalls(Protocol):
    """The calls that mutations make on the wire: requests through a proxy, a command in PATH, effects on files."""

    def begin(self) -> None:
        """Counts from zero; nothing is cut."""
        ...

    def count(self) -> int:
        """So many calls were made since `begin`."""
        ...

    def cut(self, number: int, moment: Moment) -> None:
        """Begins, and cuts the call of this number (the first is 1): on its way there, or on its way back."""
        ...


class ClusterRig(Protocol):
    """What the suite needs around the adapters: four idle nodes of one pool or more, and power over the connection.

    Subclass it. What others do is done by the cluster's own means, never through our port; a method that skips here
    (`lacks`) is one that a cluster may not have.
    """

    cluster: Cluster
    machines: Machines
    checks: Checks
    far_calls: FarCalls
    limit: float  # seconds: no call of a port lasts longer, whatever is the matter with the far side

    @property
    def facts(self) -> Sequence[Fact]:
        """All that was delivered so far, over all tests."""
        ...

    def nodes(self) -> list[NodeId]:
        """The nodes that are there now, in an order that stays."""
        ...

    def named(self, name: str) -> str:
        """A key or a job's name that no other test uses, nor this one after `clean`: clusters remember keys."""
        ...

    def clean(self) -> None:
        """Our cordons off, our jobs gone, others' acts undone by others' means, four nodes or more ready and free."""
        ...

    def wait(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds; fails the test if it takes too long."""
        ...

    def settle(self) -> None:
        """Waits until `as_of` has passed the last mutation and, by the cluster's own words, nothing is under way."""
        ...

    def spec(self, nodes: int, says: str = "") -> JobSpec:
        """A job that runs until it is stopped, or finished. Where ranks have logs, each writes `says` first."""
        ...

    def impossible(self) -> JobSpec:
        """A job that this cluster could never run as it is written."""
        lacks("it runs whatever a spec can say")

    def outdated_cursor(self) -> str:
        """A cursor that was good once and lies too far back now."""
        ...

    # --- what others do
    def others_cordon(self, node: NodeId) -> str:
        """A person takes the node out of service; returns the owner that reads show."""
        ...

    def others_uncordon(self, node: NodeId) -> None:
        """That person puts it back."""
        ...

    def others_drain(self, node: NodeId) -> str:
        """A person takes it out of service and moves off what runs there, ours too; returns the cordon's owner."""
        lacks(f"nobody but Sickbay empties {node}")

    def others_work(self, node: NodeId) -> None:
        """Something that Sickbay does not manage runs there until it is moved (where there is Capability.DRAIN)."""
        lacks(f"nobody but Sickbay runs anything on {node}")

    def others_reboot(self, node: NodeId) -> None:
        """A person restarts the machine."""
        lacks(f"nobody but Sickbay restarts {node}")

    def others_replace(self, node: NodeId) -> None:
        """A person puts another machine in its place: under its name, or under another."""
        lacks(f"nobody but Sickbay replaces {node}")

    def native_job(self, name: str, nodes: int) -> JobId:
        """Somebody submits a job to the cluster; its own controller runs it again (where there is Capability.RERUN)."""
        lacks(f"only Sickbay starts jobs, such as {name} on {nodes} nodes")

    def native_restart(self, job: JobId) -> None:
        """Its attempt fails, and the job's own controller runs it again."""
        lacks(f"no controller but Sickbay runs {job} again")

    def cancel_by_owner(self, job: JobId) -> None:
        """Whose job it is takes it back."""
        lacks(f"only Sickbay ends {job}")

    def preempt(self, job: JobId) -> None:
        """The cluster takes its nodes for something that matters more."""
        lacks(f"nothing takes the nodes of {job}")

    def finish(self, job: JobId, code: int) -> None:
        """Its ranks end by themselves with this exit code (one of them first, if it is not 0)."""
        lacks(f"ranks of {job} cannot be told to end with {code}")

    def living_ranks(self, node: NodeId) -> int:
        """How many of our jobs' processes truly live on the machine, by its own word, not by the cluster's."""
        lacks(f"nobody can look into {node}")

    def say(self, node: NodeId) -> None:
        """The cluster tells something of the node besides (`Told`)."""
        lacks(f"the cluster says nothing of {node} besides")

    # --- trouble
    def break_far_side(self, how: Trouble) -> AbstractContextManager[None]:
        """While it lasts the far side is down, hangs, refuses everything, or has taken our permissions away.

        What is sent meanwhile has no effect, then or later.
        """
        lacks(f"it cannot be made so: {how}")


def need(rig: ClusterRig, *capabilities: Capability) -> None:
    have = rig.cluster.capabilities | rig.machines.capabilities | rig.checks.capabilities
    for capability in capabilities:
        if capability not in have:
            pytest.skip(f"the adapter has no {capability}")


def seen(rig: ClusterRig, node: NodeId) -> NodeSeen | None:
    return next((found for found in rig.cluster.snapshot().nodes if found.node == node), None)


def shown(rig: ClusterRig, node: NodeId) -> NodeSeen:
    found = seen(rig, node)
    assert found is not None, f"{node} is not in the snapshot"
    return found


def holder(rig: ClusterRig, node: NodeId) -> Incarnation:
    return shown(rig, node).incarnation


def is_ready(rig: ClusterRig, node: NodeId) -> bool:
    found = seen(rig, node)
    return found is not None and found.ready


def job_of(rig: ClusterRig, name: str = JOB) -> JobId:
    return JobId(rig.named(name))


def owner_of(rig: ClusterRig) -> str:
    return cordon_of(rig.named("contract"))


def attempts(rig: ClusterRig, job: JobId | None = None) -> dict[int, JobSeen]:
    """What is shown of a job; of the one that `start` starts, if none is named."""
    wanted = job or job_of(rig)
    return {found.attempt: found for found in rig.cluster.snapshot().jobs if found.job == wanted}


def where(rig: ClusterRig, attempt: int = 1, job: JobId | None = None) -> list[NodeId]:
    """The nodes on which the attempt's ranks run."""
    found = attempts(rig, job).get(attempt)
    return [] if found is None else [node for node, state in found.ranks.items() if state is RankState.RUNNING]


def end_of(rig: ClusterRig, attempt: int = 1, job: JobId | None = None) -> End | None:
    """How it ended, once nothing of it runs."""
    found = attempts(rig, job).get(attempt)
    return None if found is None or RankState.RUNNING in found.ranks.values() else found.end


def stranger(incarnation: Incarnation) -> Incarnation:
    return msgspec.structs.replace(incarnation, boot_id="a boot that never was")


def cordon(rig: ClusterRig, node: NodeId, *, expect: Incarnation | None = None) -> Accepted:
    return rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named("c1"), expect=expect)


def start(rig: ClusterRig, key: str = "start-1", *, attempt: int = 1, on: int = 2, first: int = 0) -> Accepted:
    place = Capability.PLACE in rig.cluster.capabilities
    nodes = dict.fromkeys(rig.nodes()[first : first + on], ()) if place else {}
    return rig.cluster.start(job_of(rig), attempt, spec=rig.spec(on), nodes=nodes, avoid=(), key=rig.named(key))


def stop(rig: ClusterRig, *, final: bool = False, key: str = "stop-1") -> Accepted:
    return rig.cluster.stop(job_of(rig), 1, final=final, key=rig.named(key))


def run_job(rig: ClusterRig, on: int = 2) -> list[NodeId]:
    start(rig, on=on)
    rig.wait(lambda: len(where(rig)) == on)
    return where(rig)


def was_refused(rig: ClusterRig, key: str) -> bool:
    """Whoever carries it out has refused it: a channel that works through agents hears that later."""
    answers = (fact.news for fact in rig.facts)
    return any(isinstance(news, Outcome) and news.key == key and news.result is CallResult.REJECTED for news in answers)
