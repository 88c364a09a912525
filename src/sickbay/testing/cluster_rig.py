"""What the suites of the Cluster, Machines and Checks ports stand on: a rig, and words for what it shows."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec
import pytest

from sickbay.model.cordon import cordon_of
from sickbay.model.errors import Rejected, Transient, Unknown
from sickbay.model.facts import Fact, JobSeen, NodeSeen
from sickbay.model.fleet import Capability, Incarnation, JobId, NodeId
from sickbay.model.job import JobSpec, RankState
from sickbay.ports.checks import Checks
from sickbay.ports.cluster import Accepted, Cluster
from sickbay.ports.machines import Machines

JOB = "contract"


class ClusterRig(Protocol):
    """What the suite needs around the adapters: at least four idle nodes of one pool, and power over the connection."""

    cluster: Cluster
    machines: Machines
    checks: Checks
    facts: Sequence[Fact]  # all that was delivered so far

    def nodes(self) -> list[NodeId]: ...

    def named(self, name: str) -> str:
        """A key or a job's name that no other test uses: a cluster that is shared remembers what it was told."""
        ...

    def others_cordon(self, node: NodeId) -> str:
        """A person takes the node out of service with the cluster's own means; returns the owner that reads show."""
        ...

    def others_work(self, node: NodeId) -> None:
        """Something that Sickbay does not manage runs there until it is moved (where there is Capability.DRAIN)."""
        ...

    def native_job(self, name: str, nodes: int) -> JobId:
        """Somebody submits a job to the cluster; its own controller runs it again (where there is Capability.RERUN)."""
        ...

    def say(self, node: NodeId) -> bool:
        """The cluster tells something of the node besides (`Told`). False: this one never does."""
        ...

    def spec(self, nodes: int, says: str = "") -> JobSpec:
        """A job that runs until it is stopped. Where ranks have logs, each writes `says` first."""
        ...

    def impossible(self) -> JobSpec | None:
        """A job that this cluster could never run as it is written; None: it runs whatever a spec can say."""
        ...

    def cut_before(self) -> None:
        """The next mutation is lost on its way."""
        ...

    def cut_after(self) -> None:
        """The next mutation takes effect and its answer is lost."""
        ...

    def outdated_cursor(self) -> str:
        """A cursor that was good once and lies too far back now."""
        ...

    def wait(self, condition: Callable[[], bool]) -> None:
        """Lets time pass until the condition holds; fails the test if it takes too long."""
        ...

    def settle(self) -> None:
        """Lets so much time pass that every effect under way is over and visible."""
        ...


# How a call is sent: what happens to the first sending, before it is repeated under the same key.
SENDINGS = ("twice", "cut before", "cut after")


def send(rig: ClusterRig, how: str, call: Callable[[], Accepted]) -> None:
    """Sends one call two times under one key; the second may be refused because the first has changed what is there."""
    match how:
        case "twice":
            call()
        case "cut before":
            rig.cut_before()
            with pytest.raises((Transient, Unknown)):
                call()
        case "cut after":
            rig.cut_after()
            with pytest.raises(Unknown):
                call()
    with suppress(Rejected):
        call()


def need(rig: ClusterRig, *capabilities: Capability) -> None:
    have = rig.cluster.capabilities | rig.machines.capabilities | rig.checks.capabilities
    for capability in capabilities:
        if capability not in have:
            pytest.skip(f"the adapter has no {capability}")


def seen(rig: ClusterRig, node: NodeId) -> NodeSeen | None:
    return next((found for found in rig.cluster.snapshot().nodes if found.node == node), None)


def holder(rig: ClusterRig, node: NodeId) -> Incarnation:
    found = seen(rig, node)
    assert found is not None, f"{node} is not in the snapshot"
    return found.incarnation


def job_of(rig: ClusterRig, name: str = JOB) -> JobId:
    return JobId(rig.named(name))


def owner_of(rig: ClusterRig) -> str:
    return cordon_of(rig.named("contract"))


def attempts(rig: ClusterRig, job: str = JOB) -> dict[int, JobSeen]:
    return {found.attempt: found for found in rig.cluster.snapshot().jobs if found.job == job_of(rig, job)}


def where(rig: ClusterRig, attempt: int = 1, job: str = JOB) -> list[NodeId]:
    """The nodes on which the attempt's ranks run."""
    found = attempts(rig, job).get(attempt)
    return [] if found is None else [node for node, state in found.ranks.items() if state is RankState.RUNNING]


def stranger(incarnation: Incarnation) -> Incarnation:
    return msgspec.structs.replace(incarnation, boot_id="a boot that never was")


def start(rig: ClusterRig, key: str = "start-1", *, attempt: int = 1, on: int = 2, job: str = JOB) -> Accepted:
    place = Capability.PLACE in rig.cluster.capabilities
    nodes = dict.fromkeys(rig.nodes()[:on], ()) if place else {}
    return rig.cluster.start(job_of(rig, job), attempt, spec=rig.spec(on), nodes=nodes, avoid=(), key=rig.named(key))


def run_job(rig: ClusterRig, on: int = 2) -> list[NodeId]:
    start(rig, on=on)
    rig.wait(lambda: len(where(rig)) == on)
    return where(rig)
