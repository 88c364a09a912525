"""The Cluster port's contract on reads: snapshots, deltas, and how far they reach."""

import msgspec

from sickbay.model.facts import JobSeen, JobVanished, NodeSeen, NodeVanished
from sickbay.model.fleet import Capability
from sickbay.ports.cluster import Deltas, Lost, Snapshot, Told
from sickbay.testing.cluster_rig import ClusterRig, attempts, cordon, holder, owner_of, run_job, start, stop, where


class ReadContract:
    """Reads lag, and never go back."""

    def test_as_of_never_goes_back(self, rig: ClusterRig) -> None:
        reads = [rig.cluster.snapshot().as_of]
        cursor = rig.cluster.snapshot().cursor
        for number, node in enumerate(rig.nodes()[:3]):
            rig.cluster.cordon(node, owner=owner_of(rig), reason="r", key=rig.named(f"c{number}"), expect=None)
            deltas = rig.cluster.watch(cursor)
            assert isinstance(deltas, Deltas)
            reads += [deltas.as_of, rig.cluster.snapshot().as_of]
            rig.settle()
        assert reads == sorted(reads)

    def test_without_a_cursor_the_stream_is_lost(self, rig: ClusterRig) -> None:
        assert isinstance(rig.cluster.watch(None), Lost)

    def test_an_old_cursor_is_lost_and_the_snapshot_goes_on(self, rig: ClusterRig) -> None:
        assert isinstance(rig.cluster.watch(rig.outdated_cursor()), Lost)
        assert isinstance(rig.cluster.watch(rig.cluster.snapshot().cursor), Deltas)

    def test_a_cursor_of_another_run_is_lost(self, rig: ClusterRig) -> None:
        """Whoever takes over may hold one that another process was given."""
        cursor = rig.cluster.snapshot().cursor
        for other in (f"another-{cursor}", f"0{cursor}", "", "not a cursor"):
            assert isinstance(rig.cluster.watch(other), Lost)

    def test_nothing_new_is_told_when_nothing_changed(self, rig: ClusterRig) -> None:
        rig.settle()
        cursor = rig.cluster.snapshot().cursor
        rig.settle()
        deltas = rig.cluster.watch(cursor)
        assert isinstance(deltas, Deltas)
        assert deltas.news == ()

    def test_an_open_job_is_in_every_list(self, rig: ClusterRig) -> None:
        run_job(rig)
        assert all(1 in attempts(rig) for _ in range(5))

    def test_what_a_cluster_tells_besides_has_one_id_in_deltas_and_lists(self, rig: ClusterRig) -> None:
        cursor = rig.cluster.snapshot().cursor
        rig.say(rig.nodes()[0])
        rig.settle()
        deltas = rig.cluster.watch(cursor)
        assert isinstance(deltas, Deltas)
        (told,) = [news for news in deltas.news if isinstance(news, Told)]
        for _ in range(2):
            assert [again.id for again in rig.cluster.snapshot().told if again.news == told.news] == [told.id]

    def test_a_snapshot_and_the_deltas_after_it_make_the_later_snapshot(self, rig: ClusterRig) -> None:
        before = rig.cluster.snapshot()
        nodes = rig.nodes()
        start(rig)
        cordon(rig, nodes[3])
        rig.wait(lambda: len(where(rig)) == 2)
        stop(rig)
        if Capability.REPLACE in rig.machines.capabilities:
            rig.machines.replace(nodes[3], key=rig.named("r1"), expect=holder(rig, nodes[3]))
        rig.settle()
        folded, cursor = _state(before), before.cursor
        for _ in range(3):
            deltas = rig.cluster.watch(cursor)
            assert isinstance(deltas, Deltas)
            cursor = deltas.cursor
            for news in deltas.news:
                _apply(folded, news)
        later = _state(rig.cluster.snapshot())
        assert {key: value for key, value in folded.items() if key.startswith("node")} == {
            key: value for key, value in later.items() if key.startswith("node")
        }
        for key, value in later.items():
            assert folded[key] == value  # a snapshot may forget an attempt that ended, never change it


def _state(snapshot: Snapshot) -> dict[str, NodeSeen | JobSeen]:
    state: dict[str, NodeSeen | JobSeen] = {}
    for node in snapshot.nodes:
        _apply(state, node)
    for job in snapshot.jobs:
        _apply(state, job)
    return state


def _apply(state: dict[str, NodeSeen | JobSeen], news: NodeSeen | NodeVanished | JobSeen | JobVanished | Told) -> None:
    match news:
        case NodeSeen():
            state[f"node {news.node}"] = msgspec.structs.replace(news, as_of=0.0)
        case NodeVanished():
            state.pop(f"node {news.node}", None)
        case JobSeen():
            state[f"job {news.job} {news.attempt}"] = msgspec.structs.replace(news, as_of=0.0)
        case JobVanished():
            for key in [key for key in state if key.startswith(f"job {news.job} ")]:
                del state[key]
        case Told():
            pass  # it happened; nothing is kept of it
