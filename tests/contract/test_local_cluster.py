"""The local cluster keeps the ports' contract with real processes, and does what only it promises."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.support.local_cluster_rig import LocalRig

from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import Break, VirtualDefect
from sickbay.clusters.local.locks import holder as lock_holder
from sickbay.clusters.local.machines import LocalMachines
from sickbay.model.errors import Gone, Rejected, Transient, Unknown
from sickbay.model.facts import JobSeen, NodeSeen
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId, NodeId
from sickbay.model.job import EndReason
from sickbay.ports.cluster import Deltas, Lost
from sickbay.testing.cluster_contract import ClusterContract

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRig]:
    rig = LocalRig(tmp_path_factory.mktemp("local"), nodes=2)
    yield rig
    rig.close()


@pytest.fixture
def rig(room: LocalRig) -> Iterator[LocalRig]:
    yield room
    room.clean()


class TestLocalCluster(ClusterContract):
    """On real processes, with real agents and a small controller's front door."""

    @pytest.fixture(scope="class")
    @classmethod
    def shared_rig(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRig]:
        rig = LocalRig(tmp_path_factory.mktemp("local"), agents=True)
        yield rig
        rig.close()


def job_of(rig: LocalRig, name: str = "train") -> JobId:
    return JobId(rig.named(name))


def run(rig: LocalRig, script: str, *, on: int = 2, job: JobId | None = None, first: int = 0, **more: object) -> None:
    spec = replace(rig.spec(on), command=("sh", "-c", script), **more)
    nodes = dict.fromkeys(rig.nodes()[first : first + on], ())
    name = job or job_of(rig)
    rig.bare.start(name, 1, spec=spec, nodes=nodes, avoid=(), key=f"start {name}")


def seen(rig: LocalRig, job: JobId | None = None, cluster: LocalCluster | None = None) -> JobSeen:
    wanted = job or job_of(rig)
    return next(found for found in (cluster or rig.bare).snapshot().jobs if found.job == wanted)


def node(rig: LocalRig, number: int) -> NodeSeen:
    return rig.bare.snapshot().nodes[number]


def supervisor(rig: LocalRig, number: int) -> int:
    pid = lock_holder(rig.room.paths(f"node-{number}").alive)
    assert pid is not None
    return pid


class TestEnds:
    def test_a_job_whose_ranks_all_end_with_0_completes(self, rig: LocalRig) -> None:
        run(rig, "echo rank $RANK of $WORLD_SIZE on $NODE_RANK at $MASTER_ADDR:$MASTER_PORT")
        rig.wait(lambda: seen(rig).end is not None)
        assert seen(rig).end.reason is EndReason.COMPLETED
        assert set(seen(rig).ranks.values()) == {"gone"}
        said = [rig.bare.logs(job_of(rig), 1, rank).text for rank in (0, 1)]
        assert [words.split(" at ")[0] for words in said] == ["rank 0 of 2 on 0", "rank 1 of 2 on 1"]
        assert len({words.split(" at ")[1] for words in said}) == 1

    def test_one_failing_rank_ends_the_attempt_while_the_others_still_run(self, rig: LocalRig) -> None:
        run(rig, "if [ $RANK = 1 ]; then echo ImportError: no module; exit 3; fi; exec sleep 1000")
        rig.wait(lambda: seen(rig).end is not None and "gone" in seen(rig).ranks.values())
        found = seen(rig)
        assert found.end.reason is EndReason.FAILED
        assert found.end.exit_codes == {rig.nodes()[1]: 3}
        assert "ImportError" in found.end.tail
        assert found.ranks == {rig.nodes()[0]: "running", rig.nodes()[1]: "gone"}

    def test_a_command_that_does_not_exist_fails_with_the_words_of_a_shell(self, rig: LocalRig) -> None:
        spec = replace(rig.spec(1), command=("no-such-command-here",))
        rig.bare.start(job_of(rig), 1, spec=spec, nodes={rig.nodes()[0]: ()}, avoid=(), key=rig.named("k"))
        rig.wait(lambda: seen(rig).end is not None)
        assert seen(rig).end.exit_codes == {rig.nodes()[0]: 127}
        assert "not found" in seen(rig).end.tail

    def test_a_node_that_is_killed_ends_the_attempt_as_lost(self, rig: LocalRig) -> None:
        run(rig, "exec sleep 1000")
        rig.wait(lambda: not any(rig.root.glob("seats/*/orders/*.json")))
        os.killpg(supervisor(rig, 1), signal.SIGKILL)
        rig.wait(lambda: seen(rig).end is not None)
        assert seen(rig).end.reason is EndReason.NODE_LOST
        assert seen(rig).ranks == {rig.nodes()[0]: "running", rig.nodes()[1]: "gone"}
        assert not node(rig, 1).ready

    def test_what_outlives_its_node_is_running_until_it_is_fenced(self, rig: LocalRig) -> None:
        # A launcher dies with its node; its workers know nothing of that.
        run(rig, "setsid sleep 1000 & echo started; wait", on=1)
        rig.wait(lambda: rig.bare.logs(job_of(rig), 1, 0).text == "started\n")
        os.killpg(supervisor(rig, 0), signal.SIGKILL)
        rig.wait(lambda: not node(rig, 0).ready)
        assert seen(rig).ranks == {rig.nodes()[0]: "running"}
        assert seen(rig).end is None
        assert LocalMachines(rig.root).fence(rig.nodes()[0], key=rig.named("f"), expect=None).done
        assert seen(rig).ranks == {rig.nodes()[0]: "gone"}
        assert seen(rig).end.reason is EndReason.NODE_LOST

    def test_an_end_is_told_the_same_by_the_next_controller(self, rig: LocalRig) -> None:
        run(rig, "exit 4")
        rig.wait(lambda: set(seen(rig).ranks.values()) == {"gone"})
        before = replace(seen(rig), as_of=0.0)
        again = LocalCluster(rig.root)
        assert replace(seen(rig, cluster=again), as_of=0.0) == before


class TestStarts:
    def test_two_attempts_never_hold_one_device(self, rig: LocalRig) -> None:
        run(rig, "exec sleep 1000", on=1)
        with pytest.raises(Rejected, match=rf"GPU 0 of local/node-0 is held by {job_of(rig)}\.1"):
            run(rig, "exec sleep 1000", on=1, job=job_of(rig, "other"))
        rig.bare.start(
            job_of(rig, "other"), 1, spec=rig.spec(1), nodes={rig.nodes()[1]: (1,)}, avoid=(), key=rig.named("k1")
        )
        rig.bare.start(
            job_of(rig, "third"), 1, spec=rig.spec(1), nodes={rig.nodes()[1]: (0,)}, avoid=(), key=rig.named("k2")
        )
        rig.wait(lambda: all(found.ranks for found in rig.bare.snapshot().jobs))

    def test_of_starts_at_the_same_moment_one_gets_the_device(self, rig: LocalRig) -> None:
        def attempt(number: int) -> bool:
            try:
                run(rig, "exec sleep 1000", on=1, job=job_of(rig, f"job-{number}"))
            except Rejected:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(attempt, range(8))) == 1

    def test_the_next_attempt_waits_until_nothing_of_the_last_is_left(self, rig: LocalRig) -> None:
        run(rig, "exec sleep 1000", on=1)
        with pytest.raises(Rejected, match="its attempt 1 has not ended on local/node-0"):
            rig.bare.start(job_of(rig), 2, spec=rig.spec(1), nodes={rig.nodes()[1]: ()}, avoid=(), key=rig.named("k2"))

    def test_a_node_that_is_down_is_refused_with_the_reason(self, rig: LocalRig) -> None:
        LocalMachines(rig.root).fence(rig.nodes()[0], key=rig.named("f"), expect=None)
        with pytest.raises(Rejected, match="local/node-0 is down"):
            run(rig, "exec sleep 1000", on=1)

    def test_the_checkpoint_directory_is_shared_by_all_attempts_and_there_when_a_rank_starts(
        self, rig: LocalRig, tmp_path: Path
    ) -> None:
        run(rig, 'cd "$SICKBAY_CHECKPOINT_DIR" && pwd', on=1)
        run(
            rig,
            'cd "$SICKBAY_CHECKPOINT_DIR" && pwd',
            on=1,
            first=1,
            job=job_of(rig, "two"),
            checkpoint=f"{tmp_path}/mine",
        )
        rig.wait(lambda: all(found.end is not None for found in rig.bare.snapshot().jobs))
        assert rig.bare.logs(job_of(rig), 1, 0).text == f"{rig.root}/checkpoints/{job_of(rig)}\n"
        assert rig.bare.logs(job_of(rig, "two"), 1, 0).text == f"{tmp_path}/mine\n"

    def test_a_checkpoint_directory_that_cannot_be_made_is_refused(self, rig: LocalRig) -> None:
        (rig.root / "a file").touch()
        with pytest.raises(Rejected, match=r"checkpoint directory .* cannot be made: Not a directory"):
            run(rig, "true", checkpoint=f"{rig.root}/a file/c")

    def test_a_stop_ends_ranks_that_ignore_it_and_what_they_started(self, rig: LocalRig) -> None:
        run(rig, "trap '' TERM; sleep 1000 & echo deaf; while :; do sleep 0.05; done", on=1)
        rig.wait(lambda: rig.bare.logs(job_of(rig), 1, 0).text == "deaf\n")
        rig.bare.stop(job_of(rig), 1, final=False, key=rig.named("s"))
        rig.wait(lambda: seen(rig).end is not None)
        assert seen(rig).end.exit_codes == {}
        rig.wait(lambda: len(rig.processes()) == 4)  # two supervisors, two agents


class TestReads:
    def test_as_of_goes_on_where_the_last_controller_was(self, rig: LocalRig) -> None:
        code = "import sys; from sickbay.clusters.local.cluster import LocalCluster as L; "
        code += "print(repr(L(sys.argv[1]).snapshot().as_of))"
        readings = []
        for _ in range(3):
            done = subprocess.run(
                [sys.executable, "-c", code, str(rig.root)], check=True, capture_output=True, text=True
            )
            readings.append(float(done.stdout))
        assert readings == sorted(set(readings))

    def test_a_cursor_of_the_last_controller_is_lost(self, rig: LocalRig) -> None:
        cursor = rig.bare.snapshot().cursor
        assert isinstance(LocalCluster(rig.root).watch(cursor), Lost)

    def test_a_waiting_reader_is_woken_when_something_changes(self, rig: LocalRig) -> None:
        cluster = LocalCluster(rig.root)
        while cluster.wait(1.5):  # what is left of the start
            pass
        with ThreadPoolExecutor(1) as pool:
            woken = pool.submit(cluster.wait, 10.0)
            run(rig, "true", on=1)
            assert woken.result(timeout=5.0)
        cluster.close()

    def test_a_beat_alone_is_no_news(self, rig: LocalRig) -> None:
        cursor = rig.bare.snapshot().cursor
        before = {path: path.stat().st_mtime_ns for path in rig.root.glob("seats/*/status.json")}
        rig.wait(lambda: all(path.stat().st_mtime_ns > at for path, at in before.items()))
        deltas = rig.bare.watch(cursor)
        assert isinstance(deltas, Deltas)
        assert deltas.news == ()

    def test_files_that_cannot_be_read_are_a_passing_trouble(self, rig: LocalRig) -> None:
        path = rig.room.paths("node-0").seat_file
        good = path.read_bytes()
        path.write_bytes(b"{")
        with pytest.raises(Transient):
            rig.bare.snapshot()
        with pytest.raises(Unknown):
            rig.bare.cordon(rig.nodes()[0], owner="sickbay:i", reason="r", key=rig.named("c"), expect=None)
        path.write_bytes(good)
        assert len(rig.bare.snapshot().nodes) == 2


class TestRepairs:
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[LocalRig]:
        """One of its own: nothing takes a seat's own defects away."""
        rig = LocalRig(tmp_path, nodes=2)
        yield rig
        rig.close()

    def test_a_new_boot_is_shown_only_when_it_is_up(self, rig: LocalRig) -> None:
        old = rig.holder(rig.nodes()[0])
        LocalMachines(rig.root).reboot(rig.nodes()[0], key=rig.named("b"), expect=old)
        shown = []
        while not (found := node(rig, 0)).ready:
            shown.append(found.incarnation)
        assert shown
        assert set(shown) == {old}
        assert found.incarnation.boot_id != old.boot_id

    @pytest.mark.parametrize(
        ("remedy", "left"), [(Remedy.REBOOT, ["hard", "seat"]), (Remedy.REPLACE, ["seat"])], ids=["reboot", "replace"]
    )
    def test_a_repair_cures_what_it_can_and_nothing_more(self, rig: LocalRig, remedy: Remedy, left: list[str]) -> None:
        name, there = rig.nodes()[0], rig.holder(rig.nodes()[0])
        for defect in (
            VirtualDefect(name="soft", device=0, cured_by=Remedy.REBOOT),
            VirtualDefect(name="hard", device=0, cured_by=Remedy.REPLACE),
            VirtualDefect(name="seat", device=0, cured_by=None),
        ):
            rig.bare.break_node(name, Break(boot_id="", defect=defect))
        rig.settle()
        before = node(rig, 0).devices
        getattr(LocalMachines(rig.root), remedy.value)(name, key=rig.named("k"), expect=there)
        rig.settle()
        seat = rig.room.seat("node-0")
        assert [each.name for each in Hardware(rig.room.paths("node-0"), seat.instance_id).defects()] == left
        assert (node(rig, 0).devices == before) is (remedy is Remedy.REBOOT)

    def test_repairs_at_the_same_moment_are_one_boot_for_each_key(self, rig: LocalRig) -> None:
        machines, name, old = LocalMachines(rig.root), rig.nodes()[0], rig.holder(rig.nodes()[0])

        def reboot(number: int) -> bool:
            try:
                machines.reboot(name, key=rig.named(f"k{number % 2}"), expect=old)
            except Rejected:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(reboot, range(8)))
        rig.settle()
        # One key was first; the other was refused as its boot was over.
        assert done in ([True, False] * 4, [False, True] * 4)
        assert len({path.name for path in rig.root.glob("seats/node-0/instances/*/boots/*")}) == 2
        rig.wait(lambda: len(rig.processes()) == 4)

    def test_a_restarted_agent_is_another_process_under_the_same_boot_once_for_each_key(self, rig: LocalRig) -> None:
        def agents() -> set[int]:
            return {child.pid for child in psutil.Process(supervisor(rig, 0)).children()}

        rig.wait(lambda: len(agents()) == 1)
        before, there = agents(), rig.holder(rig.nodes()[0])
        machines = LocalMachines(rig.root)
        machines.restart_service(rig.nodes()[0], key=rig.named("a"), expect=there)
        rig.wait(lambda: len(agents() - before) == 1)
        second = agents()
        machines.restart_service(rig.nodes()[0], key=rig.named("a"), expect=there)
        rig.settle()
        assert agents() == second
        assert rig.holder(rig.nodes()[0]) == there

    def test_a_frozen_machine_can_be_rebooted(self, rig: LocalRig) -> None:
        old = rig.holder(rig.nodes()[0])
        os.killpg(supervisor(rig, 0), signal.SIGSTOP)
        LocalMachines(rig.root).reboot(rig.nodes()[0], key=rig.named("b"), expect=old)
        rig.settle()
        assert rig.holder(rig.nodes()[0]) != old

    def test_a_node_of_another_cluster_is_gone(self, rig: LocalRig) -> None:
        with pytest.raises(Gone):
            LocalMachines(rig.root).fence(NodeId("other/node-0"), key=rig.named("f"), expect=None)

    def test_nothing_can_be_broken_in_a_machine_that_is_down(self, rig: LocalRig) -> None:
        LocalMachines(rig.root).fence(rig.nodes()[0], key=rig.named("f"), expect=None)
        with pytest.raises(Rejected, match="is down"):
            rig.bare.break_node(rig.nodes()[0], Break(boot_id="", lines=("x",)))

    def test_a_defect_kills_the_ranks_that_use_its_device_and_no_others(self, rig: LocalRig) -> None:
        for device in (0, 1):
            rig.bare.start(
                job_of(rig, f"job-{device}"),
                1,
                spec=rig.spec(1),
                nodes={rig.nodes()[0]: (device,)},
                avoid=(),
                key=rig.named(f"{device}"),
            )
        rig.settle()
        defect = VirtualDefect(name="gpu_off_bus", device=1, cured_by=Remedy.REBOOT)
        rig.bare.break_node(rig.nodes()[0], Break(boot_id="", defect=defect))
        rig.wait(lambda: seen(rig, job_of(rig, "job-1")).end is not None)
        assert seen(rig, job_of(rig, "job-1")).end.exit_codes == {rig.nodes()[0]: -signal.SIGKILL}
        assert seen(rig, job_of(rig, "job-0")).ranks == {rig.nodes()[0]: "running"}
