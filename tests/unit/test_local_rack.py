"""The machine room of the local cluster: what is there, and power over it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.support.waiting import until

from sickbay.clusters.local import rack as room_module
from sickbay.clusters.local.cluster import LocalCluster
from sickbay.clusters.local.devices import Hardware
from sickbay.clusters.local.files import BOOT_MARK, STALE, ClusterFile, SeatPower, Status, VirtualDefect, read, write
from sickbay.clusters.local.locks import held, holder
from sickbay.clusters.local.processes import find
from sickbay.clusters.local.rack import Rack, kill_boots
from sickbay.clusters.local.seat_state import Looker
from sickbay.clusters.local.ticks import Ticks
from sickbay.model.errors import BadInput, Gone
from sickbay.model.fault import Remedy

pytestmark = pytest.mark.slow


def of(boot_id: str) -> set[int]:
    return set(find(marks=[f"{BOOT_MARK}={boot_id}"]))


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rack]:
    monkeypatch.setenv("SICKBAY_AGENT_COMMAND", "sh -c 'exec sleep 1000' agent")
    room = Rack(tmp_path)
    room.create("local", 2, 2, "train", boot_takes=0.0)
    yield room
    room.down(within=2.0)
    assert not [boot for name in room.names() for boot in room._boots(name) if of(boot)]


def supervisor(room: Rack, name: str) -> int:
    pid = holder(room.paths(name).alive)
    assert pid is not None
    return pid


def up(room: Rack) -> None:
    room.power_on()
    looker = Looker(room.root)
    until(lambda: all(looker.look(name).ready for name in room.names()))


def _runs_once(boot_id: str) -> bool:
    """The supervisor and its agent."""
    return len(of(boot_id)) == 2


class TestCreate:
    def test_a_room_has_the_seats_that_were_asked_for_each_with_its_own_hardware(self, room: Rack) -> None:
        seats = [room.seat(name) for name in room.names()]
        assert [seat.id for seat in seats] == ["local/node-0", "local/node-1"]
        assert len({seat.instance_id for seat in seats} | {seat.boot_id for seat in seats}) == 4
        serials = {d.serial for s in seats for d in Hardware(room.paths(s.name), s.instance_id).devices().devices}
        assert len(serials) == 4

    def test_the_same_again_changes_nothing(self, room: Rack) -> None:
        before = [room.seat(name) for name in room.names()]
        room.url("http://127.0.0.1:1")
        room.create("local", 2, 2, "train", boot_takes=0.0)
        assert [room.seat(name) for name in room.names()] == before
        assert room.file().controller == "http://127.0.0.1:1"

    def test_more_nodes_add_seats_and_keep_the_others(self, room: Rack) -> None:
        before = room.seat("node-0")
        room.create("local", 4, 2, "train", boot_takes=0.0)
        assert room.names() == ("node-0", "node-1", "node-2", "node-3")
        assert room.seat("node-0") == before

    @pytest.mark.parametrize(
        ("asked", "say"),
        [
            (("local", 1, 2, "train"), "has 2 nodes .* --nodes 2, or start afresh .*--state"),
            (("local", 2, 8, "train"), "GPUs per node: 2, not 8.*--state"),
            (("other", 2, 2, "train"), "is named local, not other"),
            (("local", 2, 2, "debug"), "pool train, not debug"),
            (("local", 0, 2, "train"), "at least one node"),
            (("local", -3, 2, "train"), "at least one node"),
            (("local", 2, -1, "train"), "no negative number"),
            (("a/b", 2, 2, "train"), "cannot name a cluster"),
        ],
    )
    def test_what_contradicts_the_room_is_refused_in_one_line(
        self, room: Rack, asked: tuple[str, int, int, str], say: str
    ) -> None:
        before = room.file()
        with pytest.raises(BadInput, match=say) as refusal:
            room.create(*asked, boot_takes=0.0)
        assert "\n" not in str(refusal.value)
        assert room.file() == before

    def test_a_directory_without_a_room_says_so(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="sickbay up"):
            Rack(tmp_path / "nowhere").names()

    def test_a_seat_that_is_not_there_is_gone(self, room: Rack) -> None:
        with pytest.raises(Gone):
            room.seat("nobody")

    def test_a_token_is_for_its_owner_only(self, room: Rack) -> None:
        room.token("node-0", "secret")
        path = room.paths("node-0").token
        assert path.read_text() == "secret"
        assert path.stat().st_mode & 0o777 == 0o600


class TestPower:
    def test_a_room_that_is_switched_on_twice_runs_once(self, room: Rack) -> None:
        threads = [threading.Thread(target=room.power_on) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        up(room)
        for name in room.names():
            boot = room.seat(name).boot_id
            until(partial(_runs_once, boot))

    def test_a_spawn_beside_a_living_supervisor_starts_nothing(self, room: Rack) -> None:
        up(room)
        until(lambda: len(of(room.seat("node-0").boot_id)) == 2)
        before = of(room.seat("node-0").boot_id)
        with room.held("node-0") as seat:
            room.spawn_held(seat)
        assert of(room.seat("node-0").boot_id) == before

    def test_a_supervisor_is_a_session_of_its_own_and_outlives_who_started_it(self, room: Rack) -> None:
        code = f"from sickbay.clusters.local.rack import Rack; Rack({str(room.root)!r}).power_on()"
        subprocess.run([sys.executable, "-c", code], check=True)
        looker = Looker(room.root)
        until(lambda: all(looker.look(name).ready for name in room.names()))
        pid = supervisor(room, "node-0")
        assert os.getsid(pid) == pid
        assert Path(f"/proc/{pid}/cwd").resolve() == Path("/")

    def test_alive_is_the_lock_and_not_the_pid(self, room: Rack) -> None:
        up(room)
        pid = supervisor(room, "node-0")
        os.kill(pid, signal.SIGSTOP)
        assert room.alive("node-0")  # it does nothing, but it lives
        os.kill(pid, signal.SIGKILL)
        until(lambda: not room.alive("node-0"))
        status = read(room.paths("node-0").status, Status)
        write(room.paths("node-0").status, Status(boot_id=status.boot_id, instance_id="i", pid=os.getpid(), mono=0.0))
        assert not room.alive("node-0")

    def test_one_that_died_stays_down_and_one_that_was_switched_off_comes_back(self, room: Rack) -> None:
        up(room)
        died, boot = room.seat("node-0"), room.seat("node-1").boot_id
        room.kill_boot(died.boot_id)
        assert room.power_on() == ()
        assert room.seat("node-0") == died
        room.down(within=2.0)
        assert set(room.power_on()) == {"node-0", "node-1"}
        assert room.seat("node-1").boot_id != boot
        assert room.seat("node-1").previous.boot_id == boot

    def test_where_nothing_runs_at_all_the_machine_itself_was_off(self, room: Rack) -> None:
        up(room)
        room.kill_boot(room.seat("node-0").boot_id)
        room.kill_boot(room.seat("node-1").boot_id)
        assert room.power_on() == ("node-0", "node-1")
        up(room)

    def test_a_boot_that_never_began_is_begun_under_its_own_name(self, room: Rack) -> None:
        up(room)
        with room.held("node-0") as seat:
            room.kill_boot(seat.boot_id)
            # As a reboot leaves it that was cut after its last word on disk.
            room.save(replace(seat, boot_id="next"))
        assert room.power_on() == ("node-0",)
        assert room.seat("node-0").boot_id == "next"

    def test_switching_off_and_on_cures_what_a_reboot_cures(self, room: Rack) -> None:
        up(room)
        hardware = Hardware(room.paths("node-0"), room.seat("node-0").instance_id)
        hardware.inject(VirtualDefect(name="soft", device=0, cured_by=Remedy.REBOOT))
        hardware.inject(VirtualDefect(name="hard", device=0, cured_by=Remedy.REPLACE))
        room.down(within=2.0)
        room.power_on()
        assert [defect.name for defect in hardware.defects()] == ["hard"]

    def test_down_leaves_no_process_however_stubborn(self, room: Rack) -> None:
        up(room)
        boot = room.seat("node-0").boot_id
        stubborn = subprocess.Popen(
            [sys.executable, "-c", "import signal,time; signal.signal(15, 1); print(flush=True); time.sleep(1000)"],
            env={**os.environ, BOOT_MARK: boot},
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        stubborn.stdout.readline()
        os.kill(supervisor(room, "node-1"), signal.SIGSTOP)  # it will not hear the request
        room.down(within=0.5)
        assert stubborn.wait() == -signal.SIGKILL
        stubborn.stdout.close()
        assert not of(boot) | of(room.seat("node-1").boot_id)
        assert not any(room.alive(name) for name in room.names())

    def test_no_zombie_is_left_of_supervisors_that_ended(self, room: Rack) -> None:
        up(room)
        room.down(within=2.0)
        mine = psutil.Process().children()
        assert not [child for child in mine if child.status() == psutil.STATUS_ZOMBIE and "supervisor" in child.name()]
        assert not room_module._children

    def test_killing_a_boot_ends_what_it_goes_on_starting(self) -> None:
        # Each process starts the next and ends: whoever kills only what one look found never gets it.
        again = "subprocess.Popen([sys.executable, '-S', '-E', '-c', sys.argv[1], sys.argv[1]])"
        code = f"import subprocess, sys, time; time.sleep(.005); {again}"
        first = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", code, code], env={**os.environ, BOOT_MARK: "a-chain"}
        )
        first.wait()
        kill_boots({"a-chain"})
        assert not of("a-chain")

    def test_a_private_word_of_the_caller_never_reaches_the_machines(
        self, room: Rack, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SICKBAY_TOKEN", "secret")
        monkeypatch.setenv("SICKBAY_RANK", "outer.1.0")
        up(room)
        for pid in of(room.seat("node-0").boot_id):
            assert not {"SICKBAY_TOKEN", "SICKBAY_RANK"} & psutil.Process(pid).environ().keys()

    def test_the_log_of_a_supervisor_is_put_aside_when_it_is_long(self, room: Rack) -> None:
        log = room.paths("node-0").seat / "supervisor.log"
        log.write_bytes(b"x" * (room_module.LOG_SIZE + 1))
        up(room)
        assert log.stat().st_size < 1000
        assert log.with_name("supervisor.log.1").exists()


class TestLocks:
    def test_a_lock_keeps_threads_apart(self, tmp_path: Path) -> None:
        inside, most = 0, 0

        def work() -> None:
            nonlocal inside, most
            for _ in range(50):
                with held(tmp_path / "lock"):
                    inside += 1
                    most = max(most, inside)
                    inside -= 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert most == 1

    def test_a_file_that_is_not_there_is_held_by_nobody(self, tmp_path: Path) -> None:
        assert holder(tmp_path / "nothing") is None


class TestTicks:
    def test_time_never_goes_back_over_restarts_and_jumps_of_the_wall_clock(self, tmp_path: Path) -> None:
        readings = []
        for wall in (2e9, 1e9, 1.5e9, 3e9, 0.0):
            ticks = Ticks(tmp_path / "as_of.json", wall=partial(float, wall))
            readings += [ticks.now() for _ in range(100)]
        assert all(one < other for one, other in pairwise(readings))
        assert readings[-1] > 3e9

    def test_time_goes_at_the_true_rate_though_the_last_run_was_ahead(self, tmp_path: Path) -> None:
        write(tmp_path / "as_of.json", 4e9)
        moments = iter([0.0, 10.0, 110.0])
        ticks = Ticks(tmp_path / "as_of.json", mono=lambda: next(moments))
        assert [ticks.now() - 4e9, ticks.now() - 4e9] == [10.0, 110.0]

    def test_it_is_seldom_written(self, tmp_path: Path) -> None:
        ticks = Ticks(tmp_path / "as_of.json")
        ticks.now()
        before = (tmp_path / "as_of.json").stat().st_mtime_ns
        for _ in range(1000):
            ticks.now()
        assert (tmp_path / "as_of.json").stat().st_mtime_ns == before


class TestSight:
    def test_a_supervisor_that_stands_still_is_not_ready_and_its_holder_decides(self, room: Rack) -> None:
        up(room)
        looker = Looker(room.root)
        status = read(room.paths("node-0").status, Status)
        pid = supervisor(room, "node-0")
        os.kill(pid, signal.SIGSTOP)
        assert status is not None
        write(room.paths("node-0").status, replace(status, mono=time.monotonic() - STALE))
        sight = looker.look("node-0")
        assert (sight.alive, sight.ready, sight.runs) == (True, False, False)
        assert sight.trouble == "not answering"

    def test_a_read_of_64_seats_takes_a_few_milliseconds(self, tmp_path: Path) -> None:
        room = Rack(tmp_path)
        room.create("local", 64, 8, "train")
        for name in room.names():
            seat = room.seat(name)
            write(
                room.paths(name).status,
                Status(boot_id=seat.boot_id, instance_id=seat.instance_id, pid=1, mono=time.monotonic(), ready=True),
                durable=False,
            )
        cluster = LocalCluster(tmp_path)
        cluster.snapshot()
        taken = []
        for _ in range(20):
            began = time.perf_counter()
            cluster.snapshot()
            taken.append(time.perf_counter() - began)
        assert min(taken) < 0.020  # the best of many: others use this machine too
        assert len(cluster.snapshot().nodes) == 64

    def test_a_file_of_a_newer_version_is_read_as_far_as_it_is_understood(self, room: Rack) -> None:
        path = room.root / "cluster.json"
        path.write_bytes(path.read_bytes()[:-1] + b',"tomorrow":1}')
        assert read(path, ClusterFile).seats == room.names()
        assert room.seat("node-0").power is SeatPower.OFF
