"""The ports' contract on a far side that is in trouble: down, hanging, refusing, or closed to us."""

from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import NamedTuple

import msgspec
import pytest

from sickbay.model.errors import EffectError, Rejected, Transient, Unknown
from sickbay.model.facts import JobSeen, NodeSeen
from sickbay.model.fleet import Capability, DrainHow, Incarnation, NodeId
from sickbay.ports.cluster import Deltas, Snapshot
from sickbay.testing.cluster_rig import (
    ClusterRig,
    Trouble,
    cordon,
    holder,
    job_of,
    owner_of,
    run_job,
    shown,
    stop,
)

TROUBLES: tuple[Trouble, ...] = ("down", "hangs", "refuses", "no permission")


class CallEnd(NamedTuple):
    """How a call ended: with an answer or an error."""

    what: str
    answer: object = None
    error: BaseException | None = None


class TroubleContract:
    """Every call ends in time, with one of the four errors and a sentence; reads say nothing that is not so."""

    @pytest.mark.parametrize("how", TROUBLES)
    def test_reads_of_a_far_side_in_trouble_fail_or_say_the_truth(self, rig: ClusterRig, how: Trouble) -> None:
        run_job(rig)
        rig.settle()
        truth = rig.cluster.snapshot()
        with rig.break_far_side(how):
            ends = [_carry_out(rig, "snapshot", rig.cluster.snapshot) for _ in range(2)]
            ends.append(_carry_out(rig, "watch", lambda: rig.cluster.watch(truth.cursor)))
            ends.append(_carry_out(rig, "wrong", lambda: rig.cluster.wrong(rig.spec(1))))
            if Capability.LOGS in rig.cluster.capabilities:
                ends.append(_carry_out(rig, "logs", lambda: rig.cluster.logs(job_of(rig), 1, 0)))
        for end in ends:
            if end.error is not None:
                _must_be_understood(end)
            elif isinstance(end.answer, Snapshot):
                assert _known(end.answer) == _known(truth), f"{how}: a read says what is not so"
            elif isinstance(end.answer, Deltas):
                assert not end.answer.news, f"{how}: nothing has changed"
            elif end.what == "wrong":
                assert end.answer == "", f"{how}: a job is refused that can run"
        rig.settle()
        assert _known(rig.cluster.snapshot()) == _known(truth)
        assert rig.cluster.snapshot().as_of >= truth.as_of

    @pytest.mark.parametrize("how", TROUBLES)
    def test_calls_to_a_far_side_in_trouble_fail_in_time_and_change_nothing(
        self, rig: ClusterRig, how: Trouble
    ) -> None:
        run_job(rig)
        rig.settle()
        before, node = rig.cluster.snapshot(), rig.nodes()[3]
        calls = list(self._calls(rig, node, holder(rig, node)))
        with rig.break_far_side(how):
            ends = [_carry_out(rig, what, call) for what, call in calls]
        for end in ends:
            assert end.error is not None, f"{how}: {end.what} says that it was accepted: {end.answer}"
            _must_be_understood(end)
        rig.settle()
        assert _known(rig.cluster.snapshot()) == _known(before)

    @pytest.mark.parametrize("how", TROUBLES)
    def test_after_the_trouble_the_same_key_has_its_effect(self, rig: ClusterRig, how: Trouble) -> None:
        node = rig.nodes()[3]
        with rig.break_far_side(how):
            _carry_out(rig, "cordon", lambda: cordon(rig, node))
        cordon(rig, node)
        rig.settle()
        assert shown(rig, node).cordons == (owner_of(rig),)

    def _calls(self, rig: ClusterRig, node: NodeId, there: Incarnation) -> Iterator[tuple[str, Callable[[], object]]]:
        cluster, machines, owner = rig.cluster, rig.machines, owner_of(rig)
        yield "cordon", lambda: cordon(rig, node)
        yield "uncordon", lambda: cluster.uncordon(node, owner=owner, key=rig.named("u1"), expect=None)
        if Capability.DRAIN in cluster.capabilities:
            how = DrainHow.EVICT
            yield "drain", lambda: cluster.drain(node, how=how, key=rig.named("d1"), expect=None)
        spec, place = rig.spec(1), {node: ()} if Capability.PLACE in cluster.capabilities else {}
        second, key = job_of(rig, "second"), rig.named("start-2")
        yield "start", lambda: cluster.start(second, 1, spec=spec, nodes=place, avoid=(), key=key)
        yield "stop", lambda: stop(rig)
        if Capability.RERUN in cluster.capabilities:
            yield "rerun", lambda: cluster.rerun(job_of(rig), 1, avoid=(), key=rig.named("again"))
        if Capability.RESTART_SERVICE in machines.capabilities:
            yield "restart_service", lambda: machines.restart_service(node, key=rig.named("a1"), expect=there)
        if Capability.REBOOT in machines.capabilities:
            yield "reboot", lambda: machines.reboot(node, key=rig.named("b1"), expect=there)
        if Capability.REPLACE in machines.capabilities:
            yield "replace", lambda: machines.replace(node, key=rig.named("r1"), expect=there)
        if Capability.FENCE in machines.capabilities:
            yield "fence", lambda: machines.fence(node, key=rig.named("f1"), expect=there)


def _carry_out(rig: ClusterRig, what: str, call: Callable[[], object]) -> CallEnd:
    """In a thread of its own, so that a call that never ends is one that fails the test."""
    ended: SimpleQueue[CallEnd] = SimpleQueue()

    def run() -> None:
        try:
            ended.put(CallEnd(what, call()))
        except BaseException as error:  # noqa: BLE001 - which kind it is, is what is asked
            ended.put(CallEnd(what, error=error))

    Thread(target=run, daemon=True).start()
    try:
        return ended.get(timeout=rig.limit)
    except Empty:
        pytest.fail(f"{what} has not ended within {rig.limit:g} s")


def _must_be_understood(end: CallEnd) -> None:
    error = end.error
    assert isinstance(error, Transient | Rejected | Unknown), f"{end.what} raises {type(error).__name__}: {error}"
    assert isinstance(error, EffectError)
    text = str(error)
    assert len(text.split()) >= 3, f"{end.what}: {text!r} is no sentence for a person"
    assert "\n" not in text, f"{end.what}: {text!r} is more than one line"
    assert "Traceback" not in text


def _known(snapshot: Snapshot) -> dict[str, NodeSeen | JobSeen]:
    """What a snapshot says, without its age."""
    nodes = {f"node {seen.node}": msgspec.structs.replace(seen, as_of=0.0) for seen in snapshot.nodes}
    jobs = {f"job {seen.job} {seen.attempt}": msgspec.structs.replace(seen, as_of=0.0) for seen in snapshot.jobs}
    return nodes | jobs
