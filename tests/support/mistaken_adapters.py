"""Adapters of the local cluster with one deliberate mistake each: what the contract suite must find."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.doubt import changing
from sickbay.clusters.local.files import LocalSeat
from sickbay.clusters.local.machines import LocalMachines
from sickbay.model.errors import Transient
from sickbay.model.fleet import Incarnation, JobId, NodeId
from sickbay.model.job import End, EndReason
from sickbay.ports.cluster import Accepted, Deltas, Lost, Snapshot
from sickbay.testing.cluster_contract import ClusterContract, ClusterRig


class ForgetsKeys(LocalCluster):
    def cordon(self, node: NodeId, *, key: str, **more: Any) -> Accepted:
        return super().cordon(node, key=f"{key} {uuid4()}", **more)


class IgnoresExpect(LocalCluster):
    def cordon(self, node: NodeId, *, expect: Incarnation | None, **more: Any) -> Accepted:
        del expect
        return super().cordon(node, expect=None, **more)


class UncordonsEverybody(LocalCluster):
    def uncordon(self, node: NodeId, *, owner: str, key: str, expect: Incarnation | None) -> Accepted:
        def change(seat: LocalSeat) -> LocalSeat:
            return replace(seat, cordons=())

        return self._change(node, f"uncordon {key} {owner}", expect, change)


class LosesOthersCordons(LocalCluster):
    def cordon(self, node: NodeId, *, key: str, expect: Incarnation | None, **more: Any) -> Accepted:
        self._change(node, f"all off {key}", expect, lambda seat: replace(seat, cordons=()))
        return super().cordon(node, key=key, expect=expect, **more)


class RemembersBeforeItActs(LocalCluster):
    """Dies in between: the key is known, and nothing was done under it."""

    def _change(
        self, node: NodeId, key: str, expect: Incarnation | None, change: Callable[[LocalSeat], LocalSeat]
    ) -> Accepted:
        name = self._name(node)
        with changing(), self._room.held(name) as seat:
            if key not in seat.done:
                self._look(name, expect)
                known = replace(seat, done=(*seat.done, key))
                self._room.save(known)
                self._room.save(change(known))
        return Accepted(visible_from=self._reader.ticks.now())


class RaisesItsOwnError(LocalCluster):
    def cordon(self, node: NodeId, **more: Any) -> Accepted:
        if node not in {seen.node for seen in self.snapshot().nodes}:
            raise KeyError(node)
        return super().cordon(node, **more)


class GoesBack(LocalCluster):
    reads = 0

    def snapshot(self) -> Snapshot:
        self.reads += 1
        found = super().snapshot()
        return replace(found, as_of=found.as_of - 60.0 * (self.reads % 2))


class LosesOpenJobs(LocalCluster):
    reads = 0

    def snapshot(self) -> Snapshot:
        self.reads += 1
        found = super().snapshot()
        return found if self.reads % 3 else replace(found, jobs=())


class TakesAnyCursor(LocalCluster):
    def watch(self, cursor: str | None) -> Deltas | Lost:
        found = super().watch(cursor)
        return super().watch(self._reader.ring.cursor) if cursor and isinstance(found, Lost) else found


class SaysNothingIsThere(LocalCluster):
    """Trouble with the far side is taken for an empty cluster."""

    def snapshot(self) -> Snapshot:
        try:
            return super().snapshot()
        except Transient:
            return Snapshot(cursor="", as_of=self._reader.ticks.now())


class StartsHalfAGang(LocalCluster):
    def start(self, job: JobId, attempt: int, *, nodes: Mapping[NodeId, tuple[int, ...]], **more: Any) -> Accepted:
        half = dict(list(nodes.items())[: (len(nodes) + 1) // 2])
        return super().start(job, attempt, nodes=half, **more)


class StopsWhateverRuns(LocalCluster):
    def stop(self, job: JobId, attempt: int, **more: Any) -> Accepted:
        latest = max((seen.attempt for seen in self.snapshot().jobs if seen.job == job), default=attempt)
        return super().stop(job, latest, **more)


class WhitewashesEnds(LocalCluster):
    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        jobs = (replace(seen, end=_good(seen.end)) if seen.end is not None else seen for seen in found.jobs)
        return replace(found, jobs=tuple(jobs))


def _good(end: End) -> End:
    return replace(end, reason=EndReason.COMPLETED, exit_codes={})


class FencesTooEarly(LocalMachines):
    def fence(self, node: NodeId, *, key: str, expect: Incarnation | None) -> Accepted:
        del node, key, expect  # it will be done in a moment
        return Accepted(done=True)


class RebootsEachTime(LocalMachines):
    def reboot(self, node: NodeId, *, key: str, expect: Incarnation) -> Accepted:
        now = self._room.seat(node.partition("/")[2]).incarnation
        return super().reboot(node, key=f"{key} {uuid4()}", expect=now if now.same_holder(expect) else expect)


class AdapterMistake(NamedTuple):
    adapter: Callable[[Path], LocalCluster | LocalMachines]
    sentence: Callable[[ClusterRig], None]
    found: str  # in what the sentence says
    patience: float = 60.0  # seconds; less where a mistake keeps a condition from ever coming true


_said = ClusterContract()
MISTAKES = (
    AdapterMistake(
        ForgetsKeys, _said.test_a_cordon_that_was_removed_does_not_come_back_with_its_key, "sickbay:contract"
    ),
    AdapterMistake(
        IgnoresExpect, _said.test_a_cordon_of_another_incarnation_is_refused_and_changes_nothing, "DID NOT RAISE"
    ),
    AdapterMistake(UncordonsEverybody, _said.test_an_uncordon_sent_twice_leaves_others_alone, "other:person"),
    AdapterMistake(
        LosesOthersCordons, _said.test_a_cordon_that_a_person_takes_back_is_gone_and_ours_may_stay, "other:person"
    ),
    AdapterMistake(
        RemembersBeforeItActs,
        lambda rig: _said.test_a_cordon_sent_twice_is_one_cordon(rig, "cut after"),
        "sickbay:contract",
    ),
    AdapterMistake(RaisesItsOwnError, _said.test_a_node_that_is_not_there_is_gone, "KeyError"),
    AdapterMistake(GoesBack, _said.test_as_of_never_goes_back, "At index 1"),
    AdapterMistake(LosesOpenJobs, _said.test_an_open_job_is_in_every_list, "all("),
    AdapterMistake(TakesAnyCursor, _said.test_a_cursor_of_another_run_is_lost, "Deltas"),
    AdapterMistake(
        SaysNothingIsThere,
        lambda rig: _said.test_reads_of_a_far_side_in_trouble_fail_or_say_the_truth(rig, "down"),
        "what is not so",
    ),
    AdapterMistake(
        StartsHalfAGang,
        lambda rig: _said.test_an_attempt_started_twice_is_one_gang(rig, "twice"),
        "never came true",
        patience=2.0,
    ),
    AdapterMistake(StopsWhateverRuns, _said.test_a_stop_stops_only_its_own_attempt, "DID NOT RAISE Gone"),
    AdapterMistake(
        WhitewashesEnds, _said.test_a_rank_that_ends_badly_has_failed_with_its_exit_code, "EndReason.COMPLETED"
    ),
    AdapterMistake(FencesTooEarly, _said.test_a_fence_that_says_done_has_left_nothing_alive, "living_ranks"),
    AdapterMistake(RebootsEachTime, lambda rig: _said.test_a_reboot_sent_twice_boots_once(rig, "twice"), "3 == 2"),
)
