"""One node of the local cluster: its boots, its orders, its agent, and what breaks in it."""

import fcntl
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.support.local_node import LocalNode, living
from tests.support.waiting import until

from sickbay.clusters.local.defects import bus, named
from sickbay.clusters.local.files import Break, Rank, RestartAgent, Status, VirtualDefect, read, write
from sickbay.clusters.local.supervisor import KEEP_GONE, KEEP_TAILS, _worth_keeping
from sickbay.model.fault import Remedy
from sickbay.model.fleet import JobId
from sickbay.model.job import RankState

pytestmark = pytest.mark.slow

OFF_THE_BUS = "79, pid="
FOREVER = "exec sleep 1000"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[LocalNode]:
    with LocalNode(tmp_path) as node:
        yield node


def broken(node: LocalNode, defect: VirtualDefect) -> None:
    node.obey(Break(boot_id=node.boot_id, defect=defect))


# --- boots


def test_a_machine_does_not_boot_in_no_time(tmp_path: Path) -> None:
    node = LocalNode(tmp_path, boot_takes=0.5)
    began = time.monotonic()
    node.power_on()
    until(lambda: node.status.pid)
    assert not node.status.ready
    assert node.status.agent_pid == 0
    with node:
        assert time.monotonic() - began >= 0.5
        assert node.status.agent_pid in living(node.boot_id)
        assert node.status.boot_id == node.boot_id
        assert [line[15:28] for line in node.kmsg.splitlines()] == ["Linux version"]


def test_it_beats(node: LocalNode) -> None:
    node.next_beat()
    assert time.monotonic() - node.status.mono < 3.0


def test_a_boot_that_is_over_before_it_began_is_refused(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    old = node.boot_id
    node.next_boot()
    with node:
        assert node.status.boot_id == node.boot_id
    assert node.power_on(old).wait(20) == 4
    assert f"has gone on to boot {node.boot_id}" in node.log()
    assert node.status.boot_id == node.boot_id


def test_a_seat_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    node.paths.seat_file.unlink()
    assert node.power_on().wait(20) == 2
    assert "does not exist" in node.log()


def test_two_supervisors_never_hold_one_seat(node: LocalNode) -> None:
    assert node.power_on().wait(20) == 5
    assert "still runs" in node.log()
    assert node.status.pid == node.started[0].pid
    assert node.status.ready


def test_waits_for_the_one_before_it_to_die(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    holder = os.open(node.paths.alive, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(holder, fcntl.LOCK_EX)
    node.power_on()
    until(lambda: Path(f"/proc/{node.supervisor.pid}/fd").exists())
    assert not node.status.ready
    os.close(holder)
    with node:
        assert node.status.ready


def test_a_supervisor_whose_seat_went_on_to_another_boot_ends(node: LocalNode) -> None:
    node.sh(FOREVER)
    old = node.boot_id
    node.next_boot()
    assert node.supervisor.wait(20) == 0
    assert not living(old)
    assert (node.rank().state, node.rank().why) == (RankState.GONE, "the node's boot ended")


@pytest.mark.parametrize("group", [False, True])
def test_ranks_and_agent_die_with_their_supervisor(node: LocalNode, group: bool) -> None:
    node.sh(FOREVER, ranks=2)
    assert len(living(node.boot_id)) == 4
    node.lose(group=group)
    until(lambda: not living(node.boot_id))


def test_the_next_boot_knows_that_the_ranks_of_the_last_are_gone(node: LocalNode) -> None:
    node.sh("exit 3", job="done")
    node.gone("done")
    node.sh(FOREVER, ranks=2)
    before = {rank.rank: rank for rank in node.ranks()}
    node.lose()
    node.next_boot()
    node.power_on()
    until(lambda: node.status.boot_id == node.boot_id and node.status.ready)
    for rank in node.ranks():
        assert (rank.state, rank.exit_code, rank.why) == (RankState.GONE, None, "the node's boot ended")
        assert rank.boot_id == before[rank.rank].boot_id != node.boot_id
        assert rank.ended_at
    assert node.rank("done").exit_code == 3


def test_a_kill_at_any_moment_leaves_nothing_behind_and_starts_nothing_twice(node: LocalNode, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    for turn in range(12):
        job = f"j{turn}"
        node.order(node.starting("sh", "-c", f"mkdir {starts}/{job}.$RANK || exit 9; {FOREVER}", job=job, ranks=2))
        began = time.monotonic()
        until(lambda began=began, turn=turn: time.monotonic() - began >= turn * 0.002)  # type: ignore[misc]
        old = node.boot_id
        node.lose()
        until(lambda old=old: not living(old))  # type: ignore[misc]
        node.next_boot()
        node.power_on()
        until(lambda: node.status.boot_id == node.boot_id and node.status.ready)
    until(lambda: not list(node.paths.orders.iterdir()))
    assert all(rank.state is RankState.GONE and rank.exit_code is None for rank in node.status.ranks)
    assert set(living(node.boot_id)) == {node.supervisor.pid, node.status.agent_pid}
    assert len(list(node.paths.seat.glob(".status.json.*"))) <= 1  # the one that is being written


def test_boots_even_if_what_the_last_boot_said_is_torn(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    node.paths.status.write_bytes(b"")
    torn = node.paths.seat / ".status.json.abcdef"
    torn.write_text("{")
    node.power_on()
    until(lambda: node.paths.status.stat().st_size)
    with node:
        assert node.status.ready
        assert not torn.exists()
        assert "what the last boot said is lost" in node.log()


def test_a_shutdown_is_polite_and_tells_how_it_ended(node: LocalNode) -> None:
    node.sh("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done")
    node.says("up")
    node.supervisor.terminate()
    assert node.supervisor.wait(20) == 0
    assert not living(node.boot_id)
    status = node.status
    assert (status.ready, status.agent_pid) == (False, 0)
    assert node.rank().tail.endswith("saved\n")
    assert (node.rank().stopped, node.rank().why) == (True, "the node was shut down")


def test_asked_twice_it_shuts_down_at_once(node: LocalNode) -> None:
    node.sh("trap '' TERM; echo up; while :; do sleep 0.02; done")
    node.says("up")
    node.supervisor.terminate()
    until(lambda: not node.status.ready)
    node.supervisor.terminate()
    assert node.supervisor.wait(3) == 0
    assert node.rank().exit_code == -9


def test_a_shutdown_does_not_wait_for_ever(node: LocalNode) -> None:
    node.sh("trap '' TERM; echo up; while :; do sleep 0.02; done")
    node.says("up")
    node.supervisor.terminate()
    assert node.supervisor.wait(10) == 0
    assert not living(node.boot_id)


def test_a_shutdown_while_it_boots_is_obeyed(tmp_path: Path) -> None:
    node = LocalNode(tmp_path, boot_takes=1000)
    node.power_on()
    until(lambda: node.status.pid)
    node.supervisor.terminate()
    assert node.supervisor.wait(20) == 0
    assert not node.status.ready


# --- orders


def test_an_order_goes_once_its_effect_can_be_read(node: LocalNode) -> None:
    node.obey(node.starting("sleep", "1000"))
    assert node.rank().state is RankState.RUNNING


@pytest.mark.parametrize("name", ["same", ""])
def test_the_same_start_twice_starts_once(node: LocalNode, tmp_path: Path, name: str) -> None:
    start = node.starting("sh", "-c", f"echo started >> {tmp_path}/starts; exit 1")
    for _ in range(3):
        node.obey(start, name)
        node.gone()
    assert len(node.ranks()) == 1
    assert (tmp_path / "starts").read_text() == "started\n"


def test_the_same_order_to_break_twice_breaks_once(node: LocalNode) -> None:
    for _ in range(2):
        node.obey(Break(boot_id=node.boot_id, lines=("something happened",)), "same")
    assert node.kmsg.count("something happened") == 1


def test_orders_are_carried_out_in_the_order_of_their_names(tmp_path: Path) -> None:
    node = LocalNode(tmp_path)
    for i in reversed(range(20)):
        write(node.paths.orders / f"{i:04d}.json", Break(boot_id=node.boot_id, lines=(f"line {i}",)))
    with node:
        until(lambda: node.carried_out("0019"))
        assert [line[15:] for line in node.kmsg.splitlines()[1:]] == [f"line {i}" for i in range(20)]


def test_an_order_for_another_boot_is_dropped(node: LocalNode) -> None:
    node.obey(replace(node.starting("sleep", "1000"), boot_id="another"))
    assert node.status.ranks == ()


def test_an_order_that_nobody_understands_hinders_no_other(node: LocalNode) -> None:
    for text in ("", "{", '{"ask": "dance", "boot_id": "b"}', '{"ask": "start", "boot_id": 7}'):
        (node.paths.orders / f"0{len(text)}.json").write_text(text)
    node.sh(FOREVER)
    until(lambda: not list(node.paths.orders.iterdir()))
    assert node.log().count("cannot be understood") == 4


def test_an_order_is_found_even_if_nobody_rings(node: LocalNode) -> None:
    write(node.paths.orders / "1.json", node.starting("sleep", "1000"))
    until(node.ranks, within=5.0)


def test_the_controller_is_woken_by_changes_only(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wake")
    fifo = os.open(tmp_path / "wake", os.O_RDWR | os.O_NONBLOCK)
    try:
        with LocalNode(tmp_path) as node:
            node.next_beat()  # by then all that the boot changed has been rung
            os.read(fifo, 4096)
            node.next_beat()
            with pytest.raises(BlockingIOError):
                os.read(fifo, 1)
            node.sh("exit 0")
            node.gone()
            assert select.select([fifo], [], [], 5.0)[0]
    finally:
        os.close(fifo)


def test_a_status_that_cannot_be_written_keeps_the_order_and_not_its_effect_twice(
    node: LocalNode, tmp_path: Path
) -> None:
    # A rename onto a directory fails as a full disk does.
    kept = node.paths.status.rename(tmp_path / "kept")
    (node.paths.status / "x").mkdir(parents=True)
    name = node.order(node.starting("sh", "-c", f"echo started >> {tmp_path}/starts; {FOREVER}"))
    until((tmp_path / "starts").exists)
    until(lambda: "cannot be written" in node.log())
    assert not node.carried_out(name)
    assert read(kept, Status).ready
    (node.paths.status / "x").rmdir()
    node.paths.status.rmdir()
    until(lambda: node.carried_out(name))
    assert node.rank().state is RankState.RUNNING
    assert (tmp_path / "starts").read_text() == "started\n"


def test_an_order_that_the_disk_refuses_is_tried_again(node: LocalNode, tmp_path: Path) -> None:
    devices = node.paths.devices(node.seat.instance_id)
    devices.rename(tmp_path / "kept")
    devices.mkdir()
    name = node.order(Break(boot_id=node.boot_id, defect=named("gpu_off_bus", 0)))
    until(lambda: "is tried again" in node.log())
    assert not node.carried_out(name)
    devices.rmdir()
    (tmp_path / "kept").rename(devices)
    until(lambda: node.carried_out(name))
    assert [defect.name for defect in node.hardware.defects()] == ["gpu_off_bus"]
    assert node.kmsg.count(OFF_THE_BUS) == 1


def test_a_full_disk_does_not_end_the_node(node: LocalNode, tmp_path: Path) -> None:
    node.run(sys.executable, "-uc", "import time\nwhile True: print('x' * 99); time.sleep(0.01)")
    node.says("x")
    unlimited = resource.prlimit(node.supervisor.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    beat = node.status.mono
    name = node.order(node.starting("mkdir", str(tmp_path / "ran"), job="other"))
    until((tmp_path / "ran").exists)
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 1.5)  # at least one beat that cannot be written
    assert node.status.mono < beat + 1.0
    assert (node.carried_out(name), node.supervisor.poll()) == (False, None)
    resource.prlimit(node.supervisor.pid, resource.RLIMIT_FSIZE, unlimited)
    until(lambda: node.carried_out(name))
    node.says("bytes of output were lost here: File too large")
    assert node.gone("other").exit_code == 0
    assert node.rank().state is RankState.RUNNING
    torn = [path.name for path in node.paths.seat.iterdir() if path.name.startswith(".status")]
    assert len(torn) <= 1  # the one that is being written


# --- the agent


def test_a_dead_agent_is_seen_and_not_started_again_unasked(node: LocalNode) -> None:
    os.kill(node.status.agent_pid, signal.SIGKILL)
    until(lambda: node.status.agent_pid == 0)
    beat = node.status.mono
    until(lambda: node.status.mono > beat + 1.0)
    assert (node.status.agent_pid, node.status.ready) == (0, True)
    node.order(RestartAgent(boot_id=node.boot_id))
    until(lambda: node.status.agent_pid in living(node.boot_id))


def test_two_agents_never_speak_for_one_node(tmp_path: Path) -> None:
    with LocalNode(tmp_path, agent="sh -c 'setsid sleep 1000 & exec sleep 1001'") as node:
        old = until(lambda: found if len(found := living(node.boot_id)) == 3 else {})
        node.obey(RestartAgent(boot_id=node.boot_id))
        new = until(lambda: found if len(found := living(node.boot_id)) == 3 else {})
        assert set(old) & set(new) == {node.supervisor.pid}


def test_an_agent_that_cannot_be_started_leaves_a_node_that_runs(tmp_path: Path) -> None:
    with LocalNode(tmp_path, agent="/no/such/agent") as node:
        assert node.status.agent_pid == 0
        assert "the agent could not be started" in node.log()
        node.sh("exit 0")
        assert node.gone().exit_code == 0


def test_the_agent_shares_the_supervisors_group_and_knows_where_its_token_is(node: LocalNode) -> None:
    agent = node.status.agent_pid
    assert os.getpgid(agent) == os.getpgid(node.supervisor.pid)
    environment = Path(f"/proc/{agent}/environ").read_bytes().split(b"\0")
    assert f"SICKBAY_TOKEN_FILE={node.paths.token}".encode() in environment


# --- defects


def test_a_defect_kills_those_who_hold_its_device_and_nobody_else(node: LocalNode) -> None:
    node.sh(FOREVER, ranks=2)
    pid = node.rank(rank=1).pid
    broken(node, named("gpu_off_bus", 1))
    rank = node.gone(rank=1)
    assert (rank.exit_code, rank.stopped, rank.why) == (-9, False, "GPU 1 is broken: gpu off bus")
    assert node.rank(rank=0).state is RankState.RUNNING
    assert f"Xid (PCI:{bus(1)}): 79, pid={pid}, name=sleep, GPU has fallen off the bus." in node.kmsg
    assert [device.errors for device in node.hardware.devices().devices] == [0, 1]


def test_a_defect_of_the_node_kills_everybody(node: LocalNode) -> None:
    node.sh(FOREVER, ranks=2)
    node.sh(FOREVER, job="without", devices=0)
    broken(node, named("nvswitch"))
    assert {node.gone(rank=0).why, node.gone(rank=1).why, node.gone("without").why} == {"the node is broken: nvswitch"}


def test_a_broken_device_shows_again_whenever_it_is_used(node: LocalNode) -> None:
    broken(node, named("gpu_off_bus", 0))
    assert node.kmsg.count(OFF_THE_BUS) == 1
    node.sh(FOREVER, ranks=2)
    assert node.gone(rank=0).exit_code == -9
    assert node.kmsg.count(OFF_THE_BUS) == 2
    assert node.rank(rank=1).state is RankState.RUNNING


def test_a_broken_device_shows_once_for_all_ranks_that_begin_together(node: LocalNode) -> None:
    broken(node, named("nvswitch"))
    node.sh(FOREVER, ranks=2)
    node.gone(rank=0)
    node.gone(rank=1)
    assert node.kmsg.count("20034") == 2


def test_a_device_that_was_cured_serves_again(node: LocalNode) -> None:
    broken(node, named("ecc_uncorrectable", 0))
    assert node.hardware.defects()
    node.hardware.cure(Remedy.RESET_GPU, (0,))
    before = node.kmsg
    node.sh("sleep 0.6; echo fine")
    assert node.gone().exit_code == 0
    assert node.kmsg == before


def test_a_defect_that_kills_nobody_lets_ranks_run_on(node: LocalNode) -> None:
    broken(node, named("silent_corruption", 0))
    before = node.kmsg
    node.sh("sleep 0.6; exit 0")
    assert node.gone().exit_code == 0
    assert node.kmsg == before
    assert [defect.name for defect in node.hardware.defects()] == ["silent_corruption"]


def test_an_error_of_the_application_shows_once_and_is_over(node: LocalNode) -> None:
    node.sh(FOREVER)
    broken(node, named("illegal_access", 0))
    assert node.gone().exit_code == -9
    node.sh("sleep 0.6; exit 0", job="again")
    assert node.gone("again").exit_code == 0
    assert node.kmsg.count("MMU Fault") == 1


def test_what_nothing_cures_comes_back_in_the_next_boot(node: LocalNode) -> None:
    broken(node, named("haunted", 0))
    node.lose()
    node.hardware.cure(Remedy.REPLACE)
    node.next_boot()
    node.power_on()
    until(lambda: node.status.boot_id == node.boot_id and node.status.ready)
    node.sh(FOREVER)
    assert node.gone().exit_code == -9
    assert OFF_THE_BUS in node.kmsg


def test_lines_alone_break_nothing(node: LocalNode) -> None:
    node.sh(FOREVER)
    name = node.order(
        Break(boot_id=node.boot_id, lines=("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",))
    )
    until(lambda: node.carried_out(name))
    assert "Xid (PCI:0000:18:00): 79, GPU" in node.kmsg
    assert node.rank().state is RankState.RUNNING
    assert node.hardware.defects() == ()


# --- what is kept


def gone(number: int, tail: str = "") -> Rank:
    return Rank(
        job=JobId("j"), attempt=number, rank=0, boot_id="b", state=RankState.GONE, ended_at=float(number), tail=tail
    )


def test_the_newest_of_those_gone_are_kept() -> None:
    kept = _worth_keeping(gone(number) for number in range(KEEP_GONE + 50))
    assert [rank.attempt for rank in kept] == list(range(50, KEEP_GONE + 50))


def test_old_tails_are_left_to_the_output_files() -> None:
    kept = _worth_keeping(gone(number, "x" * (KEEP_TAILS // 4)) for number in range(10))
    assert [bool(rank.tail) for rank in kept] == [False] * 6 + [True] * 4


def test_an_idle_node_costs_next_to_nothing(node: LocalNode) -> None:
    def spent() -> float:
        fields = Path(f"/proc/{node.supervisor.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began = spent(), time.monotonic()
    until(lambda: time.monotonic() - began > 10)
    assert (spent() - before) / (time.monotonic() - began) < 0.004


def test_many_at_once_are_told_apart(node: LocalNode) -> None:
    for i in range(10):
        node.order(node.starting("sh", "-c", f"echo {i}; exit {i}", job=f"j{i}", ranks=2))
    until(lambda: len(node.status.ranks) == 20)
    for i in range(10):
        ends = [node.gone(f"j{i}", rank) for rank in (0, 1)]
        assert [(end.exit_code, end.tail) for end in ends] == [(i, f"{i}\n")] * 2
    assert set(living(node.boot_id)) == {node.supervisor.pid, node.status.agent_pid}
